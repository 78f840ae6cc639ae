"""SIGTERM and SIGINT as an event, for commands that end after their current work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Provide an event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {}

    def on_signal(number: int, _: object) -> None:
        if stopping.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
