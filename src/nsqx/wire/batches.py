"""Large publishes cut into slices of bounded work: the lines of an /mpub body, or the messages of an MPUB.

A body of 5 MB may hold millions of messages. A slice is what can be published in a few milliseconds; it is laid out
as in an MPUB body, an int32 size before each message.
"""

from __future__ import annotations

from typing import Final, Protocol

from nsqx.wire import byteops

# The most that a slice holds: messages, and bytes of the body it is cut from.
SLICE_COUNT: Final = 20_000
SLICE_BYTES: Final = 1024 * 1024
_SLICE_COUNT = SLICE_COUNT
_SLICE_BYTES = SLICE_BYTES


class Slices(Protocol):
    """What is left of a publish."""

    @property
    def count(self) -> int:
        """Messages in the slice that ``next`` returned; it may be 0."""

    @property
    def is_done(self) -> bool:
        """True if no slice is left."""

    def next(self) -> bytes:
        """Cut off and return the next slice."""


class LineSlices:
    """The lines of ``body`` that are not empty."""

    __slots__ = ("_body", "_end", "_position", "count")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0
        self._end = len(body)
        self.count = 0

    @property
    def is_done(self) -> bool:
        """True if no slice is left."""
        return self._position >= self._end

    def next(self) -> bytes:
        """Cut off and return the next slice; it holds at least one line, however long."""
        body = self._body
        position = self._position
        end = self._end
        limit = min(position + _SLICE_BYTES, end)
        count = 0
        items = bytearray()
        while position < limit and count < _SLICE_COUNT:
            newline = byteops.newline_at(body, position, end)
            if newline < 0:
                newline = end
            if newline > position:
                byteops.append_sized(items, body, position, newline)
                count += 1
            position = newline + 1
        self._position = position
        self.count = count
        return bytes(items)


class BatchSlices:
    """``items`` are messages with an int32 size before each, as ``read_batch`` has checked them."""

    __slots__ = ("_end", "_items", "_position", "count")

    def __init__(self, items: bytes) -> None:
        self._items = items
        self._position = 0
        self._end = len(items)
        self.count = 0

    @property
    def is_done(self) -> bool:
        """True if no slice is left."""
        return self._position >= self._end

    def next(self) -> bytes:
        """Cut off and return the next slice; it holds at least one message, however long."""
        items = self._items
        position = start = self._position
        limit = min(position + _SLICE_BYTES, self._end)
        count = 0
        while position < limit and count < _SLICE_COUNT:
            position += 4 + byteops.int32_at(items, position)
            count += 1
        self._position = position
        self.count = count
        return byteops.cut(items, start, position)


def has_longer_line(body: bytes, max_size: int) -> bool:
    """True if a line of ``body`` is longer than ``max_size``, its newline not counted."""
    position = 0
    while len(body) - position > max_size:
        # The last newline of the window: every line that ends before it fits.
        newline = body.rfind(b"\n", position, position + max_size + 1)
        if newline < 0:
            return True
        position = newline + 1
    return False
