"""The segment directory: what was received, on disk, until Spark has committed it.

Owns these files; the directory listing is the manifest, and a rename adds to it:

    lock                              held by the process that receives
    state.json                        whose directory it is, and how far Spark has committed
    segment-FIRST-ROWS-BYTES.arrow    messages; FIRST counts the rows ever received before it

and lets ``identities`` keep what must be known of rows that were removed. An offset is a count of rows. Knows nothing
of NSQ's connections nor of Spark's interfaces.
"""

from __future__ import annotations

import bisect
import json
import logging
import re
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nsqx.errors import ConfigError
from nsqx.spark.identities import IDENTITY_COLUMNS, Identities, IdentityFiles, identities_of
from nsqx.spark.rows import Rows, read_table, to_file_batches, write_batches
from nsqx.spark.slices import STATE_NAME, DataLost, Segment, Slice, cut_slices
from nsqx.spark.storage import Lock, Storage, open_storage

_log = logging.getLogger("nsqx.spark")

_VERSION = 1
_SEGMENT = re.compile(r"segment-(\d{20})-(\d+)-(\d+)\.arrow")


@dataclass(frozen=True, slots=True)
class State:
    """What must outlive the process."""

    identity: str
    channel: str
    committed: int = 0
    # How many messages may have been in flight when the directory was last used, and whether all were accounted for.
    max_in_flight: int = 0
    is_clean: bool = True


class SegmentDirectory:
    """The segments of one query. ``append`` and the rest may be called from different threads."""

    def __init__(self, storage: Storage, window_rows: int) -> None:
        self.storage = storage
        self._window_rows = window_rows
        self._guard = threading.Lock()
        # In order and without gaps.
        self._segments: list[Segment] = []
        self._kept_bytes = 0
        self.identities = IdentityFiles(storage)
        self._held: Lock | None = None
        self.state = State("", "")

    # Life

    @classmethod
    def open(
        cls, location: str, *, channel: str, max_in_flight: int, window_rows: int, lock_wait_s: float
    ) -> SegmentDirectory:
        """The directory, made if need be and locked; raises ConfigError if it is another's."""
        storage = open_storage(location)
        storage.create()
        lock = storage.lock(lock_wait_s)
        directory = cls(storage, window_rows)
        try:
            directory._load(channel, max_in_flight)
        except BaseException:
            lock.release()
            raise
        directory._held = lock
        return directory

    def close(self, *, is_clean: bool) -> None:
        """Let go of the directory; ``is_clean`` if nsqd has heard of every message that is in it."""
        if self._held is None:
            return
        if is_clean:
            self._save(replace(self.state, is_clean=True))
        self._held.release()
        self._held = None

    def begin(self, max_in_flight: int) -> None:
        """Messages are about to come."""
        self._save(replace(self.state, max_in_flight=max_in_flight, is_clean=False))

    def _load(self, channel: str, max_in_flight: int) -> None:
        names = self.storage.names()
        self._segments = sorted(
            Segment(int(match[1]), int(match[2]), int(match[3])) for match in map(_SEGMENT.fullmatch, names) if match
        )
        self._kept_bytes = sum(segment.value_bytes for segment in self._segments)
        self.identities.load(names)
        if STATE_NAME in names:
            self.state = self._read_state()
            if self.state.channel != channel:
                raise ConfigError(
                    f"nsq: segmentDir {self.storage.location} belongs to channel {self.state.channel}, not {channel}:"
                    " give this query a segmentDir of its own"
                )
        elif self._segments:
            raise ConfigError(
                f"nsq: segmentDir {self.storage.location} has segments but no {STATE_NAME}: restore that file, or name"
                " an empty directory"
            )
        else:
            self._save(State(uuid.uuid4().hex[:12], channel, max_in_flight=max_in_flight))

    def _read_state(self) -> State:
        with self.storage.open(STATE_NAME) as stream:
            text = bytes(stream.read())
        try:
            found = json.loads(text)
            version = found.pop("version")
            if version == _VERSION:
                return State(**found)
        except (ValueError, KeyError, TypeError):
            version = "unknown"
        raise ConfigError(f"nsq: {STATE_NAME} in segmentDir {self.storage.location} is of version {version}, not 1")

    def _save(self, state: State) -> None:
        fields = {name: getattr(state, name) for name in State.__slots__}
        text = json.dumps({"version": _VERSION, **fields}).encode()
        self.storage.write(STATE_NAME, lambda stream: stream.write(text))
        self.state = state

    # What is there

    @property
    def next_row(self) -> int:
        """How many rows were received, ever."""
        with self._guard:
            last = self._segments[-1].end if self._segments else 0
        return max(last, self.state.committed, self.identities.end)

    @property
    def first_row(self) -> int:
        """The first row that can still be read."""
        with self._guard:
            return self._segments[0].first if self._segments else self.state.committed

    def buffered(self) -> tuple[int, int]:
        """Rows that Spark has not committed, and bytes in segments that are kept."""
        return self.next_row - self.state.committed, self._kept_bytes

    def append(self, parts: Iterable[Rows]) -> int:
        """Make rows durable; the offset after them."""
        batches = to_file_batches(parts)
        value_bytes = sum(batch.column("value").total_values_length for batch in batches)
        segment = Segment(self.next_row, sum(batch.num_rows for batch in batches), value_bytes)
        self.storage.write(segment.name, lambda stream: write_batches(batches, stream))
        with self._guard:
            self._segments.append(segment)
            self._kept_bytes += segment.value_bytes
        return segment.end

    # Reading

    def check_start(self, start: int, *, fail_on_data_loss: bool) -> int:
        """The offset to read from; raises DataLost if rows after ``start`` are gone."""
        first, end = self.first_row, self.next_row
        if first <= start <= end:
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
        with self.storage.open(segment.name) as stream:
            values = read_table(stream, ["value"]).column(0).slice(first - segment.first, last - first)
            ends = pc.cumulative_sum(pc.binary_length(values).cast(pa.int64())).to_pylist()
        fitting = bisect.bisect_right(ends, room)
        return fitting, ends[fitting - 1] if fitting else 0

    def slices(self, start: int, end: int, partition_count: int) -> list[list[Slice]]:
        """The rows from ``start`` to ``end`` in about equal parts."""
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
        self._save(replace(self.state, committed=offset))
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
        for segment in done:
            self.storage.delete(segment.name)

    def _keep_ids(self, trimmed: list[Segment]) -> None:
        oldest = max(0, self.next_row - self._window_rows)
        tables = [self._read_identities(segment) for segment in trimmed if segment.end > oldest]
        self.identities.keep(tables, trimmed[0].first, trimmed[-1].end, oldest=oldest)

    def _read_identities(self, segment: Segment) -> pa.Table:
        with self.storage.open(segment.name) as stream:
            return read_table(stream, IDENTITY_COLUMNS)

    def known_identities(self) -> Iterator[Identities]:
        """Of the rows in the window, the oldest first."""
        oldest = self.next_row - self._window_rows
        yield from self.identities.kept(oldest)
        with self._guard:
            segments = [segment for segment in self._segments if segment.end > oldest]
        for segment in segments:
            yield from identities_of(self._read_identities(segment))

    # Small files of others

    def read_note(self, name: str) -> Any:
        """What ``write_note`` wrote, or None."""
        try:
            with self.storage.open(name) as stream:
                return json.loads(bytes(stream.read()))
        except FileNotFoundError:
            return None

    def write_note(self, name: str, content: Any) -> None:
        """Keep something small, durably."""
        text = json.dumps(content).encode()
        self.storage.write(name, lambda stream: stream.write(text))
