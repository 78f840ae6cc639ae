"""A pipeline reads topics and writes the expected files and topics."""

from __future__ import annotations

import json
import threading
import urllib.request

import pytest
from pipeline_runs import SLOW_S, PipelineFile, read_rows, take_all
from streams import make_channel, publish

from daemons import free_port, wait_until
from nsqx.pipeline.display import make_display
from nsqx.pipeline.parser import read_pipeline
from nsqx.pipeline.phases import run_pipeline
from nsqx.pipeline.runner import RunOptions
from nsqx.pipeline.state import STATUS, PipelineState


@pytest.fixture
def pipeline(tmp_path, our_nsqd, capsys):
    return PipelineFile(tmp_path, our_nsqd, capsys)


def as_json(*records):
    return [json.dumps(record).encode() for record in records]


def totals_in(nsqd, topic):
    """Return the greatest total of each user. In mode complete every batch publishes all totals again."""
    totals = {}
    for record in map(json.loads, take_all(nsqd, topic, 3)):
        totals[record["user"]] = max(record["total"], totals.get(record["user"], 0))
    return totals


ORDERS = """
[pipeline]
name = "test"

[source.messages]
topic = "$topic"
schema = "order_id INT, user STRING, amount DOUBLE, time TIMESTAMP"
require = ["amount > 0"]
watermark = { column = "time", delay = "1m" }
dedup = ["order_id"]

[table.users]
path = "users.csv"

[step.orders]
sql = '''
SELECT order_id, amount, u.country AS country, _topic AS topic_read
FROM messages m LEFT JOIN users u ON m.user = u.user
'''

[step.totals]
sql = "SELECT user, sum(amount) AS total FROM messages GROUP BY user"

[sink.files]
from = "orders"
type = "parquet"
path = "out"
partition_by = "country"

[sink.totals]
from = "totals"
type = "topic"
topic = "$topic_totals"
mode = "complete"
"""


def order(number, user, amount, minute=0):
    return {"order_id": number, "user": user, "amount": amount, "time": f"2026-11-15T10:{minute:02}:00Z"}


@pytest.mark.timeout(SLOW_S)
def test_json_is_decoded_joined_deduplicated_and_written(spark, pipeline, our_nsqd, topic):
    pipeline.write(ORDERS, topic=topic)
    (pipeline.directory / "users.csv").write_text("user,country\nann,AT\nbob,DE\n")
    pipeline.make_channels(topic, "files", "totals")
    good = [order(1, "ann", 10.0), order(2, "bob", 2.5), order(3, "eve", 1.0), order(1, "ann", 10.0)]
    bad = [b"no json", b"\xff\xfe", b'{"order_id": "x"}', b"[1]", b'{"order_id": 9, "amount": -1}']
    publish(our_nsqd, topic, as_json(*good) + bad)
    pipeline.run_once()

    rows = sorted((row["order_id"], row["amount"], row["country"]) for row in pipeline.rows("out"))
    assert rows == [(1, 10.0, "AT"), (2, 2.5, "DE"), (3, 1.0, None)]
    assert {row["topic_read"] for row in pipeline.rows("out")} == {topic}
    letters = {letter["value"]: letter for letter in pipeline.dead_letters}
    assert set(letters) == set(bad)
    assert len(pipeline.dead_letters) == len(bad)
    reasons = [letters[value]["reason"] for value in bad]
    assert reasons[0].startswith("the value is not JSON: ")
    assert reasons[1:] == [
        "the value is not UTF-8",
        'field order_id: INT expected, found "x"',
        "the value is JSON but not an object: [1]",
        "does not meet the requirement: amount > 0",
    ]
    assert {letter["origin"] for letter in letters.values()} == {"source.messages"}
    assert totals_in(our_nsqd, f"{topic}_totals") == {"ann": 10.0, "bob": 2.5, "eve": 1.0}

    assert "files: stopped: 9 rows read, 3 written, 5 dead letters, " in pipeline.out
    assert "totals: stopped: 9 rows read, " in pipeline.out

    # The next run continues with the stored state of aggregates and deduplication.
    publish(our_nsqd, topic, as_json(order(1, "ann", 10.0), order(4, "bob", 4.0)))
    pipeline.run_once()
    assert sorted(row["order_id"] for row in pipeline.rows("out")) == [1, 2, 3, 4]
    assert totals_in(our_nsqd, f"{topic}_totals") == {"ann": 10.0, "bob": 6.5, "eve": 1.0}

    assert pipeline.call("status") == 3
    assert "files: batch" in pipeline.out
    assert "not running: stopped" in pipeline.out
    assert pipeline.call("status", "--json") == 3
    status = json.loads(pipeline.out)
    assert (status["state"], status["sinks"]["files"]["rows_out"]) == ("stopped", 1)
    # A row that is later than the watermark allows is dropped and counted.
    publish(our_nsqd, topic, as_json(order(6, "ann", 1.0, minute=30)))
    pipeline.run_once()
    publish(our_nsqd, topic, as_json(order(5, "ann", 1.0)))
    pipeline.run_once()
    assert "files: stopped: 1 rows read, 0 written, 0 dead letters, 1 late row dropped, " in pipeline.out
    assert pipeline.call("explain") == 0
    assert "reads messages through channel test.files" in pipeline.out


FORMATS = """
[pipeline]
name = "test"

[source.plain]
topic = "$topic"
format = "text"

[source.bare]
topic = "$topic"
format = "raw"

[source.listed]
topic = "$topic"
format = "csv"
delimiter = ";"
schema = "name STRING, size INT"

[source.packed]
topic = "$topic_avro"
format = "avro"
schema = "record.avsc"
require = ["size < 100"]

[step.plain_rows]
sql = "SELECT value FROM plain"

[step.bare_rows]
sql = "SELECT length(value) AS length, _attempts FROM bare"

[sink.plain]
from = "plain_rows"
type = "json"
path = "plain"

[sink.bare]
from = "bare_rows"
type = "parquet"
path = "bare"

[sink.listed]
from = "listed"
type = "csv"
path = "listed"
compression = "gzip"

[sink.packed]
from = "packed"
type = "parquet"
path = "packed"
"""

AVRO = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "size", "type": ["null", "int"]},
        {"name": "made", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


@pytest.mark.timeout(SLOW_S)
def test_every_source_format_is_decoded(spark, pipeline, our_nsqd, topic):
    fastavro = pytest.importorskip("fastavro")
    import io
    from datetime import UTC, datetime

    made = datetime(2026, 11, 15, 10, tzinfo=UTC)

    def packed(size):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, AVRO, {"name": f"n{size}", "size": size, "made": made, "tags": ["a", "b"]})
        return stream.getvalue()

    (pipeline.directory / "record.avsc").write_text(json.dumps(AVRO))
    pipeline.write(FORMATS, topic=topic)
    for sink in ("plain", "bare", "listed"):
        make_channel(our_nsqd, topic, f"test.{sink}")
    publish(our_nsqd, topic, [b"screw;3", b"nut;x", b"\xff\xff"])
    publish(our_nsqd, f"{topic}_avro", [packed(1), packed(2), packed(1000), b"\x02", packed(3) + b"rest"])
    options = [f"--set=source.{each}.options.drainIdle=300ms" for each in ("plain", "bare", "listed", "packed")]
    assert pipeline.call("run", "--once", *options) == 0, pipeline.err

    texts = [path.read_text() for path in pipeline.directory.glob("plain/*.json")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    assert sorted(line["value"] for line in lines) == ["nut;x", "screw;3"]
    assert sorted(row["length"] for row in pipeline.rows("bare")) == [2, 5, 7]
    listed = read_rows(pipeline.directory / "listed", "csv")
    assert [(row["name"], row["size"]) for row in listed] == [("screw", 3)]
    found = sorted(pipeline.rows("packed"), key=lambda row: row["size"])
    assert [(row["name"], row["size"], row["made"], row["tags"]) for row in found] == [
        ("n1", 1, made, ["a", "b"]),
        ("n2", 2, made, ["a", "b"]),
    ]
    letters = sorted((letter["origin"], letter["reason"]) for letter in pipeline.dead_letters)
    assert [origin for origin, _ in letters] == ["source.listed"] * 2 + ["source.packed"] * 3 + ["source.plain"]
    assert ("source.plain", "the value is not UTF-8") in letters
    assert ("source.packed", "does not meet the requirement: size < 100") in letters
    assert (
        "source.packed",
        "the value is not a record of this Avro schema: 4 bytes are left after the record",
    ) in letters
    assert ("source.listed", "the value does not match the csv schema") in letters


FUNCTIONS = """
[pipeline]
name = "test"

[source.messages]
topic = "$topic"
schema = "infer"

[step.doubled]
from = "messages"
function = "$module:double"
schema = "number INT, twice INT"

[sink.doubled]
from = "doubled"
type = "foreach"
function = "$module:keep"

[dead_letter]
topic = "$topic_dead"
"""

MODULE = """
import pathlib


def double(row):
    if row["number"] == 3:
        raise ValueError("three is unlucky")
    if row["number"] == 4:
        return None
    if row["number"] == 5:
        return {"number": 5, "twice": "ten"}
    return [{"number": row["number"], "twice": 2 * row["number"]}] * (2 if row["number"] == 6 else 1)


def keep(row):
    if row["number"] == 2:
        raise KeyError("two")
    with pathlib.Path(%r).open("a") as stream:
        stream.write(f"{row['number']} {row['twice']}\\n")
"""


@pytest.mark.timeout(SLOW_S)
def test_python_functions_run_on_an_inferred_schema(spark, pipeline, our_nsqd, topic):
    module = f"functions_{topic}"
    kept = pipeline.directory / "kept"
    (pipeline.directory / f"{module}.py").write_text(MODULE % str(kept))
    pipeline.write(FUNCTIONS, topic=topic, module=module)
    pipeline.make_channels(topic, "doubled")
    publish(our_nsqd, topic, as_json(*({"number": number} for number in range(1, 7))))
    pipeline.run_once()

    assert "number BIGINT" in pipeline.out
    assert sorted(kept.read_text().split("\n")) == ["", "1 2", "6 12", "6 12"]
    letters = [json.loads(body) for body in take_all(our_nsqd, f"{topic}_dead", 3)]
    assert len(letters) == 3
    reasons = {letter["origin"]: letter["reason"] for letter in letters if "its schema" not in letter["reason"]}
    assert reasons == {
        "step.doubled": f"{module}:double failed: ValueError: three is unlucky",
        "sink.doubled": f"{module}:keep failed: KeyError: 'two'",
    }
    assert any("does not match its schema" in letter["reason"] for letter in letters)
    unlucky = next(letter for letter in letters if "unlucky" in letter["reason"])
    assert json.loads(unlucky["value"])["number"] == 3
    assert unlucky["topic"] == topic
    # The sample is stored, so the schema is the same in every run.
    state = PipelineState(str(pipeline.directory / "test.state"))
    assert state.read("schema-messages.json")["messages"] == 6
    channel = our_nsqd.channel_stats(topic, "test.doubled")
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)


ONE_SINK = """
[pipeline]
name = "test"

[source.messages]
topic = "$topic"
schema = "number INT"

[step.rows]
sql = "SELECT $columns FROM messages"

[sink.files]
from = "rows"
type = "parquet"
path = "out"
trigger = "100ms"
"""


@pytest.mark.timeout(SLOW_S)
def test_a_pipeline_runs_until_stopped_and_rejects_a_second_run(spark, pipeline, our_nsqd, topic, capsys):
    pipeline.write(ONE_SINK, topic=topic, columns="number")
    pipeline.make_channels(topic, "files")
    described = read_pipeline(str(pipeline.path), nsqd=[our_nsqd.tcp_address])
    state = PipelineState(described.state)
    stopping = threading.Event()
    codes, addresses = [], []

    def run():
        options = RunOptions(metrics_address=f"127.0.0.1:{free_port()}")
        addresses.append(options.metrics_address)
        codes.append(run_pipeline(described, options, make_display(described.name), stopping).exit_code)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    try:
        publish(our_nsqd, topic, as_json(*({"number": number} for number in range(100))))

        def rows_out():
            status = state.read(STATUS) or {"sinks": {}}
            return sum(sink["rows_out"] for sink in status["sinks"].values())

        wait_until(lambda: rows_out() == 100 or codes, "the rows are written", timeout_s=90)
        # Fields outside the schema are detected in a sample of the messages.
        publish(our_nsqd, topic, as_json(*({"number": number, "colour": "red"} for number in range(100, 600))))
        wait_until(lambda: rows_out() == 600 or codes, "the rows are written", timeout_s=90)
        assert pipeline.call("status") == 0
        assert "running since" in pipeline.out
        with urllib.request.urlopen(f"http://{addresses[0]}/metrics", timeout=30) as answer:
            assert b'nsqx_pipeline_rows_written_total{pipeline="test",sink="files"} 600.0' in answer.read()
        assert pipeline.call("run", "--once") == 1
        assert "is already running" in pipeline.err
    finally:
        stopping.set()
        runner.join(60)
    assert codes == [0]
    assert sorted(row["number"] for row in pipeline.rows("out")) == list(range(600))
    assert state.drift("messages") == {"colour"}
    # The stop was clean: the next run rewrites no file.
    before = {path: path.stat().st_ino for path in pipeline.directory.rglob("*.parquet")}
    pipeline.run_once()
    assert {path: path.stat().st_ino for path in pipeline.directory.rglob("*.parquet")} == before


@pytest.mark.timeout(SLOW_S)
def test_a_changed_schema_is_reported_and_a_changed_type_is_rejected(spark, pipeline, our_nsqd, topic):
    pipeline.write(ONE_SINK, topic=topic, columns="number")
    publish(our_nsqd, topic, as_json({"number": 1}))
    pipeline.run_once()
    pipeline.write(ONE_SINK, topic=topic, columns="number, number + 1 AS next")
    publish(our_nsqd, topic, as_json({"number": 2}))
    pipeline.run_once()
    assert "sink.files: the schema has changed since the last run: next int is new" in pipeline.out
    pipeline.write(ONE_SINK, topic=topic, columns="CAST(number AS STRING) AS number")
    publish(our_nsqd, topic, as_json({"number": 3}))
    assert pipeline.call("run", "--once") == 1
    assert "number was int and is string" in pipeline.err
    assert "--accept-schema-change" in pipeline.err
    # The rejected run consumed no message.
    assert our_nsqd.channel_stats(topic, "test.files")["depth"] == 1
    assert len(read_rows(pipeline.directory / "out")) == 2
