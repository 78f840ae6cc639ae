"""Comparison of two brokers under the same workloads: rounds, medians, the ratio of the medians and its spread.

Other load on the machine changes over time, so only figures of the same run are comparable. The brokers take turns
within a round, and the order alternates from round to round.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqx.bench.brokers import Launcher, Target
from nsqx.bench.failure import BenchFailed
from nsqx.bench.figures import PER_SECOND, Figure, format_value
from nsqx.bench.loads import Limits

if TYPE_CHECKING:
    from nsqx.bench.workloads import Workload

Run = Callable[[Target, Limits], list[Figure]]


@dataclass(slots=True)
class Row:
    """The values of one figure in all rounds, for both brokers."""

    name: str
    unit: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    our_cpu_us: list[float] = field(default_factory=list)
    their_cpu_us: list[float] = field(default_factory=list)

    def add(self, figure: Figure, *, is_ours: bool) -> None:
        """Add the figure of one round."""
        (self.ours if is_ours else self.theirs).append(figure.value)
        if figure.cpu_us is not None:
            (self.our_cpu_us if is_ours else self.their_cpu_us).append(figure.cpu_us)

    @property
    def is_complete(self) -> bool:
        """True if both brokers have a figure."""
        return bool(self.ours and self.theirs)

    def ratio(self) -> float:
        """Return our median divided by theirs."""
        return _divide(statistics.median(self.ours), statistics.median(self.theirs))

    def spread(self) -> tuple[float, float]:
        """Return the smallest and the largest ratio of a round."""
        ratios = [_divide(ours, theirs) for ours, theirs in zip(self.ours, self.theirs, strict=False)]
        return min(ratios), max(ratios)

    def cpu_ratio(self) -> float | None:
        """Return our CPU time per message divided by theirs, or None if unknown."""
        if not self.our_cpu_us or not self.their_cpu_us:
            return None
        return _divide(statistics.median(self.our_cpu_us), statistics.median(self.their_cpu_us))

    def times_better(self) -> tuple[float, float, float]:
        """Return the ratio, its minimum and its maximum, inverted for units where lower is better."""
        low, high = self.spread()
        if self.unit == PER_SECOND:
            return self.ratio(), low, high
        return _divide(1.0, self.ratio()), _divide(1.0, high), _divide(1.0, low)


def _divide(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor else float("inf")


@dataclass(slots=True)
class Comparison:
    """All rows of a comparison, and its settings."""

    our_name: str
    their_name: str
    rounds: int
    client: str
    rows: dict[str, Row] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, figures: Sequence[Figure], *, is_ours: bool) -> None:
        """Add the figures of one broker in one round."""
        for figure in figures:
            row = self.rows.setdefault(figure.name, Row(figure.name, figure.unit))
            row.add(figure, is_ours=is_ours)

    def complete_rows(self) -> list[Row]:
        """Return the rows with figures of both brokers."""
        return [row for row in self.rows.values() if row.is_complete]

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        return {
            "brokers": [self.our_name, self.their_name],
            "rounds": self.rounds,
            "client": self.client,
            "machine": machine(),
            "figures": [_row_json(row) for row in self.rows.values()],
            "failures": self.failures,
        }


def _row_json(row: Row) -> dict[str, Any]:
    known: dict[str, Any] = {
        "name": row.name,
        "unit": row.unit,
        "ours": row.ours,
        "theirs": row.theirs,
        "our_cpu_us": row.our_cpu_us,
        "their_cpu_us": row.their_cpu_us,
    }
    if row.is_complete:
        known |= {"ratio": row.ratio(), "spread": row.spread(), "cpu_ratio": row.cpu_ratio()}
    return known


def machine() -> dict[str, Any]:
    """Return a description of this machine."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def compare(
    ours: Launcher,
    theirs: Launcher,
    workloads: Sequence[tuple[Workload, Run]],
    limits: Limits,
    rounds: int,
    client: str,
    report: Callable[[str], None],
) -> Comparison:
    """Run every workload ``rounds`` times on both brokers; a round that fails on one of them is not counted."""
    comparison = Comparison(ours.name, theirs.name, rounds, client)
    for workload, run in workloads:
        for round_index in range(rounds):
            order = (ours, theirs) if round_index % 2 == 0 else (theirs, ours)
            found: list[tuple[Launcher, list[Figure]]] = []
            for launcher in order:
                try:
                    flags = workload.peer_flags if launcher is theirs else None
                    figures = run_once(launcher, workload, run, limits, flags)
                except BenchFailed as error:
                    comparison.failures.append(f"{workload.id} on {launcher.name}: {error}")
                    report(f"{workload.id} on {launcher.name}: {error}")
                    continue
                found.append((launcher, figures))
                shown = ", ".join(f"{each.name} {format_value(each.value, each.unit)}" for each in figures)
                report(f"round {round_index + 1}/{rounds}  {launcher.name:<9}{shown}")
            if len(found) == len(order):
                for launcher, figures in found:
                    comparison.add(figures, is_ours=launcher is ours)
    return comparison


def run_once(
    launcher: Launcher, workload: Workload, run: Run, limits: Limits, flags: Sequence[str] | None = None
) -> list[Figure]:
    """Run one workload on a new broker with these flags, or with those of the workload; return its figures."""
    with launcher.launch(workload.flags if flags is None else flags, workload.topics(limits)) as broker:
        return run(broker.target, limits)


def _cells(row: Row) -> list[str]:
    """Return a row as texts: name, theirs, ours, unit, ratio, spread, CPU ratio."""
    low, high = row.spread()
    cpu = row.cpu_ratio()
    theirs, ours = (format_value(statistics.median(values), row.unit) for values in (row.theirs, row.ours))
    shown_cpu = "" if cpu is None else f"{cpu:.2f}"
    return [row.name, theirs, ours, row.unit, f"{row.ratio():.2f}", f"{low:.2f}-{high:.2f}", shown_cpu]


def _heads(comparison: Comparison) -> list[str]:
    return ["", comparison.their_name, comparison.our_name, "unit", "ratio", "spread", "CPU ratio"]


def table(comparison: Comparison) -> str:
    """Return the comparison as a text table."""
    lines = [_heads(comparison), *map(_cells, comparison.complete_rows())]
    return "\n".join(
        f"{name:<26}{theirs:>14}{ours:>14} {unit:<6}{ratio:>7}  {spread:<14}{cpu:>9}"
        for name, theirs, ours, unit, ratio, spread, cpu in lines
    )


def markdown(comparison: Comparison) -> str:
    """Return the comparison as a Markdown table."""
    heads = _heads(comparison)
    lines = [heads, ["---"] * len(heads), *map(_cells, comparison.complete_rows())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
