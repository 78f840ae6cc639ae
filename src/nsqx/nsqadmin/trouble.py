"""Trouble that an operator should look into: a backlog without consumers, a growing backlog, messages that time out.

Judges a channel by its numbers and its history. No I/O.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqx.nsqadmin.history import Track

NO_CONSUMER = "no_consumer"
GROWING = "growing"
TIMING_OUT = "timing_out"
KINDS = (NO_CONSUMER, GROWING, TIMING_OUT)

# A backlog counts as growing if it grew in both halves of this time, by at least _MIN_GROWTH messages.
WINDOW_S = 60.0
_MIN_GROWTH = 100
_MAX_NAMED = 20


def is_growing(track: Track, series: int, poll: int, window_polls: int, depth: int) -> bool:
    """True if the depth (series number ``series``) has grown throughout the window that ends now."""
    if depth < _MIN_GROWTH:
        return False
    middle = track.value(series, poll - window_polls // 2)
    start = track.value(series, poll - window_polls)
    if middle is None or start is None:
        return False
    return start < middle < depth and depth - start >= _MIN_GROWTH


class TroubleList:
    """The troubles found by one poll."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(KINDS, 0)
        self._found: list[tuple[int, str, str, list[str]]] = []

    def add(self, topic: str, channel: str, kinds: list[str], depth: int) -> None:
        """Add a channel, or a topic without channels if ``channel`` is empty."""
        for kind in kinds:
            self._counts[kind] += 1
        if kinds:
            self._found.append((depth, topic, channel, kinds))

    def document(self) -> dict[str, Any]:
        """Return the number of subjects by kind of trouble, their total, and the names of those with most messages."""
        worst = heapq.nlargest(_MAX_NAMED, self._found, key=lambda each: each[0])
        named = [
            {"topic": topic, "channel": channel, "kinds": kinds, "depth": depth}
            for depth, topic, channel, kinds in worst
        ]
        return {"count": len(self._found), **self._counts, "worst": named}
