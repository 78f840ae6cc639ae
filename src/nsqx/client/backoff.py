"""When a consumer's handler fails, how long to hold everything back: the level, and the pause it asks for.

    level 0 --failure--> level 1: pause --resume--> one message at a time --success--> level 0: full speed
                            ^                             |
                            +---------- failure ----------+  (one level up)

Pure: it neither sleeps nor sends. While a pause lasts, failures and successes of messages that were still in flight
change nothing, so that many of them at once do not count as many.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqx.client.options import Options

Strategy = Callable[[int], float]
"""How many seconds to pause at a level."""

NOTHING: Final = 0
PAUSE: Final = 1
RESTORE: Final = 2

# 2**level is beyond every range long before.
_MAX_EXPONENT = 62


def exponential(multiplier_s: float) -> Strategy:
    """The multiplier, doubled at each level."""
    return lambda level: multiplier_s * float(1 << min(level, _MAX_EXPONENT))


def full_jitter(multiplier_s: float, rng: random.Random) -> Strategy:
    """Anything from nothing to what ``exponential`` says."""
    longest_s = exponential(multiplier_s)
    return lambda level: rng.random() * longest_s(level)


def strategy_of(options: Options, rng: random.Random) -> Strategy:
    """The strategy that the options name."""
    if options.backoff_strategy == "full_jitter":
        return full_jitter(options.backoff_multiplier, rng)
    return exponential(options.backoff_multiplier)


class Backoff:
    """A consumer's backoff level.

    ``failed`` and ``succeeded`` say what is to be done: NOTHING, PAUSE for ``pause_s`` and then call ``resumed``, or
    RESTORE full speed.
    """

    __slots__ = ("_max_s", "_strategy", "is_pausing", "level", "pause_s")

    def __init__(self, strategy: Strategy, max_s: float) -> None:
        """A ``max_s`` of 0 means that there is no backoff."""
        self._strategy = strategy
        self._max_s = max_s
        self.level = 0
        self.is_pausing = False
        self.pause_s = 0.0

    def failed(self) -> int:
        """A message failed."""
        if self.is_pausing or self._max_s <= 0:
            return NOTHING
        if self._strategy(self.level + 1) <= self._max_s:
            self.level += 1
        return self._pause() if self.level else NOTHING

    def succeeded(self) -> int:
        """A message was handled."""
        if self.is_pausing or not self.level:
            return NOTHING
        self.level -= 1
        return self._pause() if self.level else RESTORE

    def held(self) -> int:
        """A message came back for no fault of the handler's: the level stays."""
        if self.is_pausing or not self.level:
            return NOTHING
        return self._pause()

    def resumed(self) -> None:
        """The pause is over: a message may be tried."""
        self.is_pausing = False

    def _pause(self) -> int:
        self.is_pausing = True
        self.pause_s = min(self._strategy(self.level), self._max_s)
        return PAUSE
