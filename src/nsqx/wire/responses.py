"""Reads frames from the bytes that nsqd sends, in chunks of any size.

A pull parser: ``feed`` adds bytes, ``next`` reports what they contain. It knows frames and the layout of messages (see
``frames`` and ``message``), but not which command an answer belongs to.

The most frequent frames are recognised directly. Consecutive ``OK`` answers, which a pipelining producer gets in long
runs, are reported as one run. A message is reported by its position, and the caller copies the parts it needs.
"""

from __future__ import annotations

from typing import Final

from nsqx.errors import InvalidFrame
from nsqx.wire import byteops

# The results of ``next``.
NEED_DATA: Final = 0
OK_RUN: Final = 1
MESSAGE: Final = 2
HEARTBEAT: Final = 3
RESPONSE: Final = 4
ERROR: Final = 5

_HEARTBEAT_TEXT: Final = b"_heartbeat_"
_FRAME_HEAD = 8
_MESSAGE_HEAD = 26
_OK_LENGTH = 10
# "OK" and "HTTP" as big-endian numbers of two and four bytes.
_OK_TEXT = 0x4F4B
_HTTP_TEXT = 0x48545450


class FrameReader:
    """Splits one connection's bytes into frames."""

    __slots__ = ("_buffer", "_end", "_max_size", "_position", "_start", "_stop", "count", "data")

    count: int  # after OK_RUN
    data: bytes  # after RESPONSE, ERROR

    def __init__(self, max_size: int = 0) -> None:
        """Accept frames of at most ``max_size`` bytes, 0 for any size."""
        self._buffer: bytes | bytearray = b""
        self._position = 0
        self._end = 0
        self._max_size = max_size
        # The start and end of the data of the last reported message.
        self._start = 0
        self._stop = 0
        self.count = 0
        self.data = b""

    def feed(self, data: bytes) -> None:
        """Add bytes from the socket."""
        if self._position == self._end:
            self._buffer = data
        elif type(self._buffer) is bytearray:
            if self._position:
                del self._buffer[: self._position]
            self._buffer += data
        else:
            # The start of an incomplete frame: a bytearray makes appending further chunks cheap.
            rest = bytearray(self._buffer[self._position : self._end])
            rest += data
            self._buffer = rest
        self._position = 0
        self._end = len(self._buffer)

    def next(self) -> int:
        """Return the kind of the next frame, or NEED_DATA if it is incomplete; raises InvalidFrame."""
        position = self._position
        available = self._end - position
        if available < _FRAME_HEAD:
            return NEED_DATA
        size = byteops.int32_at(self._buffer, position)
        if size < 4 or size == _HTTP_TEXT or (self._max_size > 0 and size > self._max_size):
            raise self._invalid_size(size)
        if available < 4 + size:
            return NEED_DATA
        kind = byteops.int32_at(self._buffer, position + 4)
        start = position + _FRAME_HEAD
        stop = position + 4 + size
        if kind == 2:
            if stop - start < _MESSAGE_HEAD:
                raise InvalidFrame(f"a message of {stop - start} bytes, at least {_MESSAGE_HEAD} expected")
            self._start = start
            self._stop = stop
            self._position = stop
            return MESSAGE
        if kind == 0 and size == 6 and byteops.uint16_at(self._buffer, start) == _OK_TEXT:
            return self._take_ok_run()
        if kind != 0 and kind != 1:
            raise InvalidFrame(f"a frame of type {kind}, 0 to 2 expected")
        self._position = stop
        self.data = byteops.cut(self._buffer, start, stop)
        if kind == 1:
            return ERROR
        return HEARTBEAT if self.data == _HEARTBEAT_TEXT else RESPONSE

    def _take_ok_run(self) -> int:
        count = 1
        position = self._position + _OK_LENGTH
        # The int32 numbers 6 (the size) and 0 (the type), read as one int64.
        while (
            self._end - position >= _OK_LENGTH
            and byteops.int64_at(self._buffer, position) == 0x600000000
            and byteops.uint16_at(self._buffer, position + _FRAME_HEAD) == _OK_TEXT
        ):
            count += 1
            position += _OK_LENGTH
        self.count = count
        self._position = position
        return OK_RUN

    def _invalid_size(self, size: int) -> InvalidFrame:
        if size == _HTTP_TEXT:
            return InvalidFrame("the answer is HTTP: this seems to be an HTTP port, not nsqd's TCP port")
        if size < 4:
            return InvalidFrame(f"a frame of size {size}, at least 4 expected")
        return InvalidFrame(f"a frame of size {size}, more than max_msg_size {self._max_size}")

    def message_timestamp(self) -> int:
        """After MESSAGE: return the time of publishing, in nanoseconds since 1970."""
        return byteops.int64_at(self._buffer, self._start)

    def message_attempts(self) -> int:
        """After MESSAGE: return the number of deliveries, including this one."""
        return byteops.uint16_at(self._buffer, self._start + 8)

    def message_id(self) -> bytes:
        """After MESSAGE: return the message id."""
        return byteops.cut(self._buffer, self._start + 10, self._start + _MESSAGE_HEAD)

    def message_body(self) -> bytes:
        """After MESSAGE: return the body."""
        return byteops.cut(self._buffer, self._start + _MESSAGE_HEAD, self._stop)

    def message_size(self) -> int:
        """After MESSAGE: return the size of the body in bytes."""
        return self._stop - self._start - _MESSAGE_HEAD

    def copy_message_id(self, out: bytearray, position: int) -> None:
        """After MESSAGE: copy the message id into ``out`` at ``position``; ``out`` must be large enough."""
        byteops.copy_into(out, position, self._buffer, self._start + 10, self._start + _MESSAGE_HEAD)

    def copy_message_body(self, out: bytearray, position: int) -> None:
        """After MESSAGE: copy the body into ``out`` at ``position``; ``out`` must be large enough."""
        byteops.copy_into(out, position, self._buffer, self._start + _MESSAGE_HEAD, self._stop)

    def take_rest(self) -> bytes:
        """Remove and return the unread bytes, for a layer that takes over the connection."""
        rest = byteops.cut(self._buffer, self._position, self._end)
        self._buffer = b""
        self._position = self._end = 0
        return rest
