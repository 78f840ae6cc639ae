# ruff: noqa: N802  (the names are Spark's)

"""The choice between reading logs and receiving a channel, for the modes auto and log.

The mode ``auto`` reads logs if every nsqd that has a topic of the query has a log for it. A new query decides once, and
the form of the offsets in its checkpoint says how it goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nsqx.errors import ConfigError
from nsqx.spark.log_fetch import LogRange, read_range
from nsqx.spark.log_offsets import is_log_offset
from nsqx.spark.log_options import (
    AUTO,
    LATEST,
    LogReadOptions,
    check_channel_options,
    log_only,
    read_log_options,
    read_mode,
)
from nsqx.spark.log_source import LogBatchReader, LogPlanner, LogStreamReader
from nsqx.spark.options import read_source_options
from nsqx.spark.segments import SegmentDirectory
from nsqx.spark.source import StreamReader, channel_stream_reader
from nsqx.spark.worker_gc import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqx.spark.batch import BatchReader

_log = logging.getLogger("nsqx.spark")

_NO_LIMIT = 2**62


def channel_batch_reader(given: Mapping[str, str]) -> BatchReader:
    """Return the batch reader of a channel; raises ConfigError if an option is wrong."""
    from nsqx.spark.batch import BatchReader

    check_channel_options(given)
    return BatchReader(read_source_options(given))


def _log_planner(given: Mapping[str, str], options: LogReadOptions) -> LogPlanner | None:
    """Return the planner for logs, None if the query must receive a channel; raises ConfigError."""
    has_directory = bool({name.lower(): value for name, value in given.items()}.get("segmentdir"))
    is_auto = read_mode(given) == AUTO
    planner = LogPlanner(options)
    cluster = planner.cluster
    try:
        planner.find()
    except ConfigError as error:
        cluster.close()
        if not is_auto or not has_directory:
            raise
        # A channel needs neither a token nor the HTTP API of nsqd.
        _log.warning("cannot ask for logs, so mode channel is used: %s", error)
        return None
    is_log = not cluster.classic and (bool(cluster.logs) or not has_directory or not is_auto)
    if is_log and is_auto and cluster.away and not cluster.logs:
        away = "; ".join(f"{name}: {reason}" for name, reason in cluster.away.items())
        raise ConfigError(
            f"nsq: no nsqd answers, so the mode of this query is unknown: {away}: start it, check its address and"
            " certificates, or set mode"
        )
    if is_log:
        return planner
    cluster.close()
    if not is_auto:
        topic, node = cluster.classic[0]
        raise ConfigError(
            f"nsq: mode log: topic {topic} has no log on nsqd {node}: convert it with POST /topic/convert?store=log, or"
            " set mode to auto or channel"
        )
    return None


class EitherStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming reader of logs or of a channel; which one is decided when Spark asks for the first offset."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._reader: LogStreamReader | StreamReader | None = None
        self._is_bounded = False
        self._max_rows = read_log_options(given, is_stream=True).max_rows

    def _is_of_channel(self) -> bool:
        """True if the segment directory has messages of this query, which has begun in mode channel."""
        directory = {name.lower(): value for name, value in self._given.items()}.get("segmentdir", "")
        return bool(directory) and not log_only(self._given) and SegmentDirectory.exists(directory)

    def initialOffset(self) -> dict[str, Any]:
        """Decide, and return the offset at which a new query starts."""
        return self._decided(None).initialOffset()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the read bounded."""
        self._is_bounded = True
        if self._reader is not None:
            self._reader.prepareForTriggerAvailableNow()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit on rows, never ReadAllAvailable: Spark uses that for queries with a single batch."""
        return ReadMaxRows(self._max_rows or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch."""
        return self._decided(start).latestOffset(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the logs or the receiver are."""
        return self._reader.reportLatestOffset() if self._reader is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks that read the rows between two offsets."""
        return self._decided(end).partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """Note that Spark has processed everything before ``end``."""
        if self._reader is not None:
            self._reader.commit(end)

    def stop(self) -> None:
        """Stop reading."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Return the rows of one partition, in an executor."""
        if isinstance(partition, LogRange):
            spare_collections()
            return read_range(partition)
        return channel_stream_reader(self._given).read(partition)

    def _decided(self, offset: Mapping[str, Any] | None) -> LogStreamReader | StreamReader:
        """Return the reader, chosen by an offset of the checkpoint, or else by asking the cluster."""
        if self._reader is None:
            self._reader = self._choose(offset)
            if self._is_bounded:
                self._reader.prepareForTriggerAvailableNow()
        return self._reader

    def _choose(self, offset: Mapping[str, Any] | None) -> LogStreamReader | StreamReader:
        given = self._given
        is_auto = read_mode(given) == AUTO
        if offset:
            if is_log_offset(offset):
                return LogStreamReader(read_log_options(given, is_stream=True))
            if not is_auto:
                raise ConfigError(
                    "nsq: the checkpoint belongs to a query that has received a channel into a segment directory: set"
                    " mode to auto or channel, or start with a new checkpoint"
                )
            return channel_stream_reader(given)
        if is_auto and self._is_of_channel():
            return channel_stream_reader(given)
        options = read_log_options(given, is_stream=True)
        planner = _log_planner(given, options)
        return LogStreamReader(options, planner) if planner is not None else channel_stream_reader(given)


class EitherBatchReader(DataSourceReader):
    """A batch reader of logs or of a channel, which is decided when Spark plans the job."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)

    def partitions(self) -> list[InputPartition]:
        """Decide, and return the tasks."""
        return list(self._choose().partitions())

    def _choose(self) -> DataSourceReader:
        given = {name.lower(): value for name, value in self._given.items()}
        is_auto = read_mode(given) == AUTO
        confirms = bool(given.get("readid")) or given.get("startingoffsets", "").lower() == LATEST
        directory = given.get("segmentdir", "")
        if is_auto and not log_only(given) and (confirms or (directory and SegmentDirectory.exists(directory))):
            return channel_batch_reader(self._given)
        options = read_log_options(self._given, is_stream=False)
        planner = _log_planner(self._given, options)
        return LogBatchReader(options, planner) if planner is not None else channel_batch_reader(self._given)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition."""
        if isinstance(partition, LogRange):
            spare_collections()
            yield from read_range(partition)
        else:
            yield from channel_batch_reader(self._given).read(partition)
