# ruff: noqa: N803  (the names are Spark's)

"""The sink: publishes the rows of a DataFrame with MPUB from the executors, over connections that outlive a task.

Rows are published at least once: if a task fails after publishing some rows, Spark runs it again and the rows are
published again. Consumers that must not process duplicates need an identifier in the body.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, ByteType, IntegerType, LongType, ShortType, StringType, StructType

from nsqx.client.blocking import new_event_loop
from nsqx.client.producer import Producer
from nsqx.errors import ConfigError, InvalidMessage, NSQError, PublishFailed
from nsqx.spark.worker_gc import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqx.spark.options import ClusterAddresses, SinkOptions

_COLUMN_TYPES = {
    "value": (BinaryType, StringType),
    "topic": (StringType,),
    "defer_ms": (ByteType, ShortType, IntegerType, LongType),
}
# The other columns of the source. They are ignored, so a DataFrame read from NSQ can be written to NSQ unchanged.
_IGNORED_COLUMNS = frozenset({"id", "timestamp", "attempts", "node", "offset", "log"})
# Messages in one MPUB. Smaller commands distribute the messages over several nsqds.
_MESSAGES_PER_COMMAND = 2000
_BATCHES_UNDER_WAY = 2
# Longer than the client's default: the answer to a large batch takes longer on a slow link.
_PUBLISH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The optional columns that a DataFrame has."""

    has_topic: bool
    has_defer: bool


def columns_of(schema: StructType, overwrite: bool) -> SinkColumns:
    """Return the optional columns of a schema; raises ConfigError if the schema cannot be published."""
    if overwrite:
        raise ConfigError("nsq: a topic cannot be overwritten: use mode('append')")
    names = [field.name for field in schema.fields]
    if "value" not in names:
        raise ConfigError(f"nsq: column value (BINARY or STRING) is required, the DataFrame has {', '.join(names)}")
    for field in schema.fields:
        if field.name in _IGNORED_COLUMNS:
            continue
        if field.name not in _COLUMN_TYPES:
            raise ConfigError(
                f"nsq: column {field.name} cannot be published: only value, topic and defer_ms are used, put other data"
                " into value, for example with to_json(struct(*))"
            )
        if not isinstance(field.dataType, _COLUMN_TYPES[field.name]):
            wanted = " or ".join(each().simpleString() for each in _COLUMN_TYPES[field.name])
            raise ConfigError(f"nsq: column {field.name} is {field.dataType.simpleString()}, it must be {wanted}")
    return SinkColumns("topic" in names, "defer_ms" in names)


@dataclass
class Published(WriterCommitMessage):
    """The number of rows that one task published."""

    count: int


class NSQBatchWriter(DataSourceArrowWriter):
    """``df.write.format("nsq")``."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task."""
        spare_collections()
        return Published(publish_batches(self._options, self._columns, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """No-op: all rows are already published."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """No-op: published messages cannot be withdrawn."""


class NSQStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("nsq")``."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task."""
        spare_collections()
        return Published(publish_batches(self._options, self._columns, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """No-op: all rows are already published."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """No-op: published messages cannot be withdrawn."""


def publish_batches(options: SinkOptions, columns: SinkColumns, batches: Iterable[pa.RecordBatch]) -> int:
    """Publish every row and return how many; raises ClientError if one was not acknowledged."""
    publisher = publisher_of(options.cluster, options.publish_attempts)
    under_way: deque[Future[None]] = deque()
    count = 0
    for batch in batches:
        under_way.append(publisher.publish(list(_commands(options.topic, columns, batch))))
        count += batch.num_rows
        if len(under_way) >= _BATCHES_UNDER_WAY:
            under_way.popleft().result()
    while under_way:
        under_way.popleft().result()
    return count


Command = tuple[str, list[bytes], int]
"""A topic, message bodies, and a delay in milliseconds."""


def _commands(topic: str, columns: SinkColumns, batch: pa.RecordBatch) -> Iterator[Command]:
    for to_topic, group, delay_ms in _grouped(topic, columns, batch):
        for start in range(0, len(group), _MESSAGES_PER_COMMAND):
            yield to_topic, group[start : start + _MESSAGES_PER_COMMAND], delay_ms


def row_groups(topic: str, columns: SinkColumns, batch: pa.RecordBatch, max_bytes: int) -> Iterator[Command]:
    """Yield the messages of a batch by topic and delay, in groups of about ``max_bytes``; raises ClientError."""
    for to_topic, group, delay_ms in _grouped(topic, columns, batch):
        start = size = 0
        for place, body in enumerate(group):
            if size > max_bytes:
                yield to_topic, group[start:place], delay_ms
                start, size = place, 0
            size += len(body)
        yield to_topic, group[start:], delay_ms


def _grouped(topic: str, columns: SinkColumns, batch: pa.RecordBatch) -> Iterator[Command]:
    """Yield the messages of a batch by topic and delay."""
    values: list[Any] = batch.column("value").to_pylist()
    bodies = [value.encode() if isinstance(value, str) else value for value in values]
    if not all(bodies):
        raise InvalidMessage("nsq: a value is null or empty, which nsqd rejects: filter such rows out")
    topics = batch.column("topic").to_pylist() if columns.has_topic and not topic else None
    delays = batch.column("defer_ms").to_pylist() if columns.has_defer else None
    if topics is None and (delays is None or not any(delays)):
        grouped = {(topic, 0): bodies}
    else:
        grouped = {}
        for place, body in enumerate(bodies):
            key = (topics[place] if topics else topic, (delays[place] if delays else 0) or 0)
            if not key[0]:
                raise ConfigError("nsq: a row has no topic: fill the column topic, or set the option topic")
            if key[1] < 0:
                raise ConfigError(f"nsq: defer_ms is {key[1]}: use 0 or more milliseconds")
            grouped.setdefault(key, []).append(body)
    for (to_topic, delay_ms), group in grouped.items():
        if group:
            yield to_topic, group, delay_ms


class SharedPublisher:
    """A producer on its own event loop, shared by all tasks of this process."""

    def __init__(self, cluster: ClusterAddresses, attempts: int) -> None:
        """Connect; raises ConfigError if no nsqd can be reached."""
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nsq publisher", daemon=True)
        self._thread.start()
        self._producer = Producer(
            cluster.nsqd_tcp_addresses,
            lookupd_http_addresses=cluster.lookupd_http_addresses,
            max_publish_attempts=attempts,
            publish_timeout=_PUBLISH_TIMEOUT_S,
            start_timeout=_PUBLISH_TIMEOUT_S,
            require_connection=True,
            **dict(cluster.client_options),
        )
        try:
            asyncio.run_coroutine_threadsafe(self._producer.start(), self._loop).result()
        except NSQError as error:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            raise ConfigError(f"nsq: cannot publish: {error}. Check nsq.nsqd and nsq.lookupd") from None

    def publish(self, commands: list[Command]) -> Future[None]:
        """Publish; the returned future is done when all messages are acknowledged."""
        return asyncio.run_coroutine_threadsafe(self._publish(commands), self._loop)

    async def _publish(self, commands: list[Command]) -> None:
        futures: list[asyncio.Future[None]] = []
        for topic, bodies, delay_ms in commands:
            if delay_ms:
                futures.extend(self._producer.publish_deferred(topic, body, delay_ms / 1000) for body in bodies)
            else:
                futures.append(self._producer.publish_many(topic, bodies))
            await self._producer.drain()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def close(self) -> None:
        """Close the connections."""
        asyncio.run_coroutine_threadsafe(self._producer.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_publishers: dict[tuple[int, ClusterAddresses, int], SharedPublisher] = {}
_publishers_guard = threading.Lock()


def publisher_of(cluster: ClusterAddresses, attempts: int) -> SharedPublisher:
    """Return this process's publisher for a cluster. Spark reuses its workers, so connections are reused too."""
    # A forked worker has the parent's objects but not its threads, so the process id is part of the key.
    key = (os.getpid(), cluster, attempts)
    with _publishers_guard:
        publisher = _publishers.get(key)
        if publisher is None:
            publisher = _publishers[key] = SharedPublisher(cluster, attempts)
        return publisher


__all__ = [
    "NSQBatchWriter",
    "NSQStreamWriter",
    "PublishFailed",
    "Published",
    "SinkColumns",
    "columns_of",
    "publish_batches",
]
