"""The streaming query of one sink: starts it, restarts it after a failure, and stops it between two batches.

Spark's own stop interrupts a batch. That is safe, because the batch is run again, but a topic sink would then publish
messages twice. Stopping therefore waits for a batch that is being written.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from nsqx.pipeline.figures import FAILED, RETRYING, RUNNING, STOPPED, SinkFigures
from nsqx.pipeline.model import trigger_of
from nsqx.pipeline.spark_errors import explain
from nsqx.spark.jvm import last_progress, progress_after

if TYPE_CHECKING:
    from nsqx.pipeline.plan import Planned

MAX_FAILURES = 5
"""In a bounded run, a sink fails after this many failures of its query without a successful batch between them."""
_START_PAUSES_S = (5.0, 10.0, 20.0, 40.0)
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_FOR_GOOD = ("DataLost", "STATE_STORE", "StateSchema")


def start_stream(stream: Any) -> Any:
    """Start a query and return it; raises Spark's exception.

    A Spark Connect server waits at most 10 s until its Python process has started. On a busy machine that may not be
    enough, and the process that is too late takes time from the next one.
    """
    for pause_s in _START_PAUSES_S:
        try:
            return stream.start()
        except Exception as error:  # Spark may raise anything
            if "Python worker failed to connect back" not in str(error):
                raise
        time.sleep(pause_s)
    return stream.start()


class _Stopping(Exception):
    """Raised for a batch that Spark starts after ``stop`` was called."""


class SinkQuery:
    """Runs one planned sink."""

    def __init__(self, planned: Planned, checkpoint: str, *, once: bool) -> None:
        self.planned = planned
        self.figures = SinkFigures(planned.sink.name)
        self._checkpoint = checkpoint
        self._once = once
        self._query: Any = None
        self._is_started = False
        self._seen = ""
        self._failures = 0
        self._retry_at_s = 0.0
        self._stopping = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._guard = threading.Lock()
        self._last_written = -1

    def start(self) -> None:
        """Start the query."""
        self._is_started = True
        sink = self.planned.sink
        stream = self.planned.rows.writeStream.queryName(sink.name).outputMode(sink.mode)
        stream = stream.foreachBatch(self.batch_function())
        if self._once:
            stream = stream.trigger(availableNow=True)
        else:
            if trigger_ms := trigger_of(sink):
                stream = stream.trigger(processingTime=f"{trigger_ms} milliseconds")
        self._query = start_stream(stream.option("checkpointLocation", self._checkpoint))
        self.figures.state = RUNNING

    def batch_function(self) -> Any:
        """Return the function that Spark calls for each batch."""
        return self._write

    def wait_until_begun(self, timeout_s: float) -> None:
        """Wait until the query's processes have started; queries that start at the same time slow each other down."""
        deadline_s = time.monotonic() + timeout_s
        while self._query.isActive and time.monotonic() < deadline_s:
            if not self._query.status["message"].startswith(("Initializing", "Getting offsets")):
                return
            time.sleep(0.05)

    @property
    def is_started(self) -> bool:
        """True once ``start`` was called."""
        return self._is_started

    @property
    def is_over(self) -> bool:
        """True if the query has ended and will not be restarted."""
        return self.figures.state in (STOPPED, FAILED)

    def poll(self) -> None:
        """Update the figures, and restart the query if it has failed."""
        if self.is_over or not self.is_started:
            return
        if self.figures.state == RETRYING:
            if time.monotonic() >= self._retry_at_s and not self._stopping.is_set():
                try:
                    self.start()
                except Exception as error:  # Spark may raise anything
                    self._failed(error)
            return
        is_active = self._query.isActive
        self._take_reports()
        if is_active:
            return
        failure = self._query.exception()
        if failure is None or self._stopping.is_set():
            self.figures.state = STOPPED
            self.figures.error = ""
            return
        self._failed(failure)

    def stop(self) -> None:
        """Wait for the batch that is being written, then stop."""
        with self._guard:
            self._stopping.set()
        self._is_idle.wait()
        if self._query is not None:
            self._wait_for_commit()
            self._query.stop()
            self._take_reports()
        if not self.is_over:
            # A sink that waits for its next attempt has rows that it could not write.
            self.figures.state = FAILED if self.figures.state == RETRYING else STOPPED

    def abort(self) -> None:
        """Stop at once."""
        self._stopping.set()
        if self._query is not None:
            self._query.stop()
        if not self.is_over:
            self.figures.state = STOPPED

    def _write(self, rows: Any, batch_id: int) -> None:
        """Write a batch; Spark calls this in a separate thread."""
        with self._guard:
            if self._stopping.is_set():
                raise _Stopping
            self._is_idle.clear()
        try:
            self.figures.rows_out += self.planned.writer.write(rows, str(self._query_id(rows)), batch_id)
            self._last_written = batch_id
        finally:
            self._is_idle.set()

    @staticmethod
    def _query_id(rows: Any) -> str:
        """Return the query's id, which is stored in the checkpoint and stays the same in every run."""
        return str(rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))

    def _wait_for_commit(self) -> None:
        """Wait until the last written batch is in the checkpoint; the next batch ends the query by raising."""
        deadline_s = time.monotonic() + 10.0
        while self._query.isActive and time.monotonic() < deadline_s:
            report = last_progress(self._query)
            if self._last_written < 0 or (report and report["batchId"] >= self._last_written):
                return
            time.sleep(0.05)

    def _take_reports(self) -> None:
        for report in progress_after(self._query, self._seen):
            self._seen = report["timestamp"]
            before = self.figures.batch
            self.figures.add(report)
            if self.figures.batch > before:
                self._failures = 0
                self.figures.error = ""

    def _failed(self, error: Exception) -> None:
        text = str(error)
        self.figures.error = explain(error)
        self._failures += 1
        self.figures.failures += 1
        is_enough = self._once and self._failures >= MAX_FAILURES
        if is_enough or any(mark in text for mark in _FOR_GOOD):
            self.figures.state = FAILED
            return
        pause_s = min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S)
        self._retry_at_s = time.monotonic() + pause_s
        self.figures.state = RETRYING
