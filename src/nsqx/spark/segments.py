"""The segment directory: what was received, on disk, until Spark has committed it.

Owns these files:

    lock, owner/                      held by the process that receives
    state.json, state.latest          whose directory it is, how far Spark has committed, and the newest segment; on
                                      remote storage this is kept with the lease, and state.json says only whose it is
    segment-FIRST-ROWS-BYTES-EPOCH-CHECKSUM.arrow
                                      messages; FIRST counts the rows ever received before it

and lets ``identities`` keep what must be known of rows that were removed. An offset is a count of rows. The names of
the segments are the manifest: each begins where the one before it ends, and the state names the newest, so a missing
one is noticed. Where the lock is a lease, a segment counts only if the state has named it as the newest, and so only if
its writer owned the directory then; ``spans`` tells the epoch in which each row was received. Knows nothing of NSQ's
connections nor of Spark's interfaces.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import logging
import threading
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nsqx.errors import ConfigError
from nsqx.spark.identities import Identities, IdentityFiles, identities_of, read_identities
from nsqx.spark.lease import LeaseLost
from nsqx.spark.rows import Rows, to_file_batches, write_batches
from nsqx.spark.slices import DataLost, Segment, Slice, cut_slices, read_segment
from nsqx.spark.storage import STATE_NAME, Lock, Storage, open_storage

_log = logging.getLogger("nsqx.spark")

# 1 had no checksums and no epochs; its directories are taken over.
_VERSION = 2
# Segments up to this size are made in memory that is used again, for memory that was never touched is slow.
_KEPT_ROOM_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """What must outlive the process."""

    identity: str
    channel: str
    committed: int = 0
    # How many messages may have been in flight when the directory was last used, and whether all were accounted for.
    max_in_flight: int = 0
    is_clean: bool = True
    # The name of the newest segment.
    newest: str = ""
    # Epochs and the first row that was received in each, in order.
    spans: tuple[tuple[int, int], ...] = ((0, 0),)
    # The files in which the latest notes are, by the name of the note.
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def received(self) -> int:
        """The offset after the newest segment, or 0."""
        newest = Segment.of(self.newest)
        return newest.end if newest is not None else 0

    def counts(self, segment: Segment) -> bool:
        """True if the segment was written by the owner of its time."""
        start, end = -1, -1
        for epoch, first in self.spans:
            if start >= 0:
                end = first
                break
            if epoch == segment.epoch:
                start = first
        return 0 <= start <= segment.first and (end < 0 or segment.first < end)

    def spans_with(self, epoch: int, row: int, oldest: int) -> tuple[tuple[int, int], ...]:
        """The spans once rows from ``row`` on are received in ``epoch``, without those of rows before ``oldest``."""
        spans = [*(span for span in self.spans if span[0] != epoch), (epoch, row)] if epoch else list(self.spans)
        while len(spans) > 1 and spans[1][1] <= oldest:
            spans.pop(0)
        return tuple(spans)


class SegmentDirectory:
    """The segments of one query. ``append`` and the rest may be called from different threads."""

    def __init__(self, storage: Storage, window_rows: int, lock: Lock) -> None:
        self.storage = storage
        self._window_rows = window_rows
        self._lock = lock
        self._is_open = True
        self._guard = threading.Lock()
        self._state_guard = threading.Lock()
        # In order.
        self._segments: list[Segment] = []
        # Rows that are neither committed nor in a segment, from and to, and whether they were warned of.
        self._gaps: list[tuple[int, int]] = []
        self._has_warned = False
        self._kept_bytes = 0
        self._room = bytearray()
        self.identities = IdentityFiles(storage, lock.epoch, lock.verify)
        self.state = DirectoryState("", "")

    # Life

    @classmethod
    def open(
        cls, location: str, *, channel: str, max_in_flight: int, window_rows: int, lock_wait_s: float
    ) -> SegmentDirectory:
        """The directory, made if need be and locked; raises ConfigError if it is another's."""
        storage = open_storage(location)
        storage.create()
        return cls.load(storage, storage.lock(lock_wait_s), channel, max_in_flight, window_rows)

    @classmethod
    def load(cls, storage: Storage, lock: Lock, channel: str, max_in_flight: int, window_rows: int) -> SegmentDirectory:
        """The directory that the lock holds; lets go of it and raises ConfigError if it is another's."""
        directory = cls(storage, window_rows, lock)
        try:
            directory._load(channel, max_in_flight)
        except BaseException:
            lock.release()
            raise
        return directory

    def close(self, *, is_clean: bool) -> None:
        """Let go of the directory; ``is_clean`` if nsqd has heard of every message that is in it."""
        if not self._is_open:
            return
        self._is_open = False
        if is_clean:
            with contextlib.suppress(LeaseLost):
                self._change(is_clean=True)
        self._lock.release()

    def begin(self, max_in_flight: int) -> None:
        """Messages are about to come."""
        self._change(max_in_flight=max_in_flight, is_clean=False)

    @property
    def is_lost(self) -> bool:
        """True once another process is known to have taken over the directory."""
        return self._lock.is_lost

    def verify(self) -> None:
        """Raise LeaseLost if another process has taken over the directory."""
        self._lock.verify()

    def _load(self, channel: str, max_in_flight: int) -> None:
        names = self.storage.names()
        found = sorted(segment for segment in map(Segment.of, names) if segment is not None)
        self.identities.load(names)
        state = self._read_state(names)
        if state is None:
            if found:
                raise ConfigError(
                    f"nsq: segmentDir {self.storage.location} has segments but no {STATE_NAME}: restore that file, or"
                    " name an empty directory"
                )
            state = DirectoryState(uuid.uuid4().hex[:12], channel, max_in_flight=max_in_flight)
        if state.channel != channel:
            raise ConfigError(
                f"nsq: segmentDir {self.storage.location} belongs to channel {state.channel}, not {channel}:"
                " give this query a segmentDir of its own"
            )
        counted = [segment for segment in found if state.counts(segment)]
        if self._lock.epoch and state.newest:
            counted = [segment for segment in counted if segment.first < state.received]
        elif counted and counted[-1].end > state.received:
            state = replace(state, newest=counted[-1].name)
        received = max(state.received, state.committed, self.identities.end)
        self.state = state
        oldest = counted[0].first if counted else received
        self._change(spans=state.spans_with(self._lock.epoch, received, oldest))
        self._write_card()
        window_start = received - self._window_rows
        trimmed = max(min(state.committed, self.identities.end), min(state.committed, window_start))
        self._segments = [segment for segment in counted if segment.end > trimmed]
        self._kept_bytes = sum(segment.value_bytes for segment in self._segments)
        self._gaps = self._find_gaps(state.committed, state.received)
        # Left by an owner that was about to delete them, or by one that wrote them when it had lost its lease.
        for segment in found:
            if segment.end <= trimmed or (segment.epoch and segment not in counted):
                self.storage.delete(segment.name)

    def _read_state(self, names: list[str]) -> DirectoryState | None:
        record = dict(self._lock.load())
        if not record and STATE_NAME in names:
            # Remote storage of version 1.
            with contextlib.suppress(ValueError):
                record = dict(json.loads(self.storage.read(STATE_NAME)))
        if not record and STATE_NAME not in names:
            return None
        version = record.pop("version", "unknown")
        try:
            if version in (1, _VERSION) and not (version == _VERSION and "committed" not in record):
                record.pop("serial", None)
                record["spans"] = tuple((epoch, first) for epoch, first in record.get("spans", ((0, 0),)))
                return DirectoryState(**record)
        except (TypeError, ValueError):
            version = "unknown"
        raise ConfigError(
            f"nsq: {STATE_NAME} in segmentDir {self.storage.location} is of version {version}, not {_VERSION}"
        )

    def _write_card(self) -> None:
        """Say on remote storage whose directory this is: executors look there, and older versions refuse it."""
        if self._lock.epoch:
            card = {"version": _VERSION, "identity": self.state.identity, "channel": self.state.channel}
            content = json.dumps(card).encode()
            self.storage.write(STATE_NAME, lambda stream: stream.write(content))

    def _change(self, *, is_lazy: bool = False, **fields: Any) -> None:
        """Change the state, durably unless ``is_lazy``; raises LeaseLost."""
        with self._state_guard:
            state = replace(self.state, **fields)
            record = {name: getattr(state, name) for name in DirectoryState.__slots__}
            (self._lock.advance if is_lazy else self._lock.save)({"version": _VERSION, **record})
            self.state = state

    # What is there

    @property
    def next_row(self) -> int:
        """How many rows were received, ever."""
        return max(self.state.received, self.state.committed, self.identities.end)

    @property
    def first_row(self) -> int:
        """The first row that can still be read."""
        with self._guard:
            return self._segments[0].first if self._segments else self.state.committed

    def buffered(self) -> tuple[int, int]:
        """Rows that Spark has not committed, and bytes in segments that are kept."""
        return self.next_row - self.state.committed, self._kept_bytes

    def append(self, parts: Iterable[Rows]) -> int:
        """Make rows durable; the offset after them. Raises LeaseLost if they do not count."""
        batches = to_file_batches(parts)
        content = self._encode(batches)
        segment = Segment(
            self.next_row,
            sum(batch.num_rows for batch in batches),
            sum(batch.column("value").total_values_length for batch in batches),
            self._lock.epoch,
            zlib.crc32(content),
        )
        self.storage.write(segment.name, lambda stream: stream.write(content))
        self._change(is_lazy=True, newest=segment.name)
        with self._guard:
            self._segments.append(segment)
            self._kept_bytes += segment.value_bytes
        return segment.end

    def _encode(self, batches: list[pa.RecordBatch]) -> pa.Buffer:
        """The content of a segment file, which is valid until the next call."""
        measure = pa.MockOutputStream()
        write_batches(batches, measure)
        size = measure.size()
        room = self._room if size <= len(self._room) else bytearray(size)
        if size <= _KEPT_ROOM_BYTES:
            self._room = room
        content = pa.py_buffer(memoryview(room)[:size])
        with pa.FixedSizeBufferWriter(content) as writer:
            write_batches(batches, writer)
        return content

    # Reading

    def check_start(self, start: int, *, fail_on_data_loss: bool) -> int:
        """The offset to read from; raises DataLost if rows after ``start`` are gone."""
        first, end = self.first_row, self.next_row
        if first <= start <= end:
            self._check_gaps(start, end, fail_on_data_loss=fail_on_data_loss)
            return start
        text = (
            f"nsq: the checkpoint asks for rows from {start}, but segmentDir {self.storage.location} has {first} to"
            f" {end}: it was emptied or replaced. Restore it, start with a new checkpoint, or set failOnDataLoss to"
            " false to go on with what is there"
        )
        if fail_on_data_loss:
            raise DataLost(text)
        _log.warning("%s", text)
        return min(max(start, first), end)

    def _find_gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """The rows from ``start`` to ``end`` that are in no segment."""
        gaps = []
        for segment in self._segments:
            if segment.first > start:
                gaps.append((start, segment.first))
            start = max(start, segment.end)
        return [*gaps, (start, end)] if start < end else gaps

    def _check_gaps(self, start: int, end: int, *, fail_on_data_loss: bool) -> None:
        missing = [(first, last) for first, last in self._gaps if last > start and first < end]
        if not missing or (self._has_warned and not fail_on_data_loss):
            return
        names = [self._missing_name(first, last) for first, last in missing]
        text = (
            f"nsq: rows {', '.join(f'{first} to {last}' for first, last in missing)} are missing in segmentDir"
            f" {self.storage.location}: {', '.join(names)} was removed. Restore it, start with a new checkpoint and"
            " segmentDir, or set failOnDataLoss to false to go on without these rows"
        )
        if fail_on_data_loss:
            raise DataLost(text)
        self._has_warned = True
        _log.warning("%s", text)

    def _missing_name(self, first: int, last: int) -> str:
        """What is known of the names of segments that had these rows."""
        if last == self.state.received:
            return self.state.newest
        return "the first segment" if first == self.state.committed else f"segment-{first:020d}-*"

    def end_within(self, start: int, available: int, max_rows: int, max_bytes: int) -> int:
        """How far a batch from ``start`` goes: not beyond ``available`` and the limits, of which 0 means none."""
        end = min(available, start + max_rows) if max_rows else available
        if not max_bytes:
            return end
        room = max_bytes
        for segment in self._covering(start, end):
            first, last = max(start, segment.first), min(end, segment.end)
            if last - first == segment.rows and segment.value_bytes <= room:
                room -= segment.value_bytes
                continue
            fitting, used = self._rows_within(segment, first, last, room)
            room -= used
            if first + fitting < last:
                # One row at least, or a message bigger than the limit would stop the query.
                return max(first + fitting, start + 1)
        return end

    def _rows_within(self, segment: Segment, first: int, last: int, room: int) -> tuple[int, int]:
        try:
            table = read_segment(self.storage, segment.name, ["value"])
        except (FileNotFoundError, DataLost):
            # The task that reads it says so.
            return last - first, 0
        values = table.column(0).slice(first - segment.first, last - first)
        ends = pc.cumulative_sum(pc.binary_length(values).cast(pa.int64())).to_pylist()
        fitting = bisect.bisect_right(ends, room)
        return fitting, ends[fitting - 1] if fitting else 0

    def slices(
        self, start: int, end: int, partition_count: int, *, fail_on_data_loss: bool = True
    ) -> list[list[Slice]]:
        """The rows from ``start`` to ``end`` in about equal parts; raises DataLost if some are missing."""
        self._check_gaps(start, end, fail_on_data_loss=fail_on_data_loss)
        return cut_slices(self._covering(start, end), start, end, partition_count)

    def _covering(self, start: int, end: int) -> list[Segment]:
        with self._guard:
            begin = bisect.bisect_right(self._segments, start, key=lambda segment: segment.end)
            until = bisect.bisect_left(self._segments, end, key=lambda segment: segment.first)
            return self._segments[begin:until]

    # Trimming

    def commit(self, offset: int) -> None:
        """Rows before ``offset`` are never asked for again: remember their identities, and remove them."""
        if offset <= self.state.committed:
            return
        self._change(committed=offset)
        self.trim(offset)

    def trim(self, offset: int) -> None:
        """Remove segments that lie before ``offset`` altogether."""
        with self._guard:
            count = bisect.bisect_right(self._segments, offset, key=lambda segment: segment.end)
            done = self._segments[:count]
        if not done:
            return
        self._keep_ids(done)
        with self._guard:
            del self._segments[:count]
            self._kept_bytes -= sum(segment.value_bytes for segment in done)
        self._lock.verify()
        for segment in done:
            self.storage.delete(segment.name)

    def _keep_ids(self, trimmed: list[Segment]) -> None:
        oldest = max(0, self.next_row - self._window_rows)
        tables = [table for segment in trimmed if segment.end > oldest for table in self._read_identities(segment)]
        self.identities.keep(tables, trimmed[0].first, trimmed[-1].end, oldest=oldest)

    def _read_identities(self, segment: Segment) -> list[pa.Table]:
        """The identities of a segment; nothing if it is missing or damaged, which the task that reads it reports."""
        try:
            with self.storage.open(segment.name) as stream:
                return [read_identities(stream)]
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            _log.warning("cannot read the identities in %s: %s", segment.name, error)
            return []

    def known_identities(self) -> Iterator[Identities]:
        """Of the rows in the window, the oldest first."""
        oldest = self.next_row - self._window_rows
        yield from self.identities.kept(oldest)
        with self._guard:
            segments = [segment for segment in self._segments if segment.end > oldest]
        for segment in segments:
            for table in self._read_identities(segment):
                yield from identities_of(table, segment.first)

    # Small files of others

    def read_note(self, name: str) -> Any:
        """What ``write_note`` wrote, or None."""
        try:
            return json.loads(self.storage.read(self.state.notes.get(name, name)))
        except FileNotFoundError:
            return None

    def write_note(self, name: str, content: Any) -> None:
        """Keep something small, durably; raises LeaseLost."""
        text = json.dumps(content).encode()
        former = self.state.notes.get(name, name)
        file_name = f"{uuid.uuid4().hex[:12]}-{name}"
        self.storage.write(file_name, lambda stream: stream.write(text))
        self._change(notes={**self.state.notes, name: file_name})
        self.storage.delete(former)
