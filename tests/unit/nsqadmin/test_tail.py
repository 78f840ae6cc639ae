"""Which messages of a topic a tail shows."""

import struct
from typing import TYPE_CHECKING, Any, cast

import orjson
import pytest

from nsqx.errors import RequestFailed
from nsqx.nsqadmin.tail import MAX_READ_BYTES_PER_S, MAX_READ_PER_S, Tail, TailOptions, _Source, shown_body
from nsqx.nsqadmin.tail_check import ChannelCounts, TopicState
from nsqx.wire.responses import MESSAGE, FrameReader

if TYPE_CHECKING:
    from nsqx.nsqadmin.cluster import ClusterClient


def reader_at(body: bytes = b"hello") -> FrameReader:
    """Return a reader that has just parsed a message."""
    data = struct.pack(">qH16s", 1234567890123456789, 3, b"0123456789abcdef") + body
    reader = FrameReader()
    reader.feed(struct.pack(">ii", len(data) + 4, 2) + data)
    assert reader.next() == MESSAGE
    return reader


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


class EmptyCluster:
    """A cluster without topics."""

    async def topic_nodes(self, topic: str, problems: list[str]) -> list[Any]:
        raise RequestFailed(f"no {topic}")


def tail_of(clock: Clock, **options: Any) -> Tail:
    return Tail(cast("ClusterClient", EmptyCluster()), TailOptions("t", **options), clock)


def parse(data: bytes) -> tuple[str, Any]:
    name, _, document = data.removeprefix(b"event: ").partition(b"\ndata: ")
    return name.decode(), orjson.loads(document)


async def test_a_message_is_shown_with_its_fields() -> None:
    tail = tail_of(Clock())
    tail.take("n:4151", reader_at())
    events = tail.events()
    name, status = parse(await anext(events))
    assert name == "status"
    assert status["problems"] == {"": "no t"}
    assert (status["received"], status["dropped"], status["nodes"]) == (1, 0, [])
    name, message = parse(await anext(events))
    assert name == "message"
    assert message == {
        "node": "n:4151",
        "id": "0123456789abcdef",
        "timestamp_ns": "1234567890123456789",
        "attempts": 3,
        "encoding": "text",
        "body": "hello",
        "size": 5,
        "truncated": False,
    }
    await events.aclose()


async def test_the_rate_limit_is_kept() -> None:
    clock = Clock()
    tail = tail_of(clock, per_s=5)
    for _ in range(20):
        tail.take("n", reader_at())
    assert (len(tail._waiting), tail._dropped) == (5, 15)
    clock.now_s += 0.5
    for _ in range(5):
        tail.take("n", reader_at())
    assert (len(tail._waiting), tail._dropped) == (7, 18)
    clock.now_s += 100
    for _ in range(20):
        tail.take("n", reader_at())
    assert (len(tail._waiting), tail._dropped) == (12, 33)


async def test_only_matching_messages_count_against_the_rate() -> None:
    tail = tail_of(Clock(), per_s=2, contains="Hit")
    for body in (b"miss", b"a hit", b"miss", b"HIT", b"hit again"):
        tail.take("n", reader_at(body))
    status = tail._status()
    assert (status["received"], status["matched"], status["dropped"]) == (5, 3, 1)
    assert [message["body"] for message in tail._waiting] == ["a hit", "HIT"]


async def test_large_bodies_are_limited_by_their_size() -> None:
    tail = tail_of(Clock())
    connection = ConnectionStandIn()
    source = _Source(tail, "n", cast("Any", connection))
    tail._sources["n"] = source
    body = b"x" * (MAX_READ_BYTES_PER_S // 4)
    for _ in range(3):
        source.message(reader_at(body))
    assert b"RDY 0\n" not in connection.sent
    source.message(reader_at(body))
    assert connection.sent.count(b"RDY 0\n") == 1
    tail.close()


def test_messages_that_nsqd_did_not_send_are_counted() -> None:
    tail = tail_of(Clock())
    source = _Source(tail, "n", cast("Any", ConnectionStandIn()))
    tail._sources["n"] = source
    source.received = 40
    source.note(TopicState(False, {"c": ChannelCounts(900, 0), tail.channel: ChannelCounts(100, 10)}))
    assert tail._status()["missed"] == 50
    source.received = 60
    source.note(TopicState(False, {tail.channel: ChannelCounts(100, 0)}))
    assert tail._status()["missed"] == 50, "the number never decreases"
    tail.lost("n", None)
    assert tail._status()["missed"] == 50


async def test_a_viewer_that_does_not_read_uses_bounded_memory() -> None:
    clock = Clock()
    tail = tail_of(clock)
    for _ in range(500):
        tail.take("n", reader_at())
        clock.now_s += 1
    assert len(tail._waiting) == 200
    assert tail._dropped == 300


class ConnectionStandIn:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, command: bytes) -> None:
        self.sent.append(command)

    def close(self) -> None:
        self.sent.append(b"close")


async def test_reading_pauses_above_the_limit() -> None:
    clock = Clock()
    tail = tail_of(clock)
    connection = ConnectionStandIn()
    source = _Source(tail, "n", cast("Any", connection))
    source.ready = 2500
    tail._sources["n"] = source
    for _ in range(MAX_READ_PER_S - 1):
        source.message(reader_at())
    assert b"RDY 0\n" not in connection.sent
    source.message(reader_at())
    source.message(reader_at())
    assert connection.sent.count(b"RDY 0\n") == 1
    assert connection.sent.count(b"FIN 0123456789abcdef\n") == MAX_READ_PER_S + 1
    tail._resume()
    assert connection.sent[-1] == b"RDY 50\n"
    tail.close()
    assert connection.sent[-1] == b"close"


@pytest.mark.parametrize(
    ("body", "limit", "shown"),
    [
        (b"abc", 10, ("text", "abc", 3, False)),
        (b"abcdef", 3, ("text", "abc", 6, True)),
        ("aé".encode(), 10, ("text", "aé", 3, False)),
        ("aé".encode(), 2, ("text", "a", 3, True)),
        ("a😀b".encode(), 4, ("text", "a", 6, True)),
        (b"\xff\xfe", 10, ("base64", "//4=", 2, False)),
        (b"a\xffbcd", 3, ("base64", "Yf9i", 5, True)),
        (b"abc\xc3", 10, ("base64", "YWJjww==", 4, False)),
        (b"\x00\x1f", 10, ("text", "\x00\x1f", 2, False)),
    ],
)
def test_bodies_are_shown_as_text_or_base64(body: bytes, limit: int, shown: tuple[str, str, int, bool]) -> None:
    document = shown_body(body, limit)
    assert (document["encoding"], document["body"], document["size"], document["truncated"]) == shown
    orjson.dumps(document)


def test_every_tail_has_its_own_channel() -> None:
    first, second = tail_of(Clock()), tail_of(Clock())
    assert first.channel != second.channel
    assert len(first.channel) <= 64
