"""One timer for the deadlines of all publications of a producer.

A timer per publish would cost more than the publish. The timer runs to the earliest deadline that was seen when it
last fired; a healthy producer looks through its publications once per timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from nsqx.client.publisher import NEVER_S

# A timer that fires later than this was held up by the event loop, so answers may be waiting in the sockets.
_LATE_S = 0.1
_READING_S = 0.005
# Looking through very many publications takes at most 1 / _PACE of the time.
_PACE = 20.0


class Deadlines:
    """Calls ``expire(now_s)`` at the earliest deadline; it returns the next one, NEVER_S for none."""

    __slots__ = ("_expire", "_loop", "_timer", "earliest_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[float], float]) -> None:
        self.earliest_s = NEVER_S
        self._loop = loop
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, deadline_s: float) -> None:
        """Expire at ``deadline_s``, which is earlier than ``earliest_s``."""
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
            # uvloop runs timers before it reads the sockets.
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
