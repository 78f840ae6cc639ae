"""What becomes of a batch, for every type of sink. Runs in the driver, which sends the work to executors."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any, Protocol

from nsqx.errors import ConfigError
from nsqx.pipeline.arrow import arrow_schema_of
from nsqx.pipeline.file_sink import FileLayout, FileSink
from nsqx.pipeline.functions import ForeachStage, RowFunction, find_function
from nsqx.pipeline.jdbc_sink import JdbcSink
from nsqx.pipeline.model import FILE_SINKS, Pipeline, Sink

if TYPE_CHECKING:
    from nsqx.pipeline.dead_letters import DeadLetters

_PUBLISHED = ("value", "topic", "defer_ms")


class SinkWriter(Protocol):
    """Writes the batches of one query."""

    def prepare(self) -> None:
        """Before the query starts; raises ConfigError."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Write a batch, or what is missing of it if it was written before; how many rows it has."""


def make_writer(pipeline: Pipeline, sink: Sink, rows: Any, dead_letters: DeadLetters) -> SinkWriter:
    """The writer of a sink for rows of this DataFrame's columns; raises ConfigError if they do not fit."""
    if sink.type in FILE_SINKS:
        return _file_writer(pipeline, sink, rows)
    if sink.type == "topic":
        return TopicSink(pipeline, sink, rows)
    if sink.type == "jdbc":
        _check_columns(pipeline, sink, "keys", sink.keys, rows)
        return JdbcSink(rows.sparkSession, sink, rows.schema, dead_letters)
    if sink.type == "foreach":
        return ForeachSink(pipeline, sink, dead_letters)
    return ConsoleSink(sink)


def _file_writer(pipeline: Pipeline, sink: Sink, rows: Any) -> FileSink:
    _check_columns(pipeline, sink, "partition_by", sink.partition_by, rows)
    columns = tuple(name for name in rows.columns if name not in sink.partition_by)
    if not columns:
        raise pipeline.fail(f"sink.{sink.name}.partition_by", "no column is left to write")
    try:
        arrow_schema_of(rows.schema.jsonValue())
    except Exception as error:
        raise pipeline.fail(f"sink.{sink.name}.from", f"a column cannot be written: {error}") from None
    state_location = f"{pipeline.state}/{sink.name}"
    owner = hashlib.sha256(state_location.encode()).hexdigest()[:12]
    layout = FileLayout(
        location=sink.path,
        format=sink.type,
        compression=sink.compression,
        partition_by=sink.partition_by,
        columns=columns,
        temporary=f".nsqx-{sink.name}-{owner}",
    )
    return FileSink(layout, sink.name, state_location)


def _check_columns(pipeline: Pipeline, sink: Sink, key: str, names: tuple[str, ...], rows: Any) -> None:
    for name in names:
        if name not in rows.columns:
            raise pipeline.fail(
                f"sink.{sink.name}.{key}", f"{sink.from_} has no column {name}, but {', '.join(rows.columns)}"
            )


class TopicSink:
    """Publishes each row: its column ``value``, or else all of its columns as JSON."""

    def __init__(self, pipeline: Pipeline, sink: Sink, rows: Any) -> None:
        self._sink = sink
        self._options = pipeline.nsq.settings() | ({"topic": sink.topic} if sink.topic else {})
        if not sink.topic and "topic" not in rows.columns:
            raise pipeline.fail(
                f"sink.{sink.name}.topic", f"missing: set it, or give {sink.from_} a column topic that says where to"
            )
        self._has_value = "value" in rows.columns
        if self._has_value:
            extra = [name for name in rows.columns if name not in _PUBLISHED and not name.startswith("_")]
            if extra:
                raise pipeline.fail(
                    f"sink.{sink.name}.from",
                    f"{sink.from_} has a column value, which is published, and {', '.join(extra)}, which are not: leave"
                    " them out, or name value otherwise to publish all columns as JSON",
                )
            kind = rows.schema["value"].dataType.typeName()
            if kind not in ("string", "binary"):
                raise pipeline.fail(
                    f"sink.{sink.name}.from", f"its column value is {kind}: cast it to STRING or BINARY"
                )

    def prepare(self) -> None:
        """Nothing to do: connections are made when there is something to publish."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Publish; what a failed try has published already comes again."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        del query_id, batch_id
        observation = Observation()
        self._shaped(rows).observe(observation, F.count(F.lit(1)).alias("rows")).write.format("nsq").mode(
            "append"
        ).options(**self._options).save()
        return int(observation.get["rows"])

    def _shaped(self, rows: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        addressed = [name for name in ("topic", "defer_ms") if name in rows.columns]
        if self._has_value:
            # What nsqd refuses: no body at all.
            return rows.filter("length(value) > 0").select("value", *addressed)
        hidden = {"topic"} if not self._sink.topic else set()
        told = [name for name in rows.columns if not name.startswith("_") and name not in hidden | {"defer_ms"}]
        value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in told)))
        return rows.select(value.alias("value"), *addressed)


class ForeachSink:
    """Calls a Python function for every row."""

    def __init__(self, pipeline: Pipeline, sink: Sink, dead_letters: DeadLetters) -> None:
        try:
            find_function(sink.function, pipeline.directory)
        except ConfigError as error:
            raise pipeline.fail(f"sink.{sink.name}.function", str(error)) from None
        self._function = RowFunction(sink.function, pipeline.directory, f"sink.{sink.name}", dead_letters)

    def prepare(self) -> None:
        """Nothing to do."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Call the function; a batch that is run again calls it again."""
        del query_id, batch_id
        counts = rows.mapInArrow(ForeachStage(self._function), "rows BIGINT, failed BIGINT").collect()
        return sum(each.rows for each in counts)


class ConsoleSink:
    """Prints the first rows of each batch."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def prepare(self) -> None:
        """Nothing to do."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Print."""
        del query_id
        shown = rows.limit(self._sink.rows + 1).collect()
        if not shown:
            return 0
        print(f"{self._sink.name}, batch {batch_id}")
        for row in shown[: self._sink.rows]:
            print("  " + ", ".join(f"{name}={value}" for name, value in row.asDict().items()))
        if len(shown) > self._sink.rows:
            print(f"  … and more than these {self._sink.rows}")
        sys.stdout.flush()
        return len(shown[: self._sink.rows])
