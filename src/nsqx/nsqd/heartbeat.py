"""The timer of one connection: heartbeats, and the deadlines that follow from their interval.

A connection is dropped when no complete command came for two intervals, or when its socket took no data for one. Before
the heartbeats begin, and after they end, the same timer has a single deadline: for the magic, the TLS handshake or the
close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from nsqx.units import NS_PER_S


class TimedConnection(Protocol):
    """The connection that a timer belongs to."""

    def send_heartbeat(self) -> None: ...
    def drop(self, reason: str) -> None:
        """Close at once, and log why."""

    def delays_input(self) -> bool:
        """True if commands of the client may wait here or in its socket, so that it is not silent."""


class Heartbeat:
    """The heartbeats and deadlines of one connection."""

    __slots__ = ("_alive_at_s", "_blocked_at_s", "_connection", "_loop", "_next_at_s", "_timer", "interval_ns")

    def __init__(self, connection: TimedConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.interval_ns = 0
        self._connection: TimedConnection | None = connection
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._next_at_s = 0.0
        self._alive_at_s = 0.0
        self._blocked_at_s = 0.0

    def start(self, interval_ns: int) -> None:
        """Send heartbeats from now on; none, and no deadlines, if the interval is 0."""
        self._cancel()
        self.interval_ns = interval_ns
        self._next_at_s = self._loop.time() + interval_ns / NS_PER_S
        self._schedule()

    def set_deadline(self, delay_s: float, action: Callable[..., object], *arguments: object) -> None:
        """Call ``action`` after a time. Heartbeats and their deadlines end; ``start`` begins them again."""
        self._cancel()
        self.interval_ns = 0
        self._timer = self._loop.call_later(delay_s, action, *arguments)

    def stop(self) -> None:
        """End everything, and release the connection."""
        self._cancel()
        self.interval_ns = 0
        self._connection = None

    def note_alive(self) -> None:
        """Note a sign of life of the client."""
        self._alive_at_s = self._loop.time()

    def note_blocked(self) -> None:
        """Note that the socket takes no data."""
        self._blocked_at_s = self._loop.time()
        self._schedule()

    def note_unblocked(self) -> None:
        """Note that the socket takes data again."""
        self._blocked_at_s = 0.0

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """Set the timer to the earliest of heartbeat, read deadline and write deadline."""
        if self.interval_ns <= 0:
            return
        self._cancel()
        interval_s = self.interval_ns / NS_PER_S
        when_s = min(self._next_at_s, self._alive_at_s + 2 * interval_s)
        if self._blocked_at_s:
            when_s = min(when_s, self._blocked_at_s + interval_s)
        self._timer = self._loop.call_later(max(0.0, when_s - self._loop.time()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        connection = self._connection
        assert connection is not None
        now_s = self._loop.time()
        interval_s = self.interval_ns / NS_PER_S
        if connection.delays_input():
            self._alive_at_s = now_s
        if now_s >= self._alive_at_s + 2 * interval_s:
            connection.drop("failed to read command - i/o timeout")
            return
        if self._blocked_at_s and now_s >= self._blocked_at_s + interval_s:
            connection.drop("failed to send - i/o timeout")
            return
        if now_s >= self._next_at_s:
            self._next_at_s = now_s + interval_s
            connection.send_heartbeat()
        self._schedule()
