r"""Redis Streams: pipelined XADD, consumer groups, XACK.

The protocol is RESP. A request is an array of strings, ``*2\r\n$4\r\nXLEN\r\n$1\r\nt\r\n``. An answer is ``+text``,
``-error``, ``:number``, ``$size`` and a string, or ``*count`` and that many answers; ``$-1`` and ``*-1`` mean null.
"""

from __future__ import annotations

import socket
from array import array
from typing import Any

from bench.peers.process import PeerLauncher, PeerPlace
from nsqx.bench.failure import BenchFailed
from nsqx.bench.protocols import ConsumeProtocol, PublishProtocol, connect

_READ_COUNT = 250
_BLOCK_MS = 50


def encode_command(*words: bytes) -> bytes:
    """Return a request."""
    pieces = [b"*%d\r\n" % len(words)]
    for word in words:
        pieces.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(pieces)


def read_answer(data: bytes | bytearray, position: int) -> tuple[Any, int] | None:
    """Return the answer at ``position`` and its end, or None if it is incomplete; raises BenchFailed for an error."""
    end = data.find(b"\r\n", position)
    if end < 0:
        return None
    kind, text = data[position : position + 1], bytes(data[position + 1 : end])
    position = end + 2
    if kind == b"-":
        raise BenchFailed(f"Redis answered {text.decode(errors='replace')}")
    if kind == b"+":
        return text, position
    number = int(text)
    if kind == b":" or number < 0:
        return (number if kind == b":" else None), position
    if kind == b"$":
        if len(data) < position + number + 2:
            return None
        return bytes(data[position : position + number]), position + number + 2
    items = []
    for _ in range(number):
        found = read_answer(data, position)
        if found is None:
            return None
        item, position = found
        items.append(item)
    return items, position


class RedisPublish:
    """Sends a pipeline of XADDs; it is answered when each has its id."""

    def __init__(self, topic: str, bodies: list[bytes]) -> None:
        self._request = b"".join(encode_command(b"XADD", topic.encode(), b"*", b"m", body) for body in bodies)
        self._count = len(bodies)

    def greet(self, link: socket.socket) -> None:
        """Check with PING that the server is Redis."""
        link.sendall(encode_command(b"PING"))
        if link.recv(100) != b"+PONG\r\n":
            raise BenchFailed("the server is not Redis: it did not answer PING with PONG")

    def request(self) -> bytes:
        """Return the pipeline."""
        return self._request

    def is_answered(self, reply: bytearray) -> bool:
        """Return True if every XADD has its id; each answer has two lines."""
        if reply.startswith(b"-"):
            raise BenchFailed(f"Redis answered {bytes(reply[:80]).decode(errors='replace')}")
        return reply.count(b"\r\n") == 2 * self._count


class RedisConsume:
    """Repeats XREADGROUP and XACK."""

    def __init__(self, topic: str, group: str) -> None:
        self._topic = topic.encode()
        self._group = group.encode()
        self._name = b""
        self._buffer = bytearray()
        self.count = 0
        self.lateness_ns: array[int] = array("q")

    def greet(self, link: socket.socket) -> None:
        """Choose the consumer's name; Redis needs no handshake."""
        self._name = repr(link.getsockname()).encode()

    def begin(self) -> bytes:
        """Return the read request."""
        words = (b"GROUP", self._group, self._name, b"COUNT", b"%d" % _READ_COUNT, b"BLOCK", b"%d" % _BLOCK_MS)
        return encode_command(b"XREADGROUP", *words, b"STREAMS", self._topic, b">")

    def take(self, data: bytes, now_ns: int) -> bytes:  # noqa: ARG002
        """Count the messages, and return their XACK and the next read request."""
        self._buffer += data
        answers = b""
        while self._buffer:
            found = read_answer(self._buffer, 0)
            if found is None:
                break
            answer, end = found
            del self._buffer[:end]
            if isinstance(answer, int):
                continue  # the answer to XACK
            if answer is not None:
                identities = [entry[0] for entry in answer[0][1]]
                self.count += len(identities)
                answers += encode_command(b"XACK", self._topic, self._group, *identities)
            answers += self.begin()
        return answers


class RedisProtocol:
    """The protocol of Redis."""

    def make_queue(self, address: str, topic: str, channel: str) -> None:
        """Create a consumer group that starts at the end of the stream."""
        with connect(address) as link:
            link.sendall(encode_command(b"XGROUP", b"CREATE", topic.encode(), channel.encode(), b"$", b"MKSTREAM"))
            read_answer(link.recv(1000), 0)

    def publisher(self, topic: str, bodies: list[bytes]) -> PublishProtocol:
        """Return a publisher that uses XADD."""
        return RedisPublish(topic, bodies)

    def consumer(self, topic: str, channel: str, ready_count: int) -> ConsumeProtocol:  # noqa: ARG002
        """Return a consumer that uses XREADGROUP."""
        return RedisConsume(topic, channel)


def redis_launcher(path: str, data_root: str | None = None, appendfsync: str = "") -> PeerLauncher:
    """Return the launcher of a Redis server: without files, or with a file that is synced by the given policy."""

    def command(place: PeerPlace) -> list[str]:
        files = ["--appendonly", "yes", "--appendfsync", appendfsync] if appendfsync else ["--appendonly", "no"]
        return [path, "--bind", "127.0.0.1", "--port", str(place.port), "--save", "", *files]

    return PeerLauncher(f"Redis {appendfsync}".rstrip(), command, RedisProtocol(), data_root)
