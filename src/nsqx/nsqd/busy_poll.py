"""Whether the broker goes to sleep as soon as there is nothing to do, or looks for more for a moment.

Going to sleep and being woken costs more than such a moment, on both sides, so a client that asks, waits for the answer
and asks again is served sooner by a broker that is awake. Staying awake must pay: nearly every such moment has to end
with a question that came in time, and whoever else wants the core gets it between two looks. So a quiet broker does not
burn a core, and neither does one that waits for clients that wait for the same core.
"""

from __future__ import annotations

from collections.abc import Callable

# How long to look for more before going to sleep.
AWAKE_NS = 50_000
# A moment that found something earns one, one that did not costs so many; below one it is time to sleep.
MISS_COST = 8
MOST_CREDIT = 32
# Questions that come asleep before staying awake is tried again.
REST_QUESTIONS = 256

_AWAKE_NS = AWAKE_NS
_MISS_COST = MISS_COST
_MOST_CREDIT = MOST_CREDIT
_REST_QUESTIONS = REST_QUESTIONS


class BusyPoll:
    """Asleep until ``start``."""

    __slots__ = (
        "_call_soon",
        "_credit",
        "_has_found",
        "_is_late",
        "_is_on",
        "_now_ns",
        "_rest",
        "_until_ns",
        "_yield_core",
        "is_awake",
    )

    def __init__(self) -> None:
        self.is_awake = False
        self._is_on = False
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        self._now_ns: Callable[[], int] | None = None
        self._yield_core: Callable[[], None] | None = None
        self._has_found = False  # something came while awake
        self._is_late = False  # but too late to count
        self._rest = 0  # questions until the next attempt
        self._credit = 0
        self._until_ns = 0

    def start(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        now_ns: Callable[[], int],
        yield_core: Callable[[], None],
    ) -> None:
        """Begin to adapt; of no use where there is one core only: clients could not run while the broker looks."""
        self._call_soon = call_soon
        self._now_ns = now_ns
        self._yield_core = yield_core
        self._is_on = True

    def stop(self) -> None:
        """Stay awake no more."""
        self._is_on = False

    def asked(self) -> None:
        """Somebody asked who waits for the answer, perhaps to ask again."""
        if not self._is_on:
            return
        if self.is_awake:
            if not self._has_found:
                self._has_found = True
                self._is_late = self._is_over()
        elif self._credit > 0 or self._rest == 0:
            self.is_awake = True
            self._stay_awake()
        else:
            self._rest -= 1

    def _is_over(self) -> bool:
        assert self._now_ns is not None
        return self._now_ns() > self._until_ns

    def _stay_awake(self) -> None:
        assert self._now_ns is not None
        assert self._call_soon is not None
        self._has_found = False
        self._until_ns = self._now_ns() + _AWAKE_NS
        self._call_soon(self._look)

    def _look(self) -> None:
        """While awake, each time the loop comes round."""
        if not self._is_on or (self._is_late if self._has_found else self._is_over()):
            self._go_to_sleep()
        elif self._has_found:
            if self._credit < _MOST_CREDIT:
                self._credit += 1
            self._stay_awake()
        else:
            assert self._call_soon is not None
            assert self._yield_core is not None
            self._yield_core()
            self._call_soon(self._look)

    def _go_to_sleep(self) -> None:
        self.is_awake = False
        self._credit -= _MISS_COST
        if self._credit < 1:
            self._credit = 0
            self._rest = _REST_QUESTIONS
