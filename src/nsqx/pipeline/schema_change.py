"""Comparison of a sink's columns with those of the last run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline
    from nsqx.pipeline.plan import Planned
    from nsqx.pipeline.state import PipelineState


def check_columns(pipeline: Pipeline, state: PipelineState, planned: Planned, *, accepts: bool) -> Iterator[str]:
    """Yield a line about added, removed and changed columns, and store the new columns.

    Raises ConfigError if the type of a column has changed, unless ``accepts`` is True.
    """
    sink = planned.sink
    name = f"columns-{sink.name}.json"
    columns = {field.name: field.dataType.simpleString() for field in planned.rows.schema.fields}
    kept = state.read(name)
    before = kept["columns"] if kept else columns
    retyped = {
        each: (before[each], columns[each]) for each in columns if before.get(each, columns[each]) != columns[each]
    }
    if retyped and not accepts:
        changes = ", ".join(f"{each} was {old} and is {new}" for each, (old, new) in retyped.items())
        raise pipeline.fail(
            f"sink.{sink.name}",
            f"the schema has changed since the last run: {changes}. Existing data keeps the old types: write to another"
            " location with another state, or run with --accept-schema-change if readers can handle both",
        )
    yield from _describe_changes(sink.name, before, columns)
    if columns != before or kept is None:
        state.write(name, {"columns": columns})


def _describe_changes(sink: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    changes = [f"{each} {kind} is new" for each, kind in after.items() if each not in before]
    changes += [f"{each} {kind} is removed" for each, kind in before.items() if each not in after]
    changes += [
        f"{each} was {before[each]} and is {kind}" for each, kind in after.items() if before.get(each, kind) != kind
    ]
    if changes:
        yield f"sink.{sink}: the schema has changed since the last run: {', '.join(changes)}"
