"""Pipelines whose files, state or both are on S3; the server is moto's."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyspark
import pytest
from pipeline_runs import SLOW_S, PipelineFile, run_program
from streams import make_channel, publish

from nsqx.errors import ConfigError
from nsqx.pipeline.file_sink import FileLayout, FileSink, WriteStage, locate
from nsqx.pipeline.model import located
from nsqx.spark.s3_urls import for_python, for_spark
from nsqx.spark.storage import open_storage

MAVEN = "https://repo1.maven.org/maven2/"
# What hadoop-aws needs of the AWS SDK, instead of all of it in one jar of 600 MB.
SDK = [f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts")]

FILE = """
[pipeline]
name = "test"
$state

[spark]
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
$settings

[source.messages]
topic = "$topic"
schema = "number INT, day STRING"
options = { drainIdle = "300ms" }

[sink.files]
from = "messages"
type = "parquet"
path = "$path"
partition_by = ["day"]

[dead_letter]
dir = "$path-dead"
"""
LINES = """
[sink.lines]
from = "messages"
type = "json"
path = "$path-lines"
"""


@pytest.fixture
def s3_environment(s3_server, monkeypatch):
    """The environment by which pyarrow, botocore and Spark find the server."""
    values = {
        "AWS_ENDPOINT_URL": f"http://{s3_server}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def file_text(topic, path, state="", settings="", more=""):
    values = {"topic": topic, "path": path, "state": state, "settings": settings}
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], FILE + more)


def numbers(first, last):
    return [json.dumps({"number": each, "day": f"day{each % 3}"}).encode() for each in range(first, last)]


def rows_in(location, kind="parquet"):
    """What a reader other than Spark finds."""
    filesystem, path = pyarrow.fs.FileSystem.from_uri(location)
    found = pyarrow.dataset.dataset(path, format=kind, partitioning="hive", filesystem=filesystem)
    return found.to_table().to_pylist()


def test_either_name_means_the_same_place(s3_environment):
    for name in ("s3", "s3a", "s3n", "S3A"):
        assert for_python(f"{name}://bucket/x").lower() == "s3://bucket/x"
        assert for_spark(f"{name}://bucket/x") == "s3a://bucket/x"
    for other in ("/a/s3://b", "hdfs://host/s3a", "file:///x"):
        assert for_python(other) == for_spark(other) == other
    open_storage("s3a://bucket/names").write("one", lambda stream: stream.write(b"1"))
    assert open_storage("s3://bucket/names").read("one") == b"1"
    assert locate("s3a://bucket/names")[1] == "bucket/names"


def test_settings_in_an_address_are_refused():
    with pytest.raises(ConfigError, match="URI with .settings cannot be used here: for S3 set AWS_ENDPOINT_URL"):
        located(".", "s3://bucket/x?endpoint_override=localhost")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_batch_of_files_appears_once(s3_environment, tmp_path, topic, scheme):
    """The parts of the sink that do not need Spark: a task that writes, a commit, files under their names."""
    layout = FileLayout(
        location=f"{scheme}://bucket/{topic}-{scheme}",
        format="parquet",
        compression="zstd",
        partition_by=("day",),
        columns=("number",),
        temporary=".nsqx-files",
    )
    sink = FileSink(layout, "files", f"{scheme}://bucket/{topic}-{scheme}-state")
    sink.prepare()
    batch = pa.RecordBatch.from_pydict({"number": [1, 2, 3], "day": ["a", "a", "b"]})
    (written,) = WriteStage(layout)(iter([batch]))
    files = [
        [row["temporary"], f"{row['directory']}/{number}.parquet"] for number, row in enumerate(written.to_pylist())
    ]
    assert len(files) == 2
    # A run that was killed while it renamed is finished by the next one.
    sink._rename(files[:1])
    sink._rename(files)
    sink.prepare()
    rows = rows_in(for_python(layout.location))
    assert sorted((row["number"], row["day"]) for row in rows) == [(1, "a"), (2, "a"), (3, "b")]


def run_pipeline(path, nsqd):
    words = ["run", str(path), "--once", "--nsqd", nsqd.tcp_address, "--master", "local[2]"]
    run_program([sys.executable, "-m", "nsqx.cli.main", "pipeline", *words], SLOW_S, cwd=path.parent)


def run_lots(path, nsqd, topic, place, lots, sinks=("files",)):
    """Run a pipeline on each lot of messages; every message is in its files once. How many messages there were."""
    for sink in sinks:
        make_channel(nsqd, topic, f"test.{sink}")
    publish(nsqd, topic, [b"no json"])
    for lot in range(lots):
        publish(nsqd, topic, numbers(50 * lot, 50 * lot + 50))
        run_pipeline(path, nsqd)
    count = 50 * lots
    assert sorted((row["number"], row["day"]) for row in rows_in(place)) == [(n, f"day{n % 3}") for n in range(count)]
    assert [row["value"] for row in rows_in(f"{place}-dead")] == [b"no json"]
    return count


@pytest.mark.timeout(SLOW_S)
def test_files_on_s3_need_nothing_but_python(our_nsqd, topic, tmp_path, s3_environment):
    path, place = tmp_path / "pipeline.toml", f"s3://bucket/{topic}-files"
    path.write_text(file_text(topic, place.replace("s3:", "s3a:"), more=LINES))
    count = run_lots(path, our_nsqd, topic, place, 1, ("files", "lines"))
    assert sorted(row["number"] for row in rows_in(f"{place}-lines", "json")) == list(range(count))


@pytest.mark.timeout(SLOW_S)
def test_state_segments_and_files_on_s3(our_nsqd, topic, tmp_path, s3_environment):
    require_maven()
    packages = [f"org.apache.hadoop:hadoop-aws:{hadoop_version()}", *SDK]
    settings = f"""
packages = {json.dumps(packages)}
"spark.jars.excludes" = "software.amazon.awssdk:bundle"
"spark.hadoop.fs.s3a.path.style.access" = true
"""
    path = tmp_path / "pipeline.toml"
    place = f"s3://bucket/{topic}-all"
    path.write_text(file_text(topic, place, f'state = "{place}-state"', settings))
    run_lots(path, our_nsqd, topic, place, 2)
    names = open_storage(f"{place}-state/files/checkpoint/commits").names()
    assert [name for name in names if name.isdigit()]
    assert open_storage(f"{place}-state/files/segments-messages").names()


@pytest.mark.timeout(SLOW_S)
def test_state_on_s3_without_hadoops_file_system(spark, our_nsqd, topic, tmp_path, capsys):
    file = PipelineFile(tmp_path, our_nsqd, capsys)
    file.write(file_text(topic, "s3://bucket/out", 'state = "s3://bucket/state"'))
    assert file.call("check") == 1
    needed = f"add the package org.apache.hadoop:hadoop-aws:{hadoop_version()}"
    assert f"Spark has no file system for s3://bucket/state: {needed}" in file.err


def hadoop_version():
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    return jar.stem.rpartition("-")[2]


def require_maven():
    try:
        urllib.request.urlopen(MAVEN, timeout=10).close()
    except urllib.error.HTTPError:
        pass
    except OSError as error:
        pytest.skip(f"hadoop-aws cannot be fetched from {MAVEN}: {error}")
