"""The segment directory: stores received messages on disk until Spark has committed them.

Owns these files:

    lock, owner/                      the lock, held by the receiving process
    state.json, state.latest          the directory's identity and channel, the committed offset and the newest segment;
                                      on remote storage the state is part of the lease, and state.json contains only
                                      identity and channel
    segment-FIRST-ROWS-BYTES-EPOCH-CHECKSUM.arrow
                                      messages; FIRST is the number of rows received before this segment

``identities`` keeps the identities of removed rows. An offset is a number of rows. The names of the segments are the
manifest: each segment starts where the one before it ends, and the state names the newest, so a missing segment is
detected. If the lock is a lease, a segment is valid only if the state has named it as the newest, which proves that its
writer owned the directory; ``spans`` records in which epoch each row was received. Knows nothing of NSQ's connections
nor of Spark's interfaces.
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

# Version 1 had no checksums and no epochs; its directories are upgraded.
_VERSION = 2
# Segments up to this size are encoded in a reused buffer, because the first write to fresh memory is slow.
_KEPT_ROOM_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """The durable state of a segment directory."""

    identity: str
    channel: str
    committed: int = 0
    # The limit of messages in flight when the directory was last used.
    max_in_flight: int = 0
    # True if the last run ended with every FIN confirmed.
    is_clean: bool = True
    # The name of the newest segment.
    newest: str = ""
    # Pairs of an epoch and the first row received in it, in order.
    spans: tuple[tuple[int, int], ...] = ((0, 0),)
    # The file of each note, by the note's name.
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def received(self) -> int:
        """The offset after the newest segment, or 0."""
        newest = Segment.of(self.newest)
        return newest.end if newest is not None else 0

    def counts(self, segment: Segment) -> bool:
        """Return True if the process that wrote the segment owned the directory when it did."""
        start, end = -1, -1
        for epoch, first in self.spans:
            if start >= 0:
                end = first
                break
            if epoch == segment.epoch:
                start = first
        return 0 <= start <= segment.first and (end < 0 or segment.first < end)

    def spans_with(self, epoch: int, row: int, oldest: int) -> tuple[tuple[int, int], ...]:
        """Return the spans with ``epoch`` starting at ``row``, without spans that end before ``oldest``."""
        spans = [*(span for span in self.spans if span[0] != epoch), (epoch, row)] if epoch else list(self.spans)
        while len(spans) > 1 and spans[1][1] <= oldest:
            spans.pop(0)
        return tuple(spans)


class SegmentDirectory:
    """The segments of one query.

    Three threads may use it at the same time: the receiver's pool thread (``append`` and pins), its event loop
    (``buffered``, ``is_lost`` and ``verify``) and the reader's thread (everything else).
    """

    def __init__(self, storage: Storage, window_rows: int, lock: Lock) -> None:
        self.storage = storage
        self._window_rows = window_rows
        self._lock = lock
        self._is_open = True
        self._guard = threading.Lock()
        self._state_guard = threading.Lock()
        # In order.
        self._segments: list[Segment] = []
        # Ranges of rows that are neither committed nor in a segment.
        self._gaps: list[tuple[int, int]] = []
        # True once the gaps were logged.
        self._has_warned = False
        self._kept_bytes = 0
        self._room = bytearray()
        self.identities = IdentityFiles(storage, lock.epoch, lock.verify)
        self.state = DirectoryState("", "")

    # Opening and closing

    @classmethod
    def open(
        cls, location: str, *, channel: str, max_in_flight: int, window_rows: int, lock_wait_s: float
    ) -> SegmentDirectory:
        """Create the directory if it is missing, lock it and load it.

        Raises ConfigError if another process holds it or it belongs to another channel.
        """
        storage = open_storage(location)
        storage.create()
        return cls.load(storage, storage.lock(lock_wait_s), channel, max_in_flight, window_rows)

    @staticmethod
    def exists(location: str) -> bool:
        """Return True if a query has used this directory."""
        try:
            return bool(open_storage(location).names())
        except OSError:
            return False

    @classmethod
    def load(cls, storage: Storage, lock: Lock, channel: str, max_in_flight: int, window_rows: int) -> SegmentDirectory:
        """Load a locked directory; releases the lock and raises ConfigError if it belongs to another channel."""
        directory = cls(storage, window_rows, lock)
        try:
            directory._load(channel, max_in_flight)
        except BaseException:
            lock.release()
            raise
        return directory

    def close(self, *, is_clean: bool) -> None:
        """Release the directory; ``is_clean`` is True if nsqd confirmed the FIN of every stored message."""
        if not self._is_open:
            return
        self._is_open = False
        if is_clean:
            with contextlib.suppress(LeaseLost):
                self._change(is_clean=True)
        self._lock.release()

    def begin(self, max_in_flight: int) -> None:
        """Mark the directory as unclean before the first message is received."""
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
                    " set segmentDir to an empty directory"
                )
            state = DirectoryState(uuid.uuid4().hex[:12], channel, max_in_flight=max_in_flight)
        if state.channel != channel:
            raise ConfigError(
                f"nsq: segmentDir {self.storage.location} belongs to channel {state.channel}, not {channel}:"
                " give this query its own segmentDir"
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
        self._write_identity()
        window_start = received - self._window_rows
        trimmed = max(min(state.committed, self.identities.end), min(state.committed, window_start))
        self._segments = [segment for segment in counted if segment.end > trimmed]
        self._kept_bytes = sum(segment.value_bytes for segment in self._segments)
        self._gaps = self._find_gaps(state.committed, state.received)
        # Leftovers: segments that an owner was about to delete, or wrote after it had lost its lease.
        for segment in found:
            if segment.end <= trimmed or (segment.epoch and segment not in counted):
                self.storage.delete(segment.name)

    def _read_state(self, names: list[str]) -> DirectoryState | None:
        record = dict(self._lock.load())
        if not record and STATE_NAME in names:
            # Version 1 kept the whole state in this file, on remote storage too.
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
            f"nsq: {STATE_NAME} in segmentDir {self.storage.location} has version {version}, expected {_VERSION}: use"
            " the nsqx that wrote it, or set segmentDir to an empty directory"
        )

    def _write_identity(self) -> None:
        """Write identity and channel to state.json on remote storage.

        Executors compare the identity, and older versions of nsqx reject the file.
        """
        if self._lock.epoch:
            identity = {"version": _VERSION, "identity": self.state.identity, "channel": self.state.channel}
            content = json.dumps(identity).encode()
            self.storage.write(STATE_NAME, lambda stream: stream.write(content))

    def _change(self, *, is_lazy: bool = False, **fields: Any) -> None:
        """Change the state, durably unless ``is_lazy``; raises LeaseLost."""
        with self._state_guard:
            state = replace(self.state, **fields)
            record = {name: getattr(state, name) for name in DirectoryState.__slots__}
            (self._lock.advance if is_lazy else self._lock.save)({"version": _VERSION, **record})
            self.state = state

    # Content

    @property
    def next_row(self) -> int:
        """The number of rows received since the directory was created."""
        return max(self.state.received, self.state.committed, self.identities.end)

    @property
    def first_row(self) -> int:
        """The first row that can still be read."""
        with self._guard:
            return self._segments[0].first if self._segments else self.state.committed

    def buffered(self) -> tuple[int, int]:
        """Return the number of rows that Spark has not committed, and the bytes in all segments."""
        return self.next_row - self.state.committed, self._kept_bytes

    def append(self, parts: Iterable[Rows]) -> int:
        """Make rows durable and return the offset after them; raises LeaseLost if another process has taken over."""
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
        """Return the content of a segment file; the buffer is valid until the next call."""
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
        """Return the offset to read from; raises DataLost if rows after ``start`` are missing."""
        first, end = self.first_row, self.next_row
        if first <= start <= end:
            self._check_gaps(start, end, fail_on_data_loss=fail_on_data_loss)
            return start
        text = (
            f"nsq: the checkpoint continues at row {start}, but segmentDir {self.storage.location} has rows {first} to"
            f" {end}: it was emptied or replaced. Restore it, start with a new checkpoint, or set failOnDataLoss to"
            " false to continue with the rows that exist"
        )
        if fail_on_data_loss:
            raise DataLost(text)
        _log.warning("%s", text)
        return min(max(start, first), end)

    def _find_gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of rows from ``start`` to ``end`` that are in no segment."""
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
            " segmentDir, or set failOnDataLoss to false to continue without these rows"
        )
        if fail_on_data_loss:
            raise DataLost(text)
        self._has_warned = True
        _log.warning("%s", text)

    def _missing_name(self, first: int, last: int) -> str:
        """Return the name of the missing segment, as far as it is known."""
        if last == self.state.received:
            return self.state.newest
        return "the first segment" if first == self.state.committed else f"segment-{first:020d}-*"

    def end_within(self, start: int, available: int, max_rows: int, max_bytes: int) -> int:
        """Return the end of a batch from ``start``, at most ``available`` and within the limits; 0 means no limit."""
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
                # At least one row, so that a message larger than the limit does not stop the query.
                return max(first + fitting, start + 1)
        return end

    def _rows_within(self, segment: Segment, first: int, last: int, room: int) -> tuple[int, int]:
        try:
            table = read_segment(self.storage, segment.name, ["value"])
        except (FileNotFoundError, DataLost):
            # The task that reads the segment reports the error.
            return last - first, 0
        values = table.column(0).slice(first - segment.first, last - first)
        ends = pc.cumulative_sum(pc.binary_length(values).cast(pa.int64())).to_pylist()
        fitting = bisect.bisect_right(ends, room)
        return fitting, ends[fitting - 1] if fitting else 0

    def slices(
        self, start: int, end: int, partition_count: int, *, fail_on_data_loss: bool = True
    ) -> list[list[Slice]]:
        """Divide the rows from ``start`` to ``end`` into about equal parts; raises DataLost if some are missing."""
        self._check_gaps(start, end, fail_on_data_loss=fail_on_data_loss)
        return cut_slices(self._covering(start, end), start, end, partition_count)

    def _covering(self, start: int, end: int) -> list[Segment]:
        with self._guard:
            begin = bisect.bisect_right(self._segments, start, key=lambda segment: segment.end)
            until = bisect.bisect_left(self._segments, end, key=lambda segment: segment.first)
            return self._segments[begin:until]

    # Trimming

    def commit(self, offset: int) -> None:
        """Record that Spark has processed all rows before ``offset``, and remove them; their identities are kept."""
        if offset <= self.state.committed:
            return
        self._change(committed=offset)
        self.trim(offset)

    def trim(self, offset: int) -> None:
        """Remove segments that end at or before ``offset``."""
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
        """Return the identities of a segment; nothing if it is missing or damaged."""
        try:
            with self.storage.open(segment.name) as stream:
                return [read_identities(stream)]
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            _log.warning("cannot read the identities in %s: %s", segment.name, error)
            return []

    def known_identities(self) -> Iterator[Identities]:
        """Yield the identities of the rows in the window, the oldest first."""
        oldest = self.next_row - self._window_rows
        yield from self.identities.kept(oldest)
        with self._guard:
            segments = [segment for segment in self._segments if segment.end > oldest]
        for segment in segments:
            for table in self._read_identities(segment):
                yield from identities_of(table, segment.first)

    # Notes: small JSON files of other modules

    def read_note(self, name: str) -> Any:
        """Return the content of a note, or None if it does not exist."""
        try:
            return json.loads(self.storage.read(self.state.notes.get(name, name)))
        except FileNotFoundError:
            return None

    def write_note(self, name: str, content: Any) -> None:
        """Replace the content of a note durably; raises LeaseLost."""
        text = json.dumps(content).encode()
        former = self.state.notes.get(name, name)
        file_name = f"{uuid.uuid4().hex[:12]}-{name}"
        self.storage.write(file_name, lambda stream: stream.write(text))
        self._change(notes={**self.state.notes, name: file_name})
        self.storage.delete(former)
