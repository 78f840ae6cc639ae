"""Telling records from rubble in a data file, with checksums where there are some, and by their looks elsewhere.

A record looks like one if its length fits into the file and its message id is one: 16 hexadecimal digits. Where that
ends, the next place is looked for from which records follow each other again. nsqd does not go that far: it believes a
length, and gives the rest of a file up when one makes no sense.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsqx.queues.recovery import DAMAGED, GOOD, UNCHECKED, UNREADABLE, scan
from nsqx.wire import byteops
from nsqx.wire.message import HEADER_LENGTH

_MAX_RECORD_SIZE = 1 << 30
_HEAD_SIZE = 4 + HEADER_LENGTH
_ID_OFFSET = 14
_ID = re.compile(rb"[0-9a-f]{16}")
_ID_ANYWHERE = re.compile(rb"(?=[0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a data file: ``count`` records that can be delivered, or what cannot."""

    is_readable: bool
    start: int
    end: int
    count: int
    largest: int = 0  # message, in bytes


def pieces_of(path: str, start: int) -> list[Piece]:
    """What follows ``start`` in a data file; raises OSError."""
    with open(path, "rb") as file:
        data = file.read()
    pieces: list[Piece] = []
    unknown_from = -1
    for stretch in scan(path, start, _MAX_RECORD_SIZE):
        if stretch.kind in (UNCHECKED, UNREADABLE):
            unknown_from = stretch.start if unknown_from < 0 else unknown_from
            continue
        if unknown_from >= 0:
            pieces += _by_looks(data, unknown_from, stretch.start)
            unknown_from = -1
        if stretch.kind == GOOD:
            largest = max(size for _, size in record_sizes(data, stretch.start, stretch.end)) - _HEAD_SIZE
            pieces.append(Piece(True, stretch.start, stretch.end, stretch.count, largest))
        elif stretch.kind == DAMAGED:
            pieces.append(Piece(False, stretch.start, stretch.end, stretch.count))
    if unknown_from >= 0:
        pieces += _by_looks(data, unknown_from, len(data))
    return pieces


def record_sizes(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Position and size of each of the records that follow each other from ``start`` to ``end``."""
    while start < end:
        size = 4 + byteops.int32_at(data, start)
        yield start, size
        start += size


def _by_looks(data: bytes, start: int, end: int) -> Iterator[Piece]:
    position = start
    while position < end:
        sizes = _run(data, position, end)
        run_end = position + sum(sizes)
        if sizes:
            yield Piece(True, position, run_end, len(sizes), max(sizes) - _HEAD_SIZE)
        if run_end < end:
            position = _find_record(data, run_end + 1, end)
            yield Piece(False, run_end, position, 0)
        else:
            position = end


def _run(data: bytes, position: int, end: int) -> list[int]:
    """The sizes of the records that follow each other from ``position`` on."""
    sizes: list[int] = []
    while position < end:
        size = _record_size(data, position, end)
        if size == 0 or not _is_length_right(data, position, size, end):
            break
        sizes.append(size)
        position += size
    return sizes


def _is_length_right(data: bytes, position: int, size: int, end: int) -> bool:
    """False if what follows a record tells that its length is wrong.

    If what follows is neither a record nor what damage leaves of one, the length ended the record too soon; if a
    record begins before its end, too late.
    """
    follower = position + size
    if follower == end or _record_size(data, follower, end):
        return True
    found = _find_record(data, position + _HEAD_SIZE, end)
    if found < follower:
        return False
    return found == end or _is_left_of_a_record(data, follower, found)


def _is_left_of_a_record(data: bytes, start: int, end: int) -> bool:
    """True if a damaged record, or a hole, rather than the rest of a body lies there."""
    if _ID.match(data, start + _ID_OFFSET):
        return True
    length = byteops.int32_at(data, start)
    return length == 0 or HEADER_LENGTH <= length <= end - start - 4


def _record_size(data: bytes, position: int, end: int) -> int:
    """The size of what looks like a record; 0 if it does not."""
    if position + _HEAD_SIZE > end:
        return 0
    size = 4 + byteops.int32_at(data, position)
    if size < _HEAD_SIZE or position + size > end or not _ID.match(data, position + _ID_OFFSET):
        return 0
    return size


def _find_record(data: bytes, position: int, end: int) -> int:
    """Where the next record begins that reaches the end, or another record; ``end`` if there is none."""
    for match in _ID_ANYWHERE.finditer(data, position + _ID_OFFSET, end):
        start = match.start() - _ID_OFFSET
        size = _record_size(data, start, end)
        if size and (start + size == end or _record_size(data, start + size, end)):
            return start
    return end


def file_size(path: str) -> int:
    """In bytes."""
    return os.stat(path).st_size
