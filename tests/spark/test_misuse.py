"""Invalid use is rejected at the start of a query, with an error that says what to do."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pyspark
import pytest
from streams import Query, bodies, publish, source_options, until

from daemons import free_port
from nsqx.errors import ConfigError, NSQError
from nsqx.spark import session, source
from nsqx.spark.options import read_source_options
from nsqx.spark.slices import DataLost
from nsqx.spark.source import StreamReader

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def reader(options):
    return StreamReader(read_source_options(options))


def test_invalid_options_are_rejected_by_load(spark, topic):
    stream = spark.readStream.format("nsq").option("nsq.nsqd", "127.0.0.1:4150").option("subscribe", topic)
    with pytest.raises(Exception, match="option channel is required: set it to the channel to consume"):
        stream.option("mode", "channel").load()
    with pytest.raises(Exception, match=r"unknown option maxrowspertriger: did you mean maxRowsPerTrigger\?"):
        stream.option("channel", "c").option("maxRowsPerTriger", "5").load()


def test_a_second_query_on_a_segment_directory_is_rejected(spark, our_nsqd, topic, tmp_path, monkeypatch):
    publish(our_nsqd, topic, bodies(0, 10))
    options = source_options(our_nsqd, topic, tmp_path)
    query = Query(spark, options, tmp_path)
    running = query.start()
    try:
        until(lambda: len(query.rows) == 10, running)
        monkeypatch.setattr(source, "LOCK_WAIT_S", 0.0)
        with pytest.raises(ConfigError, match=r"is in use by process \d+ on .*: stop that query, or give this query"):
            reader(options).initialOffset()
    finally:
        running.stop()


def test_a_segment_directory_of_another_channel_is_rejected(our_nsqd, topic, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path)
    first = reader(options)
    first.initialOffset()
    first.stop()
    with pytest.raises(ConfigError, match="belongs to channel spark, not other"):
        reader({**options, "channel": "other"}).initialOffset()


def test_an_executor_without_access_to_the_directory_reports_it(our_nsqd, topic, tmp_path):
    publish(our_nsqd, topic, bodies(0, 10))
    first = reader(source_options(our_nsqd, topic, tmp_path))
    start = first.initialOffset()
    first.prepareForTriggerAvailableNow()
    end = first.latestOffset(start, first.getDefaultReadLimit())
    (partition,) = first.partitions(start, end)
    first.stop()
    os.rename(tmp_path / "segments", tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="this executor cannot read segmentDir"):
        list(first.read(partition))


def test_unreachable_daemons_are_reported_with_the_option_to_check(topic, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    common = {"subscribe": topic, "channel": "c", "segmentDir": str(tmp_path / "segments")}
    for options, expected in [
        ({"nsq.lookupd": address}, "no nsqlookupd answers .*: check nsq.lookupd, it takes HTTP addresses"),
        ({"nsq.nsqd": address}, "no nsqd can be reached for topic .*: check nsq.nsqd, it takes TCP addresses"),
    ]:
        stream = reader({**common, **options})
        start = stream.initialOffset()
        with pytest.raises(ConfigError, match=expected):
            stream.latestOffset(start, stream.getDefaultReadLimit())
        stream.stop()


def test_a_query_that_reaches_no_nsqlookupd_fails_with_the_address(spark, topic, tmp_path):
    options = {"nsq.lookupd": f"127.0.0.1:{free_port()}", "subscribe": topic, "channel": "c"}
    query = Query(spark, {**options, "segmentDir": str(tmp_path / "segments")}, tmp_path).start()
    with pytest.raises(Exception, match=r"no nsqlookupd answers .*: check nsq.lookupd, it takes HTTP addresses"):
        query.awaitTermination(150)


def test_a_checkpoint_of_another_segment_directory_is_rejected(our_nsqd, topic, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path)
    stream = reader(options)
    start = {"rows": 100, "segments": "another"}
    with pytest.raises(DataLost, match="belongs to another segment directory .*failOnDataLoss"):
        stream.latestOffset(start, stream.getDefaultReadLimit())
    stream.stop()
    publish(our_nsqd, topic, bodies(0, 10))
    lenient = reader({**options, "failOnDataLoss": "false"})
    lenient.prepareForTriggerAvailableNow()
    end = lenient.latestOffset(start, lenient.getDefaultReadLimit())
    assert end["rows"] == 10
    rows = [batch.num_rows for part in lenient.partitions(start, end) for batch in lenient.read(part)]
    assert sum(rows) == 10
    lenient.stop()


def test_the_initial_offset_stays_the_same_until_the_first_commit(our_nsqd, topic, tmp_path):
    """Spark asks for the initial offset again, in another process, until its first batch is committed."""
    options = source_options(our_nsqd, topic, tmp_path)
    publish(our_nsqd, topic, bodies(0, 10))
    for _ in range(2):
        stream = reader(options)
        start = stream.initialOffset()
        assert start["rows"] == 0
        stream.prepareForTriggerAvailableNow()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert end == {**start, "rows": 10}
        stream.stop()
    stream = reader(options)
    stream.prepareForTriggerAvailableNow()
    # This call commits the rows: a new checkpoint starts after them.
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
    stream.stop()
    stream = reader(options)
    assert stream.initialOffset() == end
    stream.stop()


def test_a_checkpoint_beyond_the_stored_rows_is_rejected(our_nsqd, topic, tmp_path):
    options = source_options(our_nsqd, topic, tmp_path)
    stream = reader(options)
    start = {**stream.initialOffset(), "rows": 50}
    with pytest.raises(DataLost, match="continues at row 50, but .* has rows 0 to 0"):
        stream.latestOffset(start, stream.getDefaultReadLimit())
    stream.stop()


def test_missing_java_old_java_and_missing_pyspark_are_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Java found in JAVA_HOME=.*needs Java 17 or newer: install it"):
        session.check_spark()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(0o755)
    with pytest.raises(ConfigError, match=r'is openjdk version "11.0.2" 2019. Spark needs Java 17'):
        session.check_spark()
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    with pytest.raises(NSQError, match=r"pyspark is not installed: pip install 'nsqx\[spark\]'"):
        session.check_spark()


def test_an_old_pyspark_is_rejected_and_excluded_by_the_extras(monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    with pytest.raises(ConfigError, match=r"pyspark 4\.1\.4 is too old, nsqx needs 4\.2 or newer: pip install"):
        session.check_spark()
    monkeypatch.setattr(pyspark, "__version__", "4.2.0.dev1")
    session.check_spark()
    least = ".".join(map(str, session.LEAST_PYSPARK))
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    wanted = [each for name in ("spark", "declarative") for each in extras[name] if each.startswith("pyspark")]
    assert wanted == [f"pyspark>={least}", f"pyspark[pipelines]>={least}"]
