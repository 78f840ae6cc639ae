"""Test doubles for HTTP connections: a log in memory, a transport without a socket, a parser of responses."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nsqx.net.http_connection import HTTPConnection
from nsqx.net.http_server import HTTPServer
from nsqx.net.round_robin import RoundRobin


class Soon:
    """Callbacks of a server's round-robin, which run when the test calls ``run_scheduled`` or ``settle``."""

    def __init__(self, server: HTTPServer, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.callbacks: list[Callable[[], None]] = []
        server.round_robin = RoundRobin(self.callbacks.append, now_ns)

    def run_scheduled(self) -> None:
        """Run the callbacks that wait now, as one turn of the loop."""
        callbacks, self.callbacks[:] = self.callbacks[:], []
        for callback in callbacks:
            callback()

    def settle(self) -> None:
        """Run callbacks until none is left."""
        while self.callbacks:
            self.run_scheduled()


class RememberingLog:
    """Keeps the lines of each level."""

    def __init__(self, *, info_enabled: bool = True) -> None:
        self.info_enabled = info_enabled
        self.errors: list[str] = []
        self.infos: list[str] = []
        self.debugs: list[str] = []

    def error(self, text: str) -> None:
        self.errors.append(text)

    def info(self, text: str) -> None:
        self.infos.append(text)

    def debug(self, text: str) -> None:
        self.debugs.append(text)


class MemoryTransport:
    """A transport that keeps the written bytes; the test sets its state."""

    def __init__(self, peer: object = ("127.0.0.1", 4321)) -> None:
        self._peer = peer
        self.written = bytearray()
        self.writes = 0
        self.reading = True
        self.closed = False
        self.aborted = False
        self.eof_written = False
        self.write_buffer_size = 0

    def get_extra_info(self, name: str) -> object:
        return self._peer if name == "peername" else None

    def write(self, data: bytes) -> None:
        assert not self.closed, "written after close"
        self.writes += 1
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof_written = True

    def pause_reading(self) -> None:
        assert self.reading, "paused twice"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading, "resumed while reading"
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.write_buffer_size


def connect(server: HTTPServer, transport: MemoryTransport | None = None) -> tuple[Any, MemoryTransport]:
    """Return a new connection of ``server`` and its transport."""
    transport = transport or MemoryTransport()
    connection: Any = HTTPConnection(server)
    connection.connection_made(transport)
    return connection, transport


@dataclass(frozen=True)
class Answer:
    """One response; header names are lower case."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    version: str = "HTTP/1.1"


def read_answers(data: bytes, *, to_heads: int = 0) -> list[Answer]:
    """Return the responses in ``data``, which has nothing else; the first ``to_heads`` are to HEAD requests."""
    answers = []
    while data:
        head, end, data = bytes(data).partition(b"\r\n\r\n")
        assert end, f"a response without the end of its head: {head!r}"
        status_line, *lines = head.decode().split("\r\n")
        version, status, _ = status_line.split(" ", 2)
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        if int(status) == 100:
            answers.append(Answer(100, b"", headers, version))
            continue
        length = 0 if len(answers) < to_heads else int(headers["content-length"])
        body, data = data[:length], data[length:]
        assert len(body) == length, "an incomplete response"
        answers.append(Answer(int(status), body, headers, version))
    return answers
