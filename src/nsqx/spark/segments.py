"""The segment directory: what was received, on disk, until Spark has committed it.

Owns these files; the directory listing is the manifest, and a rename adds to it:

    lock                              held by the process that receives
    state.json                        whose directory it is, and how far Spark has committed
    segment-FIRST-ROWS-BYTES.arrow    messages; FIRST counts the rows ever received before it
    ids-FIRST-END.arrow               the identities of rows that were trimmed
    pins-NUMBER.arrow                 the identities of rows that nsqd may hand out again at any time

An offset is a count of rows. Knows nothing of NSQ's connections nor of Spark's interfaces.
"""

from __future__ import annotations

import bisect
import json
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nsqx.errors import ConfigError, NSQError
from nsqx.spark.rows import (
    IDENTITY_COLUMNS,
    Identities,
    Rows,
    identities_of,
    join_identities,
    read_batch,
    to_file_batch,
    to_identity_batch,
    to_spark_batch,
    write_batch,
)
from nsqx.spark.storage import Lock, Storage, open_storage

_log = logging.getLogger("nsqx.spark")

STATE_NAME = "state.json"
_VERSION = 1
_SEGMENT = re.compile(r"segment-(\d{20})-(\d+)-(\d+)\.arrow")
_IDS = re.compile(r"ids-(\d{20})-(\d{20})\.arrow")
_PINS = re.compile(r"pins-(\d{8})\.arrow")
# A file of identities smaller than this is merged with the next.
_FULL_IDS_ROWS = 10_000
_MAX_PIN_FILES = 16
_MAX_PINS = 1_000_000
# Small segments are joined to batches of about this many rows on their way to Spark.
_BATCH_ROWS = 10_000


class DataLost(NSQError):
    """Rows that a query asks for are no longer in the segment directory."""


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of messages."""

    first: int
    rows: int
    value_bytes: int

    @property
    def end(self) -> int:
        """The offset after its last row."""
        return self.first + self.rows

    @property
    def name(self) -> str:
        """The file's name."""
        return f"segment-{self.first:020d}-{self.rows}-{self.value_bytes}.arrow"


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one segment file."""

    name: str
    start: int
    rows: int


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
        self._ids: list[tuple[int, int]] = []
        self._pins: list[int] = []
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
        self._ids = sorted((int(match[1]), int(match[2])) for match in map(_IDS.fullmatch, names) if match)
        self._pins = sorted(int(match[1]) for match in map(_PINS.fullmatch, names) if match)
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
        ends = [self.state.committed, *(end for _, end in self._ids[-1:])]
        with self._guard:
            return max([*ends, *(segment.end for segment in self._segments[-1:])])

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
        listed = list(parts)
        segment = Segment(self.next_row, sum(map(len, listed)), sum(part.value_bytes for part in listed))
        batch = to_file_batch(listed)
        self.storage.write(segment.name, lambda stream: write_batch(batch, stream))
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
            values = read_batch(stream, ["value"]).column(0).slice(first - segment.first, last - first)
            ends = pc.cumulative_sum(pc.binary_length(values).cast(pa.int64())).to_pylist()
        fitting = bisect.bisect_right(ends, room)
        return fitting, ends[fitting - 1] if fitting else 0

    def slices(self, start: int, end: int, partition_count: int) -> list[list[Slice]]:
        """The rows from ``start`` to ``end`` in about equal parts."""
        share = max(1, -(-(end - start) // partition_count))
        parts: list[list[Slice]] = []
        for segment in self._covering(start, end):
            row = max(start, segment.first)
            while row < min(end, segment.end):
                part_end = start + ((row - start) // share + 1) * share
                until = min(end, segment.end, part_end)
                if not parts or (row - start) % share == 0:
                    parts.append([])
                parts[-1].append(Slice(segment.name, row - segment.first, until - row))
                row = until
        return parts

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
        first, end = trimmed[0].first, trimmed[-1].end
        oldest = max(0, self.next_row - self._window_rows)
        batches = [self._read(segment.name) for segment in trimmed if segment.end > oldest]
        merged: tuple[int, int] | None = None
        if self._ids and self._ids[-1][1] - self._ids[-1][0] < _FULL_IDS_ROWS:
            merged = self._ids[-1]
            batches.insert(0, self._read(_ids_name(merged)))
            first = merged[0]
        if batches:
            batch = join_identities(batches)
            self.storage.write(_ids_name((first, end)), lambda stream: write_batch(batch, stream))
        superseded = [each for each in self._ids if each == merged or each[1] <= oldest]
        self._ids = [each for each in self._ids if each not in superseded]
        if batches:
            self._ids.append((first, end))
        for each in superseded:
            self.storage.delete(_ids_name(each))

    def _read(self, name: str) -> pa.RecordBatch:
        with self.storage.open(name) as stream:
            if name.startswith("segment-"):
                return read_batch(stream, IDENTITY_COLUMNS)
            return read_batch(stream)

    # Identities

    def known_identities(self) -> Iterator[Identities]:
        """Of the rows in the window, the oldest first."""
        oldest = self.next_row - self._window_rows
        for each in self._ids:
            if each[1] > oldest:
                yield from identities_of(self._read(_ids_name(each)))
        with self._guard:
            segments = [segment for segment in self._segments if segment.end > oldest]
        for segment in segments:
            yield from identities_of(self._read(segment.name))

    def pinned_identities(self) -> Iterator[Identities]:
        """Of the rows that were pinned, the oldest first."""
        for number in self._pins:
            yield from identities_of(self._read(_pins_name(number)))

    def pin(self, parts: Iterable[Identities]) -> None:
        """Remember identities for good, durably."""
        listed = [part for part in parts if part.ids]
        if not listed:
            return
        if len(self._pins) >= _MAX_PIN_FILES:
            self._merge_pins()
        self._write_pins(listed)

    def _write_pins(self, parts: list[Identities]) -> None:
        number = self._pins[-1] + 1 if self._pins else 1
        batch = to_identity_batch(parts)
        self.storage.write(_pins_name(number), lambda stream: write_batch(batch, stream))
        self._pins.append(number)

    def _merge_pins(self) -> None:
        parts = list(self.pinned_identities())
        while sum(len(part.ids) for part in parts) > _MAX_PINS:
            parts.pop(0)
        merged = list(self._pins)
        self._write_pins(parts)
        self._pins = self._pins[-1:]
        for number in merged:
            self.storage.delete(_pins_name(number))

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


def read_slices(
    location: str, identity: str, slices: list[Slice], opened: Callable[[str], Storage] = open_storage
) -> Iterator[pa.RecordBatch]:
    """The rows of slices as Spark wants them, small segments joined."""
    storage = opened(location)
    joined: list[pa.RecordBatch] = []
    count = 0
    for each in slices:
        try:
            with storage.open(each.name) as stream:
                batch = to_spark_batch(read_batch(stream).slice(each.start, each.rows))
        except FileNotFoundError:
            raise _unseen(storage, each, identity) from None
        if joined and count + batch.num_rows > _BATCH_ROWS:
            yield _join(joined)
            joined, count = [], 0
        joined.append(batch)
        count += batch.num_rows
    if joined:
        yield _join(joined)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _unseen(storage: Storage, missing: Slice, identity: str) -> NSQError:
    try:
        with storage.open(STATE_NAME) as stream:
            is_same = json.loads(bytes(stream.read()))["identity"] == identity
    except (OSError, ValueError, KeyError):
        is_same = False
    if is_same:
        return DataLost(f"nsq: {missing.name} is gone from segmentDir {storage.location}: it was removed by hand")
    return ConfigError(
        f"nsq: this executor does not see segmentDir {storage.location}: on more than one machine it must be on storage"
        " that all of them see, such as hdfs://, s3:// or a directory mounted everywhere"
    )


def _ids_name(each: tuple[int, int]) -> str:
    return f"ids-{each[0]:020d}-{each[1]:020d}.arrow"


def _pins_name(number: int) -> str:
    return f"pins-{number:08d}.arrow"
