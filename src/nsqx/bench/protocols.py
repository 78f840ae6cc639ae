"""The protocols for publishing and consuming: the bytes to send, and when a request is answered.

A protocol object belongs to one connection. This module contains NSQ's TCP protocol and HTTP API.
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
# For IDENTIFY. NSQ's default is 250 ms; Go's nsqd may delay message frames for that long.
OUTPUT_BUFFER_TIMEOUT_MS = 25
_HEARTBEAT_MS = 60_000


class PublishProtocol(Protocol):
    """Publishing on one connection, one request at a time."""

    def greet(self, link: socket.socket) -> None:
        """Do the handshake."""

    def request(self) -> bytes:
        """Return the next request."""

    def is_answered(self, reply: bytearray) -> bool:
        """Return True if the received bytes answer the whole request; raises BenchFailed for an error."""


class ConsumeProtocol(Protocol):
    """Consuming on one connection."""

    @property
    def count(self) -> int:
        """The number of received messages."""

    @property
    def lateness_ns(self) -> array[int]:
        """How late each message was, if measured."""

    def greet(self, link: socket.socket) -> None:
        """Do the handshake and subscribe, without requesting messages."""

    def begin(self) -> bytes:
        """Return the request for messages."""

    def take(self, data: bytes, now_ns: int) -> bytes | bytearray:
        """Count the messages in ``data`` and return the bytes to send."""


class BrokerProtocol(Protocol):
    """A kind of broker, with the operations of the general workloads."""

    def make_queue(self, address: str, topic: str, channel: str) -> None:
        """Create ``channel``, so it gets all messages that are published to ``topic`` afterwards."""

    def publisher(self, topic: str, bodies: list[bytes]) -> PublishProtocol:
        """Return a protocol that publishes ``bodies`` repeatedly, as one acknowledged request each time."""

    def consumer(self, topic: str, channel: str, ready_count: int) -> ConsumeProtocol:
        """Return a protocol that consumes and acknowledges messages, with ``ready_count`` in flight at most."""


def connect(address: str) -> socket.socket:
    """Return a TCP or Unix socket that is connected to ``address``; raises BenchFailed."""
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
    """Receive exactly ``size`` bytes."""
    data = bytearray()
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise BenchFailed("the broker closed the connection")
        data += piece
    return bytes(data)


def receive_frame(link: socket.socket) -> bytes:
    """Return the data of the next frame from nsqd; raises BenchFailed if it is an error."""
    size = int.from_bytes(receive(link, 4), "big")
    frame = receive(link, size)
    if int.from_bytes(frame[:4], "big") == ERROR:
        raise BenchFailed(f"the broker answered {frame[4:].decode(errors='replace')}")
    return frame[4:]


def greeted(address: str, protocols: Sequence[PublishProtocol | ConsumeProtocol]) -> list[socket.socket]:
    """Open a connection for each protocol and do its handshake."""
    links = []
    for protocol in protocols:
        link = connect(address)
        protocol.greet(link)
        links.append(link)
    return links


def introduce(link: socket.socket, *, heartbeat_ms: int) -> None:
    """Send the magic bytes and IDENTIFY to nsqd."""
    fields = {
        "client_id": "nsqx-bench",
        "feature_negotiation": True,
        "heartbeat_interval": heartbeat_ms,
        "output_buffer_timeout": OUTPUT_BUFFER_TIMEOUT_MS,
    }
    link.sendall(MAGIC + encode_identify(fields))
    receive_frame(link)


class NSQPublish:
    """Sends prepared PUB or MPUB commands over TCP in turn."""

    def __init__(self, requests: Sequence[bytes]) -> None:
        self._requests = requests
        self._next = 0

    def greet(self, link: socket.socket) -> None:
        """Identify without heartbeats, so nsqd sends only answers."""
        introduce(link, heartbeat_ms=-1)

    def request(self) -> bytes:
        """Return the next command; the first follows the last."""
        request = self._requests[self._next]
        self._next = (self._next + 1) % len(self._requests)
        return request

    def is_answered(self, reply: bytearray) -> bool:
        """Return True if the reply is OK."""
        if reply == OK:
            return True
        if len(reply) >= len(OK):
            raise BenchFailed(f"the broker answered {bytes(reply[8:]).decode(errors='replace')}")
        return False


class HTTPPublish:
    """Sends POST /pub on one keep-alive connection."""

    def __init__(self, host: str, topic: str, body: bytes) -> None:
        head = f"POST /pub?topic={topic} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    def greet(self, link: socket.socket) -> None:
        """No-op: HTTP has no handshake."""

    def request(self) -> bytes:
        """Return the request, which is always the same."""
        return self._request

    def is_answered(self, reply: bytearray) -> bool:
        """Return True if the reply is a complete 200 response with the body OK."""
        if not reply.startswith(b"HTTP/1.1 200"[: len(reply)]):
            raise BenchFailed(f"the broker answered {bytes(reply[:80]).decode(errors='replace')!r}")
        return reply.endswith(b"\r\n\r\nOK")


class NSQConsume:
    """Sends SUB, RDY, and a FIN for each message."""

    def __init__(self, topic: str, channel: str, ready_count: int, *, is_timed: bool = False) -> None:
        self._topic = topic
        self._channel = channel
        self._ready_count = ready_count
        self._is_timed = is_timed
        self._drain: Drain | None = None  # created in the worker process, because workers are pickled

    @property
    def count(self) -> int:
        """The number of received messages."""
        return 0 if self._drain is None else self._drain.count

    @property
    def lateness_ns(self) -> array[int]:
        """How late each message was."""
        return array("q") if self._drain is None else self._drain.lateness_ns

    def greet(self, link: socket.socket) -> None:
        """Subscribe."""
        self._drain = Drain(self._is_timed)
        introduce(link, heartbeat_ms=_HEARTBEAT_MS)
        link.sendall(encode_subscribe(self._topic, self._channel))
        receive_frame(link)

    def begin(self) -> bytes:
        """Return RDY."""
        return encode_ready(self._ready_count)

    def take(self, data: bytes, now_ns: int) -> bytearray:
        """Count the messages in ``data`` and return their FINs."""
        assert self._drain is not None
        return self._drain.take(data, now_ns)


def encode_publish(topic: str, body: bytes) -> bytes:
    """Return a PUB command."""
    request = bytearray()
    append_sized(request, publish_line(topic), body)
    return bytes(request)


def encode_publish_many(topic: str, bodies: list[bytes]) -> bytes:
    """Return an MPUB command."""
    request = bytearray()
    append_sized(request, publish_many_line(topic), join_batch(bodies))
    return bytes(request)


class NSQProtocol:
    """The protocol of nsqd."""

    def make_queue(self, address: str, topic: str, channel: str) -> None:
        """Create topic and channel with SUB; they stay after the connection is closed."""
        with connect(address) as link:
            NSQConsume(topic, channel, 0).greet(link)

    def publisher(self, topic: str, bodies: list[bytes]) -> PublishProtocol:
        """Return a publisher that uses PUB for one body and MPUB for several."""
        request = encode_publish(topic, bodies[0]) if len(bodies) == 1 else encode_publish_many(topic, bodies)
        return NSQPublish([request])

    def consumer(self, topic: str, channel: str, ready_count: int) -> ConsumeProtocol:
        """Return a consumer that uses SUB, RDY and FIN."""
        return NSQConsume(topic, channel, ready_count)
