"""Rates between two readings of nsqd's counters, and the time until a backlog is gone.

Pure functions of numbers: the caller reads the counters and knows the time between two readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple


class Flow(NamedTuple):
    """Messages per second that came in, and that left: they were finished, dropped or deleted."""

    in_per_s: float
    out_per_s: float


def pending(counts: Mapping[str, int]) -> int:
    """Return how many messages of a topic or channel are not finished: waiting, in flight or deferred."""
    return counts["depth"] + counts.get("in_flight_count", 0) + counts.get("deferred_count", 0)


def messages_out(came: int, before: int, now: int) -> int:
    """Return how many messages left, of ``before`` pending ones and those that came; ``now`` are pending.

    A move of a channel back in its log adds messages that did not come in. Then none has left.
    """
    return max(0, came - (now - before))


def flow_between(before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> Flow | None:
    """Return the rates between two readings of an entry of /stats; None if they cannot be compared.

    They cannot if no time has passed, or if the counters began again: nsqd was started, or the channel created again.
    """
    came = now["message_count"] - before["message_count"]
    if seconds <= 0 or came < 0:
        return None
    return Flow(came / seconds, messages_out(came, pending(before), pending(now)) / seconds)


def drain_s(waiting: int, flow: Flow | None) -> float | None:
    """Return the seconds until a backlog is gone at these rates.

    None if nothing waits or the rates are unknown; ``math.inf`` if the backlog does not become shorter.
    """
    if waiting <= 0 or flow is None:
        return None
    shrinking = flow.out_per_s - flow.in_per_s
    return waiting / shrinking if shrinking > 0 else math.inf
