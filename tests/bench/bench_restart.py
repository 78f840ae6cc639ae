"""Measures the start of an nsqd after kill -9 with a large backlog in one channel.

    python tests/bench/bench_restart.py [--gigabytes 1] [--size 4096] [--go interop/bin/nsqd] [--rounds 3]

The brokers are nsqx with --store=log and, if its program exists, Go's nsqd with --mem-queue-size=0. Each in turn gets
an empty data directory, is filled with MPUBs and is killed at once. The line "first" is the start after that. Then it
is killed and started ``--rounds`` times, each time after the first delivery. The lines "cold" are the same after the
files were dropped from the page cache, as if the machine had been restarted. The directory is deleted before the next
broker starts.

- empty: seconds from the start of the process to the first OK of /ping, with an empty directory.
- ping: the same with the backlog.
- first delivery: seconds from the start of the process to the first message of a consumer with RDY 1.
- RSS: resident memory in MiB after that delivery, and the largest since the start.
- depth: messages of the channel after the start; published: messages that were acknowledged before the kill.

The program prints medians and asserts nothing. Filling needs as much disk space as the backlog, and Go's nsqd a little
more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.peers.process import free_port  # noqa: E402
from nsqx.bench.brokers import end_process  # noqa: E402
from nsqx.bench.protocols import (  # noqa: E402
    NSQConsume,
    NSQProtocol,
    connect,
    encode_publish_many,
    introduce,
    receive_frame,
)

TOPIC, CHANNEL = "backlog", "ch"
BATCH_BYTES = 4 << 20
PUBLISHERS = 4
START_TIMEOUT_S = 600.0
GO_NSQD = Path(__file__).resolve().parents[2] / "interop/bin/nsqd"


class Nsqd:
    """One nsqd with a data directory, started and killed several times."""

    def __init__(self, name: str, command: Sequence[str], directory: str) -> None:
        self.name = name
        self.directory = directory
        self.http = f"127.0.0.1:{free_port()}"
        self.tcp = f"127.0.0.1:{free_port()}"
        flags = [f"--tcp-address={self.tcp}", f"--http-address={self.http}", "--broadcast-address=127.0.0.1"]
        self._command = [*command, *flags, f"--data-path={directory}"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the process; return the seconds until /ping answers."""
        start_s = time.monotonic()
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, start_new_session=True)
        while time.monotonic() < start_s + START_TIMEOUT_S:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with code {self._process.returncode}")
            try:
                if self._get("/ping") == b"OK":
                    return time.monotonic() - start_s
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(0.002)
        raise RuntimeError(f"{self.name} did not start within {START_TIMEOUT_S:.0f} s")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            end_process(self._process)
            self._process = None

    def _get(self, target: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.http}{target}", timeout=60) as answer:
            content: bytes = answer.read()
            return content

    def depths(self) -> tuple[int, int]:
        """Return the depth of the topic and that of the channel, with the messages in flight."""
        (topic,) = json.loads(self._get(f"/stats?format=json&topic={TOPIC}&include_clients=false"))["topics"]
        (channel,) = topic["channels"]
        return topic["depth"], channel["depth"] + channel["in_flight_count"]

    def cpu_s(self) -> float:
        """Return the processor time of the process so far."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> tuple[float, float]:
        """Return the resident memory of the process and the largest so far, in MiB."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines)
        now, peak = (int(values[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
        return now, peak


def fill(nsqd: Nsqd, gigabytes: float, size: int) -> int:
    """Publish until the backlog has ``gigabytes``; return the number of acknowledged messages."""
    NSQProtocol().make_queue(nsqd.tcp, TOPIC, CHANNEL)
    count = max(BATCH_BYTES // (size + 4), 1)
    request = encode_publish_many(TOPIC, [os.urandom(size)] * count)
    batches = max(round(gigabytes * 1e9 / (count * size)), 1)
    published = [0] * PUBLISHERS
    errors: list[BaseException] = []

    def publish(number: int) -> None:
        try:
            with connect(nsqd.tcp) as link:
                link.settimeout(60)
                introduce(link, heartbeat_ms=-1)
                for _ in range(number, batches, PUBLISHERS):
                    link.sendall(request)
                    receive_frame(link)
                    published[number] += count
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(PUBLISHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(published)


def wait_until_moved(nsqd: Nsqd, count: int) -> None:
    """Wait until all messages are in the channel: Go's nsqd copies them from the topic's disk queue."""
    while nsqd.depths() != (0, count):
        time.sleep(0.2)


def drop_from_page_cache(directory: str) -> None:
    """Write the files to the disk and drop them from the page cache."""
    for path in Path(directory).rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def first_delivery(nsqd: Nsqd) -> None:
    """Wait for one message of the channel, and leave it in flight."""
    consumer = NSQConsume(TOPIC, CHANNEL, 1)
    with connect(nsqd.tcp) as link:
        link.settimeout(START_TIMEOUT_S)
        consumer.greet(link)
        link.sendall(consumer.begin())
        receive_frame(link)


def measure(nsqd: Nsqd, arguments: argparse.Namespace) -> list[list[str]]:
    """Fill one nsqd and restart it; return its rows of the table."""
    empty_s = nsqd.start()
    start_s = time.monotonic()
    count = fill(nsqd, arguments.gigabytes, arguments.size)
    wait_until_moved(nsqd, count)
    print(f"{nsqd.name}: {count:,} messages in {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
    start = [f"{empty_s:.2f}", f"{count:,}"]
    return [
        [f"{nsqd.name}, first", *start, *restart(nsqd, 1, is_cold=False)],
        [nsqd.name, *start, *restart(nsqd, arguments.rounds, is_cold=False)],
        [f"{nsqd.name}, cold", *start, *restart(nsqd, arguments.rounds, is_cold=True)],
    ]


def restart(nsqd: Nsqd, rounds: int, *, is_cold: bool) -> list[str]:
    """Kill and start an nsqd several times; return the medians."""
    figures: list[tuple[float, ...]] = []
    for _ in range(rounds):
        nsqd.kill()
        if is_cold:
            drop_from_page_cache(nsqd.directory)
        start_s = time.monotonic()
        ping_s = nsqd.start()
        first_delivery(nsqd)
        delivery_s = time.monotonic() - start_s
        figures.append((ping_s, delivery_s, *nsqd.memory_mib(), sum(nsqd.depths())))
        print(f"{nsqd.name}: {', '.join(f'{figure:.2f}' for figure in figures[-1])}", file=sys.stderr, flush=True)
    ping_s, delivery_s, memory, peak, depth = map(statistics.median, zip(*figures, strict=True))
    return [f"{ping_s:.2f}", f"{delivery_s:.2f}", f"{memory:.0f}", f"{peak:.0f}", f"{depth:,.0f}"]


def main() -> None:
    """Measure the brokers one after the other and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the backlog")
    parser.add_argument("--size", type=int, default=4096, help="bytes per message")
    parser.add_argument("--rounds", type=int, default=3, help="number of restarts, with and without the page cache")
    parser.add_argument("--go", type=Path, default=GO_NSQD, help="program of Go's nsqd; skipped if it does not exist")
    parser.add_argument("--directory", help="where the data directories are created")
    arguments = parser.parse_args()
    own = [sys.executable, "-m", "nsqx.cli.main", "nsqd", "--store=log", "--durability=write"]
    commands = {"nsqx log": own}
    if arguments.go.is_file():
        commands["Go nsqd"] = [str(arguments.go), "--mem-queue-size=0"]
    rows = [["", "empty, s", "published", "ping, s", "first delivery, s", "RSS, MiB", "peak, MiB", "depth"]]
    for name, command in commands.items():
        directory = tempfile.mkdtemp(prefix="nsqx-restart-", dir=arguments.directory)
        nsqd = Nsqd(name, command, directory)
        try:
            rows += measure(nsqd, arguments)
        finally:
            nsqd.kill()
            shutil.rmtree(directory)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main()
