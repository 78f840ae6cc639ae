"""Runs planned sinks until a signal stops it, a bounded run (``once``) is complete, or every sink has failed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.errors import ConfigError
from nsqx.pipeline.connect_query import RemoteSinkQuery, begin_server_run, check_not_at_server, end_server_run
from nsqx.pipeline.display import summary_of
from nsqx.pipeline.figures import FAILED
from nsqx.pipeline.metrics import MetricsServer
from nsqx.pipeline.query import SinkQuery
from nsqx.pipeline.query_change import check_query
from nsqx.pipeline.schema_change import check_columns
from nsqx.pipeline.sharing import starts_of, trim_decoded
from nsqx.pipeline.spark_errors import explain
from nsqx.pipeline.state import STATUS, start_file
from nsqx.spark.jvm import has_jvm
from nsqx.spark.s3_urls import for_spark

if TYPE_CHECKING:
    from nsqx.pipeline.display import Display
    from nsqx.pipeline.figures import SinkFigures
    from nsqx.pipeline.model import Pipeline
    from nsqx.pipeline.plan import Planned
    from nsqx.pipeline.sharing import Sharing
    from nsqx.pipeline.state import PipelineState

_POLL_INTERVAL_S = 0.2
_STATUS_INTERVAL_S = 2.0
_BEGIN_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a pipeline."""

    once: bool = False
    """Process the messages that are in the channels now, then end."""
    accepts_schema_change: bool = False
    master: str = ""
    verbose: bool = False
    metrics_address: str = ""
    """Where to serve metrics; overrides the address of the pipeline."""


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The result of a run."""

    failed_sinks: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 1 if a sink has failed."""
        return 1 if self.failed_sinks else 0


class Runner:
    """Runs the queries of all sinks."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: PipelineState,
        planned: Sequence[Planned],
        sharing: Sharing,
        options: RunOptions,
        display: Display,
    ) -> None:
        self._pipeline = pipeline
        self._state = state
        self._planned = planned
        self._is_remote = any(not has_jvm(each.rows.sparkSession) for each in planned)
        self._sharing = sharing
        self._options = options
        self._display = display
        self._run = ""
        self._queries: list[SinkQuery] = []
        self._drift: dict[str, set[str]] = {}
        self._status_s = 0.0
        self._trimmed_batches = -1
        self._has_report_failed = False
        self._began_s = time.time()

    def run(self, stopping: threading.Event) -> PipelineResult:
        """Run until all queries end or ``stopping`` is set; raises ConfigError before any message is consumed."""
        self._prepare()
        address = self._options.metrics_address or self._pipeline.metrics_address
        with MetricsServer(self._pipeline.name, self._figures) if address else nullcontext() as metrics:
            if metrics is not None:
                self._display.note(f"metrics at {metrics.listen(address)}")
            try:
                self._run_queries(stopping)
            finally:
                self._report("ended")
        return PipelineResult(tuple(query.figures.sink for query in self._queries if query.figures.state == FAILED))

    def _figures(self) -> list[SinkFigures]:
        return [query.figures for query in self._queries]

    def _prepare(self) -> None:
        """Compare queries and columns with those of the last run, and prepare the writers; raises ConfigError."""
        accepts = self._options.accepts_schema_change
        for each in self._planned:
            has_state = self._state.has(f"{each.sink.name}/checkpoint/offsets")
            check_query(self._pipeline, self._state, each, accepts=accepts, has_state=has_state)
            for text in check_columns(self._pipeline, self._state, each, accepts=accepts):
                self._display.note(text)
        for source in self._pipeline.sources.values():
            self._drift[source.name] = self._state.drift(source.name)
        # Notes of a run that was killed.
        self._state.new_dead_letters()
        self._state.new_rows()
        if self._is_remote:
            self._run = begin_server_run(self._state)
        else:
            end_server_run(self._state)
        for each in self._planned:
            try:
                each.writer.prepare()
                if not self._is_remote:
                    # Otherwise the server does this, when an earlier query of the sink has ended.
                    check_not_at_server(self._pipeline.state, each.sink.name)
                    each.writer.recover()
            except ConfigError as error:
                raise self._pipeline.fail(f"sink.{each.sink.name}", str(error)) from None

    def _run_queries(self, stopping: threading.Event) -> None:
        for each in self._planned:
            checkpoint = for_spark(f"{self._pipeline.state}/{each.sink.name}/checkpoint")
            query = (
                RemoteSinkQuery(each, checkpoint, self._pipeline.state, self._run, once=self._options.once)
                if self._is_remote
                else SinkQuery(each, checkpoint, once=self._options.once)
            )
            read = [self._pipeline.sources[name] for name in each.shared]
            starts = self._state.read(start_file(each.sink)) or {}
            query.figures.starts = starts | starts_of(self._state, each.sink.name, read)
            self._queries.append(query)
        with self._display:
            try:
                if not stopping.is_set():
                    self._start_all()
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
            figures = self._figures()
            self._display.end(figures)
            for line in summary_of(figures, time.time() - self._began_s):
                self._display.note(line)

    def _start_all(self) -> None:
        """Start the queries that are not started; in a bounded run a sink starts after its rows are decoded."""
        working = {query.planned.sink.name for query in self._queries if not query.is_over}
        for query in self._queries:
            must_wait = self._options.once and working & set(query.planned.shared.values())
            if not query.is_started and not must_wait:
                self._start(query)

    def _start(self, query: SinkQuery) -> None:
        try:
            query.start()
            if query is not self._queries[-1]:
                query.wait_until_begun(_BEGIN_TIMEOUT_S)
        except Exception as error:
            raise self._pipeline.fail(f"sink.{query.planned.sink.name}", explain(error)) from None

    def _stop(self) -> None:
        if self._is_remote:
            end_server_run(self._state)
        threads = [threading.Thread(target=query.stop) for query in self._queries if not query.is_over]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _is_over(self) -> bool:
        return all(query.is_over for query in self._queries)

    def _poll(self) -> None:
        for query in self._queries:
            was_over = query.is_over
            query.poll()
            if query.figures.state == FAILED and not was_over:
                self._note_failed(query.figures)
        self._start_all()
        self._display.show(self._figures())
        if time.monotonic() - self._status_s >= _STATUS_INTERVAL_S:
            self._status_s = time.monotonic()
            self._report("running")

    def _note_failed(self, figures: SinkFigures) -> None:
        going_on = [query.figures.sink for query in self._queries if not query.is_over]
        others = f"; {', '.join(going_on)} {'goes' if len(going_on) == 1 else 'go'} on" if going_on else ""
        self._display.note(f"{figures.sink}: failed, and is not tried again in this run: {figures.error}{others}")

    def _report(self, state: str) -> None:
        """Write the status and read notes of unknown fields; a failure is shown once and does not stop the queries."""
        try:
            self._count_notes()
            self._write_status(state)
            self._trim()
            self._report_unknown_fields()
        except OSError as error:
            if not self._has_report_failed:
                self._display.note(f"{self._state.location}: cannot write the status: {error}")
            self._has_report_failed = True
        else:
            self._has_report_failed = False

    def _trim(self) -> None:
        """Remove decoded rows that all sinks have read, if there are any new ones."""
        batches = sum(query.figures.batches for query in self._queries)
        if batches != self._trimmed_batches:
            trim_decoded(self._pipeline, self._state, self._sharing)
            self._trimmed_batches = batches

    def _count_notes(self) -> None:
        for sink, count in self._state.new_dead_letters().items():
            for query in self._queries:
                if query.planned.sink.name == sink:
                    query.figures.dead_letters += count
        for sink, count in self._state.new_rows().items() if self._is_remote else ():
            for query in self._queries:
                if query.planned.sink.name == sink:
                    query.figures.rows_out += count

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
