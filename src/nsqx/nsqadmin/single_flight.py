"""Equal questions that are asked at the same time get one answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

# An answer that has been under way for longer may have been begun too long ago to be called fresh.
MAX_AGE_S = 1.0


class SingleFlight:
    """The questions under way. ``forget`` them when something was changed: who asks then must see the change."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called whenever something was changed."""
        self._on_change = on_change
        self._tasks: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def share(self, question: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What ``ask`` returns or raises, from a call that others have begun if there is one."""
        now_s = time.monotonic()
        begun = self._tasks.get(question)
        if begun is not None and now_s - begun[0] < MAX_AGE_S:
            return await asyncio.shield(begun[1])
        task: asyncio.Task[Any] = asyncio.ensure_future(_call(ask))
        self._tasks[question] = now_s, task
        task.add_done_callback(lambda done: self._landed(question, done))
        return await asyncio.shield(task)

    def forget(self) -> None:
        """From now on nobody joins a question that was asked before."""
        self._tasks.clear()
        self._on_change()

    def _landed(self, question: Hashable, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # whoever asked may be gone; then nobody else looks at it
        if question in self._tasks and self._tasks[question][1] is task:
            del self._tasks[question]


async def _call(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()
