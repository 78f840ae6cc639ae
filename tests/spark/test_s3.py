"""Pipelines write files and state to S3. The server is moto."""

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
# The modules of the AWS SDK that hadoop-aws needs. The complete SDK is one jar of 600 MB.
SDK = [f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts")]

FILE = """
[pipeline]
name = "test"
$state

[spark]
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"
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
    """Set the environment variables with which pyarrow, botocore and Spark find the server."""
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
    """Return the rows at a location, read by pyarrow without Spark."""
    filesystem, path = pyarrow.fs.FileSystem.from_uri(location)
    found = pyarrow.dataset.dataset(path, format=kind, partitioning="hive", filesystem=filesystem)
    return found.to_table().to_pylist()


def test_s3_and_s3a_urls_name_the_same_place(s3_environment):
    for name in ("s3", "s3a", "s3n", "S3A"):
        assert for_python(f"{name}://bucket/x").lower() == "s3://bucket/x"
        assert for_spark(f"{name}://bucket/x") == "s3a://bucket/x"
    for other in ("/a/s3://b", "hdfs://host/s3a", "file:///x"):
        assert for_python(other) == for_spark(other) == other
    open_storage("s3a://bucket/names").write("one", lambda stream: stream.write(b"1"))
    assert open_storage("s3://bucket/names").read("one") == b"1"
    assert locate("s3a://bucket/names")[1] == "bucket/names"


def test_settings_in_a_uri_are_rejected():
    with pytest.raises(ConfigError, match="URI with .settings cannot be used here: for S3 set AWS_ENDPOINT_URL"):
        located(".", "s3://bucket/x?endpoint_override=localhost")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_batch_renamed_twice_appears_once(s3_environment, tmp_path, topic, scheme):
    """Test the parts of the sink that need no Spark: the writing task and the renaming of files."""
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
    sink.recover()
    batch = pa.RecordBatch.from_pydict({"number": [1, 2, 3], "day": ["a", "a", "b"]})
    (written,) = WriteStage(layout)(iter([batch]))
    files = [
        [row["temporary"], f"{row['directory']}/{number}.parquet"] for number, row in enumerate(written.to_pylist())
    ]
    assert len(files) == 2
    # The first run is killed between two renames, and the second run renames all files.
    sink._rename(files[:1])
    sink._rename(files)
    sink.prepare()
    sink.recover()
    rows = rows_in(for_python(layout.location))
    assert sorted((row["number"], row["day"]) for row in rows) == [(1, "a"), (2, "a"), (3, "b")]


def run_pipeline(path, nsqd):
    words = ["run", str(path), "--once", "--nsqd", nsqd.tcp_address, "--master", "local[2]"]
    run_program([sys.executable, "-m", "nsqx.cli.main", "pipeline", *words], SLOW_S, cwd=path.parent)


def run_on_messages(path, nsqd, topic, place, runs, sinks=("files",)):
    """Run a pipeline several times, each on 50 new messages, and check that each message is stored once.

    Return the number of messages.
    """
    for sink in sinks:
        make_channel(nsqd, topic, f"test.{sink}")
    publish(nsqd, topic, [b"no json"])
    for run in range(runs):
        publish(nsqd, topic, numbers(50 * run, 50 * run + 50))
        run_pipeline(path, nsqd)
    count = 50 * runs
    assert sorted((row["number"], row["day"]) for row in rows_in(place)) == [(n, f"day{n % 3}") for n in range(count)]
    assert [row["value"] for row in rows_in(f"{place}-dead")] == [b"no json"]
    return count


@pytest.mark.timeout(SLOW_S)
def test_files_on_s3_need_no_hadoop_package(our_nsqd, topic, tmp_path, s3_environment):
    path, place = tmp_path / "pipeline.toml", f"s3://bucket/{topic}-files"
    path.write_text(file_text(topic, place.replace("s3:", "s3a:"), more=LINES))
    count = run_on_messages(path, our_nsqd, topic, place, 1, ("files", "lines"))
    assert sorted(row["number"] for row in rows_in(f"{place}-lines", "json")) == list(range(count))


@pytest.mark.timeout(SLOW_S)
def test_state_segments_and_files_can_all_be_on_s3(our_nsqd, topic, tmp_path, s3_environment):
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
    run_on_messages(path, our_nsqd, topic, place, 2)
    names = open_storage(f"{place}-state/files/checkpoint/commits").names()
    assert [name for name in names if name.isdigit()]
    assert open_storage(f"{place}-state/files/segments-messages").names()


@pytest.mark.timeout(SLOW_S)
def test_state_on_s3_without_hadoop_aws_names_the_missing_package(spark, our_nsqd, topic, tmp_path, capsys):
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
