"""The time from publish to FIN of a channel's messages, as percentiles over a moving window.

A sketch is a histogram. The bucket of a latency is the upper half of its 32-bit float (sign, 8 bits of exponent, 7 of
mantissa). A bucket is at most 1/128 of its value wide, so its middle is within 0.4 % of every latency in it. Sorting a
batch into buckets takes a few calls into C. Merging two sketches adds their counts.

This module is independent of channels and messages. Callers pass the time.
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Final, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

# Latencies wait in a plain list and are counted this many at a time.
BATCH_SIZE = 500

_UPPER_HALF = slice(1 if sys.byteorder == "little" else 0, None, 2)
_SIGN_BIT = 0x8000


class Percentile(TypedDict):
    """One percentile: the share ``quantile`` of the messages took at most ``value`` nanoseconds."""

    quantile: float
    value: int


class LatencyResult(TypedDict):
    """The e2e_processing_latency of /stats; ``percentiles`` is null if no percentile is configured."""

    count: int
    percentiles: list[Percentile] | None


NO_LATENCY: "Final[LatencyResult]" = {"count": 0, "percentiles": None}


class LatencySketch:
    """The latencies of the last window, in two halves. The older half is dropped when half a window has passed."""

    __slots__ = ("_batch", "_current", "_half_window_ns", "_previous", "_window_end_ns", "percentiles")

    def __init__(self, percentiles: "Sequence[float]", window_ns: int) -> None:
        # Go's JSON has 1 where Python's has 1.0.
        self.percentiles = tuple(int(share) if share == int(share) else share for share in percentiles)
        self._half_window_ns = max(1, window_ns // 2)
        self._window_end_ns = 0
        self._batch: list[int] = []
        self._current: Counter[int] = Counter()
        self._previous: Counter[int] = Counter()

    def add(self, latency_ns: int, now_ns: int) -> None:
        """Count one finished message."""
        if now_ns > self._window_end_ns:
            self._move_window(now_ns)
        batch = self._batch
        batch.append(latency_ns)
        if len(batch) >= BATCH_SIZE:
            self._fold()

    def result(self, now_ns: int) -> LatencyResult:
        """Return the percentiles of the window; every value is 0 if the window is empty."""
        return _result(self.counts(now_ns), self.percentiles)

    def counts(self, now_ns: int) -> Counter[int]:
        """Return the number of latencies in each bucket."""
        if now_ns > self._window_end_ns:
            self._move_window(now_ns)
        self._fold()
        counts = self._current.copy()
        counts.update(self._previous)
        return counts

    def _fold(self) -> None:
        batch = self._batch
        if batch:
            halves = memoryview(array("f", batch)).cast("B").cast("H")
            self._current.update(halves[_UPPER_HALF].tolist())
            batch.clear()

    def _move_window(self, now_ns: int) -> None:
        halves_passed = -((self._window_end_ns - now_ns) // self._half_window_ns)
        self._fold()
        self._previous = self._current if halves_passed == 1 else Counter()
        self._current = Counter()
        self._window_end_ns += halves_passed * self._half_window_ns


class MergedLatency:
    """The latencies of several sketches together, as for a topic over all its channels."""

    __slots__ = ("_counts", "_percentiles")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._percentiles: tuple[float, ...] | None = None

    def add(self, sketch: LatencySketch, now_ns: int) -> None:
        """Count the latencies of ``sketch``."""
        self._counts.update(sketch.counts(now_ns))
        self._percentiles = sketch.percentiles

    def result(self) -> LatencyResult:
        """Return the percentiles; null without a sketch."""
        return NO_LATENCY if self._percentiles is None else _result(self._counts, self._percentiles)


def _result(counts: Counter[int], percentiles: tuple[float, ...]) -> LatencyResult:
    return {
        "count": counts.total(),
        "percentiles": [
            {"quantile": quantile, "value": value}
            for quantile, value in zip(percentiles, _values_at(counts, percentiles), strict=True)
        ],
    }


def _values_at(counts: Counter[int], percentiles: tuple[float, ...]) -> list[int]:
    """Return the latency at each percentile: the middle of the bucket where the running count reaches that share."""
    if not counts:
        return [0] * len(percentiles)
    buckets = sorted(counts)
    if buckets[-1] >= _SIGN_BIT:
        buckets.sort(key=_order)
    running_counts = list(accumulate(map(counts.__getitem__, buckets)))
    ranks = (ceil(quantile * running_counts[-1]) for quantile in percentiles)
    return [_middle(buckets[bisect_left(running_counts, rank)]) for rank in ranks]


def _order(bucket: int) -> int:
    """Sort key of a bucket by value. Buckets below zero (a clock that was set back) sort by their bits in reverse."""
    return bucket if bucket < _SIGN_BIT else _SIGN_BIT - bucket


def _middle(bucket: int) -> int:
    value: float = struct.unpack(">f", struct.pack(">HH", bucket, 0x8000))[0]
    return round(value)
