"""Time for the broker: the monotonic clock, and callbacks at a point of it. Tests put their own in its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from nsqx.units import NS_PER_MS


class Timer(Protocol):
    """A callback to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Monotonic nanoseconds, and a way to be called at a given one."""

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
        """Call back at ``when_ns`` or a moment later; the loop counts in milliseconds, so round up."""
        delay_ms = max(0, -((time.monotonic_ns() - when_ns) // NS_PER_MS))
        return self._loop.call_later(delay_ms / 1000, callback)
