"""The plan of a backfill lists complete batches of an archive, and where the logs go on."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'nsqx[spark]'")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from nsqx.errors import ConfigError  # noqa: E402
from nsqx.pipeline.backfill import (  # noqa: E402
    ArchiveFile,
    BackfillPlan,
    check_reach,
    check_starts,
    plan_backfill,
    read_archive_file,
)
from nsqx.pipeline.figures import SinkFigures, positions_of  # noqa: E402
from nsqx.spark.rows import SPARK_SCHEMA  # noqa: E402

SCHEMA = SPARK_SCHEMA.append(pa.field("offset", pa.int64())).append(pa.field("log", pa.string()))


def add_file(directory, hour, batch, *rows, part=0, query="1f0c2d3e", schema=SCHEMA):
    """Write a file of an archive with these rows: topic, log and offset."""
    path = directory / "date=2026-11-15" / f"hour={hour}" / f"archive-{query}-{batch:08}-{part}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [
        {"value": b"%d" % offset if offset is not None else b"", "topic": topic, "log": log, "offset": offset}
        for topic, log, offset in rows
    ]
    pq.write_table(pa.Table.from_pylist(values, schema=schema), path)
    return str(path)


def test_the_plan_has_complete_batches_in_the_order_of_their_hours(tmp_path):
    late = add_file(tmp_path, 11, 0, ("orders", "a", 2), ("clicks", "c", 9))
    early = add_file(tmp_path, 10, 0, ("orders", "a", 0), ("orders", "a", 1), ("orders", "b", 7))
    other = add_file(tmp_path, 11, 1, ("orders", "a", 3))
    add_file(tmp_path, 11, 1, ("clicks", "c", 10), part=1)
    # The newest batch may be incomplete, and so may the newest batch of another query.
    add_file(tmp_path, 9, 2, ("orders", "a", 4))
    add_file(tmp_path, 12, 0, ("orders", "a", 99), query="22222222")
    (tmp_path / ".nsqx").mkdir()
    plan = plan_backfill(str(tmp_path), ("orders",))
    assert plan.files == ((early, 3), (late, 1), (other, 1))
    assert plan.starts == {"orders": {"a": 4, "b": 8}}


def test_an_archive_without_offsets_is_refused(tmp_path):
    add_file(tmp_path, 10, 0, ("orders", None, None), schema=SPARK_SCHEMA)
    add_file(tmp_path, 10, 1, ("orders", None, None), schema=SPARK_SCHEMA)
    with pytest.raises(ConfigError, match="has no columns offset and log"):
        plan_backfill(str(tmp_path), ("orders",))
    add_file(tmp_path, 10, 0, ("orders", None, None))
    with pytest.raises(ConfigError, match="has rows without an offset"):
        plan_backfill(str(tmp_path), ("orders",))


def test_a_directory_without_an_archive_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no files of an archive: write it with nsqx archive"):
        plan_backfill(str(tmp_path / "none"), ("orders",))


PLAN = BackfillPlan((("x", 10), ("y", 5), ("z", 20)), {"orders": {"a": 100}})


def test_batches_are_whole_files():
    assert [PLAN.end_within(0, most) for most in (1, 10, 14, 15, 34, 35, 99)] == [10, 10, 10, 15, 15, 35, 35]
    assert PLAN.end_within(15, 1) == 35
    assert PLAN.between(0, 15) == ["x", "y"]
    assert PLAN.between(15, 35) == ["z"]
    assert PLAN.between(35, 35) == []
    assert PLAN.after(15, {}) == BackfillPlan((("z", 20),), PLAN.starts)
    assert PLAN.after(35, {"orders/a": 120, "orders/b": 7}) == BackfillPlan((), {"orders": {"a": 120}})


@pytest.mark.parametrize(("position", "expected"), [(101, "would be missing"), (99, "would be read twice")])
def test_a_channel_elsewhere_is_refused(position, expected):
    check_starts(PLAN, {"orders/a": 100, "orders/new": 0}, "test.files")
    check_starts(PLAN, {}, "test.files")
    with pytest.raises(ConfigError, match=expected):
        check_starts(PLAN, {"orders/a": position}, "test.files")


def test_a_log_that_begins_after_the_archive_is_refused():
    check_reach(PLAN, {"orders/a": 100, "orders/new": 500})
    with pytest.raises(ConfigError, match=r"ends at offset 100 of topic orders \(log a\) and the log begins at 101"):
        check_reach(PLAN, {"orders/a": 101})


def test_a_file_is_read_with_the_columns_of_the_data_source(tmp_path):
    path = add_file(tmp_path, 10, 0, ("orders", "a", 0), ("clicks", "c", 1), ("orders", "a", 2))
    (batch,) = read_archive_file(ArchiveFile(path, str(tmp_path), ("orders",)))
    assert batch.schema == SPARK_SCHEMA
    assert batch.column("value").to_pylist() == [b"0", b"2"]


def test_rows_of_archive_and_logs_are_counted():
    assert positions_of('{"#archive": 3, "#lost": 0, "#away": [], "orders": {"a": 7}}') == {
        "#archive": 3,
        "orders/a": 7,
    }
    figures = SinkFigures("files", starts={"orders/a": 100})
    ends = [(30, 100, 100), (35, 100, 104), (35, 110, 112)]
    for batch, (archive, log, latest) in enumerate(ends):
        source = {
            "startOffset": None,
            "endOffset": {"#archive": archive, "orders": {"a": log}},
            "latestOffset": {"#archive": 35, "orders": {"a": latest}, "#lost": 0},
        }
        figures.add({"batchId": batch, "durationMs": {"addBatch": 1}, "sources": [source]})
    assert (figures.rows_in, figures.lag) == (45, 2)
