r"""NATS JetStream: publishes with acknowledgements, and a durable push consumer that a queue group shares.

Lines end with ``\r\n``. To the server: ``PUB subject [reply] size``, ``SUB subject [group] id``, ``PONG``. From it:
``MSG subject id [reply] size`` and the body, ``PING``, ``-ERR``. An acknowledgement is an empty publish to a message's
reply subject.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import tempfile
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from bench.peers.process import PeerLauncher, PeerPlace
from nsqx.bench.failure import BenchFailed
from nsqx.bench.protocols import ConsumeProtocol, PublishProtocol, connect

_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":false,"name":"nsqx-bench"}\r\nPING\r\n'
# With more large messages, the server's limit of pending bytes per consumer would be exceeded.
_MAX_ACK_PENDING = 500


def _receive_until(link: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        piece = link.recv(65536)
        if not piece:
            raise BenchFailed("NATS closed the connection")
        data += piece
        if b"-ERR" in data:
            raise BenchFailed(f"NATS answered {data[data.index(b'-ERR') :].decode(errors='replace').strip()}")
    return data


def _introduce(link: socket.socket) -> None:
    _receive_until(link, b"\r\n")
    link.sendall(_CONNECT)
    _receive_until(link, b"PONG\r\n")


class NATSPublish:
    """Publishes to a stream; a request is answered when each message has its sequence number."""

    def __init__(self, topic: str, bodies: list[bytes]) -> None:
        self._inbox = f"_INBOX.{secrets.token_hex(8)}".encode()
        self._request = b"".join(
            b"PUB %b %b %d\r\n%b\r\n" % (topic.encode(), self._inbox, len(body), body) for body in bodies
        )
        self._count = len(bodies)

    def greet(self, link: socket.socket) -> None:
        """Subscribe to the inbox for acknowledgements."""
        _introduce(link)
        link.sendall(b"SUB %b 1\r\nPING\r\n" % self._inbox)
        _receive_until(link, b"PONG\r\n")

    def request(self) -> bytes:
        """Return all publishes."""
        return self._request

    def is_answered(self, reply: bytearray) -> bool:
        """Return True if each message has its sequence number."""
        if b'"error"' in reply or b"-ERR" in reply:
            raise BenchFailed(f"NATS answered {bytes(reply[:200]).decode(errors='replace')}")
        return reply.count(b'"seq":') == self._count and reply.endswith(b"\r\n")


class NATSConsume:
    """Receives messages of a queue group and acknowledges each."""

    def __init__(self, topic: str, channel: str) -> None:
        self._subject = _deliver_subject(topic, channel)
        self._buffer = bytearray()
        self.count = 0
        self.lateness_ns: array[int] = array("q")

    def greet(self, link: socket.socket) -> None:
        """Do the handshake; no message arrives before the subscription."""
        _introduce(link)

    def begin(self) -> bytes:
        """Return the subscription to the queue group."""
        return b"SUB %b group 1\r\n" % self._subject

    def take(self, data: bytes, now_ns: int) -> bytes:  # noqa: ARG002
        """Count complete messages and return their acknowledgements."""
        buffer = self._buffer
        buffer += data
        answers = []
        position = 0
        while (end := buffer.find(b"\r\n", position)) >= 0:
            words = bytes(buffer[position:end]).split()
            if words[0] == b"MSG":
                following = end + 2 + int(words[-1]) + 2
                if len(buffer) < following:
                    break
                self.count += 1
                answers.append(b"PUB %b 0\r\n\r\n" % words[3])
                position = following
                continue
            if words[0] == b"PING":
                answers.append(b"PONG\r\n")
            elif words[0] == b"-ERR":
                raise BenchFailed(f"NATS answered {b' '.join(words).decode(errors='replace')}")
            position = end + 2
        del buffer[:position]
        return b"".join(answers)


def _deliver_subject(topic: str, channel: str) -> bytes:
    return f"deliver.{topic}.{channel}".encode()


class NATSProtocol:
    """The protocol of a NATS server with JetStream; ``storage`` of the streams is memory or file."""

    def __init__(self, storage: str = "memory") -> None:
        self._storage = storage

    def make_queue(self, address: str, topic: str, channel: str) -> None:
        """Create a stream for the topic and a durable consumer for the channel."""
        stream = {"name": topic, "subjects": [topic], "storage": self._storage, "num_replicas": 1}
        consumer = {
            "durable_name": channel,
            "deliver_subject": _deliver_subject(topic, channel).decode(),
            "deliver_group": "group",
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "max_ack_pending": _MAX_ACK_PENDING,
        }
        with connect(address) as link:
            _introduce(link)
            link.sendall(b"SUB _INBOX.setup 1\r\n")
            self._ask(link, f"$JS.API.STREAM.CREATE.{topic}", stream)
            question = {"stream_name": topic, "config": consumer}
            self._ask(link, f"$JS.API.CONSUMER.DURABLE.CREATE.{topic}.{channel}", question)

    @staticmethod
    def _ask(link: socket.socket, subject: str, question: Mapping[str, Any]) -> None:
        body = orjson.dumps(question)
        link.sendall(b"PUB %b _INBOX.setup %d\r\n%b\r\n" % (subject.encode(), len(body), body))
        answer = _receive_until(link, b"}\r\n")
        if b'"error"' in answer:
            raise BenchFailed(f"NATS answered {answer.decode(errors='replace').strip()}")

    def publisher(self, topic: str, bodies: list[bytes]) -> PublishProtocol:
        """Return a publisher with an inbox for acknowledgements."""
        return NATSPublish(topic, bodies)

    def consumer(self, topic: str, channel: str, ready_count: int) -> ConsumeProtocol:  # noqa: ARG002
        """Return a member of the channel's queue group."""
        return NATSConsume(topic, channel)


def nats_launcher(
    path: str, data_root: str | None = None, storage: str = "memory", sync_interval: str = ""
) -> PeerLauncher:
    """Return the launcher of a NATS server with JetStream; an empty ``sync_interval`` is the server's default."""

    def command(place: PeerPlace) -> list[str]:
        config = Path(place.directory, "nats.conf")
        config.write_text(_jetstream_settings(place.directory, sync_interval))
        return [path, "-a", "127.0.0.1", "-p", str(place.port), "-c", str(config)]

    return PeerLauncher(f"NATS {sync_interval}".rstrip(), command, NATSProtocol(storage), data_root)


def _jetstream_settings(directory: str, sync_interval: str) -> str:
    sync = f", sync_interval: {sync_interval}" if sync_interval else ""
    return f'jetstream {{ store_dir: "{directory}"{sync} }}\n'


def knows_sync_interval(path: str) -> bool:
    """Return True if the server has the setting ``sync_interval``, which version 2.10 introduced."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "nats.conf")
        config.write_text(_jetstream_settings(directory, "always"))
        done = subprocess.run(
            [path, "-c", str(config), "-t"], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        return done.returncode == 0
