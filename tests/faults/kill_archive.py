"""Kills ``nsqx archive``, or one of its processes, with SIGKILL at random moments, and counts the archived messages.

    python tests/faults/kill_archive.py [--messages 1000000] [--kills 8] [--nsqd go] [--master local[2]] [--seed N]

Messages are published while archives are killed and restarted. At the end every message must be in the files exactly
once, read by pyarrow and by Spark; the exit code is 0 then. Between the runs, with a batch half written, no message may
be in the files twice. An archive takes about ten seconds to start, so this runs for minutes.
"""

from __future__ import annotations

import argparse
import contextlib
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
CHANNEL = "archive"
BATCH = 5000
START_TIMEOUT_S = 240.0
END_TIMEOUT_S = 900.0
VICTIMS = ("everything", "everything", "driver", "java", "receiver", "worker")


class Archive:
    """One run of the command, in its own session, which identifies all of its processes."""

    def __init__(self, nsqd: Daemon, directory: Path, count: int, master: str, *, once: bool = False) -> None:
        options = {
            "maxRowsPerTrigger": str(max(1000, count // 50)),
            "nsq.msg_timeout": "5s",
            # Much smaller than the backlog, so only the record of lost FINs can prevent duplicates.
            "dedupWindow": "100000",
        }
        if not master.startswith("local["):
            options["segmentDirIsShared"] = "true"
        self._directory = directory
        self.batches = 0
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nsqx.cli.archive", TOPIC, "--to", str(directory), "--nsqd", nsqd.tcp_address]
            + ["--every", "300ms", "--master", master, *(["--once"] if once else [])]
            + [f"--option={name}={value}" for name, value in options.items()]
            + ["--set=spark.driver.bindAddress=127.0.0.1", "--set=spark.driver.host=127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if "archive: batch" in line:
                self.batches += 1

    def wait_for_batch(self) -> None:
        until_s = time.monotonic() + START_TIMEOUT_S
        while not self.batches:
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError("no batch was written:\n" + "".join(self.lines))
            time.sleep(0.01)

    def processes(self) -> dict[int, str]:
        """Return every process of this run and its command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = int(entry.name)
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session == self.process.pid:
                    found[pid] = (entry / "cmdline").read_text().replace("\0", " ")
        return found

    def kill(self, victim: str, rng: random.Random) -> None:
        """Kill a part, let the other processes run for a moment, and then kill those too."""
        if victim != "everything":
            chosen = self._pids_of(victim)
            if chosen:
                _kill(rng.choice(chosen))
                time.sleep(rng.uniform(0.0, 3.0))
        while processes := [pid for pid, command in self.processes().items() if command]:
            for pid in processes:
                _kill(pid)
            time.sleep(0.02)
            self.process.poll()
        self.process.wait()
        self._reader.join()

    def _pids_of(self, victim: str) -> list[int]:
        if victim == "driver":
            return [self.process.pid]
        if victim == "receiver":
            lock = self._directory / ".nsqx" / "archive" / "segments-messages" / "lock"
            return [int(lock.read_text().split()[1])] if lock.exists() and lock.read_text() else []
        mark = "java" if victim == "java" else "pyspark.daemon"
        return [pid for pid, command in self.processes().items() if mark in command]

    def wait(self) -> None:
        """Wait for the end, which must be successful."""
        code = self.process.wait(END_TIMEOUT_S)
        self._reader.join()
        if code:
            raise RuntimeError(f"the archive ended with {code}:\n" + "".join(self.lines))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def publish(nsqd: Daemon, count: int) -> None:
    """Publish numbered messages slowly, so that archives are killed meanwhile."""
    with Producer(nsqd.tcp_address) as producer:
        for start in range(0, count, BATCH):
            end = min(start + BATCH, count)
            producer.publish_many(TOPIC, [b"%d" % number for number in range(start, end)])
            time.sleep(0.02)


def is_empty(nsqd: Daemon) -> bool:
    channel = nsqd.channel_stats(TOPIC, CHANNEL)
    return not (channel["depth"] or channel["in_flight_count"] or channel["deferred_count"])


def read_with_pyarrow(directory: Path) -> Counter[int]:
    """Return how often each number is in the archive."""
    if not list(directory.glob("date=*")):
        return Counter()
    table = pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive").to_table(columns=["value"])
    return Counter(map(int, table.column("value").to_pylist()))


def read_with_spark(directory: Path) -> Counter[int]:
    """Return the same counts, read by Spark."""
    from nsqx.spark.session import build_session

    local = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    spark = build_session("count", "local[2]", local)
    spark.sparkContext.setLogLevel("OFF")
    try:
        rows = spark.read.parquet(str(directory)).selectExpr("CAST(CAST(value AS STRING) AS INT) AS number").toArrow()
    finally:
        spark.stop()
    return Counter(rows.column("number").to_pylist())


def print_differences(name: str, found: Counter[int], count: int) -> bool:
    """Print the missing and repeated numbers; return True if there are none."""
    missing, repeated = count - len(found), sum(times - 1 for times in found.values())
    print(f"{name}: missing {missing}, repeated {repeated}", flush=True)
    return not missing and not repeated


def run(nsqd: Daemon, directory: Path, count: int, kills: int, master: str, rng: random.Random) -> bool:
    nsqd.post("/topic/create", topic=TOPIC)
    nsqd.post("/channel/create", topic=TOPIC, channel=CHANNEL)
    publisher = threading.Thread(target=publish, args=(nsqd, count))
    publisher.start()
    is_good = True
    for number in range(kills):
        archive = Archive(nsqd, directory, count, master)
        victim = rng.choice(VICTIMS)
        if rng.random() < 0.25:
            time.sleep(rng.uniform(3.0, 25.0))
        else:
            archive.wait_for_batch()
            time.sleep(rng.uniform(0.0, 3.0))
        archive.kill(victim, rng)
        found = read_with_pyarrow(directory)
        repeated = sum(times - 1 for times in found.values())
        is_good = is_good and not repeated
        print(
            f"kill {number + 1} ({victim}) after {archive.batches} reports: {len(found)} archived, {repeated} repeated",
            flush=True,
        )
    publisher.join()
    until_s = time.monotonic() + END_TIMEOUT_S
    while not is_empty(nsqd):
        if time.monotonic() > until_s:
            raise RuntimeError("the channel was not emptied")
        Archive(nsqd, directory, count, master, once=True).wait()
    # Archive the messages that were received and not yet written when the last run ended.
    Archive(nsqd, directory, count, master, once=True).wait()
    is_good = print_differences("pyarrow", read_with_pyarrow(directory), count) and is_good
    return print_differences("Spark", read_with_spark(directory), count) and is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--nsqd", choices=["go", "nsqx"], default="nsqx")
    parser.add_argument("--master", default="local[2]", help="local-cluster[2,1,1024] runs separate executors")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"{arguments.messages} messages, {arguments.kills} kills, seed {arguments.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="kill-archive-"))
    began_s = time.monotonic()
    try:
        with start_nsqd(arguments.nsqd) as nsqd:
            rng = random.Random(arguments.seed)
            is_good = run(nsqd, directory, arguments.messages, arguments.kills, arguments.master, rng)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{'good' if is_good else 'BAD'} after {time.monotonic() - began_s:.0f} s", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
