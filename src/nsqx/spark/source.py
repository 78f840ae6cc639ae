# ruff: noqa: N802  (the names are Spark's)

"""The data source ``nsq`` with Spark's interface, and its streaming reader.

Spark creates the data source in short-lived planner processes. The streaming reader lives in one process beside the
driver for the whole query; it receives messages and keeps the offsets. ``read`` runs in executors on a copy of the
reader and uses only its partition. The reader therefore opens nothing before Spark requests the first offset.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from nsqx.errors import ConfigError
from nsqx.spark.log_options import CHANNEL, check_channel_options, read_log_options, read_mode
from nsqx.spark.options import (
    SourceOptions,
    check_names,
    is_exactly_once,
    read_once_options,
    read_sink_options,
    read_source_options,
)
from nsqx.spark.probe import ProbePartition, check_place, read_probe, remove_probes, write_probe
from nsqx.spark.receiver import Receiver
from nsqx.spark.segments import SegmentDirectory
from nsqx.spark.session import tasks_run_here
from nsqx.spark.slices import DataLost, Slice, read_slices
from nsqx.spark.worker_gc import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqx.spark.log_sink import OnceBatchWriter, OnceStreamWriter
    from nsqx.spark.sink import NSQBatchWriter, NSQStreamWriter

_log = logging.getLogger("nsqx.spark")

# How long latestOffset waits for new rows before it returns the old offset.
LONG_POLL_S = 1.0
# A bounded query collects this many rows for a batch, or those that arrive within this time.
_GATHERED_ROWS = 200_000
_GATHER_S = 0.3
# A process that received SIGTERM needs this long to finish its messages and release the directory.
LOCK_WAIT_S = 15.0
ROWS_PER_PARTITION = 50_000
_NO_LIMIT = 2**62
# Spark passes a table's options only to ``schema``, so they are stored in the metadata of the schema.
_METADATA_KEY = "nsq.options"
_SECRET_OPTIONS = ("nsq.auth_secret",)


class NSQDataSource(DataSource):
    """The format ``nsq`` for batch and streaming reads and writes."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nsq"

    def schema(self) -> StructType:
        """Return the columns; raises ConfigError if an option is wrong."""
        options = dict(self.options)
        schema = _schema(has_offset=options.get("includeoffset", "").lower() == "true")
        if "provider" not in options:
            _check_source_options(options)
            return schema
        for name in _SECRET_OPTIONS:
            if name in options:
                raise ConfigError(
                    f"nsq: {name} must not be stored in a table, where other users can read it: set it when the table"
                    f" is used, spark.read.option('{name}', ...).table(...)"
                )
        if {"subscribe", "subscribepattern", "assign"} & options.keys() or "topic" not in options:
            _check_source_options(options)
        if "topic" in options:
            read_sink_options(options, has_topic_column=False)
        schema.fields[0].metadata = {_METADATA_KEY: json.dumps(options)}
        return schema

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a streaming reader; raises ConfigError if an option is wrong."""
        from nsqx.spark.mode import EitherStreamReader

        given = self._options_with(schema)
        if read_mode(given) == CHANNEL:
            return channel_stream_reader(given)
        return EitherStreamReader(given)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        from nsqx.spark.mode import EitherBatchReader, channel_batch_reader

        given = self._options_with(schema)
        if read_mode(given) == CHANNEL:
            return channel_batch_reader(given)
        return EitherBatchReader(given)

    def writer(self, schema: StructType, overwrite: bool) -> NSQBatchWriter | OnceBatchWriter:
        """Return a batch writer."""
        from nsqx.spark.sink import NSQBatchWriter, columns_of

        columns = columns_of(schema, overwrite)
        given = self._options_with(schema)
        if is_exactly_once(given):
            from nsqx.spark.log_sink import OnceBatchWriter

            return OnceBatchWriter(
                read_once_options(given, has_topic_column=columns.has_topic, is_stream=False), columns
            )
        return NSQBatchWriter(
            read_sink_options(self._options_with(schema), has_topic_column=columns.has_topic), columns
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NSQStreamWriter | OnceStreamWriter:
        """Return a streaming writer."""
        from nsqx.spark.sink import NSQStreamWriter, columns_of

        columns = columns_of(schema, overwrite)
        given = self._options_with(schema)
        if is_exactly_once(given):
            from nsqx.spark.log_sink import OnceStreamWriter

            return OnceStreamWriter(
                read_once_options(given, has_topic_column=columns.has_topic, is_stream=True), columns
            )
        return NSQStreamWriter(
            read_sink_options(self._options_with(schema), has_topic_column=columns.has_topic), columns
        )

    def _options_with(self, schema: StructType) -> Mapping[str, str]:
        """Return the given options, added to those of the table if there is one."""
        given = dict(self.options)
        if "nsq.lookupd" in given or "nsq.nsqd" in given:
            return given
        for field in schema.fields:
            if field.metadata and _METADATA_KEY in field.metadata:
                return {**json.loads(field.metadata[_METADATA_KEY]), **given}
        check_names(given)
        return given


def _check_source_options(options: Mapping[str, str]) -> None:
    """Raise ConfigError if an option of a reader is wrong, whatever its mode will be."""
    mode = read_mode(options)
    if mode == CHANNEL:
        check_channel_options(options)
        read_source_options(options)
        return
    read_log_options(options, is_stream=False, is_checked=True)


def channel_stream_reader(given: Mapping[str, str]) -> StreamReader:
    """Return the streaming reader of a channel; raises ConfigError if an option is wrong."""
    check_channel_options(given)
    options = read_source_options(given)
    if options.starts_at_latest:
        raise ConfigError(
            "nsq: startingOffsets latest is only for batch reads and for mode log: a stream reads everything that waits"
            " in its channel. To skip older messages, use a new channel, or empty the channel first"
        )
    return StreamReader(options)


def _schema(*, has_offset: bool = False) -> StructType:
    """Return Spark's form of ``rows.SPARK_SCHEMA``, or of ``log_fetch.OFFSET_SCHEMA``."""
    columns = {
        "value": BinaryType(),
        "topic": StringType(),
        "id": StringType(),
        "timestamp": TimestampType(),
        "attempts": IntegerType(),
        "node": StringType(),
    }
    if has_offset:
        columns |= {"offset": LongType(), "log": StringType()}
    return StructType([StructField(name, kind, True) for name, kind in columns.items()])


@dataclass
class SlicePartition(InputPartition):
    """The rows of one task, with everything that an executor needs to find them."""

    location: str
    identity: str
    slices: list[Slice]
    fail_on_data_loss: bool


def partition_count(options: SourceOptions, rows: int) -> int:
    """Return the number of tasks for a batch."""
    return max(options.min_partitions, -(-rows // ROWS_PER_PARTITION))


def plan_partitions(directory: SegmentDirectory, options: SourceOptions, start: int, end: int) -> list[InputPartition]:
    """Return the tasks that read the rows between two offsets; raises DataLost if some are missing."""
    is_strict = options.fail_on_data_loss
    count = partition_count(options, end - start)
    parts = directory.slices(start, end, count, fail_on_data_loss=is_strict)
    return [SlicePartition(directory.storage.location, directory.state.identity, part, is_strict) for part in parts]


def read_partition(partition: SlicePartition) -> Iterator[pa.RecordBatch]:
    """Return the rows of one partition, in an executor; raises DataLost if some are missing or damaged."""
    return read_slices(
        partition.location, partition.identity, partition.slices, fail_on_data_loss=partition.fail_on_data_loss
    )


def open_directory(options: SourceOptions) -> SegmentDirectory:
    """Open and lock the segment directory of a query; raises ConfigError on failure."""
    return SegmentDirectory.open(
        options.segment_dir,
        channel=options.channel,
        max_in_flight=options.max_in_flight,
        window_rows=options.dedup_window,
        lock_wait_s=LOCK_WAIT_S,
    )


class _Terminated(SystemExit):
    """Raised by the handler of SIGTERM."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and partitions of a streaming query; an offset is ``{"rows": count, "segments": directory}``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._directory: SegmentDirectory | None = None
        self._receiver: Receiver | None = None
        self._bound_ns = 0
        # Set once it is known that executors can read the directory.
        self._is_proven = False
        self._probe_token = ""
        self._runs_here: bool | None = None
        # True while segments that Spark has processed could not be removed.
        self._has_unreleased = False
        self._last_batch_s = time.monotonic()
        self._is_terminated = False

    # Called by Spark, in the process beside the driver

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new query starts: the committed offset of the directory.

        It is on disk, so the answer stays the same until batch 0 is committed, in another process too.
        """
        return self._offset(self._opened().state.committed)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the read bounded: it returns only the messages that are in the channel now."""
        self._bound_ns = time.time_ns()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit on rows, never ReadAllAvailable: Spark uses that for queries with a single batch."""
        return ReadMaxRows(self._options.max_rows or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` if there are no new rows."""
        directory = self._opened()
        first = self._row_of(start)
        if isinstance(limit, ReadAllAvailable) and not self._bound_ns:
            self._bound_ns = time.time_ns()
        if not self._is_proven and not self._prove(directory, start, limit):
            return {**self._offset(first), "probe": self._probe_token}
        receiver = self._receiving()
        # Spark has committed everything before the start of a batch.
        self._release(directory, first)
        receiver.committed()
        is_all = isinstance(limit, ReadAllAvailable)
        available = self._all_rows(receiver) if is_all else self._wait_for_rows(receiver, first)
        if available <= first:
            return start
        if is_all:
            return self._offset(available)
        self._last_batch_s = time.monotonic()
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows
        return self._offset(directory.end_within(first, available, max_rows, self._options.max_bytes))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the rows received so far and the channel's depth, from which listeners compute the lag."""
        if self._receiver is None:
            return None
        return {**self._offset(self._receiver.rows), "depth": self._receiver.depth}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks that read the rows between two offsets."""
        directory = self._opened()
        first, last = self._row_of(start), end["rows"]
        if last <= first:
            is_probe = "probe" in end and end["probe"] != start.get("probe")
            return write_probe(directory.storage, end["probe"]) if is_probe else []
        return plan_partitions(directory, self._options, first, last)

    def commit(self, end: dict[str, Any]) -> None:
        """Remove the rows before ``end``, which Spark has processed."""
        if self._directory is not None and end.get("segments") == self._directory.state.identity:
            self._release(self._directory, end["rows"])

    def stop(self) -> None:
        """Stop receiving and release the directory."""
        receiver, self._receiver = self._receiver, None
        directory, self._directory = self._directory, None
        is_clean = receiver.stop() if receiver is not None else False
        if directory is not None:
            directory.close(is_clean=is_clean)
        if self._is_terminated:
            # Skip the traceback of Spark's loop: the driver no longer reads it.
            os._exit(0)

    # In executors

    def read(self, partition: SlicePartition | ProbePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Return the rows of one partition."""
        if isinstance(partition, ProbePartition):
            read_probe(partition)
            return iter(())
        spare_collections()
        return read_partition(partition)

    # Internal

    def _opened(self) -> SegmentDirectory:
        if self._directory is None:
            self._runs_here = tasks_run_here()
            check_place(self._options, self._runs_here, can_probe=True)
            self._directory = open_directory(self._options)
            if threading.current_thread() is threading.main_thread():
                # Spark ends this process with SIGTERM and does not call stop.
                signal.signal(signal.SIGTERM, self._on_terminate)
        return self._directory

    def _prove(self, directory: SegmentDirectory, start: dict[str, Any], limit: ReadLimit) -> bool:
        """Return True if executors can read the directory; if False, the next batch must be a probe."""
        if isinstance(limit, ReadAllAvailable):
            # The query has a single batch, which cannot be an empty probe.
            check_place(self._options, self._runs_here, can_probe=False)
            self._is_proven = True
        elif self._runs_here or (self._probe_token and start.get("probe") == self._probe_token):
            remove_probes(directory.storage)
            self._is_proven = True
        elif not self._probe_token:
            self._probe_token = uuid.uuid4().hex[:12]
        return self._is_proven

    def _on_terminate(self, *_: object) -> NoReturn:
        self._is_terminated = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated(0)

    def _receiving(self) -> Receiver:
        if self._receiver is None:
            receiver = Receiver(self._options, self._opened())
            receiver.start(bound_ns=self._bound_ns)
            self._receiver = receiver
            self._last_batch_s = time.monotonic()
        return self._receiver

    def _release(self, directory: SegmentDirectory, rows: int) -> None:
        """Remove the rows that Spark has processed; if the storage fails, the next call tries again.

        A failure costs only space: the receiver pauses when the buffer reaches its limit.
        """
        try:
            directory.commit(rows)
            if self._has_unreleased:
                directory.trim(directory.state.committed)
                self._has_unreleased = False
        except OSError as error:
            if not self._has_unreleased:
                _log.warning("cannot remove segments in %s, will try again: %s", directory.storage.location, error)
            self._has_unreleased = True

    def _wait_for_rows(self, receiver: Receiver, first: int) -> int:
        """Wait for a batch of rows after ``first`` and return the number of rows; ``first`` if there are too few."""
        if self._bound_ns:
            return self._wait_for_bounded_rows(receiver, first)
        until_s = time.monotonic() + LONG_POLL_S
        while True:
            left_s = until_s - time.monotonic()
            available = receiver.wait_for_rows(max(first, first + self._options.min_rows - 1), max(0.0, left_s))
            is_late = time.monotonic() - self._last_batch_s >= self._options.max_trigger_delay_s
            if available > first and (available - first >= self._options.min_rows or is_late):
                return available
            if left_s <= 0:
                return first

    def _wait_for_bounded_rows(self, receiver: Receiver, first: int) -> int:
        """Wait like ``_wait_for_rows`` for a bounded query, which ends at the first answer without new rows."""
        gathered = min(self._options.max_rows or _GATHERED_ROWS, _GATHERED_ROWS)
        while True:
            available = receiver.wait_for_rows(first + gathered - 1, _GATHER_S)
            if available > first or receiver.is_drained:
                return receiver.rows

    def _all_rows(self, receiver: Receiver) -> int:
        while not receiver.is_drained:
            receiver.wait_for_rows(_NO_LIMIT, LONG_POLL_S)
        receiver.check()
        return receiver.rows

    def _offset(self, rows: int) -> dict[str, Any]:
        return {"rows": rows, "segments": self._opened().state.identity}

    def _row_of(self, offset: dict[str, Any]) -> int:
        """Return the row of an offset of the checkpoint; raises DataLost if rows after it are missing."""
        directory = self._opened()
        if offset.get("segments") == directory.state.identity:
            return directory.check_start(offset["rows"], fail_on_data_loss=self._options.fail_on_data_loss)
        text = (
            f"nsq: the checkpoint belongs to another segment directory than {directory.storage.location}: use the"
            " directory with which it was created, start with a new checkpoint, or set failOnDataLoss to false to"
            " continue with the rows that exist"
        )
        if self._options.fail_on_data_loss:
            raise DataLost(text)
        _log.warning("%s", text)
        return directory.state.committed
