"""The writers of all sink types. They run in the driver, which sends the work to executors."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any, Protocol

from nsqx.errors import ConfigError
from nsqx.pipeline.arrow import arrow_schema_of
from nsqx.pipeline.delta_sink import DeltaSink
from nsqx.pipeline.file_sink import FileLayout, FileSink
from nsqx.pipeline.functions import ForeachStage, RowFunction, find_function
from nsqx.pipeline.jdbc_sink import JdbcSink
from nsqx.pipeline.log_mode import create_topic_in_logs
from nsqx.pipeline.model import FILE_SINKS, Pipeline, Sink, may_publish_once

if TYPE_CHECKING:
    from nsqx.pipeline.dead_letters import DeadLetters

_PUBLISHED = ("value", "topic", "defer_ms")


class SinkWriter(Protocol):
    """Writes the batches of one query."""

    def prepare(self) -> None:
        """Prepare before the query starts; raises ConfigError."""

    def recover(self) -> None:
        """Finish or remove what a killed run has left. No other process may be writing."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Write a batch, or the missing part if it was written before; return the number of its rows."""


def make_writer(pipeline: Pipeline, sink: Sink, rows: Any, dead_letters: DeadLetters) -> SinkWriter:
    """Return the writer of a sink; raises ConfigError if it cannot write the columns of ``rows``."""
    if sink.type in FILE_SINKS:
        return _file_writer(pipeline, sink, rows)
    if sink.type == "topic":
        return TopicSink(pipeline, sink, rows)
    if sink.type == "jdbc":
        _check_columns(pipeline, sink, "keys", sink.keys, rows)
        return JdbcSink(rows.sparkSession, sink, rows.schema, dead_letters)
    if sink.type == "delta":
        _check_columns(pipeline, sink, "partition_by", sink.partition_by, rows)
        _check_columns(pipeline, sink, "keys", sink.keys, rows)
        return DeltaSink(sink)
    if sink.type == "foreach":
        return ForeachSink(pipeline, sink, dead_letters)
    return ConsoleSink(sink)


def _file_writer(pipeline: Pipeline, sink: Sink, rows: Any) -> FileSink:
    _check_columns(pipeline, sink, "partition_by", sink.partition_by, rows)
    columns = tuple(name for name in rows.columns if name not in sink.partition_by)
    if not columns:
        raise pipeline.fail(f"sink.{sink.name}.partition_by", "contains all columns: leave at least one to write")
    try:
        arrow_schema_of(rows.schema.jsonValue())
    except Exception as error:
        raise pipeline.fail(f"sink.{sink.name}.from", f"cannot write a column: {error}") from None
    return file_sink(pipeline, sink, columns)


def file_sink(pipeline: Pipeline, sink: Sink, columns: tuple[str, ...]) -> FileSink:
    """Return the writer of a file sink for rows with these columns besides those of ``partition_by``."""
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
                f"sink.{sink.name}.{key}",
                f"{sink.from_} has no column {name}: use one of {', '.join(rows.columns)}",
            )


class TopicSink:
    """Publishes the column ``value`` of each row, or all columns as JSON if there is no such column."""

    def __init__(self, pipeline: Pipeline, sink: Sink, rows: Any) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._is_once = bool(sink.exactly_once)
        self._options = pipeline.nsq.settings() | ({"topic": sink.topic} if sink.topic else {})
        if not sink.topic and "topic" not in rows.columns:
            raise pipeline.fail(f"sink.{sink.name}.topic", f"required: set it, or add a column topic to {sink.from_}")
        self._has_value = "value" in rows.columns
        if self._has_value:
            extra = [name for name in rows.columns if name not in _PUBLISHED and not name.startswith("_")]
            if extra:
                raise pipeline.fail(
                    f"sink.{sink.name}.from",
                    f"{sink.from_} has a column value, so {', '.join(extra)} would not be published: remove these"
                    " columns, or rename value to publish all columns as JSON",
                )
            kind = rows.schema["value"].dataType.typeName()
            if kind not in ("string", "binary"):
                raise pipeline.fail(
                    f"sink.{sink.name}.from", f"column value of {sink.from_} is {kind}: cast it to STRING or BINARY"
                )

    def prepare(self) -> None:
        """Find out whether every nsqd has a log for the topic, unless the pipeline says what to do."""
        sink = self._sink
        if sink.exactly_once is None and may_publish_once(self._pipeline, sink):
            self._is_once = create_topic_in_logs(self._pipeline, sink.topic)

    def recover(self) -> None:
        """No-op."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Publish the rows; a batch that is run again publishes all of them again, unless nsqd knows the batch."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        options = dict(self._options)
        if self._is_once:
            # nsqd stores the number of the batch with its rows, and does not store a number twice.
            options.pop("nsq.lookupd", None)
            if self._sink.previous_nsqd:
                options["previousNsqd"] = ",".join(self._sink.previous_nsqd)
            options |= {"exactlyOnce": "true", "txnAppId": query_id, "txnVersion": str(batch_id)}
        observation = Observation()
        self._shaped(rows).observe(observation, F.count(F.lit(1)).alias("rows")).write.format("nsq").mode(
            "append"
        ).options(**options).save()
        return int(observation.get["rows"])

    def _shaped(self, rows: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        addressed = [name for name in ("topic", "defer_ms") if name in rows.columns]
        if self._has_value:
            # nsqd rejects empty bodies.
            return rows.filter("length(value) > 0").select("value", *addressed)
        hidden = {"topic"} if not self._sink.topic else set()
        published = [name for name in rows.columns if not name.startswith("_") and name not in hidden | {"defer_ms"}]
        value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in published)))
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
        """No-op."""

    def recover(self) -> None:
        """No-op."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Call the function for each row; a batch that is run again calls it again."""
        del query_id, batch_id
        counts = rows.mapInArrow(ForeachStage(self._function), "rows BIGINT, failed BIGINT").collect()
        return sum(each.rows for each in counts)


class ConsoleSink:
    """Prints the first rows of each batch."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def prepare(self) -> None:
        """No-op."""

    def recover(self) -> None:
        """No-op."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Print the first rows and return how many."""
        del query_id
        shown = rows.limit(self._sink.rows + 1).collect()
        if not shown:
            return 0
        print(f"{self._sink.name}, batch {batch_id}")
        for row in shown[: self._sink.rows]:
            print("  " + ", ".join(f"{name}={value}" for name, value in row.asDict().items()))
        if len(shown) > self._sink.rows:
            print(f"  … more rows, {self._sink.rows} shown")
        sys.stdout.flush()
        return len(shown[: self._sink.rows])
