"""Round-robin over connections that have received more than they may process at once.

A connection processes a bounded part of its input, a slice, when it arrives. If more is left, it stops reading and
joins here. Every turn of the event loop runs slices of the members in order for about a millisecond. The events of all
other connections therefore wait for about a millisecond, independent of the number of members and of their input.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

ROUND_NS: Final = 1_000_000
# A socket that returns a chunk of this size probably has more. Event loops read up to 250 KB at once and, after a
# full read, read again many times.
LARGE_CHUNK: Final = 128 * 1024


class Member(Protocol):
    """A connection with unprocessed input."""

    def work(self) -> None:
        """Process one slice; join again if more is left. Do nothing if the connection is closed."""


def _call_soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class RoundRobin:
    """The members in order. A member joins once and leaves when ``work`` is called."""

    __slots__ = ("_call_soon", "_is_scheduled", "_members", "_now_ns")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object] = _call_soon,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """The defaults are the running loop and its clock."""
        self._call_soon = call_soon
        self._now_ns = now_ns
        self._members: deque[Member] = deque()
        self._is_scheduled = False

    def join(self, member: Member) -> None:
        """Schedule ``member``; the loop handles its other events first."""
        self._members.append(member)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        members = self._members
        until_ns = self._now_ns() + ROUND_NS
        try:
            while members:
                members.popleft().work()
                if self._now_ns() >= until_ns:
                    break
        finally:
            if members:
                self._schedule()
