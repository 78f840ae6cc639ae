"""A sink that fails does not end the others; one sink can be reset; a changed query is compared with its state."""

from __future__ import annotations

import json

import pytest
from pipeline_runs import SLOW_S, PipelineFile
from streams import publish


@pytest.fixture
def pipeline(tmp_path, our_nsqd, capsys):
    return PipelineFile(tmp_path, our_nsqd, capsys)


FILE = """
[pipeline]
name = "test"

[source.messages]
topic = "$topic"
schema = "number INT, kind STRING"

[sink.good]
from = "messages"
type = "parquet"
path = "good"

[sink.bad]
from = "messages"
type = "json"
path = "bad"
partition_by = "kind"
"""


def bodies(first, last):
    return [json.dumps({"number": number, "kind": "a"}).encode() for number in range(first, last)]


def numbers_in_lines(directory):
    texts = (path.read_text() for path in directory.glob("kind=a/*.json"))
    return sorted(json.loads(line)["number"] for text in texts for line in text.splitlines())


@pytest.mark.timeout(SLOW_S)
def test_a_failed_sink_is_stopped_alone_and_reset(spark, pipeline, our_nsqd, topic, monkeypatch):
    monkeypatch.setattr("nsqx.pipeline.query.MAX_FAILURES", 1)
    pipeline.write(FILE, topic=topic)
    pipeline.make_channels(topic, "good", "bad")
    # A file in the place of the directory of the partition.
    blocker = pipeline.directory / "bad" / "kind=a"
    blocker.parent.mkdir()
    blocker.write_text("")
    publish(our_nsqd, topic, bodies(0, 10))
    assert pipeline.call("run", "--once", "--set", "source.messages.options.drainIdle=300ms") == 1
    assert "bad: failed, and is not tried again in this run: " in pipeline.out
    assert "bad: failed: 10 rows read" in pipeline.out or "bad: failed: 0 rows read" in pipeline.out
    assert "good: stopped: 10 rows read, 10 written" in pipeline.out
    assert sorted(row["number"] for row in pipeline.rows("good")) == list(range(10))
    assert pipeline.call("status") == 1
    assert "not running: failed" in pipeline.out

    blocker.unlink()
    assert pipeline.call("reset") == 2
    assert "SINK is missing" in pipeline.err
    assert pipeline.call("reset", "worse") == 1
    assert "no sink 'worse': use one of good, bad" in pipeline.err
    assert pipeline.call("reset", "bad") == 1
    assert "nothing was changed: add --yes" in pipeline.err
    assert pipeline.call("reset", "bad", "--yes") == 0, pipeline.err
    assert "was begun and not completed" not in pipeline.out
    assert pipeline.call("reset", "good", "--yes") == 0
    assert f"what it has written to {pipeline.directory / 'good'} stays" in pipeline.out
    assert pipeline.call("reset", "good", "--yes") == 0
    assert "sink good of pipeline test has no state" in pipeline.out
    publish(our_nsqd, topic, bodies(10, 15))
    pipeline.run_once()
    assert sorted(row["number"] for row in pipeline.rows("good")) == list(range(15))
    assert numbers_in_lines(pipeline.directory / "bad") == list(range(15))


TOTALS = """
[pipeline]
name = "test"

[source.messages]
topic = "$topic"
schema = "number INT, kind STRING, time TIMESTAMP"
watermark = { column = "time", delay = "1m" }
$dedup

[step.totals]
sql = "SELECT $columns FROM messages AS m WHERE $where GROUP BY $keys"

[sink.totals]
from = "totals"
type = "topic"
topic = "$topic_totals"
mode = "update"
"""

BASE = {"dedup": 'dedup = ["number"]', "columns": "kind, sum(number) AS total", "where": "true", "keys": "kind"}

# Changes of the query, and the part of the error after "does not fit: ".
CHANGES = [
    (
        {"columns": "kind, number, sum(number) AS total", "keys": "kind, number"},
        "step.totals",
        "GROUP BY: was kind string, is kind string, number int",
    ),
    (
        {"columns": "kind, max(number) AS total"},
        "step.totals",
        "the aggregates: was sum(number) bigint, is max(number) int",
    ),
    (
        {"columns": "kind, sum(number) AS total, count(*) AS n"},
        "step.totals",
        "the aggregates: was sum(number) bigint, is sum(number) bigint, count(1) bigint",
    ),
    ({"dedup": ""}, "source.messages", "the dedup number int was removed"),
    ({"dedup": 'dedup = ["kind"]'}, "source.messages", "the columns of dedup: was number int, is kind string"),
]


@pytest.mark.timeout(SLOW_S)
def test_a_changed_query_is_compared_with_its_state_before_it_starts(spark, pipeline, our_nsqd, topic):
    pipeline.write(TOTALS, **BASE, topic=topic)
    pipeline.make_channels(topic, "totals")
    # Without state there is nothing to compare.
    assert pipeline.call("run", "--once", "--set", "source.messages.options.drainIdle=100ms") == 0, pipeline.err
    body = json.dumps({"number": 1, "kind": "a", "time": "2026-11-15T10:00:00Z"}).encode()
    publish(our_nsqd, topic, [body])
    pipeline.run_once()
    publish(our_nsqd, topic, [body])
    for change, key, expected in CHANGES:
        pipeline.write(TOTALS, **{**BASE, **change}, topic=topic)
        assert pipeline.call("run", "--once") == 1, change
        start = f"nsqx: {pipeline.path}: {key}: the query of sink totals has changed since the last run"
        assert pipeline.err.startswith(start), pipeline.err
        assert f"does not fit: {expected}. Undo the change;" in pipeline.err
        assert f"nsqx pipeline reset {pipeline.path} totals" in pipeline.err
        assert our_nsqd.channel_stats(topic, "test.totals")["depth"] == 1
    # A filter, another name of a column and an alias of a table do not concern the state.
    harmless = {"columns": "kind, sum(x.number) AS sum_of_numbers", "where": "number > 0"}
    pipeline.write(TOTALS.replace("AS m", "AS x"), **{**BASE, **harmless}, topic=topic)
    pipeline.run_once()
    # After a reset the changed query starts with no state.
    pipeline.write(TOTALS, **{**BASE, "columns": "kind, max(number) AS total"}, topic=topic)
    assert pipeline.call("run", "--once") == 1
    assert pipeline.call("reset", "totals", "--yes") == 0
    publish(our_nsqd, topic, [body])
    pipeline.run_once()
    assert "totals: stopped: 1 rows read, 1 written" in pipeline.out
