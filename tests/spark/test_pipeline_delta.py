"""A Delta table gets each row once, also if a batch is repeated.

Runs the command with the Python that NSQX_TEST_DELTA_PYTHON names, because Delta has no build for the newest Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from pipeline_runs import SLOW_S
from streams import make_channel, publish

PYTHON = os.environ.get("NSQX_TEST_DELTA_PYTHON", "")
FILE = """
[pipeline]
name = "test"

[spark]
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"
"spark.sql.shuffle.partitions" = 2

[source.messages]
topic = "$topic"
schema = "number INT, kind STRING"
options = { drainIdle = "300ms" }

[step.totals]
sql = "SELECT kind, count(*) AS n FROM messages GROUP BY kind"

[sink.rows]
from = "messages"
type = "delta"
path = "rows"
partition_by = "kind"

[sink.totals]
from = "totals"
type = "delta"
path = "totals"
mode = "update"
keys = ["kind"]

[sink.all]
from = "totals"
type = "delta"
path = "all"
mode = "complete"
"""
# Reads the tables, then repeats the last batch of a query, which Delta must skip.
CHECK = """
import json, sys
from nsqx.pipeline.delta_sink import BUILDS, SETTINGS, DeltaSink
from nsqx.pipeline.model import Sink
from nsqx.spark.session import build_session
packages = {"spark.jars.packages": next(iter(BUILDS.values())), "spark.ui.enabled": "false"}
spark = build_session("check", "local[2]", {**SETTINGS, **packages})
def rows(name):
    columns = ("number", "kind") if name == "rows" else ("kind", "n")
    return sorted(map(list, spark.read.format("delta").load(name).select(*columns).collect()))
first = {name: rows(name) for name in ("rows", "totals", "all")}
sink = DeltaSink(Sink("rows", "messages", "delta", "append", None, path="rows", partition_by=("kind",)))
again = spark.createDataFrame([(-1, "z")], "number INT, kind STRING").select("number", "kind")
counts = [sink.write(again, "query", batch) for batch in (5, 5, 4, 6)]
repeated = sum(number == -1 for number, *_ in rows("rows"))
print("RESULT", json.dumps([first, counts, repeated]))
"""


@pytest.mark.skipif(not PYTHON, reason="set NSQX_TEST_DELTA_PYTHON to a Python with pyspark 4.2")
@pytest.mark.timeout(3 * SLOW_S)
def test_delta_tables_get_each_row_once(our_nsqd, topic, tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_text(FILE.replace("$topic", topic))
    for sink in ("rows", "totals", "all"):
        make_channel(our_nsqd, topic, f"test.{sink}")
    source = str(Path(__file__).resolve().parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "PYSPARK_PYTHON": PYTHON, "SPARK_LOCAL_IP": "127.0.0.1"}

    def call(*words: str) -> str:
        done = subprocess.run(
            [PYTHON, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SLOW_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run = ["-m", "nsqx.cli.main", "pipeline", "run", str(path), "--once", "--nsqd", our_nsqd.tcp_address]
    publish(our_nsqd, topic, [json.dumps({"number": n, "kind": "ab"[n % 2]}).encode() for n in range(10)])
    call(*run)
    publish(our_nsqd, topic, [json.dumps({"number": n, "kind": "ac"[n % 2]}).encode() for n in range(10, 14)])
    call(*run)
    result = next(line for line in call("-c", CHECK).splitlines() if line.startswith("RESULT"))
    tables, counts, repeated = json.loads(result.removeprefix("RESULT "))
    assert sorted(number for number, *_ in tables["rows"]) == list(range(14))
    assert tables["totals"] == tables["all"] == [["a", 7], ["b", 5], ["c", 2]]
    # Batch 5 is skipped the second time, and so is batch 4.
    assert (counts, repeated) == ([1, 1, 1, 1], 2)
