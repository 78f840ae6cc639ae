"""A clock of a broker that a test can advance. In between, time passes as usual."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

from nsqx.units import NS_PER_MS, NS_PER_S


class AdvancingTimer:
    """A scheduled callback."""

    __slots__ = ("callback", "handle", "when_ns")

    def __init__(self, when_ns: int, callback: Callable[[], None]) -> None:
        self.when_ns = when_ns
        self.callback: Callable[[], None] | None = callback
        self.handle: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Do not call back."""
        self.callback = None
        if self.handle is not None:
            self.handle.cancel()

    def fire(self) -> None:
        """Call back, unless that is done or cancelled."""
        callback = self.callback
        self.cancel()
        if callback is not None:
            callback()


class AdvancingClock:
    """The clock of an event loop plus all that ``advance`` has added. Use it in the thread of the loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._added_ns = 0
        self._serial = itertools.count()
        self._timers: list[tuple[int, int, AdvancingTimer]] = []

    def now_ns(self) -> int:
        """Return the monotonic time."""
        return time.monotonic_ns() + self._added_ns

    def wall_ns(self) -> int:
        """Return the wall-clock time."""
        return time.time_ns() + self._added_ns

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> AdvancingTimer:
        """Call back at ``when_ns`` or up to a millisecond later."""
        timer = AdvancingTimer(when_ns, callback)
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        heapq.heappush(self._timers, (when_ns, next(self._serial), timer))
        self._schedule(timer)
        return timer

    def _schedule(self, timer: AdvancingTimer) -> None:
        delay_ms = max(0, -((self.now_ns() - timer.when_ns) // NS_PER_MS))
        timer.handle = self._loop.call_later(delay_ms / 1000, timer.fire)

    def advance(self, duration_s: float) -> None:
        """Move the clock forward. Timers that become due call back in order, each at its time."""
        end_ns = self.now_ns() + round(duration_s * NS_PER_S)
        while self._timers and self._timers[0][0] <= end_ns:
            when_ns, _, timer = heapq.heappop(self._timers)
            self._added_ns += max(0, when_ns - self.now_ns())
            timer.fire()
        self._added_ns += max(0, end_ns - self.now_ns())
        for _, _, timer in self._timers:
            if timer.handle is not None and timer.callback is not None:
                timer.handle.cancel()
                self._schedule(timer)
