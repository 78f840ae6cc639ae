"""A table created in SQL can be read, streamed and inserted into by name."""

from __future__ import annotations

import pytest
from streams import bodies, publish, source_options


def clause(options):
    return ", ".join(f"`{name}` '{value}'" for name, value in options.items())


@pytest.fixture
def table(spark, topic):
    yield topic
    spark.sql(f"DROP TABLE IF EXISTS {topic}")


def test_a_table_can_be_inserted_into_read_and_streamed(spark, our_nsqd, topic, table, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path, topic=topic)
    spark.sql(f"CREATE TABLE {table} USING nsq OPTIONS ({clause(options)})")
    spark.sql(f"INSERT INTO {table} (value) VALUES (X'31'), (X'32'), (X'33')")
    found = spark.sql(f"SELECT CAST(value AS STRING) AS text, topic FROM {table} ORDER BY text").collect()
    assert [(row.text, row.topic) for row in found] == [("1", topic), ("2", topic), ("3", topic)]
    publish(our_nsqd, topic, bodies(10, 20))
    seen = []
    stream = spark.readStream.option("segmentDir", str(tmp_path / "stream")).table(table)
    query = stream.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(150)
    assert sorted(bytes(row.value) for row in seen) == bodies(10, 20)


def test_a_temporary_view_reads_a_topic(spark, our_nsqd, topic, tmp_path):
    publish(our_nsqd, topic, bodies(0, 10))
    options = source_options(our_nsqd, topic, tmp_path)
    spark.sql(f"CREATE TEMPORARY VIEW {topic}_view USING nsq OPTIONS ({clause(options)})")
    assert spark.sql(f"SELECT count(*) AS n FROM {topic}_view").first().n == 10


def test_a_table_with_a_secret_option_is_rejected(spark, our_nsqd, topic, table, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path, **{"nsq.auth_secret": "hidden"})
    with pytest.raises(Exception, match="must not be stored in a table"):
        spark.sql(f"CREATE TABLE {table} USING nsq OPTIONS ({clause(options)})")


def test_a_frame_without_a_table_has_no_options_in_its_schema(spark, our_nsqd, topic, tmp_path):
    frame = spark.read.format("nsq").options(**source_options(our_nsqd, topic, tmp_path)).load()
    assert all(not field.metadata for field in frame.schema.fields)
