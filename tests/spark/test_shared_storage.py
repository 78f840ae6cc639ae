"""The source checks that all executors can read the segment directory before it receives a message.

Each executor of ``local-cluster`` runs in its own working directory. The path ``/proc/self/cwd`` is therefore another
directory for each executor, like a local path on several machines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from streams import bodies, make_channel, publish, source_options

from nsqx.errors import ConfigError
from nsqx.spark import batch, session, source
from nsqx.spark.options import read_source_options
from nsqx.spark.source import StreamReader

DRIVER = Path(__file__).with_name("cluster_driver.py")
DEFAULTS = """
spark.master                    local-cluster[1,1,1024]
spark.ui.enabled                false
spark.driver.bindAddress        127.0.0.1
spark.driver.host               127.0.0.1
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""
UNSEEN = "/proc/self/cwd/segments"
REFUSED = "is a directory of this machine, but Spark runs tasks on other machines: use storage that all of them"


def run_on_cluster(reads, directory):
    """Run reads on a cluster that only spark-defaults.conf names; return their results."""
    conf, work = directory / "conf", directory / "driver"
    conf.mkdir()
    work.mkdir()
    (conf / "spark-defaults.conf").write_text(DEFAULTS)
    environment = {**os.environ, "SPARK_CONF_DIR": str(conf)}
    command = [sys.executable, str(DRIVER), json.dumps(reads)]
    run = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=280)
    outcomes = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    print(*outcomes, sep="\n")
    assert len(outcomes) == len(reads), run.stderr
    return outcomes


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc")
def test_no_message_is_received_before_executors_can_read_the_directory(our_nsqd, fleet, topic, tmp_path):
    # A topic with a log needs no directory at all.
    log_nsqd = fleet.nsqd("nsqx", "--store=log")
    publish(log_nsqd, topic, bodies(0, 700))
    log = {"nsq.nsqd": log_nsqd.tcp_address, "subscribe": topic, "channel": "spark", "minPartitions": "2"}
    seen_topic = f"{topic}_seen"
    for name in (topic, seen_topic):
        make_channel(our_nsqd, name)
        publish(our_nsqd, name, bodies(0, 500))
    unseen = source_options(our_nsqd, topic, tmp_path, segmentDir=UNSEEN)
    declared = {**unseen, "segmentDirIsShared": "true"}
    shared = source_options(our_nsqd, seen_topic, tmp_path, segmentDirIsShared="true")
    reads = [
        {"options": unseen, "kind": "available", "checkpoint": str(tmp_path / "refused")},
        {"options": unseen, "kind": "batch", "checkpoint": ""},
        {"options": declared, "kind": "available", "checkpoint": str(tmp_path / "declared")},
        {"options": shared, "kind": "available", "checkpoint": str(tmp_path / "shared")},
        {"options": log, "kind": "available", "checkpoint": str(tmp_path / "log")},
        {"options": log, "kind": "batch", "checkpoint": ""},
    ]
    refused, refused_batch, misled, served, *logged = run_on_cluster(reads, tmp_path)
    assert REFUSED in refused["error"]
    assert REFUSED in refused_batch["error"]
    assert f"this executor cannot read segmentDir {UNSEEN}" in misled["error"]
    untouched = our_nsqd.channel_stats(topic, "spark")
    assert (untouched["depth"], untouched["in_flight_count"], untouched["requeue_count"]) == (500, 0, 0)

    assert logged == [{"rows": 700}, {"rows": 700}]
    assert served == {"rows": 500}
    taken = our_nsqd.channel_stats(seen_topic, "spark")
    assert (taken["depth"], taken["in_flight_count"]) == (0, 0)
    assert not list((tmp_path / "segments").glob("probe-*"))


def probing_reader(options, monkeypatch, runs_here):
    monkeypatch.setattr(source, "tasks_run_here", lambda: runs_here)
    return StreamReader(read_source_options(options))


def test_a_batch_of_probes_runs_before_the_first_message(our_nsqd, topic, tmp_path, monkeypatch):
    make_channel(our_nsqd, topic)
    publish(our_nsqd, topic, bodies(0, 10))
    reader = probing_reader(source_options(our_nsqd, topic, tmp_path), monkeypatch, None)
    limit = reader.getDefaultReadLimit()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    probe = reader.latestOffset(start, limit)
    assert probe == {**start, "probe": probe["probe"]}
    # A second call before the batch runs returns the same offset.
    assert reader.latestOffset(start, limit) == probe
    tasks = reader.partitions(start, probe)
    assert len(tasks) > 1
    assert [list(reader.read(task)) for task in tasks] == [[] for _ in tasks]
    assert our_nsqd.channel_stats(topic, "spark")["depth"] == 10
    end = reader.latestOffset(probe, limit)
    assert end["rows"] == 10
    assert sum(rows.num_rows for task in reader.partitions(probe, end) for rows in reader.read(task)) == 10
    reader.stop()
    assert not list((tmp_path / "segments").glob("probe-*"))


def test_the_next_run_repeats_a_failed_probe_and_probes_again(our_nsqd, topic, tmp_path, monkeypatch):
    options = source_options(our_nsqd, topic, tmp_path)
    first = probing_reader(options, monkeypatch, None)
    start = first.initialOffset()
    probe = first.latestOffset(start, first.getDefaultReadLimit())
    tasks = first.partitions(start, probe)
    first.stop()
    os.rename(tmp_path / "segments", tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="this executor cannot read segmentDir .*: use storage that all machines"):
        list(first.read(tasks[0]))
    os.rename(tmp_path / "elsewhere", tmp_path / "segments")
    # Spark repeats the planned batch. The new run then requests its own probe.
    second = probing_reader(options, monkeypatch, None)
    for task in second.partitions(start, probe):
        assert list(second.read(task)) == []
    again = second.latestOffset(probe, second.getDefaultReadLimit())
    assert again["probe"] != probe["probe"]
    second.stop()


@pytest.mark.parametrize(("runs_here", "expected"), [(False, "runs tasks on other"), (None, "may run tasks on other")])
def test_reads_that_cannot_be_probed_need_segment_dir_is_shared(
    our_nsqd, topic, tmp_path, monkeypatch, runs_here, expected
):
    """A batch read and the trigger once have a single batch, so there is no earlier batch for probes."""
    options = source_options(our_nsqd, topic, tmp_path)
    monkeypatch.setattr(batch, "tasks_run_here", lambda: runs_here)
    with pytest.raises(ConfigError, match=expected):
        batch.BatchReader(read_source_options(options)).partitions()
    once = probing_reader(options, monkeypatch, runs_here)
    with pytest.raises(ConfigError, match=expected):
        once.latestOffset(once.initialOffset(), ReadAllAvailable())
    once.stop()
    shared = probing_reader({**options, "segmentDirIsShared": "true"}, monkeypatch, runs_here)
    assert shared.latestOffset(shared.initialOffset(), ReadAllAvailable())["rows"] == 0
    shared.stop()


def test_reads_on_a_local_master_start_without_a_probe(spark, our_nsqd, topic, tmp_path):
    """Batch reads and streams recognise a local master."""
    assert session.tasks_run_here() is None
    publish(our_nsqd, topic, bodies(0, 10))
    options = source_options(our_nsqd, topic, tmp_path)
    assert spark.read.format("nsq").options(**options).load().count() == 10
    stream = (
        spark.readStream.format("nsq")
        .options(**{**options, "channel": "stream"})
        .options(segmentDir=str(tmp_path / "stream"))
    )
    query = stream.load().writeStream.trigger(availableNow=True).format("noop")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(150)
    offsets = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    assert not [each for each in offsets if "probe" in each.read_text()]
