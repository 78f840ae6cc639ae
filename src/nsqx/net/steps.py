"""Long jobs in small steps, so that an event loop serves its clients in between.

A job is a generator that yields after each item of its work and returns the result. ``finish`` runs it to its end.
``StepScheduler.run`` runs a bounded number of steps per turn of the event loop. Concurrent jobs take turns: each turn
of the loop continues one of them. Many jobs therefore block the loop no longer than one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]

# An item, such as a channel in /stats, usually takes a few microseconds.
STEPS_PER_TURN = 200
TURN_NS = 5_000_000


def finish(steps: Steps[Result]) -> Result:
    """Run all steps and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


class StepScheduler:
    """Shares the turns of a loop among long jobs."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, steps: Steps[Result], steps_per_turn: int = STEPS_PER_TURN) -> Result:
        """Run all steps and return the result; run at most ``steps_per_turn`` steps, or 5 ms, per turn of the loop.

        A short job finishes in the current turn. After a long one the caller continues in a new turn.
        """
        is_long = False
        while True:
            try:
                until_ns = time.monotonic_ns() + TURN_NS
                for _ in range(steps_per_turn):
                    next(steps)
                    if time.monotonic_ns() >= until_ns:
                        break
            except StopIteration as end:
                if is_long:
                    await self.next_turn()
                result: Result = end.value
                return result
            is_long = True
            await self.next_turn()

    async def next_turn(self) -> None:
        """Wait until the loop has handled its other events and the jobs that wait already have had their turns."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._give_turn)
        await turn

    def _give_turn(self) -> None:
        turn = self._waiting.popleft()
        if not turn.done():
            turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give_turn)
