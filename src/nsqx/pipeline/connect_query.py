"""The streaming query of one sink at a Spark Connect server, where the server's process writes the batches.

The function of foreachBatch is pickled and runs beside the server's JVM. What it does there is known here from files of
the state directory: the rows that it wrote, and which run may begin batches. If this process is killed, the query goes
on until the next run of the pipeline begins. The process that writes the batches of a sink locks the directory of the
sink, so the old process has ended before the new one writes.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.errors import ConfigError, NSQError
from nsqx.pipeline.checkpoint import read_query_id
from nsqx.pipeline.figures import FAILED, RETRYING, STOPPED
from nsqx.pipeline.letter_counts import ROWS, note_count
from nsqx.pipeline.query import SinkQuery
from nsqx.pipeline.spark_errors import explain
from nsqx.pipeline.state import PipelineState
from nsqx.spark.lease import DirectoryInUse
from nsqx.spark.storage import open_storage

if TYPE_CHECKING:
    from nsqx.pipeline.plan import Planned
    from nsqx.pipeline.sinks import SinkWriter
    from nsqx.spark.storage import Lock

_RUN = "server-run.json"
# Spark stops the process of an earlier run when the query starts again.
_LOCK_WAIT_S = 30.0
_POLL_S = 0.1
_held: dict[str, Lock] = {}
"""The locks that this process of the server holds, until it ends."""


class PipelineStopping(NSQError):
    """A batch was begun after the run of its pipeline has ended."""


@dataclass(frozen=True, slots=True)
class RemoteBatches:
    """Writes the batches of one sink, in a process of the server."""

    writer: SinkWriter
    state: str
    sink: str
    run: str
    """The run of the pipeline that has started the query."""

    def __call__(self, rows: Any, batch_id: int) -> None:
        location = f"{self.state}/{self.sink}"
        if location not in _held:
            storage = open_storage(location)
            storage.create()
            _held[location] = storage.lock(_LOCK_WAIT_S)
            self.writer.recover()
        _held[location].verify()
        if (PipelineState(self.state).read(_RUN) or {}).get("run") != self.run:
            raise PipelineStopping("the run of the pipeline has ended")
        count = self.writer.write(rows, read_query_id(f"{location}/checkpoint"), batch_id)
        if count:
            note_count(self.state, ROWS, self.sink, count)


class RemoteSinkQuery(SinkQuery):
    """Runs one planned sink at the server."""

    def __init__(self, planned: Planned, checkpoint: str, state: str, run: str, *, once: bool) -> None:
        super().__init__(planned, checkpoint, once=once)
        self._batches = RemoteBatches(planned.writer, state, planned.sink.name, run)

    def batch_function(self) -> Any:
        """Return the function that the server calls for each batch."""
        return self._batches

    def poll(self) -> None:
        """Update the figures, and restart the query if it has failed; raises NSQError if the server is lost."""
        try:
            super().poll()
        except Exception as error:  # Spark may raise anything
            raise NSQError(
                f"the Spark Connect server is lost ({explain(error)}): start it again, then run the pipeline again"
            ) from None

    def abort(self) -> None:
        """Stop at once."""
        with contextlib.suppress(Exception):  # the server may be lost
            super().abort()

    def stop(self) -> None:
        """Wait for the batch that is being written, then stop; the caller has called ``end_server_run``."""
        self._stopping.set()
        if self._query is not None:
            while self._query.isActive and self._query.status["message"] == "Processing new data":
                time.sleep(_POLL_S)
            self._query.stop()
            self._take_reports()
        if not self.is_over:
            self.figures.state = FAILED if self.figures.state == RETRYING else STOPPED


def begin_server_run(state: PipelineState) -> str:
    """Let a new run, and no other one, begin batches at the server; return its identity."""
    run = uuid.uuid4().hex[:12]
    state.write(_RUN, {"run": run})
    return run


def end_server_run(state: PipelineState) -> None:
    """Let no query at a server begin another batch; no-op if there was never one."""
    if state.read(_RUN) is not None:
        state.write(_RUN, {"run": ""})


def check_not_at_server(location: str, sink: str) -> None:
    """Raise ConfigError if a Spark Connect server still writes batches of a sink, after its client was killed."""
    try:
        storage = open_storage(f"{location}/{sink}")
        if "lock" in storage.names():
            storage.lock(0.0).release()
    except DirectoryInUse as error:
        raise ConfigError(
            f"sink {sink} still runs at a Spark Connect server ({error.holder}): run the pipeline there again and stop"
            " it with Ctrl-C, or end the server"
        ) from None
