"""A blocking client of nsqlookupd's TCP port that sends any bytes, valid or not.

Owns one socket and checks nothing, so that a test sees the real behaviour of the daemon.
"""

import json
import socket
import struct
from types import TracebackType
from typing import Any, Self

MAGIC = b"  V1"
TIMEOUT_S = 15.0

# The IDENTIFY fields of a correct nsqd.
NSQD = {
    "broadcast_address": "nsqd.test",
    "hostname": "host.test",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}


class ConnectionEnded(Exception):
    """The daemon closed the connection before the expected answer."""


def sized(data: bytes) -> bytes:
    """Prefix ``data`` with its size as a big-endian int32."""
    return struct.pack(">i", len(data)) + data


def identify(**changes: Any) -> bytes:
    """Return an IDENTIFY command with the fields of NSQD and ``changes``; a field that is None is left out."""
    fields = {name: value for name, value in {**NSQD, **changes}.items() if value is not None}
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


class RawLookupClient:
    """One connection to nsqlookupd, begun with ``magic``."""

    def __init__(self, address: str, magic: bytes = MAGIC) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S)
        host, port = self._socket.getsockname()[:2]
        self.local_address = f"{host}:{port}"
        if magic:
            self.send(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, command: bytes) -> bytes:
        """Send a command and return the answer."""
        self.send(command)
        return self.read_answer()

    def read_answer(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def read_to_end(self) -> bytes:
        """Return all bytes until the daemon closes the connection."""
        received = bytearray()
        while chunk := self._receive(65536):
            received += chunk
        return bytes(received)

    def send_end(self) -> None:
        """End the sending direction."""
        self._socket.shutdown(socket.SHUT_WR)

    def _read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            chunk = self._receive(size - len(received))
            if not chunk:
                raise ConnectionEnded(bytes(received))
            received += chunk
        return bytes(received)

    def _receive(self, size: int) -> bytes:
        try:
            return self._socket.recv(size)
        except ConnectionResetError:  # closed with unread commands; the bytes before were read
            return b""
