"""SIGTERM and SIGINT of a program that runs until it is stopped.

Handlers that the program has set itself are left alone, for example those of a web server.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_thread_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """As ``stop_on_signals``, without an event loop. ``stop`` is called in the main thread, which may hold any lock."""
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        before.clear()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop()

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if _is_default(handler):
                before[number] = handler
                signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()


@contextmanager
def stop_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at the first SIGTERM or SIGINT while the block runs. A second signal has its usual effect."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        loop = asyncio.get_running_loop()

        def restore() -> None:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
            before.clear()

        def on_signal() -> None:
            restore()
            stop()

        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if _is_default(handler):
                try:
                    loop.add_signal_handler(number, on_signal)
                except NotImplementedError:  # on Windows
                    break
                before[number] = handler
    try:
        yield
    finally:
        if before:
            restore()


def _is_default(handler: Any) -> bool:
    """Return True for the handlers of Python and of ``asyncio.run``."""
    if isinstance(handler, functools.partial):
        return getattr(handler.func, "__name__", "") == "_on_sigint"
    return handler in (signal.SIG_DFL, signal.default_int_handler)
