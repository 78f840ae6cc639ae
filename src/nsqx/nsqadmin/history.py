"""Time series of about the last hour, in rings of a fixed size.

All series share one clock: poll number ``n`` is at index ``n % capacity`` of every ring. A ring is allocated with its
first value other than 0, so that idle series use almost no memory. Values are single-precision floats (4 bytes), more
precise than a graph. The time is an argument.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence

_NOTHING_YET = -1


class WallClock:
    """The times of the polls that the rings hold."""

    __slots__ = ("_times_s", "capacity", "number")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.number = _NOTHING_YET
        self._times_s = array("d", bytes(8 * capacity))

    def tick(self, time_s: float) -> int:
        """Start a poll at this Unix time; return its number."""
        self.number += 1
        self._times_s[self.number % self.capacity] = time_s
        return self.number

    def range(self, since_s: float = -math.inf) -> range:
        """Return the numbers of the remembered polls later than ``since_s``, oldest first."""
        first = max(0, self.number - self.capacity + 1)
        while first <= self.number and self._times_s[first % self.capacity] <= since_s:
            first += 1
        return range(first, self.number + 1)

    def at(self, time_s: float) -> int | None:
        """Return the number of the last poll that was not later than a time; None if none is remembered."""
        numbers = self.range()
        index = bisect_right(numbers, time_s, key=self.time_s)
        return numbers[index - 1] if index else None

    def dump(self) -> bytes:
        """Return the times for ``load``."""
        return self._times_s.tobytes()

    def load(self, number: int, times_s: bytes) -> None:
        """Continue with stored times; raise ValueError if they do not fit the capacity."""
        if len(times_s) != 8 * self.capacity or number < _NOTHING_YET:
            raise ValueError("unexpected number of times")
        self.number = number
        self._times_s = array("d", times_s)

    def time_s(self, number: int) -> float:
        """Return the Unix time of a remembered poll."""
        return self._times_s[number % self.capacity]


class Track:
    """Several series of one topic or channel."""

    __slots__ = ("_clock", "_first", "_gaps", "_rings", "last")

    def __init__(self, clock: WallClock, width: int) -> None:
        self._clock = clock
        self._rings: list[array[float] | None] = [None] * width
        self._first = _NOTHING_YET
        # The first and last poll of each gap.
        self._gaps: list[tuple[int, int]] = []
        self.last = _NOTHING_YET

    def put(self, number: int, values: Sequence[float]) -> None:
        """Store the values of poll ``number``, one for each series."""
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
        """Return the value of one series at one poll; None in a gap, or if the poll is no longer remembered."""
        if number <= self._clock.number - self._clock.capacity or number < 0:
            return None
        return self.series(index, range(number, number + 1))[0]

    def series(self, index: int, numbers: range) -> list[float | None]:
        """Return the values of one series at these polls; None in gaps."""
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

    def reduce(self, numbers: range, reducers: Sequence[Callable[[list[float]], float]]) -> list[float] | None:
        """Reduce the known values of each series at these polls to one; return None if there are none."""
        oldest = self._clock.number - self._clock.capacity + 1
        first, last = max(numbers.start, self._first, oldest), min(numbers.stop - 1, self.last)
        if self._first == _NOTHING_YET or first > last:
            return None
        if all(ring is None for ring in self._rings):
            numbers = range(last, last + 1)  # all zeros: any value will do
        known = [index for index, value in enumerate(self.series(0, numbers)) if value is not None]
        if not known:
            return None
        reduced: list[float] = []
        for index, reducer in enumerate(reducers):
            if self._rings[index] is None:
                reduced.append(0.0)
                continue
            values = self.series(index, numbers)
            reduced.append(reducer([value for place in known if (value := values[place]) is not None]))
        return reduced

    def dump(self) -> tuple[list[int], list[bytes]]:
        """Return the track for ``load``: the first and last poll, the gaps, the series with a ring; and the rings."""
        present = [index for index, ring in enumerate(self._rings) if ring is not None]
        gaps = [number for gap in self._gaps for number in gap]
        return (
            [self._first, self.last, len(self._gaps), *gaps, *present],
            [ring.tobytes() for ring in self._rings if ring is not None],
        )

    def load(self, head: Sequence[int], rings: bytes) -> None:
        """Continue with a stored track; raise ValueError if it does not fit the clock and the number of series."""
        first, last, gap_count, *rest = head
        gaps, present = rest[: 2 * gap_count], rest[2 * gap_count :]
        size = 4 * self._clock.capacity
        if not 0 <= first <= last <= self._clock.number or len(gaps) != 2 * gap_count:
            raise ValueError("unexpected range of a series")
        if len(rings) != size * len(present) or any(not 0 <= index < len(self._rings) for index in present):
            raise ValueError("unexpected size of a series")
        self._first, self.last = first, last
        self._gaps = list(zip(gaps[::2], gaps[1::2], strict=True))
        for place, index in enumerate(present):
            ring = self._rings[index] = array("f")
            ring.frombytes(rings[place * size : (place + 1) * size])

    @property
    def size_bytes(self) -> int:
        """The memory used by the rings."""
        return sum(ring.itemsize * len(ring) for ring in self._rings if ring is not None)


def _rounded(value: float) -> float:
    """Round to the precision of a single-precision float; return an integer if there is no fraction."""
    whole = round(value)
    return whole if whole == value else float(f"{value:.6g}")


def condense(values: Sequence[float | None], points: int) -> list[float | None]:
    """Reduce a series to at most ``points`` values, each the mean of its neighbours."""
    if len(values) <= points:
        return list(values)
    condensed: list[float | None] = []
    for index in range(points):
        part = values[index * len(values) // points : (index + 1) * len(values) // points]
        known = [value for value in part if value is not None]
        condensed.append(_rounded(sum(known) / len(known)) if known else None)
    return condensed
