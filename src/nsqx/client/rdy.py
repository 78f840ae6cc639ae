"""The RDY counts of a consumer's connections, in normal operation and in backoff.

The sum of the counts never exceeds max_in_flight. Each connection gets an equal share of at least 1. If there are more
connections than max_in_flight, some get 0 and the connections take turns: a connection that was idle
(low_rdy_idle_timeout) or has had its count for long (low_rdy_timeout) gives it up, and randomly chosen connections get
1. In backoff all counts are 0. After the pause one connection gets 1.

This module does no I/O. Connections, clock and timers are passed in.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from nsqx.client.backoff import NOTHING, PAUSE, Backoff, strategy_of

if TYPE_CHECKING:
    from nsqx.client.options import Options

_log = logging.getLogger("nsqx.client")

# Pause before another try when a backoff pause ends and no connection can take a message.
_NO_TARGET_PAUSE_S = 1.0
_STARVED_SHARE = 0.85


class ReadyTarget(Protocol):
    """A connection that receives messages."""

    ready_count: int
    max_ready_count: int
    in_flight_count: int
    last_message_s: float
    ready_at_s: float
    is_backing_off: bool

    @property
    def is_closing(self) -> bool: ...

    def set_ready(self, count: int, now_s: float) -> None:
        """Send the count to nsqd. Store it in ``ready_count`` and the time in ``ready_at_s``."""


class CancelableCall(Protocol):
    """A scheduled call."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], CancelableCall]


class ReadyDistribution:
    """Distributes max_in_flight over the connections of one consumer."""

    def __init__(
        self,
        options: Options,
        clock: Callable[[], float],
        call_later: CallLater,
        rng: random.Random | None = None,
    ) -> None:
        self.max_in_flight = options.max_in_flight
        self.targets: list[Any] = []
        self._options = options
        self._clock = clock
        self._call_later = call_later
        self._rng = rng or random.Random()
        self.backoff = Backoff(strategy_of(options, self._rng), options.max_backoff_duration)
        self._pause_timer: CancelableCall | None = None
        self._turn_timer: CancelableCall | None = None
        self._is_stopped = False

    # Connections

    def add(self, target: ReadyTarget) -> None:
        """Give a new connection its share."""
        target.is_backing_off = self.backoff.level > 0
        self.targets.append(target)
        self._balance()

    def remove(self, target: ReadyTarget) -> None:
        """Redistribute the share of a connection that has ended or is closing."""
        if target not in self.targets:
            return
        self.targets.remove(target)
        self._balance()

    def change_max_in_flight(self, count: int) -> None:
        """Distribute a new max_in_flight; 0 stops delivery."""
        self.max_in_flight = count
        self._balance()

    def stop(self) -> None:
        """Stop the timers and send no more counts."""
        self._is_stopped = True
        for timer in (self._pause_timer, self._turn_timer):
            if timer is not None:
                timer.cancel()
        self._pause_timer = self._turn_timer = None

    @property
    def is_starved(self) -> bool:
        """True if a connection has at least 85 % of its RDY count in flight, so nsqd waits for answers."""
        return any(
            target.in_flight_count > 0
            and target.in_flight_count >= int(target.ready_count * _STARVED_SHARE)
            and not target.is_closing
            for target in self.targets
        )

    # Shares

    def _total(self) -> int:
        return sum(target.ready_count for target in self.targets)

    def _balance(self) -> None:
        """Give every connection its share, and start the timer for taking turns if the shares do not suffice."""
        self._watch_turns()
        if self._is_stopped or not self.targets:
            return
        if self.backoff.level:
            self._balance_in_backoff()
            return
        share = min(max(1, self.max_in_flight // len(self.targets)), self.max_in_flight)
        # Lower the counts above the share first, so there is something to give to the others.
        for target in self.targets:
            if target.ready_count > share:
                self._give(target, share)
        for target in reversed(self.targets):
            if target.ready_count and self._total() > self.max_in_flight:
                self._give(target, 0)
        for target in self.targets:
            if target.ready_count < share:
                self._give(target, share)

    def _balance_in_backoff(self) -> None:
        """Allow one message, or none during a pause. The connection that was allowed one may have ended."""
        for target in self.targets:
            if target.ready_count > self.max_in_flight:
                self._give(target, self.max_in_flight)
        if not self.backoff.is_pausing and not self._total():
            self._try_one()

    def _give(self, target: ReadyTarget, count: int) -> bool:
        """Set a count, limited by nsqd's maximum and the total. Return False if nothing is left to give."""
        if target.is_closing:
            return False
        left = self.max_in_flight - self._total() + target.ready_count
        count = min(count, target.max_ready_count)
        # Lowering a count is always possible, also while the total exceeds a lowered max_in_flight.
        granted = count if count <= target.ready_count else min(count, max(left, 0))
        if granted == 0 and count > 0:
            return False
        if granted != target.ready_count:
            target.set_ready(granted, self._clock())
        return True

    # Taking turns

    def _must_take_turns(self) -> bool:
        count = len(self.targets)
        return count > self.max_in_flight > 0 or (self.backoff.level > 0 and count > 1)

    def _watch_turns(self) -> None:
        if self._turn_timer is None and not self._is_stopped and self._must_take_turns():
            self._turn_timer = self._call_later(self._options.rdy_redistribute_interval, self._on_turn_timer)

    def _on_turn_timer(self) -> None:
        self._turn_timer = None
        if self._must_take_turns():
            self.take_turns()
        self._watch_turns()

    def take_turns(self) -> None:
        """Take the counts of connections whose turn is over, and give 1 to randomly chosen others."""
        if self.backoff.is_pausing or self._is_stopped:
            return
        now_s = self._clock()
        for target in self.targets:
            if target.ready_count and self._has_had_its_turn(target, now_s):
                target.set_ready(0, now_s)
        most = 1 if self.backoff.level else self.max_in_flight
        without = [target for target in self.targets if not target.ready_count and not target.is_closing]
        self._rng.shuffle(without)
        for target in without[: max(0, most - self._total())]:
            self._give(target, 1)

    def _has_had_its_turn(self, target: ReadyTarget, now_s: float) -> bool:
        return (
            now_s - target.last_message_s > self._options.low_rdy_idle_timeout
            or now_s - target.ready_at_s > self._options.low_rdy_timeout
        )

    # Backoff

    def failed(self) -> None:
        """Handle the failure of a message."""
        self._act(self.backoff.failed())

    def succeeded(self) -> None:
        """Handle the success of a message."""
        self._act(self.backoff.succeeded())

    def held(self) -> None:
        """Handle a requeue without backoff, which is neither success nor failure."""
        self._act(self.backoff.held())

    def _act(self, action: int) -> None:
        if action == NOTHING or self._is_stopped:
            return
        for target in self.targets:
            target.is_backing_off = self.backoff.level > 0
        if action == PAUSE:
            _log.warning("backing off for %.3f s (level %d)", self.backoff.pause_s, self.backoff.level)
            for target in self.targets:
                if target.ready_count:
                    target.set_ready(0, self._clock())
            self._pause(self.backoff.pause_s)
        else:
            _log.warning("leaving backoff")
            self._balance()

    def _pause(self, pause_s: float) -> None:
        self._pause_timer = self._call_later(pause_s, self._on_pause_over)

    def _on_pause_over(self) -> None:
        self._pause_timer = None
        if self._try_one():
            self.backoff.resumed()
            self._watch_turns()
        else:
            self._pause(_NO_TARGET_PAUSE_S)

    def _try_one(self) -> bool:
        """Allow one message on a randomly chosen connection. Return False if there is no connection."""
        candidates = [target for target in self.targets if not target.is_closing]
        return bool(candidates) and self._give(self._rng.choice(candidates), 1)
