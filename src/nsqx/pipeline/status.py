"""The status of a pipeline, read from its state directory without Spark and NSQ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqx.errors import ConfigError
from nsqx.pipeline.state import STATUS, PipelineState

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline

EXIT_RUNNING = 0
EXIT_FAILED = 1
EXIT_NOT_RUNNING = 3
"""The exit code of init scripts for a stopped service."""


def status_lines(pipeline: Pipeline) -> tuple[list[str], int]:
    """Return the lines to print, and an exit code."""
    state = PipelineState(pipeline.state)
    status = state.read(STATUS)
    if status is None:
        return [f"{pipeline.name}: never run with state {pipeline.state}"], EXIT_NOT_RUNNING
    is_running = _is_held(state)
    sinks: dict[str, Any] = status["sinks"]
    has_failed = any(each["state"] == "failed" for each in sinks.values())
    if is_running:
        head = f"running since {status['began']} as process {status['pid']} on {status['host']}"
    elif status["state"] == "running":
        head = f"not running: killed after {status['written']}"
    else:
        head = f"not running: {'failed' if has_failed else 'stopped'} at {status['written']}"
    lines = [f"{pipeline.name}: {head}"]
    for name, each in sinks.items():
        lag = "unknown" if each["lag"] is None else f"{each['lag']:,}"
        lines.append(
            f"  {name}: batch {each['batch']}, {each['rows_in']:,} rows in, {each['rows_out']:,} out,"
            f" {each['rows_per_s']:,} rows/s, {each['batch_s']:.2f} s per batch, lag {lag}"
        )
        if each["error"]:
            lines.append(f"    {each['error']}")
    for source, fields in (status.get("unknown_fields") or {}).items():
        lines.append(f"  {source}: fields that are not in the schema: {', '.join(fields)}")
    return lines, EXIT_RUNNING if is_running else EXIT_FAILED if has_failed else EXIT_NOT_RUNNING


def _is_held(state: PipelineState) -> bool:
    try:
        state.lock().release()
    except ConfigError:
        return True
    return False
