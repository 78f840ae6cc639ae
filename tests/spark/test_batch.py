"""A batch read returns the current backlog, and a failed job loses no rows."""

from __future__ import annotations

import pytest
from streams import bodies, make_channel, publish, source_options

from nsqx.errors import NSQError
from nsqx.spark.batch import BatchReader, confirm_reads
from nsqx.spark.options import read_source_options


def read(spark, options):
    return spark.read.format("nsq").options(**options).load()


def values_of(frame):
    return sorted((bytes(row.value) for row in frame.select("value").collect()), key=int)


def test_a_read_drains_the_channel_and_its_frame_can_be_evaluated_again(spark, nsqd, topic, tmp_path):
    publish(nsqd, topic, bodies(0, 3000))
    frame = read(spark, source_options(nsqd, topic, tmp_path))
    assert frame.count() == 3000
    assert values_of(frame) == bodies(0, 3000)
    assert nsqd.channel_stats(topic, "spark")["depth"] == 0


def test_a_read_returns_earlier_rows_again_unless_it_starts_at_latest(spark, our_nsqd, topic, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path, minPartitions="2")
    publish(our_nsqd, topic, bodies(0, 100))
    failing = read(spark, options).selectExpr("raise_error('no') AS value")
    with pytest.raises(Exception, match="no"):
        failing.collect()
    assert our_nsqd.channel_stats(topic, "spark")["depth"] == 0
    publish(our_nsqd, topic, bodies(100, 120))
    assert values_of(read(spark, options)) == bodies(0, 120)
    publish(our_nsqd, topic, bodies(120, 150))
    assert values_of(read(spark, {**options, "startingOffsets": "latest"})) == bodies(120, 150)
    assert values_of(read(spark, options)) == bodies(120, 150)


def test_confirmed_rows_are_removed(spark, our_nsqd, topic, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path)
    publish(our_nsqd, topic, bodies(0, 100))
    assert values_of(read(spark, options)) == bodies(0, 100)
    confirm_reads(options["segmentDir"], "spark")
    assert not list((tmp_path / "segments").glob("segment-*"))
    publish(our_nsqd, topic, bodies(100, 110))
    assert values_of(read(spark, options)) == bodies(100, 110)


def test_a_read_with_an_id_always_returns_the_same_rows(spark, our_nsqd, topic, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path)
    publish(our_nsqd, topic, bodies(0, 100))
    monday = {**options, "readId": "monday"}
    assert values_of(read(spark, monday)) == bodies(0, 100)
    publish(our_nsqd, topic, bodies(100, 150))
    assert values_of(read(spark, monday)) == bodies(0, 100)
    assert values_of(read(spark, {**options, "readId": "tuesday"})) == bodies(100, 150)
    assert values_of(read(spark, monday)) == bodies(0, 100)
    publish(our_nsqd, topic, bodies(150, 160))
    assert values_of(read(spark, options)) == bodies(150, 160)


def test_a_limited_read_leaves_the_other_rows_for_the_next_read(spark, our_nsqd, topic, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path, maxRowsPerTrigger="70")
    publish(our_nsqd, topic, bodies(0, 100))
    found = values_of(read(spark, options))
    assert len(found) == 70
    rest = values_of(read(spark, {**options, "startingOffsets": "latest"}))
    assert sorted(found + rest, key=int) == bodies(0, 100)


def test_an_empty_channel_gives_an_empty_frame(spark, our_nsqd, topic, tmp_path):
    make_channel(our_nsqd, topic)
    frame = read(spark, source_options(our_nsqd, topic, tmp_path))
    assert frame.columns == ["value", "topic", "id", "timestamp", "attempts", "node"]
    assert frame.count() == 0


def test_the_rows_of_a_read_with_an_id_are_removed_after_read_ttl(our_nsqd, topic, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path, readTTL="1ms", readId="old")
    publish(our_nsqd, topic, bodies(0, 10))
    BatchReader(read_source_options(options)).partitions()
    publish(our_nsqd, topic, bodies(10, 20))
    BatchReader(read_source_options({**options, "readId": "new"})).partitions()
    with pytest.raises(NSQError, match="the rows of readId old were removed after readTTL"):
        BatchReader(read_source_options(options)).partitions()
