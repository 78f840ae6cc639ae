# ruff: noqa: N802  (the names are Spark's)

"""The data source of a sink that reads the decoded rows of a shared source.

An offset is ``{"rows": count, "segments": directory}``, as that of a segment directory. The reader removes nothing: the
driver removes the rows that all sinks have read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nsqx.errors import ConfigError
from nsqx.pipeline.arrow import arrow_schema_of
from nsqx.pipeline.decoded_rows import DecodedRows
from nsqx.pipeline.state import PipelineState
from nsqx.spark.options import either, read_integer, read_size
from nsqx.spark.slices import DataLost
from nsqx.spark.source import LONG_POLL_S

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "nsq_decoded"
PLACE_OPTION = "decodedRows"
START_OPTION = "startFile"
LIMITS = ("maxRowsPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger")
"""The options of a source that hold for its decoded rows too."""
_NO_LIMIT = 2**62
_ROWS_PER_TASK = 100_000
_POLL_S, _REMOTE_POLL_S = 0.05, 1.0


@dataclass
class DecodedPartition(InputPartition):
    """The parts that one task reads."""

    location: str
    parts: tuple[str, ...]


class DecodedSource(DataSource):
    """The data source; its options are the directory, the file with the start, and limits of the source."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def streamReader(self, schema: StructType) -> DecodedReader:
        """Return the reader."""
        return DecodedReader(dict(self.options), schema)


class DecodedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and partitions of the query of a sink."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._location = given[PLACE_OPTION.lower()]
        self._start_file = given[START_OPTION.lower()]
        self._max_rows = read_integer(given, either(given, *LIMITS[:2]), _NO_LIMIT, 1)
        self._max_bytes = read_size(given, LIMITS[2], _NO_LIMIT)
        self._schema = schema.jsonValue()
        self._rows: DecodedRows | None = None
        self._identity = ""
        self._is_bounded = False
        self._bound: int | None = None

    # Called by Spark, in the process beside the driver

    def initialOffset(self) -> dict[str, Any]:
        """Return the row at which the sink begins, which was stored before the query started."""
        location, _, name = self._start_file.rpartition("/")
        found = PipelineState(location).read(name)
        if found is None:
            raise ConfigError(f"{self._start_file} is missing: start the pipeline again")
        return {"rows": found["rows"], "segments": found["identity"]}

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the read bounded: it returns only the rows that are there now."""
        self._is_bounded = True

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit on rows, never ReadAllAvailable: Spark uses that for queries with a single batch."""
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` if there are no new rows."""
        rows, first = self._opened(), self._row_of(start)
        rows.forget_before(first)
        if (self._is_bounded or isinstance(limit, ReadAllAvailable)) and self._bound is None:
            self._bound = rows.end
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else _NO_LIMIT
        until_s = time.monotonic() + LONG_POLL_S
        pause_s = _REMOTE_POLL_S if "://" in self._location else _POLL_S
        while True:
            end = self._end_within(first, max_rows)
            if end > first or self._bound is not None or time.monotonic() >= until_s:
                return self._offset(end) if end > first else start
            time.sleep(pause_s)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how many rows were decoded; listeners compute the lag."""
        return self._offset(self._rows.end) if self._rows is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks that read the rows between two offsets."""
        first, last = self._row_of(start), self._row_of(end)
        tasks: list[InputPartition] = []
        names: list[str] = []
        count = 0
        for part in self._opened().parts_after(first):
            if part.first >= last:
                break
            names.append(part.name)
            count += part.rows
            if count >= _ROWS_PER_TASK:
                tasks.append(DecodedPartition(self._location, tuple(names)))
                names, count = [], 0
        if names:
            tasks.append(DecodedPartition(self._location, tuple(names)))
        return tasks

    def commit(self, end: dict[str, Any]) -> None:
        """No-op: the driver finds the position of each sink in its checkpoint."""

    def stop(self) -> None:
        """No-op."""

    # In executors

    def read(self, partition: DecodedPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Return the rows of one partition."""
        schema = arrow_schema_of(self._schema)
        rows = DecodedRows(partition.location)
        for name in partition.parts:
            with rows.open(name) as stream, pa.ipc.open_file(stream) as file:
                for number in range(file.num_record_batches):
                    yield _with_schema(file.get_batch(number), schema)

    # Internal

    def _opened(self) -> DecodedRows:
        if self._rows is None:
            self._rows = DecodedRows(self._location)
            self._identity = self._rows.identity
        return self._rows

    def _end_within(self, first: int, max_rows: int) -> int:
        """Return the end of the parts after a row that are within the limits; at least one part."""
        end, size = first, 0
        for part in self._opened().parts_after(first):
            size += part.size
            is_over = part.end - first > max_rows or size > self._max_bytes
            if (is_over and end > first) or (self._bound is not None and part.end > self._bound):
                break
            end = part.end
        return end

    def _offset(self, rows: int) -> dict[str, Any]:
        return {"rows": rows, "segments": self._identity}

    def _row_of(self, offset: Mapping[str, Any]) -> int:
        self._opened()
        if offset.get("segments") != self._identity:
            raise DataLost(
                f"the checkpoint belongs to other decoded rows than those in {self._location}: give the sink a new"
                " name, to start with new rows"
            )
        return int(offset["rows"])


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of a schema, which may have changed since they were decoded; raises ConfigError."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise ConfigError(
                f"column {field.name} was {column.type} and is {field.type}, and rows that were decoded before the"
                f" change do not fit ({error}): undo the change until this sink has read them"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)
