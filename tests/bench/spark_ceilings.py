"""A Python source and sink that do almost no work. They show the highest rates that Spark reaches with Python.

The source generates batches with the columns of ``nsq``; the writer reads the values and discards them. Options:
``rows`` in total, ``bytes`` of a value, ``batch`` for the rows of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nsqx.spark.rows import SPARK_SCHEMA
from nsqx.spark.worker_gc import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_ROWS = 10_000
COLUMNS = "value BINARY, topic STRING, id STRING, timestamp TIMESTAMP, attempts INT, node STRING"
PARTITIONS = 2


def json_body(number: int, size: int) -> bytes:
    """Return a JSON document of about ``size`` bytes with one of ten keys."""
    head = b'{"key": "k%d", "amount": %d, "note": "' % (number % 10, number % 1000)
    return head + b"x" * (size - len(head) - 2) + b'"}'


def _rows(count: int, size: int) -> Iterator[pa.RecordBatch]:
    import pyarrow

    spare_collections()
    bodies = [json_body(number, size) for number in range(ARROW_ROWS)]
    columns = [bodies, ["t"] * ARROW_ROWS, ["0" * 16] * ARROW_ROWS, [0] * ARROW_ROWS, [1] * ARROW_ROWS]
    columns.append(["127.0.0.1:4150"] * ARROW_ROWS)
    arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, SPARK_SCHEMA, strict=True)]
    batch = pyarrow.RecordBatch.from_arrays(arrays, schema=SPARK_SCHEMA)
    while count > 0:
        yield batch.slice(0, min(count, ARROW_ROWS))
        count -= ARROW_ROWS


def _partitions(rows: int) -> list[InputPartition]:
    return [InputPartition(rows // PARTITIONS) for _ in range(PARTITIONS)]


class _Reader(DataSourceReader):
    def __init__(self, rows: int, size: int) -> None:
        self._rows = rows
        self._size = size

    def partitions(self) -> list[InputPartition]:
        return _partitions(self._rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition.value, self._size)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int, size: int, batch: int) -> None:
        self._rows = rows
        self._size = size
        self._batch = batch

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def prepareForTriggerAvailableNow(self) -> None: ...  # noqa: N802

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._batch)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"rows": min(self._rows, start["rows"] + self._batch)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return _partitions(end["rows"] - start["rows"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition.value, self._size)

    def commit(self, end: dict[str, int]) -> None: ...


def _discard(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for batch in batches:
        batch.column("value").to_pylist()
    return WriterCommitMessage()


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _discard(iterator)


class _StreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _discard(iterator)


class CeilingSource(DataSource):
    """The data source with the format name ``ceiling``."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(int(self.options["rows"]), int(self.options["bytes"]))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return _StreamReader(int(self.options["rows"]), int(self.options["bytes"]), int(self.options["batch"]))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return _StreamWriter()
