"""Several sinks of a shared source: the topic is read and decoded once, and each sink has every row once."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from pipeline_runs import SLOW_S, PipelineFile, take_all
from streams import publish

from nsqx.pipeline.decoded_rows import DecodedRows, DecodedRowsWriter
from nsqx.pipeline.figures import SinkFigures
from nsqx.pipeline.file_sink import FileSink
from nsqx.pipeline.sinks import TopicSink


@pytest.fixture
def log_nsqd(fleet):
    return fleet.nsqd("nsqx", "--store=log")


def bodies(first, last):
    return [json.dumps({"number": number, "kind": "ab"[number % 2]}).encode() for number in range(first, last)]


def numbers(rows):
    return sorted(row["number"] for row in rows)


@pytest.fixture
def rows_fetched(monkeypatch):
    """Count the rows that Spark's sources have returned, by what they read: messages, or decoded rows."""
    counts = Counter()
    add = SinkFigures.add

    def count(self, report):
        for source in report["sources"]:
            kind = "decoded" if "segments" in str(source["endOffset"]) else "messages"
            counts[kind] += source["numInputRows"]
        add(self, report)

    monkeypatch.setattr(SinkFigures, "add", count)
    return counts


FILE = """
[pipeline]
name = "test"

[source.messages]
topic = "$topic"
schema = "number INT, kind STRING"
require = ["number >= 0"]
options = { maxRowsPerTrigger = 8 }
$share

[step.totals]
sql = "SELECT kind, count(*) AS n FROM messages GROUP BY kind"

[sink.files]
from = "messages"
type = "parquet"
path = "files"

[sink.lines]
from = "messages"
type = "json"
path = "lines"
partition_by = "kind"

[sink.totals]
from = "totals"
type = "topic"
topic = "$topic_totals"
mode = "update"
"""


def lines(directory):
    texts = (path.read_text() for path in directory.glob("kind=*/*.json"))
    return sorted(json.loads(line)["number"] for text in texts for line in text.splitlines())


@pytest.mark.timeout(SLOW_S)
def test_a_topic_is_decoded_once_and_a_failed_sink_keeps_its_rows(
    spark, tmp_path, log_nsqd, topic, capsys, monkeypatch, rows_fetched
):
    monkeypatch.setattr("nsqx.pipeline.query.MAX_FAILURES", 2)
    broken = []

    def fail_after(owner, name):
        """Let the first call of a method raise after it has done its work, as if the driver was killed then."""
        method = getattr(owner, name)

        def fail_once(self, *arguments):
            result = method(self, *arguments)
            if (owner, name) not in broken:
                broken.append((owner, name))
                raise RuntimeError(f"killed after {name}")
            return result

        monkeypatch.setattr(owner, name, fail_once)

    fail_after(DecodedRowsWriter, "write")
    fail_after(TopicSink, "write")
    fail_after(FileSink, "write")
    pipeline = PipelineFile(tmp_path, log_nsqd, capsys)
    pipeline.write(FILE, topic=topic, share="share = true")
    publish(log_nsqd, topic, [*bodies(0, 20), b"no json", b'{"number": -1}'])
    blocker = pipeline.directory / "lines" / "kind=a"
    blocker.parent.mkdir()
    blocker.write_text("")
    assert pipeline.call("run", "--once") == 1
    assert len(broken) == 3
    assert "lines: failed, and is not tried again in this run: " in pipeline.out
    assert "shared-messages: stopped: 22 rows read, " in pipeline.out
    assert "2 dead letters" in pipeline.out
    assert "files: stopped: 20 rows read, " in pipeline.out
    assert numbers(pipeline.rows("files")) == list(range(20))
    assert sorted(letter["value"] for letter in pipeline.dead_letters) == [b"no json", b'{"number": -1}']
    assert [each["channel_name"] for each in log_nsqd.topic_stats(topic)["channels"]] == ["test.shared-messages"]

    blocker.unlink()
    rows_fetched.clear()
    publish(log_nsqd, topic, bodies(20, 30))
    assert pipeline.call("run", "--once") == 0, pipeline.err + pipeline.out
    # Three sinks have read the new rows, and the messages were fetched once.
    assert rows_fetched["messages"] == 10
    assert rows_fetched["decoded"] >= 30
    assert lines(pipeline.directory / "lines") == list(range(30))
    assert numbers(pipeline.rows("files")) == list(range(30))
    last = {}
    for record in map(json.loads, take_all(log_nsqd, f"{topic}_totals", 4)):
        last[record["kind"]] = max(record["n"], last.get(record["kind"], 0))
    assert last == {"a": 15, "b": 15}
    # All sinks have read the older batches.
    rows = DecodedRows(str(pipeline.directory / "test.state/shared-messages/rows"))
    assert rows.end == 30
    assert sum(1 for _ in (pipeline.directory / "test.state/shared-messages/rows/batches").iterdir()) == 1
    assert log_nsqd.channel_stats(topic, "test.shared-messages")["depth"] <= 10

    # A reset sink goes on with the rows that it has not read. A removed one does not keep rows.
    assert pipeline.call("reset", "totals", "--yes") == 0, pipeline.err
    publish(log_nsqd, topic, bodies(30, 34))
    assert pipeline.call("run", "--once") == 0, pipeline.err
    assert "totals: stopped: 4 rows read, 2 written, 0 dead letters, " in pipeline.out
    assert pipeline.call("explain") == 0, pipeline.err
    assert "reads messages through shared-messages" in pipeline.out
    assert "reads messages through channel test.shared-messages" in pipeline.out
