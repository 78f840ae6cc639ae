"""The example project for Spark Declarative Pipelines reads a topic as a streaming table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pipeline_runs import SLOW_S, run_program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"


def rows(project, table):
    files = sorted((project / "spark-warehouse" / table).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.timeout(SLOW_S)
def test_spark_pipelines_runs_the_example_project(our_nsqd, tmp_path):
    for module in ("grpc", "grpc_status", "google.rpc", "yaml", "zstandard"):
        pytest.importorskip(module, reason=f"{module} is missing: pip install 'pyspark[pipelines]'")
    program = Path(sys.executable).with_name("spark-pipelines")
    if not program.exists():
        pytest.skip("spark-pipelines is missing: pip install 'pyspark[pipelines]'")
    project = tmp_path / "declarative"
    shutil.copytree(EXAMPLES / "declarative", project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text().replace("127.0.0.1:4150", our_nsqd.tcp_address)
    spec.write_text(text.replace("/tmp/nsqx-declarative", str(tmp_path)))
    generate = [sys.executable, str(EXAMPLES / "per_minute" / "generate.py"), our_nsqd.tcp_address]
    subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
    our_nsqd.post("/pub", b"no order", topic="orders")

    run_program([str(program), "run", "--remote", "local[2]"], 350, cwd=project)

    orders = rows(project, "orders")
    assert sorted(order["order"] for order in orders) == list(range(301))
    assert [row["value"] for row in rows(project, "unreadable_orders")] == [b"no order"]
    counted = {row["product"]: row["orders"] for row in rows(project, "per_product")}
    assert counted == Counter(order["product"] for order in orders)
