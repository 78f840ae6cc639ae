"""A sidecar: the checksums of the records of one data file, in a file beside it that Go nsqd ignores.

      <name>.diskqueue.000000.crc

      head    "NSQXSUMS", the first 30 bytes of the data file, CRC-32 of both
      block   "SUMS", int64 start, int64 end, int32 count, CRC-32 of these numbers and the entries, entries
              (see ``checksums``) of the ``count`` records from ``start`` to ``end`` of the data file

A block is written when its records are durable. So records that a sidecar describes cannot be lost in a power cut and
then be written differently. The sidecar itself is never synced, because each block has its own checksum. Records that
no block describes (the process was killed, or Go nsqd wrote them) are neither known to be good nor to be bad.

Go nsqd may have created a new data file of the same number, to which an old sidecar does not belong. So a sidecar is
used only if the data file starts with the same record as in the head, or else if some record matches its checksum.
"""

from __future__ import annotations

import os
from struct import Struct
from zlib import crc32

from nsqx.queues.checksums import ENTRY_SIZE, count_good, span
from nsqx.queues.files import (
    DATA,
    SUMS,
    open_file,
    read_at,
    remove_if_there,
    rename,
    replace_file,
    write_all,
)

_HEAD_MAGIC = b"NSQXSUMS"
_FIRST_SIZE = 30  # length, timestamp, attempts and id of the first record
_HEAD = Struct(f">8s{_FIRST_SIZE}sI")
_BLOCK_MAGIC = b"SUMS"
_BLOCK = Struct(">4sqqiI")
_NUMBERS = slice(4, 24)  # start, end and count in the header of a block
MAX_COUNT = 1024 * 1024  # records in a block, which limits the memory it takes
_CHUNK_SIZE = 256 * 1024
# How many records are compared to decide whether a sidecar with a wrong head belongs to a data file.
_MAX_TRIES = 1000


def sidecar_path(data_path: str) -> str:
    """Return the path of the sidecar of a data file."""
    return data_path.removesuffix(".dat") + ".crc"


def remove_data_file(path: str) -> None:
    """Remove a data file and its sidecar; either may be missing."""
    remove_if_there(DATA, path)
    remove_if_there(SUMS, sidecar_path(path))


def set_data_file_aside(path: str) -> None:
    """Rename a data file and its sidecar to .bad, so that they are not read; either may be missing."""
    for kind, name in ((DATA, path), (SUMS, sidecar_path(path))):
        try:
            rename(kind, name, name + ".bad")
        except FileNotFoundError:
            pass


def add_sums(data_path: str, start: int, end: int, sums: bytes) -> None:
    """Append the entries of at most MAX_COUNT durable records, from ``start`` to ``end`` of the data file."""
    descriptor = open_file(SUMS, sidecar_path(data_path), os.O_WRONLY | os.O_CREAT)
    try:
        size = os.fstat(descriptor).st_size
        head = b"" if size else _make_head(_first_bytes(data_path))
        write_all(SUMS, descriptor, head + _make_block(start, end, sums), size)
    finally:
        os.close(descriptor)


def prepare_sidecar(data_path: str, position: int) -> None:
    """Remove the checksums of everything from ``position`` on, which will be overwritten."""
    path = sidecar_path(data_path)
    if position == 0:
        remove_if_there(SUMS, path)
        return
    sidecar = Sidecar(data_path)
    kept = []
    is_too_long = False
    while sidecar.next_block():
        if sidecar.end <= position:
            kept.append(_make_block(sidecar.start, sidecar.end, sidecar.sums))
        else:
            is_too_long = True
    if not kept:
        remove_if_there(SUMS, path)
    elif is_too_long:
        replace_file(path, _make_head(_first_bytes(data_path)) + b"".join(kept), SUMS)


def check_sidecar(data_path: str) -> str:
    """Return a text that says what is wrong with the sidecar of a data file, or "". Raises OSError."""
    try:
        size = os.stat(sidecar_path(data_path)).st_size
    except FileNotFoundError:
        return ""
    sidecar = Sidecar(data_path)
    described = _HEAD.size
    while sidecar.next_block():
        described += _BLOCK.size + len(sidecar.sums)
    if not sidecar.is_identified:
        return "the sidecar is completely damaged, or belongs to another file"
    if described != size:
        return f"{abs(size - described)} of {size} bytes are damaged"
    if sidecar.end > os.stat(data_path).st_size:
        return "the sidecar describes more records than the file has"
    return ""


def _make_head(first: bytes) -> bytes:
    return _HEAD.pack(_HEAD_MAGIC, first, crc32(_HEAD_MAGIC + first))


def _make_block(start: int, end: int, sums: bytes) -> bytes:
    numbers = _BLOCK.pack(_BLOCK_MAGIC, start, end, len(sums) // ENTRY_SIZE, 0)[_NUMBERS]
    return _BLOCK.pack(_BLOCK_MAGIC, start, end, len(sums) // ENTRY_SIZE, crc32(numbers + sums)) + sums


def _first_bytes(data_path: str) -> bytes:
    return _read(DATA, data_path, _FIRST_SIZE, 0).ljust(_FIRST_SIZE, b"\0")


def _read(kind: str, path: str, size: int, position: int) -> bytes:
    descriptor = open_file(kind, path, os.O_RDONLY)
    try:
        return read_at(kind, descriptor, size, position)
    finally:
        os.close(descriptor)


class Sidecar:
    """Reads the sidecar of one data file from start to end; the sidecar may be missing.

    The current block describes the records from ``start`` to ``end`` by ``sums``; both are 0 before the first block.
    Methods raise OSError if the file cannot be read.
    """

    __slots__ = (
        "_buffer",
        "_data_path",
        "_entry",
        "_entry_start",
        "_is_at_end",
        "_is_identified",
        "_path",
        "_position",
        "count",
        "end",
        "start",
        "sums",
    )

    def __init__(self, data_path: str) -> None:
        self.start = self.end = self.count = 0
        self.sums = b""
        self._data_path = data_path
        self._path = sidecar_path(data_path)
        self._entry = 0
        self._entry_start = 0
        self._buffer = b""  # the bytes after the current block that have been read
        self._position = 0  # of the buffer in the file
        self._is_at_end = False
        self._is_identified = False  # whether the sidecar belongs to the data file

    @property
    def is_identified(self) -> bool:
        """True after the sidecar was found to belong to the data file."""
        return self._is_identified

    def note_growth(self) -> None:
        """Note that blocks were added to the file."""
        self._is_at_end = False

    def give_up(self) -> None:
        """Search for no more blocks, at least until some are added."""
        self._is_at_end = True

    def seek(self, position: int) -> bool:
        """Go to the first block that ends after ``position``, which must not decrease; False if there is none."""
        while self.end <= position:
            if not self.next_block():
                return False
        return True

    def entry_at(self, position: int) -> int:
        """Return the index of the record that starts at ``position``, which must not decrease; -1 if there is none."""
        while self._entry_start < position and self._entry < self.count:
            self._entry_start += span(self.sums, self._entry, self._entry + 1)
            self._entry += 1
        return self._entry if self._entry_start == position and self._entry < self.count else -1

    def skip(self, count: int, position: int) -> None:
        """Skip ``count`` records of the current block, which end at ``position``."""
        self._entry += count
        self._entry_start = position

    def next_after(self, position: int) -> int:
        """Return where the next described record after ``position`` starts, or the last one ends; -1 if unknown."""
        if not self.seek(position):
            return -1
        if self.start > position:
            return self.start
        index = self.entry_at(position)
        return self._entry_start if index < 0 else position + span(self.sums, index, index + 1)

    def next_block(self) -> bool:
        """Go to the next block; False if there is none yet."""
        if not self._is_identified and not self._identify():
            return False
        return self._advance()

    def _identify(self) -> bool:
        """Decide whether the sidecar belongs to the data file; a missing sidecar may be created later."""
        if self._is_at_end:
            return False
        try:
            head = _read(SUMS, self._path, _HEAD.size, 0)
        except FileNotFoundError:
            self._is_at_end = True
            return False
        self._is_identified = _matches_head(head, _first_bytes(self._data_path)) or self._has_intact_record()
        if not self._is_identified:
            self._is_at_end = True
        return self._is_identified

    def _has_intact_record(self) -> bool:
        """True if one of the first records matches its checksum. Goes back to the start of the sidecar."""
        tries = 0
        is_found = False
        while tries < _MAX_TRIES and not is_found and self._advance():
            position = self.start
            for index in range(self.count):
                size = span(self.sums, index, index + 1)
                tries += 1
                is_found = count_good(_read(DATA, self._data_path, size, position), 0, self.sums, index, index + 1) == 1
                position += size
                if is_found or tries == _MAX_TRIES:
                    break
        self.start = self.end = self.count = self._entry = self._entry_start = 0
        self.sums = self._buffer = b""
        self._position = 0
        self._is_at_end = False
        return is_found

    def _advance(self) -> bool:
        """Go to the next valid block that does not overlap the current one; other bytes are skipped."""
        at = 0
        unfinished = -1  # where a block may start whose end is not in the buffer
        while True:
            at = self._buffer.find(_BLOCK_MAGIC, at)
            if at < 0 or len(self._buffer) < at + _BLOCK.size:
                resume = at if at >= 0 else max(0, len(self._buffer) - len(_BLOCK_MAGIC) + 1)
                resume = min(resume, unfinished) if unfinished >= 0 else resume
                if not self._read_more(resume):
                    return False
                at, unfinished = 0, -1
                continue
            _, start, end, count, expected = _BLOCK.unpack_from(self._buffer, at)
            entries_at = at + _BLOCK.size
            if 0 < count <= MAX_COUNT and self.end <= start < end:
                entries = self._buffer[entries_at : entries_at + count * ENTRY_SIZE]
                if len(entries) < count * ENTRY_SIZE:
                    unfinished = at if unfinished < 0 else unfinished
                elif crc32(self._buffer[at:entries_at][_NUMBERS] + entries) == expected:
                    self._set_block(start, end, count, entries)
                    self._drop(entries_at + len(entries))
                    return True
            at += 1

    def _set_block(self, start: int, end: int, count: int, entries: bytes) -> None:
        self.start, self.end, self.count, self.sums = start, end, count, entries
        self._entry, self._entry_start = 0, start

    def _drop(self, size: int) -> None:
        self._buffer = self._buffer[size:]
        self._position += size

    def _read_more(self, size: int) -> bool:
        """Drop the first ``size`` bytes of the buffer and read more; False at the end of the file."""
        self._drop(size)
        if self._is_at_end:
            return False
        more = _read(SUMS, self._path, _CHUNK_SIZE, self._position + len(self._buffer))
        self._buffer += more
        self._is_at_end = not more
        return bool(more)


def _matches_head(head: bytes, first: bytes) -> bool:
    """True if a head is valid and was made for a file that starts with ``first``, parts of which may be damaged."""
    if len(head) < _HEAD.size:
        return False
    magic, kept, expected = _HEAD.unpack(head)
    if magic != _HEAD_MAGIC or crc32(head[:-4]) != expected:
        return False
    has_timestamp: bool = kept[4:12] == first[4:12]
    has_id: bool = kept[14:] == first[14:]
    return has_timestamp or has_id
