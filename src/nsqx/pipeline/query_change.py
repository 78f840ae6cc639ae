"""Comparison of a sink's query with the state of its last run, before it starts.

Spark keeps the state of aggregates, joins and deduplication by position, without names. A query that was changed reads
the state of the old one: Spark then fails in the first batch, or mixes values that have the same type. The parts of the
plan that the state depends on are stored with the state, and compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nsqx.spark.jvm import logical_plan

if TYPE_CHECKING:
    from nsqx.errors import ConfigError
    from nsqx.pipeline.model import Pipeline, Sink
    from nsqx.pipeline.plan import Planned
    from nsqx.pipeline.state import PipelineState
    from nsqx.spark.logical_plan import PlanNode

Operator = Mapping[str, Any]
_KINDS = {
    "Aggregate": "aggregate",
    "Join": "join of two streams",
    "Deduplicate": "dedup",
    "DeduplicateWithinWatermark": "dedup",
}


def plan_file(sink: Sink) -> str:
    """Return the name of the file of the state directory with the stateful parts of a sink's plan."""
    return f"plan-{sink.name}.json"


def check_query(pipeline: Pipeline, state: PipelineState, planned: Planned, *, accepts: bool, has_state: bool) -> None:
    """Compare the query of a sink with its state, and store its stateful parts.

    Raises ConfigError if the state does not belong to the query, unless ``accepts`` is True. Under Spark Connect
    nothing is compared.
    """
    plan = logical_plan(planned.rows)
    if plan is None:
        return
    sources, operators = describe_plan(pipeline, planned.sink, plan)
    new = {"sources": sources, "operators": operators}
    old = state.read(plan_file(planned.sink)) if has_state else None
    if old is not None and not accepts:
        change = find_change(old, new)
        if change is not None:
            raise _refused(pipeline, planned.sink, *change)
    if old != new:
        state.write(plan_file(planned.sink), new)


def describe_plan(pipeline: Pipeline, sink: Sink, plan: PlanNode) -> tuple[list[str], list[Operator]]:
    """Return the names of the sources in the order of the plan, and the operators that keep state, with their owners.

    The owner of an operator is the source or step in which it is written.
    """
    sources: dict[str, None] = {}
    operators: list[Operator] = []

    def visit(node: PlanNode, owner: str) -> None:
        if node.kind == "View":
            owner = next((name for name in pipeline.relations() if name.lower() == node.view.lower()), owner)
        step = pipeline.steps.get(owner)
        if node.kind == "MapInArrow" and step is not None and step.function:
            owner = step.from_
        if node.is_stateful:
            operators.append(
                {
                    "owner": owner,
                    "kind": node.kind,
                    "detail": node.detail,
                    "keys": [asdict(each) for each in node.keys],
                    "values": [asdict(each) for each in node.values],
                }
            )
        if not node.children and node.is_streaming:
            sources[owner] = None
        for child in node.children:
            visit(child, owner)

    visit(plan, sink.from_)
    return list(sources), operators


def find_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the owner of the first change that the state does not survive, and what has changed; or None."""
    if old["sources"] != new["sources"]:
        return "", f"it read {', '.join(old['sources'])} and reads {', '.join(new['sources'])}"
    before, after = old["operators"], new["operators"]
    for place in range(max(len(before), len(after))):
        was = before[place] if place < len(before) else None
        now = after[place] if place < len(after) else None
        if was is None or (now is not None and len(after) > len(before) and not _is_same(was, now)):
            assert now is not None
            return now["owner"], f"the {_KINDS[now['kind']]} {_shown(now)} is new"
        if now is None or (len(after) < len(before) and not _is_same(was, now)):
            return was["owner"], f"the {_KINDS[was['kind']]} {_shown(was)} was removed"
        if not _is_same(was, now):
            return now["owner"], _difference(was, now)
    return None


def _is_same(was: Operator, now: Operator) -> bool:
    return _identity(was) == _identity(now)


def _identity(operator: Operator) -> tuple[Any, ...]:
    """Return what the state depends on: the name of a column that a step computes is not part of it."""
    columns = [[(each["sql"], each["type"]) for each in operator[part]] for part in ("keys", "values")]
    return operator["kind"], operator["detail"], *columns


def _difference(was: Operator, now: Operator) -> str:
    if (was["kind"], was["detail"]) != (now["kind"], now["detail"]):
        kinds = [" ".join(filter(None, (_KINDS[each["kind"]], each["detail"]))) for each in (was, now)]
        return f"it was: {kinds[0]}, and is: {kinds[1]}"
    if now["kind"] == "Aggregate":
        names = ("GROUP BY", "the aggregates")
    elif now["kind"] == "Join":
        names = ("the condition", "the joined columns")
    else:
        names = ("the columns of dedup", "")
    for part, name in zip(("keys", "values"), names, strict=True):
        if (old := _columns(was[part])) != (new := _columns(now[part])):
            return f"{name}: was {', '.join(old) or 'nothing'}, is {', '.join(new) or 'nothing'}"
    return f"the definition of {', '.join(each['name'] for each in now['keys'])}"


def _columns(expressions: Sequence[Mapping[str, str]]) -> list[str]:
    return [f"{each['name']} {each['type']}" for each in expressions]


def _shown(operator: Operator) -> str:
    return ", ".join(_columns([*operator["keys"], *operator["values"]])) or operator["detail"]


def _refused(pipeline: Pipeline, sink: Sink, owner: str, change: str) -> ConfigError:
    kind = "step" if owner in pipeline.steps else "source"
    key = f"{kind}.{owner}" if owner else f"sink.{sink.name}"
    return pipeline.fail(
        key,
        f"the query of sink {sink.name} has changed since the last run, and its state does not fit: {change}. Undo the"
        f" change; or remove the state, nsqx pipeline reset {pipeline.file} {sink.name}; or give the sink a new name;"
        " or run with --accept-schema-change if the state fits",
    )
