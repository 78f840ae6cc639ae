"""Pipelines and archives read the logs of topics that have one, without a change to the file; backfill joins both."""

from __future__ import annotations

import json

import pytest
from pipeline_runs import SLOW_S, PipelineFile, read_rows
from streams import publish

from nsqx.cli import archive as archive_command
from nsqx.pipeline.sinks import TopicSink


@pytest.fixture
def nsqd(fleet):
    return fleet.nsqd("nsqx", "--store=log")


@pytest.fixture
def pipeline(tmp_path, nsqd, capsys):
    return PipelineFile(tmp_path, nsqd, capsys)


def bodies(first, last):
    return [json.dumps({"number": number, "kind": "ab"[number % 2]}).encode() for number in range(first, last)]


def numbers(rows):
    return sorted(row["number"] for row in rows)


FILE = """
[pipeline]
name = "test"

[source.messages]
topic = "$topic"
schema = "infer"

[step.totals]
sql = "SELECT kind, count(*) AS n FROM messages GROUP BY kind"

[sink.files]
from = "messages"
type = "parquet"
path = "out"

[sink.totals]
from = "totals"
type = "topic"
topic = "$topic_totals"
mode = "update"
"""


@pytest.mark.timeout(SLOW_S)
def test_a_pipeline_reads_logs_and_keeps_its_position_in_a_reset(spark, pipeline, nsqd, topic, monkeypatch):
    published = TopicSink.write
    batches = []

    def fail_once(self, rows, query_id, batch_id):
        count = published(self, rows, query_id, batch_id)
        batches.append(batch_id)
        if len(batches) == 1:
            raise RuntimeError("killed after the batch was published")
        return count

    monkeypatch.setattr(TopicSink, "write", fail_once)
    pipeline.write(FILE, topic=topic)
    publish(nsqd, topic, [*bodies(0, 10), b"no json"])
    assert pipeline.call("run", "--once") == 0, pipeline.err
    # Every sink gets what the log had before its channel was created.
    assert numbers(pipeline.rows("out")) == list(range(10))
    assert [letter["value"] for letter in pipeline.dead_letters] == [b"no json"]
    assert "files: stopped: 11 rows read, 10 written, 1 dead letter, " in pipeline.out
    assert "totals: stopped: 11 rows read, 2 written, 0 dead letters, " in pipeline.out
    # The batch was repeated, and nsqd did not store it twice.
    assert batches[:2] == [0, 0]
    assert nsqd.topic_stats(f"{topic}_totals")["message_count"] == 2
    assert not list(pipeline.directory.glob("test.state/*/segments-*"))
    assert pipeline.call("status", "--json") == 3
    assert json.loads(pipeline.out)["sinks"]["files"]["lag"] == 0

    publish(nsqd, topic, bodies(10, 14))
    assert nsqd.channel_stats(topic, "test.files")["depth"] >= 4
    assert pipeline.call("reset", "totals", "--yes") == 0, pipeline.err
    assert pipeline.call("run", "--once") == 0, pipeline.err
    assert numbers(pipeline.rows("out")) == list(range(14))
    # The new query of totals begins after the messages that the old one has counted.
    assert "totals: stopped: 4 rows read, 2 written, 0 dead letters, " in pipeline.out
    assert nsqd.channel_stats(topic, "test.totals")["depth"] <= 4


BACKFILL = """
[pipeline]
name = "test"

[source.messages]
topic = "$topic"
schema = "number INT, kind STRING"
backfill = "archive"

[sink.files]
from = "messages"
type = "parquet"
path = "out"
"""


@pytest.mark.timeout(SLOW_S)
def test_a_backfill_reads_the_archive_and_then_the_log_without_gap_and_double(spark, pipeline, nsqd, topic, capsys):
    def archive():
        words = [topic, "--to", str(pipeline.directory / "archive"), "--once", "--nsqd", nsqd.tcp_address]
        assert archive_command.main(words) == 0, capsys.readouterr().err

    pipeline.write(BACKFILL, topic=topic)
    publish(nsqd, topic, bodies(0, 10))
    assert pipeline.call("run", "--once") == 1
    assert "source.messages.backfill: " in pipeline.err
    assert "has no files of an archive: write it with nsqx archive" in pipeline.err
    archive()
    publish(nsqd, topic, bodies(10, 20))
    archive()
    rows = read_rows(pipeline.directory / "archive")
    assert sorted(row["offset"] for row in rows) == list(range(20))
    assert len({row["log"] for row in rows}) == 1
    publish(nsqd, topic, bodies(20, 25))
    # The first messages are only in the archive now.
    nsqd.request("POST", "/log/trim", query={"topic": topic, "before": "10"})
    assert pipeline.call("run", "--once") == 0, pipeline.err
    assert numbers(pipeline.rows("out")) == list(range(25))
    assert "files: stopped: 25 rows read, 25 written" in pipeline.out
    publish(nsqd, topic, bodies(25, 30))
    assert pipeline.call("reset", "files", "--yes") == 0, pipeline.err
    assert pipeline.call("run", "--once") == 0, pipeline.err
    assert numbers(pipeline.rows("out")) == list(range(30))

    # A new sink finds the archive at its end and the log behind it.
    nsqd.request("POST", "/log/trim", query={"topic": topic, "before": "15"})
    more = ["--set", "sink.more.from=messages", "--set", "sink.more.type=json", "--set", "sink.more.path=more"]
    assert pipeline.call("run", "--once", *more) == 1
    assert "the archive ends at offset 10 of topic" in pipeline.err
    assert "and the log begins at 15: the messages between them would be missing" in pipeline.err
    assert not list(pipeline.directory.glob("test.state/backfill-more-*"))
