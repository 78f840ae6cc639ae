"""Measures the work per turn of an event loop, to test that long jobs do not block the loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


class Progress:
    """The progress of a job in each turn of the loop; ``measure`` returns a number that the job increases."""

    def __init__(self, measure: Callable[[], int]) -> None:
        self._measure = measure
        self.steps: list[int] = []

    @property
    def longest(self) -> int:
        """The largest progress in one turn."""
        return max(self.steps, default=0)

    async def watch(self, job: Awaitable[Result]) -> Result:
        """Run the job, measure its progress in every turn, and return its result."""
        task = asyncio.ensure_future(job)
        before = self._measure()
        while True:
            await asyncio.sleep(0)
            now = self._measure()
            self.steps.append(now - before)
            before = now
            if task.done():
                return task.result()
