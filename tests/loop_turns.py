"""How much work an event loop does between two of its turns: for tests that a long job lets others have theirs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


class Progress:
    """How far a job gets in each turn of the loop, by a number that it makes grow."""

    def __init__(self, measure: Callable[[], int]) -> None:
        self._measure = measure
        self.steps: list[int] = []

    @property
    def longest(self) -> int:
        """The growth in one turn at most."""
        return max(self.steps, default=0)

    async def watch(self, job: Awaitable[Result]) -> Result:
        """Do the job, looking at the number in every turn of the loop."""
        task = asyncio.ensure_future(job)
        before = self._measure()
        while True:
            await asyncio.sleep(0)
            now = self._measure()
            self.steps.append(now - before)
            before = now
            if task.done():
                return task.result()
