"""Compares the log store of nsqx with Go's nsqd, NATS JetStream and Redis Streams, each at two levels of durability.

      python tests/bench/compare_durability.py [WORKLOAD...] [--rounds 3] [--seconds 1.5] [--markdown FILE]

nsqd is that of the installed package. The other programs are found in interop/bin and on the path; ``--go``, ``--nats``
and ``--redis`` name them otherwise. A program that does not exist is skipped, with a line that says so.

    nsqx fsync, nsqx write    --store=log with each --durability
    nsqx memory, Go memory    the classic store with a memory queue that holds everything
    Go sync                   Go's nsqd with --mem-queue-size=0 --sync-every=1
    JetStream always          streams in files, sync_interval: always; needs NATS 2.10
    JetStream                 streams in files, synced by the server's default
    Redis always, everysec    Redis Streams with an append-only file and this appendfsync

    mpub-2, sub-2             MPUB of 200 messages on 2 connections; then consumed by 2 consumers
    mpub-16                   MPUB of 200 messages on 16 connections
    pub-2, pub-50             one message at a time on 2 and on 50 connections
    fan-10                    one topic with ten consumed channels: deliveries

Where a protocol has no batches, 200 publishes are pipelined. The loads are those of ``nsqx bench``, and nsqds and peers
acknowledge every publish and every delivery. The clients of NATS and Redis are plain Python, so in sub-2 and fan-10
they may be slower than the broker: compare the CPU time too.

The brokers take turns in every round, each round in another order, and each run has a new broker with an empty
directory. The table has medians, and the ratio of each of the two log levels to the broker of the line.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.peers.nats import knows_sync_interval, nats_launcher  # noqa: E402
from bench.peers.redis import redis_launcher  # noqa: E402
from nsqx.bench.brokers import Launcher, Target, other_nsqd, own_nsqd  # noqa: E402
from nsqx.bench.failure import BenchFailed  # noqa: E402
from nsqx.bench.loads import Limits, batches, batches_then_drain, fan_out, one_by_one  # noqa: E402

if TYPE_CHECKING:
    from nsqx.bench.figures import Figure

GO_NSQD = Path(__file__).resolve().parents[2] / "interop/bin/nsqd"
FSYNC, WRITE = "nsqx fsync", "nsqx write"

WORKLOADS: dict[str, Callable[[Target, Limits], list[Figure]]] = {
    "mpub-2": batches_then_drain("2", 1_000_000),
    "mpub-16": batches(16),
    "pub-2": one_by_one(2),
    "pub-50": one_by_one(50),
    "fan-10": fan_out,
}
# Go's nsqd allocates the whole memory queue of each of the eleven queues of fan-10, so it must not be too large.
IN_MEMORY = ("--mem-queue-size=2000000",)


@dataclass
class Broker:
    """A broker at one level of durability, with its figures by measurement."""

    name: str
    launcher: Launcher
    flags: Sequence[str] = ()
    figures: dict[str, list[Figure]] = field(default_factory=dict)

    def run(self, workload: str, limits: Limits) -> list[Figure]:
        """Run a workload once on a new broker; return its figures. Raises BenchFailed."""
        with self.launcher.launch(self.flags, {}) as running:
            found = WORKLOADS[workload](running.target, limits)
        for figure in found:
            self.figures.setdefault(figure.name, []).append(figure)
        return found

    def rate(self, measurement: str) -> float:
        """Return the median of the messages per second; 0 if no run succeeded."""
        return statistics.median([figure.value for figure in self.figures.get(measurement, [])] or [0.0])

    def cpu_us(self, measurement: str) -> float:
        """Return the median of the microseconds of CPU time per message; 0 if unknown."""
        found = [figure.cpu_us for figure in self.figures.get(measurement, []) if figure.cpu_us is not None]
        return statistics.median(found or [0.0])


def find_brokers(arguments: argparse.Namespace) -> list[Broker]:
    """Return the brokers whose programs exist."""
    root = arguments.directory
    own = own_nsqd(root)
    brokers = [
        Broker(FSYNC, own, ["--store=log", "--durability=fsync"]),
        Broker(WRITE, own, ["--store=log", "--durability=write"]),
        Broker("nsqx memory", own, IN_MEMORY),
    ]
    go = _program("Go nsqd", arguments.go)
    if go is not None:
        launcher = other_nsqd(go, root)
        brokers.append(Broker("Go memory", launcher, IN_MEMORY))
        brokers.append(Broker("Go sync", launcher, ["--mem-queue-size=0", "--sync-every=1"]))
    nats = _program("NATS", arguments.nats)
    if nats is not None:
        if knows_sync_interval(nats):
            brokers.append(Broker("JetStream always", nats_launcher(nats, root, "file", "always")))
        else:
            _report(f"skipped: JetStream always, because {nats} has no sync_interval; use NATS 2.10 or newer")
        brokers.append(Broker("JetStream", nats_launcher(nats, root, "file")))
    redis = _program("Redis", arguments.redis)
    if redis is not None:
        brokers += [Broker(f"Redis {policy}", redis_launcher(redis, root, policy)) for policy in ("always", "everysec")]
    return brokers


def _program(name: str, path: str) -> str | None:
    found = shutil.which(path) or shutil.which(path, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        _report(f"skipped: {name}, because {path} was not found")
    return found


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(brokers: list[Broker], workloads: Sequence[str], rounds: int, limits: Limits) -> None:
    """Run every workload on every broker in each round."""
    for workload in workloads:
        for number in range(rounds):
            start = number * len(brokers) // rounds
            for broker in brokers[start:] + brokers[:start]:
                try:
                    found = broker.run(workload, limits)
                except BenchFailed as error:
                    _report(f"{workload} on {broker.name}: {error}")
                    continue
                shown = ", ".join(f"{figure.name} {figure.value:,.0f}" for figure in found)
                _report(f"round {number + 1}/{rounds}  {broker.name:<17}{shown}")


def table_rows(brokers: list[Broker]) -> list[list[str]]:
    """Return the heads and one row for each measurement and broker."""
    by_name = {broker.name: broker for broker in brokers}
    rows = [["measurement", "broker", "msg/s", "fsync ratio", "write ratio", "CPU us"]]
    for measurement in dict.fromkeys(name for broker in brokers for name in broker.figures):
        for broker in brokers:
            rate = broker.rate(measurement)
            if not rate:
                continue
            ratios = [by_name[name].rate(measurement) / rate for name in (FSYNC, WRITE)]
            cpu_us = broker.cpu_us(measurement)
            rows.append(
                [measurement, broker.name, f"{rate:,.0f}", *(f"{each:.2f}" for each in ratios), f"{cpu_us:.2f}"]
            )
    return rows


def main() -> int:
    """Compare the brokers and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="*", help=f"{', '.join(WORKLOADS)}; all if none is given")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each workload on each broker")
    parser.add_argument("--seconds", type=float, default=1.5, help="longest time of each phase")
    parser.add_argument("--count", type=int, default=0, help="largest number of messages; 0 is the workload's default")
    parser.add_argument("--go", default=str(GO_NSQD), help="program of Go's nsqd")
    parser.add_argument("--nats", default="nats-server", help="program of NATS")
    parser.add_argument("--redis", default="redis-server", help="program of Redis")
    parser.add_argument("--directory", help="where the data directories are created; use a disk, not tmpfs")
    parser.add_argument("--markdown", type=Path, help="write the table as Markdown to this file")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.workload if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown workload {unknown[0]!r}: use {', '.join(WORKLOADS)}")
    start_s = time.monotonic()
    brokers = find_brokers(arguments)
    measure(
        brokers, arguments.workload or list(WORKLOADS), arguments.rounds, Limits(arguments.count, arguments.seconds)
    )
    rows = table_rows(brokers)
    for row in rows:
        print(f"{row[0]:<12}  {row[1]:<17}" + "".join(f"{cell:>12}" for cell in row[2:]))
    print(
        f"{time.monotonic() - start_s:.0f} s, {arguments.rounds} rounds, at most {arguments.seconds} s for each phase"
    )
    if arguments.markdown is not None:
        lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        arguments.markdown.write_text("".join(f"| {' | '.join(cells)} |\n" for cells in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
