"""Output of a run: a table that is updated in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

if TYPE_CHECKING:
    from nsqx.pipeline.figures import SinkFigures

_LINE_INTERVAL_S = 1.0


class Display(Protocol):
    """The output of a run."""

    def note(self, text: str) -> None:
        """Print an event."""

    def show(self, figures: Sequence[SinkFigures]) -> None:
        """Show the current figures; called several times per second."""

    def end(self, figures: Sequence[SinkFigures]) -> None:
        """Show the final figures."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_display(title: str, stream: TextIO | None = None) -> Display:
    """Return a display for a stream, by default stdout."""
    stream = stream or sys.stdout
    return TerminalDisplay(title) if stream.isatty() else LineDisplay(stream)


class LineDisplay:
    """Prints a line for each sink that has completed a batch, at most once per second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_s = 0.0
        self._seen: dict[str, tuple[int, int, int, str]] = {}

    def note(self, text: str) -> None:
        """Print a line with the time."""
        print(f"{time.strftime('%Y/%m/%d %H:%M:%S')} {text}", file=self._stream, flush=True)

    def show(self, figures: Sequence[SinkFigures]) -> None:
        """Print a line for each sink whose figures have changed."""
        if time.monotonic() - self._shown_s < _LINE_INTERVAL_S:
            return
        self._flush(figures)

    def end(self, figures: Sequence[SinkFigures]) -> None:
        """Print the changes that were not shown yet."""
        self._flush(figures)

    def _flush(self, figures: Sequence[SinkFigures]) -> None:
        for each in figures:
            batch, rows_in, rows_out, error = self._seen.get(each.sink, (-1, 0, 0, ""))
            # rows_out changes before Spark reports the batch; batches without rows are not shown.
            is_batch = each.batch != batch and (each.rows_in, each.rows_out) != (rows_in, rows_out)
            if is_batch or each.error != error:
                self._seen[each.sink] = (each.batch, each.rows_in, each.rows_out, each.error)
                self.note(line_of(each))
                self._shown_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def line_of(figures: SinkFigures) -> str:
    """Return the figures of one sink as a line."""
    if figures.error and figures.state != "running":
        return f"{figures.sink}: {figures.state}: {figures.error}"
    text = (
        f"{figures.sink}: batch {figures.batch}, {figures.batch_rows:,} rows in {figures.batch_s:.2f} s,"
        f" {figures.rows_per_s:,.0f} rows/s, {figures.rows_in:,} in total"
    )
    return text if figures.lag is None else f"{text}, lag {figures.lag:,}"


def summary_of(figures: Sequence[SinkFigures], duration_s: float) -> Iterator[str]:
    """Yield a line for each sink with what the run has done."""
    for each in figures:
        rows = f"{each.rows_in:,} rows read, {each.rows_out:,} written, {_counted(each.dead_letters, 'dead letter')}"
        late = f", {_counted(each.late_rows, 'late row')} dropped" if each.late_rows else ""
        batches = _counted(each.batches, "batch", "batches")
        yield f"{each.sink}: {each.state}: {rows}{late}, {batches} in {duration_s:.1f} s"
        if each.error:
            yield f"{each.sink}: {each.error}"


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


class TerminalDisplay:
    """A table that is updated in place."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=4)
        self._exits = ExitStack()

    def note(self, text: str) -> None:
        """Print a line above the table."""
        self._live.console.print(text, markup=False, highlight=False)

    def show(self, figures: Sequence[SinkFigures]) -> None:
        """Update the table."""
        self._live.update(table_of(self._title, figures))

    def end(self, figures: Sequence[SinkFigures]) -> None:
        """Update the table, which stays on the terminal."""
        self.show(figures)

    def __enter__(self) -> Self:
        self._exits.enter_context(self._live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()


def table_of(title: str, figures: Sequence[SinkFigures]) -> Any:
    """Return a rich table of the sinks, with their errors below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    # On a narrow terminal text is wrapped instead of cut off.
    table.add_column("sink", overflow="fold")
    table.add_column("state", overflow="fold")
    for name in ("batch", "rows in", "rows out", "rows/s", "batch time", "lag"):
        table.add_column(name, justify="right", overflow="fold")
    for each in figures:
        colour = {"running": "green", "retrying": "yellow", "failed": "red"}.get(each.state, "white")
        table.add_row(
            each.sink,
            f"[{colour}]{each.state}[/]",
            str(each.batch) if each.batch >= 0 else "-",
            f"{each.rows_in:,}",
            f"{each.rows_out:,}",
            f"{each.rows_per_s:,.0f}",
            f"{each.batch_s:.2f} s",
            "-" if each.lag is None else f"{each.lag:,}",
        )
    errors = [Text(f"{each.sink}: {each.error}", style="red") for each in figures if each.error]
    return Group(table, *errors)
