"""The output of ``nsqx pipeline explain``: sources, steps and sinks of a pipeline with their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nsqx.pipeline.model import FILE_SINKS, SHARED, trigger_of
from nsqx.pipeline.references import names_read_by
from nsqx.pipeline.schemas import find_schemas, not_inferred

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline, Sink, Source, Step
    from nsqx.pipeline.plan import Planned


def explain_pipeline(spark: Any, pipeline: Pipeline, planned: Sequence[Planned]) -> Iterator[str]:
    """Yield the lines that describe a pipeline; raises ConfigError if a schema has not been inferred."""
    schemas = find_schemas(pipeline, pipeline.sources.values())
    if schemas.missing:
        raise not_inferred(pipeline, schemas.missing[0])
    place = f"nsqlookupd {', '.join(pipeline.nsq.lookupd)}" if pipeline.nsq.lookupd else ", ".join(pipeline.nsq.nsqd)
    yield f"pipeline {pipeline.name} on {place}, state in {pipeline.state}"
    dead = pipeline.dead_letters
    yield f"dead letters: {f'topic {dead.topic}' if dead.topic else dead.directory}"
    for source in pipeline.sources.values():
        yield ""
        yield from _source_lines(source, schemas.known[source.name])
    for table in pipeline.tables.values():
        yield ""
        yield f"table {table.name}: {table.format} {table.path}"
    for step in pipeline.steps.values():
        yield ""
        yield from _step_lines(step, names_read_by(spark, pipeline, step))
    for each in planned:
        yield ""
        yield from _sink_lines(pipeline, each)


def _source_lines(source: Source, schema: Any) -> Iterator[str]:
    topics = f"topics matching {source.pattern}" if source.pattern else f"topic {', '.join(source.topics)}"
    yield f"source {source.name}: {topics} as {source.format}"
    if schema is not None:
        yield f"  columns: {_columns(schema)}"
    for condition in source.require:
        yield f"  requires: {condition}"
    if source.watermark is not None:
        yield f"  watermark: {source.watermark.column}, rows may be late by {source.watermark.delay}"
    if source.dedup:
        yield f"  one row for each {', '.join(source.dedup)}"


def _step_lines(step: Step, names: Sequence[str]) -> Iterator[str]:
    yield f"step {step.name}: from {', '.join(names) or 'nothing'}"
    if step.function:
        yield f"  function {step.function}"
    for line in step.sql.splitlines():
        yield f"  | {line}"


def _sink_lines(pipeline: Pipeline, planned: Planned) -> Iterator[str]:
    sink = planned.sink
    if sink.type == SHARED:
        yield from _shared_lines(pipeline, planned)
        return
    yield f"sink {sink.name}: {sink.from_} -> {sink.type} {_target(sink)}"
    yield f"  columns: {_columns(planned.rows.schema)}"
    for source in planned.sources:
        yield f"  reads {source.name} through channel {pipeline.channel_of(source, sink)}"
    for name, shared in planned.shared.items():
        yield f"  reads {name} through {shared}"
    trigger_ms = trigger_of(sink)
    yield f"  mode {sink.mode}, {f'every {trigger_ms / 1000:g} s' if trigger_ms else 'as soon as there are rows'}"
    yield f"  {GUARANTEES[sink.type]}"


def _shared_lines(pipeline: Pipeline, planned: Planned) -> Iterator[str]:
    sink, (source,) = planned.sink, planned.sources
    yield f"{sink.name}: reads and decodes {source.name} once for several sinks"
    yield f"  reads {source.name} through channel {pipeline.channel_of(source, sink)}"
    trigger_ms = trigger_of(sink)
    yield f"  {f'every {trigger_ms / 1000:g} s' if trigger_ms else 'as soon as there are messages'}"


GUARANTEES = {
    **dict.fromkeys(FILE_SINKS, "exactly once, for every reader"),
    "delta": "exactly once",
    "jdbc": "exactly once",
    "topic": "exactly once if [nsq] nsqd is set and every nsqd has a log for the topic, else at least once",
    "foreach": "at least once",
    "console": "at least once",
}


def _target(sink: Sink) -> str:
    if sink.path:
        return f"{sink.path}{''.join(f'/{name}=…' for name in sink.partition_by)}"
    return sink.topic or sink.table or sink.function or ("by column topic" if sink.type == "topic" else "")


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
