"""The JDBC sink writes each row exactly once to PostgreSQL, also after a crash between the database and Spark."""

from __future__ import annotations

import json

import pytest
from pipeline_runs import SLOW_S, PipelineFile
from postgres import driver_jar, running_postgres
from streams import publish

from nsqx.pipeline.jdbc import Database
from nsqx.pipeline.jdbc_sink import JdbcSink


@pytest.fixture(scope="module")
def url():
    driver_jar()
    with running_postgres() as address:
        yield address


@pytest.fixture
def pipeline(tmp_path, our_nsqd, capsys):
    return PipelineFile(tmp_path, our_nsqd, capsys)


@pytest.fixture
def database(spark, url):
    spark.sql(f"ADD JAR '{driver_jar()}'")
    return Database(url, "test", "", "")


def run_sql(spark, database, *statements):
    with database.connect(spark) as connection:
        for statement in statements:
            connection.run(statement)
        connection.commit()


def query(spark, database, sql):
    options = {**database.options(), "query": sql}
    return sorted(tuple(row) for row in spark.read.format("jdbc").options(**options).load().collect())


FILE = """
[pipeline]
name = "test"

[spark]
jars = "$jar"

[source.messages]
topic = "$topic"
schema = "order_id INT, user STRING, amount DOUBLE, note STRING"

[step.orders]
sql = "SELECT $columns FROM messages $rest"

[sink.orders]
from = "orders"
type = "jdbc"
url = "$url"
user = "test"
table = "$table"
$more
"""


def orders(*rows):
    return [json.dumps(dict(zip(("order_id", "user", "amount", "note"), row, strict=False))).encode() for row in rows]


@pytest.mark.timeout(SLOW_S)
def test_rows_are_inserted_exactly_once_after_a_crash(spark, pipeline, database, our_nsqd, topic, url, monkeypatch):
    """The user created the table, with other column types and with constraints."""
    table = f"orders_{topic}"
    run_sql(
        spark,
        database,
        f'CREATE TABLE {table} (order_id BIGINT PRIMARY KEY, "user" VARCHAR(5),'
        " amount NUMERIC(10,2) CHECK (amount > 0), note JSONB, at TIMESTAMPTZ DEFAULT now())",
    )
    values = {"topic": topic, "jar": driver_jar(), "url": url, "table": table, "rest": "", "more": ""}
    pipeline.write(FILE, columns="order_id, user, amount, note", **values)
    publish(our_nsqd, topic, orders((1, "ann", 1.5, '{"a": 1}'), (2, "bob", 2.5)))

    original = JdbcSink.write

    def die_after(self, *arguments):
        original(self, *arguments)
        raise RuntimeError("killed before Spark recorded the batch")

    with monkeypatch.context() as patch:
        patch.setattr("nsqx.pipeline.query.MAX_FAILURES", 1)
        patch.setattr(JdbcSink, "write", die_after)
        assert pipeline.call("run", "--once", "--set=source.messages.options.drainIdle=300ms") == 1
    expected = [(1, "ann", "1.50", '{"a": 1}'), (2, "bob", "2.50", None)]
    sql = f'SELECT order_id, "user", amount::text, note::text FROM {table}'
    assert query(spark, database, sql) == expected

    # Spark repeats the batch, and the sink recognises it. The next batch has rows that the database rejects.
    bad = [(3, "much too long", 1.0), (1, "again", 1.0), (4, "neg", -1.0), (5, "bad", 1.0, "{no json")]
    publish(our_nsqd, topic, orders(*bad, (6, "eve", 6.0)))
    pipeline.run_once()
    assert query(spark, database, sql) == [*expected, (6, "eve", "6.00", None)]
    letters = {json.loads(letter["value"])["order_id"]: letter["reason"] for letter in pipeline.dead_letters}
    assert sorted(letters) == [1, 3, 4, 5]
    assert "duplicate key" in letters[1]
    assert "too long" in letters[3]
    assert "violates check constraint" in letters[4]
    assert "invalid input syntax for type json" in letters[5]
    tables = [
        name
        for (name,) in query(spark, database, "SELECT tablename::text FROM pg_tables WHERE tablename LIKE 'nsqx_%'")
    ]
    assert tables == ["nsqx_batches"]


@pytest.mark.timeout(SLOW_S)
def test_updated_aggregates_replace_their_earlier_rows(spark, pipeline, database, our_nsqd, topic, url):
    """The sink creates the table."""
    table = f"totals_{topic}"
    values = {"topic": topic, "jar": driver_jar(), "url": url, "table": table, "rest": "GROUP BY user"}
    pipeline.write(FILE, columns="user, sum(amount) AS total", more='mode = "update"\nkeys = ["user"]', **values)
    publish(our_nsqd, topic, orders((1, "ann", 1.0), (2, "bob", 2.0)))
    pipeline.run_once()
    publish(our_nsqd, topic, orders((3, "ann", 4.0), (4, "eve", 3.0)))
    pipeline.run_once()
    assert query(spark, database, f'SELECT "user", total FROM {table}') == [("ann", 5.0), ("bob", 2.0), ("eve", 3.0)]


@pytest.mark.timeout(SLOW_S)
def test_table_and_connection_errors_are_reported_before_consuming(spark, pipeline, database, our_nsqd, topic, url):
    table = f"narrow_{topic}"
    run_sql(spark, database, f"CREATE TABLE {table} (order_id INT)")
    values = {"topic": topic, "jar": driver_jar(), "table": table, "rest": "", "more": ""}
    publish(our_nsqd, topic, orders((1, "ann", 1.0)))
    pipeline.write(FILE, columns="order_id, amount", url=url, **values)
    assert pipeline.call("run", "--once") == 1
    assert f"sink.orders: table {table} has no column amount, it has order_id" in pipeline.err
    pipeline.write(FILE, columns="order_id", url="jdbc:postgresql://127.0.0.1:1/none", **values)
    assert pipeline.call("run", "--once") == 1
    assert "sink.orders: cannot connect to jdbc:postgresql://127.0.0.1:1/none" in pipeline.err
    assert pipeline.err.count("\n") == 1
    assert our_nsqd.topic_stats(topic)["channels"] == []
