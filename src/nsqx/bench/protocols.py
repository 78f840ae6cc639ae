"""How a broker is published to and consumed from, as bytes: what to send, and when it is answered.

A dialect belongs to one connection. NSQ's TCP protocol and HTTP API are here; other brokers have theirs in ``peers``.
"""

from __future__ import annotations

import socket
from array import array
from collections.abc import Sequence
from typing import Protocol

from nsqx.bench.drain import Drain
from nsqx.bench.failure import BenchFailed
from nsqx.net.address import TCPAddress, parse_address
from nsqx.wire.encode import append_sized, join_batch
from nsqx.wire.frames import ERROR, OK
from nsqx.wire.requests import (
    MAGIC,
    encode_identify,
    encode_ready,
    encode_subscribe,
    publish_line,
    publish_many_line,
)

CONNECT_TIMEOUT_S = 10.0
# In milliseconds, as IDENTIFY wants it. NSQ's default is 250; Go's nsqd keeps message frames back that long.
OUTPUT_BUFFER_TIMEOUT_MS = 25
_HEARTBEAT_MS = 60_000


class PublishProtocol(Protocol):
    """Publishing on one connection, a request at a time."""

    def greet(self, link: socket.socket) -> None:
        """Do what comes before the first request."""

    def request(self) -> bytes:
        """The next request."""

    def is_answered(self, reply: bytearray) -> bool:
        """True if what has come answers all of the request; raises BenchFailed for a refusal."""


class ConsumeProtocol(Protocol):
    """Consuming on one connection."""

    @property
    def count(self) -> int:
        """Messages received."""

    @property
    def lateness_ns(self) -> array[int]:
        """How late each came, if that was wanted."""

    def greet(self, link: socket.socket) -> None:
        """Subscribe; nothing comes yet."""

    def begin(self) -> bytes:
        """What asks for messages."""

    def take(self, data: bytes, now_ns: int) -> bytes | bytearray:
        """Count the messages in ``data``; what is to be sent for them."""


class BrokerProtocol(Protocol):
    """A kind of broker, as the workloads that any broker can be put under see it."""

    def make_queue(self, address: str, topic: str, channel: str) -> None:
        """See to it that ``channel`` gets what is published to ``topic`` from now on."""

    def publisher(self, topic: str, bodies: list[bytes]) -> PublishProtocol:
        """Publishes ``bodies`` again and again, each time as one acknowledged request."""

    def consumer(self, topic: str, channel: str, ready_count: int) -> ConsumeProtocol:
        """Consumes and acknowledges each message, with so many on their way at most."""


def connect(address: str) -> socket.socket:
    """A TCP or unix socket to ``address``."""
    place = parse_address(address)
    try:
        if isinstance(place, TCPAddress):
            link = socket.create_connection((place.host or "127.0.0.1", place.port), CONNECT_TIMEOUT_S)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(CONNECT_TIMEOUT_S)
            link.connect(place.path)
    except OSError as error:
        raise BenchFailed(f"cannot connect to {address}: {error.strerror or error}") from None
    return link


def receive(link: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes."""
    data = bytearray()
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise BenchFailed("the broker closed the connection")
        data += piece
    return bytes(data)


def receive_frame(link: socket.socket) -> bytes:
    """The data of the next frame from an nsqd; raises BenchFailed if it is an error."""
    size = int.from_bytes(receive(link, 4), "big")
    frame = receive(link, size)
    if int.from_bytes(frame[:4], "big") == ERROR:
        raise BenchFailed(f"the broker answered {frame[4:].decode(errors='replace')}")
    return frame[4:]


def greeted(address: str, protocols: Sequence[PublishProtocol | ConsumeProtocol]) -> list[socket.socket]:
    """A connection for each dialect, which has said its first words on it."""
    links = []
    for protocol in protocols:
        link = connect(address)
        protocol.greet(link)
        links.append(link)
    return links


def introduce(link: socket.socket, *, heartbeat_ms: int) -> None:
    """Begin an NSQ conversation."""
    fields = {
        "client_id": "nsqx-bench",
        "feature_negotiation": True,
        "heartbeat_interval": heartbeat_ms,
        "output_buffer_timeout": OUTPUT_BUFFER_TIMEOUT_MS,
    }
    link.sendall(MAGIC + encode_identify(fields))
    receive_frame(link)


class NSQPublish:
    """Prepared PUBs or MPUBs over TCP, one after the other."""

    def __init__(self, requests: Sequence[bytes]) -> None:
        self._requests = requests
        self._next = 0

    def greet(self, link: socket.socket) -> None:
        """Without heartbeats, so that nothing but answers comes."""
        introduce(link, heartbeat_ms=-1)

    def request(self) -> bytes:
        """The next command; after the last comes the first."""
        request = self._requests[self._next]
        self._next = (self._next + 1) % len(self._requests)
        return request

    def is_answered(self, reply: bytearray) -> bool:
        """True once OK is there."""
        if reply == OK:
            return True
        if len(reply) >= len(OK):
            raise BenchFailed(f"the broker answered {bytes(reply[8:]).decode(errors='replace')}")
        return False


class HTTPPublish:
    """POST /pub on one connection that is kept."""

    def __init__(self, host: str, topic: str, body: bytes) -> None:
        head = f"POST /pub?topic={topic} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    def greet(self, link: socket.socket) -> None:
        """HTTP begins with the request."""

    def request(self) -> bytes:
        """The request, always the same."""
        return self._request

    def is_answered(self, reply: bytearray) -> bool:
        """True once a 200 is there with its body, which is OK."""
        if not reply.startswith(b"HTTP/1.1 200"[: len(reply)]):
            raise BenchFailed(f"the broker answered {bytes(reply[:80]).decode(errors='replace')!r}")
        return reply.endswith(b"\r\n\r\nOK")


class NSQConsume:
    """SUB, RDY, and a FIN for each message."""

    def __init__(self, topic: str, channel: str, ready_count: int, *, is_timed: bool = False) -> None:
        self._topic = topic
        self._channel = channel
        self._ready_count = ready_count
        self._is_timed = is_timed
        self._drain: Drain | None = None  # made where it is used: a worker is pickled on its way to its process

    @property
    def count(self) -> int:
        """Messages received."""
        return 0 if self._drain is None else self._drain.count

    @property
    def lateness_ns(self) -> array[int]:
        """How late each came."""
        return array("q") if self._drain is None else self._drain.lateness_ns

    def greet(self, link: socket.socket) -> None:
        """Subscribe."""
        self._drain = Drain(self._is_timed)
        introduce(link, heartbeat_ms=_HEARTBEAT_MS)
        link.sendall(encode_subscribe(self._topic, self._channel))
        receive_frame(link)

    def begin(self) -> bytes:
        """RDY."""
        return encode_ready(self._ready_count)

    def take(self, data: bytes, now_ns: int) -> bytearray:
        """Count the messages in ``data``; their FINs."""
        assert self._drain is not None
        return self._drain.take(data, now_ns)


def encode_publish(topic: str, body: bytes) -> bytes:
    """A PUB command."""
    request = bytearray()
    append_sized(request, publish_line(topic), body)
    return bytes(request)


def encode_publish_many(topic: str, bodies: list[bytes]) -> bytes:
    """An MPUB command."""
    request = bytearray()
    append_sized(request, publish_many_line(topic), join_batch(bodies))
    return bytes(request)


class NSQProtocol:
    """An nsqd."""

    def make_queue(self, address: str, topic: str, channel: str) -> None:
        """SUB makes topic and channel, and they stay when the consumer goes."""
        with connect(address) as link:
            NSQConsume(topic, channel, 0).greet(link)

    def publisher(self, topic: str, bodies: list[bytes]) -> PublishProtocol:
        """PUB for one, MPUB for more."""
        request = encode_publish(topic, bodies[0]) if len(bodies) == 1 else encode_publish_many(topic, bodies)
        return NSQPublish([request])

    def consumer(self, topic: str, channel: str, ready_count: int) -> ConsumeProtocol:
        """SUB, RDY, FIN."""
        return NSQConsume(topic, channel, ready_count)
