"""When a bounded read has all that it is going to get.

It is to have what was in the channel when it began, and to end although messages keep coming. What was published after
its beginning does not count as progress; if somebody could tell how much there was, that many are enough.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqx.spark.columns import Columns

_LONGEST_TICK_S = 0.05


class Drain:
    """Watches a read that is to end."""

    def __init__(self, bound_ns: int, idle_s: float) -> None:
        """It ends when nothing published before ``bound_ns`` came for ``idle_s``."""
        self._bound_ns = bound_ns
        self._idle_s = idle_s
        # How many messages there were at the beginning, if that is known.
        self.expected: int | None = None
        self._received = 0
        self._received_old = 0
        self._take_count = 0
        # How often the end came nearer, and whether what was taken last brings it nearer once it is stored.
        self._step_count = 0
        self._is_stepping = False

    def took(self, columns: Columns) -> None:
        """These are about to be stored."""
        old = columns.count_until(self._bound_ns)
        self._received += columns.count
        self._received_old += old
        self._take_count += 1
        if old or (self.expected is not None and self._received <= self.expected):
            self._is_stepping = True

    def stored(self) -> None:
        """What was taken is durable."""
        if self._is_stepping:
            self._is_stepping = False
            self._step_count += 1

    async def watch(self, has_pending: Callable[[], bool], is_paused: Callable[[], bool]) -> None:
        """Return when all is there that was counted, or nothing older came for a while."""
        tick_s = min(_LONGEST_TICK_S, self._idle_s / 4)
        idle_s = 0.0
        while idle_s < self._idle_s:
            if self.expected is not None and self._received_old >= self.expected:
                return
            steps, takes = self._step_count, self._take_count
            await asyncio.sleep(tick_s)
            if self._step_count != steps or self._is_stepping or is_paused():
                idle_s = 0.0
            elif self._take_count != takes or not has_pending():
                # Otherwise a slow disk keeps messages waiting, and who knows what they are.
                idle_s += tick_s
