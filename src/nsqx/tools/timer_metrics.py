"""Status lines with the durations of the last requests, printed every ``status_every`` requests.

[aggregate]: finished 250 - 99th: 4.13ms - 95th: 2.87ms - avg: 1.52ms
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from nsqx.tools.utility import log_line

_FEWEST_ACCURATE = 100


class TimerMetrics:
    """The durations of the last ``status_every`` requests; 0 disables the status lines."""

    def __init__(self, status_every: int, prefix: str, log_line: Callable[[str], None] = log_line) -> None:
        self._status_every = status_every
        self._prefix = prefix
        self._log_line = log_line
        self._durations_s: list[float] = []
        self._position = 0
        if 0 < status_every < _FEWEST_ACCURATE:
            warning = "Warning: use more than 100 status values for accurate percentiles"
            log_line(f"{warning} (configured with {status_every})")

    def add(self, duration_s: float) -> None:
        """Add the duration of a request; print the status after each ``status_every`` requests."""
        if self._status_every <= 0:
            return
        if len(self._durations_s) < self._status_every:
            self._durations_s.append(duration_s)
            self._position += 1
            return
        is_round_over = self._position == self._status_every
        if is_round_over:
            self._position = 0
        self._durations_s[self._position] = duration_s
        self._position += 1
        if is_round_over:
            self._log_line(self.line())

    def line(self) -> str:
        """Return the status line."""
        ordered = sorted(self._durations_s)
        average_s = sum(ordered) / len(ordered) if ordered else 0.0
        return (
            f"{self._prefix} finished {len(ordered)} - 99th: {_percentile(99, ordered) * 1000:.2f}ms"
            f" - 95th: {_percentile(95, ordered) * 1000:.2f}ms - avg: {average_s * 1000:.2f}ms"
        )


def _percentile(percent: float, ordered: Sequence[float]) -> float:
    if not ordered:
        return 0.0
    index = math.ceil(percent / 100 * len(ordered) + 0.5)
    return ordered[min(index, len(ordered) - 1)]


class RequestTimes:
    """The durations of all requests, and of the requests to each address if there are several."""

    def __init__(
        self, status_every: int, addresses: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._all = TimerMetrics(status_every, "[aggregate]:")
        self._by_address = (
            {address: TimerMetrics(status_every, f"[{address}]:") for address in dict.fromkeys(addresses)}
            if len(addresses) > 1
            else {}
        )
        self._clock = clock

    def start(self) -> float:
        """Return the start time of a request, for ``add``."""
        return self._clock()

    def add(self, address: str, started_s: float) -> None:
        """Add a completed request to ``address``."""
        metrics = self._by_address.get(address)
        if metrics is not None:
            metrics.add(self._clock() - started_s)

    def add_whole(self, started_s: float) -> None:
        """Add a message whose requests are all completed."""
        self._all.add(self._clock() - started_s)
