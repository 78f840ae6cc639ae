"""Single keys from a terminal, without Enter, while a block runs."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class Keyboard:
    """Calls ``on_key`` with each key. Does nothing if stdin is not a terminal. Ctrl-C still sends SIGINT."""

    def __init__(self, on_key: Callable[[str], None]) -> None:
        self._on_key = on_key
        self._descriptor = -1
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._descriptor = sys.stdin.fileno()
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def _read(self) -> None:
        data = os.read(self._descriptor, 64)
        if not data:
            # The terminal was closed.
            asyncio.get_running_loop().remove_reader(self._descriptor)
        elif data.startswith(b"\x1b") and len(data) > 1:
            pass  # an arrow or a function key
        else:
            for key in data.decode("utf-8", "ignore"):
                self._on_key(key)
