"""What a backlog does: its age, whether it grows, and how long it takes to drain. Pure functions of numbers.

Rates of single polls jump. The judgement uses means, in which the last half minute counts most.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nsqx.cluster.flow import Flow, drain_s

if TYPE_CHECKING:
    from collections.abc import Iterable

DRAINING = "draining"
GROWING = "growing"
STEADY = "steady"
EMPTY = ""
_ORDER = (EMPTY, DRAINING, STEADY, GROWING)

# A backlog counts as old if a message has waited for so long.
OLD_S = 60.0
_MEAN_S = 30.0
# Backlogs that change by less than this part of their flow, and less than a message in a minute, are steady.
_STEADY_PART = 0.02
_STEADY_PER_S = 1 / 60
# The time of the oldest message is computed from ages, which vary with the time of the answer.
_SAME_TIME_S = 1.5


class BacklogState:
    """The backlog of a topic or channel: ``judge`` each poll."""

    __slots__ = (
        "_has_means",
        "_in_per_s",
        "_out_per_s",
        "drain_s",
        "is_backlog",
        "oldest_at_s",
        "state",
    )

    def __init__(self) -> None:
        self.state = EMPTY
        self.drain_s: float | None = None
        self.oldest_at_s: float | None = None
        """When the oldest message was published; None without one, or if no node reports it."""
        self.is_backlog = False
        """True if a message has waited for long."""
        self._in_per_s = self._out_per_s = 0.0
        self._has_means = False

    def judge(self, depth: int, oldest_ms: int | None, rates: Flow | None, step_s: float, now_s: float) -> None:
        """Judge the numbers of a poll, ``step_s`` after the last one.

        ``oldest_ms`` is the age of the oldest message, None if it is unknown. ``rates`` are None at the first poll.
        """
        at_s, known_s = now_s - oldest_ms / 1000 if oldest_ms else None, self.oldest_at_s
        is_same = at_s is not None and known_s is not None and abs(at_s - known_s) < _SAME_TIME_S
        if not is_same:
            self.oldest_at_s = None if at_s is None else round(at_s, 1)
        if rates is not None:
            self._add_rates(rates, step_s)
        self.state, self.drain_s = self._drain(depth, step_s)
        if not depth:
            self.is_backlog = False
        elif self.oldest_at_s is not None:
            self.is_backlog = now_s - self.oldest_at_s >= OLD_S
        else:  # a message that comes now waits as long as the backlog takes to drain
            self.is_backlog = self.state in (STEADY, GROWING) or (self.drain_s or 0) >= OLD_S

    def _add_rates(self, rates: Flow, step_s: float) -> None:
        weight = 1 - math.exp(-step_s / _MEAN_S) if self._has_means else 1.0
        self._in_per_s += weight * (rates.in_per_s - self._in_per_s)
        self._out_per_s += weight * (rates.out_per_s - self._out_per_s)
        self._has_means = True

    def _drain(self, depth: int, step_s: float) -> tuple[str, float | None]:
        if not depth or not self._has_means:
            return EMPTY, None
        if depth <= self._out_per_s * step_s:  # less than what leaves between two polls
            return DRAINING, depth / self._out_per_s
        flow = Flow(self._in_per_s, self._out_per_s)
        if abs(flow.in_per_s - flow.out_per_s) < max(_STEADY_PART * flow.in_per_s, _STEADY_PER_S):
            return STEADY, None
        seconds = drain_s(depth, flow)
        return (GROWING, None) if seconds is None or seconds == math.inf else (DRAINING, seconds)

    def join(self, others: Iterable[BacklogState]) -> None:
        """Take over what is worse in others: the state of a topic is that of its worst channel."""
        for other in others:
            if _ORDER.index(other.state) > _ORDER.index(self.state):
                self.state = other.state
            if other.drain_s is not None:
                self.drain_s = max(other.drain_s, self.drain_s or 0)
            if other.oldest_at_s is not None:
                self.oldest_at_s = min(other.oldest_at_s, self.oldest_at_s or other.oldest_at_s)
            self.is_backlog = self.is_backlog or other.is_backlog
        if self.state != DRAINING:
            self.drain_s = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a row."""
        return {
            "oldest_at_s": self.oldest_at_s,
            "drain": self.state,
            "drain_s": None if self.drain_s is None else _rough(self.drain_s),
            "backlog": self.is_backlog,
        }


def _rough(seconds: float) -> float:
    """Round to two digits: the time is an estimate, and rows that do not change are not sent."""
    return float(f"{seconds:.2g}") if seconds else 0.0
