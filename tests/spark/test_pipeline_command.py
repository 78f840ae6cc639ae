"""``nsqx pipeline`` as a process writes no Spark logs, stops on a signal and continues in the next run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pipeline_runs import SLOW_S, read_rows, run_program
from streams import make_channel, publish

from nsqx.cli import pipeline as command

FILE = """
[pipeline]
name = "test"

[spark]
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"

[source.messages]
topic = "$topic"
schema = "number INT"
options = { drainIdle = "300ms" }

[sink.files]
from = "messages"
type = "parquet"
path = "out"
trigger = "200ms"
"""


def numbers(first, last):
    return [json.dumps({"number": number}).encode() for number in range(first, last)]


@pytest.mark.timeout(SLOW_S)
def test_sigterm_stops_a_run_cleanly_and_spark_submit_continues_it(our_nsqd, topic, tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_text(FILE.replace("$topic", topic))
    make_channel(our_nsqd, topic, "test.files")
    publish(our_nsqd, topic, numbers(0, 100))
    words = ["run", str(path), "--nsqd", our_nsqd.tcp_address]
    running = subprocess.Popen(
        [sys.executable, "-m", "nsqx.cli.main", "pipeline", *words, "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = []
        while "100 in total" not in "".join(lines) and (line := running.stdout.readline()):
            lines.append(line)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=170)
    finally:
        running.kill()
    assert running.returncode == 0, err
    assert [line for line in lines if " files: batch " not in line] == []
    assert "stopping after the current batches" in out
    assert err == ""
    assert sorted(row["number"] for row in read_rows(tmp_path / "out")) == list(range(100))

    publish(our_nsqd, topic, numbers(100, 150))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    run_program([str(submit), "--master", "local[1]", command.__file__, *words, "--once"], 170)
    assert sorted(row["number"] for row in read_rows(tmp_path / "out")) == list(range(150))
