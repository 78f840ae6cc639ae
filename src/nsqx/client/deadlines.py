"""One timer for the deadlines of all publications of a producer.

A timer per publish would cost more than the publish. The timer is set to the earliest deadline and is not moved when
that publish is answered. A producer whose publishes are answered in time scans its publications once per timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from nsqx.client.publisher import NEVER_S

# If the timer fires later than this, the event loop was busy, and answers may wait in the sockets.
_LATE_S = 0.1
_READING_S = 0.005
# Scans of very many publications take at most 1 / _PACE of the time.
_PACE = 20.0


class Deadlines:
    """Calls ``expire(now_s)`` at the earliest deadline. ``expire`` returns the next deadline, or NEVER_S."""

    __slots__ = ("_expire", "_loop", "_timer", "earliest_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[float], float]) -> None:
        self.earliest_s = NEVER_S
        self._loop = loop
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, deadline_s: float) -> None:
        """Set the timer to ``deadline_s``, which must be earlier than ``earliest_s``."""
        self.close()
        self.earliest_s = deadline_s
        self._timer = self._loop.call_later(max(0.0, deadline_s - monotonic()), self._on_timer)

    def close(self) -> None:
        """Stop the timer."""
        self.earliest_s = NEVER_S
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        if monotonic() > self.earliest_s + _LATE_S:
            # uvloop runs timers before it reads sockets: read first, then check.
            self._timer = self._loop.call_later(_READING_S, self._check)
        else:
            self._check()

    def _check(self) -> None:
        started_s = monotonic()
        self.close()
        next_s = self._expire(started_s)
        if next_s < self.earliest_s:
            ended_s = monotonic()
            self.watch(max(next_s, ended_s + (ended_s - started_s) * _PACE))
