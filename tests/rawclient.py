"""A blocking NSQ client that sends any bytes, valid or not, and returns every frame.

Owns one socket. It does not answer heartbeats, does not reconnect and checks nothing, so that a test sees the real
behaviour of the daemon. The functions build commands; the methods of the same names send them.
"""

import json
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from compression import Layer

MAGIC = b"  V2"
HEARTBEAT = b"_heartbeat_"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
TIMEOUT_S = 15.0


class Frame(NamedTuple):
    """A frame from the daemon: type and data."""

    type: int
    data: bytes


OK = Frame(RESPONSE, b"OK")
CLOSE_WAIT = Frame(RESPONSE, b"CLOSE_WAIT")


class ConnectionEnded(Exception):
    """The daemon closed the connection before the expected frame."""


@dataclass(frozen=True)
class Message:
    """The data of a message frame: timestamp (8 bytes), attempts (2), id (16), body."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes

    @classmethod
    def decode(cls, data: bytes) -> "Message":
        timestamp_ns, attempts, message_id = struct.unpack_from(">qH16s", data)
        return cls(timestamp_ns, attempts, message_id, data[26:])


def sized(data: bytes) -> bytes:
    """Prefix ``data`` with its size as a big-endian int32."""
    return struct.pack(">i", len(data)) + data


def identify(**fields: Any) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + sized(secret)


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n" % topic.encode() + sized(body)


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    return b"DPUB %s %d\n" % (topic.encode(), delay_ms) + sized(body)


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    return b"MPUB %s\n" % topic.encode() + sized(mpub_body(bodies))


def xpub(topic: str, bodies: list[bytes], **options: Any) -> bytes:
    """Return an XPUB, a command of nsqx only; ``options`` are the keys of its JSON."""
    text = json.dumps(options).encode()
    return b"XPUB %s\n" % topic.encode() + sized(struct.pack(">H", len(text)) + text + mpub_body(bodies))


def mpub_body(bodies: list[bytes]) -> bytes:
    """Return the body of MPUB without its size, or of a binary /mpub: a count, then sizes and messages."""
    return struct.pack(">i", len(bodies)) + b"".join(sized(body) for body in bodies)


def sub(topic: str, channel: str) -> bytes:
    return b"SUB %s %s\n" % (topic.encode(), channel.encode())


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    return b"FIN %s\n" % message_id


def req(message_id: bytes, delay_ms: int) -> bytes:
    return b"REQ %s %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    return b"TOUCH %s\n" % message_id


def cls() -> bytes:
    return b"CLS\n"


def nop() -> bytes:
    return b"NOP\n"


class RawClient:
    """A connection to a daemon at ``host:port`` or at the path of a unix socket."""

    def __init__(self, address: str, *, magic: bytes = MAGIC, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._received = bytearray()
        self._closed_by_daemon = False
        self._layer: Layer | None = None
        self._socket = _connect(address, timeout_s)
        if magic:
            self.send(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def local_address(self) -> str:
        """The local ``host:port``, as the daemon shows it."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        """Send every byte; do nothing if the daemon has reset the connection."""
        self.send_unlayered(self._layer.encode(data) if self._layer is not None else data)

    def send_unlayered(self, data: bytes) -> None:
        """Send bytes past the compression layer, if there is one."""
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            pass

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Start TLS; the daemon must have accepted it in its answer to IDENTIFY."""
        assert not self._received, "unread bytes of the plain connection"
        self._socket.settimeout(self.timeout_s)
        self._socket = context.wrap_socket(self._socket, server_hostname="localhost")

    def start_compression(self, layer: Layer) -> None:
        """Add ``layer`` to the connection; it also decodes bytes that were received and not read yet."""
        self._layer = layer
        self._received = bytearray(layer.decode(bytes(self._received)))

    def half_close(self) -> None:
        """End the sending direction; reading is still possible."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()

    def read_frame(self, timeout_s: float | None = None) -> Frame:
        """Return the next frame, also a heartbeat; raise TimeoutError, or ConnectionEnded at the end of the stream."""
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while (frame := self._take_frame()) is None:
            if not self._receive(deadline):
                if self._closed_by_daemon:
                    raise ConnectionEnded(f"connection ended, {bytes(self._received)!r} left over")
                raise TimeoutError(f"no frame in time, {bytes(self._received)!r} received")
        return frame

    def read_frames(self, count: int) -> list[Frame]:
        return [self.read_frame() for _ in range(count)]

    def read_answer(self, timeout_s: float | None = None) -> Frame:
        """Return the next frame that is not a heartbeat."""
        while True:
            frame = self.read_frame(timeout_s)
            if frame != (RESPONSE, HEARTBEAT):
                return frame

    def read_message(self, timeout_s: float | None = None) -> Message:
        """Return the next frame that is not a heartbeat; it must be a message."""
        frame = self.read_answer(timeout_s)
        assert frame.type == MESSAGE, frame
        return Message.decode(frame.data)

    def read_until_closed(self, timeout_s: float | None = None) -> list[Frame]:
        """Return every frame until the end of the connection; raise TimeoutError if the daemon keeps it open."""
        frames = []
        while True:
            try:
                frames.append(self.read_frame(timeout_s))
            except ConnectionEnded:
                return frames

    def read_until_quiet(self, quiet_s: float) -> tuple[list[Frame], bool]:
        """Return the frames until none arrives for ``quiet_s`` or the connection ends, and whether it ended."""
        frames = []
        while True:
            try:
                frames.append(self.read_frame(quiet_s))
            except TimeoutError:
                return frames, False
            except ConnectionEnded:
                return frames, True

    def identify(self, **fields: Any) -> Frame:
        self.send(identify(**fields))
        return self.read_answer()

    def auth(self, secret: bytes) -> Frame:
        self.send(auth(secret))
        return self.read_answer()

    def pub(self, topic: str, body: bytes) -> Frame:
        self.send(pub(topic, body))
        return self.read_answer()

    def dpub(self, topic: str, delay_ms: int, body: bytes) -> Frame:
        self.send(dpub(topic, delay_ms, body))
        return self.read_answer()

    def mpub(self, topic: str, bodies: list[bytes]) -> Frame:
        self.send(mpub(topic, bodies))
        return self.read_answer()

    def sub(self, topic: str, channel: str) -> Frame:
        self.send(sub(topic, channel))
        return self.read_answer()

    def cls(self) -> Frame:
        self.send(cls())
        return self.read_answer()

    def rdy(self, count: int) -> None:
        self.send(rdy(count))

    def fin(self, message_id: bytes) -> None:
        self.send(fin(message_id))

    def req(self, message_id: bytes, delay_ms: int) -> None:
        self.send(req(message_id, delay_ms))

    def touch(self, message_id: bytes) -> None:
        self.send(touch(message_id))

    def nop(self) -> None:
        self.send(nop())

    def _take_frame(self) -> Frame | None:
        if len(self._received) < 4:
            return None
        size = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 + size:
            return None
        frame_type = int.from_bytes(self._received[4:8], "big")
        data = bytes(self._received[8 : 4 + size])
        del self._received[: 4 + size]
        return Frame(frame_type, data)

    def _receive(self, deadline: float) -> bool:
        """Receive bytes before ``deadline``; return False if none arrived or the connection ended."""
        if self._closed_by_daemon:
            return False
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            return False
        except ConnectionResetError:
            data = b""
        self._received += self._layer.decode(data) if self._layer is not None else data
        self._closed_by_daemon = not data
        return bool(data)


def _connect(address: str, timeout_s: float) -> socket.socket:
    host, separator, port = address.rpartition(":")
    if separator and port.isdecimal():
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    try:
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
