"""Reset of one sink: forgets the state of its query, and keeps its position.

The state of a query is Spark's checkpoint, with the aggregates and the rows remembered for ``dedup``. A new query goes
on with the first row that the old one has not written, so nothing is lost or written twice: rows that were received
stay in the segment directory, and its position is set to the end of the last batch that was written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from nsqx.errors import ConfigError
from nsqx.pipeline.backfill import plan_file_name, read_plan
from nsqx.pipeline.checkpoint import read_checkpoint
from nsqx.pipeline.connect_query import check_not_at_server
from nsqx.pipeline.figures import positions_of
from nsqx.pipeline.file_sink import COMMIT, locate
from nsqx.pipeline.log_mode import set_log_positions
from nsqx.pipeline.model import FILE_SINKS, source_options
from nsqx.pipeline.query_change import plan_file
from nsqx.pipeline.sharing import position_file, store_start
from nsqx.pipeline.sinks import file_sink
from nsqx.pipeline.state import PipelineState, start_file
from nsqx.spark.options import read_source_options
from nsqx.spark.segments import SegmentDirectory

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline, Sink

_CHECKPOINT = "checkpoint"
_REMOVED = "checkpoint.removed"
_SEGMENTS = "segments-"


@dataclass(frozen=True, slots=True)
class SinkCheckpoint:
    """What the checkpoint of a query records."""

    query: str
    batch: int
    """The last batch that was completed; -1 before the first one."""
    is_in_doubt: bool
    """A later batch was begun and not completed, and some of its rows may have been written."""
    ends: tuple[dict[str, Any], ...]
    """The offsets of all sources after ``batch``."""


class SinkReset:
    """The reset of one sink. The caller holds the lock of the state directory."""

    def __init__(self, pipeline: Pipeline, state: PipelineState, sink: Sink) -> None:
        self._pipeline = pipeline
        self._state = state
        self._sink = sink
        self._own_state = PipelineState(f"{pipeline.state}/{sink.name}")
        self._filesystem, self._root = locate(f"{pipeline.state}/{sink.name}")
        self._commit = self._own_state.read(COMMIT) if sink.type in FILE_SINKS else None
        self.checkpoint = self._read_checkpoint()

    @property
    def reads_logs(self) -> bool:
        """True if the query has read logs, whose positions are at nsqd."""
        ends = self.checkpoint.ends if self.checkpoint is not None else ()
        return any("rows" not in end and positions_of(end) for end in ends)

    def describe(self) -> Iterator[str]:
        """Yield the lines that say what the reset does."""
        sink = self._sink
        if self.checkpoint is None:
            yield f"sink {sink.name} of pipeline {self._pipeline.name} has no state"
            return
        yield f"sink {sink.name} of pipeline {self._pipeline.name} is reset after batch {self.checkpoint.batch}:"
        yield "  - the state of its aggregates, joins and dedup is removed: they start again from nothing"
        yield f"  - what it has written to {sink.path or sink.topic or sink.table or sink.type} stays"
        yield "  - it goes on with the messages that it has not written; the other sinks are not affected"
        if self.checkpoint.is_in_doubt:
            yield (
                f"  - batch {self.checkpoint.batch + 1} was begun and not completed: all of its rows are written again,"
                " and those that it has written are then there twice"
            )

    def apply(self) -> None:
        """Reset the sink; an interrupted reset can be repeated. Raises ConfigError."""
        check_not_at_server(self._pipeline.state, self._sink.name)
        if self._sink.type in FILE_SINKS and self._commit is not None:
            # The files of the last batch may still have their temporary names.
            writer = file_sink(self._pipeline, self._sink, ())
            writer.prepare()
            writer.recover()
        if self.checkpoint is not None:
            self._keep_position(self.checkpoint)
            self._remove_checkpoint()
        self._own_state.delete(COMMIT)
        self._state.delete(f"columns-{self._sink.name}.json")
        self._state.delete(plan_file(self._sink))

    def _read_checkpoint(self) -> SinkCheckpoint | None:
        # The files of a batch that commit.json lists are complete, although Spark may not have recorded the batch.
        completed = (self._commit["query"], self._commit["batch"]) if self._commit is not None else None
        found = read_checkpoint(f"{self._pipeline.state}/{self._sink.name}/{_CHECKPOINT}", completed)
        if found is None:
            return None
        # Files of a batch that was not completed are invisible, and are removed.
        is_in_doubt = found.begun > found.batch and self._sink.type not in FILE_SINKS
        return SinkCheckpoint(found.query, found.batch, is_in_doubt, found.ends)

    def _keep_position(self, checkpoint: SinkCheckpoint) -> None:
        """Set the position of each source to the end of the last completed batch; raises ConfigError."""
        ends: dict[str, int] = {}
        for end in checkpoint.ends:
            ends |= positions_of(end)
        if self.reads_logs:
            for source in self._pipeline.sources.values():
                missing = set_log_positions(self._pipeline, source, self._sink, ends)
                if missing:
                    raise ConfigError(
                        f"nothing was changed: no nsqd answers for {', '.join(missing)} (topic/log): start it, then"
                        " reset the sink again"
                    )
        for source in self._pipeline.sources.values():
            shared = self._state.read(position_file(self._sink.name, source.name))
            if shared is not None and shared["identity"] in ends:
                identity = shared["identity"]
                store_start(self._state, self._sink.name, source.name, identity, ends.pop(identity))
        if "#archive" in ends:
            self._keep_backfill(ends.pop("#archive"), ends)
        self._state.write(start_file(self._sink), ends)
        for source in self._pipeline.sources.values():
            if self._filesystem.get_file_info(f"{self._root}/{_SEGMENTS}{source.name}").type == pafs.FileType.NotFound:
                continue
            options = read_source_options(source_options(self._pipeline, source, self._sink))
            directory = SegmentDirectory.open(
                options.segment_dir,
                channel=options.channel,
                max_in_flight=options.max_in_flight,
                window_rows=options.dedup_window,
                lock_wait_s=0.0,
            )
            try:
                directory.commit(ends.get(directory.state.identity, 0))
            finally:
                directory.close(is_clean=directory.state.is_clean)

    def _keep_backfill(self, rows: int, ends: Mapping[str, int]) -> None:
        """Remove the files that were read from the plan of a backfill."""
        for source in self._pipeline.sources.values():
            name = plan_file_name(self._sink.name, source.name)
            plan = read_plan(self._state, name)
            if plan is not None:
                self._state.write(name, plan.after(rows, ends).as_json())

    def _remove_checkpoint(self) -> None:
        path, removed = f"{self._root}/{_CHECKPOINT}", f"{self._root}/{_REMOVED}"
        if isinstance(self._filesystem, pafs.LocalFileSystem):
            # A checkpoint that is half removed would confuse the next run.
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.delete_dir(removed)
            os.rename(path, removed)
            path = removed
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_dir(path)


def find_sink(pipeline: Pipeline, name: str) -> Sink:
    """Return a sink of the pipeline; raises ConfigError."""
    if name not in pipeline.sinks:
        raise ConfigError(f"{pipeline.file}: no sink {name!r}: use one of {', '.join(pipeline.sinks)}")
    return pipeline.sinks[name]
