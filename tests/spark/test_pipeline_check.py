"""Errors that only Spark finds in a pipeline file are reported in one line before any message is consumed."""

from __future__ import annotations

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
schema = "number INT, time TIMESTAMP"

[step.rows]
sql = "SELECT number FROM messages"

[sink.files]
from = "rows"
type = "parquet"
path = "out"
"""

# The values of --set, and the expected error.
WRONG = [
    (["step.rows.sql=SELEC 1"], "step.rows.sql: Syntax error at or near 'SELEC'. (line 1, column 1)"),
    (
        ["step.rows.sql=SELECT nombre FROM messages"],
        "step.rows.sql: A column, variable, or function parameter with name",
    ),
    (["step.rows.sql=SELECT 1 AS x FROM nowhere"], "reads no source"),
    (
        ["step.rows.sql=SELECT m.number FROM messages m JOIN nowhere n ON m.number = n.number"],
        "step.rows.sql: unknown source, table or step `nowhere`: use one of messages, rows",
    ),
    (["step.rows.sql=SELECT number FROM rows"], "step.rows.sql: the step depends on itself: rows -> rows"),
    (
        ["step.rows.sql=SELECT number, count(*) AS n FROM messages GROUP BY number"],
        "sink.files.mode: append: without a watermark an aggregate",
    ),
    (["source.messages.schema=number INTT"], "source.messages.schema: invalid schema: "),
    (["source.messages.schema=_id INT"], "source.messages.schema: _id is a column that the pipeline adds"),
    (["source.messages.require=nombre > 1"], "source.messages.require: invalid condition 'nombre > 1': "),
    (
        ["source.messages.watermark={column='tame', delay='1m'}", "source.messages.dedup=['number']"],
        "source.messages.watermark: ",
    ),
    (["source.messages.watermark={column='time', delay='soon'}"], "source.messages.watermark: "),
    (["sink.files.partition_by=day"], "sink.files.partition_by: rows has no column day: use one of number"),
    (["sink.files.partition_by=number"], "sink.files.partition_by: contains all columns"),
    (["sink.again.from=rows", "sink.again.type=topic"], "sink.again.topic: required"),
    (
        ["sink.again.from=rows", "sink.again.type=foreach", "sink.again.function=nomodule:f"],
        "sink.again.function: nomodule:f",
    ),
    (
        ["source.other.topic=$topic", "source.other.format=raw", "step.rows.sql=SELECT number FROM messages, other"],
        "reads $topic through source messages too",
    ),
]


@pytest.mark.timeout(SLOW_S)
def test_every_error_is_reported_in_one_line_before_consuming(spark, pipeline, our_nsqd, topic):
    publish(our_nsqd, topic, [b'{"number": 1}'])
    pipeline.write(FILE, topic=topic)
    assert pipeline.call("check") == 0, pipeline.err
    assert pipeline.out == f"{pipeline.path}: no errors, sinks: files\n"
    for settings, expected in WRONG:
        flags = [f"--set={each.replace('$topic', topic)}" for each in settings]
        assert pipeline.call("check", *flags) == 1, settings
        assert expected.replace("$topic", topic) in pipeline.err, settings
        assert pipeline.err.startswith(f"nsqx: {pipeline.path}: "), settings
        assert pipeline.err.count("\n") == 1, pipeline.err
    assert pipeline.call("run", "--once", "--set=step.rows.sql=SELEC 1") == 1
    assert our_nsqd.topic_stats(topic)["channels"] == []
    assert pipeline.call("check", "--set=source.messages.schema=infer") == 0
    assert "not inferred yet: the first run infers it" in pipeline.out
    # Sinks that do not depend on the missing schema are checked.
    other = ["source.other.topic=$topic", "source.other.format=raw", "sink.again.from=other", "sink.again.type=topic"]
    flags = [f"--set={each.replace('$topic', topic)}" for each in (*other, "source.messages.schema=infer")]
    assert pipeline.call("check", *flags) == 1
    assert "sink.again.topic: required" in pipeline.err
