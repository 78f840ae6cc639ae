"""Measures the CPU time of a pipeline with three sinks of one JSON topic, with and without ``share``.

    python tests/bench/bench_shared_source.py [--rows 500000] [--rounds 2]

Prints the CPU seconds of all processes of ``nsqx pipeline run --once``, less those of a run without messages, and the
ratio. Wall-clock time is printed too; it depends on the load of the machine. The program asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemons import Daemon, start_nsqd
from nsqx.client.blocking import Producer

FILE = """
[pipeline]
name = "bench"

[spark]
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"

[source.orders]
topic = "orders"
schema = "order_id INT, user STRING, amount DOUBLE, time TIMESTAMP, city STRING, tags ARRAY<STRING>"
max_rows_per_batch = 100000
share = $share

[step.large]
sql = "SELECT order_id, user, amount FROM orders WHERE amount > 90"

[step.cities]
sql = "SELECT city, count(*) AS n, sum(amount) AS total FROM orders GROUP BY city"

[sink.files]
from = "orders"
type = "parquet"
path = "files"

[sink.large]
from = "large"
type = "parquet"
path = "large"

[sink.cities]
from = "cities"
type = "topic"
topic = "cities"
mode = "update"
"""
_TICKS = os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """Adds up the CPU time of all processes of a session, which it looks at 20 times per second."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._ticks: dict[int, int] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ending.wait(0.05):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self._session:
                    self._ticks[int(pid)] = int(fields[11]) + int(fields[12])

    def end(self) -> float:
        """Return the seconds."""
        self._ending.set()
        self._thread.join()
        return sum(self._ticks.values()) / _TICKS


def run(nsqd: Daemon, directory: Path, share: str) -> tuple[float, float]:
    """Run the pipeline; return its CPU time and its wall-clock time."""
    path = directory / "pipeline.toml"
    path.write_text(FILE.replace("$share", share))
    words = ["run", str(path), "--once", "--nsqd", nsqd.tcp_address, "--master", "local[2]"]
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "nsqx.cli.main", "pipeline", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    meter = CpuMeter(process.pid)
    out, _ = process.communicate()
    cpu_s = meter.end()
    if process.returncode:
        raise RuntimeError(out)
    return cpu_s, time.monotonic() - began_s


def measure(rows: int, share: str) -> tuple[float, float]:
    """Return the CPU time and the wall-clock time for these rows, less those of a run without new messages."""
    cities = ("Vienna", "Graz", "Linz", "Berlin", "Paris")
    with (
        tempfile.TemporaryDirectory(prefix="bench-shared-") as directory,
        start_nsqd("nsqx", "--store=log", data_path=Path(directory)) as nsqd,
        Producer(nsqd.tcp_address) as producer,
    ):
        for first in range(0, rows, 5000):
            producer.publish_many(
                "orders",
                [
                    json.dumps(
                        {
                            "order_id": number,
                            "user": f"user-{number % 1000}",
                            "amount": number % 100 + 0.5,
                            "time": "2026-11-15T10:00:00Z",
                            "city": cities[number % 5],
                            "tags": ["new", f"tag-{number % 10}"],
                        }
                    ).encode()
                    for number in range(first, first + 5000)
                ],
            )
        full = run(nsqd, Path(directory), share)
        empty = run(nsqd, Path(directory), share)
        return full[0] - empty[0], full[1] - empty[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {"false": [], "true": []}
    for _ in range(arguments.rounds):
        for share, values in found.items():
            cpu_s, wall_s = measure(arguments.rows, share)
            values.append(cpu_s)
            print(f"share = {share}: {cpu_s:.1f} s of CPU, {wall_s:.1f} s, {arguments.rows} rows", flush=True)
    alone, shared = (statistics.median(values) for values in found.values())
    print(f"ratio: {alone / shared:.2f} ({alone:.1f} s without share, {shared:.1f} s with it)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
