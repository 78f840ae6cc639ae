"""Ranges of a log as raw batches, and the positions of their readers: /log/read and /channel/commit."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, Fleet, Response, wait_until
from nsqx.queues.log import batch as batches
from rawclient import OK, RawClient


@pytest.fixture
def nsqd(fleet: Fleet) -> Daemon:
    return fleet.nsqd("nsqx", "--store=log", "--store-rule=classic*=classic")


def ask(nsqd: Daemon, method: str, path: str, **query: Any) -> tuple[int, Any]:
    response = nsqd.request(method, path, query={name.rstrip("_"): str(value) for name, value in query.items()})
    return response.status, response.json() if response.body else None


def log_of(nsqd: Daemon, topic: str) -> dict[str, Any]:
    return ask(nsqd, "GET", "/log/offsets", topic=topic)[1]["topics"][0]


def read(nsqd: Daemon, topic: str, first: int, end: int, **query: Any) -> Response:
    values = {"topic": topic, "log": log_of(nsqd, topic)["log"], "from": first, "to": end, **query}
    return nsqd.request("GET", "/log/read", query={name: str(value) for name, value in values.items()})


def parse(response: Response) -> dict[int, bytes]:
    """Return the bodies of the messages by offset, those outside the range too."""
    seed = batches.seed_of(int(response.headers["x-nsq-log"], 16), int(response.headers["x-nsq-segment"]))
    data, at, found = response.body, 0, {}
    while at < len(data):
        head = batches.read_head(data, at, seed)
        if head is None:
            break
        batch = batches.read_batch(head, data[at + batches.HEAD_SIZE : at + head.size])
        assert batch is not None
        if head.has_offsets:
            found |= dict(batch.bodies())
        at += head.size
    return found


def read_all(nsqd: Daemon, topic: str, first: int, end: int, **query: Any) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while first < end:
        response = read(nsqd, topic, first, end, **query)
        assert response.status == 200, response.body
        next_offset = int(response.headers["x-nsq-next"])
        assert next_offset > first
        assert int(response.headers["x-nsq-first"]) <= first
        found |= {offset: body for offset, body in parse(response).items() if first <= offset < next_offset}
        first = next_offset
    return found


def publish_many(nsqd: Daemon, topic: str, count: int, first: int = 0, size: int = 200) -> dict[int, bytes]:
    bodies = {offset: (b"%d " % offset).ljust(size, b"x") for offset in range(first, first + count)}
    lines = list(bodies.values())
    for start in range(0, count, 1000):
        nsqd.post("/mpub", b"\n".join(lines[start : start + 1000]), topic=topic)
    return bodies


def test_messages_in_memory_are_read(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    for body in (b"1", b"2", b"3"):
        nsqd.post("/pub", body, topic=topic)
    response = read(nsqd, topic, 0, 3)
    assert parse(response) == {0: b"1", 1: b"2", 2: b"3"}
    assert (response.headers["x-nsq-next"], response.headers["x-nsq-last"]) == ("3", "3")
    assert response.headers["content-length"] == str(len(response.body))
    assert read_all(nsqd, topic, 1, 2) == {1: b"2"}
    shown = ask(nsqd, "GET", "/peek", topic=topic, offset=0)[1]["messages"][0]
    assert response.headers["x-nsq-first-id"] == shown["id"]


def test_an_answer_from_memory_has_a_limited_size(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    bodies: dict[int, bytes] = {}
    for first in range(0, 12, 3):
        bodies |= publish_many(nsqd, topic, 3, first, size=1_000_000)
    response = read(nsqd, topic, 0, 12, max_bytes=64 << 20)
    assert int(response.headers["x-nsq-next"]) < 12
    assert len(response.body) < 10_000_000
    assert read_all(nsqd, topic, 0, 12, max_bytes=64 << 20) == bodies


def test_segments_and_memory_are_read_in_pieces(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    flags = ("--store=log", "--max-bytes-per-file=1500000", "--commit-bytes=1048576", f"--data-path={tmp_path}")
    nsqd = fleet.nsqd("nsqx", *flags)
    nsqd.post("/topic/create", topic=topic)
    bodies = publish_many(nsqd, topic, 20_000)
    assert log_of(nsqd, topic)["segments"] > 1
    assert read_all(nsqd, topic, 0, 20_000) == bodies
    assert read_all(nsqd, topic, 0, 20_000, max_bytes=50_000) == bodies
    wanted = {offset: body for offset, body in bodies.items() if 777 <= offset < 15_001}
    assert read_all(nsqd, topic, 777, 15_001) == wanted
    nsqd.stop()
    nsqd = fleet.nsqd("nsqx", *flags)
    nsqd.post("/pub", b"new", topic=topic)
    assert read_all(nsqd, topic, 0, 20_001) == bodies | {20_000: b"new"}


def test_readers_and_publishers_do_not_disturb_each_other(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd(
        "nsqx", "--store=log", "--max-bytes-per-file=300000", "--commit-bytes=1048576", "--log-memory=1048576"
    )
    nsqd.post("/topic/create", topic=topic)
    bodies: dict[int, bytes] = {}
    with ThreadPoolExecutor(3) as threads:
        for first in range(0, 10_000, 1000):
            bodies |= publish_many(nsqd, topic, 1000, first)
            end = log_of(nsqd, topic)["stable"]
            assert end == first + 1000
            more = threads.submit(publish_many, nsqd, f"{topic}_other", 500)
            parts = [threads.submit(read_all, nsqd, topic, start, end) for start in (0, end // 2)]
            assert parts[0].result() == bodies
            assert parts[1].result().keys() == set(range(end // 2, end))
            more.result()


def test_messages_for_other_channels_and_deferred_ones_are_marked(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    nsqd.post("/pub", b"1", topic=topic)
    nsqd.post("/pub", b"later", topic=topic, defer="3600000")
    response = read(nsqd, topic, 0, 2, channel="c")
    assert parse(response)[0] == b"1"
    # The deferred message is no message for a channel yet.
    assert (response.headers["x-nsq-last"], response.headers["x-nsq-next"]) == ("1", "2")
    assert int(response.headers["x-nsq-channel"]) > 0
    assert "x-nsq-channel" not in read(nsqd, topic, 0, 2).headers
    assert read(nsqd, topic, 0, 2, channel="unknown").json() == {"message": "CHANNEL_NOT_FOUND"}


def test_refusals_of_reads(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/topic/create", topic="classic")
    nsqd.post("/pub", b"1", topic=topic)
    log = log_of(nsqd, topic)["log"]
    whole = {"topic": topic, "log": log, "from_": 0, "to": 1}

    def refusal(**query: Any) -> tuple[int, Any]:
        given = {name: value for name, value in (whole | query).items() if value is not None}
        return ask(nsqd, "GET", "/log/read", **given)

    assert refusal(topic=None) == (400, {"message": "MISSING_ARG_TOPIC"})
    assert refusal(topic="unknown") == (404, {"message": "TOPIC_NOT_FOUND"})
    assert refusal(topic="classic") == (400, {"message": "NOT_A_LOG"})
    assert refusal(log=None) == (400, {"message": "MISSING_ARG_LOG"})
    assert refusal(log="xyz") == (400, {"message": "INVALID_LOG"})
    assert refusal(log="0" * 16) == (409, {"message": "LOG_CHANGED"})
    assert refusal(from_=None) == (400, {"message": "MISSING_ARG_FROM"})
    assert refusal(from_="-1") == (400, {"message": "INVALID_FROM"})
    assert refusal(to=None) == (400, {"message": "MISSING_ARG_TO"})
    assert refusal(to="x") == (400, {"message": "INVALID_TO"})
    assert refusal(to=0) == (400, {"message": "INVALID_TO"})
    assert refusal(to=2) == (416, {"message": "OFFSET_BEYOND_END", "stable": 1})
    for max_bytes in ("0", "x", str(65 << 20)):
        assert refusal(max_bytes=max_bytes) == (400, {"message": "INVALID_MAX_BYTES"})
    nsqd.post("/topic/delete", topic=topic)
    nsqd.post("/topic/create", topic=topic)
    assert refusal() == (409, {"message": "LOG_CHANGED"})
    assert ask(nsqd, "POST", "/log/read", **whole)[0] == 405


def test_removed_messages_cannot_be_read(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", "--max-bytes-per-file=50000")
    nsqd.post("/topic/create", topic=topic)
    publish_many(nsqd, topic, 1000)
    assert ask(nsqd, "POST", "/log/trim", topic=topic, before=500)[0] == 200
    response = read(nsqd, topic, 0, 1000)
    assert (response.status, response.json()) == (410, {"message": "OFFSET_GONE", "first": 500})
    assert read_all(nsqd, topic, 500, 1000).keys() == set(range(500, 1000))


def test_a_log_that_cannot_be_read_is_an_error(fleet: Fleet, topic: str) -> None:
    failing = {"NSQX_FAILPOINTS": "segment.read=fail:EIO@1+"}
    nsqd = fleet.nsqd("nsqx", "--store=log", "--log-memory=1048576", "--commit-bytes=1048576", env=failing)
    nsqd.post("/topic/create", topic=topic)
    publish_many(nsqd, topic, 10_000)
    log = nsqd.topic_stats(topic)["log"]["id"]
    answer = ask(nsqd, "GET", "/log/read", topic=topic, log=log, from_=0, to=100)
    assert answer == (503, {"message": "READ_FAILED"})
    assert "Input/output error" in nsqd.log


def test_a_position_is_committed(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    for body in (b"1", b"2", b"3"):
        nsqd.post("/pub", body, topic=topic)
    log = log_of(nsqd, topic)["log"]
    given = {"topic": topic, "channel": "c", "log": log}
    answer = {"topic": topic, "channel": "c", "log": log, "from": 0, "to": 2, "depth": 1}
    assert ask(nsqd, "POST", "/channel/commit", **given, offset=2) == (200, answer)
    assert nsqd.channel_stats(topic, "c")["depth"] == 1
    # The position never goes back.
    assert ask(nsqd, "POST", "/channel/commit", **given, offset=1) == (200, answer | {"from": 2})
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(1)
        assert consumer.read_message().body == b"3"


def test_a_commit_finishes_messages_of_consumers(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(3)
        for body in (b"1", b"2", b"3"):
            nsqd.post("/pub", body, topic=topic)
        messages = [consumer.read_message() for _ in range(3)]
        given = {"topic": topic, "channel": "c", "log": log_of(nsqd, topic)["log"]}
        assert ask(nsqd, "POST", "/channel/commit", **given, offset=2)[1]["to"] == 2
        assert nsqd.channel_stats(topic, "c")["in_flight_count"] == 1
        consumer.fin(messages[0].id)
        assert consumer.read_frame().data.startswith(b"E_FIN_FAILED")
        consumer.fin(messages[2].id)
        wait_until(lambda: nsqd.channel_stats(topic, "c")["in_flight_count"] == 0, "the last one is finished")
        assert log_of(nsqd, topic)["channels"][0]["floor"] == 3


def test_a_committed_position_survives_kill_9_and_releases_segments(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    flags = ("--store=log", "--max-bytes-per-file=50000", f"--data-path={tmp_path}")
    nsqd = fleet.nsqd("nsqx", *flags)
    nsqd.post("/topic/create", topic=topic)
    started = ask(nsqd, "POST", "/channel/create", topic=topic, channel="c", start="beginning")[1]
    assert (started["start"], started["created"]) == (0, True)
    publish_many(nsqd, topic, 2000)
    # The start is the same until the first commit.
    again = {"topic": topic, "channel": "c", "start": "end"}
    assert ask(nsqd, "POST", "/channel/create", **again)[1] == started | {"created": False}
    given = {"topic": topic, "channel": "c", "log": started["log"]}
    assert ask(nsqd, "POST", "/channel/commit", **given, offset=1500)[1]["depth"] == 500
    wait_until(lambda: log_of(nsqd, topic)["first"] > 0, "segments are removed")
    nsqd.kill()
    nsqd = fleet.nsqd("nsqx", *flags)
    assert nsqd.channel_stats(topic, "c")["depth"] == 500
    assert ask(nsqd, "POST", "/channel/create", **again)[1]["start"] == 1500


def test_a_commit_on_an_ephemeral_channel(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c#ephemeral")
    nsqd.post("/pub", b"1", topic=topic)
    given = {"topic": topic, "channel": "c#ephemeral", "log": log_of(nsqd, topic)["log"]}
    assert ask(nsqd, "POST", "/channel/commit", **given, offset=1)[1]["depth"] == 0


def test_refusals_of_commits(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    nsqd.post("/topic/create", topic="classic")
    nsqd.post("/channel/create", topic="classic", channel="c")
    nsqd.post("/pub", b"1", topic=topic)
    whole = {"topic": topic, "channel": "c", "log": log_of(nsqd, topic)["log"], "offset": 1}

    def refusal(**query: Any) -> tuple[int, Any]:
        given = {name: value for name, value in (whole | query).items() if value is not None}
        return ask(nsqd, "POST", "/channel/commit", **given)

    assert refusal(topic=None) == (400, {"message": "MISSING_ARG_TOPIC"})
    assert refusal(topic="unknown") == (404, {"message": "TOPIC_NOT_FOUND"})
    assert refusal(channel=None) == (400, {"message": "MISSING_ARG_CHANNEL"})
    assert refusal(channel="unknown") == (404, {"message": "CHANNEL_NOT_FOUND"})
    assert refusal(topic="classic") == (400, {"message": "NOT_A_LOG"})
    assert refusal(log=None) == (400, {"message": "MISSING_ARG_LOG"})
    assert refusal(log="1") == (400, {"message": "INVALID_LOG"})
    assert refusal(log="f" * 16) == (409, {"message": "LOG_CHANGED"})
    assert refusal(offset=None) == (400, {"message": "MISSING_ARG_OFFSET"})
    assert refusal(offset="-1") == (400, {"message": "INVALID_OFFSET"})
    assert refusal(offset=2) == (416, {"message": "OFFSET_BEYOND_END", "stable": 1})
    assert nsqd.channel_stats(topic, "c")["depth"] == 1


def test_a_log_that_cannot_be_written_refuses_a_commit(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", env={"NSQX_FAILPOINTS": "commit.writev=fail:ENOSPC@6+"})
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    nsqd.post("/pub", b"1", topic=topic)
    while nsqd.request("POST", "/pub", b"1", query={"topic": topic}).status == 200:
        pass
    given = {"topic": topic, "channel": "c", "log": log_of(nsqd, topic)["log"], "offset": "1"}
    response = nsqd.request("POST", "/channel/commit", query=given)
    assert (response.status, response.json()) == (503, {"message": "EXITING"})
    assert response.headers["x-nsq-reason"] == "No space left on device"
    nsqd.kill()  # it would wait for the disk


def test_written_messages_are_made_durable_for_a_reader(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", "--durability=write", "--sync-timeout=10m")
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/pub", b"1", topic=topic)
    query = {"topic": topic, "sync": "true"}
    assert ask(nsqd, "GET", "/log/offsets", **query)[1]["topics"][0]["stable"] == 1
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ask, nsqd, "GET", "/log/offsets", **query, wait="30s", from_=1)
        nsqd.post("/pub", b"2", topic=topic)
        assert waiting.result()[1]["topics"][0]["stable"] == 2


def test_a_long_poll_has_a_start_for_each_topic(nsqd: Daemon, topic: str) -> None:
    for name in (topic, "other"):
        nsqd.post("/topic/create", topic=name)
        nsqd.post("/pub", b"1", topic=name)
    path = f"/log/offsets?topic={topic}&topic=other&wait=30s&from=1&from="
    assert [one["stable"] for one in nsqd.request("GET", path + "0").json()["topics"]] == [1, 1]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(nsqd.request, "GET", path + "1")
        nsqd.post("/pub", b"2", topic="other")
        assert [one["stable"] for one in waiting.result().json()["topics"]] == [1, 2]


@pytest.mark.parametrize(("method", "path"), [("GET", "/log/read"), ("POST", "/channel/commit")])
def test_readers_need_a_token_to_consume(fleet: Fleet, tmp_path: Path, method: str, path: str) -> None:
    for group in ("read", "consume", "admin"):
        (tmp_path / group).write_text(f"{group}-token\n")
    groups = ("read", "consume", "admin")
    nsqd = fleet.nsqd("nsqx", "--store=log", *(f"--http-{group}-token-file={tmp_path / group}" for group in groups))
    found = {}
    for group in groups:
        headers = {"Authorization": f"Bearer {group}-token"}
        found[group] = nsqd.request(method, path, query={"topic": "t", "channel": "c"}, headers=headers).status
    assert found == {"read": 401, "consume": 404, "admin": 404}
