"""Series of measurements over the last hour or so, in rings of a fixed size.

All series share one clock: poll number ``n`` is at place ``n % capacity`` of every ring. A ring is made when the first
value other than 0 comes, so what is idle costs next to nothing. Numbers are single floats (4 bytes), which is finer
than a graph shows. Knows nothing of where numbers come from, and takes the time as an argument.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

_NOTHING_YET = -1


class WallClock:
    """When each poll was, for as many polls as the rings hold."""

    __slots__ = ("_times_s", "capacity", "number")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.number = _NOTHING_YET
        self._times_s = array("d", bytes(8 * capacity))

    def tick(self, time_s: float) -> int:
        """A new poll, at this time since 1970; its number."""
        self.number += 1
        self._times_s[self.number % self.capacity] = time_s
        return self.number

    def range(self, since_s: float = -math.inf) -> range:
        """The numbers of the polls that are remembered and later than ``since_s``, the oldest first."""
        first = max(0, self.number - self.capacity + 1)
        while first <= self.number and self._times_s[first % self.capacity] <= since_s:
            first += 1
        return range(first, self.number + 1)

    def time_s(self, number: int) -> float:
        """When a poll that is remembered was."""
        return self._times_s[number % self.capacity]


class Track:
    """Several series about one thing."""

    __slots__ = ("_clock", "_first", "_gaps", "_rings", "last")

    def __init__(self, clock: WallClock, width: int) -> None:
        self._clock = clock
        self._rings: list[array[float] | None] = [None] * width
        self._first = _NOTHING_YET
        # Polls from which to which it was not there.
        self._gaps: list[tuple[int, int]] = []
        self.last = _NOTHING_YET

    def put(self, number: int, values: Sequence[float]) -> None:
        """The values at poll ``number``, one for each series."""
        if self._first == _NOTHING_YET:
            self._first = number
        elif number - self.last > 1:
            self._gaps.append((self.last + 1, number - 1))
            oldest = number - self._clock.capacity
            self._gaps = [gap for gap in self._gaps if gap[1] > oldest]
        self.last = number
        place = number % self._clock.capacity
        rings = self._rings
        for index, value in enumerate(values):
            ring = rings[index]
            if ring is not None:
                ring[place] = value
            elif value:
                ring = rings[index] = array("f", bytes(4 * self._clock.capacity))
                ring[place] = value

    def value(self, index: int, number: int) -> float | None:
        """The value of one series at one poll; None if there is none, or if it is not remembered any more."""
        if number <= self._clock.number - self._clock.capacity or number < 0:
            return None
        return self.series(index, range(number, number + 1))[0]

    def series(self, index: int, numbers: range) -> list[float | None]:
        """The values of one series at these polls; None where there is none."""
        ring = self._rings[index]
        capacity = self._clock.capacity
        values: list[float | None] = [
            (0 if ring is None else _rounded(ring[number % capacity])) if self._first <= number <= self.last else None
            for number in numbers
        ]
        for first, last in self._gaps:
            for number in range(max(first, numbers.start), min(last, numbers.stop - 1) + 1):
                values[number - numbers.start] = None
        return values

    @property
    def size_bytes(self) -> int:
        """What its rings take."""
        return sum(ring.itemsize * len(ring) for ring in self._rings if ring is not None)


def _rounded(value: float) -> float:
    """Without the digits that a single float does not have, and without a fraction if there is none."""
    whole = round(value)
    return whole if whole == value else float(f"{value:.6g}")


def condense(values: Sequence[float | None], points: int) -> list[float | None]:
    """As many points as asked for, or fewer: each the mean of its neighbours."""
    if len(values) <= points:
        return list(values)
    condensed: list[float | None] = []
    for index in range(points):
        part = values[index * len(values) // points : (index + 1) * len(values) // points]
        known = [value for value in part if value is not None]
        condensed.append(_rounded(sum(known) / len(known)) if known else None)
    return condensed
