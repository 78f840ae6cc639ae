"""TLS from the first byte of a server's connection: sits between the socket's transport and a protocol.

asyncio can do this too, but it reports a failed handshake neither in the log nor to the client. Here a failure is
logged as in Go's HTTP server, and the client gets a TLS alert.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from nsqx.net.layers import PIECE_SIZE
from nsqx.net.peer import peer_address
from nsqx.net.tls import TLSFailed, TLSLayer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from nsqx.net.request_log import RequestLog

# The answer of Go's HTTP server to an unencrypted request.
_NOT_ENCRYPTED = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
_HTTP_STARTS = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO", b"DELET", b"PATCH")


class TLSProtocol(asyncio.Protocol):
    """One connection: completes the handshake, then acts as the transport of the protocol from ``make_protocol``."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        log: RequestLog,
        handshake_timeout_s: float,
        handshaking: set[TLSProtocol],
    ) -> None:
        """``handshaking`` contains this connection during its handshake."""
        self._layer = TLSLayer(context, server_side=True)
        self._make_protocol = make_protocol
        self._log = log
        self._handshake_timeout_s = handshake_timeout_s
        self._handshaking = handshaking
        self._protocol: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_received = False
        self._is_paused = False

    # Called by the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._handshaking.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._handshake_timeout_s, self._fail, "i/o timeout")

    def data_received(self, data: bytes) -> None:
        is_first, self._has_received = not self._has_received, True
        try:
            piece = self._layer.unwrap(data, PIECE_SIZE)
        except TLSFailed as error:
            if is_first and data.startswith(_HTTP_STARTS):
                self._write(_NOT_ENCRYPTED)
                self._fail("client sent an HTTP request to an HTTPS server")
            else:
                self._write(self._layer.take_output())
                self._fail(str(error))
            return
        self._write(self._layer.take_output())
        if self._protocol is None and self._layer.is_done:
            self._begin()
        self._deliver(piece)

    def eof_received(self) -> bool:
        if self._protocol is None:
            self._fail("EOF")
        else:
            self._protocol.eof_received()
        return False  # TLS cannot stay half open

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def _begin(self) -> None:
        self._end_handshake()
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)  # type: ignore[arg-type]

    def _end_handshake(self) -> None:
        self._handshaking.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self, piece: bytes) -> None:
        """Pass received data to the protocol, piece by piece, until it pauses reading."""
        if self._protocol is None:
            return
        try:
            while piece:
                self._protocol.data_received(piece)
                piece = b""
                if self._layer.has_more and not self._is_paused and not self.is_closing():
                    piece = self._layer.unwrap(b"", PIECE_SIZE)
            if self._layer.has_ended and not self.is_closing():
                self._protocol.eof_received()
                self.close()
        except TLSFailed:
            self.abort()

    def _fail(self, reason: str) -> None:
        """Close a connection whose handshake failed or that sends invalid TLS."""
        if self._protocol is None and self._transport is not None:
            remote = peer_address(self._transport)[0]
            self._log.warn(f"http: TLS handshake error from {remote}: {reason}")
        self._end_handshake()
        if self._transport is not None:
            self._transport.close()

    # The transport of the protocol

    def write(self, data: bytes) -> None:
        """Encrypt and send ``data``."""
        self._write(self._layer.wrap(data))

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send close_notify, and close the connection when everything is sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._write(self._layer.end())
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """True if the connection is closed or closing."""
        return self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Deliver nothing until ``resume_reading``."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again, starting with the data decrypted before the pause."""
        self._is_paused = False
        if self._layer.has_more:
            asyncio.get_running_loop().call_soon(self._deliver_rest)
        if self._transport is not None:
            self._transport.resume_reading()

    def _deliver_rest(self) -> None:
        if self._is_paused or not self._layer.has_more or self.is_closing():
            return
        try:
            piece = self._layer.unwrap(b"", PIECE_SIZE)
        except TLSFailed:
            self.abort()
            return
        self._deliver(piece)

    def can_write_eof(self) -> bool:
        """False: TLS has no half-closed connections."""
        return False

    def get_write_buffer_size(self) -> int:
        """The number of encrypted bytes that the socket has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return transport information as in asyncio; ``ssl_object`` has the peer's certificate."""
        if name == "ssl_object":
            return self._layer.ssl_object
        return self._transport.get_extra_info(name, default) if self._transport is not None else default
