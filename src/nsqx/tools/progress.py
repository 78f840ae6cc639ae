"""How many messages so far and how fast, as one line that renews itself on a terminal; elsewhere nothing is shown."""

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
    """A count to be shown while the block runs, if ``stream`` (stderr) is a terminal.

    ``but_not`` is a stream that the same terminal may show, in which case the line would stand between its lines.
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
        """So many more."""
        self.count += count

    def line(self) -> str:
        """What is shown now."""
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
            # Imported here: a utility in a pipe starts without it.
            from rich.console import Console
            from rich.live import Live

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
