# ruff: noqa: N802  (the names are Spark's)

"""The data source ``nsq`` as Spark sees it, and its streaming reader.

Where things run: the data source is made in short-lived planner processes; the streaming reader lives in one process
beside the driver for the whole query, which receives and knows the offsets; ``read`` runs in executors, on a copy, and
has nothing but its partition. So nothing is opened before Spark asks for the first offset.
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

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from nsqx.errors import ConfigError
from nsqx.spark.options import SourceOptions, check_names, read_sink_options, read_source_options
from nsqx.spark.probe import ProbePartition, check_place, read_probe, remove_probes, write_probe
from nsqx.spark.receiver import Receiver
from nsqx.spark.segments import SegmentDirectory
from nsqx.spark.session import tasks_run_here
from nsqx.spark.slices import DataLost, Slice, read_slices
from nsqx.spark.worker_gc import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqx.spark.batch import BatchReader
    from nsqx.spark.sink import NSQBatchWriter, NSQStreamWriter

_log = logging.getLogger("nsqx.spark")

# How long latestOffset waits for something new before it says that there is nothing.
LONG_POLL_S = 1.0
# A bounded query is in no hurry: a batch has so many rows, if they come within that time.
_GATHERED_ROWS = 200_000
_GATHER_S = 0.3
# A process that was told to end needs a moment to give its messages back.
LOCK_WAIT_S = 15.0
ROWS_PER_PARTITION = 50_000
_NO_LIMIT = 2**62
# Spark gives a table's options to nobody but the one who makes its schema, so that is where they are kept.
_METADATA_KEY = "nsq.options"
_SECRET_OPTIONS = ("nsq.auth_secret",)


class NSQDataSource(DataSource):
    """``spark.readStream.format("nsq")`` and its kin."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "nsq"

    def schema(self) -> StructType:
        """The columns; also the first place where wrong options are told."""
        options = dict(self.options)
        schema = _schema()
        if "provider" not in options:
            read_source_options(options)
            return schema
        for name in _SECRET_OPTIONS:
            if name in options:
                raise ConfigError(
                    f"nsq: {name} does not belong into a table, where everybody can read it: give it when the table is"
                    f" used, spark.read.option('{name}', ...).table(...)"
                )
        if "subscribe" in options or "subscribepattern" in options or "topic" not in options:
            read_source_options(options)
        if "topic" in options:
            read_sink_options(options, has_topic_column=False)
        schema.fields[0].metadata = {_METADATA_KEY: json.dumps(options)}
        return schema

    def streamReader(self, schema: StructType) -> StreamReader:
        """A streaming read; raises ConfigError if it cannot begin where it is asked to."""
        options = read_source_options(self._options_with(schema))
        if options.starts_at_latest:
            raise ConfigError(
                "nsq: startingOffsets latest is for batch reads: a stream takes everything that waits in its channel."
                " To begin with what is published from now on, give it a new channel, or empty the channel first"
            )
        return StreamReader(options)

    def reader(self, schema: StructType) -> BatchReader:
        """A batch read."""
        from nsqx.spark.batch import BatchReader

        return BatchReader(read_source_options(self._options_with(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> NSQBatchWriter:
        """A batch write."""
        from nsqx.spark.sink import NSQBatchWriter, columns_of

        columns = columns_of(schema, overwrite)
        return NSQBatchWriter(
            read_sink_options(self._options_with(schema), has_topic_column=columns.has_topic), columns
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NSQStreamWriter:
        """A streaming write."""
        from nsqx.spark.sink import NSQStreamWriter, columns_of

        columns = columns_of(schema, overwrite)
        return NSQStreamWriter(
            read_sink_options(self._options_with(schema), has_topic_column=columns.has_topic), columns
        )

    def _options_with(self, schema: StructType) -> Mapping[str, str]:
        """The options given here, over those of the table if it is one."""
        given = dict(self.options)
        if "nsq.lookupd" in given or "nsq.nsqd" in given:
            return given
        for field in schema.fields:
            if field.metadata and _METADATA_KEY in field.metadata:
                return {**json.loads(field.metadata[_METADATA_KEY]), **given}
        check_names(given)
        return given


def _schema() -> StructType:
    """What ``rows.SPARK_SCHEMA`` is to Arrow."""
    columns = {
        "value": BinaryType(),
        "topic": StringType(),
        "id": StringType(),
        "timestamp": TimestampType(),
        "attempts": IntegerType(),
        "node": StringType(),
    }
    return StructType([StructField(name, kind, True) for name, kind in columns.items()])


@dataclass
class SlicePartition(InputPartition):
    """Rows for one task: everything that an executor needs to find them."""

    location: str
    identity: str
    slices: list[Slice]
    fail_on_data_loss: bool


def partition_count(options: SourceOptions, rows: int) -> int:
    """Into how many tasks to part a batch."""
    return max(options.min_partitions, -(-rows // ROWS_PER_PARTITION))


def plan_partitions(directory: SegmentDirectory, options: SourceOptions, start: int, end: int) -> list[InputPartition]:
    """The tasks that read the rows between two offsets; raises DataLost if some are missing."""
    is_strict = options.fail_on_data_loss
    count = partition_count(options, end - start)
    parts = directory.slices(start, end, count, fail_on_data_loss=is_strict)
    return [SlicePartition(directory.storage.location, directory.state.identity, part, is_strict) for part in parts]


def read_partition(partition: SlicePartition) -> Iterator[pa.RecordBatch]:
    """The rows of one partition, in an executor; raises DataLost if some are missing or damaged."""
    return read_slices(
        partition.location, partition.identity, partition.slices, fail_on_data_loss=partition.fail_on_data_loss
    )


def open_directory(options: SourceOptions) -> SegmentDirectory:
    """The segment directory of a query, locked; raises ConfigError if it cannot serve."""
    return SegmentDirectory.open(
        options.segment_dir,
        channel=options.channel,
        max_in_flight=options.max_in_flight,
        window_rows=options.dedup_window,
        lock_wait_s=LOCK_WAIT_S,
    )


class _Terminated(SystemExit):
    """SIGTERM came."""


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
        # Set while segments that Spark has processed could not be removed.
        self._has_unreleased = False
        self._last_batch_s = time.monotonic()
        self._is_terminated = False

    # Spark's calls, in the process beside the driver

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: after what was ever committed here, and that is on disk.

        Asked again, perhaps by another process, while batch 0 is not committed, it answers the same.
        """
        return self._offset(self._opened().state.committed)

    def prepareForTriggerAvailableNow(self) -> None:
        """Only what is in the channel now."""
        self._bound_ns = time.time_ns()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Never "all available", which is how Spark says that there will be one batch only."""
        return ReadMaxRows(self._options.max_rows or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` if there is nothing new."""
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
        """What has come so far, and how much nsqd still has; for a listener to tell the lag."""
        if self._receiver is None:
            return None
        return {**self._offset(self._receiver.rows), "depth": self._receiver.depth}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The rows between two offsets, in slices."""
        directory = self._opened()
        first, last = self._row_of(start), end["rows"]
        if last <= first:
            is_probe = "probe" in end and end["probe"] != start.get("probe")
            return write_probe(directory.storage, end["probe"]) if is_probe else []
        return plan_partitions(directory, self._options, first, last)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has done with everything before ``end``."""
        if self._directory is not None and end.get("segments") == self._directory.state.identity:
            self._release(self._directory, end["rows"])

    def stop(self) -> None:
        """Give back what is not durable, and let go of the directory."""
        receiver, self._receiver = self._receiver, None
        directory, self._directory = self._directory, None
        is_clean = receiver.stop() if receiver is not None else False
        if directory is not None:
            directory.close(is_clean=is_clean)
        if self._is_terminated:
            # Nobody is left to hear what Spark's loop would say about this end.
            os._exit(0)

    # In executors

    def read(self, partition: SlicePartition | ProbePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of one partition."""
        if isinstance(partition, ProbePartition):
            read_probe(partition)
            return iter(())
        spare_collections()
        return read_partition(partition)

    # Here

    def _opened(self) -> SegmentDirectory:
        if self._directory is None:
            self._runs_here = tasks_run_here()
            check_place(self._options, self._runs_here, can_probe=True)
            self._directory = open_directory(self._options)
            if threading.current_thread() is threading.main_thread():
                # Spark ends this process by SIGTERM and does not call stop.
                signal.signal(signal.SIGTERM, self._on_terminate)
        return self._directory

    def _prove(self, directory: SegmentDirectory, start: dict[str, Any], limit: ReadLimit) -> bool:
        """True if executors can read the directory; if False, the next batch must find out."""
        if isinstance(limit, ReadAllAvailable):
            # There will be one batch only, and it has rows.
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
        """Remove what Spark has processed; if the storage fails, the next call tries again.

        Nothing depends on the removal but room: without it the source takes no more at its limit.
        """
        try:
            directory.commit(rows)
            if self._has_unreleased:
                directory.trim(directory.state.committed)
                self._has_unreleased = False
        except OSError as error:
            if not self._has_unreleased:
                _log.warning("cannot free segments in %s, trying again: %s", directory.storage.location, error)
            self._has_unreleased = True

    def _wait_for_rows(self, receiver: Receiver, first: int) -> int:
        """How many rows there are, waiting for more than ``first``; ``first`` if it is too early for a batch."""
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
        """The same of a bounded query, which ends as soon as it is told that there is nothing new."""
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
        """The row that an offset of the checkpoint stands for; raises DataLost if it is not here any more."""
        directory = self._opened()
        if offset.get("segments") == directory.state.identity:
            return directory.check_start(offset["rows"], fail_on_data_loss=self._options.fail_on_data_loss)
        text = (
            f"nsq: the checkpoint belongs to another segment directory than {directory.storage.location}: use the"
            " directory it was made with, start with a new checkpoint, or set failOnDataLoss to false to go on with"
            " what is here"
        )
        if self._options.fail_on_data_loss:
            raise DataLost(text)
        _log.warning("%s", text)
        return directory.state.committed
