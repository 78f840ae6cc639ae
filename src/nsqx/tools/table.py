"""Text tables that fit the width of a terminal.

Names are never shortened. Optional columns are left out first; if that is not enough, each row becomes a block.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from nsqx.tools.colours import BOLD, paint, visible
from nsqx.tools.utility import write_stdout

_GAP = "  "

Row = Sequence[str]


def plain_table(columns: Row, rows: Sequence[Row], text_columns: int = 1) -> str:
    """Return a table; the first ``text_columns`` columns are aligned left, the others (numbers) right."""
    widths = _widths(columns, rows)

    def line(cells: Row) -> str:
        padded = [
            _padded(cell, width, is_left=index < text_columns)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return _GAP.join(padded).rstrip()

    return "".join(f"{line(cells)}\n" for cells in (columns, *rows))


def _padded(cell: str, width: int, *, is_left: bool) -> str:
    space = " " * (width - len(visible(cell)))
    return cell + space if is_left else space + cell


def narrow_table(
    columns: Row, rows: Sequence[Row], text_columns: int, optional: Sequence[str], width: int
) -> tuple[str, list[str]] | None:
    """Return a table of at most ``width`` characters per line, and the columns that are left out; None if impossible.

    Columns in ``optional`` are left out one by one, in that order, until the rest fits.
    """
    shown = list(columns)
    for name in ("", *optional):
        if name in shown:
            shown.remove(name)
        places = [columns.index(each) for each in shown]
        picked = [[row[place] for place in places] for row in rows]
        if sum(_widths(shown, picked)) + len(_GAP) * (len(shown) - 1) <= width:
            text_count = sum(place < text_columns for place in places)
            return plain_table(shown, picked, text_count), [name for name in columns if name not in shown]
    return None


def stacked_table(columns: Row, rows: Sequence[Row], text_columns: int, width: int) -> str:
    """Return each row as a block: the first name, and below it the other names and the numbers with their titles."""
    lines: list[str] = []
    for row in rows:
        lines.append(row[0])
        for title, cell in zip(columns[1:text_columns], row[1:text_columns], strict=True):
            lines += _wrapped([title, *cell.split()], width, " ")
        numbers = [f"{title} {cell}" for title, cell in zip(columns[text_columns:], row[text_columns:], strict=True)]
        lines += _wrapped(numbers, width, _GAP)
    return "".join(f"{line}\n" for line in lines)


def print_table(columns: Row, rows: Sequence[Row], text_columns: int = 1, optional: Sequence[str] = ()) -> None:
    """Write a table to stdout; on a terminal it fits the width."""
    write_stdout(table_text(columns, rows, text_columns, optional).encode())


def table_text(columns: Row, rows: Sequence[Row], text_columns: int = 1, optional: Sequence[str] = ()) -> str:
    """Return a table as it is written to stdout."""
    if not sys.stdout.isatty():
        return plain_table(columns, rows, text_columns)
    width = shutil.get_terminal_size().columns
    found = narrow_table(columns, rows, text_columns, optional, width)
    if found is None:
        return stacked_table(columns, rows, text_columns, width)
    table, left_out = found
    heading, _, rest = table.partition("\n")
    lines = [paint(heading, BOLD), *rest.splitlines()]
    if left_out:
        note = f"not shown for lack of width: {', '.join(left_out)}; add | cat to see all columns"
        lines += _wrapped(note.split(), width, " ", indent="")
    return "".join(f"{line}\n" for line in lines)


def _wrapped(words: Sequence[str], width: int, gap: str, indent: str = "    ") -> list[str]:
    """Return lines of whole words; a word that is longer than a line gets its own line."""
    lines: list[str] = []
    for word in words:
        if lines and len(visible(lines[-1] + gap + word)) <= width:
            lines[-1] += gap + word
        else:
            lines.append(indent + word)
    return lines


def _widths(columns: Row, rows: Sequence[Row]) -> list[int]:
    return [max(len(visible(cell)) for cell in column) for column in zip(columns, *rows, strict=True)]
