"""The end of a bounded read.

A bounded read must return everything that was in the channel when it started, and must end although new messages keep
arriving. If the nsqds reported the channel's depth, the read ends after that many messages. Otherwise it ends when only
new messages have arrived for a while.

The time of publishing is taken from the clock of the nsqd, which may differ from the local clock. The age of a message
(local arrival time minus time of publishing) is therefore compared with the lowest age seen from the same nsqd. Ages
that fall, or that are above the lowest, belong to a backlog. Ages that stay at the lowest belong to messages that
arrive as they are published. If the backlog grows because publishers are faster than the read, ages cannot show which
messages were there at the start; then the two clocks are compared directly.

The receiver loop reports every event and the passing of time. No method waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqx.spark.columns import Columns

_LONGEST_TICK_S = 0.05


class BoundedRead:
    """Decides when a bounded read is complete."""

    def __init__(self, bound_ns: int, idle_s: float, clock_ns: Callable[[], int] = time.time_ns) -> None:
        """End when no message published before ``bound_ns`` has arrived for ``idle_s``."""
        self._bound_ns = bound_ns
        self._idle_s = idle_s
        self._clock_ns = clock_ns
        # How often the caller must call ``tick``.
        self.tick_s = min(_LONGEST_TICK_S, idle_s / 4)
        self._idle_for_s = 0.0
        # Ages may differ by this much because of transmission delays.
        self._slack_ns = int(idle_s / 2 * NS_PER_S)
        # The lowest age seen from each nsqd: the current one, and the one at the last progress of the backlog.
        self._least_ns: dict[str, int] = {}
        self._noted_ns: dict[str, int] = {}
        # How many messages were in the channel at the start, or None if unknown.
        self._expected: int | None = None
        self._received = 0
        self._received_old = 0
        self._take_count = 0
        # How often messages of the backlog were stored, and whether the messages taken last include some.
        self._step_count = 0
        self._is_stepping = False
        # The counts of steps and takes at the last tick.
        self._ticked = (0, 0)

    def expect(self, count: int | None) -> None:
        """Note how many messages are in the channel at the start; None if unknown."""
        self._expected = count

    def took(self, columns: Columns) -> None:
        """Count messages that are about to be stored."""
        self._received += columns.count
        self._received_old += columns.count_until(self._bound_ns)
        self._take_count += 1
        if self._is_backlog(columns) or (self._expected is not None and self._received <= self._expected):
            self._is_stepping = True

    def _is_backlog(self, columns: Columns) -> bool:
        """Return True if some of these may have been in the channel at the start."""
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
        # A negative age proves that the clocks differ.
        return oldest_ns <= self._bound_ns or least_ns < 0

    @property
    def _has_expected(self) -> bool:
        if self._expected is None:
            return False
        are_clocks_apart = any(least_ns < 0 for least_ns in self._least_ns.values())
        return (self._received if are_clocks_apart else self._received_old) >= self._expected

    def stored(self) -> None:
        """Record that the messages taken last are durable."""
        if self._is_stepping:
            self._is_stepping = False
            self._step_count += 1

    def tick(self, *, has_pending: bool, is_paused: bool) -> None:
        """Count ``tick_s`` as idle, unless messages of the backlog have arrived or may be among those that wait.

        ``has_pending`` is True if received messages wait for a slow disk: unexamined, they may belong to the backlog.
        """
        steps, takes = self._ticked
        self._ticked = (self._step_count, self._take_count)
        if self._step_count != steps or self._is_stepping or is_paused:
            self._idle_for_s = 0.0
        elif self._take_count != takes or not has_pending:
            self._idle_for_s += self.tick_s

    @property
    def is_complete(self) -> bool:
        """True if all expected messages are there, or no message of the backlog has arrived for ``idle_s``."""
        return self._has_expected or self._idle_for_s >= self._idle_s
