"""GET /peek of a running nsqd: messages of topics and channels in both stores, without any effect on consumers."""

import base64
import time
from typing import Any

import pytest

from daemons import Daemon, Fleet, wait_until
from rawclient import OK, RawClient, dpub

Peeked = dict[str, Any]


@pytest.fixture
def nsqd(fleet: Fleet) -> Daemon:
    return fleet.nsqd("nsqx", "--store=log", "--store-rule=classic*=classic", "--mem-queue-size=3")


def ask(nsqd: Daemon, topic: str, **query: str) -> tuple[int, Any]:
    response = nsqd.request("GET", "/peek", query={"topic": topic, **query})
    return response.status, response.json()


def peek(nsqd: Daemon, topic: str, **query: str) -> Any:
    status, answer = ask(nsqd, topic, **query)
    assert status == 200, answer
    return answer


def texts(answer: Any) -> list[str]:
    return [message["text"] for message in answer["messages"]]


def states(answer: Any) -> dict[str, str]:
    return {message["text"]: message["state"] for message in answer["messages"]}


def publish(nsqd: Daemon, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        nsqd.post("/pub", body, topic=topic)


def counts(nsqd: Daemon, topic: str, channel: str = "c") -> tuple[int, int, int, int]:
    stats = nsqd.channel_stats(topic, channel)
    return (
        nsqd.topic_stats(topic)["depth"], stats["depth"], stats["in_flight_count"], stats["deferred_count"],
    )  # fmt: skip


def create(nsqd: Daemon, topic: str, *channels: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    for channel in channels:
        nsqd.post("/channel/create", topic=topic, channel=channel)


def test_messages_of_a_log(nsqd: Daemon, topic: str) -> None:
    create(nsqd, topic)
    before_ns = time.time_ns()
    publish(nsqd, topic, b"one", b"two", b"three")
    answer = peek(nsqd, topic)
    assert {**answer, "messages": []} == {
        "topic": topic, "store": "log", "messages": [], "next": 3, "end": 3, "scanned": 3, "complete": True,
    }  # fmt: skip
    assert [message["offset"] for message in answer["messages"]] == [0, 1, 2]
    first = answer["messages"][0]
    assert before_ns - 10**9 < first["timestamp"] < time.time_ns()
    assert {**first, "id": "", "timestamp": 0} == {"offset": 0, "id": "", "timestamp": 0, "size": 3, "text": "one"}
    assert nsqd.topic_stats(topic)["depth"] == 3
    assert texts(peek(nsqd, topic, offset="1")) == ["two", "three"]
    assert texts(peek(nsqd, topic, count="1")) == ["one"]
    assert peek(nsqd, topic, count="1")["next"] == 1
    assert texts(peek(nsqd, topic, last="2")) == ["two", "three"]
    assert texts(peek(nsqd, topic, last="2", count="1")) == ["two"]
    assert texts(peek(nsqd, topic, id=answer["messages"][1]["id"])) == ["two"]
    assert texts(peek(nsqd, topic, id=answer["messages"][1]["id"].upper())) == ["two"]
    assert peek(nsqd, topic, id="0" * 16)["messages"] == []
    assert texts(peek(nsqd, topic, time="-1h")) == ["one", "two", "three"]
    assert peek(nsqd, topic, time=str(2**62))["messages"] == []
    assert texts(peek(nsqd, topic, contains="TW")) == ["two"]
    assert texts(peek(nsqd, topic, offset="3")) == []


def test_the_id_is_that_of_the_delivered_message(nsqd: Daemon, topic: str) -> None:
    create(nsqd, topic, "c")
    publish(nsqd, topic, b"one", b"two")
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(1)
        message = consumer.read_message()
        (found,) = peek(nsqd, topic, id=message.id.decode())["messages"]
        assert (found["text"], found["timestamp"]) == ("one", message.timestamp_ns)


def test_bodies(nsqd: Daemon, topic: str) -> None:
    create(nsqd, topic)
    publish(nsqd, topic, "Gr\u00fc\u00dfe".encode(), b"\xff\0binary", b"x" * 100)
    greeting, binary, long = peek(nsqd, topic)["messages"]
    assert greeting["text"] == "Gr\u00fc\u00dfe"
    assert base64.b64decode(binary["base64"]) == b"\xff\0binary"
    assert "text" not in binary
    assert (long["size"], long["text"]) == (100, "x" * 100)
    assert "truncated" not in long
    answer = peek(nsqd, topic, max_bytes="3")
    assert answer["messages"] == [{**greeting, "text": "Gr", "truncated": True}]  # without half of a character
    assert (answer["next"], answer["complete"]) == (1, False)
    (cut,) = peek(nsqd, topic, max_bytes="4", offset="1")["messages"]
    assert (base64.b64decode(cut["base64"]), cut["size"]) == (b"\xff\0bi", 8)
    answer = peek(nsqd, topic, max_bytes="20")
    assert ([message["offset"] for message in answer["messages"]], answer["next"]) == ([0, 1], 2)
    assert not answer["complete"]
    assert texts(peek(nsqd, topic, contains="GR\u00dcSSE")) == ["Gr\u00fc\u00dfe"]
    assert [message["offset"] for message in peek(nsqd, topic, contains="binary")["messages"]] == [1]


@pytest.mark.parametrize("name", ["log", "classic"])
def test_a_search_decodes_the_escapes_of_json(nsqd: Daemon, name: str) -> None:
    create(nsqd, name, "c")
    publish(nsqd, name, b'{"name":"\\u674e\\u96f7"}', b'{"name":"\\u674e"}')
    assert texts(peek(nsqd, name, channel="c", contains="\u674e\u96f7")) == ['{"name":"\\u674e\\u96f7"}']


@pytest.mark.parametrize("name", ["log", "classic"])
def test_unfinished_messages_of_a_channel(nsqd: Daemon, name: str) -> None:
    create(nsqd, name, "c", "other")
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(name, "c") == OK
        consumer.rdy(4)
        publish(nsqd, name, *(b"m%d" % number for number in range(8)))
        first, second, third, _ = [consumer.read_message() for _ in range(4)]
        consumer.rdy(0)
        consumer.fin(first.id)
        consumer.req(second.id, 600_000)
        consumer.req(third.id, 0)
        wait_until(lambda: counts(nsqd, name)[1:] == (5, 1, 1), "the commands are processed")
        before = counts(nsqd, name)
        answer = peek(nsqd, name, channel="c")
        assert (answer["store"], answer["channel"], answer["complete"]) == (name, "c", True)
        waiting = {f"m{number}": "waiting" for number in (2, 4, 5, 6, 7)}
        assert states(answer) == {"m1": "deferred", "m3": "in_flight", **waiting}
        by_text = {message["text"]: message for message in answer["messages"]}
        attempts = {text: message["attempts"] for text, message in by_text.items()}
        assert attempts == {"m1": 1, "m2": 1, "m3": 1, "m4": 0, "m5": 0, "m6": 0, "m7": 0}
        assert abs(by_text["m1"]["due"] - time.time_ns() - 600 * 10**9) < 60 * 10**9
        assert sorted(by_text) == sorted(text for text, one in by_text.items() if "due" not in one or text == "m1")
        for state, found in {"waiting": 5, "in_flight": 1, "deferred": 1}.items():
            chosen = peek(nsqd, name, channel="c", state=state)
            assert set(states(chosen).values()) == {state}
            assert len(chosen["messages"]) == found
        assert len(peek(nsqd, name, channel="other")["messages"]) == 8
        assert texts(peek(nsqd, name, channel="c", id=by_text["m5"]["id"])) == ["m5"]
        assert texts(peek(nsqd, name, channel="c", contains="M7")) == ["m7"]
        place = {"log": "offset", "classic": "skip"}[name]
        seen, start = [], 0
        while len(seen) < 7:
            part = peek(nsqd, name, channel="c", count="2", **{place: str(start)})
            assert 0 < len(part["messages"]) <= 2
            seen += texts(part)
            start = part["next"]
        assert seen == texts(answer)
        assert counts(nsqd, name) == before
        consumer.rdy(6)
        assert {consumer.read_message().body for _ in range(5)} == {b"m2", b"m4", b"m5", b"m6", b"m7"}


@pytest.mark.parametrize("name", ["log", "classic"])
def test_messages_of_a_topic_without_channels(nsqd: Daemon, name: str) -> None:
    create(nsqd, name)
    publish(nsqd, name, *(b"m%d" % number for number in range(6)))
    answer = peek(nsqd, name)
    assert (texts(answer), answer["end"], answer["next"]) == ([f"m{number}" for number in range(6)], 6, 6)
    assert nsqd.topic_stats(name)["depth"] == 6
    nsqd.post("/channel/create", topic=name, channel="c")
    wait_until(lambda: counts(nsqd, name) == (0, 6, 0, 0), "the channel has the messages")
    assert len(peek(nsqd, name)["messages"]) == (6 if name == "log" else 0)


def test_deferred_publishes_of_a_log(nsqd: Daemon, topic: str) -> None:
    create(nsqd, topic, "c")
    with RawClient(nsqd.tcp_address) as publisher:
        publisher.send(dpub(topic, 600_000, b"later"))
        assert publisher.read_frame() == OK
        publisher.send(dpub(topic, 100, b"soon"))
        assert publisher.read_frame() == OK
    publish(nsqd, topic, b"now")
    wait_until(lambda: counts(nsqd, topic) == (0, 2, 0, 1), "one message is due")
    for query in ({}, {"channel": "c"}):
        found = {message["text"]: message for message in peek(nsqd, topic, **query)["messages"]}
        assert found.keys() == {"later", "now", "soon"}, "a message that was due is shown once"
        assert found["later"]["state"] == "deferred"
        assert abs(found["later"]["due"] - time.time_ns() - 600 * 10**9) < 60 * 10**9
        assert "due" not in found["soon"]
    assert texts(peek(nsqd, topic, state="deferred")) == ["later"]
    assert texts(peek(nsqd, topic, channel="c", state="deferred")) == ["later"]
    assert texts(peek(nsqd, topic, channel="c", state="waiting")) == ["now", "soon"]
    nsqd.post("/topic/pause", topic=topic)
    publish(nsqd, topic, b"held")
    assert "held" in texts(peek(nsqd, topic))
    assert "held" not in texts(peek(nsqd, topic, channel="c"))


def test_messages_that_are_not_in_memory(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", "--log-memory=1048576", "--max-bytes-per-file=500000")
    create(nsqd, topic, "c")
    for part in range(20):
        lines = b"\n".join(b"message %d " % (part * 1000 + number) + b"x" * 200 for number in range(1000))
        nsqd.post("/mpub", lines, topic=topic)
    wait_until(lambda: nsqd.topic_stats(topic)["log"]["segments"] > 3, "segments are written")
    answer = peek(nsqd, topic, contains="message 15000 ")
    assert ([message["offset"] for message in answer["messages"]], answer["complete"]) == ([15000], True)
    assert answer["scanned"] == 20_000
    assert [message["offset"] for message in peek(nsqd, topic, offset="5", count="3")["messages"]] == [5, 6, 7]
    assert [message["offset"] for message in peek(nsqd, topic, last="2")["messages"]] == [19_998, 19_999]
    assert nsqd.channel_stats(topic, "c")["depth"] == 20_000


def test_a_search_is_bounded(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", "--store-rule=classic*=classic", "--mem-queue-size=10")
    for name in ("log", "classic"):
        create(nsqd, name)
        for _ in range(11):
            nsqd.post("/mpub", b"\n".join([b"a"] * 10_000), topic=name)
        publish(nsqd, name, b"needle")
        answer = peek(nsqd, name, contains="needle")
        assert (answer["messages"], answer["scanned"], answer["complete"]) == ([], 100_000, False)
        assert answer["next"] == 100_000
        place = {"log": "offset", "classic": "skip"}[name]
        answer = peek(nsqd, name, contains="needle", **{place: "100000"})
        assert (texts(answer), answer["complete"]) == (["needle"], True)


def without_ages(stats: dict[str, Any]) -> dict[str, Any]:
    """Return the stats of a topic without the ages of messages, which grow."""
    channels = [{key: value for key, value in each.items() if key != "oldest_ms"} for each in stats["channels"]]
    return {key: value for key, value in stats.items() if key != "oldest_ms"} | {"channels": channels}


@pytest.mark.parametrize("name", ["log", "classic"])
def test_peek_never_changes_files_or_deliveries(nsqd: Daemon, name: str) -> None:
    create(nsqd, name, "c")
    publish(nsqd, name, *(b"m%d" % number for number in range(20)))
    before = without_ages(nsqd.topic_stats(name))
    for query in ({}, {"channel": "c"}, {"channel": "c", "contains": "m"}, {"channel": "c", "state": "waiting"}):
        peek(nsqd, name, **query)
    assert without_ages(nsqd.topic_stats(name)) == before
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(name, "c") == OK
        consumer.rdy(20)
        messages = [consumer.read_message() for _ in range(20)]
        assert {message.body for message in messages} == {b"m%d" % number for number in range(20)}
        assert {message.attempts for message in messages} == {1}


def test_refusals(nsqd: Daemon, topic: str) -> None:
    create(nsqd, topic, "c")
    create(nsqd, "classic", "c")
    publish(nsqd, topic, b"1")
    bad = {
        "offset": ("-1", "x", ""), "time": ("x", "5"), "id": ("x", "g" * 16), "last": ("0", "x"),
        "count": ("0", "1001"), "max_bytes": ("0", "16777217"), "state": ("done",), "skip": ("-1", "1000001"),
    }  # fmt: skip
    for name, values in bad.items():
        for value in values:
            assert ask(nsqd, topic, **{name: value}) == (400, {"message": f"INVALID_{name.upper()}"}), (name, value)
    assert ask(nsqd, topic, offset="0", last="1") == (400, {"message": "CONFLICTING_ARGS"})
    assert ask(nsqd, topic, offset="2") == (416, {"message": "OFFSET_BEYOND_END", "end": 1})
    assert ask(nsqd, topic, skip="1") == (400, {"message": "INVALID_SKIP"})
    assert ask(nsqd, topic, state="waiting") == (400, {"message": "MISSING_ARG_CHANNEL"})
    assert ask(nsqd, topic, channel="unknown") == (404, {"message": "CHANNEL_NOT_FOUND"})
    assert ask(nsqd, topic, channel="bad name") == (400, {"message": "INVALID_ARG_CHANNEL"})
    assert ask(nsqd, "unknown") == (404, {"message": "TOPIC_NOT_FOUND"})
    assert nsqd.request("GET", "/peek").json() == {"message": "MISSING_ARG_TOPIC"}
    for query in ({"offset": "0"}, {"time": "-1h"}, {"last": "1"}):
        assert ask(nsqd, "classic", **query) == (400, {"message": "NOT_A_LOG"})


def test_a_log_that_cannot_be_read(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd(
        "nsqx", "--store=log", "--log-memory=1048576", env={"NSQX_FAILPOINTS": "segment.read=fail:EIO@1+"}
    )
    create(nsqd, topic)
    for _ in range(10):
        nsqd.post("/mpub", b"\n".join([b"x" * 200] * 1000), topic=topic)
    assert ask(nsqd, topic, offset="0") == (503, {"message": "READ_FAILED"})
    assert nsqd.topic_stats(topic)["depth"] == 10_000


def test_peek_needs_the_consume_token(fleet: Fleet, topic: str, tmp_path: Any) -> None:
    for group in ("read", "consume", "admin"):
        (tmp_path / group).write_text(f"{group}-0123456789abcdef\n")
    nsqd = fleet.nsqd(
        "nsqx", "--store=log", *(f"--http-{g}-token-file={tmp_path / g}" for g in ("read", "consume", "admin"))
    )

    def status(group: str, method: str, path: str) -> int:
        headers = {"Authorization": f"Bearer {group}-0123456789abcdef"}
        return nsqd.request(method, f"{path}?topic={topic}", headers=headers).status

    assert status("admin", "POST", "/topic/create") == 200
    assert [status(group, "GET", "/peek") for group in ("read", "consume", "admin")] == [401, 200, 200]
    assert [status(group, "GET", "/log/offsets") for group in ("read", "admin")] == [200, 200]
    assert status("read", "POST", "/channel/seek") == 401
