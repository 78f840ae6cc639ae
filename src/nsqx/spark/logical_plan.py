"""The logical plan of a query as plain values: the operators that keep state, and where views begin.

``jvm.logical_plan`` builds it. Knows nothing of pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_QUALIFIER = re.compile(r"\b[A-Za-z_]\w*\.(?=[A-Za-z_`])")


@dataclass(frozen=True, slots=True)
class PlanExpression:
    """An expression of an operator: its name or SQL, its type, and its SQL without the qualifiers of columns."""

    name: str
    type: str
    sql: str


@dataclass(frozen=True, slots=True)
class PlanNode:
    """An operator. ``keys`` and ``values`` are known only for operators that can keep state."""

    kind: str
    """Spark's name, such as Aggregate, Join, Deduplicate or View."""
    is_streaming: bool
    children: tuple[PlanNode, ...] = ()
    view: str = ""
    """For a view: its name."""
    keys: tuple[PlanExpression, ...] = ()
    """Grouping keys, columns of a deduplication, or the condition of a join."""
    values: tuple[PlanExpression, ...] = ()
    """Aggregates, or the columns of both sides of a join."""
    detail: str = ""
    """The type of a join."""

    @property
    def is_stateful(self) -> bool:
        """True if a streaming query keeps state for the operator."""
        if self.kind == "Join":
            return all(child.is_streaming for child in self.children)
        return self.is_streaming and self.kind in ("Aggregate", "Deduplicate", "DeduplicateWithinWatermark")

    def walk(self) -> Iterator[PlanNode]:
        """Yield the node and all nodes below it, the inputs of an operator after it."""
        yield self
        for child in self.children:
            yield from child.walk()


def without_qualifiers(sql: str) -> str:
    """Return SQL without the names of tables before columns; an alias of a table is no change of a query."""
    return _QUALIFIER.sub("", sql)
