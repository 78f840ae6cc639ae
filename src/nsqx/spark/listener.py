# ruff: noqa: N802  (the names are Spark's)

"""Lag and throughput of streaming queries on NSQ: a line in the log for every batch, and Prometheus gauges.

    spark.streams.addListener(ProgressListener())

Runs in the driver and reads only Spark's progress reports. The source adds its own figures to its latest offset, which
is part of those reports.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from nsqx.spark.log_offsets import LOST

_log = logging.getLogger("nsqx.spark")


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The figures of one source of a query for one batch."""

    query: str
    batch: int
    rows: int
    rows_per_s: float
    # Rows received and not yet processed.
    lag_rows: int
    # Messages waiting in the channel, or None if unknown.
    depth: int | None
    duration_s: float


class ProgressListener(StreamingQueryListener):
    """Logs the progress of every query that reads from NSQ, and sets Prometheus gauges."""

    def __init__(self, registry: CollectorRegistry | None = REGISTRY) -> None:
        """Register the gauges in ``registry``, or none if it is None. A registry takes only one listener."""
        self._metrics = _Metrics(registry) if registry is not None else None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report a completed batch."""
        for progress in read_progress(json.loads(event.progress.json)):
            self.report(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the figures of the last batch stay."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Log the error if the query has failed."""
        if event.exception:
            _log.error("query %s failed: %s", event.id, event.exception)

    def report(self, progress: BatchProgress) -> None:
        """Log one line and set the gauges."""
        _log.info(
            "query %s batch %d: %d rows in %.3f s (%.0f rows/s), lag %d rows, channel depth %s",
            progress.query,
            progress.batch,
            progress.rows,
            progress.duration_s,
            progress.rows_per_s,
            progress.lag_rows,
            "unknown" if progress.depth is None else progress.depth,
        )
        if self._metrics is not None:
            self._metrics.set(progress)


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"nsqx_spark_{name}", text, ["query"], registry=registry)

        self._rows = Counter("nsqx_spark_rows", "Rows processed", ["query"], registry=registry)
        self._rate = gauge("rows_per_second", "Rows processed per second in the last batch")
        self._lag = gauge("lag_rows", "Rows received and not yet processed")
        self._depth = gauge("channel_depth", "Messages waiting in the channel")
        self._duration = gauge("batch_seconds", "Duration of the last batch")

    def set(self, progress: BatchProgress) -> None:
        """Set the gauges to the figures of a batch."""
        self._rows.labels(progress.query).inc(progress.rows)
        self._rate.labels(progress.query).set(progress.rows_per_s)
        self._lag.labels(progress.query).set(progress.lag_rows)
        self._duration.labels(progress.query).set(progress.duration_s)
        if progress.depth is not None:
            self._depth.labels(progress.query).set(progress.depth)


def read_progress(report: Mapping[str, Any]) -> Iterator[BatchProgress]:
    """Yield the figures of the NSQ sources in a progress report of Spark."""
    for source in report.get("sources") or []:
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if "segments" not in end and LOST not in latest:
            continue
        yield BatchProgress(
            query=report.get("name") or report.get("id", ""),
            batch=report.get("batchId", 0),
            rows=source.get("numInputRows", 0),
            rows_per_s=source.get("processedRowsPerSecond") or 0.0,
            lag_rows=_lag_rows(end, latest),
            depth=latest.get("depth"),
            duration_s=report.get("batchDuration", 0) / 1000,
        )


def _lag_rows(end: Mapping[str, Any], latest: Mapping[str, Any]) -> int:
    """Return how many rows were not processed."""
    if "segments" in end:
        return max(0, int(latest.get("rows", end["rows"])) - int(end["rows"]))
    lag = 0
    for topic, logs in latest.items():
        if isinstance(logs, dict):
            lag += sum(max(0, last - end.get(topic, {}).get(log, 0)) for log, last in logs.items())
    return lag


def _offset(value: Any) -> dict[str, Any]:
    """Return an offset as a dict; Spark passes it as JSON text or already decoded."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}
