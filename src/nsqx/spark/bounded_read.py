"""When a bounded read has all that it is going to get.

It is to have what was in the channel when it began, and to end although messages keep coming. If the nsqds told how
much there was, that many are enough. Otherwise it ends when nothing but new messages came for a while.

A message tells when it was published by the clock of its nsqd, which may differ from the clock here. So the age of a
message (arrival here minus publishing there) is compared with the least age that came from the same nsqd: ages that
keep falling, or are above the least, are those of a backlog; ages that stay at the least are those of messages that
come as they are published. Only of a backlog that grows, because publishers outrun the read, this cannot tell which of
it was there at the beginning; then the two clocks decide.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqx.spark.columns import Columns

_LONGEST_TICK_S = 0.05


class BoundedRead:
    """Watches a read that is to end."""

    def __init__(self, bound_ns: int, idle_s: float, clock_ns: Callable[[], int] = time.time_ns) -> None:
        """It ends when nothing from before ``bound_ns`` came for ``idle_s``."""
        self._bound_ns = bound_ns
        self._idle_s = idle_s
        self._clock_ns = clock_ns
        # Ages differ by this much because of the way a message takes.
        self._slack_ns = int(idle_s / 2 * NS_PER_S)
        # The least age that came from each nsqd: the latest, and that which the end last came nearer with.
        self._least_ns: dict[str, int] = {}
        self._noted_ns: dict[str, int] = {}
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
        self._received += columns.count
        self._received_old += columns.count_until(self._bound_ns)
        self._take_count += 1
        if self._is_backlog(columns) or (self.expected is not None and self._received <= self.expected):
            self._is_stepping = True

    def _is_backlog(self, columns: Columns) -> bool:
        """Whether some of these may have been in the channel at the beginning."""
        now_ns, node = self._clock_ns(), columns.node
        oldest_ns, least_ns = columns.oldest_ns(), now_ns - columns.newest_ns()
        if node in self._least_ns:
            least_ns = min(least_ns, self._least_ns[node])
        self._least_ns[node] = least_ns
        if least_ns < self._noted_ns.get(node, least_ns + self._slack_ns) - self._slack_ns // 10:
            self._noted_ns[node] = least_ns
            return True
        if now_ns - oldest_ns <= least_ns + self._slack_ns:
            return False
        # A message from the future proves that the clocks differ.
        return oldest_ns <= self._bound_ns or least_ns < 0

    @property
    def _has_expected(self) -> bool:
        if self.expected is None:
            return False
        are_clocks_apart = any(least_ns < 0 for least_ns in self._least_ns.values())
        return (self._received if are_clocks_apart else self._received_old) >= self.expected

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
            if self._has_expected:
                return
            steps, takes = self._step_count, self._take_count
            await asyncio.sleep(tick_s)
            if self._step_count != steps or self._is_stepping or is_paused():
                idle_s = 0.0
            elif self._take_count != takes or not has_pending():
                # Otherwise a slow disk keeps messages waiting, and who knows what they are.
                idle_s += tick_s
