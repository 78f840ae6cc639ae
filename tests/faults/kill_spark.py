"""Kills Spark drivers, their JVMs and their receivers with SIGKILL, and counts what arrived in Parquet.

    python tests/faults/kill_spark.py [--messages 1000000] [--kills 6] [--nsqd go] [--seed N]

Messages are published while drivers come and go. At the end every message must be in the Parquet files exactly once;
the exit code is 0 if it is so. A driver takes some ten seconds to start, so this runs for minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemons import Daemon, start_nsqd
from nsqx.client.blocking import Producer

TOPIC = "killed"
CHANNEL = "spark"
BATCH = 5000
# Spark is given so long for the messages after the last kill.
END_TIMEOUT_S = 600.0


class Driver:
    """A driver process, with everything that it starts in a process group of its own."""

    def __init__(self, directory: Path, options: dict[str, str]) -> None:
        program = Path(__file__).with_name("spark_driver.py")
        self._segments = Path(options["segmentDir"])
        self.batches = 0
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(directory), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("batch"):
                self.batches += 1
            elif line.startswith("failed"):
                print(line, flush=True)

    def wait_for_batches(self, count: int, timeout_s: float = 120.0) -> None:
        until_s = time.monotonic() + timeout_s
        while self.batches < count:
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the driver made {self.batches} batches of {count}")
            time.sleep(0.01)

    def kill_receiver(self) -> None:
        """Kill the process beside the driver that receives."""
        pid = int((self._segments / "lock").read_text().split()[1])
        os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill driver, JVM and workers at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()

    def end(self) -> None:
        """End as a user would."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._reader.join()


def publish(nsqd: Daemon, count: int) -> None:
    """Publish numbered messages, slowly enough that drivers are killed in the middle of it."""
    with Producer(nsqd.tcp_address) as producer:
        for start in range(0, count, BATCH):
            end = min(start + BATCH, count)
            producer.publish_many(TOPIC, [b"%d" % number for number in range(start, end)])
            time.sleep(0.02)


def is_empty(nsqd: Daemon) -> bool:
    channel = nsqd.channel_stats(TOPIC, CHANNEL)
    return not (channel["depth"] or channel["in_flight_count"])


def read_values(directory: Path) -> Counter[int]:
    """How often each number is in the Parquet files."""
    found: Counter[int] = Counter()
    for path in sorted((directory / "rows").glob("batch=*")):
        table = pyarrow.dataset.dataset(path, format="parquet").to_table(columns=["value"])
        found.update(int(value) for value in table.column("value").to_pylist())
    return found


def run(nsqd: Daemon, directory: Path, count: int, kills: int, rng: random.Random) -> Counter[int]:
    nsqd.post("/topic/create", topic=TOPIC)
    nsqd.post("/channel/create", topic=TOPIC, channel=CHANNEL)
    options = {
        "nsq.nsqd": nsqd.tcp_address,
        "subscribe": TOPIC,
        "channel": CHANNEL,
        "segmentDir": str(directory / "segments"),
        "maxRowsPerTrigger": str(max(1000, count // 50)),
        "nsq.msg_timeout": "5s",
        # Far shorter than the backlog, so that only what is known of lost FINs can help.
        "dedupWindow": "100000",
    }
    publisher = threading.Thread(target=publish, args=(nsqd, count))
    publisher.start()
    for number in range(kills):
        driver = Driver(directory, options)
        driver.wait_for_batches(1)
        time.sleep(rng.uniform(0.0, 1.5))
        if number % 3 == 2:
            driver.kill_receiver()
            time.sleep(rng.uniform(0.0, 0.5))
        driver.kill()
        print(f"kill {number + 1} after {driver.batches} batches", flush=True)
    publisher.join()
    driver = Driver(directory, options)
    until_s = time.monotonic() + END_TIMEOUT_S
    while not is_empty(nsqd) and time.monotonic() < until_s:
        time.sleep(0.5)
    committed, rows = -1, 0
    while committed < rows and time.monotonic() < until_s:
        time.sleep(2)
        state = json.loads((directory / "segments" / "state.json").read_text())
        names = [path.name.split("-") for path in (directory / "segments").glob("segment-*")]
        committed = state["committed"]
        rows = max([committed, *(int(name[1]) + int(name[2]) for name in names)])
    driver.end()
    return read_values(directory)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--nsqd", choices=["go", "nsqx"], default="nsqx")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"{arguments.messages} messages, {arguments.kills} kills, seed {arguments.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="kill-spark-"))
    began_s = time.monotonic()
    try:
        with start_nsqd(arguments.nsqd) as nsqd:
            found = run(nsqd, directory, arguments.messages, arguments.kills, random.Random(arguments.seed))
        missing = arguments.messages - len(found)
        repeated = sum(times - 1 for times in found.values())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"missing {missing}, repeated {repeated}, {time.monotonic() - began_s:.0f} s", flush=True)
    return 0 if not missing and not repeated else 1


if __name__ == "__main__":
    sys.exit(main())
