"""The figures of a benchmark: a number with its name and unit."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

PER_SECOND: Final = "msg/s"
MILLISECONDS: Final = "ms"
KIBIBYTES: Final = "KiB"
MEBIBYTES: Final = "MiB"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one run."""

    name: str
    value: float
    unit: str
    cpu_us: float | None = None
    """CPU time of the broker per message, or None if its process is unknown."""


def percentile(ordered: array[int], share: float) -> int:
    """Return the smallest sample that is not below ``share`` of all samples; ``ordered`` is sorted and not empty."""
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def lateness_figures(name: str, samples_ns: array[int], cpu_us: float | None = None) -> list[Figure]:
    """Return p50, p99 and p99.9 in milliseconds."""
    ordered = array("q", sorted(samples_ns))
    return [
        Figure(f"{name} {label}", percentile(ordered, share) / 1e6, MILLISECONDS, cpu_us if label == "p50" else None)
        for label, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    ]


def format_value(value: float, unit: str) -> str:
    """Return a value with digits that suit its unit."""
    if unit == PER_SECOND:
        return f"{value:,.0f}"
    return f"{value:.3f}" if unit == MILLISECONDS else f"{value:.1f}"
