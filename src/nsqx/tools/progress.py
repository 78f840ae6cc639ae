"""A progress line with the number of messages and their rate, updated in place; shown only on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TextIO

_RENEWALS_PER_S = 4
_RATE_WINDOW_S = 1.0


class ProgressLine:
    """A count that is shown while the block runs, if ``stream`` (default stderr) is a terminal.

    The line is not shown if ``but_not`` is a terminal too, because it would mix with the output there.
    """

    def __init__(
        self,
        what: str,
        *,
        stream: TextIO | None = None,
        but_not: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = stream if stream is not None else sys.stderr
        self.count = 0
        self.is_shown = _is_terminal(stream) and not _is_terminal(but_not)
        self._what = what
        self._stream = stream
        self._clock = clock
        self._started_s = self._mark_s = clock()
        self._mark_count = 0
        self._rate = 0.0
        self._exits = ExitStack()

    def add(self, count: int) -> None:
        """Add to the count."""
        self.count += count

    def line(self) -> str:
        """Return the line to show."""
        now_s = self._clock()
        passed_s = now_s - self._mark_s
        if passed_s >= _RATE_WINDOW_S:
            self._rate = (self.count - self._mark_count) / passed_s
            self._mark_s, self._mark_count = now_s, self.count
        return f"{self.count:,} {self._what}, {self._rate:,.0f}/s, {now_s - self._started_s:.0f} s"

    def __rich__(self) -> str:
        return self.line()

    def __enter__(self) -> Self:
        if self.is_shown:
            # Imported here so that a utility in a pipe starts faster. Without rich no line is shown.
            try:
                from rich.console import Console
                from rich.live import Live
            except ModuleNotFoundError:
                return self

            console = Console(file=self._stream, highlight=False, markup=False)
            live = Live(self, console=console, refresh_per_second=_RENEWALS_PER_S, redirect_stdout=False)
            self._exits.enter_context(live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.close()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
