"""Backoff of a consumer whose handler fails: the level, and the pause of each level.

    level 0 --failure--> level 1: pause --resume--> one message at a time --success--> level 0: full speed
                            ^                             |
                            +---------- failure ----------+  (one level up)

This module does no I/O. During a pause, the outcomes of messages that were still in flight are ignored, so many
failures at once raise the level only once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqx.client.options import Options

Strategy = Callable[[int], float]
"""Return the pause of a level, in seconds."""

NOTHING: Final = 0
PAUSE: Final = 1
RESTORE: Final = 2

# Limits the shift. The pause exceeds max_backoff_duration at far lower levels.
_MAX_EXPONENT = 62


def exponential(multiplier_s: float) -> Strategy:
    """Return a strategy whose pause is the multiplier times 2 to the power of the level."""
    return lambda level: multiplier_s * float(1 << min(level, _MAX_EXPONENT))


def full_jitter(multiplier_s: float, rng: random.Random) -> Strategy:
    """Return a strategy whose pause is random, between 0 and the pause of ``exponential``."""
    longest_s = exponential(multiplier_s)
    return lambda level: rng.random() * longest_s(level)


def strategy_of(options: Options, rng: random.Random) -> Strategy:
    """Return the strategy that the options select."""
    if options.backoff_strategy == "full_jitter":
        return full_jitter(options.backoff_multiplier, rng)
    return exponential(options.backoff_multiplier)


class Backoff:
    """The backoff level of a consumer.

    ``failed``, ``succeeded`` and ``held`` return an action: NOTHING; PAUSE for ``pause_s``, then call ``resumed``; or
    RESTORE full speed.
    """

    __slots__ = ("_max_s", "_strategy", "is_pausing", "level", "pause_s")

    def __init__(self, strategy: Strategy, max_s: float) -> None:
        """A ``max_s`` of 0 turns backoff off."""
        self._strategy = strategy
        self._max_s = max_s
        self.level = 0
        self.is_pausing = False
        self.pause_s = 0.0

    def failed(self) -> int:
        """Raise the level after a failed message."""
        if self.is_pausing or self._max_s <= 0:
            return NOTHING
        if self._strategy(self.level + 1) <= self._max_s:
            self.level += 1
        return self._pause() if self.level else NOTHING

    def succeeded(self) -> int:
        """Lower the level after a successful message."""
        if self.is_pausing or not self.level:
            return NOTHING
        self.level -= 1
        return self._pause() if self.level else RESTORE

    def held(self) -> int:
        """Keep the level and pause again, after a message that was requeued without backoff."""
        if self.is_pausing or not self.level:
            return NOTHING
        return self._pause()

    def resumed(self) -> None:
        """End the pause. The outcome of the next message counts."""
        self.is_pausing = False

    def _pause(self) -> int:
        self.is_pausing = True
        self.pause_s = min(self._strategy(self.level), self._max_s)
        return PAUSE
