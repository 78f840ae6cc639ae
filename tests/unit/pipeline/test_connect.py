"""Spark Connect: where its address comes from, what is refused before a connection, and who may write batches."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install 'nsqx[spark]'")

from nsqx.errors import ConfigError  # noqa: E402
from nsqx.pipeline.connect_query import (  # noqa: E402
    PipelineStopping,
    RemoteBatches,
    begin_server_run,
    check_not_at_server,
    end_server_run,
)
from nsqx.pipeline.parser import read_pipeline  # noqa: E402
from nsqx.pipeline.session import open_pipeline_session  # noqa: E402
from nsqx.pipeline.state import PipelineState  # noqa: E402
from nsqx.spark.session import connect_url  # noqa: E402
from nsqx.spark.storage import open_storage  # noqa: E402

SERVER = "sc://127.0.0.1:15002"
FILE = """
[pipeline]
name = "shop"

[spark]
$spark

[source.orders]
topic = "orders"
format = "raw"

[sink.out]
from = "orders"
$sink
"""


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


def pipeline_of(directory, sink, spark=""):
    path = directory / "shop.toml"
    path.write_text(FILE.replace("$sink", sink).replace("$spark", spark))
    return read_pipeline(str(path), nsqd=["127.0.0.1:4150"])


def test_the_address_is_the_master_or_a_setting_or_of_the_environment(monkeypatch):
    assert connect_url(None) == connect_url("local[2]") == connect_url("spark://host:7077") == ""
    assert connect_url(SERVER) == SERVER
    assert connect_url(None, {"spark.remote": SERVER}) == SERVER
    monkeypatch.setenv("SPARK_REMOTE", SERVER)
    assert connect_url(None) == connect_url("") == SERVER
    with pytest.raises(ConfigError, match=r"the master local\[2\] and .* sc://.* are given: unset one of them"):
        connect_url("local[2]")


@pytest.mark.parametrize(
    ("sink", "spark", "expected"),
    [
        ('type = "console"', "", "sink.out.type: console does not work over Spark Connect, because it would print"),
        (
            'type = "jdbc"\nurl = "jdbc:postgresql://host/shop"\ntable = "orders"',
            "",
            "sink.out.type: jdbc does not work over Spark Connect, because its transactions need a JDBC connection",
        ),
        (
            'type = "topic"\ntopic = "out"',
            'packages = ["a:b:1"]',
            f"spark.packages: packages cannot be added over Spark Connect: start the server {SERVER} with --packages",
        ),
    ],
)
@pytest.mark.parametrize("place", ["master", "environment", "setting"])
def test_what_needs_the_jvm_is_refused_in_one_line(tmp_path, monkeypatch, place, sink, spark, expected):
    if place == "environment":
        monkeypatch.setenv("SPARK_REMOTE", SERVER)
    if place == "setting":
        spark = f'"spark.remote" = "{SERVER}"\n{spark}'
    pipeline = pipeline_of(tmp_path, sink, spark)
    with (
        pytest.raises(ConfigError) as caught,
        open_pipeline_session(pipeline, SERVER if place == "master" else "", verbose=False),
    ):
        pass
    assert expected in str(caught.value)


class Batches:
    """Counts what a process of the server would write."""

    def __init__(self):
        self.recovered = 0
        self.written = []

    def prepare(self):
        """No-op."""

    def recover(self):
        self.recovered += 1

    def write(self, rows, query_id, batch_id):
        self.written.append((query_id, batch_id))
        return len(rows)


def test_only_the_queries_of_the_last_run_write_batches(tmp_path, monkeypatch):
    held = {}
    monkeypatch.setattr("nsqx.pipeline.connect_query._held", held)
    location = str(tmp_path)
    state = PipelineState(location)
    end_server_run(state)
    writer = Batches()
    (tmp_path / "out" / "checkpoint").mkdir(parents=True)
    (tmp_path / "out" / "checkpoint" / "metadata").write_text('{"id":"q1"}')
    first = RemoteBatches(writer, location, "out", begin_server_run(state))
    first([1, 2], 0)
    first([], 1)
    assert (writer.recovered, writer.written) == (1, [("q1", 0), ("q1", 1)])
    assert state.new_rows() == {"out": 2}
    # While the process of the server lives, nothing else may change the state of the sink.
    with pytest.raises(ConfigError, match="sink out still runs at a Spark Connect server"):
        check_not_at_server(location, "out")
    second = RemoteBatches(writer, location, "out", begin_server_run(state))
    with pytest.raises(PipelineStopping):
        first([3], 2)
    second([3], 2)
    end_server_run(state)
    with pytest.raises(PipelineStopping):
        second([4], 3)
    for lock in held.values():
        lock.release()
    check_not_at_server(location, "out")
    assert "lock" in open_storage(f"{location}/out").names()
