"""The output of ``nsqx pipeline explain``: sources, steps and sinks of a pipeline with their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nsqx.pipeline.query import FILE_TRIGGER_MS

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline, Sink, Source, Step
    from nsqx.pipeline.plan import Planned, Planner


def explain_pipeline(pipeline: Pipeline, planner: Planner, planned: Sequence[Planned]) -> Iterator[str]:
    """Yield the lines that describe a pipeline."""
    place = f"nsqlookupd {', '.join(pipeline.nsq.lookupd)}" if pipeline.nsq.lookupd else ", ".join(pipeline.nsq.nsqd)
    yield f"pipeline {pipeline.name} on {place}, state in {pipeline.state}"
    dead = pipeline.dead_letters
    yield f"dead letters: {f'topic {dead.topic}' if dead.topic else dead.directory}"
    for source in pipeline.sources.values():
        yield ""
        yield from _source_lines(source, planner)
    for table in pipeline.tables.values():
        yield ""
        yield f"table {table.name}: {table.format} {table.path}"
    for step in pipeline.steps.values():
        yield ""
        yield from _step_lines(step, planner)
    for each in planned:
        yield ""
        yield from _sink_lines(pipeline, each)


def _source_lines(source: Source, planner: Planner) -> Iterator[str]:
    topics = f"topics matching {source.pattern}" if source.pattern else f"topic {', '.join(source.topics)}"
    yield f"source {source.name}: {topics} as {source.format}"
    schema = planner.schema_of(source)
    if schema is not None:
        yield f"  columns: {_columns(schema)}"
    for condition in source.require:
        yield f"  requires: {condition}"
    if source.watermark is not None:
        yield f"  watermark: {source.watermark.column}, rows may be late by {source.watermark.delay}"
    if source.dedup:
        yield f"  one row for each {', '.join(source.dedup)}"


def _step_lines(step: Step, planner: Planner) -> Iterator[str]:
    yield f"step {step.name}: from {', '.join(planner.references(step)) or 'nothing'}"
    if step.function:
        yield f"  function {step.function}"
    for line in step.sql.splitlines():
        yield f"  | {line}"


def _sink_lines(pipeline: Pipeline, planned: Planned) -> Iterator[str]:
    sink = planned.sink
    yield f"sink {sink.name}: {sink.from_} -> {sink.type} {_target(sink)}"
    yield f"  columns: {_columns(planned.rows.schema)}"
    for source in planned.sources:
        yield f"  reads {source.name} through channel {pipeline.channel_of(source, sink)}"
    trigger_ms = sink.trigger_ms or (FILE_TRIGGER_MS if sink.path else 0)
    yield f"  mode {sink.mode}, {f'every {trigger_ms / 1000:g} s' if trigger_ms else 'as soon as there are rows'}"
    yield f"  {GUARANTEES[sink.type]}"


GUARANTEES = {
    **dict.fromkeys(("parquet", "json", "csv"), "exactly once, for every reader"),
    "jdbc": "exactly once",
    "topic": "at least once",
    "foreach": "at least once",
    "console": "at least once",
}


def _target(sink: Sink) -> str:
    if sink.path:
        return f"{sink.path}{''.join(f'/{name}=…' for name in sink.partition_by)}"
    return sink.topic or sink.table or sink.function or ("by column topic" if sink.type == "topic" else "")


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
