"""Finds valid records in a damaged data file: by checksums if there are any, else by their form.

Bytes have the form of a record if the length fits into the file and the message id is 16 hexadecimal digits. After
unreadable bytes, the search continues at the next position from which records follow each other. nsqd does less: it
trusts a length, and gives up the rest of a file if the length is invalid.
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
class FilePart:
    """A part of a data file: ``count`` deliverable records, or unreadable bytes."""

    is_readable: bool
    start: int
    end: int
    count: int
    largest: int = 0  # size of the largest message, in bytes


def file_parts(path: str, start: int) -> list[FilePart]:
    """Return the parts of a data file after ``start``; raises OSError."""
    with open(path, "rb") as file:
        data = file.read()
    parts: list[FilePart] = []
    unknown_from = -1
    for stretch in scan(path, start, _MAX_RECORD_SIZE):
        if stretch.kind in (UNCHECKED, UNREADABLE):
            unknown_from = stretch.start if unknown_from < 0 else unknown_from
            continue
        if unknown_from >= 0:
            parts += _parts_by_form(data, unknown_from, stretch.start)
            unknown_from = -1
        if stretch.kind == GOOD:
            largest = max(size for _, size in record_sizes(data, stretch.start, stretch.end)) - _HEAD_SIZE
            parts.append(FilePart(True, stretch.start, stretch.end, stretch.count, largest))
        elif stretch.kind == DAMAGED:
            parts.append(FilePart(False, stretch.start, stretch.end, stretch.count))
    if unknown_from >= 0:
        parts += _parts_by_form(data, unknown_from, len(data))
    return parts


def record_sizes(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield position and size of each of the consecutive records from ``start`` to ``end``."""
    while start < end:
        size = 4 + byteops.int32_at(data, start)
        yield start, size
        start += size


def _parts_by_form(data: bytes, start: int, end: int) -> Iterator[FilePart]:
    position = start
    while position < end:
        sizes = _run(data, position, end)
        run_end = position + sum(sizes)
        if sizes:
            yield FilePart(True, position, run_end, len(sizes), max(sizes) - _HEAD_SIZE)
        if run_end < end:
            position = _find_record(data, run_end + 1, end)
            yield FilePart(False, run_end, position, 0)
        else:
            position = end


def _run(data: bytes, position: int, end: int) -> list[int]:
    """Return the sizes of the consecutive records from ``position`` on."""
    sizes: list[int] = []
    while position < end:
        size = _record_size(data, position, end)
        if size == 0 or not _is_length_right(data, position, size, end):
            break
        sizes.append(size)
        position += size
    return sizes


def _is_length_right(data: bytes, position: int, size: int, end: int) -> bool:
    """False if the bytes after a record show that its length is wrong.

    The length is too small if it is followed by neither a record nor the remains of a damaged record. It is too large
    if another record starts before its end.
    """
    follower = position + size
    if follower == end or _record_size(data, follower, end):
        return True
    found = _find_record(data, position + _HEAD_SIZE, end)
    if found < follower:
        return False
    return found == end or _is_damaged_record(data, follower, found)


def _is_damaged_record(data: bytes, start: int, end: int) -> bool:
    """True if the bytes are a damaged record or a hole, and not the rest of a body."""
    if _ID.match(data, start + _ID_OFFSET):
        return True
    length = byteops.int32_at(data, start)
    return length == 0 or HEADER_LENGTH <= length <= end - start - 4


def _record_size(data: bytes, position: int, end: int) -> int:
    """Return the size of the record at ``position``, or 0 if the bytes do not have the form of a record."""
    if position + _HEAD_SIZE > end:
        return 0
    size = 4 + byteops.int32_at(data, position)
    if size < _HEAD_SIZE or position + size > end or not _ID.match(data, position + _ID_OFFSET):
        return 0
    return size


def _find_record(data: bytes, position: int, end: int) -> int:
    """Return the start of the next record that is followed by ``end`` or another record; ``end`` if none is found."""
    for match in _ID_ANYWHERE.finditer(data, position + _ID_OFFSET, end):
        start = match.start() - _ID_OFFSET
        size = _record_size(data, start, end)
        if size and (start + size == end or _record_size(data, start + size, end)):
            return start
    return end


def file_size(path: str) -> int:
    """Return the size of a file in bytes."""
    return os.stat(path).st_size
