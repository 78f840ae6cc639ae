"""Runs the tests of a pipeline on Spark: the plan is that of a run, with files as sources and without writers.

The messages of each batch are a Parquet file, and a batch of the query reads one file, so watermarks, aggregates and
dedup work as in a run. No nsqd is needed, and nothing is written outside of a temporary directory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from nsqx.errors import NSQError
from nsqx.pipeline.case_file import DEAD_LETTERS, PipelineCase
from nsqx.pipeline.model import DeadLetterPlace
from nsqx.pipeline.plan import plan_sinks
from nsqx.pipeline.query import start_stream
from nsqx.pipeline.references import find_references
from nsqx.pipeline.row_diff import RowDiff, compare_rows
from nsqx.pipeline.schemas import find_schemas, infer_from_bodies
from nsqx.pipeline.sharing import Sharing
from nsqx.pipeline.spark_errors import explain

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline, Sink, Source
    from nsqx.pipeline.plan import Planned
    from nsqx.pipeline.references import References
    from nsqx.pipeline.schemas import SourceSchemas

_TIMEOUT_S = 300
_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("attempts", pa.int32()),
        ("node", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a test."""

    name: str
    differences: Mapping[str, RowDiff]
    """By sink, and for the dead letters."""

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        yield f"{self.name}: {'FAILED' if self.differences else 'ok'}"
        for name, diff in self.differences.items():
            if diff.unknown_columns:
                yield f"  {name}: no column {', '.join(diff.unknown_columns)}"
                continue
            yield f"  {name}: {len(diff.missing)} missing (-), {len(diff.unexpected)} not expected (+)"
            yield from (f"    {line}" for line in diff.lines())


def run_case(spark: Any, pipeline: Pipeline, case: PipelineCase) -> CaseResult:
    """Run one test; raises ConfigError or NSQError if the pipeline cannot run."""
    with tempfile.TemporaryDirectory(prefix="nsqx-test-") as directory:
        _write_messages(case, directory)
        references = find_references(spark, pipeline)
        stored = find_schemas(pipeline, references.used_sources())
        schemas = infer_from_bodies(spark, pipeline, stored, _bodies_by_source(case))
        rows = _run(spark, _within(pipeline, directory), references, schemas, directory)
        differences = {}
        for name, expected in case.expected.items():
            found, columns = rows[name]
            differences[name] = compare_rows(expected, found, columns)
        letters = _dead_letters(f"{directory}/dead-letters")
        differences[DEAD_LETTERS] = compare_rows(case.dead_letters, *letters)
        return CaseResult(case.name, {name: diff for name, diff in differences.items() if diff})


def _within(pipeline: Pipeline, directory: str) -> Pipeline:
    """Return the pipeline with its state and its dead letters in a directory."""
    letters = DeadLetterPlace("", f"{directory}/dead-letters")
    return replace(pipeline, state=f"{directory}/state", dead_letters=letters)


def _bodies_by_source(case: PipelineCase) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for batch in case.batches:
        for name, messages in batch.items():
            found.setdefault(name, []).extend(message["value"] for message in messages)
    return found


def _write_messages(case: PipelineCase, directory: str) -> None:
    for number, batch in enumerate(case.batches):
        for source, messages in batch.items():
            os.makedirs(f"{directory}/source-{source}", exist_ok=True)
            _write_file(f"{directory}/source-{source}", 2 * number, messages)
            # A running query has a batch without rows between two others, in which a new watermark takes effect.
            _write_file(f"{directory}/source-{source}", 2 * number + 1, ())


def _write_file(directory: str, number: int, messages: Sequence[Mapping[str, Any]]) -> None:
    path = f"{directory}/{number:06}.parquet"
    pq.write_table(pa.Table.from_pylist(list(messages), schema=_SCHEMA), path)
    # Spark reads the oldest file first.
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _run(
    spark: Any, pipeline: Pipeline, references: References, schemas: SourceSchemas, directory: str
) -> dict[str, tuple[list[dict[str, Any]], list[str]]]:
    """Return the rows and the columns of each sink."""

    def stream_of(session: Any, source: Source, _: Sink) -> Any:
        schema = "value BINARY, topic STRING, id STRING, timestamp TIMESTAMP, attempts INT, node STRING"
        reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(f"{directory}/source-{source.name}")

    planned = plan_sinks(spark, pipeline, references, schemas, Sharing(), stream_of)
    runs: list[_CaseQuery] = []
    try:
        runs.extend(_CaseQuery(each, directory) for each in planned)
        return {run.sink: (run.wait(), run.columns) for run in runs}
    finally:
        for run in runs:
            run.stop()


class _CaseQuery:
    """The query of one sink, whose rows are collected."""

    def __init__(self, planned: Planned, directory: str) -> None:
        self.sink = planned.sink.name
        self.columns: list[str] = list(planned.rows.columns)
        self._is_complete = planned.sink.mode == "complete"
        self._batches = _StoredBatches(f"{directory}/rows-{self.sink}")
        stream = planned.rows.writeStream.outputMode(planned.sink.mode).foreachBatch(self._batches)
        stream = stream.option("checkpointLocation", f"{directory}/checkpoint-{self.sink}")
        try:
            self._query = start_stream(stream.trigger(availableNow=True))
        except Exception as error:  # Spark may raise anything
            raise NSQError(f"sink {self.sink}: {explain(error)}") from None

    def wait(self) -> list[dict[str, Any]]:
        """Return the rows of all batches; raises NSQError."""
        try:
            is_over = self._query.awaitTermination(_TIMEOUT_S)
        except Exception as error:  # Spark may raise anything
            raise NSQError(f"sink {self.sink}: {explain(error)}") from None
        if not is_over:
            raise NSQError(f"sink {self.sink}: no result within {_TIMEOUT_S} s")
        batches = self._batches.read()
        return [row for batch in (batches[-1:] if self._is_complete else batches) for row in batch]

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()


@dataclass(frozen=True, slots=True)
class _StoredBatches:
    """Stores the rows of each batch in a file; a Spark Connect server calls it in a process of its own."""

    directory: str

    def __call__(self, rows: Any, batch: int) -> None:
        os.makedirs(self.directory, exist_ok=True)
        table = rows.toArrow()
        with (
            pa.OSFile(f"{self.directory}/{batch:06}.arrow", "wb") as stream,
            pa.ipc.new_file(stream, table.schema) as file,
        ):
            file.write_table(table)

    def read(self) -> list[list[dict[str, Any]]]:
        """Return the rows of each batch."""
        found = []
        for name in sorted(os.listdir(self.directory)) if os.path.isdir(self.directory) else ():
            with pa.OSFile(f"{self.directory}/{name}") as stream, pa.ipc.open_file(stream) as file:
                found.append(file.read_all().to_pylist())
        return found


def _dead_letters(directory: str) -> tuple[Sequence[dict[str, Any]], list[str]]:
    from nsqx.pipeline.dead_letters import SCHEMA

    if not os.path.isdir(directory):
        return [], SCHEMA.names
    return pyarrow.dataset.dataset(directory, format="parquet").to_table().to_pylist(), SCHEMA.names
