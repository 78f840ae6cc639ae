"""Rows of text as a table: drawn on a terminal, plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsqx.tools.utility import write_stdout


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Columns two spaces apart; the first ``text_columns`` are aligned left, the others, numbers, right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if index < text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "".join(f"{line(cells)}\n" for cells in (columns, *rows))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> None:
    """Write a table to stdout."""
    if not sys.stdout.isatty():
        write_stdout(plain_table(columns, rows, text_columns).encode())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < text_columns else "right", no_wrap=index >= text_columns)
    for row in rows:
        table.add_row(*row)
    Console(markup=False).print(table)
