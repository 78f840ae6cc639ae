"""A streaming query reads every message once, keeps its limits and continues from its checkpoint."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry
from streams import Query, bodies, make_channel, publish, source_options, until

from daemons import wait_until
from nsqx.spark.listener import ProgressListener
from nsqx.spark.options import read_source_options
from nsqx.spark.source import StreamReader
from nsqx.spark.storage import LocalStorage


def state_of(directory):
    return json.loads((directory / "segments" / "state.json").read_text())


def source_process(directory):
    """Return the pid of the process that holds the lock of the segment directory."""
    text = (directory / "segments" / "lock").read_text()
    return int(text.split()[1])


def latest_offset(query):
    """Return the latest offset of the source in the last progress report."""
    return json.loads(query.lastProgress["sources"][0]["latestOffset"])


def is_empty(nsqd, topic):
    channel = nsqd.channel_stats(topic, "spark")
    return not (channel["depth"] or channel["in_flight_count"] or channel["deferred_count"])


def test_every_message_is_read_once_with_its_columns(spark, nsqd, topic, tmp_path):
    publish(nsqd, topic, bodies(0, 3000))
    query = Query(spark, source_options(nsqd, topic, tmp_path), tmp_path)
    query.run_available()
    assert query.values == bodies(0, 3000)
    row = query.rows[0]
    assert row.topic == topic
    assert row.node == nsqd.tcp_address
    assert row.attempts == 1
    assert len(row.id) == 16
    assert abs((datetime.now(UTC).replace(tzinfo=None) - row.timestamp).total_seconds()) < 300
    channel = nsqd.channel_stats(topic, "spark")
    assert (channel["depth"], channel["in_flight_count"], channel["requeue_count"]) == (0, 0, 0)


def test_a_restart_continues_from_the_checkpoint(spark, our_nsqd, topic, tmp_path):
    query = Query(spark, source_options(our_nsqd, topic, tmp_path), tmp_path)
    publish(our_nsqd, topic, bodies(0, 100))
    query.run_available()
    first = dict(query.batches)
    publish(our_nsqd, topic, bodies(100, 250))
    query.run_available()
    assert query.values == bodies(0, 250)
    assert {number: query.batches[number] for number in first} == first
    # The query ended cleanly, so no identities are pinned.
    wait_until(lambda: state_of(tmp_path)["is_clean"], "the receiver process has ended", 60)
    assert not list((tmp_path / "segments").glob("pins-*"))


def test_batches_respect_the_row_limit(spark, our_nsqd, topic, tmp_path):
    publish(our_nsqd, topic, bodies(0, 1000))
    query = Query(spark, source_options(our_nsqd, topic, tmp_path, maxOffsetsPerTrigger="300"), tmp_path)
    query.run_available()
    assert query.values == bodies(0, 1000)
    assert max(query.sizes) <= 300


def test_batches_respect_the_byte_limit(spark, our_nsqd, topic, tmp_path):
    messages = [b"%04d" % number + b" " * 996 for number in range(100)]
    publish(our_nsqd, topic, messages)
    query = Query(spark, source_options(our_nsqd, topic, tmp_path, maxBytesPerTrigger="30k"), tmp_path)
    query.run_available()
    assert sorted(bytes(row.value) for row in query.rows) == messages
    assert max(query.sizes) <= 30


def test_a_stream_reads_new_messages_and_removes_processed_segments(spark, our_nsqd, topic, tmp_path):
    make_channel(our_nsqd, topic)
    registry = CollectorRegistry()
    listener = ProgressListener(registry)
    spark.streams.addListener(listener)
    query = Query(spark, source_options(our_nsqd, topic, tmp_path), tmp_path)
    running = query.start()
    try:
        publish(our_nsqd, topic, bodies(0, 500))
        until(lambda: len(query.rows) == 500, running)
        publish(our_nsqd, topic, bodies(500, 800))
        until(lambda: len(query.rows) == 800, running)
        until(lambda: not list((tmp_path / "segments").glob("segment-*")), running)
        until(lambda: registry.get_sample_value("nsqx_spark_rows_total", {"query": running.id}) == 800, running)
        assert registry.get_sample_value("nsqx_spark_lag_rows", {"query": running.id}) == 0
    finally:
        running.stop()
        spark.streams.removeListener(listener)
    assert query.values == bodies(0, 800)


def test_a_batch_waits_for_min_rows_per_trigger(spark, our_nsqd, topic, tmp_path):
    make_channel(our_nsqd, topic)
    options = source_options(our_nsqd, topic, tmp_path, minRowsPerTrigger="10", maxTriggerDelay="1h")
    query = Query(spark, options, tmp_path)
    running = query.start()
    try:
        publish(our_nsqd, topic, bodies(0, 5))
        until(lambda: bool(list((tmp_path / "segments").glob("segment-*"))), running)
        publish(our_nsqd, topic, bodies(5, 10))
        until(lambda: len(query.rows) == 10, running)
        # Spark starts with an empty batch when there are no rows.
        assert [size for size in query.sizes if size] == [10]
    finally:
        running.stop()


def test_a_small_batch_waits_at_most_max_trigger_delay(our_nsqd, topic, tmp_path):
    publish(our_nsqd, topic, bodies(0, 5))
    options = source_options(our_nsqd, topic, tmp_path, minRowsPerTrigger="1000", maxTriggerDelay="100ms")
    reader = StreamReader(read_source_options(options))
    start = reader.initialOffset()
    wait_until(lambda: reader.latestOffset(start, reader.getDefaultReadLimit())["rows"] == 5, "the rows are given", 60)
    reader.stop()


def test_available_now_ends_while_messages_are_published(spark, our_nsqd, topic, tmp_path):
    make_channel(our_nsqd, topic)
    publish(our_nsqd, topic, bodies(0, 2000))
    flood = f"""
import itertools, time
from nsqx.client.blocking import Producer
with Producer({our_nsqd.tcp_address!r}) as producer:
    for number in itertools.count(2000):
        producer.publish({topic!r}, b"%d" % number)
        time.sleep(0.002)
"""
    publisher = subprocess.Popen([os.sys.executable, "-c", flood])
    try:
        query = Query(spark, source_options(our_nsqd, topic, tmp_path), tmp_path)
        query.run_available()
    finally:
        publisher.kill()
        publisher.wait()
    assert query.values[:2000] == bodies(0, 2000)
    query.run_available()
    assert query.values == bodies(0, len(query.rows))


def test_trigger_once_reads_everything_in_one_batch(spark, our_nsqd, topic, tmp_path):
    publish(our_nsqd, topic, bodies(0, 700))
    query = Query(spark, source_options(our_nsqd, topic, tmp_path, maxRowsPerTrigger="100"), tmp_path)
    assert query.start(once=True).awaitTermination(150)
    assert query.sizes == [700]


def test_new_topics_that_match_the_pattern_are_found_while_running(spark, fleet, topic, tmp_path):
    lookupd = fleet.nsqlookupd("nsqx")
    nodes = [fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}") for _ in range(2)]
    publish(nodes[0], f"{topic}_a", bodies(0, 100))
    publish(nodes[1], f"{topic}_a", bodies(100, 200))
    publish(nodes[1], f"other_{topic}", bodies(900, 910))

    def known_topics():
        return lookupd.request("GET", "/topics").json()["topics"]

    wait_until(lambda: {f"{topic}_a", f"other_{topic}"} <= set(known_topics()), "the topics are registered", 60)
    options = {
        "nsq.lookupd": lookupd.http_address,
        "subscribePattern": f"{topic}_.*",
        "channel": "spark",
        "segmentDir": str(tmp_path / "segments"),
        "nsq.lookupd_poll_interval": "100ms",
    }
    query = Query(spark, options, tmp_path)
    running = query.start()
    try:
        until(lambda: len(query.rows) == 200, running)
        publish(nodes[0], f"{topic}_b", bodies(200, 250))
        until(lambda: len(query.rows) == 250, running)
        until(lambda: latest_offset(running)["rows"] == 250, running)
        assert isinstance(latest_offset(running)["depth"], int)
    finally:
        running.stop()
    assert query.values == bodies(0, 250)
    assert {row.topic for row in query.rows} == {f"{topic}_a", f"{topic}_b"}
    assert {row.node for row in query.rows} == {node.tcp_address for node in nodes}


def test_one_query_reads_two_topics(spark, our_nsqd, topic, tmp_path):
    publish(our_nsqd, f"{topic}_a", bodies(0, 100))
    publish(our_nsqd, f"{topic}_b", bodies(100, 200))
    query = Query(spark, source_options(our_nsqd, f"{topic}_a, {topic}_b", tmp_path), tmp_path)
    query.run_available()
    assert query.values == bodies(0, 200)
    assert sum(row.topic == f"{topic}_b" for row in query.rows) == 100


def test_a_stopped_query_leaves_no_message_in_flight(spark, our_nsqd, topic, tmp_path):
    make_channel(our_nsqd, topic)
    query = Query(spark, source_options(our_nsqd, topic, tmp_path), tmp_path)
    running = query.start()
    publish(our_nsqd, topic, bodies(0, 50))
    until(lambda: len(query.rows) == 50, running)
    running.stop()
    wait_until(lambda: not our_nsqd.channel_stats(topic, "spark")["client_count"], "the consumer is gone", 60)
    wait_until(lambda: state_of(tmp_path)["is_clean"], "the directory is left clean", 60)
    channel = our_nsqd.channel_stats(topic, "spark")
    assert (channel["timeout_count"], channel["requeue_count"], channel["depth"]) == (0, 0, 0)


@pytest.mark.parametrize(("nsqd", "point"), [("go", 2), ("nsqx", 0)], indirect=["nsqd"])
def test_a_killed_receiver_causes_no_loss_and_no_duplicates(spark, nsqd, topic, tmp_path, point):
    """The receiver process is killed while batches run, and the query is restarted."""
    make_channel(nsqd, topic)
    publish(nsqd, topic, bodies(0, 20_000))
    # nsqd redelivers the messages in flight to the killed process after the message timeout.
    options = source_options(nsqd, topic, tmp_path, **{"maxRowsPerTrigger": "4000", "nsq.msg_timeout": "2s"})
    query = Query(spark, options, tmp_path)
    running = query.start()
    until(lambda: len(query.rows) >= 4000 * point + 1, running)
    os.kill(source_process(tmp_path), signal.SIGKILL)
    wait_until(lambda: not running.isActive, "the query ends", 60)
    running = query.start()
    try:
        until(lambda: len(query.rows) >= 20_000 and is_empty(nsqd, topic), running)
    finally:
        running.stop()
    assert query.values == bodies(0, 20_000)


def test_a_full_disk_during_a_commit_does_not_end_the_query(our_nsqd, topic, tmp_path, monkeypatch):
    publish(our_nsqd, topic, bodies(0, 10))
    reader = StreamReader(read_source_options(source_options(our_nsqd, topic, tmp_path)))
    limit, start = reader.getDefaultReadLimit(), reader.initialOffset()
    end = start
    while end["rows"] < 10:
        end = reader.latestOffset(start, limit)
    segments = tmp_path / "segments"
    write = LocalStorage.write

    def full(self, name, fill):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    # First every write fails, then every write except that of the state file.
    monkeypatch.setattr(LocalStorage, "write", full)
    assert reader.latestOffset(end, limit) == end
    reader.commit(end)
    assert state_of(tmp_path)["committed"] == 0
    monkeypatch.setattr(
        LocalStorage,
        "write",
        lambda self, name, fill: (write if name == "state.json" else full)(self, name, fill),
    )
    reader.commit(end)
    assert state_of(tmp_path)["committed"] == 10
    assert list(segments.glob("segment-*"))
    monkeypatch.setattr(LocalStorage, "write", write)
    assert reader.latestOffset(end, limit) == end
    assert not list(segments.glob("segment-*"))
    reader.stop()


def test_a_stream_rejects_starting_offsets_latest(spark, topic, tmp_path):
    options = {"nsq.nsqd": "127.0.0.1:4150", "subscribe": topic, "channel": "c", "segmentDir": str(tmp_path / "s")}
    query = Query(spark, {**options, "mode": "channel", "startingOffsets": "latest"}, tmp_path)
    with pytest.raises(Exception, match="startingOffsets latest is only for batch reads.* use a new channel"):
        query.start().awaitTermination(60)
