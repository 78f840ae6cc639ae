"""Slices of segments: how a batch is parted into tasks, and how an executor reads its part.

An executor has nothing but the location and the slices; everything it needs is in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from nsqx.errors import ConfigError, NSQError
from nsqx.spark.rows import read_table, to_spark_batch
from nsqx.spark.storage import Storage, open_storage

STATE_NAME = "state.json"
# Small segments are joined to batches of about this many rows on their way to Spark.
_BATCH_ROWS = 10_000


class DataLost(NSQError):
    """Rows that a query asks for are no longer in the segment directory."""


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of messages; ``first`` counts the rows ever received before it."""

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


def cut_slices(segments: Iterable[Segment], start: int, end: int, partition_count: int) -> list[list[Slice]]:
    """The rows from ``start`` to ``end``, which the segments cover, in about equal parts."""
    share = max(1, -(-(end - start) // partition_count))
    parts: list[list[Slice]] = []
    for segment in segments:
        row = max(start, segment.first)
        while row < min(end, segment.end):
            part_end = start + ((row - start) // share + 1) * share
            until = min(end, segment.end, part_end)
            if not parts or (row - start) % share == 0:
                parts.append([])
            parts[-1].append(Slice(segment.name, row - segment.first, until - row))
            row = until
    return parts


def read_slices(
    location: str, identity: str, slices: list[Slice], opened: Callable[[str], Storage] = open_storage
) -> Iterator[pa.RecordBatch]:
    """The rows of slices as Spark wants them, small segments joined."""
    storage = opened(location)
    joined: list[pa.RecordBatch] = []
    count = 0
    for each in slices:
        for batch in _read_slice(storage, identity, each):
            if joined and count + batch.num_rows > _BATCH_ROWS:
                yield _join(joined)
                joined, count = [], 0
            joined.append(batch)
            count += batch.num_rows
    if joined:
        yield _join(joined)


def _read_slice(storage: Storage, identity: str, part: Slice) -> list[pa.RecordBatch]:
    try:
        with storage.open(part.name) as stream:
            table = read_table(stream).slice(part.start, part.rows)
            return [to_spark_batch(batch) for batch in table.to_batches()]
    except FileNotFoundError:
        raise _unseen(storage, part, identity) from None


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
