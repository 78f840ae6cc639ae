"""Deduplicate concurrent queries: equal queries that run at the same time share one answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

# A later caller does not join a query older than this: its answer could be stale.
MAX_AGE_S = 1.0


class SingleFlight:
    """The running queries. Call ``forget`` after a change: later callers must see it."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called after every change."""
        self._on_change = on_change
        self._tasks: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def share(self, question: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return or raise the result of ``ask``; join a running call for the same ``question``, if there is one."""
        now_s = time.monotonic()
        begun = self._tasks.get(question)
        if begun is not None and now_s - begun[0] < MAX_AGE_S:
            return await asyncio.shield(begun[1])
        task: asyncio.Task[Any] = asyncio.ensure_future(_call(ask))
        self._tasks[question] = now_s, task
        task.add_done_callback(lambda done: self._finished(question, done))
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Let no later caller join a running query."""
        self._tasks.clear()
        self._on_change()

    def _finished(self, question: Hashable, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # every caller may have been cancelled: mark the exception as retrieved
        if question in self._tasks and self._tasks[question][1] is task:
            del self._tasks[question]


async def _call(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()
