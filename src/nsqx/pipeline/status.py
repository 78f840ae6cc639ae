"""The status of a pipeline, read from its state directory without Spark and NSQ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.errors import ConfigError
from nsqx.pipeline.figures import FAILED
from nsqx.pipeline.state import STATUS, PipelineState

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline

EXIT_RUNNING = 0
EXIT_FAILED = 1
EXIT_NOT_RUNNING = 3
"""The exit code of init scripts for a stopped service."""
NEVER_RUN, RUNNING, KILLED, FAILED_RUN, STOPPED = "never run", "running", "killed", "failed", "stopped"


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The state of a pipeline, and the figures of its current or last run."""

    name: str
    location: str
    """The state directory."""
    state: str
    figures: Mapping[str, Any]
    """The content of status.json; empty if the pipeline has never run."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        if self.state == FAILED_RUN or (self.state == RUNNING and self.failed_sinks):
            return EXIT_FAILED
        return EXIT_RUNNING if self.state == RUNNING else EXIT_NOT_RUNNING

    @property
    def failed_sinks(self) -> list[str]:
        """The sinks that have failed and are not tried again in the run."""
        return [name for name, each in (self.figures.get("sinks") or {}).items() if each["state"] == FAILED]

    def as_json(self) -> str:
        """Return the status as JSON, with the figures of each sink."""
        found = {**self.figures, "pipeline": self.name, "state": self.state}
        return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        if self.state == NEVER_RUN:
            yield f"{self.name}: never run with state {self.location}"
            return
        found = self.figures
        if self.state == RUNNING:
            yield f"{self.name}: running since {found['began']} as process {found['pid']} on {found['host']}"
        elif self.state == KILLED:
            yield f"{self.name}: not running: killed after {found['written']}"
        else:
            yield f"{self.name}: not running: {self.state} at {found['written']}"
        for name, each in found["sinks"].items():
            yield from _sink_lines(name, each)
        for source, fields in (found.get("unknown_fields") or {}).items():
            yield f"  {source}: fields that are not in the schema: {', '.join(fields)}"


def read_status(pipeline: Pipeline) -> PipelineStatus:
    """Return the status of a pipeline."""
    state = PipelineState(pipeline.state)
    figures = state.read(STATUS)
    if figures is None:
        return PipelineStatus(pipeline.name, pipeline.state, NEVER_RUN, {})
    if _is_held(state):
        kind = RUNNING
    elif figures["state"] == "running":
        kind = KILLED
    else:
        kind = STOPPED
    found = PipelineStatus(pipeline.name, pipeline.state, kind, figures)
    return replace(found, state=FAILED_RUN) if kind == STOPPED and found.failed_sinks else found


def _sink_lines(name: str, figures: Mapping[str, Any]) -> Iterator[str]:
    lag = "unknown" if figures["lag"] is None else f"{figures['lag']:,}"
    state = "" if figures["state"] in (RUNNING, STOPPED) else f"{figures['state']}, "
    yield (
        f"  {name}: {state}batch {figures['batch']}, {figures['rows_in']:,} rows in, {figures['rows_out']:,} out,"
        f" {figures['rows_per_s']:,} rows/s, {figures['batch_s']:.2f} s per batch, lag {lag}"
    )
    # Status files of older versions have no such figures.
    dead, late, failures = (figures.get(key, 0) for key in ("dead_letters", "late_rows", "failures"))
    if dead or late or failures:
        yield f"    {dead:,} dead letters, {late:,} late rows dropped, {failures:,} failures"
    if figures["error"]:
        yield f"    {figures['error']}"


def _is_held(state: PipelineState) -> bool:
    try:
        state.lock().release()
    except ConfigError:
        return True
    return False
