"""Time for the broker: the monotonic clock, the wall clock and timers. Tests use their own clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from nsqx.units import NS_PER_MS


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Monotonic and wall-clock nanoseconds, and callbacks at a given monotonic time."""

    def now_ns(self) -> int: ...
    def wall_ns(self) -> int: ...
    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer: ...


class LoopClock:
    """The clock of a running event loop."""

    __slots__ = ("_loop",)

    now_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        """Call back at ``when_ns`` or up to a millisecond later: the loop counts in milliseconds, so round up."""
        delay_ms = max(0, -((time.monotonic_ns() - when_ns) // NS_PER_MS))
        return self._loop.call_later(delay_ms / 1000, callback)
