"""Text on a terminal that is replaced in place by its next version.

In a pipe each version is written below the one before.
"""

from __future__ import annotations

import re
import shutil
import sys

from nsqx.tools.utility import write_stdout

_UP = "\x1b[{}A"
_CLEAR_BELOW = "\x1b[J"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LiveText:
    """A text on stdout that changes."""

    def __init__(self) -> None:
        self.is_in_place = sys.stdout.isatty()
        self._shown: list[str] = []

    def show(self, text: str) -> None:
        """Replace the text before; on a terminal the rows that do not fit are counted instead of shown."""
        if not self.is_in_place:
            write_stdout(text.encode())
            return
        size = shutil.get_terminal_size()
        lines = _fitting(text.splitlines(), size.columns, size.lines - 1)
        # The rows are counted with the width of now: a terminal wraps its lines again when its width changes.
        above = min(sum(_rows(line, size.columns) for line in self._shown), size.lines - 1)
        move = f"\r{_UP.format(above)}" if above else ""
        self._shown = lines
        write_stdout("".join([move, _CLEAR_BELOW, *(f"{line}\n" for line in lines)]).encode())

    def keep(self) -> None:
        """Leave the text where it is: the next one is written below."""
        self._shown = []


def _fitting(lines: list[str], columns: int, most_rows: int) -> list[str]:
    """Return the lines that fit into ``most_rows``; the last one counts those that do not."""
    rows = [_rows(line, columns) for line in lines]
    if sum(rows) <= most_rows:
        return lines
    used = count = 0
    while used + rows[count] <= most_rows - 1:
        used += rows[count]
        count += 1
    return [*lines[:count], f"... {len(lines) - count} more lines; add | cat to see all"]


def _rows(line: str, columns: int) -> int:
    """Return how many rows of the terminal a line takes."""
    return max(1, -(-len(_ESCAPES.sub("", line)) // max(1, columns)))
