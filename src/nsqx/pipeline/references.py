"""The references of a pipeline: which sources, tables and steps its steps and sinks read.

Spark's parser finds the names in SQL. No schema is needed, so the references are known before any schema is inferred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.pipeline.spark_errors import explain
from nsqx.spark.plan_text import tables_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqx.pipeline.model import Pipeline, Sink, Source, Step


@dataclass(frozen=True, slots=True)
class References:
    """The references of all sinks, and of the steps that they depend on."""

    steps: Mapping[str, tuple[str, ...]]
    """The names that each step reads."""
    sinks: Mapping[str, tuple[str, ...]]
    """The names that each sink depends on, directly or through steps; a step comes after the names that it reads."""
    sources: Mapping[str, tuple[Source, ...]]
    """The sources that each sink depends on."""

    def used_sources(self) -> tuple[Source, ...]:
        """Return the sources that any sink depends on."""
        return tuple({source.name: source for found in self.sources.values() for source in found}.values())

    def first_sink(self, name: str) -> str:
        """Return the name of the first sink that depends on a source, table or step."""
        return next(sink for sink, names in self.sinks.items() if name in names)


def find_references(spark: Any, pipeline: Pipeline) -> References:
    """Return the references of a pipeline; raises ConfigError for invalid SQL, cycles and sinks without a source."""
    steps: dict[str, tuple[str, ...]] = {}
    sinks: dict[str, tuple[str, ...]] = {}
    for sink in pipeline.sinks.values():
        names: dict[str, None] = {}
        _visit(spark, pipeline, sink.from_, (), steps, names)
        sinks[sink.name] = tuple(names)
    sources = {name: _sources_of(pipeline, pipeline.sinks[name], names) for name, names in sinks.items()}
    return References(steps, sinks, sources)


def names_read_by(spark: Any, pipeline: Pipeline, step: Step) -> tuple[str, ...]:
    """Return the sources, tables and steps that a step reads; raises ConfigError for invalid SQL."""
    if step.function:
        return (step.from_,)
    try:
        tables = tables_in(spark, step.sql)
    except Exception as error:
        raise pipeline.fail(f"step.{step.name}.sql", explain(error)) from None
    known = {name.lower(): name for name in pipeline.relations()}
    return tuple(known[name.lower()] for name in tables if name.lower() in known)


def _visit(
    spark: Any,
    pipeline: Pipeline,
    name: str,
    path: tuple[str, ...],
    steps: dict[str, tuple[str, ...]],
    found: dict[str, None],
) -> None:
    """Add a name and all names that it depends on to ``found``, and the references of its steps to ``steps``."""
    if name in path:
        way = " -> ".join([*path[path.index(name) :], name])
        raise pipeline.fail(f"step.{name}.sql", f"the step depends on itself: {way}")
    if name in pipeline.steps:
        if name not in steps:
            steps[name] = names_read_by(spark, pipeline, pipeline.steps[name])
        for each in steps[name]:
            _visit(spark, pipeline, each, (*path, name), steps, found)
    found[name] = None


def _sources_of(pipeline: Pipeline, sink: Sink, names: tuple[str, ...]) -> tuple[Source, ...]:
    found = tuple(pipeline.sources[name] for name in names if name in pipeline.sources)
    if not found:
        raise pipeline.fail(
            f"sink.{sink.name}.from", f"{sink.from_} reads no source: use a source or a step that reads one"
        )
    topics: dict[tuple[str, str], str] = {}
    for source in found:
        for topic in source.topics or (source.pattern,):
            other = topics.setdefault((topic, source.channel), source.name)
            if other != source.name:
                raise pipeline.fail(
                    f"source.{source.name}.channel",
                    f"{sink.from_} reads {topic} through source {other} too, and they would share its messages:"
                    " give one of them another channel",
                )
    return found
