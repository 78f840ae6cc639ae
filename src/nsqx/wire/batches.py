"""Divides large publishes into slices of bounded work: the lines of an /mpub body, or the messages of an MPUB.

A body of 5 MB can hold millions of messages. A slice can be published in a few milliseconds. It has the layout of an
MPUB body: an int32 size before each message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from nsqx.wire import byteops

# The limits of a slice: its messages, and the bytes of the body that it is taken from.
SLICE_COUNT: Final = 20_000
SLICE_BYTES: Final = 1024 * 1024
_SLICE_COUNT = SLICE_COUNT
_SLICE_BYTES = SLICE_BYTES


class Slices(Protocol):
    """The unpublished rest of a publish."""

    @property
    def count(self) -> int:
        """Messages in the slice that ``next`` returned; can be 0."""

    @property
    def is_done(self) -> bool:
        """True if no slice is left."""

    def next(self) -> bytes:
        """Remove and return the next slice."""


class LineSlices:
    """The lines of ``body`` that are not empty, as slices."""

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
        """Remove and return the next slice. It takes at least one line, even a long one."""
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
    """The messages of ``items``, as slices. ``read_batch`` has checked them; each has an int32 size before it."""

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
        """Remove and return the next slice. It has at least one message, even a long one."""
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


def bodies_of(items: bytes) -> Iterator[bytes]:
    """Yield the bodies of messages that have an int32 size before each."""
    position = 0
    while position < len(items):
        start = position + 4
        position = start + byteops.int32_at(items, position)
        yield items[start:position]


def has_longer_line(body: bytes, max_size: int) -> bool:
    """True if a line of ``body``, without its newline, is longer than ``max_size``."""
    position = 0
    while len(body) - position > max_size:
        # The last newline in the window. All lines that end before it are short enough.
        newline = body.rfind(b"\n", position, position + max_size + 1)
        if newline < 0:
            return True
        position = newline + 1
    return False
