"""A run prints one line for each batch with rows and one for each new error."""

import io

import pytest
from rich.console import Console

from nsqx.pipeline.display import LineDisplay, table_of
from nsqx.pipeline.figures import SinkFigures


def lines_of(*states: SinkFigures) -> list[str]:
    """Return the lines printed for successive states of a sink, without the time."""
    stream = io.StringIO()
    display = LineDisplay(stream)
    for figures in states:
        display.end([figures])
    return [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()]


def figures_at(batch: int, rows_in: int, rows_out: int, error: str = "", state: str = "running") -> SinkFigures:
    return SinkFigures(
        "files", state, batch, rows_in, rows_out, batch_rows=10, batch_s=2.0, rows_per_s=5.0, error=error
    )


def test_each_batch_is_printed_once() -> None:
    assert lines_of(figures_at(0, 10, 10), figures_at(0, 10, 10)) == [
        "files: batch 0, 10 rows in 2.00 s, 5 rows/s, 10 in total"
    ]


def test_a_batch_is_not_printed_again_when_rows_out_grows_first() -> None:
    lines = lines_of(figures_at(0, 10, 10), figures_at(0, 10, 20), figures_at(1, 20, 20))
    assert [line.partition(",")[0] for line in lines] == ["files: batch 0", "files: batch 1"]


def test_batches_without_rows_are_not_printed() -> None:
    assert len(lines_of(figures_at(0, 10, 10), figures_at(1, 10, 10), figures_at(2, 10, 10))) == 1


def test_a_batch_that_only_writes_rows_is_printed() -> None:
    assert len(lines_of(figures_at(0, 10, 0), figures_at(1, 10, 10))) == 2


def test_a_repeated_error_is_printed_once() -> None:
    failing = figures_at(0, 10, 10, "the disk is full", "retrying")
    assert lines_of(figures_at(0, 10, 10), failing, failing)[1:] == ["files: retrying: the disk is full"]


def test_nothing_is_printed_before_the_first_batch() -> None:
    assert lines_of(figures_at(-1, 0, 0), figures_at(-1, 0, 10)) == []


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_value_is_truncated_on_a_narrow_terminal(width: int) -> None:
    figures = SinkFigures(
        "warehouse_events_by_hour", "running", 123_456, 1_234_567_890, 1_234_567_890, 10, 2.0, 98_765.0, lag=1_234_567
    )
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(table_of("a pipeline", [figures]))
    rows = [line.strip("│").split("│") for line in stream.getvalue().splitlines() if line.startswith("│")]
    joined = ["".join(cell.strip() for cell in column) for column in zip(*rows, strict=True)]
    assert joined[:4] == ["warehouse_events_by_hour", "running", "123456", "1,234,567,890"]
    assert "…" not in stream.getvalue()
