"""Plans of sinks: one streaming DataFrame for each sink, built from sources, tables and steps.

Planning consumes no messages. It finds every error that Spark can find, and reports it with its key in the file.

Each sink has its own streaming query, its own session, and its own channel for each source. Sinks therefore do not wait
for each other, and nsqadmin shows the lag of each. A shared source is read and decoded by a query of its own, which is
planned like a sink, and the queries of the sinks read the decoded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nsqx.errors import ConfigError
from nsqx.pipeline.backfill import ARCHIVE_OPTION, FORMAT, PLAN_OPTION, BackfillSource, plan_file_name
from nsqx.pipeline.dead_letters import DeadLetters
from nsqx.pipeline.decode import INTERNAL, Decoder, RequirementWrong
from nsqx.pipeline.decoded_rows import DecodedRowsWriter
from nsqx.pipeline.decoded_source import FORMAT as DECODED_FORMAT
from nsqx.pipeline.decoded_source import LIMITS, PLACE_OPTION, START_OPTION, DecodedSource
from nsqx.pipeline.functions import MapStage, RowFunction
from nsqx.pipeline.model import Pipeline, Sink, Source, Step, Table, Watermark, cluster_of, source_options
from nsqx.pipeline.session import sink_session
from nsqx.pipeline.sharing import Sharing, decoded_location, position_file
from nsqx.pipeline.sinks import SinkWriter, make_writer
from nsqx.pipeline.spark_errors import condition_of, explain, parameter_of
from nsqx.pipeline.state import DriftNotes
from nsqx.spark.jvm import check_output_mode, has_jvm
from nsqx.spark.plan_text import check_mode_of_text
from nsqx.spark.s3_urls import check_spark_reaches, for_spark

if TYPE_CHECKING:
    from nsqx.pipeline.references import References
    from nsqx.pipeline.schemas import SourceSchemas


@dataclass(frozen=True, slots=True)
class Planned:
    """A sink that is ready to start, with its rows, sources and writer."""

    sink: Sink
    rows: Any
    sources: tuple[Source, ...]
    """The sources that the query receives by itself."""
    writer: SinkWriter
    shared: Mapping[str, str] = field(default_factory=dict)
    """The internal sinks that decode the other sources, by source; a bounded run starts the sink after them."""


StreamOf = Callable[[Any, Source, Sink], Any]
"""Returns the streaming DataFrame of a source for a sink, in a session, with the columns of the data source."""


def plan_sinks(
    spark: Any,
    pipeline: Pipeline,
    references: References,
    schemas: SourceSchemas,
    sharing: Sharing,
    stream_of: StreamOf | None = None,
) -> tuple[Planned, ...]:
    """Return a plan for each sink whose sources all have a schema, internal sinks first; raises ConfigError.

    ``stream_of`` replaces the data source, for tests of a pipeline.
    """
    dead_letters = DeadLetters(
        pipeline.name,
        pipeline.dead_letters.topic,
        pipeline.dead_letters.directory,
        cluster_of(pipeline),
        pipeline.state,
    )
    planned = []
    decoded = {}
    for name, sink in sharing.sinks.items():
        if name in schemas.known:
            session = sink_session(spark, pipeline.spark.settings)
            letters = replace(dead_letters, sink=sink.name)
            builder = _Builder(session, pipeline, sink, references, schemas, sharing, letters, stream_of)
            each = builder.decoded(pipeline.sources[name])
            decoded[name] = each.rows.drop(*INTERNAL).schema
            planned.append(each)
    for sink in pipeline.sinks.values():
        sources = references.sources[sink.name]
        if all(source.name in schemas.known for source in sources):
            session = sink_session(spark, pipeline.spark.settings)
            letters = replace(dead_letters, sink=sink.name)
            builder = _Builder(session, pipeline, sink, references, schemas, sharing, letters, stream_of, decoded)
            rows = builder.relation(sink.from_)
            try:
                if has_jvm(session):
                    check_output_mode(rows, sink.mode)
                else:
                    check_mode_of_text(session, sink.from_, sink.mode)
            except Exception as error:
                raise pipeline.fail(f"sink.{sink.name}.mode", _explain_mode(sink, error)) from None
            own = tuple(source for source in sources if not sharing.is_shared(sink, source))
            shared = {source.name: sharing.sinks[source.name].name for source in sources if source not in own}
            planned.append(Planned(sink, rows, own, make_writer(pipeline, sink, rows, letters), shared))
    return tuple(planned)


@dataclass(slots=True)
class _Builder:
    """Builds the sources, tables and steps of one sink as views of its session."""

    session: Any
    pipeline: Pipeline
    sink: Sink
    references: References
    schemas: SourceSchemas
    sharing: Sharing
    dead_letters: DeadLetters
    stream_of: StreamOf | None
    decoded_schemas: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the decoded rows of shared sources."""
    built: dict[str, Any] = field(default_factory=dict)

    def relation(self, name: str) -> Any:
        """Return the rows of a source, table or step, and register them as a view."""
        if name not in self.built:
            if name in self.pipeline.sources:
                rows = self._source(self.pipeline.sources[name])
            elif name in self.pipeline.tables:
                rows = self._table(self.pipeline.tables[name])
            else:
                rows = self._step(self.pipeline.steps[name])
            rows.createOrReplaceTempView(f"`{name}`")
            self.built[name] = rows
        return self.built[name]

    def decoded(self, source: Source) -> Planned:
        """Return the plan of the internal sink that decodes a source."""
        decoder, raw = self._received(source)
        with self._requirements(source):
            rows, names, rejected = decoder.classify(raw)
        location = decoded_location(self.pipeline, source.name)
        return Planned(self.sink, rows, (source,), DecodedRowsWriter(location, names, rejected))

    def _source(self, source: Source) -> Any:
        if self.sharing.is_shared(self.sink, source):
            rows = self._shared(source)
        else:
            decoder, raw = self._received(source)
            with self._requirements(source):
                rows = decoder.apply(raw)
        return self._timed(rows, source.watermark, source.dedup, f"source.{source.name}")

    def _received(self, source: Source) -> tuple[Decoder, Any]:
        try:
            raw = _analysed((self.stream_of or self._subscribed)(self.session, source, self.sink))
        except Exception as error:
            raise self.pipeline.fail(f"source.{source.name}", explain(error)) from None
        notes = DriftNotes(self.pipeline.state, source.name)
        return Decoder(source, self.schemas.known[source.name], self._dead_letters_for(source.name), notes), raw

    @contextmanager
    def _requirements(self, source: Source) -> Iterator[None]:
        try:
            yield
        except RequirementWrong as error:
            cause = error.__cause__ or error
            raise self.pipeline.fail(f"source.{source.name}.require", f"{error}: {explain(cause)}") from None

    def _shared(self, source: Source) -> Any:
        """Return the rows that the internal sink of a source has decoded."""
        self.session.dataSource.register(DecodedSource)
        limits = {name.lower(): value for name, value in source_options(self.pipeline, source, self.sink).items()}
        options = {
            PLACE_OPTION: decoded_location(self.pipeline, source.name),
            START_OPTION: f"{self.pipeline.state}/{position_file(self.sink.name, source.name)}",
            **{name: limits[name.lower()] for name in LIMITS if name.lower() in limits},
        }
        reader = self.session.readStream.format(DECODED_FORMAT).options(**options)
        return reader.schema(self.decoded_schemas[source.name]).load()

    def _subscribed(self, session: Any, source: Source, sink: Sink) -> Any:
        options = source_options(self.pipeline, source, sink)
        if not source.backfill:
            return session.readStream.format("nsq").options(**options).load()
        session.dataSource.register(BackfillSource)
        place = f"{self.pipeline.state}/{plan_file_name(sink.name, source.name)}"
        plan = {PLAN_OPTION: place, ARCHIVE_OPTION: source.backfill}
        return session.readStream.format(FORMAT).options(**options, **plan).load()

    def _dead_letters_for(self, name: str) -> DeadLetters | None:
        """Return None unless this query is that of the first sink which depends on a source or step; it writes them."""
        first = self.pipeline.sinks[self.references.first_sink(name)]
        if name in self.pipeline.sources:
            first = self.sharing.reader(first, self.pipeline.sources[name])
        return self.dead_letters if first.name == self.sink.name else None

    def _table(self, table: Table) -> Any:
        reader = self.session.read.format(table.format).options(**table.options)
        try:
            check_spark_reaches(self.session, table.path)
        except ConfigError as error:
            raise self.pipeline.fail(f"table.{table.name}.path", str(error)) from None
        try:
            return _analysed((reader.schema(table.schema) if table.schema else reader).load(for_spark(table.path)))
        except Exception as error:
            raise self.pipeline.fail(f"table.{table.name}.path", f"cannot read it: {explain(error)}") from None

    def _step(self, step: Step) -> Any:
        for name in self.references.steps[step.name]:
            self.relation(name)
        rows = self._mapped(step) if step.function else self._queried(step)
        return self._timed(rows, step.watermark, step.dedup, f"step.{step.name}")

    def _queried(self, step: Step) -> Any:
        try:
            return _analysed(self.session.sql(step.sql))
        except Exception as error:
            text = explain(error)
            if condition_of(error) == "TABLE_OR_VIEW_NOT_FOUND":
                known = ", ".join(self.pipeline.relations())
                name = parameter_of(error, "relationName")
                text = f"unknown source, table or step {name}: use one of {known}"
            raise self.pipeline.fail(f"step.{step.name}.sql", text) from None

    def _mapped(self, step: Step) -> Any:
        from pyspark.sql.types import DataType

        try:
            schema = DataType.fromDDL(step.schema)
        except Exception as error:
            raise self.pipeline.fail(f"step.{step.name}.schema", f"invalid schema: {explain(error)}") from None
        letters = self._dead_letters_for(step.name)
        function = RowFunction(step.function, self.pipeline.directory, f"step.{step.name}", letters)
        return self.relation(step.from_).mapInArrow(MapStage(function, schema.jsonValue()), schema)

    def _timed(self, rows: Any, watermark: Watermark | None, dedup: tuple[str, ...], key: str) -> Any:
        if watermark is None:
            return rows
        try:
            rows = _analysed(rows.withWatermark(watermark.column, watermark.delay))
        except Exception as error:
            raise self.pipeline.fail(f"{key}.watermark", explain(error)) from None
        try:
            return _analysed(rows.dropDuplicatesWithinWatermark(list(dedup))) if dedup else rows
        except Exception as error:
            raise self.pipeline.fail(f"{key}.dedup", explain(error)) from None


def _analysed(rows: Any) -> Any:
    """Return a DataFrame after Spark has analysed its plan, which Spark Connect puts off; raises Spark's exception."""
    rows.schema  # noqa: B018
    return rows


def _explain_mode(sink: Sink, error: Exception) -> str:
    text = explain(error)
    if "without watermark" in text:
        return (
            f"{sink.mode}: without a watermark an aggregate is never final: add a watermark to its source, or use mode"
            " update or complete"
        )
    return f"{sink.mode}: {text}"
