"""The figures of a sink are computed from Spark's progress reports and shown as lines or as a table."""

import io

from rich.console import Console

from nsqx.pipeline.display import LineDisplay, line_of, summary_of, table_of
from nsqx.pipeline.figures import SinkFigures


def report(batch, start, end, latest=None, depth=None, duration_ms=500):
    return {
        "batchId": batch,
        "batchDuration": duration_ms,
        "durationMs": {"addBatch": duration_ms} if end > (start or 0) else {},
        "sources": [
            {
                "startOffset": None if start is None else {"rows": start, "segments": "x"},
                "endOffset": {"rows": end, "segments": "x"},
                "latestOffset": {"rows": end if latest is None else latest, "segments": "x", "depth": depth},
                # Twice the number of rows: the source is also read for the dead letters.
                "numInputRows": 2 * (end - (start or 0)),
            }
        ],
    }


def test_rows_are_counted_by_offsets_even_if_reports_are_missing():
    figures = SinkFigures("files")
    figures.add(report(0, None, 100))
    figures.add(report(3, 250, 300, latest=350, depth=7))
    assert (figures.batch, figures.rows_in, figures.batch_rows) == (3, 300, 200)
    assert figures.lag == 57
    assert figures.rows_per_s == 400
    figures.add(report(4, 300, 300, duration_ms=0))
    assert (figures.batch, figures.rows_in, figures.batch_rows, figures.lag) == (3, 300, 200, 0)


def test_offsets_as_text_are_read_and_other_sources_ignored():
    figures = SinkFigures("files")
    figures.add(
        {
            "batchId": 0,
            "durationMs": {"addBatch": 1},
            "sources": [{"endOffset": "no json"}, {"endOffset": '{"rows": 5}'}],
        }
    )
    assert figures.rows_in == 5


def test_late_rows_of_all_operators_and_batches_are_added():
    figures = SinkFigures("files")
    for batch in (0, 1):
        late = [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}, {}]
        figures.add({**report(batch, batch * 10, batch * 10 + 10), "stateOperators": late})
    assert (figures.late_rows, figures.batches) == (6, 2)


def test_a_summary_has_a_line_for_each_sink_and_each_error():
    good = SinkFigures("files", "stopped", batches=1, rows_in=1500, rows_out=1499, dead_letters=1)
    bad = SinkFigures("totals", "failed", batches=0, dead_letters=0, late_rows=3, error="no database")
    assert list(summary_of([good, bad], 2.34)) == [
        "files: stopped: 1,500 rows read, 1,499 written, 1 dead letter, 1 batch in 2.3 s",
        "totals: failed: 0 rows read, 0 written, 0 dead letters, 3 late rows dropped, 0 batches in 2.3 s",
        "totals: no database",
    ]


def test_only_new_batches_and_errors_are_printed():
    stream = io.StringIO()
    display = LineDisplay(stream)
    figures = SinkFigures("files")
    display.end([figures])
    assert stream.getvalue() == ""
    figures.add(report(0, None, 100))
    display.show([figures])
    display.show([figures])
    display.end([figures])
    assert stream.getvalue().count("\n") == 1
    assert "files: batch 0, 100 rows in 0.50 s, 200 rows/s, 100 in total, lag 0" in stream.getvalue()
    figures.state, figures.error = "failed", "no database"
    assert line_of(figures) == "files: failed: no database"


def test_a_terminal_shows_figures_and_errors_in_a_table():
    figures = SinkFigures("files")
    figures.add(report(7, 0, 1500, latest=1600, depth=23))
    broken = SinkFigures("database", state="retrying", error="connection [refused]")
    console = Console(file=io.StringIO(), width=120)
    console.print(table_of("shop", [figures, broken]))
    shown = console.file.getvalue()
    line = next(line for line in shown.splitlines() if "files" in line)
    assert [word.strip() for word in line.split("│")[1:-1]] == [
        "files",
        "running",
        "7",
        "1,500",
        "0",
        "3,000",
        "0.50 s",
        "123",
    ]
    assert "connection [refused]" in shown
