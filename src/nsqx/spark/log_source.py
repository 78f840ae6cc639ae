# ruff: noqa: N802  (the names are Spark's)

"""Streaming and batch readers of topic logs: executors read ranges of offsets from every nsqd, in parallel.

The position of a streaming query is a channel at each nsqd. It keeps the messages until they are read, and shows the
lag. Spark's checkpoint decides what is read: the channel follows it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nsqx.errors import ConfigError
from nsqx.spark.log_cluster import LogCluster
from nsqx.spark.log_fetch import REMEDY, LogRange, Refetch, read_range
from nsqx.spark.log_offsets import (
    AWAY,
    LOST,
    LogKey,
    LogStatus,
    Positions,
    Span,
    decode_offset,
    divide,
    encode_offset,
    limit_positions,
    row_count,
    rows_per_task,
)
from nsqx.spark.log_options import EARLIEST, LATEST, LogReadOptions
from nsqx.spark.slices import DataLost
from nsqx.spark.worker_gc import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("nsqx.spark")

# How long latestOffset waits for new messages before it returns the old offset.
LONG_POLL_S = 1.0
_PAUSE_S = 0.2
_NO_LIMIT = 2**62


class LogPlanner:
    """Plans tasks for ranges of logs. Raises DataLost for messages that are gone, unless failOnDataLoss is false."""

    def __init__(self, options: LogReadOptions) -> None:
        self.options = options
        self.cluster = LogCluster(options)
        self.lost_count = 0
        self._missing_since: dict[LogKey, float] = {}
        self._known: dict[LogKey, LogStatus] = {}  # also of logs that are gone

    def find(self) -> None:
        """Find the nsqds and logs; raises ConfigError."""
        self.cluster.find()
        self.note_known()

    def note_known(self) -> None:
        """Remember the logs."""
        self._known.update(self.cluster.logs)

    def lose(self, text: str, count: int = 0) -> None:
        """Raise DataLost, or count and report lost messages."""
        if self.options.fail_on_data_loss:
            raise DataLost(text)
        self.lost_count += count
        _log.warning("%s; these messages are left out", text)

    def check_start(self, status: LogStatus, start: int) -> int:
        """Return the offset from which on the log has what a query needs; ``start`` unless messages are gone."""
        if start < status.first:
            self.lose(
                f"nsq: {status}: nsqd has removed the messages from {start} to {status.first}: the retention of the"
                f" topic has overtaken this query. Raise retain_age or max_bytes of the topic, and {REMEDY}",
                status.first - start,
            )
            return status.first
        return start

    def find_missing(self, positions: Positions) -> list[LogKey]:
        """Return the logs that no nsqd has any more; raises DataLost when that is certain or has lasted long."""
        gone = []
        for key, start in positions.items():
            if key in self.cluster.logs and self.cluster.logs[key].node not in self.cluster.away:
                self._missing_since.pop(key, None)
                continue
            since_s = self._missing_since.setdefault(key, time.monotonic())
            if self._is_gone(key) or time.monotonic() - since_s >= self.options.node_timeout_s:
                self._missing_since.pop(key)
                self._report_gone(key, start)
                gone.append(key)
        return gone

    def _is_gone(self, key: LogKey) -> bool:
        """True if the nsqd that had a log has answered, and does not have it."""
        cluster = self.cluster
        known = self._known.get(key)
        if known is not None:
            return any(node.name == known.node for node in cluster.nodes) and known.node not in cluster.away
        is_complete = not self.options.cluster.lookupd_http_addresses and not cluster.away
        return is_complete and bool(cluster.nodes)

    def _report_gone(self, key: LogKey, start: int) -> None:
        topic, log = key
        known = self._known.get(key)
        others = [str(status) for status in self.cluster.logs.values() if status.topic == topic]
        where = f"nsqd {known.node}" if known is not None else "every nsqd that answers"
        now = f"It has now: {', '.join(others)}" if others else f"No nsqd has topic {topic} now"
        self.lose(
            f"nsq: topic {topic}: log {log} is gone from {where}, and with it the messages from offset {start} on: the"
            " topic was deleted and created again, its files were removed, or its nsqd is lost (see nodeTimeout)."
            f" {now}. Start with a new checkpoint, or {REMEDY}"
        )

    def status_of(self, key: LogKey) -> LogStatus:
        """Return a log, and wait for its nsqd if it does not answer; raises DataLost."""
        deadline_s = time.monotonic() + self.options.fetch_retries * self.options.fetch_retry_interval_s
        while key not in self.cluster.logs:
            self.find()
            if key in self.cluster.logs:
                break
            if self._is_gone(key) or time.monotonic() > deadline_s:
                known = self._known.get(key)
                if known is not None:
                    return known  # its tasks find out what has happened
                away = "; ".join(f"{name}: {reason}" for name, reason in self.cluster.away.items())
                raise DataLost(
                    f"nsq: topic {key[0]}: no nsqd has log {key[1]}, which a batch that was begun needs"
                    f"{f' ({away})' if away else ''}: start its nsqd again, or start with a new checkpoint"
                )
            time.sleep(self.options.fetch_retry_interval_s)
        return self.cluster.logs[key]

    def plan(self, spans: list[Span]) -> list[InputPartition]:
        """Return the tasks that read these offsets."""
        options = self.options
        statuses = {span.key: self.status_of(span.key) for span in spans}
        checked = [Span(span.key, self.check_start(statuses[span.key], span.start), span.end) for span in spans]
        refetch = Refetch(options.fetch_retries, options.fetch_retry_interval_s)

        def rows_of(key: LogKey, total: int) -> int:
            # Spark does not tell a Python source how many cores the executors have.
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            return options.max_rows_per_partition or rows_per_task(total, cores, statuses[key].bytes_per_message)

        return [
            LogRange(
                topic=key[0],
                log=key[1],
                start=start,
                end=end,
                address=statuses[key].address,
                node=statuses[key].node,
                channel=options.channel,
                access=self.cluster.access,
                refetch=refetch,
                fail_on_data_loss=options.fail_on_data_loss,
                has_offset=options.has_offset,
            )
            for key, start, end in divide(checked, options.min_partitions, rows_of)
        ]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and partitions of a streaming query; an offset is ``{topic: {log id: next offset}}``."""

    def __init__(self, options: LogReadOptions, planner: LogPlanner | None = None) -> None:
        self._options = options
        self._planner = planner
        self._committed: Positions = {}
        self._starts: Positions = {}  # of logs that are not in the offset of a batch yet
        self._is_bounded = False
        self._bound: Positions | None = None
        self._last_batch_s = time.monotonic()

    # Called by Spark, in the process beside the driver

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new query starts: the position of its channel, which is created if needed."""
        planner = self._opened()
        deadline_s = time.monotonic() + self._options.fetch_timeout_s
        while planner.cluster.away and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
            planner.find()
        if planner.cluster.away:
            away = "; ".join(f"{name}: {reason}" for name, reason in planner.cluster.away.items())
            raise ConfigError(f"nsq: a new query needs an answer of every nsqd, to know where it starts: {away}")
        found = {
            status.key: self._start_of(status, is_first=True)
            for status in sorted(planner.cluster.logs.values(), key=str)
        }
        return encode_offset(found)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the read bounded: it returns only the messages that are in the logs now."""
        self._is_bounded = True

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit on rows, never ReadAllAvailable: Spark uses that for queries with a single batch."""
        return ReadMaxRows(self._options.max_rows or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` if there are no new messages."""
        planner = self._opened()
        first = decode_offset(start)
        # Spark has committed everything before the start of a batch.
        self._commit(first)
        is_all = isinstance(limit, ReadAllAvailable)
        if (self._is_bounded or is_all) and self._bound is None:
            planner.cluster.poll({}, 0)
            planner.note_known()
            self._bound = {key: status.stable for key, status in planner.cluster.logs.items()}
        available = self._wait_for_rows(planner, first)
        if available is None:
            return start
        self._last_batch_s = time.monotonic()
        if not is_all:
            max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows
            sizes = {key: status.bytes_per_message for key, status in planner.cluster.logs.items()}
            max_rows = max_rows if max_rows < _NO_LIMIT else 0
            available = limit_positions({**self._starts, **first}, available, max_rows, self._options.max_bytes, sizes)
        return encode_offset(available)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the logs are, and lost messages under a name that no topic has; listeners compute the lag."""
        if self._planner is None:
            return None
        logs = self._planner.cluster.logs
        found: dict[str, Any] = encode_offset({key: status.stable for key, status in logs.items()})
        found[LOST] = self._planner.lost_count
        found[AWAY] = sorted(self._planner.cluster.away)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks that read the messages between two offsets."""
        planner = self._opened()
        first, last = decode_offset(start), decode_offset(end)
        spans = []
        for key, stop in last.items():
            begin = first.get(key)
            if begin is None:
                # The log is new in this batch. Its channel remembers where that began.
                begin = self._starts.get(key)
                if begin is None:
                    begin = self._start_of(planner.status_of(key), is_first=False)
            if stop > begin:
                spans.append(Span(key, begin, stop))
        return planner.plan(spans)

    def commit(self, end: dict[str, Any]) -> None:
        """Set the position of the channel: Spark has processed everything before ``end``."""
        if self._planner is not None:
            self._commit(decode_offset(end))

    def stop(self) -> None:
        """Ask nothing more."""
        if self._planner is not None:
            self._planner.cluster.close()
            self._planner = None

    # In executors

    def read(self, partition: LogRange) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Return the rows of one partition."""
        spare_collections()
        return read_range(partition)

    # Internal

    def _opened(self) -> LogPlanner:
        if self._planner is None:
            self._planner = LogPlanner(self._options)
        if not self._planner.cluster.nodes:
            self._planner.find()
        return self._planner

    def _start_of(self, status: LogStatus, *, is_first: bool) -> int:
        """Return where the query begins in a log. A log that appears later is read from its beginning."""
        cluster, options = self._opened().cluster, self._options
        wanted = start_text(cluster, status, options) if is_first else "beginning"
        found, is_new = cluster.create_channel(status, wanted)
        if not is_new and is_first and options.has_starting:
            _log.warning(
                "%s: the channel %s exists, so the query begins at its position %d: startingOffsets and times are only"
                " for new channels",
                status, options.channel, found,
            )  # fmt: skip
        return found

    def _commit(self, positions: Positions) -> None:
        """Set the positions that have changed. What fails is tried again with the next batch."""
        changed = {key: offset for key, offset in positions.items() if self._committed.get(key, -1) < offset}
        if changed:
            failed = self._opened().cluster.commit(changed)
            self._committed.update({key: offset for key, offset in changed.items() if key not in failed})
        for key in positions:
            self._starts.pop(key, None)

    def _wait_for_rows(self, planner: LogPlanner, first: Positions) -> Positions | None:
        """Return the end of what can be read, or None if there is too little."""
        until_s = time.monotonic() + LONG_POLL_S
        planner.cluster.poll({}, 0)
        planner.note_known()
        while True:
            available = self._available(planner, first)
            rows = row_count({**self._starts, **first}, available)
            is_late = time.monotonic() - self._last_batch_s >= self._options.max_trigger_delay_s
            is_enough = rows >= self._options.min_rows or is_late or self._bound is not None
            left_s = until_s - time.monotonic()
            if (rows and is_enough) or available.keys() != first.keys():
                return available
            if self._bound is not None and not rows:
                return None
            if left_s <= 0:
                return None
            planner.cluster.poll({**first, **available}, left_s)
            planner.note_known()
            planner.cluster.find_again()
            planner.note_known()

    def _available(self, planner: LogPlanner, first: Positions) -> Positions:
        """Return the end of what is durable in each log. A log whose nsqd is away keeps its offset."""
        gone = planner.find_missing(first)
        found = {key: offset for key, offset in first.items() if key not in gone}
        for key, status in planner.cluster.logs.items():
            if status.is_paused or status.node in planner.cluster.away:
                continue
            start = found.get(key)
            if start is None:
                start = self._starts.get(key)
                if start is None:
                    if self._bound is not None and key not in self._bound:
                        continue
                    start = self._starts[key] = self._start_of(status, is_first=False)
            elif status.stable < start:
                planner.lose(
                    f"nsq: {status} ends at offset {status.stable}, and this query has read up to {start}: this nsqd"
                    f" has lost messages. Start with a new checkpoint, or {REMEDY}"
                )
            if self._options.fail_on_data_loss:
                planner.check_start(status, start)  # otherwise the tasks begin later
            end = status.stable if self._bound is None else min(status.stable, self._bound.get(key, start))
            found[key] = max(start, end)
        return found


def start_text(cluster: LogCluster, status: LogStatus, options: LogReadOptions) -> str:
    """Return where a new channel begins, as a position of nsqd; raises ConfigError if there is none."""
    time_ms = options.starting.time_ms_of(status.topic, status.log, status.node)
    if time_ms is not None:
        offset = cluster.offset_at(status, time_ms)
        if offset is None and options.must_find_time:
            raise ConfigError(
                f"nsq: {status} has no message at or after the starting time {time_ms} (milliseconds since 1970): use"
                " an earlier time, or set startingOffsetsByTimestampStrategy to latest"
            )
        return "end" if offset is None else str(offset)
    wanted = options.starting.offset_of(status.topic, status.log, status.node)
    if isinstance(wanted, int):
        return str(wanted)
    return {EARLIEST: "beginning", LATEST: "end"}[wanted or options.starting.name]


class LogBatchReader(DataSourceReader):
    """A range of offsets as a DataFrame. The same offsets give the same rows."""

    def __init__(self, options: LogReadOptions, planner: LogPlanner | None = None) -> None:
        self._options = options
        self._planner = planner

    def partitions(self) -> list[InputPartition]:
        """Return the tasks; raises ConfigError if an nsqd does not answer or no nsqd has a topic."""
        planner = self._planner or LogPlanner(self._options)
        cluster, options = planner.cluster, self._options
        try:
            planner.find()
            if cluster.away:
                away = "; ".join(f"{name}: {reason}" for name, reason in cluster.away.items())
                raise ConfigError(f"nsq: a batch read needs an answer of every nsqd: {away}")
            found = {status.topic for status in cluster.logs.values()}
            for topic in options.topics:
                if topic not in found:
                    raise ConfigError(
                        f"nsq: no nsqd has a log for topic {topic}: publish to it first, or check its name"
                    )
            return planner.plan([self._span(planner, status) for status in sorted(cluster.logs.values(), key=str)])
        finally:
            cluster.close()

    def _span(self, planner: LogPlanner, status: LogStatus) -> Span:
        options = self._options
        start = start_text(planner.cluster, status, options)
        begin = {"beginning": status.first, "end": status.stable}.get(start)
        begin = int(start) if begin is None else begin
        end = self._end_of(planner, status)
        if end > status.stable:
            planner.lose(
                f"nsq: {status} ends at offset {status.stable}, which is before the ending offset {end}: use a lower"
                f" one, or {REMEDY}"
            )
            end = status.stable
        return Span(status.key, begin, end)

    def _end_of(self, planner: LogPlanner, status: LogStatus) -> int:
        ending = self._options.ending
        time_ms = ending.time_ms_of(status.topic, status.log, status.node)
        if time_ms is not None:
            offset = planner.cluster.offset_at(status, time_ms)
            return status.stable if offset is None else offset
        wanted = ending.offset_of(status.topic, status.log, status.node)
        return wanted if isinstance(wanted, int) else status.stable

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition."""
        # Spark passes a partition of its own if there are no rows.
        if isinstance(partition, LogRange):
            spare_collections()
            yield from read_range(partition)
