"""Kills drivers, executors and nsqds while Spark copies a topic with the exactly-once sink, and counts its messages.

    python tests/faults/kill_sink.py [--messages 1000000] [--kills 9] [--nsqds 2] [--master local-cluster]
                                     [--mode log] [--seed N]

Numbered messages are published to one nsqd. Spark copies them to a topic on several nsqds. Drivers, executors and nsqds
are killed with SIGKILL and started again. At the end the logs of the output topic must have every number once; the exit
code is 0 then.
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
from contextlib import ExitStack, closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spark_cluster import KINDS, LOCAL, executor_pids, spark_master

from daemons import start_nsqd
from nsqx.queues.log.stored import StoredLogs

INPUT, OUTPUT, CHANNEL = "input", "output", "spark"
VICTIMS = ("driver", "executor", "nsqd")
BATCH = 5000
END_TIMEOUT_S = 900.0


class SinkDriver:
    """A driver process, in a process group with everything that it starts."""

    def __init__(self, directory: Path, master: str, source: dict[str, str], sink: dict[str, str], number: int) -> None:
        program = Path(__file__).with_name("sink_driver.py")
        options = (json.dumps(source), json.dumps(sink), str(2 + number % 2))
        self.batches = 0
        self.failures: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(directory), master, *options],
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
            word, _, rest = line.strip().partition(" ")
            if word == "batch":
                self.batches += 1
            elif word == "failed":
                self.failures.append(rest)

    def wait_for_batches(self, count: int, timeout_s: float = 300.0) -> None:
        until_s = time.monotonic() + timeout_s
        while self.batches < count:
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the driver made {self.batches} batches of {count}: {self.failures}")
            time.sleep(0.02)

    def close(self) -> None:
        """Kill all of its processes that still run."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join()


class KilledNsqd:
    """An nsqd that is started again on the same ports and files after each kill."""

    def __init__(self, data_path: Path) -> None:
        data_path.mkdir()
        self.data_path = data_path
        # Small files, so that checkpoints and new segments happen all the time.
        self._flags = ["--store=log", "--commit-bytes=4194304", "--max-bytes-per-file=4194304", "--log-retain-age=24h"]
        self.daemon = start_nsqd("nsqx", *self._flags, data_path=data_path)
        self._flags += [f"--tcp-address={self.daemon.tcp_address}", f"--http-address={self.daemon.http_address}"]

    @property
    def address(self) -> str:
        return self.daemon.tcp_address

    def kill(self) -> None:
        self.daemon.kill()
        self.daemon = start_nsqd("nsqx", *self._flags, data_path=self.data_path)

    def close(self) -> None:
        self.daemon.close()


class RepeatingPublisher:
    """Publishes numbers, each once: an nsqd that is killed meanwhile knows which batches it has."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._next = 0
        self._thread: threading.Thread | None = None

    def publish(self, count: int) -> None:
        """Start to publish the next ``count`` numbers, after the earlier ones."""
        self.wait()
        start, self._next = self._next, self._next + count
        self._thread = threading.Thread(target=self._run, args=(start, self._next))
        self._thread.start()

    def _run(self, first: int, last: int) -> None:
        for start in range(first, last, BATCH):
            self._publish_once(start, [b"%d" % number for number in range(start, min(start + BATCH, last))])
            time.sleep(0.1)  # slowly, so that processes are killed meanwhile

    def _publish_once(self, start: int, messages: list[bytes]) -> None:
        body = b"\n".join(messages)
        until_s = time.monotonic() + END_TIMEOUT_S
        while True:
            try:
                if self._daemon_answers(start, body):
                    return
            except OSError:
                pass
            if time.monotonic() > until_s:
                raise RuntimeError("nsqd does not take messages")
            time.sleep(0.1)

    def _daemon_answers(self, start: int, body: bytes) -> bool:

        connection = http.client.HTTPConnection(self._address, timeout=30)
        try:
            connection.request("POST", f"/mpub?topic={INPUT}&producer=publisher&seq={start + 1}", body)
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()


def stored_numbers(paths: list[Path]) -> Iterator[int]:
    """Yield the numbers in the logs of the output topic; no nsqd may use the directories."""
    for path in paths:
        for log in StoredLogs(str(path)).logs:
            if log.topic == OUTPUT:
                for message in log.messages(log.first):
                    yield int(message.body)


def output_count(nsqds: list[KilledNsqd]) -> int:
    """Return the number of messages in the output topic; 0 while an nsqd does not answer."""
    count = 0
    for nsqd in nsqds:
        for topic in nsqd.daemon.stats(topic=OUTPUT)["topics"] or []:
            count += topic["log"]["end"] - topic["log"]["first"]
    return count


def run(given: argparse.Namespace, directory: Path, rng: random.Random) -> Counter[int]:
    """Publish, kill, and let the last driver process the rest; return how often each number is stored."""
    with ExitStack() as stack:
        nsqds = [stack.enter_context(closing(KilledNsqd(directory / f"nsqd-{n}"))) for n in range(given.nsqds)]
        source_nsqd = nsqds[0]
        source_nsqd.daemon.post("/topic/create", topic=INPUT)
        source_nsqd.daemon.post("/channel/create", topic=INPUT, channel=CHANNEL)
        source = {
            "nsq.nsqd": source_nsqd.address,
            "subscribe": INPUT,
            "channel": CHANNEL,
            "mode": given.mode,
            "maxOffsetsPerTrigger": str(max(500, given.messages // 60)),
        }
        if given.mode == "channel":
            source |= {"segmentDir": str(directory / "segments"), "segmentDirIsShared": "true", "nsq.msg_timeout": "5s"}
        sink = {"nsq.nsqd": ",".join(nsqd.address for nsqd in nsqds), "topic": OUTPUT, "maxRequestBytes": "100000"}
        publisher = RepeatingPublisher(source_nsqd.daemon.http_address)
        with spark_master(given.master, directory) as master:
            driver = stack.enter_context(closing(SinkDriver(directory, master, source, sink, 0)))
            order = [VICTIMS[number % len(VICTIMS)] for number in range(given.kills)]
            rng.shuffle(order)
            for number, victim in enumerate(order):
                publisher.publish(given.messages // (given.kills + 1))
                driver.wait_for_batches(driver.batches + 1)
                time.sleep(rng.uniform(0.0, given.pause_s))
                print(f"kill {number + 1}: {victim}, after {driver.batches} batches", flush=True)
                if victim == "driver":
                    driver.close()
                    driver = stack.enter_context(closing(SinkDriver(directory, master, source, sink, number + 1)))
                elif victim == "executor":
                    os.kill(rng.choice(executor_pids(os.getpid())), signal.SIGKILL)
                else:
                    rng.choice(nsqds).kill()
            publisher.publish(given.messages - given.kills * (given.messages // (given.kills + 1)))
            publisher.wait()
            wait_for_output(nsqds, driver, given.messages)
            driver.close()
        numbers = [nsqd.daemon.stats().get("transactions") for nsqd in nsqds]
        print(f"transactions since the last start of each nsqd: {numbers}", flush=True)
        for nsqd in nsqds:
            nsqd.daemon.stop()
        return Counter(stored_numbers([nsqd.data_path for nsqd in nsqds]))


def wait_for_output(nsqds: list[KilledNsqd], driver: SinkDriver, count: int) -> None:
    """Wait until the output has at least so many messages, and then for one more batch or a moment without one."""
    until_s = time.monotonic() + END_TIMEOUT_S
    while output_count(nsqds) < count:
        if time.monotonic() > until_s:
            raise RuntimeError(f"{output_count(nsqds)} messages of {count} were copied: {driver.failures}")
        time.sleep(0.5)
    time.sleep(3.0)  # a repeated batch would be stored now


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=9)
    parser.add_argument("--nsqds", type=int, default=2)
    parser.add_argument("--master", choices=KINDS, default=LOCAL)
    parser.add_argument("--mode", choices=["log", "channel"], default="log")
    parser.add_argument("--pause-s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    where = f"{given.nsqds} nsqds, {given.master}, mode {given.mode}"
    print(f"{given.messages} messages, {given.kills} kills, {where}, seed {given.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="kill-sink-"))
    # SIGTERM must also end the processes that this program has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began_s = time.monotonic()
    try:
        found = run(given, directory, random.Random(given.seed))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    missing = sum(number not in found for number in range(given.messages))
    repeated = sum(times - 1 for times in found.values())
    print(f"{missing} missing, {repeated} repeated, {time.monotonic() - began_s:.0f} s", flush=True)
    return 1 if missing or repeated else 0


if __name__ == "__main__":
    sys.exit(main())
