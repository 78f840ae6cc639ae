"""A sidecar: the checksums of one data file's records, in a file beside it that Go nsqd does not look at.

      <name>.diskqueue.000000.crc

      head    "NSQXSUMS", the first 30 bytes of the data file, CRC-32 of both
      block   "SUMS", int64 start, int64 end, int32 count, CRC-32 of these numbers and the entries, entries
              (see ``checksums``) of the ``count`` records from ``start`` to ``end`` of the data file

A block is written when its records are durable, so that what a sidecar describes cannot be taken away by a power cut
and then be written differently. The sidecar itself is never synced: each block vouches for itself, and what no block
describes, because the process was killed or Go nsqd wrote it, is not known to be good or bad.

Go nsqd may also have made a new data file of the same number, to which an old sidecar has nothing to say. So a sidecar
counts only if the data file begins with the record it began with, or else if some record is as it says.
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
_FIRST_SIZE = 30  # length, timestamp, attempts and id of a record
_HEAD = Struct(f">8s{_FIRST_SIZE}sI")
_BLOCK_MAGIC = b"SUMS"
_BLOCK = Struct(">4sqqiI")
_NUMBERS = slice(4, 24)  # of a block's head
MAX_COUNT = 1024 * 1024  # of the records of a block; more would be too much to hold
_CHUNK_SIZE = 256 * 1024
# How many records are looked at to see whether a sidecar whose head does not fit is of this file.
_MAX_TRIES = 1000


def sidecar_path(data_path: str) -> str:
    """Where the checksums of a data file are."""
    return data_path.removesuffix(".dat") + ".crc"


def remove_data_file(path: str) -> None:
    """Remove a data file and its sidecar; either may be gone already."""
    remove_if_there(DATA, path)
    remove_if_there(SUMS, sidecar_path(path))


def set_data_file_aside(path: str) -> None:
    """Rename a data file and its sidecar so that nobody reads them; either may be gone already."""
    for kind, name in ((DATA, path), (SUMS, sidecar_path(path))):
        try:
            rename(kind, name, name + ".bad")
        except FileNotFoundError:
            pass


def add_sums(data_path: str, start: int, end: int, sums: bytes) -> None:
    """Append the entries of at most MAX_COUNT records, durable by now, from ``start`` to ``end`` of the data file."""
    descriptor = open_file(SUMS, sidecar_path(data_path), os.O_WRONLY | os.O_CREAT)
    try:
        size = os.fstat(descriptor).st_size
        head = b"" if size else _make_head(_first_bytes(data_path))
        write_all(SUMS, descriptor, head + _make_block(start, end, sums), size)
    finally:
        os.close(descriptor)


def prepare_sidecar(data_path: str, position: int) -> None:
    """See to it that a sidecar says nothing of what will be written from ``position`` on."""
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
    """What is wrong with the sidecar of a data file, in words; nothing if there is none. Raises OSError."""
    try:
        size = os.stat(sidecar_path(data_path)).st_size
    except FileNotFoundError:
        return ""
    sidecar = Sidecar(data_path)
    described = _HEAD.size
    while sidecar.next_block():
        described += _BLOCK.size + len(sidecar.sums)
    if not sidecar.is_known:
        return "they are damaged as a whole, or of another file"
    if described != size:
        return f"{abs(size - described)} of {size} bytes are damaged"
    if sidecar.end > os.stat(data_path).st_size:
        return "they describe more than there is"
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
    """Reads the sidecar of one data file from front to back; there need not be one.

    The block it stands at describes the records from ``start`` to ``end`` by ``sums``; none yet if both are 0.
    Methods raise OSError if the file cannot be read.
    """

    __slots__ = (
        "_buffer",
        "_data_path",
        "_entry",
        "_entry_start",
        "_is_at_end",
        "_is_known",
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
        self._buffer = b""  # what follows the current block, as far as it is read
        self._position = 0  # of the buffer in the file
        self._is_at_end = False
        self._is_known = False  # to be this file's

    @property
    def is_known(self) -> bool:
        """True once the file has turned out to be of this data file."""
        return self._is_known

    def note_growth(self) -> None:
        """Blocks were added to the file."""
        self._is_at_end = False

    def give_up(self) -> None:
        """Look for no more blocks, at least until some are added."""
        self._is_at_end = True

    def seek(self, position: int) -> bool:
        """Stand at the first block that ends after ``position``, which must never decrease; False if there is none."""
        while self.end <= position:
            if not self.next_block():
                return False
        return True

    def entry_at(self, position: int) -> int:
        """Which record of the current block begins at ``position``, which must not decrease; -1 if none does."""
        while self._entry_start < position and self._entry < self.count:
            self._entry_start += span(self.sums, self._entry, self._entry + 1)
            self._entry += 1
        return self._entry if self._entry_start == position and self._entry < self.count else -1

    def pass_over(self, count: int, position: int) -> None:
        """The next ``count`` records of the current block end at ``position``: the reading has got that far."""
        self._entry += count
        self._entry_start = position

    def next_after(self, position: int) -> int:
        """Where the next record that is known begins, or the last one known ends, after ``position``; -1 if unknown."""
        if not self.seek(position):
            return -1
        if self.start > position:
            return self.start
        index = self.entry_at(position)
        return self._entry_start if index < 0 else position + span(self.sums, index, index + 1)

    def next_block(self) -> bool:
        """Go on to the next block; False if there is none, or none yet."""
        if not self._is_known and not self._find_out():
            return False
        return self._advance()

    def _find_out(self) -> bool:
        """Whether the file is of this data file at all. Until it is there, it may come."""
        if self._is_at_end:
            return False
        try:
            head = _read(SUMS, self._path, _HEAD.size, 0)
        except FileNotFoundError:
            self._is_at_end = True
            return False
        self._is_known = _fits(head, _first_bytes(self._data_path)) or self._has_intact_record()
        if not self._is_known:
            self._is_at_end = True
        return self._is_known

    def _has_intact_record(self) -> bool:
        """True if a record is as described; the reading then starts over."""
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
        """Find the next block that is whole and not behind the current one, passing over what is none."""
        at = 0
        unfinished = -1  # where a block may begin of which the rest is not there
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
                    self._stand_at(start, end, count, entries)
                    self._drop(entries_at + len(entries))
                    return True
            at += 1

    def _stand_at(self, start: int, end: int, count: int, entries: bytes) -> None:
        self.start, self.end, self.count, self.sums = start, end, count, entries
        self._entry, self._entry_start = 0, start

    def _drop(self, size: int) -> None:
        self._buffer = self._buffer[size:]
        self._position += size

    def _read_more(self, size: int) -> bool:
        """Forget the first ``size`` bytes of the buffer and read on behind it; False at the end of the file."""
        self._drop(size)
        if self._is_at_end:
            return False
        more = _read(SUMS, self._path, _CHUNK_SIZE, self._position + len(self._buffer))
        self._buffer += more
        self._is_at_end = not more
        return bool(more)


def _fits(head: bytes, first: bytes) -> bool:
    """True if a head is whole and was made for a file that began like this; damage may have changed some of it."""
    if len(head) < _HEAD.size:
        return False
    magic, kept, expected = _HEAD.unpack(head)
    if magic != _HEAD_MAGIC or crc32(head[:-4]) != expected:
        return False
    has_timestamp: bool = kept[4:12] == first[4:12]
    has_id: bool = kept[14:] == first[14:]
    return has_timestamp or has_id
