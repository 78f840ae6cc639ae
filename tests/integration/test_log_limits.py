"""The limits of topic logs in a running nsqd: what is dropped, refused and expired, and /log/trim with its command."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, Fleet, wait_until
from rawclient import OK, RawClient

BODY = b"x" * 20_000
# Small segments, and a small commit file, so that little traffic fills them.
SMALL = ("--store=log", "--store-rule=classic*=classic", "--max-bytes-per-file=100000", "--commit-bytes=1048576")


@pytest.fixture
def nsqd(fleet: Fleet) -> Daemon:
    return fleet.nsqd("nsqx", *SMALL)


def ask(nsqd: Daemon, path: str, **query: str) -> tuple[int, Any]:
    response = nsqd.request("POST", path, query=query)
    return response.status, response.json() if response.body else None


def log_stats(nsqd: Daemon, topic: str) -> dict[str, Any]:
    return nsqd.topic_stats(topic)["log"]


def consume(nsqd: Daemon, topic: str, channel: str, count: int) -> list[bytes]:
    """Receive and finish messages."""
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, channel) == OK
        consumer.rdy(1)
        bodies = []
        for _ in range(count):
            message = consumer.read_message()
            bodies.append(message.body)
            consumer.fin(message.id)
        wait_until(lambda: nsqd.channel_stats(topic, channel)["in_flight_count"] <= 1, "everything is finished")
    return bodies


def test_retention_overtakes_a_slow_channel(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    """Messages that the limit drops are counted and reported. Nothing else is lost, also not by kill -9."""
    flags = (*SMALL, "--log-max-bytes=2000000", "--log-when-full=drop-oldest")
    nsqd = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    nsqd.post("/topic/create", topic=topic)
    for channel in ("slow", "fast"):
        nsqd.post("/channel/create", topic=topic, channel=channel)
    count = 400
    with RawClient(nsqd.tcp_address) as producer, RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "fast") == OK
        consumer.rdy(10)
        for number in range(count):
            assert producer.pub(topic, b"%05d" % number + BODY) == OK
            message = consumer.read_message()
            assert message.body[:5] == b"%05d" % number
            consumer.fin(message.id)
    wait_until(lambda: log_stats(nsqd, topic)["bytes"] <= 2_000_000, "the log is within its limit", timeout_s=30)
    wait_until(lambda: nsqd.channel_stats(topic, "fast")["cursor"]["floor"] == count, "all FINs are counted")
    stats = log_stats(nsqd, topic)
    slow, fast = (nsqd.channel_stats(topic, name) for name in ("slow", "fast"))
    first = stats["first"]
    assert first > 250
    assert (slow["cursor"]["dropped"], slow["depth"]) == (first, count - first)
    assert (fast["cursor"]["dropped"], fast["depth"]) == (0, 0)
    assert stats["dropped"] == first
    assert f"LOG({topic}): max_bytes dropped" in nsqd.log
    metrics = nsqd.request("GET", "/metrics").body.decode()
    assert f'nsq_channel_dropped_total{{topic="{topic}",channel="slow"}} {first}\n' in metrics
    nsqd.kill()
    again = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    wait_until(lambda: again.channel_stats(topic, "slow")["depth"] == count - first, "the depth is exact")
    assert log_stats(again, topic)["first"] == first
    bodies = consume(again, topic, "slow", count - first)
    assert [int(body[:5]) for body in bodies] == list(range(first, count))


def test_a_full_log_refuses_publishes_with_a_reason(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", *SMALL, "--log-max-bytes=500000")
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    with RawClient(nsqd.tcp_address) as producer:
        answers = [producer.pub(topic, BODY)]
        while answers[-1] == OK and len(answers) < 50:
            answers.append(producer.pub(topic, BODY))
        assert answers[-1].data == b"E_PUB_FAILED PUB failed log full: max_bytes is 500000"
    response = nsqd.request("POST", "/pub", BODY, query={"topic": topic})
    assert (response.status, response.headers["x-nsq-reason"]) == (503, "log full: max_bytes is 500000")
    assert log_stats(nsqd, topic)["refused"]["log_full"] == 2
    assert nsqd.request("GET", "/ping").status == 200
    depth = nsqd.channel_stats(topic, "c")["depth"]
    consume(nsqd, topic, "c", depth - 1)

    def is_accepted() -> bool:
        return nsqd.request("POST", "/pub", BODY, query={"topic": topic}).status == 200

    wait_until(is_accepted, "publishing continues by itself", timeout_s=20)


def test_messages_expire(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    nsqd.post("/pub", b"old", topic=topic, ttl="1ms")
    nsqd.post("/mpub", b"older\noldest", topic=topic, ttl="1ms")
    nsqd.post("/pub", b"lasting", topic=topic, ttl="1h")
    assert consume(nsqd, topic, "c", 1) == [b"lasting"]
    assert nsqd.channel_stats(topic, "c")["cursor"]["expired"] == 3
    for path in ("/pub", "/mpub"):
        for ttl in ("0", "-1s", "soon", ""):
            response = nsqd.request("POST", path, b"body", query={"topic": topic, "ttl": ttl})
            assert (response.status, response.json()) == (400, {"message": "INVALID_TTL"})
        response = nsqd.request("POST", path, b"body", query={"topic": f"classic_{topic}", "ttl": "1s"})
        assert (response.status, response.json()) == (400, {"message": "NOT_A_LOG"})


def test_trim(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    for channel in ("a", "b"):
        nsqd.post("/channel/create", topic=topic, channel=channel)
    for number in range(20):
        nsqd.post("/pub", b"%02d" % number + BODY, topic=topic)
    consume(nsqd, topic, "a", 5)
    expected = {
        "topic": topic, "before": 8, "first": 0, "dropped": {"a": 3, "b": 8}, "dropped_from_topic": 0, "dry_run": True
    }  # fmt: skip
    status, answer = ask(nsqd, "/log/trim", topic=topic, before="8", dry_run="true")
    assert (status, answer | {"bytes": 0}) == (200, expected | {"bytes": 0})
    assert nsqd.channel_stats(topic, "b")["depth"] == 20
    status, answer = ask(nsqd, "/log/trim", topic=topic, before="8")
    assert (status, answer | {"bytes": 0}) == (200, expected | {"bytes": 0, "first": 8, "dry_run": False})
    assert [nsqd.channel_stats(topic, name)["depth"] for name in "ab"] == [12, 12]
    assert ask(nsqd, "/log/trim", topic=topic, before="7") == (410, {"message": "OFFSET_GONE", "first": 8})
    assert ask(nsqd, "/log/trim", topic=topic, before="21") == (416, {"message": "OFFSET_BEYOND_END", "end": 20})
    assert ask(nsqd, "/log/trim", topic=topic, before="-1h")[1]["before"] == 8
    status, answer = ask(nsqd, "/log/trim", topic=topic, before="end")
    assert (answer["dropped"], answer["first"]) == ({"a": 12, "b": 12}, 20)
    assert ask(nsqd, "/log/trim", topic=topic) == (400, {"message": "MISSING_ARG_BEFORE"})
    assert ask(nsqd, "/log/trim", topic=topic, before="soon") == (400, {"message": "INVALID_POSITION"})
    assert ask(nsqd, "/log/trim", topic=topic, before="1", dry_run="x") == (400, {"message": "INVALID_DRY_RUN"})
    assert ask(nsqd, "/log/trim", topic="unknown", before="1") == (404, {"message": "TOPIC_NOT_FOUND"})
    nsqd.post("/topic/create", topic=f"classic_{topic}")
    assert ask(nsqd, "/log/trim", topic=f"classic_{topic}", before="1") == (400, {"message": "NOT_A_LOG"})


def trim_command(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "nsqx.cli.log", "trim", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def test_the_command_trims_several_nsqds(fleet: Fleet, nsqd: Daemon, topic: str) -> None:
    other = fleet.nsqd("nsqx", "--store=log")
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    for _ in range(3):
        nsqd.post("/pub", b"body", topic=topic)
    addresses = [f"--nsqd-http-address={each.http_address}" for each in (nsqd, other)]
    code, out, error = trim_command(topic, "--before=end", "--dry-run", addresses[0])
    assert (code, error) == (0, "")
    assert out == f"{nsqd.http_address}: would drop 3 of c; before offset 3, 0 bytes\n"
    code, out, error = trim_command(topic, "--before=2", addresses[0])
    assert (code, "add --yes to confirm" in error) == (1, True)
    assert nsqd.channel_stats(topic, "c")["depth"] == 3
    code, out, error = trim_command(topic, "--before=2", "--yes", *addresses)
    assert (code, out, error) == (0, f"{nsqd.http_address}: dropped 2 of c; before offset 2, 0 bytes\n", "")
    assert nsqd.channel_stats(topic, "c")["depth"] == 1
    code, out, error = trim_command(topic, "--before=1", "--yes", *addresses)
    assert (code, out, "OFFSET_GONE" in error or "2" in error) == (1, "", True)
    other.post("/topic/create", topic=topic)
    code, out, error = trim_command(topic, "--before=3", "--yes", *addresses)
    assert (code, out) == (1, f"{nsqd.http_address}: dropped 1 of c; before offset 3, 0 bytes\n")
    assert f"nsqd {other.http_address}" in error
    code, _, error = trim_command("unknown", "--before=3", "--yes", *addresses)
    assert (code, "no nsqd has topic unknown" in error) == (1, True)
    code, _, error = trim_command(topic, "--before=soon", "--yes", *addresses)
    assert (code, "invalid --before=soon" in error) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "usage"),
        (("orders",), "--before is required"),
        (("orders", "mail", "--before=1"), "trim needs one topic"),
    ],
)
def test_wrong_arguments_of_the_command(arguments: tuple[str, ...], reason: str) -> None:
    code, _, error = trim_command(*arguments)
    assert code != 0
    assert reason in error.lower() or reason in error
