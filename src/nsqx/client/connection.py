"""One connection to an nsqd.

The connection owns the transport, the layers below the protocol (TLS, compression), heartbeats and timeouts. It passes
frames to its receiver, a publisher or a subscription, and sends all commands of one loop turn in one write.

During the handshake it decodes only up to the answer it waits for. The bytes after that answer may belong to a TLS or
compression layer that is not added yet.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nsqx.errors import ConnectionClosed, ConnectRefused, InvalidFrame
from nsqx.net.layers import Layer, Layers
from nsqx.wire import encode, requests
from nsqx.wire.responses import ERROR, HEARTBEAT, MESSAGE, NEED_DATA, OK_RUN, RESPONSE, FrameReader

# The transport pauses writing when it has buffered this many bytes.
_WRITE_LIMIT = 256 * 1024
_LARGE = 16 * 1024

# Typed in the .pxd for the loop of ``_run``.
_NEED_DATA = NEED_DATA
_OK_RUN = OK_RUN
_MESSAGE = MESSAGE
_HEARTBEAT = HEARTBEAT
_RESPONSE = RESPONSE
_ERROR = ERROR


class FrameReceiver:
    """The events of a connection. Subclasses override the methods they need; the others do nothing."""

    __slots__ = ()

    def ok(self, count: int) -> None:
        """Handle ``count`` successive OK responses."""

    def message(self, reader: FrameReader) -> None:
        """Handle a message. ``reader`` has its parts until this call returns."""

    def response(self, data: bytes) -> None:
        """Handle a response other than OK."""

    def refusal(self, text: str) -> None:
        """Handle an error frame. ``text`` is ``CODE description``."""

    def drained(self) -> None:
        """All received bytes have been decoded."""

    def writable(self) -> None:
        """The socket accepts data again after a pause."""

    def lost(self, error: Exception | None) -> None:
        """The connection ended. ``error`` is None if it was closed on purpose."""


class NsqdConnection:
    """The asyncio protocol of one connection. It has no base class, so Cython can compile it to an extension type."""

    __slots__ = (
        "_answer",
        "_blocked_size",
        "_flush_callback",
        "_has_unsent",
        "_is_setting_up",
        "_layers",
        "_loop",
        "_read_at_s",
        "_read_timeout_s",
        "_reader",
        "_reason",
        "_timer",
        "_transport",
        "_write_timeout_s",
        "_write_timer",
        "address",
        "is_closed",
        "is_writable",
        "output",
        "receiver",
    )

    def __init__(
        self,
        address: str,
        loop: asyncio.AbstractEventLoop,
        *,
        read_timeout_s: float,
        write_timeout_s: float,
        max_frame_size: int = 0,
    ) -> None:
        """Create an unconnected protocol. A ``read_timeout_s`` of 0 means no limit."""
        self.address = address
        self.receiver = FrameReceiver()
        # Commands that are not written yet. Call ``flush_soon`` after appending.
        self.output = bytearray()
        self.is_closed = False
        self.is_writable = True
        self._loop = loop
        self._transport: Any = None
        self._layers: Layers | None = None
        self._reader = FrameReader(max_frame_size)
        self._is_setting_up = True
        self._answer: asyncio.Future[bytes] | None = None
        self._has_unsent = False
        self._flush_callback = self._flush
        self._reason: Exception | None = None
        self._read_timeout_s = read_timeout_s
        self._write_timeout_s = write_timeout_s
        self._read_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._blocked_size = 0

    # From the transport

    def connection_made(self, transport: Any) -> None:
        """Start the read timer."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_LIMIT)
        self._read_at_s = self._loop.time()
        if self._read_timeout_s > 0:
            self._timer = self._loop.call_later(self._read_timeout_s, self._check_silence)

    def data_received(self, data: bytes) -> None:
        """Decode bytes from nsqd; an error closes the connection."""
        self._read_at_s = self._loop.time()
        try:
            if self._layers is None:
                self._reader.feed(data)
                self._run()
            else:
                self._receive_through_layers(data)
        except Exception as error:
            self.fail(error)

    def eof_received(self) -> bool:
        """Close the transport when nsqd has closed its side."""
        return False

    def pause_writing(self) -> None:
        """Start the write timer: the socket accepts no more data."""
        self.is_writable = False
        self._blocked_size = self._transport.get_write_buffer_size()
        self._write_timer = self._loop.call_later(self._write_timeout_s, self._check_blockage)

    def resume_writing(self) -> None:
        """Stop the write timer and notify the receiver."""
        self.is_writable = True
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self.receiver.writable()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop the timers and report the end to the receiver and to a pending request."""
        self.is_closed = True
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._write_timer = None
        reason = self._reason or error
        if isinstance(reason, OSError):
            reason = ConnectionClosed(f"{self.address}: {reason.strerror or reason}")
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(reason or self._ended())
        receiver, self.receiver = self.receiver, FrameReceiver()
        receiver.lost(reason)

    # Frames in

    def _receive_through_layers(self, data: bytes) -> None:
        layers = self._layers
        assert layers is not None
        for piece in layers.receive(data):
            self._reader.feed(piece)
            self._run()
        self._send_layers_output()

    def _send_layers_output(self) -> None:
        assert self._layers is not None
        output = self._layers.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(output)

    def _run(self) -> None:
        """Decode the buffered bytes and pass the frames to the receiver."""
        if self._is_setting_up:
            self._run_setup()
            return
        reader = self._reader
        receiver = self.receiver
        while True:
            event = reader.next()
            if event == _MESSAGE:
                receiver.message(reader)
            elif event == _OK_RUN:
                receiver.ok(reader.count)
            elif event == _NEED_DATA:
                break
            elif event == _HEARTBEAT:
                self.send(requests.NOP)
            elif event == _RESPONSE:
                receiver.response(reader.data)
            else:
                receiver.refusal(reader.data.decode("utf-8", "replace"))
        receiver.drained()

    # Setting up

    def request(self, command: bytes) -> asyncio.Future[bytes]:
        """Send a command, unless it is empty, and read one answer.

        The future raises if the answer is an error frame or the connection ends.
        """
        self._answer = self._loop.create_future()
        if self.is_closed:
            self._answer.set_exception(self._reason or self._ended())
            return self._answer
        if command:
            self.send(command)
        answer = self._answer
        try:
            self._run_setup()
        except InvalidFrame as error:
            self.fail(error)
        return answer

    def _run_setup(self) -> None:
        reader = self._reader
        while self._answer is not None:
            event = reader.next()
            if event == _NEED_DATA:
                return
            if event == _HEARTBEAT:
                self.send(requests.NOP)
                continue
            if event == _MESSAGE:
                raise InvalidFrame("nsqd sent a message before the subscription")
            answer, self._answer = self._answer, None
            if answer.done():
                return
            if event == _ERROR:
                answer.set_exception(ConnectRefused(reader.data.decode("utf-8", "replace")))
            else:
                answer.set_result(b"OK" if event == _OK_RUN else reader.data)

    def add_layer(self, layer: Layer) -> None:
        """Add a layer for all further bytes, including received bytes that are not decoded yet."""
        self._flush()
        if self._layers is None:
            self._layers = Layers()
        rest = self._reader.take_rest()
        try:
            for piece in self._layers.push(layer, rest):
                self._reader.feed(piece)
                self._run()
            self._send_layers_output()
        except Exception as error:
            self.fail(error)

    def start(self, receiver: FrameReceiver) -> None:
        """End the handshake. From now on frames go to ``receiver``, starting with those already received."""
        self._is_setting_up = False
        self.receiver = receiver
        try:
            self._run()
        except Exception as error:
            self.fail(error)

    def silent_s(self) -> float:
        """Return the time since the last bytes arrived."""
        return self._loop.time() - self._read_at_s

    @property
    def transport(self) -> Any:
        """The asyncio transport, or None before the connection is made."""
        return self._transport

    # Commands out

    def send(self, command: bytes) -> None:
        """Queue a command. It is written at the end of this loop turn."""
        self.output += command
        self.flush_soon()

    def send_sized(self, head: bytes, body: bytes) -> None:
        """Queue a command with a body: the command line, the size of the body, the body."""
        if len(body) < _LARGE or self._layers is not None:
            encode.append_sized(self.output, head, body)
            self.flush_soon()
            return
        # Write a large body without copying it. The copy would cost more than the extra write.
        encode.append_sized_line(self.output, head, len(body))
        self._flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(body)

    def flush_soon(self) -> None:
        """Write ``output`` at the end of this loop turn."""
        if not self._has_unsent:
            self._has_unsent = True
            self._loop.call_soon(self._flush_callback)

    def _flush(self) -> None:
        self._has_unsent = False
        output = self.output
        if not output or self._transport is None or self._transport.is_closing():
            return
        self.output = bytearray()
        if self._layers is None:
            self._transport.write(output)
        else:
            self._transport.write(self._layers.send(bytes(output)))

    # The end

    def close(self) -> None:
        """Close after all queued commands are sent, or when nsqd accepts no data for the write timeout."""
        if self._transport is None or self._transport.is_closing():
            return
        self._flush()
        self._transport.close()
        if self._write_timer is None and self._transport.get_write_buffer_size():
            self._blocked_size = self._transport.get_write_buffer_size()
            self._write_timer = self._loop.call_later(self._write_timeout_s, self._check_blockage)

    def fail(self, error: Exception) -> None:
        """Close at once. ``error`` is reported as the reason."""
        if self._reason is None:
            self._reason = error
        if self._transport is not None:
            self._transport.abort()

    def _ended(self) -> ConnectionClosed:
        return ConnectionClosed(f"{self.address}: nsqd closed the connection")

    def _check_silence(self) -> None:
        waited_s = self._loop.time() - self._read_at_s
        if waited_s >= self._read_timeout_s:
            self._timer = None
            self.fail(ConnectionClosed(f"{self.address}: no data from nsqd for {self._read_timeout_s:g} s"))
            return
        self._timer = self._loop.call_later(self._read_timeout_s - waited_s, self._check_silence)

    def _check_blockage(self) -> None:
        """Fail if the socket accepted no bytes for the write timeout. A slow peer that accepts some is not cut off."""
        size = self._transport.get_write_buffer_size()
        if size >= self._blocked_size:
            self._write_timer = None
            self.fail(ConnectionClosed(f"{self.address}: nsqd accepted no data for {self._write_timeout_s:g} s"))
            return
        self._blocked_size = size
        self._write_timer = self._loop.call_later(self._write_timeout_s, self._check_blockage)
