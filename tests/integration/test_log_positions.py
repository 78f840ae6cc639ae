"""Positions in the logs of a running nsqd: /channel/seek, /channel/create with start, /log/offsets and /log/at."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from daemons import Daemon, Fleet, wait_until
from rawclient import OK, RawClient


@pytest.fixture
def nsqd(fleet: Fleet) -> Daemon:
    return fleet.nsqd("nsqx", "--store=log", "--store-rule=classic*=classic")


def ask(nsqd: Daemon, method: str, path: str, **query: str) -> tuple[int, Any]:
    response = nsqd.request(method, path, query=query)
    return response.status, response.json() if response.body else None


def seek(nsqd: Daemon, topic: str, to: str, channel: str = "c", **query: str) -> tuple[int, Any]:
    return ask(nsqd, "POST", "/channel/seek", topic=topic, channel=channel, to=to, **query)


def consume(nsqd: Daemon, topic: str, channel: str, count: int) -> list[bytes]:
    """Receive and finish messages."""
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, channel) == OK
        consumer.rdy(count)
        messages = [consumer.read_message() for _ in range(count)]
        consumer.rdy(0)
        for message in messages:
            consumer.fin(message.id)
        wait_until(lambda: nsqd.channel_stats(topic, channel)["in_flight_count"] == 0, "everything is finished")
    return [message.body for message in messages]


def publish(nsqd: Daemon, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        nsqd.post("/pub", body, topic=topic)


def test_a_channel_is_moved_back_and_forth(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    publish(nsqd, topic, b"1", b"2", b"3")
    assert consume(nsqd, topic, "c", 3) == [b"1", b"2", b"3"]
    answer = {
        "topic": topic, "channel": "c", "from": 3, "to": 1, "depth_before": 0, "depth": 2, "in_flight": 0,
        "forgotten": 0, "dry_run": True,
    }  # fmt: skip
    assert seek(nsqd, topic, "1", dry_run="true") == (200, answer)
    assert nsqd.channel_stats(topic, "c")["depth"] == 0
    assert seek(nsqd, topic, "1") == (200, answer | {"dry_run": False})
    assert nsqd.channel_stats(topic, "c")["depth"] == 2
    assert seek(nsqd, topic, "end")[1]["depth"] == 0
    assert seek(nsqd, topic, "beginning")[1]["depth"] == 3
    assert consume(nsqd, topic, "c", 3) == [b"1", b"2", b"3"]


def test_a_position_survives_kill_9(fleet: Fleet, topic: str, tmp_path: Any) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", f"--data-path={tmp_path}")
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    publish(nsqd, topic, b"1", b"2", b"3")
    consume(nsqd, topic, "c", 3)
    assert seek(nsqd, topic, "1")[0] == 200
    nsqd.kill()
    nsqd = fleet.nsqd("nsqx", "--store=log", f"--data-path={tmp_path}")
    assert nsqd.channel_stats(topic, "c")["depth"] == 2
    assert consume(nsqd, topic, "c", 2) == [b"2", b"3"]


def test_messages_in_flight_are_forgotten(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(2)
        publish(nsqd, topic, b"1", b"2")
        first = consumer.read_message()
        assert consumer.read_message().body == b"2"
        assert seek(nsqd, topic, "end")[1]["in_flight"] == 2
        consumer.fin(first.id)
        assert consumer.read_frame().data == b"E_FIN_FAILED FIN %s failed ID not in flight" % first.id
        assert nsqd.channel_stats(topic, "c")["in_flight_count"] == 0
        publish(nsqd, topic, b"3")
        assert consumer.read_message().body == b"3"


def test_times(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    publish(nsqd, topic, b"1")
    between_ns = time.time_ns()
    time.sleep(0.01)  # messages of the same millisecond have the same time
    publish(nsqd, topic, b"2", b"3")
    text = datetime.fromtimestamp(between_ns / 1e9, UTC).isoformat()
    for moment in (str(between_ns), text, text.replace("+00:00", "Z")):
        assert seek(nsqd, topic, moment)[1]["to"] == 1
        assert ask(nsqd, "GET", "/log/at", topic=topic, time=moment)[1]["offset"] == 1
    assert seek(nsqd, topic, "-1h")[1]["to"] == 0
    assert seek(nsqd, topic, str(time.time_ns() + 10**12))[1]["to"] == 3
    found = ask(nsqd, "GET", "/log/at", topic=topic, time="-1h")[1]
    assert found["offset"] == 0
    assert abs(found["timestamp"] - between_ns) < 10**10
    assert ask(nsqd, "GET", "/log/at", topic=topic, time=str(2**62)) == (404, {"message": "NO_SUCH_TIME"})


def test_a_channel_is_created_at_a_position(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="first")
    publish(nsqd, topic, b"1", b"2", b"3")
    for start, depth in {"beginning": 3, "end": 0, "1": 2, "-1h": 3}.items():
        name = f"at{start}"
        status, answer = ask(nsqd, "POST", "/channel/create", topic=topic, channel=name, start=start)
        assert (status, answer["start"], answer["created"]) == (200, 3 - depth, True)
        assert nsqd.channel_stats(topic, name)["depth"] == depth
    status, answer = ask(nsqd, "POST", "/channel/create", topic=topic, channel="atend", start="0")
    assert (status, answer["start"], answer["created"]) == (200, 3, False)
    assert nsqd.channel_stats(topic, "atend")["depth"] == 0
    assert nsqd.channel_stats(topic, "first")["depth"] == 3


def test_refusals(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    nsqd.post("/topic/create", topic="classic")
    nsqd.post("/channel/create", topic="classic", channel="c")
    publish(nsqd, topic, b"1")
    moves = {
        "soon": "INVALID_POSITION", "-5": "INVALID_POSITION", "": "INVALID_POSITION", "1.5": "INVALID_POSITION",
        "2026-11-18": "INVALID_POSITION", "2026-13-18T06:00:00Z": "INVALID_POSITION",
    }  # fmt: skip
    for to, code in moves.items():
        assert seek(nsqd, topic, to) == (400, {"message": code}), to
    assert seek(nsqd, topic, "2") == (416, {"message": "OFFSET_BEYOND_END", "end": 1})
    assert seek(nsqd, topic, "0", dry_run="maybe") == (400, {"message": "INVALID_DRY_RUN"})
    assert seek(nsqd, topic, "0", channel="unknown") == (404, {"message": "CHANNEL_NOT_FOUND"})
    assert seek(nsqd, "unknown", "0") == (404, {"message": "TOPIC_NOT_FOUND"})
    assert seek(nsqd, "classic", "0") == (400, {"message": "NOT_A_LOG"})
    assert ask(nsqd, "POST", "/channel/seek", topic=topic) == (400, {"message": "MISSING_ARG_CHANNEL"})
    assert ask(nsqd, "POST", "/channel/seek", topic=topic, channel="c") == (400, {"message": "MISSING_ARG_TO"})
    create = {"topic": topic, "channel": "new"}
    assert ask(nsqd, "POST", "/channel/create", **create, start="x") == (400, {"message": "INVALID_START"})
    beyond = {"message": "OFFSET_BEYOND_END", "end": 1}
    assert ask(nsqd, "POST", "/channel/create", **create, start="2") == (416, beyond)
    classic = {"topic": "classic", "channel": "new", "start": "end"}
    assert ask(nsqd, "POST", "/channel/create", **classic) == (400, {"message": "NOT_A_LOG"})
    assert [one["channel_name"] for one in nsqd.topic_stats(topic)["channels"]] == ["c"]
    assert ask(nsqd, "GET", "/log/at", topic=topic) == (400, {"message": "MISSING_ARG_TIME"})
    assert ask(nsqd, "GET", "/log/at", topic=topic, time="5") == (400, {"message": "INVALID_TIME"})
    assert ask(nsqd, "GET", "/log/at", topic="classic", time="-1h") == (400, {"message": "NOT_A_LOG"})
    assert ask(nsqd, "GET", "/log/at", time="-1h") == (400, {"message": "MISSING_ARG_TOPIC"})
    assert ask(nsqd, "GET", "/log/offsets", topic="classic") == (400, {"message": "NOT_A_LOG"})
    assert ask(nsqd, "GET", "/log/offsets", topic="unknown") == (404, {"message": "TOPIC_NOT_FOUND"})
    assert ask(nsqd, "GET", "/log/offsets", wait="soon") == (400, {"message": "INVALID_WAIT"})
    assert ask(nsqd, "GET", "/log/offsets", wait="6m") == (400, {"message": "INVALID_WAIT"})
    assert ask(nsqd, "GET", "/log/offsets", wait="1s") == (400, {"message": "INVALID_FROM"})
    assert ask(nsqd, "GET", "/log/offsets", wait="1s", **{"from": "-1"}) == (400, {"message": "INVALID_FROM"})
    two = f"/log/offsets?topic={topic}&wait=1s&from=0&from=1"
    assert nsqd.request("GET", two).json() == {"message": "INVALID_FROM"}
    assert ask(nsqd, "GET", "/log/offsets", sync="maybe") == (400, {"message": "INVALID_SYNC"})


def test_removed_messages_are_gone(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", "--max-bytes-per-file=50000")
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    for _ in range(2):
        nsqd.post("/mpub", b"\n".join([b"x" * 200] * 1000), topic=topic)  # so large that it goes to a segment
    consume(nsqd, topic, "c", 1500)
    wait_until(lambda: nsqd.topic_stats(topic)["log"]["first"] > 0, "segments are removed")
    status, answer = seek(nsqd, topic, "0")
    assert (status, answer["message"]) == (410, "OFFSET_GONE")
    assert answer["first"] > 0
    status, answer = seek(nsqd, topic, "-1h")  # the first message that is left
    assert status == 200
    assert answer["to"] > 0


def test_a_log_that_cannot_be_written_refuses_a_seek(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", env={"NSQX_FAILPOINTS": "commit.writev=fail:ENOSPC@4+"})
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    while nsqd.request("POST", "/pub", b"1", query={"topic": topic}).status == 200:
        pass
    response = nsqd.request("POST", "/channel/seek", query={"topic": topic, "channel": "c", "to": "beginning"})
    assert (response.status, response.json()) == (503, {"message": "EXITING"})
    assert response.headers["x-nsq-reason"] == "No space left on device"
    assert seek(nsqd, topic, "beginning", dry_run="true")[0] == 200


def test_offsets(nsqd: Daemon, topic: str) -> None:
    assert ask(nsqd, "GET", "/log/offsets") == (200, {"topics": []})
    nsqd.post("/topic/create", topic="classic")
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/topic/create", topic="empty")
    nsqd.post("/channel/create", topic=topic, channel="c")
    publish(nsqd, topic, b"1", b"2", b"3")
    consume(nsqd, topic, "c", 2)
    by_topic = {one["topic"]: one for one in ask(nsqd, "GET", "/log/offsets")[1]["topics"]}
    assert by_topic.keys() == {topic, "empty"}
    found = by_topic[topic]
    assert (found["first"], found["stable"], found["end"]) == (0, 3, 3)
    assert found["log"] == nsqd.topic_stats(topic)["log"]["id"]
    assert found["channels"] == [{"channel": "c", "floor": 2, "next": 2, "holes": 0, "paused": False}]
    assert abs(datetime.fromisoformat(found["first_time"]).timestamp() - time.time()) < 60
    assert found["bytes_per_message"] == found["bytes"] // 3
    assert (by_topic["empty"]["first_time"], by_topic["empty"]["bytes_per_message"]) == (None, 0)
    response = nsqd.request("GET", f"/log/offsets?topic={topic}&topic=empty")
    assert [one["topic"] for one in response.json()["topics"]] == [topic, "empty"]


def test_a_long_poll_ends_with_a_durable_message(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    publish(nsqd, topic, b"1")
    begin_s = time.monotonic()
    wait = {"topic": topic, "wait": "20s"}
    assert ask(nsqd, "GET", "/log/offsets", **wait, **{"from": "0"})[1]["topics"][0]["stable"] == 1
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask, nsqd, "GET", "/log/offsets", **wait, **{"from": "1"})
        publish(nsqd, topic, b"2")
        assert answer.result()[1]["topics"][0]["stable"] == 2
    assert time.monotonic() - begin_s < 15
    short = {"topic": topic, "wait": "50ms", "from": "2"}
    assert ask(nsqd, "GET", "/log/offsets", **short)[1]["topics"][0]["stable"] == 2


def test_a_long_poll_ends_with_nsqd(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    with ThreadPoolExecutor(1) as threads:
        query = {"topic": topic, "wait": "60s", "from": "0"}
        answer = threads.submit(ask, nsqd, "GET", "/log/offsets", **query)
        wait_until(lambda: nsqd.request("GET", "/ping").status == 200, "nsqd answers")
        begin_s = time.monotonic()
        nsqd.stop()
        assert time.monotonic() - begin_s < 10
        assert answer.exception() is not None or answer.result()[0] in (200, 503)
