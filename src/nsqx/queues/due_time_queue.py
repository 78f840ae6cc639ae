"""The due times of the deferred messages in a topic's disk queue, in bounded memory.

Messages leave a disk queue in the order in which they came, and so do their due times. Only the first and the last due
times are in memory. The others are in the topic's due times file (see ``due_times``):

      take <- current, following (in memory) <- file <- newest (in memory) <- add

An entry may never be taken, if its message is damaged. When a message is found in ``following``, all messages of
``current`` have been read, and ``following`` becomes ``current``.
"""

from __future__ import annotations

import os

from nsqx.queues.due_times import (
    ENTRY,
    HEADER,
    MAGIC,
    DueTime,
    decode_entries,
    decode_start,
    due_times_path,
    encode_entries,
    load_due_times,
)
from nsqx.queues.files import (
    DUE,
    cut_file,
    open_file,
    read_at,
    remove_if_there,
    replace_file,
    sync_directory,
    write_all,
)

# The number of entries in a part in memory.
_PART_COUNT = 4096


class _Part:
    """Consecutive entries; ``position`` is where they are in the file, or -1 if they are not in it."""

    __slots__ = ("entries", "latest_due_ns", "position")

    def __init__(self, entries: dict[bytes, DueTime] | None = None, position: int = -1) -> None:
        self.entries = entries or {}
        self.position = position
        self.latest_due_ns = max((due_time.due_ns for due_time in self.entries.values()), default=0)


class DueTimeQueue:
    """First in, first out. Raises OSError only from the constructor, ``clear`` and ``close``."""

    __slots__ = ("_current", "_descriptor", "_directory", "_end", "_following", "_newest", "_path", "_position")

    def __init__(self, directory: str, name: str, max_delay_ns: int) -> None:
        """Open the queue of the topic ``name``; raises ValueError if its file is not a due times file.

        ``max_delay_ns`` is the longest possible delay, as for ``load_due_times``.
        """
        self._directory = directory
        self._path = due_times_path(directory, name)
        self._current = _Part()
        self._following = _Part()
        self._newest: dict[bytes, DueTime] = {}
        self._descriptor = -1
        self._position = self._end = HEADER.size  # the range of the file that is not in memory
        self._open(name, max_delay_ns)

    def _open(self, name: str, max_delay_ns: int) -> None:
        if not os.path.exists(self._path):
            return
        descriptor = open_file(DUE, self._path, os.O_RDWR)
        try:
            header = read_at(DUE, descriptor, HEADER.size, 0)
            if header.startswith(b"{"):
                self._newest = load_due_times(self._directory, name, max_delay_ns)
                cut_file(DUE, descriptor, 0)
            else:
                self._position = decode_start(header)
                whole = (os.fstat(descriptor).st_size - HEADER.size) // ENTRY.size
                self._end = HEADER.size + whole * ENTRY.size
        except (OSError, ValueError):
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def __bool__(self) -> bool:
        """True if some messages may be deferred."""
        return bool(self._current.entries or self._following.entries or self._newest or self._position < self._end)

    def add(self, message_id: bytes, due_time: DueTime) -> None:
        """Store the due time of a message that is put into the disk queue."""
        self._newest[message_id] = due_time
        if len(self._newest) % _PART_COUNT == 0:
            try:
                self._append(encode_entries(self._newest))
            except OSError:
                return  # the entries stay in memory until the file can be written
            self._newest = {}

    def take(self, message_id: bytes, wall_ns: int) -> int:
        """Return how long a message from the disk queue must still wait, in nanoseconds."""
        if not self._following.entries:
            self._following = self._next_part()
        due_time = self._current.entries.pop(message_id, None)
        if due_time is None:
            due_time = self._following.entries.pop(message_id, None)
            if due_time is not None or wall_ns >= self._current.latest_due_ns:
                self._current, self._following = self._following, self._next_part()
        return due_time.delay_ns(wall_ns) if due_time is not None else 0

    def clear(self) -> None:
        """Discard all entries and remove the file."""
        self._current, self._following, self._newest = _Part(), _Part(), {}
        self._position = self._end = HEADER.size
        self._close_file()
        if os.path.exists(self._path):
            remove_if_there(DUE, self._path)
            sync_directory(self._directory)

    def close(self) -> None:
        """Save all entries, or remove the file if there are none."""
        if not self:
            self.clear()
            return
        try:
            in_file = b""
            if self._position < self._end:
                in_file = read_at(DUE, self._descriptor, self._end - self._position, self._position)
            first = encode_entries(self._current.entries | self._following.entries)
            content = b"".join((HEADER.pack(MAGIC, HEADER.size), first, in_file, encode_entries(self._newest)))
            replace_file(self._path, content, DUE)
        finally:
            self._close_file()

    def _next_part(self) -> _Part:
        """Remove and return the next entries: from the file, or the newest ones if the file has been read."""
        if self._position >= self._end:
            newest, self._newest = self._newest, {}
            return _Part(newest)
        position = self._position
        size = min(self._end - position, _PART_COUNT * ENTRY.size)
        self._position += size
        try:
            part = _Part(decode_entries(read_at(DUE, self._descriptor, size, position)), position)
            self._write_start(position)
        except OSError:
            return _Part()  # without their due times, messages are delivered at once
        return part

    def _append(self, data: bytes) -> None:
        if self._descriptor < 0:
            self._descriptor = open_file(DUE, self._path, os.O_RDWR | os.O_CREAT)
        self._write_start(self._position)
        write_all(DUE, self._descriptor, data, self._end)
        self._end += len(data)

    def _write_start(self, position: int) -> None:
        """Save the start: the position of the oldest entries that were read but not taken, or else ``position``."""
        positions = [part.position for part in (self._current, self._following) if part.entries and part.position >= 0]
        write_all(DUE, self._descriptor, HEADER.pack(MAGIC, min([*positions, position])), 0)

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
