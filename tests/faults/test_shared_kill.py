"""A pipeline whose sinks share a source is killed with all of its processes: each sink has every row once.

NSQX_SLOW or --run-slow kills it more often, and after random pauses.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import Daemon, start_nsqd
from nsqx.client.blocking import Producer
from nsqx.errors import ConfigError
from nsqx.queues.log.stored import StoredLogs
from nsqx.spark.session import check_spark

TOPIC, OUT = "killed", "killed_out"
PORTION = 1500
TIMEOUT_S = 240.0
FILE = f"""
[pipeline]
name = "test"

[spark]
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"

[source.messages]
topic = "{TOPIC}"
schema = "number INT"
max_rows_per_batch = 250
share = true

[step.rows]
sql = "SELECT number FROM messages"

[sink.files]
from = "rows"
type = "parquet"
path = "files"
trigger = "100ms"

[sink.lines]
from = "rows"
type = "json"
path = "lines"
trigger = "300ms"

[sink.copies]
from = "rows"
type = "topic"
topic = "{OUT}"
"""


@pytest.fixture
def log_nsqd(tmp_path: Path) -> Iterator[Daemon]:
    with start_nsqd("nsqx", "--store=log", data_path=tmp_path) as daemon:
        yield daemon


class PipelineProcess:
    """``nsqx pipeline run`` in a session of its own, so that all of its processes can be killed at once."""

    def __init__(self, nsqd: Daemon, directory: Path, *flags: str) -> None:
        self._output = directory / "output"
        self._directory = directory
        words = ["run", str(directory / "pipeline.toml"), "--nsqd", nsqd.tcp_address, "--master", "local[2]", *flags]
        with self._output.open("a") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nsqx.cli.main", "pipeline", *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for_change(self, pattern: str) -> None:
        """Wait until files with names of a pattern have changed."""
        before, until_s = self._seen(pattern), time.monotonic() + TIMEOUT_S
        while self._seen(pattern) == before:
            assert self._process.poll() is None, self.output
            assert time.monotonic() < until_s, self.output
            time.sleep(0.01)

    def _seen(self, pattern: str) -> set[tuple[str, int]]:
        found = set()
        for path in self._directory.glob(pattern):
            try:
                found.add((path.name, path.stat().st_mtime_ns))
            except FileNotFoundError:
                continue
        return found

    def wait(self) -> int:
        try:
            return self._process.wait(TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill every process of the session; Spark's daemons have process groups of their own."""
        while pids := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._has(pid)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.02)
        self._process.wait()

    def _has(self, pid: int) -> bool:
        try:
            state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            return False
        return state != "Z" and int(session) == self._process.pid

    @property
    def output(self) -> str:
        return self._output.read_text()


def publish(nsqd: Daemon, first: int, last: int) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(TOPIC, [json.dumps({"number": number}).encode() for number in range(first, last)])


# Files that change at a step of a batch: rows are decoded, a sink commits, a sink has written, Spark has recorded it.
STEPS = (
    "test.state/shared-messages/rows/batches/*",
    "test.state/files/commit.json",
    "test.state/shared-messages/checkpoint/commits/*",
    "lines/*.json",
    "test.state/copies/checkpoint/offsets/*",
    "test.state/shared-messages/rows/parts/*",
)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_each_sink_has_every_row_once_after_kills(tmp_path: Path, log_nsqd: Daemon, kills: int) -> None:
    try:
        check_spark()
    except ConfigError as error:
        pytest.skip(f"{error}; Spark needs Java 17+")
    pyarrow_dataset = pytest.importorskip("pyarrow.dataset", reason="pyarrow is missing: pip install 'nsqx[spark]'")
    directory = tmp_path / "pipeline"
    directory.mkdir()
    (directory / "pipeline.toml").write_text(FILE)
    rng = random.Random(26)
    count = 0
    for number in range(kills):
        publish(log_nsqd, count, count + PORTION)
        count += PORTION
        running = PipelineProcess(log_nsqd, directory)
        try:
            running.wait_for_change(STEPS[number % len(STEPS)])
            if kills > len(STEPS):
                time.sleep(rng.uniform(0, 2))
        finally:
            running.kill()
    running = PipelineProcess(log_nsqd, directory, "--once")
    assert running.wait() == 0, running.output

    once = Counter(range(count))
    assert Counter(pyarrow_dataset.dataset(directory / "files").to_table()["number"].to_pylist()) == once
    texts = [path.read_text() for path in (directory / "lines").glob("*.json")]
    assert Counter(json.loads(line)["number"] for text in texts for line in text.splitlines()) == once
    log_nsqd.close()
    (stored,) = (log for log in StoredLogs(str(tmp_path)).logs if log.topic == OUT)
    assert Counter(json.loads(message.body)["number"] for message in stored.messages(0)) == once
