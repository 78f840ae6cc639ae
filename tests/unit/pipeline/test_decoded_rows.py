"""The decoded rows of a shared source: repeated batches, positions, removal, and which sinks share."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install 'nsqx[spark]'")

import pyarrow as pa  # noqa: E402

from nsqx.errors import ConfigError  # noqa: E402
from nsqx.pipeline.decode import RejectedRows  # noqa: E402
from nsqx.pipeline.decoded_rows import DecodedRows, PartStage  # noqa: E402
from nsqx.pipeline.decoded_source import DecodedReader  # noqa: E402
from nsqx.pipeline.parser import read_pipeline  # noqa: E402
from nsqx.pipeline.references import References  # noqa: E402
from nsqx.pipeline.sharing import find_sharing, store_starts  # noqa: E402
from nsqx.pipeline.state import hold_state  # noqa: E402
from nsqx.spark.slices import DataLost  # noqa: E402


@pytest.fixture
def location(tmp_path):
    DecodedRows(str(tmp_path / "rows")).create()
    return str(tmp_path / "rows")


def stage(location):
    rejected = RejectedRows("source.messages", "raw", None, None, lambda name: None)
    return PartStage(location, ["number"], rejected)


def write(location, number, *parts, query="q"):
    """Write a batch as tasks and the driver do; ``parts`` are the rows of each task."""
    rows = DecodedRows(location)
    if rows.has(query, number):
        return
    written = []
    for part in parts:
        columns = {
            "number": pa.array(part, pa.int64()),
            "__value": pa.nulls(len(part), pa.binary()),
            "__reason": pa.nulls(len(part), pa.string()),
        }
        for batch in stage(location)(iter([pa.RecordBatch.from_pydict(columns)])):
            written += batch.to_pylist()
    rows.append(query, number, written)


def reader(location, **options):
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField("number", LongType())])
    return DecodedReader({"decodedRows": location, "startFile": f"{location}/start.json", **options}, schema)


def read(source, start, end):
    return [
        number
        for partition in source.partitions(start, end)
        for batch in source.read(partition)
        for number in batch.column("number").to_pylist()
    ]


def offset(location, rows):
    return {"rows": rows, "segments": DecodedRows(location).identity}


def test_a_repeated_batch_is_stored_once(location):
    write(location, 0, [1, 2], [3])
    write(location, 0, [1, 2], [3])
    write(location, 1)
    write(location, 2, [4])
    DecodedRows(location).trim(4)
    write(location, 2, [4])
    assert DecodedRows(location).end == 4
    write(location, 0, [5], query="another")
    source = reader(location)
    assert read(source, offset(location, 3), offset(location, 5)) == [4, 5]


def test_a_reader_takes_whole_parts_within_its_limits(location):
    for number in range(3):
        write(location, number, [10 * number, 10 * number + 1], [10 * number + 2])
    source = reader(location, maxRowsPerTrigger="4")
    source.prepareForTriggerAvailableNow()
    write(location, 3, [99])
    ends = [offset(location, 0)]
    while (end := source.latestOffset(ends[-1], source.getDefaultReadLimit())) != ends[-1]:
        ends.append(end)
    assert [end["rows"] for end in ends] == [0, 3, 6, 10]
    found = [read(source, start, end) for start, end in zip(ends, ends[1:], strict=False)]
    assert found == [[0, 1, 2], [10, 11, 12], [20, 21, 22, 99]]
    # The bound is that of the first request.
    write(location, 4, [100])
    assert source.latestOffset(ends[-1], source.getDefaultReadLimit()) == ends[-1]
    assert source.reportLatestOffset()["rows"] == 11
    small = reader(location, maxBytesPerTrigger="1")
    assert small.latestOffset(ends[0], small.getDefaultReadLimit())["rows"] == 2


def test_removed_rows_are_reported_and_parts_without_batch_are_swept(location):
    for number in range(3):
        write(location, number, [number])
    list(
        stage(location)(
            iter(
                [
                    pa.RecordBatch.from_pydict(
                        {"number": [7], "__value": pa.nulls(1, pa.binary()), "__reason": pa.nulls(1, pa.string())}
                    )
                ]
            )
        )
    )
    rows = DecodedRows(location)
    rows.sweep()
    rows.trim(2)
    assert len(list(DecodedRows(location).parts_after(2))) == 1
    for start in (0, 1, 4):
        with pytest.raises(DataLost, match="the decoded rows from"):
            list(DecodedRows(location).parts_after(start))
    with pytest.raises(DataLost, match="other decoded rows"):
        reader(location).partitions({"rows": 2, "segments": "other"}, {"rows": 3, "segments": "other"})


def test_a_batch_that_is_removed_while_a_reader_looks_for_it_is_not_missed(location, monkeypatch):
    write(location, 0, [0])
    rows = DecodedRows(location)
    listed = rows._firsts

    def list_and_then_change():
        found = listed()
        if found == [0]:
            write(location, 1, [1])
            DecodedRows(location).trim(1)
        return found

    monkeypatch.setattr(rows, "_firsts", list_and_then_change)
    assert [part.first for part in rows.parts_after(1)] == [1]


def test_a_column_that_was_added_or_changed_is_read_from_older_rows(location):
    from pyspark.sql.types import StringType, StructField, StructType

    write(location, 0, [1])
    options = {"decodedRows": location, "startFile": f"{location}/start.json"}
    schema = StructType([StructField("number", StringType()), StructField("new", StringType())])
    source = DecodedReader(options, schema)
    (partition,) = source.partitions(offset(location, 0), offset(location, 1))
    assert [batch.to_pylist() for batch in source.read(partition)] == [[{"number": "1", "new": None}]]


FILE = """
[pipeline]
name = "test"

[source.messages]
topic = "orders"
format = "raw"
$share

[sink.one]
from = "messages"
type = "json"
path = "one"

[sink.two]
from = "messages"
type = "parquet"
path = "two"
trigger = "2s"
"""


def pipeline_with(directory, share):
    path = directory / "pipeline.toml"
    path.write_text(FILE.replace("$share", share))
    pipeline = read_pipeline(str(path), nsqd=["127.0.0.1:4150"])
    sources = tuple(pipeline.sources.values())
    names = dict.fromkeys(pipeline.sinks, ("messages",))
    return pipeline, References({}, names, dict.fromkeys(pipeline.sinks, sources))


def test_the_state_of_a_sink_decides_whether_it_shares(tmp_path):
    pipeline, references = pipeline_with(tmp_path, "")
    assert find_sharing(pipeline, references).pairs == frozenset()
    with hold_state(pipeline.state, wait_s=0) as state:
        # Sink one has begun with a channel of its own.
        state.write("start-one.json", {})
        pipeline, references = pipeline_with(tmp_path, "share = true")
        sharing = find_sharing(pipeline, references)
        assert sharing.pairs == {("two", "messages")}
        assert sharing.sinks["messages"].trigger_ms == 2000
        assert pipeline.channel_of(pipeline.sources["messages"], sharing.sinks["messages"]) == "test.shared-messages"
        store_starts(pipeline, state, sharing)
        # Sink two has begun to share.
        pipeline, references = pipeline_with(tmp_path, "")
        assert find_sharing(pipeline, references).pairs == {("two", "messages")}


def test_share_with_backfill_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"source\.messages\.share: a source with backfill cannot be shared"):
        pipeline_with(tmp_path, 'share = true\nbackfill = "archive"')
