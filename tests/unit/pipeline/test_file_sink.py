"""The file sink writes temporary files, renames them after the commit, and cleans up after a killed run."""

import gzip
import json
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'nsqx[spark]'")

import pyarrow as pa  # noqa: E402
import pyarrow.dataset  # noqa: E402
import pyarrow.orc  # noqa: E402

from nsqx.pipeline import file_sink  # noqa: E402
from nsqx.pipeline.file_sink import FileLayout, FileSink, WriteStage  # noqa: E402
from nsqx.pipeline.state import write_json  # noqa: E402
from nsqx.spark.storage import open_storage  # noqa: E402


def layout(directory, **changes):
    values = {
        "location": str(directory),
        "format": "parquet",
        "compression": "zstd",
        "partition_by": ("country",),
        "columns": ("number",),
        "temporary": ".nsqx-files-1",
    }
    return FileLayout(**{**values, **changes})


def batch(*rows):
    return pa.RecordBatch.from_pylist([{"number": number, "country": country} for number, country in rows])


def write(wanted, *batches):
    return [row for made in WriteStage(wanted)(iter(batches)) for row in made.to_pylist()]


def test_a_task_writes_one_hidden_temporary_file_for_each_partition(tmp_path):
    written = write(layout(tmp_path), batch((1, "AT"), (2, "AT"), (3, "DE")), batch((4, "DE"), (5, None)))
    assert [(row["directory"], row["rows"]) for row in written] == [
        ("country=AT", 2),
        ("country=DE", 2),
        ("country=__HIVE_DEFAULT_PARTITION__", 1),
    ]
    assert sorted(path.name for path in (tmp_path / ".nsqx-files-1").iterdir()) == sorted(
        row["temporary"] for row in written
    )
    assert pyarrow.dataset.dataset(tmp_path).to_table().num_rows == 0


def test_a_task_without_rows_writes_no_file(tmp_path):
    assert write(layout(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def commit(sink, tmp_path, wanted, *batches, batch_id=0):
    """Write the files and the commit file of a batch, as ``FileSink.write`` does; return the renames to do."""
    written = write(wanted, *batches)
    files = [[row["temporary"], f"{row['directory']}/{batch_id}-{place}"] for place, row in enumerate(written)]
    record = {"query": "q", "batch": batch_id, "rows": 1, "files": files}
    write_json(open_storage(str(tmp_path / "state")), "commit.json", record)
    return files


def test_the_next_run_completes_a_committed_batch_and_removes_other_files(tmp_path):
    out = tmp_path / "out"
    wanted = layout(out)
    sink = FileSink(wanted, "files", str(tmp_path / "state"))
    sink.prepare()
    sink.recover()
    files = commit(sink, tmp_path, wanted, batch((1, "AT"), (2, "DE")))
    write(wanted, batch((9, "FR")))  # a batch without a commit file
    sink._rename(files[:1])
    restarted = FileSink(wanted, "files", str(tmp_path / "state"))
    restarted.prepare()
    restarted.recover()
    rows = pyarrow.dataset.dataset(out, partitioning="hive").to_table().to_pylist()
    assert sorted((row["number"], row["country"]) for row in rows) == [(1, "AT"), (2, "DE")]
    assert list((out / ".nsqx-files-1").iterdir()) == []
    # A committed batch is not written again.
    assert FileSink(wanted, "files", str(tmp_path / "state")).write(None, "q", 0) == 1


def test_files_of_another_sink_in_the_directory_are_kept(tmp_path):
    other = layout(tmp_path / "out", temporary=".nsqx-other-2")
    write(other, batch((1, "AT")))
    restarted = FileSink(layout(tmp_path / "out"), "files", str(tmp_path / "state"))
    restarted.prepare()
    restarted.recover()
    assert len(list((tmp_path / "out" / ".nsqx-other-2").iterdir())) == 1


@pytest.mark.parametrize("value", ["a b", "a/b", "50%", "x=y", "ä", "a:b", "[1]", 'quo"te', "tab\t"])
def test_partition_values_are_read_back_unchanged(tmp_path, value):
    wanted = layout(tmp_path / "out")
    sink = FileSink(wanted, "files", str(tmp_path / "state"))
    sink.prepare()
    sink.recover()
    sink._rename(commit(sink, tmp_path, wanted, batch((1, value))))
    rows = pyarrow.dataset.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    assert rows == [{"number": 1, "country": value}]


def test_json_and_csv_files_have_one_row_per_line(tmp_path):
    lines = pa.RecordBatch.from_pylist([{"__line": '{"a":1}'}, {"__line": '{"a":2}'}])
    plain = layout(tmp_path, format="json", compression="none", partition_by=())
    (made,) = write(plain, lines)
    text = (tmp_path / ".nsqx-files-1" / made["temporary"]).read_text()
    assert [json.loads(line) for line in text.splitlines()] == [{"a": 1}, {"a": 2}]
    packed = layout(tmp_path, format="csv", compression="gzip", partition_by=(), columns=("a", "b,c"))
    (made,) = write(packed, pa.RecordBatch.from_pylist([{"__line": "1,2"}]))
    body = (tmp_path / ".nsqx-files-1" / made["temporary"]).read_bytes()
    assert gzip.decompress(body).decode() == 'a,"b,c"\n1,2\n'


def test_files_are_synced_before_and_directories_after_the_rename(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(file_sink, "_sync", synced.append)
    wanted = layout(tmp_path / "out")
    sink = FileSink(wanted, "files", str(tmp_path / "state"))
    sink.prepare()
    sink.recover()
    files = commit(sink, tmp_path, wanted, batch((1, "AT")))
    assert synced == [f"{tmp_path}/out/.nsqx-files-1/{files[0][0]}"]
    sink._rename(files)
    assert synced[1:] == [f"{tmp_path}/out/country=AT", f"{tmp_path}/out"]


def test_duckdb_reads_only_renamed_files(tmp_path):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install duckdb")
    wanted = layout(tmp_path / "out")
    sink = FileSink(wanted, "files", str(tmp_path / "state"))
    sink.prepare()
    sink.recover()
    written = write(wanted, batch((1, "AT"), (2, "DE")))
    sink._rename([[row["temporary"], f"{row['directory']}/{place}.parquet"] for place, row in enumerate(written)])
    write(wanted, batch((9, "FR")))
    found = duckdb.sql(
        f"SELECT number, country FROM read_parquet('{tmp_path}/out/**/*.parquet', hive_partitioning = true) ORDER BY 1"
    )
    assert found.fetchall() == [(1, "AT"), (2, "DE")]


@pytest.mark.parametrize("compression", ["zstd", "zlib", "none"])
def test_orc_files_keep_types_and_times(tmp_path, compression):
    when = datetime(2026, 11, 15, 8, 0, 0, 123456, tzinfo=UTC)
    rows = pa.RecordBatch.from_pylist(
        [{"number": 1, "when": when, "tags": ["a", None], "at": {"x": 1.5}, "raw": b"\xff"}, {"number": None}],
        schema=pa.schema(
            [
                ("number", pa.int32()),
                ("when", pa.timestamp("us", tz="UTC")),
                ("tags", pa.list_(pa.string())),
                ("at", pa.struct([("x", pa.float64())])),
                ("raw", pa.binary()),
            ]
        ),
    )
    wanted = layout(tmp_path, format="orc", compression=compression, partition_by=(), columns=tuple(rows.schema.names))
    (written,) = write(wanted, rows, rows)
    found = pyarrow.orc.ORCFile(tmp_path / ".nsqx-files-1" / written["temporary"])
    assert found.compression == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    table = found.read()
    assert table.num_rows == written["rows"] == 4
    assert [row["when"] for row in table.to_pylist()] == [when, None] * 2
    assert table.slice(0, 1).to_pylist() == rows.slice(0, 1).to_pylist()
