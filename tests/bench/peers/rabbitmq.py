"""RabbitMQ over AMQP 0-9-1: publisher confirms, a classic queue, one acknowledgement per message.

      0      1         3        7                       7+size
      +------+---------+--------+---------- ... --------+------+
      | type | channel | size   | payload               | 0xCE |     type 1 method, 2 header, 3 body, 8 heartbeat
      +------+---------+--------+---------- ... --------+------+

The payload of a method starts with two int16, its class and its number.
"""

from __future__ import annotations

import socket
import struct
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bench.peers.process import PeerPlace, free_port, start_peer
from nsqx.bench.failure import BenchFailed
from nsqx.bench.protocols import ConsumeProtocol, PublishProtocol, connect, receive

if TYPE_CHECKING:
    from nsqx.bench.brokers import Running

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_FRAME_LIMIT = 131_072

_START, _START_OK, _TUNE, _TUNE_OK, _OPEN, _OPEN_OK = (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
_CHANNEL_OPEN, _CHANNEL_OPEN_OK = (20, 10), (20, 11)
_DECLARE, _DECLARE_OK = (50, 10), (50, 11)
_QOS, _QOS_OK, _CONSUME, _CONSUME_OK = (60, 10), (60, 11), (60, 20), (60, 21)
_PUBLISH, _DELIVER, _ACK, _NACK = (60, 40), (60, 60), (60, 80), (60, 120)
_SELECT, _SELECT_OK = (85, 10), (85, 11)


def _frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + _END


def _method(method: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return _frame(_METHOD, struct.pack(">HH", *method) + arguments, channel)


def _short(text: str) -> bytes:
    return struct.pack(">B", len(text)) + text.encode()


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _expect(link: socket.socket, method: tuple[int, int]) -> None:
    """Read frames until ``method`` arrives."""
    while True:
        kind, _, size = struct.unpack(">BHI", receive(link, 7))
        payload = receive(link, size + 1)
        if kind != _METHOD:
            continue
        found = struct.unpack_from(">HH", payload)
        if found == method:
            return
        if found in ((10, 50), (20, 40)):
            raise BenchFailed(f"RabbitMQ answered {payload[7:-1].decode(errors='replace')}")


def _open(link: socket.socket) -> None:
    """Do the handshake and open a channel."""
    link.sendall(b"AMQP\x00\x00\x09\x01")
    _expect(link, _START)
    link.sendall(_method(_START_OK, _long(b"") + _short("PLAIN") + _long(b"\x00guest\x00guest") + _short("en_US"), 0))
    _expect(link, _TUNE)
    tuned = struct.pack(">HIH", 16, _FRAME_LIMIT, 0)
    link.sendall(_method(_TUNE_OK, tuned, 0) + _method(_OPEN, _short("/") + _short("") + b"\x00", 0))
    _expect(link, _OPEN_OK)
    link.sendall(_method(_CHANNEL_OPEN, _short("")))
    _expect(link, _CHANNEL_OPEN_OK)


def _split(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Yield type and payload of the complete frames in ``buffer``, and remove them."""
    position = 0
    while len(buffer) - position >= 8:
        kind, _, size = struct.unpack_from(">BHI", buffer, position)
        if len(buffer) - position < size + 8:
            break
        yield kind, bytes(buffer[position + 7 : position + 7 + size])
        position += size + 8
    del buffer[:position]


def _check_open(method: tuple[int, int], payload: bytes) -> None:
    if method in ((10, 50), (20, 40)):
        raise BenchFailed(f"RabbitMQ answered {payload[7:].decode(errors='replace')}")


class RabbitMQPublish:
    """Publishes with confirms of the server."""

    def __init__(self, topic: str, bodies: list[bytes]) -> None:
        self._request = b"".join(map(_publish_command, [topic] * len(bodies), bodies))
        self._count = len(bodies)
        self._wanted = 0

    def greet(self, link: socket.socket) -> None:
        """Do the handshake and enable confirms."""
        _open(link)
        link.sendall(_method(_SELECT, b"\x00"))
        _expect(link, _SELECT_OK)

    def request(self) -> bytes:
        """Return all publishes; the server numbers them from 1."""
        self._wanted += self._count
        self._unconfirmed = set(range(self._wanted - self._count + 1, self._wanted + 1))
        return self._request

    def is_answered(self, reply: bytearray) -> bool:
        """Return True if each number is confirmed, alone or together with all before it."""
        for kind, payload in _split(reply):
            if kind != _METHOD:
                continue
            method = struct.unpack_from(">HH", payload)
            if method == _NACK:
                raise BenchFailed("RabbitMQ rejected a message")
            _check_open(method, payload)
            if method == _ACK:
                number, is_multiple = struct.unpack_from(">QB", payload, 4)
                if is_multiple & 1:
                    self._unconfirmed = {each for each in self._unconfirmed if each > number}
                else:
                    self._unconfirmed.discard(number)
        return not self._unconfirmed


def _publish_command(topic: str, body: bytes) -> bytes:
    """Return the method, header and body frames of one message for the queue ``topic``, by the default exchange."""
    method = _method(_PUBLISH, b"\x00\x00" + _short("") + _short(topic) + b"\x00")
    header = _frame(_HEADER, struct.pack(">HHQH", 60, 0, len(body), 0))
    largest = _FRAME_LIMIT - 8
    pieces = [_frame(_BODY, body[start : start + largest]) for start in range(0, len(body), largest)]
    return b"".join([method, header, *pieces])


class RabbitMQConsume:
    """Receives messages of a queue and acknowledges each."""

    def __init__(self, topic: str, ready_count: int) -> None:
        self._topic = topic
        self._ready_count = ready_count
        self._buffer = bytearray()
        self._tag = 0
        self._left = 0
        self.count = 0
        self.lateness_ns: array[int] = array("q")

    def greet(self, link: socket.socket) -> None:
        """Do the handshake and set the limit of unacknowledged messages."""
        _open(link)
        link.sendall(_method(_QOS, struct.pack(">IHB", 0, self._ready_count, 0)))
        _expect(link, _QOS_OK)

    def begin(self) -> bytes:
        """Return the consume command."""
        return _method(_CONSUME, b"\x00\x00" + _short(self._topic) + _short("") + b"\x00" + _long(b""))

    def take(self, data: bytes, now_ns: int) -> bytes:  # noqa: ARG002
        """Count complete messages and return their acknowledgements."""
        self._buffer += data
        answers = []
        for kind, payload in _split(self._buffer):
            if kind == _METHOD:
                method = struct.unpack_from(">HH", payload)
                _check_open(method, payload)
                if method == _DELIVER:
                    self._tag = struct.unpack_from(">Q", payload, 5 + payload[4])[0]
            elif kind == _HEADER:
                self._left = struct.unpack_from(">Q", payload, 4)[0]
            elif kind == _BODY:
                self._left -= len(payload)
                if self._left == 0:
                    self.count += 1
                    answers.append(_method(_ACK, struct.pack(">QB", self._tag, 0)))
        return b"".join(answers)


class RabbitMQProtocol:
    """The protocol of RabbitMQ; a topic is a queue that all consumers share."""

    def make_queue(self, address: str, topic: str, channel: str) -> None:  # noqa: ARG002
        """Create a queue that is not durable."""
        with connect(address) as link:
            _open(link)
            link.sendall(_method(_DECLARE, b"\x00\x00" + _short(topic) + b"\x00" + _long(b"")))
            _expect(link, _DECLARE_OK)

    def publisher(self, topic: str, bodies: list[bytes]) -> PublishProtocol:
        """Return a publisher with confirms."""
        return RabbitMQPublish(topic, bodies)

    def consumer(self, topic: str, channel: str, ready_count: int) -> ConsumeProtocol:  # noqa: ARG002
        """Return a consumer of the queue."""
        return RabbitMQConsume(topic, ready_count)


class RabbitMQLauncher:
    """A standalone RabbitMQ node with its own port mapper."""

    name = "RabbitMQ"
    is_nsqd = False

    def __init__(self, path: str, data_root: str | None = None) -> None:
        self._path = path
        self._data_root = data_root

    def launch(self, flags: Sequence[str], topics: Mapping[str, Sequence[str]]) -> Running:  # noqa: ARG002
        """Start a new broker."""
        mapper_port = free_port()
        return start_peer(
            self.name,
            lambda _: [self._path],
            RabbitMQProtocol(),
            self._data_root,
            lambda place: _environment(place, mapper_port),
            lambda: _end_port_mapper(mapper_port),
        )


def _environment(place: PeerPlace, mapper_port: int) -> dict[str, str]:
    """Return variables that keep all files in the run's directory and select a separate port mapper (epmd)."""
    return {
        "HOME": place.directory,
        "ERL_EPMD_PORT": str(mapper_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"bench{place.port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(place.port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": f"{place.directory}/mnesia",
        "RABBITMQ_LOG_BASE": f"{place.directory}/logs",
        "RABBITMQ_PID_FILE": f"{place.directory}/pid",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place.directory}/plugins",
    }


def _end_port_mapper(port: int) -> None:
    """Stop the port mapper, which Erlang starts as a daemon; it accepts the command after its nodes have ended."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as link:
                link.sendall(b"\x00\x01k")
                link.recv(2)
        except ConnectionRefusedError:
            return
        except OSError:
            pass
        time.sleep(0.05)
