"""A fake nsqlookupd that records its input and answers as the test defines: correctly, wrongly, late or never.

Owns two listeners and a thread for each connection. The real nsqlookupd is in ``daemons``.
"""

import contextlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from rawlookup import sized

WAIT_S = 15.0
OK = sized(b"OK")
# Answers other than bytes: no answer on an open connection, a closed connection, a reset connection.
SILENCE = None
CLOSE = "close"
RESET = "reset"
Answer = bytes | str | None
_IDENTIFY = "IDENTIFY"


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    """Return a complete HTTP response."""
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


class FakeLookupd:
    """``commands`` are the received lines; ``identities`` are the JSON bodies of IDENTIFY.

    A test may replace ``answer``, a function of a command, and ``http_answer``, a function of a request's target. They
    are called in the thread of the connection and may block.
    """

    def __init__(self) -> None:
        self.answer: Callable[[str], Answer] = self.correct_answer
        self.http_answer: Callable[[str], Answer] = self.correct_http_answer
        self.channels: dict[str, list[str]] = {}
        self.connection_count = 0
        self.greetings: list[bytes] = []
        self.identities: list[Any] = []
        self.requests: list[str] = []
        self.request_heads: list[bytes] = []
        self._commands: list[str] = []
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._open_tcp: set[socket.socket] = set()
        self._closing = False
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.tcp_address, self.http_address = [f"127.0.0.1:{each.getsockname()[1]}" for each in self._listeners]
        self._threads = [
            threading.Thread(target=self._accept, args=arguments, daemon=True)
            for arguments in zip(self._listeners, (self._serve_tcp, self._serve_http), strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def commands(self) -> list[str]:
        with self._changed:
            return list(self._commands)

    @property
    def open_count(self) -> int:
        """The number of open connections of nsqds."""
        return len(self._open_tcp)

    @property
    def introduction(self) -> dict[str, Any]:
        """The answer of a correct nsqlookupd to IDENTIFY."""
        http_port = int(self.http_address.rpartition(":")[2])
        tcp_port = int(self.tcp_address.rpartition(":")[2])
        return {"broadcast_address": "127.0.0.1", "http_port": http_port, "tcp_port": tcp_port, "version": "1.3.0"}

    def correct_answer(self, command: str) -> Answer:
        return sized(json.dumps(self.introduction).encode()) if command == _IDENTIFY else OK

    def correct_http_answer(self, target: str) -> Answer:
        topic = parse_qs(urlsplit(target).query)["topic"][0]
        return http_answer(json.dumps({"channels": self.channels.get(topic, [])}).encode())

    def wait_for(self, condition: Callable[["FakeLookupd"], Any], what: str, timeout_s: float = WAIT_S) -> Any:
        """Call ``condition`` after each input until it returns a true value, and return the value."""
        with self._changed:
            value = self._changed.wait_for(lambda: condition(self), timeout_s)
        assert value, f"not within {timeout_s} s: {what}; received {self._commands}, {self.requests}"
        return value

    def wait_for_commands(self, *commands: str) -> None:
        """Wait until all ``commands`` have been received since the last ``forget``."""
        self.wait_for(lambda fake: set(commands) <= set(fake._commands), f"received {commands}")

    def forget(self) -> None:
        """Clear ``commands``."""
        with self._changed:
            self._commands.clear()

    def drop(self, how: str = CLOSE) -> None:
        """Close or reset every connection."""
        with self._changed:
            for each in self._sockets:
                _end(each, how)

    def close(self) -> None:
        """Stop listening and close every connection."""
        with self._changed:
            self._closing = True
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.drop()
        for thread in self._threads:
            thread.join()

    def _note(self, notes: list[Any], note: Any) -> None:
        with self._changed:
            notes.append(note)
            self._changed.notify_all()

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._changed:
                if self._closing:
                    connection.close()
                    return
                self._sockets.add(connection)
            threading.Thread(target=self._serve, args=(connection, serve), daemon=True).start()

    def _serve(self, connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        with contextlib.suppress(OSError, EOFError), connection:
            serve(connection)
        with self._changed:
            self._sockets.discard(connection)
            self._open_tcp.discard(connection)
            self._changed.notify_all()

    def _serve_tcp(self, connection: socket.socket) -> None:
        with self._changed:
            self.connection_count += 1
            self._open_tcp.add(connection)
        with connection.makefile("rb") as stream:
            self._note(self.greetings, _read(stream, 4))
            while line := stream.readline():
                command = line.decode().strip()
                if command == _IDENTIFY:
                    self._note(self.identities, json.loads(_read(stream, *struct.unpack(">i", _read(stream, 4)))))
                self._note(self._commands, command)
                _send(connection, self.answer(command))

    def _serve_http(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            data = connection.recv(65536)
            if not data:
                return
            head += data
        match = re.match(rb"GET (\S+) HTTP/1.1\r\n", head)
        target = match.group(1).decode() if match else head.decode()
        self._note(self.request_heads, head)
        self._note(self.requests, target)
        answer = self.http_answer(target)
        _send(connection, answer)
        if answer is SILENCE:
            connection.recv(1)


def _read(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _send(connection: socket.socket, answer: Answer) -> None:
    if isinstance(answer, bytes):
        connection.sendall(answer)
    elif answer is not SILENCE:
        _end(connection, answer)
        raise EOFError


def _end(connection: socket.socket, how: str) -> None:
    """Make the thread of ``connection`` close it; with RESET, SO_LINGER makes Linux send a reset."""
    try:
        if how == RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD if how == RESET else socket.SHUT_RDWR)
    except OSError:
        pass
