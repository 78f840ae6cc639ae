"""The lines of a run: one for each batch with rows, one for each change of what is wrong."""

import io

import pytest
from rich.console import Console

from nsqx.pipeline.display import LineDisplay, table_of
from nsqx.pipeline.figures import SinkFigures


def lines_of(*moments: SinkFigures) -> list[str]:
    """What is printed of a sink that was looked at in these moments, without the time of day."""
    stream = io.StringIO()
    display = LineDisplay(stream)
    for figures in moments:
        display.end([figures])
    return [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()]


def moment(batch: int, rows_in: int, rows_out: int, error: str = "", state: str = "running") -> SinkFigures:
    return SinkFigures(
        "files", state, batch, rows_in, rows_out, batch_rows=10, batch_s=2.0, rows_per_s=5.0, error=error
    )


def test_a_batch_is_one_line() -> None:
    assert lines_of(moment(0, 10, 10), moment(0, 10, 10)) == [
        "files: batch 0, 10 rows in 2.00 s, 5 rows/s, 10 in total"
    ]


def test_rows_written_before_their_batch_is_reported_do_not_repeat_the_last_one() -> None:
    told = lines_of(moment(0, 10, 10), moment(0, 10, 20), moment(1, 20, 20))
    assert [line.partition(",")[0] for line in told] == ["files: batch 0", "files: batch 1"]


def test_batches_without_rows_are_not_told() -> None:
    assert len(lines_of(moment(0, 10, 10), moment(1, 10, 10), moment(2, 10, 10))) == 1


def test_a_batch_that_only_writes_is_told() -> None:
    assert len(lines_of(moment(0, 10, 0), moment(1, 10, 10))) == 2


def test_an_error_is_told_once() -> None:
    failing = moment(0, 10, 10, "the disk is full", "retrying")
    assert lines_of(moment(0, 10, 10), failing, failing)[1:] == ["files: retrying: the disk is full"]


def test_nothing_is_told_before_the_first_batch() -> None:
    assert lines_of(moment(-1, 0, 0), moment(-1, 0, 10)) == []


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_cut_off_on_a_narrow_terminal(width: int) -> None:
    figures = SinkFigures(
        "warehouse_events_by_hour", "running", 123_456, 1_234_567_890, 1_234_567_890, 10, 2.0, 98_765.0, lag=1_234_567
    )
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(table_of("a pipeline", [figures]))
    rows = [line.strip("│").split("│") for line in stream.getvalue().splitlines() if line.startswith("│")]
    joined = ["".join(cell.strip() for cell in column) for column in zip(*rows, strict=True)]
    assert joined[:4] == ["warehouse_events_by_hour", "running", "123456", "1,234,567,890"]
    assert "…" not in stream.getvalue()
