"""A thread with an event loop, so that a broker runs beside a test, whether that is synchronous or asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from nsqx.net.event_loop import new_event_loop

_Result = TypeVar("_Result")


class LoopThread:
    """A thread that runs an event loop until ``stop``. Its calls raise TimeoutError after ``timeout_s``."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._stopping.wait())

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine in the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(self._timeout_s)

    def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function in the thread, and return its result."""
        ended: Future[_Result] = Future()

        def call() -> None:
            try:
                ended.set_result(function(*arguments))
            except BaseException as error:
                ended.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return ended.result(self._timeout_s)

    def block(self) -> Callable[[], None]:
        """Stop the loop, as if its process was frozen; return a function that lets it continue."""
        blocked, released = threading.Event(), threading.Event()

        def wait() -> None:
            blocked.set()
            released.wait()

        self._loop.call_soon_threadsafe(wait)
        if not blocked.wait(self._timeout_s):
            released.set()
            raise TimeoutError
        return released.set

    def stop(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(self._timeout_s)
