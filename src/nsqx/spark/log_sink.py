# ruff: noqa: N803  (the names are Spark's)

"""The exactly-once sink: tasks stage the rows of a batch, and the driver commits the batch with its number.

A repeated batch may have its rows in other tasks and in another order. So the batch is the unit: nsqd stores all its
rows with its number, or nothing, and does not store a number twice. The number of a micro-batch is Spark's, and the
query is known by its id, which is in the checkpoint. A batch write is a batch of its own, unless the options txnAppId
and txnVersion name it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nsqx.errors import ConfigError
from nsqx.spark.ledger_client import BatchId, LedgerClient, StagedName
from nsqx.spark.sink import SinkColumns, row_groups
from nsqx.spark.worker_gc import spare_collections
from nsqx.wire.encode import join_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqx.spark.options import OnceOptions

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_GROUP = Struct(">qI")
# The messages of a group take about this size, unless one is larger, so that groups fill a request.
_GROUP_BYTES = 256 * 1024


@dataclass
class StagedRows(WriterCommitMessage):
    """What one task has staged."""

    query: str
    batch: int
    attempt: str
    parts: list[str]
    count: int


class OnceStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once."""

    def __init__(self, options: OnceOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one task."""
        context = _task()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise ConfigError("nsq: Spark does not say which query and batch a task writes for")
        return stage_rows(self._options, self._columns, BatchId(query, int(batch)), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Store the rows of all tasks, unless the batch is stored already."""
        commit_rows(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """No-op: the parts are removed with the next commit, or after a day."""


class OnceBatchWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame wholly or not at all, and once if the write has a name."""

    def __init__(self, options: OnceOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        if options.app_id:
            self._batch = BatchId(options.app_id, options.version)
        else:
            self._batch = BatchId(f"write-{secrets.token_hex(16)}", secrets.randbits(31))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one task."""
        return stage_rows(self._options, self._columns, self._batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Store the rows of all tasks, unless the batch is stored already."""
        commit_rows(self._options, messages, self._batch.number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """No-op: the parts are removed after a day."""


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError("nsq: rows are written outside a task of Spark")
    return context


def stage_rows(
    options: OnceOptions, columns: SinkColumns, batch: BatchId, batches: Iterable[pa.RecordBatch]
) -> StagedRows:
    """Stage the rows of one task; raises ClientError or ConfigError."""
    spare_collections()
    context = _task()
    staged = StagedRows(batch.query, batch.number, str(context.taskAttemptId()), [], 0)
    asyncio.run(_stage(options, columns, batch, batches, staged, context.partitionId()))
    return staged


async def _stage(
    options: OnceOptions,
    columns: SinkColumns,
    batch: BatchId,
    batches: Iterable[pa.RecordBatch],
    staged: StagedRows,
    partition: int,
) -> None:
    """Stage pieces of the rows. While one is sent, the next one is encoded."""
    client = LedgerClient(options)
    sending: asyncio.Task[bool] | None = None
    for piece, count in _pieces(options, columns, batches):
        if sending is not None and not await sending:
            return  # the batch is stored already
        name = StagedName(f"{partition}-{len(staged.parts)}", staged.attempt)
        sending = asyncio.create_task(client.stage(batch, name, piece))
        staged.parts.append(name.part)
        staged.count += count
        await asyncio.sleep(0)  # so that the request begins
    if sending is not None:
        await sending


def _pieces(
    options: OnceOptions, columns: SinkColumns, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[bytes, int]]:
    """Yield the bodies of requests, and the number of rows in each."""
    piece: list[bytes] = []
    size = count = 0
    for batch in batches:
        for topic, bodies, delay_ms in row_groups(options.topic, columns, batch, _GROUP_BYTES):
            group = encode_group(topic, bodies, delay_ms)
            if piece and size + len(group) > options.request_bytes:
                yield b"".join(piece), count
                piece, size, count = [], 0, 0
            piece.append(group)
            size += len(group)
            count += len(bodies)
    if piece:
        yield b"".join(piece), count


def encode_group(topic: str, bodies: list[bytes], delay_ms: int) -> bytes:
    """Return messages for one topic as a body of /log/stage has them."""
    name, body = topic.encode(), join_batch(bodies)
    return b"%c%b%b%b" % (len(name), name, _GROUP.pack(delay_ms, len(body)), body)


def commit_rows(options: OnceOptions, messages: Iterable[WriterCommitMessage | None], number: int) -> None:
    """Commit the batch that the tasks have staged; no-op without tasks. Raises NSQError."""
    staged = [message for message in messages if isinstance(message, StagedRows)]
    if not staged:
        return
    if any(each.batch != number for each in staged):
        raise ConfigError(f"nsq: Spark commits batch {number}, but tasks have staged batch {staged[0].batch}")
    batch = BatchId(staged[0].query, number)
    parts = [StagedName(part, each.attempt) for each in staged for part in each.parts]
    asyncio.run(LedgerClient(options).commit(batch, parts))
