"""Busy-polling: whether the event loop blocks as soon as there is nothing to do, or polls for 50 µs first.

Blocking and waking up cost more than a short poll, for the broker and for the client. A client that sends a command,
waits for the answer and sends the next one is served sooner by a broker that polls. Polling must pay off: nearly every
poll has to end with a command that arrived in time, and other processes can take the core between two rounds. So an
idle broker does not use a core, and neither does one whose clients wait for the same core.
"""

from __future__ import annotations

from collections.abc import Callable

# How long to poll before blocking.
POLL_NS = 50_000
# A poll that found a command adds 1 to the credit, a poll that did not subtracts MISS_COST. Without credit, block.
MISS_COST = 8
MAX_CREDIT = 32
# Commands that arrive while the broker blocks before polling is tried again.
REST_COMMANDS = 256

_POLL_NS = POLL_NS
_MISS_COST = MISS_COST
_MAX_CREDIT = MAX_CREDIT
_REST_COMMANDS = REST_COMMANDS


class BusyPoll:
    """Off until ``start``."""

    __slots__ = (
        "_call_soon",
        "_credit",
        "_has_found",
        "_is_late",
        "_now_ns",
        "_rest",
        "_until_ns",
        "_yield_core",
        "is_on",
        "is_polling",
    )

    def __init__(self) -> None:
        self.is_polling = False
        self.is_on = False
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        self._now_ns: Callable[[], int] | None = None
        self._yield_core: Callable[[], None] | None = None
        self._has_found = False  # a command came during the poll
        self._is_late = False  # but after the poll's time was over
        self._rest = 0  # commands until polling is tried again
        self._credit = 0
        self._until_ns = 0

    def start(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        now_ns: Callable[[], int],
        yield_core: Callable[[], None],
    ) -> None:
        """Enable busy-polling. It is of no use on a single core, where clients cannot run while the broker polls."""
        self._call_soon = call_soon
        self._now_ns = now_ns
        self._yield_core = yield_core
        self.is_on = True

    def stop(self) -> None:
        """Disable busy-polling."""
        self.is_on = False

    def note_command(self) -> None:
        """Note a command whose client waits for the answer and may send another one."""
        if not self.is_on:
            return
        if self.is_polling:
            if not self._has_found:
                self._has_found = True
                self._is_late = self._is_over()
        elif self._credit > 0 or self._rest == 0:
            self.is_polling = True
            self._start_poll()
        else:
            self._rest -= 1

    def _is_over(self) -> bool:
        assert self._now_ns is not None
        return self._now_ns() > self._until_ns

    def _start_poll(self) -> None:
        assert self._now_ns is not None
        assert self._call_soon is not None
        self._has_found = False
        self._until_ns = self._now_ns() + _POLL_NS
        self._call_soon(self._poll)

    def _poll(self) -> None:
        """Run in each turn of the loop while polling: poll on, or stop."""
        if not self.is_on or (self._is_late if self._has_found else self._is_over()):
            self._stop_polling()
        elif self._has_found:
            if self._credit < _MAX_CREDIT:
                self._credit += 1
            self._start_poll()
        else:
            assert self._call_soon is not None
            assert self._yield_core is not None
            self._yield_core()
            self._call_soon(self._poll)

    def _stop_polling(self) -> None:
        self.is_polling = False
        self._credit -= _MISS_COST
        if self._credit < 1:
            self._credit = 0
            self._rest = _REST_COMMANDS
