"""Reads records from a data file and verifies their checksums.

It owns the open file, the position in it, the data read ahead and the sidecar. The queue decides what to do about a
record that cannot be read, and which file comes next.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from nsqx.queues import checksums
from nsqx.queues.files import DATA, open_file, read_at
from nsqx.queues.recovery import is_large_record
from nsqx.queues.sidecar import Sidecar
from nsqx.wire import byteops
from nsqx.wire.message import HEADER_LENGTH, QueuedMessage, message_at

if TYPE_CHECKING:
    from nsqx.queues.positions import QueueLog

READ_SIZE: Final = 64 * 1024
# The results of ``next_size`` without a record: none can be read now, the end of the file, a damaged record, or
# unreadable bytes. After a damaged record the position of the next one may be known, after unreadable bytes it is not.
NOT_NOW: Final = 0
AT_END: Final = -1
DAMAGED: Final = -2
UNREADABLE: Final = -3

# Temporary errors that are not caused by the file; the read is retried later.
_TRANSIENT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}

# Typed in the .pxd for ``next_size``.
_NOT_NOW = NOT_NOW
_AT_END = AT_END
_DAMAGED = DAMAGED
_UNREADABLE = UNREADABLE
_FILLED = 1
_READ_SIZE = READ_SIZE
_HEADER_LENGTH = HEADER_LENGTH


class RecordReader:
    """A position in a data file. The file is opened when the first record is requested."""

    __slots__ = (
        "_buffer",
        "_descriptor",
        "_limit",
        "_log",
        "_max_record_size",
        "_name",
        "_offset",
        "_path",
        "_sidecar",
        "position",
        "reason",
    )

    def __init__(self, name: str, max_record_size: int, log: QueueLog) -> None:
        self.position = 0
        self.reason = ""  # after DAMAGED or UNREADABLE
        self._name = name
        self._max_record_size = max_record_size
        self._log = log
        self._path = ""
        self._descriptor = -1
        self._sidecar: Sidecar | None = None
        self._buffer: bytes | bytearray = b""
        self._offset = 0
        self._limit = 0  # the end of the verified part of the buffer

    def go_to(self, path: str, position: int) -> None:
        """Continue at ``position`` of the file ``path``."""
        self.close()
        self._path = path
        self.position = position

    def skip_to(self, position: int) -> None:
        """Continue at another position of the file."""
        self._clear_buffer()
        self.position = position

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        self._clear_buffer()
        self._sidecar = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _clear_buffer(self) -> None:
        self._buffer = b""
        self._offset = self._limit = 0

    def preload(self, records: bytearray) -> None:
        """Take records that were just written at the current position, so that they need not be read from the file."""
        self._buffer, self._offset, self._limit = records, 0, len(records)

    def note_growth(self) -> None:
        """Note that checksums were added to the sidecar."""
        if self._sidecar is not None:
            self._sidecar.note_growth()

    # Records

    def next_size(self, written: int) -> int:
        """Return the size of the next message, which is then completely in the buffer, or why there is none.

        ``written`` is the end of the written part of the file, or -1 if the file is complete.
        """
        while True:
            available = self._limit - self._offset
            size = 0
            if available >= 4:
                size = byteops.int32_at(self._buffer, self._offset)
                if size < _HEADER_LENGTH or size > self._max_record_size:
                    found = self._check_unusual_size(size, written)
                    if found != _FILLED:
                        return found
                if available >= 4 + size:
                    return size
            found = self._fill(4 + size, written)
            if found != _FILLED:
                return found

    def _check_unusual_size(self, size: int, written: int) -> int:
        """Return _FILLED if the next record exceeds the limit but is valid, else the result for ``next_size``."""
        try:
            if size > self._max_record_size:
                self._open()
                end = written if written >= 0 else os.fstat(self._descriptor).st_size
                if is_large_record(self._descriptor, self.position, end):
                    return _FILLED
        except OSError as error:
            return self._failed_read(error)
        self.reason = f"invalid message read size ({size})"
        return _DAMAGED

    def take(self, size: int) -> QueuedMessage:
        """Remove and return the message that ``next_size`` has found."""
        start = self._offset + 4
        message = message_at(self._buffer, start, start + size)
        self._offset = start + size
        self.position += 4 + size
        return message

    def timestamp(self) -> int:
        """Return the timestamp of the message that ``next_size`` has found."""
        return byteops.int64_at(self._buffer, self._offset + 4)

    def timestamp_in_memory(self) -> int:
        """Return the timestamp of the next message if it was read already, or -1."""
        return byteops.int64_at(self._buffer, self._offset + 4) if self._limit - self._offset >= 12 else -1

    def _fill(self, needed: int, written: int) -> int:
        """Read at least ``needed`` verified bytes into the buffer; returns _FILLED, or the result for ``next_size``."""
        try:
            data = self._read_ahead(needed, written)
            usable = self._count_usable(data)
            following = self.next_known() if usable < needed else -1
            if following > self.position + len(data):
                data = self._read_ahead(following - self.position, written)
                usable = self._count_usable(data)
        except OSError as error:
            return self._failed_read(error)
        if usable >= needed:
            self._buffer, self._offset, self._limit = data, 0, usable
            return _FILLED
        if self.position < following <= self.position + len(data):
            self.reason = "checksum mismatch"
            return _DAMAGED
        self.reason = "unexpected EOF"
        return _UNREADABLE if data else _AT_END

    def _failed_read(self, error: OSError) -> int:
        if error.errno in _TRANSIENT:
            self._log.warn("DISKQUEUE(%s) cannot read now, will try again - %s", self._name, error)
            return _NOT_NOW
        self.reason = str(error)
        return _UNREADABLE

    def _open(self) -> None:
        if self._descriptor < 0:
            self._descriptor = open_file(DATA, self._path, os.O_RDONLY)
            self._sidecar = Sidecar(self._path)

    def _read_ahead(self, needed: int, written: int) -> bytes:
        self._open()
        want = max(needed, _READ_SIZE)
        if written >= 0:
            want = min(want, written - self.position)
        return read_at(DATA, self._descriptor, want, self.position)

    # Checksums

    def _count_usable(self, data: bytes) -> int:
        """Return how many bytes of ``data`` are records that match their checksums or have none."""
        sidecar = self._sidecar
        assert sidecar is not None
        usable = 0
        while usable < len(data):
            position = self.position + usable
            if not self._seek_sidecar(position):
                return len(data)
            if sidecar.start > position:
                return min(len(data), sidecar.start - self.position)
            index = sidecar.entry_at(position)
            if index < 0:
                return min(len(data), sidecar.end - self.position)
            sums, count = sidecar.sums, sidecar.count
            good = checksums.count_good(data, usable, sums, index, count)
            usable += checksums.span(sums, index, index + good)
            sidecar.skip(good, self.position + usable)
            if index + good < count:
                break
        return usable

    def _seek_sidecar(self, position: int) -> bool:
        """Find the checksums from ``position`` on; False if there are none or they cannot be read."""
        assert self._sidecar is not None
        try:
            return self._sidecar.seek(position)
        except OSError as error:
            if error.errno in _TRANSIENT:
                raise
            self._log.error("DISKQUEUE(%s) cannot read checksums - %s", self._name, error)
            self._sidecar.give_up()
            return False

    def next_known(self) -> int:
        """Return the position of the next record with a checksum, after the current one; -1 if there is none."""
        if self._sidecar is None or not self._seek_sidecar(self.position):
            return -1
        return self._sidecar.next_after(self.position)
