"""Numbers that are counted by size, as Prometheus shows them."""

from __future__ import annotations


class Histogram:
    """Numbers that are counted by size. ``counts`` has one more number than ``bounds``, for larger ones."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def add(self, number: int) -> None:
        """Count a number. A number that is equal to a bound is within it."""
        for index, bound in enumerate(self.bounds):
            if number <= bound:
                self.counts[index] += 1
                break
        else:
            self.counts[len(self.bounds)] += 1
        self.sum += number
