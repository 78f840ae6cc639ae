"""The adapters for other brokers, as bytes."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.compare_durability import FSYNC, WRITE, Broker, table_rows
from bench.peers.catalog import find_launcher
from bench.peers.nats import NATSConsume, NATSPublish, nats_launcher
from bench.peers.process import PeerLauncher, PeerPlace
from bench.peers.rabbitmq import RabbitMQConsume, RabbitMQLauncher, RabbitMQPublish
from bench.peers.redis import RedisConsume, RedisPublish, encode_command, read_answer, redis_launcher
from nsqx.bench.brokers import NSQDLauncher
from nsqx.bench.failure import BenchFailed
from nsqx.bench.figures import PER_SECOND, Figure


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("/x/redis-server", PeerLauncher, "Redis"),
        ("/x/nats-server", PeerLauncher, "NATS"),
        ("/x/rabbitmq-server", RabbitMQLauncher, "RabbitMQ"),
        ("/x/nsqd", NSQDLauncher, "Go nsqd"),
        ("/x/nsqd-new", NSQDLauncher, "nsqd-new"),
    ],
)
def test_a_program_is_known_by_its_name(path, kind, name):
    launcher = find_launcher(path)
    assert isinstance(launcher, kind)
    assert launcher.name == name


def test_peers_can_keep_messages_in_synced_files(tmp_path):
    place = PeerPlace(4222, str(tmp_path))
    redis = redis_launcher("redis-server", appendfsync="always")
    assert redis.name == "Redis always"
    assert redis.make_command(place)[-4:] == ["--appendonly", "yes", "--appendfsync", "always"]
    nats = nats_launcher("nats-server", storage="file", sync_interval="always")
    assert nats.name == "NATS always"
    assert "sync_interval: always" in Path(nats.make_command(place)[-1]).read_text()


def test_ratios_of_the_log_store_to_each_broker():
    brokers = [Broker(name, find_launcher("/x/nsqd")) for name in (FSYNC, WRITE, "Go memory")]
    for broker, rates in zip(brokers, ([100.0, 200.0, 300.0], [400.0], [100.0]), strict=True):
        broker.figures["pub-2"] = [Figure("pub-2", rate, PER_SECOND, 2.5) for rate in rates]
    assert table_rows(brokers)[1:] == [
        ["pub-2", FSYNC, "200", "1.00", "2.00", "2.50"],
        ["pub-2", WRITE, "400", "0.50", "1.00", "2.50"],
        ["pub-2", "Go memory", "100", "2.00", "4.00", "2.50"],
    ]


def feed(protocol, stream, cuts):
    ends = sorted(min(cut, len(stream)) for cut in cuts)
    pieces = [stream[start:end] for start, end in zip([0, *ends], [*ends, len(stream)], strict=True)]
    return b"".join(bytes(protocol.take(piece, 0)) for piece in pieces)


CUTS = st.lists(st.integers(0, 400), max_size=5)


def test_redis_request():
    assert encode_command(b"XLEN", b"t") == b"*2\r\n$4\r\nXLEN\r\n$1\r\nt\r\n"


def test_redis_answers():
    assert read_answer(b"*2\r\n$1\r\na\r\n:5\r\n", 0) == ([b"a", 5], 15)
    assert read_answer(b"*-1\r\n", 0) == (None, 5)
    assert read_answer(b"*1\r\n$3\r\nab", 0) is None
    with pytest.raises(BenchFailed, match="Redis answered ERR no"):
        read_answer(b"-ERR no\r\n", 0)


def test_redis_publishes_are_answered_one_by_one():
    protocol = RedisPublish("t", [b"1", b"2"])
    assert protocol.request().count(b"XADD") == 2
    assert not protocol.is_answered(bytearray(b"$3\r\n1-0\r\n"))
    assert protocol.is_answered(bytearray(b"$3\r\n1-0\r\n$3\r\n1-1\r\n"))


@given(cuts=CUTS)
def test_redis_messages_in_any_pieces(cuts):
    entries = b"".join(b"*2\r\n$3\r\n1-%d\r\n*2\r\n$1\r\nm\r\n$3\r\n\r\nx\r\n" % number for number in range(3))
    stream = b"*1\r\n*2\r\n$1\r\nt\r\n*3\r\n" + entries + b":3\r\n" + b"*-1\r\n"
    protocol = RedisConsume("t", "c")
    answers = feed(protocol, stream, cuts)
    assert protocol.count == 3
    assert answers.count(b"XACK") == 1
    assert answers.count(b"XREADGROUP") == 2


def test_nats_publishes_are_answered_one_by_one():
    protocol = NATSPublish("t", [b"1", b"2"])
    answer = b'MSG _INBOX.x 1 22\r\n{"stream":"t","seq":1}\r\n'
    assert not protocol.is_answered(bytearray(answer))
    assert protocol.is_answered(bytearray(answer * 2))
    with pytest.raises(BenchFailed):
        protocol.is_answered(bytearray(b'MSG _INBOX.x 1 11\r\n{"error":{}}\r\n'))


@given(cuts=CUTS)
def test_nats_messages_in_any_pieces(cuts):
    messages = b"".join(b"MSG d 1 $JS.ACK.%d 4\r\n\r\nab\r\n" % number for number in range(3))
    protocol = NATSConsume("t", "c")
    answers = feed(protocol, messages + b"PING\r\n", cuts)
    assert protocol.count == 3
    assert answers == b"".join(b"PUB $JS.ACK.%d 0\r\n\r\n" % number for number in range(3)) + b"PONG\r\n"


def method(class_number, number, arguments):
    payload = struct.pack(">HH", class_number, number) + arguments
    return struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"


def test_rabbitmq_confirms_alone_and_together():
    protocol = RabbitMQPublish("t", [b"1", b"2", b"3"])
    protocol.request()
    assert not protocol.is_answered(bytearray(method(60, 80, struct.pack(">QB", 3, 0))))
    assert protocol.is_answered(bytearray(method(60, 80, struct.pack(">QB", 2, 1))))
    protocol.request()
    assert not protocol.is_answered(bytearray())
    assert protocol.is_answered(bytearray(method(60, 80, struct.pack(">QB", 6, 1))))


@given(cuts=CUTS)
def test_rabbitmq_messages_in_any_pieces(cuts):
    stream = b""
    for tag in range(1, 4):
        stream += method(60, 60, b"\x01c" + struct.pack(">QB", tag, 0) + b"\x00" + b"\x01t")
        header = struct.pack(">HHQH", 60, 0, 5, 0)
        stream += struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce"
        for piece in (b"abc", b"de"):
            stream += struct.pack(">BHI", 3, 1, len(piece)) + piece + b"\xce"
    protocol = RabbitMQConsume("t", 10)
    answers = feed(protocol, stream, cuts)
    assert protocol.count == 3
    assert answers == b"".join(method(60, 80, struct.pack(">QB", tag, 0)) for tag in range(1, 4))
