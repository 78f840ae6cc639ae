"""Runs a planned pipeline until a signal stops it, a bounded run (``once``) is complete, or a sink fails."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nsqx.errors import ConfigError
from nsqx.pipeline.figures import FAILED
from nsqx.pipeline.query import SinkQuery
from nsqx.pipeline.schema_change import check_columns
from nsqx.pipeline.spark_errors import explain
from nsqx.pipeline.state import STATUS, PipelineState
from nsqx.spark.s3_urls import for_spark

if TYPE_CHECKING:
    from nsqx.pipeline.display import Display
    from nsqx.pipeline.model import Pipeline
    from nsqx.pipeline.plan import Planned

_POLL_INTERVAL_S = 0.2
_STATUS_INTERVAL_S = 2.0
_LOCK_WAIT_S = 5.0
_BEGIN_TIMEOUT_S = 5.0


class Runner:
    """One run of a pipeline."""

    def __init__(
        self, pipeline: Pipeline, display: Display, *, once: bool, accepts_schema_change: bool = False
    ) -> None:
        self._pipeline = pipeline
        self._display = display
        self._once = once
        self._accepts = accepts_schema_change
        self._state = PipelineState(pipeline.state)
        self._queries: list[SinkQuery] = []
        self._drift: dict[str, set[str]] = {}
        self._status_s = 0.0
        self._has_report_failed = False
        self._began_s = time.time()

    def run(self, plan: Callable[[], Sequence[Planned]], stopping: threading.Event) -> int:
        """Plan and run; return 0, or 1 if a sink has failed. Raises ConfigError before any message is consumed."""
        self._state.create()
        lock = self._state.lock(_LOCK_WAIT_S)
        try:
            planned = plan()
            self._prepare(planned)
            try:
                self._run_queries(planned, stopping)
            finally:
                self._report("ended")
        finally:
            lock.release()
        return 1 if any(query.figures.state == FAILED for query in self._queries) else 0

    def _prepare(self, planned: Sequence[Planned]) -> None:
        for each in planned:
            for text in check_columns(self._pipeline, self._state, each, accepts=self._accepts):
                self._display.note(text)
        for source in self._pipeline.sources.values():
            self._drift[source.name] = self._state.drift(source.name)
        for each in planned:
            try:
                each.writer.prepare()
            except ConfigError as error:
                raise self._pipeline.fail(f"sink.{each.sink.name}", str(error)) from None

    def _run_queries(self, planned: Sequence[Planned], stopping: threading.Event) -> None:
        for each in planned:
            checkpoint = for_spark(f"{self._pipeline.state}/{each.sink.name}/checkpoint")
            self._queries.append(SinkQuery(each, checkpoint, once=self._once))
        with self._display:
            try:
                for query in self._queries if not stopping.is_set() else []:
                    self._start(query)
                while not self._is_over() and not stopping.wait(_POLL_INTERVAL_S):
                    self._poll()
            except BaseException:
                for query in self._queries:
                    query.abort()
                raise
            if stopping.is_set():
                self._display.note("stopping after the current batches")
            self._stop()
            self._report("running")
            self._display.end([query.figures for query in self._queries])

    def _start(self, query: SinkQuery) -> None:
        try:
            query.start()
            if query is not self._queries[-1]:
                query.wait_until_begun(_BEGIN_TIMEOUT_S)
        except Exception as error:
            raise self._pipeline.fail(f"sink.{query.planned.sink.name}", explain(error)) from None

    def _stop(self) -> None:
        threads = [threading.Thread(target=query.stop) for query in self._queries if not query.is_over]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _is_over(self) -> bool:
        return all(query.is_over for query in self._queries) or any(
            query.figures.state == FAILED for query in self._queries
        )

    def _poll(self) -> None:
        for query in self._queries:
            query.poll()
        self._display.show([query.figures for query in self._queries])
        if time.monotonic() - self._status_s >= _STATUS_INTERVAL_S:
            self._status_s = time.monotonic()
            self._report("running")

    def _report(self, state: str) -> None:
        """Write the status and read notes of unknown fields; a failure is shown once and does not stop the queries."""
        try:
            self._write_status(state)
            self._report_unknown_fields()
        except OSError as error:
            if not self._has_report_failed:
                self._display.note(f"{self._state.location}: cannot write the status: {error}")
            self._has_report_failed = True
        else:
            self._has_report_failed = False

    def _report_unknown_fields(self) -> None:
        for name, known in self._drift.items():
            found = self._state.drift(name)
            for field in sorted(found - known):
                self._display.note(
                    f"source.{name}: messages have a field {field} that is not in the schema: add it to the schema if"
                    " you need it"
                )
            self._drift[name] = known | found

    def _write_status(self, state: str) -> None:
        status: Mapping[str, Any] = {
            "pipeline": self._pipeline.name,
            "state": state,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "began": _utc(self._began_s),
            "written": _utc(time.time()),
            "sinks": {query.planned.sink.name: query.figures.as_json() for query in self._queries},
            "unknown_fields": {name: sorted(fields) for name, fields in self._drift.items() if fields},
        }
        self._state.write(STATUS, status)


def _utc(time_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
