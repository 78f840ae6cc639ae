"""Sums of the counts in nsqd's /stats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_COUNTS = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)


def total(entries: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the sums of the counts of several entries of /stats, and ``memory_depth``."""
    sums = dict.fromkeys(_COUNTS, 0)
    for entry in entries:
        for name in _COUNTS:
            sums[name] += entry.get(name, 0)
    sums["memory_depth"] = sums["depth"] - sums["backend_depth"]
    return sums
