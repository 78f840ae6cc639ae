"""The planner: builds one streaming DataFrame for each sink from sources, tables and steps.

Planning consumes no messages. It finds every error that Spark can find, and reports it with the key of the file.

Each sink has its own streaming query, its own session, and its own channel for each source. Sinks therefore do not wait
for each other, and nsqadmin shows the lag of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nsqx.errors import ConfigError
from nsqx.pipeline.avro import spark_schema_json
from nsqx.pipeline.dead_letters import DeadLetters
from nsqx.pipeline.decode import META, Decoder, RequirementWrong
from nsqx.pipeline.functions import MapStage, RowFunction, find_function, module_file
from nsqx.pipeline.model import INFER, Pipeline, Sink, Source, Step, Table, Watermark, source_options
from nsqx.pipeline.session import sink_session
from nsqx.pipeline.sinks import SinkWriter, make_writer
from nsqx.pipeline.spark_errors import condition_of, explain, parameter_of
from nsqx.pipeline.state import DriftNotes, PipelineState
from nsqx.spark.jvm import check_output_mode, tables_in
from nsqx.spark.options import ClusterAddresses, read_sink_options
from nsqx.spark.s3_urls import check_spark_reaches, for_spark


@dataclass(frozen=True, slots=True)
class Planned:
    """A sink that is ready to start, with its rows, sources and writer."""

    sink: Sink
    rows: Any
    sources: tuple[Source, ...]
    writer: SinkWriter


class NotInferred(ConfigError):
    """The schema of a source must be inferred, and there is no sample yet."""

    def __init__(self, file: str, source: Source) -> None:
        super().__init__(f"{file}: source.{source.name}.schema: not inferred yet: the first run infers it")
        self.source = source


class Planner:
    """Plans one pipeline on one Spark session."""

    def __init__(self, spark: Any, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._state = PipelineState(pipeline.state)
        self._references: dict[str, tuple[str, ...]] = {}
        self._dead_letters = DeadLetters(
            pipeline.name, pipeline.dead_letters.topic, pipeline.dead_letters.directory, self._cluster()
        )

    def plan(self) -> list[Planned]:
        """Return a plan for each sink; raises ConfigError, or NotInferred."""
        self._add_files()
        used = {sink.name: self._used_by(sink) for sink in self._pipeline.sinks.values()}
        dead_letter_sinks: dict[str, str] = {}
        for sink_name, relations in used.items():
            for relation in relations:
                # If several sinks read a source or call a function, the first one writes the dead letters.
                dead_letter_sinks.setdefault(relation, sink_name)
        return [
            self._plan_sink(sink, self._sources_among(sink, used[sink.name]), dead_letter_sinks)
            for sink in self._pipeline.sinks.values()
        ]

    def schema_of(self, source: Source) -> Any:
        """Return the StructType of a source's records; None for text and raw."""
        from pyspark.sql.types import DataType, StructType

        if source.format in ("text", "raw"):
            return None
        key = f"source.{source.name}.schema"
        text = source.schema
        if text == INFER:
            kept = self._state.read(schema_file(source))
            if kept is None:
                raise NotInferred(self._pipeline.file, source)
            text = kept["schema"]
        try:
            if source.format == "avro":
                schema: Any = StructType.fromJson(spark_schema_json(text))
            elif text.lstrip().startswith("{"):
                import json

                schema = StructType.fromJson(json.loads(text))
            else:
                schema = DataType.fromDDL(text)
        except ConfigError as error:
            raise self._pipeline.fail(key, str(error)) from None
        except Exception as error:  # Spark raises various errors for JSON that is not a schema
            raise self._pipeline.fail(key, f"invalid schema: {explain(error)}") from None
        taken = sorted({field.name for field in schema.fields} & set(META.values()))
        if taken:
            raise self._pipeline.fail(key, f"{', '.join(taken)} is a column that the pipeline adds: rename the field")
        return schema

    def references(self, step: Step) -> tuple[str, ...]:
        """Return the sources, tables and steps that a step reads."""
        if step.name not in self._references:
            self._references[step.name] = tuple(self._find_references(step))
        return self._references[step.name]

    def _cluster(self) -> ClusterAddresses:
        try:
            return read_sink_options(self._pipeline.nsq.settings(), has_topic_column=True).cluster
        except ConfigError as error:
            raise self._pipeline.fail("nsq", str(error).removeprefix("nsq: ")) from None

    def _find_references(self, step: Step) -> Iterator[str]:
        if step.function:
            yield step.from_
            return
        try:
            names = tables_in(self._spark, step.sql)
        except Exception as error:
            raise self._pipeline.fail(f"step.{step.name}.sql", explain(error)) from None
        known = {name.lower(): name for name in self._relations()}
        for name in names:
            if name.lower() in known:
                yield known[name.lower()]

    def _relations(self) -> list[str]:
        return [*self._pipeline.sources, *self._pipeline.tables, *self._pipeline.steps]

    def _used_by(self, sink: Sink) -> tuple[str, ...]:
        """Return all sources, tables and steps that a sink depends on."""
        found: dict[str, None] = {}

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                way = " -> ".join([*path[path.index(name) :], name])
                raise self._pipeline.fail(f"step.{name}.sql", f"the step depends on itself: {way}")
            if name in self._pipeline.steps:
                for each in self.references(self._pipeline.steps[name]):
                    visit(each, (*path, name))
            found[name] = None

        visit(sink.from_, ())
        return tuple(found)

    def _sources_among(self, sink: Sink, relations: tuple[str, ...]) -> tuple[Source, ...]:
        found = tuple(self._pipeline.sources[name] for name in relations if name in self._pipeline.sources)
        if not found:
            raise self._pipeline.fail(
                f"sink.{sink.name}.from", f"{sink.from_} reads no source: use a source or a step that reads one"
            )
        topics: dict[tuple[str, str], str] = {}
        for source in found:
            for topic in source.topics or (source.pattern,):
                other = topics.setdefault((topic, source.channel), source.name)
                if other != source.name:
                    raise self._pipeline.fail(
                        f"source.{source.name}.channel",
                        f"{sink.from_} reads {topic} through source {other} too, and they would share its messages:"
                        " give one of them another channel",
                    )
        return found

    def _plan_sink(self, sink: Sink, sources: tuple[Source, ...], dead_letter_sinks: Mapping[str, str]) -> Planned:
        session = sink_session(self._spark, self._pipeline.spark.settings)
        builder = _Builder(self, session, self._pipeline, sink, dead_letter_sinks, self._dead_letters)
        rows = builder.relation(sink.from_)
        key = f"sink.{sink.name}"
        try:
            check_output_mode(rows, sink.mode)
        except Exception as error:
            raise self._pipeline.fail(f"{key}.mode", _explain_mode(sink, error)) from None
        writer = make_writer(self._pipeline, sink, rows, self._dead_letters)
        return Planned(sink, rows, sources, writer)

    def _add_files(self) -> None:
        """Send the jars, and the modules of functions beside the pipeline file, to the executors."""
        for jar in self._pipeline.spark.jars:
            self._spark.sql(f"ADD JAR '{jar}'")
        steps = [(f"step.{step.name}", step.function) for step in self._pipeline.steps.values() if step.function]
        sinks = [(f"sink.{sink.name}", sink.function) for sink in self._pipeline.sinks.values() if sink.function]
        for key, path in (*steps, *sinks):
            try:
                find_function(path, self._pipeline.directory)
            except ConfigError as error:
                raise self._pipeline.fail(f"{key}.function", str(error)) from None
            file = module_file(path, self._pipeline.directory)
            if file is not None:
                self._spark.sparkContext.addPyFile(file)


class _Builder:
    """Builds the sources, tables and steps of one sink as views of its session."""

    def __init__(
        self,
        planner: Planner,
        session: Any,
        pipeline: Pipeline,
        sink: Sink,
        dead_letter_sinks: Mapping[str, str],
        dead_letters: DeadLetters,
    ) -> None:
        self._planner = planner
        self._session = session
        self._pipeline = pipeline
        self._sink = sink
        self._dead_letter_sinks = dead_letter_sinks
        self._dead_letters = dead_letters
        self._built: dict[str, Any] = {}

    def relation(self, name: str) -> Any:
        """Return the rows of a source, table or step, and register them as a view."""
        if name not in self._built:
            if name in self._pipeline.sources:
                rows = self._source(self._pipeline.sources[name])
            elif name in self._pipeline.tables:
                rows = self._table(self._pipeline.tables[name])
            else:
                rows = self._step(self._pipeline.steps[name])
            rows.createOrReplaceTempView(f"`{name}`")
            self._built[name] = rows
        return self._built[name]

    def _source(self, source: Source) -> Any:
        schema = self._planner.schema_of(source)
        options = source_options(self._pipeline, source, self._sink)
        try:
            raw = self._session.readStream.format("nsq").options(**options).load()
        except Exception as error:
            raise self._pipeline.fail(f"source.{source.name}", explain(error)) from None
        notes = DriftNotes(self._pipeline.state, source.name)
        decoder = Decoder(source, schema, self._dead_letters_for(source.name), notes)
        try:
            rows = decoder.apply(raw)
        except RequirementWrong as error:
            cause = error.__cause__ or error
            raise self._pipeline.fail(f"source.{source.name}.require", f"{error}: {explain(cause)}") from None
        return self._timed(rows, source.watermark, source.dedup, f"source.{source.name}")

    def _dead_letters_for(self, name: str) -> DeadLetters | None:
        return self._dead_letters if self._dead_letter_sinks[name] == self._sink.name else None

    def _table(self, table: Table) -> Any:
        reader = self._session.read.format(table.format).options(**table.options)
        try:
            check_spark_reaches(self._session, table.path)
        except ConfigError as error:
            raise self._pipeline.fail(f"table.{table.name}.path", str(error)) from None
        try:
            return (reader.schema(table.schema) if table.schema else reader).load(for_spark(table.path))
        except Exception as error:
            raise self._pipeline.fail(f"table.{table.name}.path", f"cannot read it: {explain(error)}") from None

    def _step(self, step: Step) -> Any:
        for name in self._planner.references(step):
            self.relation(name)
        rows = self._mapped(step) if step.function else self._queried(step)
        return self._timed(rows, step.watermark, step.dedup, f"step.{step.name}")

    def _queried(self, step: Step) -> Any:
        try:
            return self._session.sql(step.sql)
        except Exception as error:
            text = explain(error)
            if condition_of(error) == "TABLE_OR_VIEW_NOT_FOUND":
                known = ", ".join([*self._pipeline.sources, *self._pipeline.tables, *self._pipeline.steps])
                name = parameter_of(error, "relationName")
                text = f"unknown source, table or step {name}: use one of {known}"
            raise self._pipeline.fail(f"step.{step.name}.sql", text) from None

    def _mapped(self, step: Step) -> Any:
        from pyspark.sql.types import DataType

        try:
            schema = DataType.fromDDL(step.schema)
        except Exception as error:
            raise self._pipeline.fail(f"step.{step.name}.schema", f"invalid schema: {explain(error)}") from None
        letters = self._dead_letters_for(step.name)
        function = RowFunction(step.function, self._pipeline.directory, f"step.{step.name}", letters)
        return self.relation(step.from_).mapInArrow(MapStage(function, schema.jsonValue()), schema)

    def _timed(self, rows: Any, watermark: Watermark | None, dedup: tuple[str, ...], key: str) -> Any:
        if watermark is None:
            return rows
        try:
            rows = rows.withWatermark(watermark.column, watermark.delay)
            rows.schema  # noqa: B018  (forces Spark to analyse the plan now)
        except Exception as error:
            raise self._pipeline.fail(f"{key}.watermark", explain(error)) from None
        try:
            return rows.dropDuplicatesWithinWatermark(list(dedup)) if dedup else rows
        except Exception as error:
            raise self._pipeline.fail(f"{key}.dedup", explain(error)) from None


def schema_file(source: Source) -> str:
    """Return the name of the file with an inferred schema."""
    return f"schema-{source.name}.json"


def _explain_mode(sink: Sink, error: Exception) -> str:
    text = explain(error)
    if "without watermark" in text:
        return (
            f"{sink.mode}: without a watermark an aggregate is never final: add a watermark to its source, or use mode"
            " update or complete"
        )
    return f"{sink.mode}: {text}"
