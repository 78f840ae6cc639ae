"""The sink publishes every row to the requested topic, with the requested delay."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import functions as F
from streams import bodies, publish, source_options

from daemons import wait_until
from nsqx.client.blocking import Consumer
from nsqx.errors import ConfigError


def consume(nsqd, topic, count):
    """Return the bodies of ``count`` messages of a topic, sorted by number."""
    with Consumer(topic, "check", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=2500) as consumer:
        found = []
        while len(found) < count:
            message = consumer.get(20)
            assert message is not None, f"{len(found)} of {count} received"
            found.append(message.body)
            message.finish()
        return sorted(found, key=int)


def test_every_row_of_a_frame_is_published_once(spark, nsqd, topic):
    frame = spark.range(20_000).selectExpr("CAST(id AS STRING) AS value").repartition(3)
    frame.write.format("nsq").mode("append").option("nsq.nsqd", nsqd.tcp_address).option("topic", topic).save()
    assert nsqd.topic_stats(topic)["message_count"] == 20_000
    assert consume(nsqd, topic, 20_000) == bodies(0, 20_000)


def test_rows_are_published_to_the_topic_in_their_topic_column(spark, our_nsqd, topic):
    frame = spark.range(100).select(
        F.col("id").cast("string").cast("binary").alias("value"),
        F.concat(F.lit(f"{topic}_"), (F.col("id") % 2).cast("string")).alias("topic"),
    )
    frame.write.format("nsq").mode("append").option("nsq.nsqd", our_nsqd.tcp_address).save()
    assert consume(our_nsqd, f"{topic}_0", 50) == [b"%d" % number for number in range(0, 100, 2)]
    assert consume(our_nsqd, f"{topic}_1", 50) == [b"%d" % number for number in range(1, 100, 2)]


def test_rows_with_defer_ms_are_deferred(spark, our_nsqd, topic):
    our_nsqd.post("/topic/create", topic=topic)
    our_nsqd.post("/channel/create", topic=topic, channel="check")
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value", "IF(id < 4, 3600000, 0) AS defer_ms")
    frame.write.format("nsq").mode("append").option("nsq.nsqd", our_nsqd.tcp_address).option("topic", topic).save()

    def settled():
        channel = our_nsqd.channel_stats(topic, "check")
        return channel["deferred_count"] == 4 and channel["depth"] == 6

    wait_until(settled, "four messages are deferred and six are in the backlog")


def test_a_stream_is_published_to_another_topic(spark, our_nsqd, topic, tmp_path):
    """A query reads one topic and writes another."""
    publish(our_nsqd, topic, bodies(0, 500))
    options = source_options(our_nsqd, topic, tmp_path)
    stream = spark.readStream.format("nsq").options(**options).load().writeStream.format("nsq")
    stream = stream.option("nsq.nsqd", our_nsqd.tcp_address).option("topic", f"{topic}_out")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(150)
    assert consume(our_nsqd, f"{topic}_out", 500) == bodies(0, 500)


def test_publishing_continues_when_one_nsqd_is_down(spark, fleet, topic):
    nodes = [fleet.nsqd("nsqx") for _ in range(2)]
    addresses = ",".join(node.tcp_address for node in nodes)
    nodes[0].kill()
    frame = spark.range(5000).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("nsq").mode("append").option("nsq.nsqd", addresses).option("topic", topic).save()
    assert consume(nodes[1], topic, 5000) == bodies(0, 5000)


def test_an_executor_reuses_its_publisher(our_nsqd, topic):
    import pyarrow as pa

    from nsqx.spark.options import read_sink_options
    from nsqx.spark.sink import SinkColumns, publish_batches, publisher_of

    options = read_sink_options({"nsq.nsqd": our_nsqd.tcp_address, "topic": topic}, has_topic_column=False)
    batch = pa.RecordBatch.from_pydict({"value": bodies(0, 10)})
    for _ in range(3):
        assert publish_batches(options, SinkColumns(False, False), iter([batch, batch])) == 20
    publisher = publisher_of(options.cluster, options.publish_attempts)
    assert publisher is publisher_of(options.cluster, options.publish_attempts)
    assert our_nsqd.topic_stats(topic)["message_count"] == 60
    before = {thread.name for thread in threading.enumerate()}
    assert "nsq publisher" in before
    publisher.close()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"value": [b""]}, "a value is null or empty"),
        ({"value": [None]}, "a value is null or empty"),
        ({"value": [b"x"], "topic": [None]}, "a row has no topic"),
        ({"value": [b"x"], "topic": ["t"], "defer_ms": [-5]}, "defer_ms is -5: use 0 or more"),
    ],
)
def test_rows_that_cannot_be_published_are_rejected(our_nsqd, columns, expected):
    import pyarrow as pa

    from nsqx.errors import NSQError
    from nsqx.spark.options import read_sink_options
    from nsqx.spark.sink import SinkColumns, publish_batches, publisher_of

    given = {"nsq.nsqd": our_nsqd.tcp_address} | ({} if "topic" in columns else {"topic": "t"})
    options = read_sink_options(given, has_topic_column="topic" in columns)
    batch = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(NSQError, match=expected):
        publish_batches(options, SinkColumns("topic" in columns, "defer_ms" in columns), iter([batch]))
    # Its thread would try to connect to the stopped nsqd during all later tests of this process.
    publisher_of(options.cluster, options.publish_attempts).close()


def test_frames_that_cannot_be_published_are_rejected(spark):
    from nsqx.spark.sink import columns_of

    def expect_rejected(sql, match, overwrite=False):
        with pytest.raises(ConfigError, match=match):
            columns_of(spark.sql(sql).schema, overwrite)

    expect_rejected("SELECT 1 AS n", r"column value \(BINARY or STRING\) is required, the DataFrame has n")
    expect_rejected("SELECT 1 AS value", "column value is int, it must be binary or string")
    expect_rejected("SELECT 'x' AS value, 1 AS price", "column price cannot be published")
    expect_rejected("SELECT 'x' AS value, 'soon' AS defer_ms", "column defer_ms is string")
    expect_rejected("SELECT 'x' AS value", "cannot be overwritten", overwrite=True)


def test_a_missing_topic_or_nsqd_is_reported(spark, topic):
    frame = spark.sql("SELECT 'x' AS value")
    writer = frame.write.format("nsq").mode("append")
    with pytest.raises(Exception, match="set the option topic, or add a column topic"):
        writer.option("nsq.nsqd", "127.0.0.1:1").save()
    with pytest.raises(Exception, match=r"cannot publish: .*Check nsq.nsqd"):
        writer.option("nsq.nsqd", "127.0.0.1:1").option("topic", topic).save()
