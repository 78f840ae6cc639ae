"""Slices of segments: how a batch is divided into tasks, and how an executor reads its part.

An executor gets only the location and the slices; they contain everything it needs.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from nsqx.errors import ConfigError, NSQError
from nsqx.spark.rows import read_table, to_spark_batch
from nsqx.spark.storage import STATE_NAME, Storage, open_storage

_log = logging.getLogger("nsqx.spark")

# Names of older versions lack the last two parts.
_SEGMENT = re.compile(r"segment-(\d{20})-(\d+)-(\d+)(?:-(\d+)-([0-9a-f]{8}))?\.arrow")
# Small segments are merged into batches of about this many rows for Spark.
_BATCH_ROWS = 10_000


class DataLost(NSQError):
    """Rows that a query needs are missing or damaged in the segment directory."""


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of messages; ``first`` is the number of rows received before it.

    ``epoch`` is that of the owner that wrote the file. ``checksum`` is the CRC-32 of the file, or -1 if unknown.
    """

    first: int
    rows: int
    value_bytes: int
    epoch: int = 0
    checksum: int = -1

    @classmethod
    def of(cls, name: str) -> Segment | None:
        """Return the segment with this file name, or None if it is not the name of a segment."""
        match = _SEGMENT.fullmatch(name)
        if match is None:
            return None
        first, rows, value_bytes, epoch, checksum = match.groups()
        return cls(int(first), int(rows), int(value_bytes), int(epoch or 0), int(checksum, 16) if checksum else -1)

    @property
    def end(self) -> int:
        """The offset after its last row."""
        return self.first + self.rows

    @property
    def name(self) -> str:
        """The file's name."""
        start = f"segment-{self.first:020d}-{self.rows}-{self.value_bytes}"
        return f"{start}.arrow" if self.checksum < 0 else f"{start}-{self.epoch}-{self.checksum:08x}.arrow"


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one segment file."""

    name: str
    start: int
    rows: int


def cut_slices(segments: Iterable[Segment], start: int, end: int, partition_count: int) -> list[list[Slice]]:
    """Divide the rows from ``start`` to ``end`` of the segments into about equal parts."""
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
    location: str,
    identity: str,
    slices: list[Slice],
    opened: Callable[[str], Storage] = open_storage,
    *,
    fail_on_data_loss: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of slices in Spark's schema, with small segments merged.

    If a segment is missing or damaged, raises DataLost, or skips its rows if ``fail_on_data_loss`` is False.
    """
    storage = opened(location)
    joined: list[pa.RecordBatch] = []
    count = 0
    for each in slices:
        for batch in _read_slice(storage, identity, each, fail_on_data_loss):
            if joined and count + batch.num_rows > _BATCH_ROWS:
                yield _join(joined)
                joined, count = [], 0
            joined.append(batch)
            count += batch.num_rows
    if joined:
        yield _join(joined)


def _read_slice(storage: Storage, identity: str, part: Slice, fail_on_data_loss: bool) -> list[pa.RecordBatch]:
    try:
        table = read_segment(storage, part.name).slice(part.start, part.rows)
        return [to_spark_batch(batch) for batch in table.to_batches()]
    except FileNotFoundError:
        error = _missing_error(storage, part, identity)
    except DataLost as damage:
        error = damage
    if fail_on_data_loss or not isinstance(error, DataLost):
        raise error
    _log.warning("%s; its rows are skipped", error)
    return []


def read_segment(storage: Storage, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a segment, or some columns; raises FileNotFoundError, or DataLost if it is damaged."""
    segment = Segment.of(name)
    try:
        with storage.open(name) as stream:
            content = stream.read_buffer()
            if segment is not None and segment.checksum >= 0 and zlib.crc32(content) != segment.checksum:
                raise pa.ArrowInvalid("wrong checksum")
            return read_table(pa.BufferReader(content), columns)
    except pa.ArrowInvalid as error:
        raise DataLost(
            f"nsq: {name} in segmentDir {storage.location} is damaged ({error}). Restore it, or set failOnDataLoss to"
            " false to continue without its rows"
        ) from None


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _missing_error(storage: Storage, missing: Slice, identity: str) -> NSQError:
    try:
        is_same = json.loads(storage.read(STATE_NAME))["identity"] == identity
    except (OSError, ValueError, KeyError):
        is_same = False
    if is_same:
        return DataLost(
            f"nsq: {missing.name} is missing in segmentDir {storage.location}: it was removed by hand. Restore it, or"
            " set failOnDataLoss to false to continue without its rows"
        )
    return ConfigError(
        f"nsq: this executor cannot read segmentDir {storage.location}: use storage that all machines can read, such as"
        " hdfs://, s3:// or a directory mounted on every machine"
    )
