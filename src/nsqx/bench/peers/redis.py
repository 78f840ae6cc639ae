r"""Redis Streams: XADD by a pipeline, consumer groups, XACK.

Everything is RESP: requests are arrays of strings, ``*2\r\n$4\r\nXLEN\r\n$1\r\nt\r\n``; answers are ``+text``,
``-error``, ``:number``, ``$size`` and a string, ``*count`` and as many answers, ``$-1`` and ``*-1`` for nothing.
"""

from __future__ import annotations

import socket
from array import array
from typing import Any

from nsqx.bench.failure import BenchFailed
from nsqx.bench.peers.process import PeerLauncher, PeerPlace
from nsqx.bench.protocols import ConsumeProtocol, PublishProtocol, connect

_READ_COUNT = 250
_BLOCK_MS = 50


def encode_command(*words: bytes) -> bytes:
    """One request."""
    pieces = [b"*%d\r\n" % len(words)]
    for word in words:
        pieces.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(pieces)


def read_answer(data: bytes | bytearray, position: int) -> tuple[Any, int] | None:
    """The answer at ``position`` and where it ends; None if it is not there in full. An error is raised."""
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
    """A pipeline of XADDs, answered when each has its id."""

    def __init__(self, topic: str, bodies: list[bytes]) -> None:
        self._request = b"".join(encode_command(b"XADD", topic.encode(), b"*", b"m", body) for body in bodies)
        self._count = len(bodies)

    def greet(self, link: socket.socket) -> None:
        """A PING, to see that it is a Redis."""
        link.sendall(encode_command(b"PING"))
        if link.recv(100) != b"+PONG\r\n":
            raise BenchFailed("this is no Redis")

    def request(self) -> bytes:
        """The pipeline."""
        return self._request

    def is_answered(self, reply: bytearray) -> bool:
        """True once every XADD has its id, which takes two lines."""
        if reply.startswith(b"-"):
            raise BenchFailed(f"Redis answered {bytes(reply[:80]).decode(errors='replace')}")
        return reply.count(b"\r\n") == 2 * self._count


class RedisConsume:
    """XREADGROUP, XACK, and again."""

    def __init__(self, topic: str, group: str) -> None:
        self._topic = topic.encode()
        self._group = group.encode()
        self._name = b""
        self._buffer = bytearray()
        self.count = 0
        self.lateness_ns: array[int] = array("q")

    def greet(self, link: socket.socket) -> None:
        """A consumer's name is all that is needed."""
        self._name = repr(link.getsockname()).encode()

    def begin(self) -> bytes:
        """The first read."""
        words = (b"GROUP", self._group, self._name, b"COUNT", b"%d" % _READ_COUNT, b"BLOCK", b"%d" % _BLOCK_MS)
        return encode_command(b"XREADGROUP", *words, b"STREAMS", self._topic, b">")

    def take(self, data: bytes, now_ns: int) -> bytes:  # noqa: ARG002
        """Count what was read; its XACK and the next read."""
        self._buffer += data
        answers = b""
        while self._buffer:
            found = read_answer(self._buffer, 0)
            if found is None:
                break
            answer, end = found
            del self._buffer[:end]
            if isinstance(answer, int):
                continue  # how many an XACK has acknowledged
            if answer is not None:
                identities = [entry[0] for entry in answer[0][1]]
                self.count += len(identities)
                answers += encode_command(b"XACK", self._topic, self._group, *identities)
            answers += self.begin()
        return answers


class RedisProtocol:
    """A Redis server."""

    def make_queue(self, address: str, topic: str, channel: str) -> None:
        """A consumer group from here on."""
        with connect(address) as link:
            link.sendall(encode_command(b"XGROUP", b"CREATE", topic.encode(), channel.encode(), b"$", b"MKSTREAM"))
            read_answer(link.recv(1000), 0)

    def publisher(self, topic: str, bodies: list[bytes]) -> PublishProtocol:
        """XADD."""
        return RedisPublish(topic, bodies)

    def consumer(self, topic: str, channel: str, ready_count: int) -> ConsumeProtocol:  # noqa: ARG002
        """XREADGROUP."""
        return RedisConsume(topic, channel)


def redis_launcher(path: str, data_root: str | None = None) -> PeerLauncher:
    """A Redis server that keeps everything in memory."""

    def command(place: PeerPlace) -> list[str]:
        memory_only = ["--save", "", "--appendonly", "no"]
        return [path, "--bind", "127.0.0.1", "--port", str(place.port), *memory_only]

    return PeerLauncher("Redis", command, RedisProtocol(), data_root)
