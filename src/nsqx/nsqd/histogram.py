"""Numbers that are counted by size, as Prometheus shows them."""

from __future__ import annotations

from bisect import bisect_left


class Histogram:
    """Numbers that are counted by size. ``counts`` has one more number than ``bounds``, for larger ones."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def add(self, number: int) -> None:
        """Count a number. A number that is equal to a bound is within it."""
        self.counts[bisect_left(self.bounds, number)] += 1
        self.sum += number
