"""A thread for blocking calls on files, pipes and terminals, beside the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, Unpack

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")


class IOThread:
    """A thread that makes one call at a time.

    The thread does not keep the process alive, because a read from a terminal or a write to a full pipe may never
    return.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[Unpack[_Arguments]], _T], *arguments: *_Arguments) -> _T:
        """Call ``function`` in the thread; return its result or raise its exception."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_T] = loop.create_future()

        def make() -> None:
            try:
                result = function(*arguments)
            except Exception as error:
                _settle(loop, outcome, outcome.set_exception, error)
            else:
                _settle(loop, outcome, outcome.set_result, result)

        self._calls.put(make)
        return await outcome

    def close(self) -> None:
        """End the thread after the calls that are already queued."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(
    loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[Any], settle: Callable[[Any], None], value: object
) -> None:
    def settle_if_wanted() -> None:
        if not outcome.done():
            settle(value)

    try:
        loop.call_soon_threadsafe(settle_if_wanted)
    except RuntimeError:  # the loop is closed, so no task waits for the result
        pass
