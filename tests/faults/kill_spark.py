"""Kills Spark drivers, receivers and executors with SIGKILL, and counts the messages in the Parquet files.

    python tests/faults/kill_spark.py [--messages 1000000] [--kills 6] [--nsqd go] [--master local-cluster] [--seed N]
                                      [--storage s3] [--mode log]

With ``--mode log`` the topic has a log on each of two nsqds, which are killed too. Publishes have numbers, so that a
repeated publish is stored once.

With ``--storage s3`` the segments are on an S3 server, and a driver may be frozen, instead of killed, until another one
has taken over.

Messages are published while drivers are killed and restarted. At the end every message must be in the Parquet files
exactly once, read with pyarrow and with Spark; the exit code is 0 then. A driver takes about ten seconds to start, so
this runs for minutes.
"""

from __future__ import annotations

import argparse
import http.client
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
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spark_cluster import KINDS, LOCAL, executor_pids, spark_master

from daemons import Daemon, start_nsqd
from nsqx.client.blocking import Producer
from nsqx.spark.storage import Storage, open_storage

TOPIC = "killed"
CHANNEL = "spark"
BATCH = 5000
# The time limit for Spark to process the messages after the last kill.
END_TIMEOUT_S = 900.0
VICTIMS = ("driver", "receiver", "executor")
FROZEN = "frozen driver"
VICTIMS_ON_S3 = ("driver", FROZEN)
VICTIMS_OF_LOGS = ("driver", "nsqd", "executor")
LOG_NODES = 2
S3_SERVER = Path(__file__).resolve().parents[1] / "spark" / "s3_server.py"


class Driver:
    """A driver process, in a process group with everything that it starts."""

    def __init__(self, directory: Path, master: str, options: dict[str, str]) -> None:
        program = Path(__file__).with_name("spark_driver.py")
        self._segments = options.get("segmentDir", "")
        self.batches = 0
        self.failures = 0
        self.verified: dict[str, Any] = {}
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(directory), master, json.dumps(options)],
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
            word, _, rest = line.partition(" ")
            if word == "batch":
                self.batches += 1
            elif word == "failed":
                self.failures += 1
            elif word == "verified":
                self.verified = json.loads(rest)

    def wait_for_batches(self, count: int, timeout_s: float = 300.0) -> None:
        until_s = time.monotonic() + timeout_s
        while self.batches < count:
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the driver made {self.batches} batches of {count}")
            time.sleep(0.01)

    def kill(self, victim: str, rng: random.Random, root: int) -> None:
        """Kill the driver with its process group, or its receiver, or one of its executors below ``root``."""
        if victim == "driver":
            self.close()
        elif victim == "receiver":
            self._kill_receiver()
        else:
            os.kill(rng.choice(executor_pids(root)), signal.SIGKILL)

    def _kill_receiver(self, timeout_s: float = 60.0) -> None:
        """Kill the process that owns the segments. A stale name stays in the lock until the next owner starts."""
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                os.kill(int((Path(self._segments) / "lock").read_text().split()[1]), signal.SIGKILL)
            except (ProcessLookupError, IndexError):
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.05)
            else:
                return

    def freeze(self) -> None:
        """Stop the process group of the driver, like a suspended machine."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process group."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill all of its processes that still run."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join()

    def end(self) -> None:
        """Stop the driver normally, so that Spark counts the rows."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(END_TIMEOUT_S)
        self._reader.join()


class Publisher:
    """Publishes numbered messages in several parts."""

    def __init__(self, nsqd: Daemon) -> None:
        self._nsqd = nsqd
        self._next = 0
        self._thread: threading.Thread | None = None

    def publish(self, count: int) -> None:
        """Start to publish the next ``count`` messages, after the earlier ones."""
        self.wait()
        start, self._next = self._next, self._next + count
        self._thread = threading.Thread(target=self._run, args=(start, self._next))
        self._thread.start()

    def _run(self, first: int, last: int) -> None:
        with Producer(self._nsqd.tcp_address) as producer:
            for start in range(first, last, BATCH):
                end = min(start + BATCH, last)
                producer.publish_many(TOPIC, [b"%d" % number for number in range(start, end)])
                # Slowly, so that processes are killed meanwhile.
                time.sleep(0.1)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()


class LogNodes:
    """The nsqds of a log topic. One that is killed is started again on the same address and files."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        self.nodes = [self._start(number) for number in range(LOG_NODES)]
        for node in self.nodes:
            node.post("/topic/create", topic=TOPIC)
        self._addresses = [node.tcp_address for node in self.nodes]
        # A task that runs asks an nsqd at the address that it had.
        self._http_addresses = [node.http_address for node in self.nodes]

    def _start(self, number: int, *flags: str) -> Daemon:
        path = self._directory / f"nsqd_{number}"
        path.mkdir(exist_ok=True)
        return self._stack.enter_context(start_nsqd("nsqx", "--store=log", f"--data-path={path}", *flags))

    @property
    def addresses(self) -> str:
        return ",".join(self._addresses)

    def kill(self, number: int) -> None:
        self.nodes[number].kill()
        addresses = f"--tcp-address={self._addresses[number]}", f"--http-address={self._http_addresses[number]}"
        self.nodes[number] = self._start(number, *addresses)

    def depth(self) -> int:
        return sum(node.channel_stats(TOPIC, CHANNEL)["depth"] for node in self.nodes)


class NumberedPublisher(Publisher):
    """Publishes to all nsqds in turn. A publish without an answer is repeated with the same number."""

    def __init__(self, nodes: LogNodes) -> None:
        self._nodes = nodes
        self._next = 0
        self._thread = None

    def _run(self, first: int, last: int) -> None:
        for start in range(first, last, BATCH):
            body = b"\n".join(b"%d" % number for number in range(start, min(start + BATCH, last)))
            query = {"topic": TOPIC, "producer": "kill", "seq": str(start + 1)}
            while not self._is_stored(body, query, start // BATCH % LOG_NODES):
                time.sleep(0.1)
            time.sleep(0.1)

    def _is_stored(self, body: bytes, query: dict[str, str], number: int) -> bool:
        try:
            return self._nodes.nodes[number].request("POST", "/mpub", body, query=query).status == 200
        except (OSError, http.client.HTTPException):
            return False


def run_log(directory: Path, kind: str, count: int, kills: int, rng: random.Random) -> Outcome:
    """Publish, kill drivers, executors and nsqds, and let a last driver process the rest."""
    with ExitStack() as stack:
        nodes = LogNodes(stack, directory)
        options = {
            "nsq.nsqd": nodes.addresses,
            "subscribe": TOPIC,
            "channel": CHANNEL,
            "mode": "log",
            "minPartitions": "4",
            "maxOffsetsPerTrigger": str(max(1000, count // 50)),
        }
        publisher = NumberedPublisher(nodes)
        master = stack.enter_context(spark_master(kind, directory))
        driver = stack.enter_context(closing(Driver(directory, master, options)))
        for number in range(kills):
            publisher.publish(count // (kills + 1))
            driver.wait_for_batches(driver.batches + 1)
            time.sleep(rng.uniform(0.0, 2.0))
            victim = VICTIMS_OF_LOGS[number] if number < len(VICTIMS_OF_LOGS) else rng.choice(VICTIMS_OF_LOGS)
            print(f"kill {number + 1}: {victim}, after {driver.batches} batches", flush=True)
            if victim == "nsqd":
                nodes.kill(rng.randrange(LOG_NODES))
            else:
                driver.kill(victim, rng, os.getpid())
            if victim == "driver":
                driver = stack.enter_context(closing(Driver(directory, master, options)))
        publisher.publish(count - kills * (count // (kills + 1)))
        publisher.wait()
        until_s = time.monotonic() + END_TIMEOUT_S
        while nodes.depth() and time.monotonic() < until_s:
            time.sleep(0.5)
        driver.end()
    return Outcome(read_values(directory), driver.verified)


@dataclass(frozen=True)
class Outcome:
    """The content of the files, and the executors that did work."""

    values: Counter[int]
    verified: dict[str, Any]

    def problems(self, count: int, *, is_cluster: bool) -> list[str]:
        """Return texts that describe what is wrong."""
        missing = sum(number not in self.values for number in range(count))
        repeated = sum(times - 1 for times in self.values.values())
        workers = [name for name, tasks in self.verified["tasks"].items() if tasks and name != "driver"]
        found = [
            (f"{missing} missing", missing),
            (f"{repeated} repeated", repeated),
            ("Spark reads other rows", (self.verified["rows"], self.verified["distinct"]) != (count, count)),
            (f"only {workers} did work", is_cluster and len(workers) < 2),
        ]
        return [text for text, is_wrong in found if is_wrong]


def is_empty(nsqd: Daemon) -> bool:
    channel = nsqd.channel_stats(TOPIC, CHANNEL)
    return not (channel["depth"] or channel["in_flight_count"])


def read_values(directory: Path) -> Counter[int]:
    """Return how often each number is in the Parquet files, read with pyarrow."""
    table = pyarrow.dataset.dataset(directory / "rows", format="parquet").to_table(columns=["value"])
    return Counter(map(int, table.column("value").to_pylist()))


def run(nsqd: Daemon, directory: Path, kind: str, count: int, kills: int, rng: random.Random, segments: str) -> Outcome:
    """Publish, kill, and let a last driver process the rest."""
    nsqd.post("/topic/create", topic=TOPIC)
    nsqd.post("/channel/create", topic=TOPIC, channel=CHANNEL)
    options = {
        "nsq.nsqd": nsqd.tcp_address,
        "subscribe": TOPIC,
        "channel": CHANNEL,
        "segmentDir": segments,
        "segmentDirIsShared": "true",
        "minPartitions": "2",
        "maxRowsPerTrigger": str(max(1000, count // 50)),
        "nsq.msg_timeout": "5s",
        # Much smaller than the backlog, so only the record of lost FINs can prevent duplicates.
        "dedupWindow": "100000",
    }
    publisher = Publisher(nsqd)
    with spark_master(kind, directory) as master, ExitStack() as stack:
        # The executors of a standalone cluster are children of its workers, which are children of this process.
        driver = stack.enter_context(closing(Driver(directory, master, options)))
        for number in range(kills):
            publisher.publish(count // (kills + 1))
            driver.wait_for_batches(driver.batches + 1)
            time.sleep(rng.uniform(0.0, 2.0))
            kinds = VICTIMS_ON_S3 if "://" in segments else VICTIMS
            victim = kinds[number % len(kinds)] if number < len(kinds) else rng.choice(kinds)
            print(f"kill {number + 1}: {victim}, after {driver.batches} batches", flush=True)
            if victim == FROZEN:
                driver.freeze()
                frozen, driver = driver, stack.enter_context(closing(Driver(directory, master, options)))
                driver.wait_for_batches(1)
                frozen.thaw()
                wait_for_failure(frozen)
                frozen.close()
                continue
            driver.kill(victim, rng, os.getpid())
            if victim == "driver":
                driver = stack.enter_context(closing(Driver(directory, master, options)))
        publisher.publish(count - kills * (count // (kills + 1)))
        publisher.wait()
        wait_for_rows(nsqd, segments)
        driver.end()
    return Outcome(read_values(directory), driver.verified)


def wait_for_failure(driver: Driver, timeout_s: float = 120.0) -> None:
    """Wait until the query of a frozen driver has noticed that another driver has taken over."""
    until_s = time.monotonic() + timeout_s
    while not driver.failures:
        if time.monotonic() > until_s:
            raise RuntimeError("the frozen driver continues to run")
        time.sleep(0.1)
    print("it has stopped", flush=True)


def wait_for_rows(nsqd: Daemon, segments: str) -> None:
    """Wait until the channel and the segments are empty."""
    storage = open_storage(segments)
    until_s = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < until_s:
        if is_empty(nsqd):
            ends = [sum(map(int, name.split("-")[1:3])) for name in storage.names() if name.startswith("segment-")]
            if is_empty(nsqd) and committed_row(storage) >= max(ends, default=0):
                return
        time.sleep(1.0)


def committed_row(storage: Storage) -> int:
    """Return the row up to which Spark has committed."""
    if storage.is_local:
        return int(json.loads(storage.read("state.json"))["committed"])
    return int(json.loads(storage.read(f"owner/{max(storage.names('owner'))}"))["record"]["committed"])


@contextmanager
def segment_directory(storage: str, directory: Path) -> Iterator[str]:
    """Yield the directory of the segments: a local one, or one on an S3 server that is started here."""
    if storage == "local":
        yield str(directory / "segments")
        return
    with subprocess.Popen(
        [sys.executable, S3_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        yield f"s3://key:secret@bucket/segments?region=us-east-1&scheme=http&endpoint_override={address}"
        server.kill()


def run_channel(given: argparse.Namespace, directory: Path, rng: random.Random) -> Outcome:
    """Run in mode channel."""
    with start_nsqd(given.nsqd) as nsqd, segment_directory(given.storage, directory) as segments:
        return run(nsqd, directory, given.master, given.messages, given.kills, rng, segments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--nsqd", choices=["go", "nsqx"], default="nsqx")
    parser.add_argument("--master", choices=KINDS, default=LOCAL)
    parser.add_argument("--storage", choices=["local", "s3"], default="local")
    parser.add_argument("--mode", choices=["channel", "log"], default="channel")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    what = f"{given.messages} messages, {given.kills} kills, {given.nsqd} nsqd, {given.master}, mode {given.mode}"
    what += f", seed {given.seed}"
    print(what, flush=True)
    directory = Path(tempfile.mkdtemp(prefix="kill-spark-"))
    # SIGTERM must also end the processes that this program has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began_s = time.monotonic()
    try:
        rng = random.Random(given.seed)
        if given.mode == "log":
            outcome = run_log(directory, given.master, given.messages, given.kills, rng)
        else:
            outcome = run_channel(given, directory, rng)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    problems = outcome.problems(given.messages, is_cluster=given.master != LOCAL)
    print(f"pyarrow reads {sum(outcome.values.values())} rows, Spark {outcome.verified}")
    print("; ".join(problems) or "0 missing, 0 repeated", f"{time.monotonic() - began_s:.0f} s", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
