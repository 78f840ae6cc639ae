"""Whether the columns of a sink are those of the last run, and what to say if not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline
    from nsqx.pipeline.plan import Planned
    from nsqx.pipeline.state import PipelineState


def check_columns(pipeline: Pipeline, state: PipelineState, planned: Planned, *, accepts: bool) -> Iterator[str]:
    """Lines that tell of changes; raises ConfigError if a column is of another type than in what was written before."""
    sink = planned.sink
    name = f"columns-{sink.name}.json"
    columns = {field.name: field.dataType.simpleString() for field in planned.rows.schema.fields}
    kept = state.read(name)
    before = kept["columns"] if kept else columns
    retyped = {
        each: (before[each], columns[each]) for each in columns if before.get(each, columns[each]) != columns[each]
    }
    if retyped and not accepts:
        told = ", ".join(f"{each} was {old} and is {new}" for each, (old, new) in retyped.items())
        raise pipeline.fail(
            f"sink.{sink.name}",
            f"the schema has changed since the last run: {told}. What was written before stays as it is: write to"
            " another place with another state, or run with --accept-schema-change if its readers can live with both",
        )
    yield from _told(sink.name, before, columns)
    if columns != before or kept is None:
        state.write(name, {"columns": columns})


def _told(sink: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    changes = [f"{each} {kind} is new" for each, kind in after.items() if each not in before]
    changes += [f"{each} {kind} is gone" for each, kind in before.items() if each not in after]
    changes += [
        f"{each} was {before[each]} and is {kind}" for each, kind in after.items() if before.get(each, kind) != kind
    ]
    if changes:
        yield f"sink.{sink}: the schema has changed since the last run: {', '.join(changes)}"
