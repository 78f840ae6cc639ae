"""Scans data files for records, for when the meta file is missing or wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsqx.queues.checksums import count_good, span
from nsqx.queues.files import DATA, META, SUMS, open_file, read_at, remove_if_there
from nsqx.queues.sidecar import Sidecar
from nsqx.wire import byteops
from nsqx.wire.message import HEADER_LENGTH

# The names of the files that ``files.write_temporary`` creates.
_TEMPORARY = re.compile(r".+\.(?:dat|crc)\.\d+\.tmp")
_DATA_FILE = re.compile(r"(.+)\.diskqueue\.(\d{6,})\.dat")
_QUEUE_FILE = re.compile(r"(.+)\.diskqueue\.(?:\d{6,}|meta)\.dat")
_SIDECAR = re.compile(r"(.+\.diskqueue\.\d{6,})\.crc")
_MESSAGE_ID = re.compile(rb"[0-9a-f]{16}")
_MESSAGE_ID_OFFSET = 14  # in a record: after its length, timestamp and attempts
_CHUNK_SIZE = 4 * 1024 * 1024

# Kinds of stretches of a data file: records that match their checksums; records without checksums whose lengths are
# plausible; records that do not match their checksums; bytes in which no record can be recognised.
GOOD, UNCHECKED, DAMAGED, UNREADABLE = "good", "unchecked", "damaged", "unreadable"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a data file; ``count`` is the number of its records, 0 if unreadable."""

    kind: str
    start: int
    end: int
    count: int


def data_file_numbers(directory: str) -> dict[str, list[int]]:
    """Return the numbers of the data files in a directory, ascending, by queue name."""
    numbers: dict[str, list[int]] = {}
    for entry in os.listdir(directory):
        match = _DATA_FILE.fullmatch(entry)
        if match:
            numbers.setdefault(match[1], []).append(int(match[2]))
    for found in numbers.values():
        found.sort()
    return numbers


def queue_names(directory: str) -> set[str]:
    """Return the names of the queues that have a data file or a meta file in a directory."""
    found = (_QUEUE_FILE.fullmatch(entry) for entry in os.listdir(directory))
    return {match[1] for match in found if match}


def remove_leftovers(directory: str) -> None:
    """Remove temporary files that a crash left, and checksums of data files that Go nsqd has removed.

    The caller must be the only user of the directory.
    """
    entries = set(os.listdir(directory))
    for entry in entries:
        sidecar = _SIDECAR.fullmatch(entry)
        if sidecar and f"{sidecar[1]}.dat" not in entries:
            remove_if_there(SUMS, os.path.join(directory, entry))
        elif _TEMPORARY.fullmatch(entry):
            remove_if_there(META, os.path.join(directory, entry))


def count_records(path: str, position: int, max_record_size: int) -> int:
    """Return the number of deliverable records after ``position``."""
    return sum(stretch.count for stretch in scan(path, position, max_record_size) if stretch.kind in (GOOD, UNCHECKED))


def scan(path: str, position: int, max_record_size: int) -> Iterator[Stretch]:
    """Yield the stretches after ``position``, which must be the start of a record; each is as long as possible."""
    last: Stretch | None = None
    for stretch in _scan(path, position, max_record_size):
        if last is not None and last.kind == stretch.kind:
            last = Stretch(last.kind, last.start, stretch.end, last.count + stretch.count)
            continue
        if last is not None:
            yield last
        last = stretch
    if last is not None:
        yield last


def _scan(path: str, position: int, max_record_size: int) -> Iterator[Stretch]:
    sidecar = Sidecar(path)
    descriptor = open_file(DATA, path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        while position < size:
            limit = size
            if sidecar.seek(position):
                if sidecar.start <= position and sidecar.entry_at(position) >= 0:
                    for stretch in _scan_block(descriptor, sidecar, position, size):
                        yield stretch
                        position = stretch.end
                    continue
                limit = min(size, sidecar.start if sidecar.start > position else sidecar.end)
            yield from _scan_unchecked(descriptor, position, limit, max_record_size)
            position = limit
    finally:
        os.close(descriptor)


def _scan_block(descriptor: int, sidecar: Sidecar, position: int, size: int) -> Iterator[Stretch]:
    """Yield the stretches of the sidecar's current block from ``position`` on."""
    index = sidecar.entry_at(position)
    while index < sidecar.count:
        data = read_at(DATA, descriptor, _CHUNK_SIZE, position)
        good = count_good(data, 0, sidecar.sums, index, sidecar.count)
        if good:
            end = position + span(sidecar.sums, index, index + good)
            yield Stretch(GOOD, position, end, good)
            index, position = index + good, end
            continue
        end = position + span(sidecar.sums, index, index + 1)
        if end > size:
            yield Stretch(UNREADABLE, position, size, 0)
            return
        whole = read_at(DATA, descriptor, end - position, position)
        is_good = count_good(whole, 0, sidecar.sums, index, index + 1) == 1
        yield Stretch(GOOD if is_good else DAMAGED, position, end, 1)
        index, position = index + 1, end


def _scan_unchecked(descriptor: int, position: int, limit: int, max_record_size: int) -> Iterator[Stretch]:
    """Yield the stretches of records without checksums, by their lengths only."""
    while position < limit:
        data = read_at(DATA, descriptor, min(limit - position, max(_CHUNK_SIZE, 4 + max_record_size)), position)
        offset = count = 0
        while len(data) - offset >= 4:
            size = byteops.int32_at(data, offset)
            if size < HEADER_LENGTH or size > max_record_size or len(data) - offset < 4 + size:
                break
            offset += 4 + size
            count += 1
        if count == 0 and is_large_record(descriptor, position, limit):
            offset, count = 4 + byteops.int32_at(data, 0), 1
        if count == 0:
            yield Stretch(UNREADABLE, position, limit, 0)
            return
        yield Stretch(UNCHECKED, position, position + offset, count)
        position += offset


def is_large_record(descriptor: int, position: int, end: int) -> bool:
    """True if the bytes at ``position`` are a record, even if it exceeds the size limit.

    Such a record is valid if nsqd ran with a larger --max-msg-size when it was written. To distinguish it from a
    damaged length, it must end before ``end``, have a message id, and be followed by ``end`` or another record.
    """
    size = _size_by_head(descriptor, position, end)
    if size == 0:
        return False
    following = position + 4 + size
    return following == end or _size_by_head(descriptor, following, end) > 0


def _size_by_head(descriptor: int, position: int, end: int) -> int:
    """Return the size in the header of the record at ``position``, or 0 if it is not the header of a record."""
    head = read_at(DATA, descriptor, 4 + HEADER_LENGTH, position)
    if len(head) < 4 + HEADER_LENGTH or not _MESSAGE_ID.match(head, _MESSAGE_ID_OFFSET):
        return 0
    size = byteops.int32_at(head, 0)
    return size if HEADER_LENGTH <= size <= end - position - 4 else 0
