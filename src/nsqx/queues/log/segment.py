# cython: wraparound=True, boundscheck=True
"""Segments: the files that contain the batches of a log, named by their first offset.

      <topic>.topic/00000000000000081920.seg    identity of the log, snapshot of its state, then batches
      <topic>.topic/00000000000000081920.idx    index of a full segment (see ``index``)

A segment ends at the first offset of the next one, even if its file continues. A segment is durable up to that offset
before the next one gets its name. So only the newest segment can have a tail that a crash cut short.

After a failed write or sync, and after damage, nothing is cut or overwritten. The writer continues in a new segment
that begins at the last durable offset.

A segment is removed when all its messages are finished, this is durable in the segments that stay, and it need not be
kept for replay. A snapshot lists the segments before it, so recovery knows which are missing. It is written twice,
because the segment before, in which a copy of most of it could be found, may be gone.
"""

from __future__ import annotations

import os
import re
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nsqx.queues.files import (
    INDEX,
    SEGMENT,
    Buffer,
    make_directory,
    open_file,
    read_at,
    read_file,
    remove_if_there,
    rename,
    replace_file,
    sync_data,
    sync_directory,
    write_buffers,
)
from nsqx.queues.log.batch import (
    HEAD_SIZE,
    IDENTITY,
    SNAPSHOT,
    BatchHead,
    LogBatch,
    find_head,
    new_record,
    read_batch,
    read_head,
    seed_of,
)
from nsqx.queues.log.identity import LogIdentity, decode_identity, load_identity, save_identity
from nsqx.queues.log.index import SegmentIndex, decode_index

if TYPE_CHECKING:
    from nsqx.queues.log.state import LogState

_SUFFIX, _INDEX_SUFFIX, _TEMPORARY_SUFFIX = ".seg", ".idx", ".tmp"
_DIGIT_COUNT = 20
_NAME = re.compile(r"0[0-9]{19}\.seg")  # a larger number is no offset
_READ_SIZE = 256 * 1024
# ``keep_from`` of a writer that keeps no finished segment.
KEEP_NOTHING = (1 << 63) - 1
# Suffixes of directories that are not used any more: those of deleted logs, and those that cannot be identified.
DELETED_SUFFIX, UNKNOWN_SUFFIX = ".deleted", ".unknown"


class LogSegment:
    """One segment of a log."""

    __slots__ = ("_max_time", "first", "index", "path", "seed", "size")

    def __init__(self, directory: str, log_id: int, first: int) -> None:
        self.first = first
        self.size = 0
        self.path = os.path.join(directory, f"{first:0{_DIGIT_COUNT}d}{_SUFFIX}")
        self.seed = seed_of(log_id, first)
        self.index: SegmentIndex | None = None
        self._max_time: int | None = None

    @property
    def max_time(self) -> int | None:
        """The highest timestamp of the messages, or NO_TIME without messages; None before ``load_max_time``."""
        return self.index.max_time if self.index is not None else self._max_time

    def load_max_time(self) -> None:
        """Find the highest timestamp without keeping the index in memory. Raises OSError."""
        if self.max_time is None:
            self._max_time = self._read_index().max_time

    @property
    def index_path(self) -> str:
        """The path of the index."""
        return self.path.removesuffix(_SUFFIX) + _INDEX_SUFFIX

    def loaded_index(self) -> SegmentIndex:
        """Return the index, read from its file or built from the segment. Raises OSError."""
        if self.index is None:
            self.index = self._read_index()
        return self.index

    def _read_index(self) -> SegmentIndex:
        try:
            index = decode_index(read_file(INDEX, self.index_path), self.seed)
        except FileNotFoundError:
            index = None
        if index is None:
            index = SegmentIndex()
            with SegmentReader(self) as reader:
                for part in reader.parts(0):
                    if part.head is not None and part.head.has_offsets:
                        index.add(part.head.first, part.start, part.head.timestamp)
        return index


def list_segments(directory: str, log_id: int) -> list[LogSegment]:
    """Return the segments in a directory, in order. Raises OSError."""
    firsts = sorted(int(name[:_DIGIT_COUNT]) for name in os.listdir(directory) if _NAME.fullmatch(name))
    segments = [LogSegment(directory, log_id, first) for first in firsts]
    for segment in segments:
        segment.size = os.stat(segment.path).st_size
    return segments


def remove_incomplete(directory: str) -> None:
    """Remove files that a crash left incomplete, and indexes of removed segments. Raises OSError."""
    names = os.listdir(directory)
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix == _TEMPORARY_SUFFIX or (suffix == _INDEX_SUFFIX and stem + _SUFFIX not in names):
            remove_if_there(SEGMENT, os.path.join(directory, name))


def identity_in(directory: str) -> LogIdentity | None:
    """Return the identity of a log from one of its segments, for the case that the file ``id`` is damaged."""
    for segment in reversed(list_segments(directory, 0)):
        data = read_file(SEGMENT, segment.path, _READ_SIZE)
        size = int.from_bytes(data[HEAD_SIZE : HEAD_SIZE + 4], "big")
        try:
            identity = decode_identity(data[HEAD_SIZE + 4 : HEAD_SIZE + 4 + size])
        except ValueError:
            continue
        if read_head(data, 0, seed_of(identity.log_id, segment.first)) is not None:
            return identity
    return None


def finished_count(segments: Sequence[LogSegment], state: LogState) -> int:
    """Return how many of the oldest segments are finished according to ``state``, without the newest one."""
    return bisect_left(segments[1:], True, key=lambda segment: not state.is_finished(segment.first))


class SegmentPart(NamedTuple):
    """A batch of a segment, or bytes from ``start`` to ``end`` that are none.

    ``is_cut_short``: these are the last bytes of the file, and may be the first bytes of a batch.
    """

    start: int
    end: int
    head: BatchHead | None
    is_complete: bool
    is_cut_short: bool = False


class SegmentReader:
    """Reads the file of a segment. A context manager. Methods raise OSError."""

    def __init__(self, segment: LogSegment, read_size: int = _READ_SIZE) -> None:
        """Open the file. ``read_size`` bytes are read at once."""
        self._segment = segment
        self._read_size = read_size
        self._descriptor = open_file(SEGMENT, segment.path, os.O_RDONLY)
        self.size = os.fstat(self._descriptor).st_size
        self._data = b""
        self._data_at = 0

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes at ``position``."""
        start = position - self._data_at
        if start < 0 or start + size > len(self._data):
            self._data = self._read(position, max(size, self._read_size))
            self._data_at, start = position, 0
        return self._data[start : start + size]

    def _read(self, position: int, size: int) -> bytes:
        parts = []
        while size > 0:
            part = read_at(SEGMENT, self._descriptor, size, position)
            if not part:
                break
            parts.append(part)
            position += len(part)
            size -= len(part)
        return b"".join(parts)

    def parts(self, position: int) -> Iterator[SegmentPart]:
        """Yield the batches and the other bytes from ``position`` on. The items of the batches are not checked."""
        while position < self.size:
            head = read_head(self.read(position, HEAD_SIZE), 0, self._segment.seed)
            if head is not None and position + head.size <= self.size:
                yield SegmentPart(position, position + head.size, head, True)
                position += head.size
                continue
            found = self._find_head(position + 1)
            end = found if found >= 0 else self.size
            is_start = head is not None or self.size - position < HEAD_SIZE
            yield SegmentPart(position, end, head, False, found < 0 and is_start)
            position = end

    def _find_head(self, position: int) -> int:
        while position < self.size:
            data = self.read(position, _READ_SIZE)
            found = find_head(data, 0, self._segment.seed)
            if found >= 0:
                return position + found
            if len(data) < HEAD_SIZE:
                break
            position += len(data) - HEAD_SIZE + 1
        return -1

    def tail(self, part: SegmentPart) -> bytes:
        """Return the bytes of a batch after its head."""
        assert part.head is not None
        return self.read(part.start, min(part.head.size, self.size - part.start))[HEAD_SIZE:]

    def batch(self, part: SegmentPart) -> LogBatch | None:
        """Return a batch; None if it is damaged or incomplete."""
        if part.head is None or not part.is_complete:
            return None
        return read_batch(part.head, self.tail(part))

    def snapshot(self) -> LogBatch | None:
        """Return the snapshot at the start of the segment; None if it is damaged or missing."""
        for part in self.parts(0):
            if part.head is None or part.head.kind == IDENTITY:
                continue
            snapshot = self.batch(part) if part.head.kind == SNAPSHOT else None
            if snapshot is not None or part.head.kind != SNAPSHOT:
                return snapshot
        return None


class SegmentWriter:
    """Writes the batches of one log. Used by one thread at a time.

    ``state`` is the state after the batches that are durable in segments. ``synced_count`` is their number, and
    ``written_count`` includes those that are only written; ``written_size`` is the size of the latter. Methods raise
    OSError. After that, ``written_count`` is reduced to ``synced_count``, and the same batches must be written again.
    """

    __slots__ = (
        "_descriptor",
        "_has_batches",
        "_has_new_name",
        "_head_size",
        "_position",
        "_synced_position",
        "_temporary",
        "_unremoved",
        "_unsynced",
        "directory",
        "identity",
        "is_new",
        "is_roll_wanted",
        "is_unsynced",
        "keep_from",
        "max_size",
        "must_roll",
        "removable_end",
        "segments",
        "state",
        "synced_count",
        "written_count",
        "written_size",
    )

    def __init__(
        self, directory: str, identity: LogIdentity, state: LogState, segments: list[LogSegment], max_size: int
    ) -> None:
        self.directory = directory
        self.identity = identity
        self.state = state
        self.segments = segments
        self.written_count = 0
        self.written_size = 0
        self.synced_count = 0
        self.must_roll = False  # before the next write
        self.removable_end = 0  # segments from this offset on stay, because a channel may move back to them
        self.is_new = False  # the directory may not exist
        self.is_unsynced = False
        self.max_size = max_size  # of a segment, unless a batch is larger
        self.keep_from = KEEP_NOTHING  # segments with this offset or later ones are kept, finished or not
        self.is_roll_wanted = False  # ``remove_finished`` begins a segment, so that the messages before it can go
        self._descriptor = -1
        self._position = 0
        self._synced_position = 0  # up to which the newest segment is durable
        self._head_size = 0  # of identity and snapshot at the start of the newest segment, if it was begun here
        self._temporary = ""  # the file that replaces the newest segment with the next sync
        self._unsynced: list[LogBatch] = []
        self._has_new_name = False
        self._has_batches = False  # after the snapshot of the newest segment
        self._unremoved: list[LogSegment] = []  # not in ``segments`` any more

    @property
    def position(self) -> int:
        """The size of the newest segment."""
        return self._position

    def continue_at(self, position: int) -> None:
        """Continue at the end of the newest segment, which is intact and durable."""
        self._position = self._synced_position = position
        self._has_batches = True

    def has_room(self, size: int) -> bool:
        """True if a write of so many bytes needs no new segment and no sync."""
        is_open = self._descriptor >= 0 and not (self.must_roll or self._temporary)
        return is_open and self._position + size <= self.max_size

    def write(self, batches: list[LogBatch]) -> None:
        """Append batches."""
        try:
            self._create_directory()
            if self.must_roll or (batches and not self.segments):
                self._roll()
            start = 0
            room = self.max_size - self._position
            for index, batch in enumerate(batches):
                if batch.size > room and (self._has_batches or index > start):
                    self._append(batches[start:index])
                    start = index
                    self.sync()
                    self._roll()
                    room = self.max_size - self._position
                room -= batch.size
            self._append(batches[start:] if start else batches)
            if self._temporary:
                self._sync()
        except OSError:
            self.fail()
            raise

    def _append(self, batches: list[LogBatch]) -> None:
        if not batches:
            return
        if self._descriptor < 0:
            self._descriptor = open_file(SEGMENT, self.segments[-1].path, os.O_RDWR)
        segment = self.segments[-1]
        buffers: list[Buffer] = []
        position = self._position
        index = segment.loaded_index()
        synced_below = self.state.end
        for batch in batches:
            buffers.append(batch.head(segment.seed, synced_below, position - self._synced_position))
            buffers.append(batch.items)
            buffers.append(batch.sums)
            if batch.has_offsets:
                index.add(batch.first, position, batch.timestamp)
            position += batch.size
        self.is_unsynced = True
        write_buffers(SEGMENT, self._descriptor, buffers, self._position)
        self.written_size += position - self._position
        segment.size = self._position = position
        self._has_batches = True
        self._unsynced += batches
        self.written_count += len(batches)

    def sync(self) -> None:
        """Make everything written durable."""
        try:
            self._sync()
        except OSError:
            self.fail()
            raise

    def _sync(self) -> None:
        if not self.is_unsynced:
            return
        if self._descriptor < 0:
            self._descriptor = open_file(SEGMENT, self.segments[-1].path, os.O_RDWR)
        sync_data(SEGMENT, self._descriptor)
        if self._temporary:
            rename(SEGMENT, self._temporary, self.segments[-1].path)
            self._temporary = ""
        if self._has_new_name:
            sync_directory(self.directory)
            self._has_new_name = False
        for batch in self._unsynced:
            self.state.add(batch)
        self._unsynced.clear()
        self._synced_position = self._position
        self.synced_count = self.written_count
        self.is_unsynced = False

    def has_finished(self, state: LogState, idle_size: int) -> bool:
        """True if ``remove_finished`` could remove something if ``state`` was durable."""
        if self._unremoved or self.is_roll_wanted or self._is_idle(state, idle_size):
            return True
        segments = self.segments
        return len(segments) > 1 and segments[1].first <= self.keep_from and state.is_finished(segments[1].first)

    def _removable_count(self, state: LogState) -> int:
        kept_after = bisect_right(self.segments[1:], self.keep_from, key=lambda segment: segment.first)
        return min(kept_after, finished_count(self.segments, state))

    def finished_end(self, state: LogState, idle_size: int) -> int:
        """Return the offset before which ``remove_finished`` could remove segments if ``state`` was durable."""
        if self._is_idle(state, idle_size):
            return state.end
        return self.segments[self._removable_count(state)].first if self.segments else 0

    def _is_idle(self, state: LogState, idle_size: int) -> bool:
        size = self._position - self._head_size  # a new segment would have the snapshot too
        is_large = self._has_batches and size > idle_size
        return is_large and self.keep_from >= state.end and state.is_finished(state.end)

    def remove_finished(self, idle_size: int) -> None:
        """Remove the oldest segments that are finished and need not be kept. Everything must be synced.

        If that is the case for all messages, a newest segment larger than ``idle_size`` is replaced too. Segments from
        ``removable_end`` on stay.
        """
        if not self.segments:
            return
        is_rolled = self.is_roll_wanted and self.state.end > self.segments[-1].first
        if is_rolled or self._is_idle(self.state, idle_size):
            self._begin_segment()
        self.is_roll_wanted = False
        finished_end = self.segments[self._removable_count(self.state)].first
        self.remove_below(min(finished_end, max(self.removable_end, self.segments[0].first)))
        self.state.forget_ranges(self.segments[0].first)
        while self._unremoved:
            segment = self._unremoved[0]
            remove_if_there(INDEX, segment.index_path)
            remove_if_there(SEGMENT, segment.path)
            del self._unremoved[0]

    def remove_below(self, first: int) -> None:
        """Use the segments before ``first`` no more; the next call of ``remove_finished`` removes their files.

        Readers that begin now do not use them. Those that have begun notice that they are gone.
        """
        self._unremoved += [segment for segment in self.segments if segment.first < first]
        self.segments = [segment for segment in self.segments if segment.first >= first]

    def _begin_segment(self) -> None:
        try:
            self._roll(is_incomplete_visible=False)
            self._sync()
        except OSError:
            self.fail()
            raise

    def fail(self) -> None:
        """Give up what is not durable; the next write begins a new segment."""
        self.close()
        self.written_size -= sum(batch.size for batch in self._unsynced)
        self._unsynced.clear()
        self.written_count = self.synced_count
        self.must_roll = True
        self.is_unsynced = False
        self._temporary = ""

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _roll(self, *, is_incomplete_visible: bool = True) -> None:
        """Begin a segment at the end of the state. All that is not durable must be written after it.

        Recovery takes an incomplete segment for a damaged one, unless a commit file names the log.
        """
        if self.segments and not self.must_roll:
            self._save_index(self.segments[-1])
        self.close()
        segment = LogSegment(self.directory, self.identity.log_id, self.state.end)
        segment.index = SegmentIndex()
        is_replaced = bool(self.segments) and self.segments[-1].first == segment.first
        path = segment.path
        if is_replaced or self.must_roll or not is_incomplete_visible:
            # Until the new file is durable, only the old one may have some of the batches.
            path = self._temporary = segment.path + _TEMPORARY_SUFFIX
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self._descriptor = open_file(SEGMENT, path, flags)
        earlier = self.segments[:-1] if is_replaced else self.segments
        snapshot = new_record(SNAPSHOT, self.state.serial, self.state.snapshot(one.first for one in earlier))
        records = (new_record(IDENTITY, 0, self.identity.encode()), snapshot, snapshot)
        buffers = [buffer for record in records for buffer in record.buffers(segment.seed)]
        write_buffers(SEGMENT, self._descriptor, buffers, 0)
        segment.size = self._position = self._head_size = sum(map(len, buffers))
        self.segments[-1:] = [segment] if is_replaced else [*self.segments[-1:], segment]
        self._synced_position = 0
        self.must_roll = self._has_batches = False
        self.is_unsynced = self._has_new_name = True

    def _create_directory(self) -> None:
        if self.is_new:
            self._set_aside_deleted_log()
            make_directory(self.directory)
            save_identity(self.directory, self.identity)
            sync_directory(os.path.dirname(self.directory))
            self.is_new = False

    def _set_aside_deleted_log(self) -> None:
        """Rename the directory of a deleted log of the same topic. Segments of an unknown log are kept too."""
        if not os.path.isdir(self.directory):
            return
        try:
            log_id = load_identity(self.directory).log_id
        except (FileNotFoundError, ValueError):
            log_id = self.identity.log_id
            if list_segments(self.directory, 0) and identity_in(self.directory) != self.identity:
                rename(SEGMENT, self.directory, f"{self.directory}.{secrets.randbits(64):x}{UNKNOWN_SUFFIX}")
        if log_id != self.identity.log_id:
            rename(SEGMENT, self.directory, f"{self.directory}.{log_id:x}{DELETED_SUFFIX}")

    def _save_index(self, segment: LogSegment) -> None:
        try:
            replace_file(segment.index_path, segment.loaded_index().encode(segment.seed), INDEX, is_durable=False)
        except OSError:
            pass  # it is built again when it is needed
