"""The soak test: one nsqd, thousands of misbehaving clients, pauses and restarts. Every message is accounted for.

    python tests/soak/run.py [--minutes 10] [--connections 5000] [--rate 1000] [--kill] [--json FILE]

The exit code is 1 if a message is lost or changed, if the log has a traceback, or if memory grows. With --kill nsqd is
restarted by kill -9. It then runs with --mem-queue-size=0 --sync-every=1, because only messages on disk survive.
Messages of DPUB are in memory until they are due, so they may be lost then and are counted separately.
"""

import argparse
import json
import multiprocessing
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "fuzz")]

from accounts import Accounts, Balance, balance  # noqa: E402
from bombardment import trouble_in  # noqa: E402
from client_group import Counts, Plan, run_client_group  # noqa: E402

from daemons import Daemon, start_nsqd  # noqa: E402

TOPICS, CHANNELS = 10, 3
PROCESSES = 2
PRODUCER_SHARE = 0.1
LIFETIME_S = 120.0
# Publishing pauses while nsqd holds more messages than this.
MAX_BACKLOG = 20_000
RAMP_S, RAMP_SHARE = 60.0, 0.95
WARM_UP_S = 60.0
SAMPLE_S = 1.0
DRAIN_S = 240.0
STOP_S = 90.0
# All restarts are in the first half, so that the memory of the last process can be observed for long enough.
RESTARTS_AT = (0.12, 0.22, 0.32, 0.42)
MIN_WINDOW_S = 120.0
MAX_GROWTH_MIB, MAX_GROWTH_SHARE = 24.0, 0.10


@dataclass
class Figures:
    """The results of a soak test."""

    minutes: float
    connections: int = 0
    connects: int = 0
    breaks: int = 0
    restarts: int = 0
    pauses: int = 0
    mib_sent: float = 0.0
    balance: Balance = field(default_factory=Balance)
    requeued: int = 0
    left_to_time_out: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    tracebacks: list[str] = field(default_factory=list)
    client_failures: list[str] = field(default_factory=list)
    stop_s: list[float] = field(default_factory=list)
    left_in_nsqd: int = 0
    is_killed: bool = False
    rss_mib: list[tuple[float, float]] = field(default_factory=list)
    rss_window_s: float = 0.0
    rss_first_mib: float = 0.0
    rss_last_mib: float = 0.0
    rss_most_mib: float = 0.0
    rss_slope_mib_per_min: float = 0.0

    @property
    def is_flat(self) -> bool:
        """True if memory does not grow after the warm-up, or if the run was too short to tell."""
        growth_mib = self.rss_last_mib - self.rss_first_mib
        return self.rss_window_s < MIN_WINDOW_S or growth_mib < max(
            MAX_GROWTH_MIB, MAX_GROWTH_SHARE * self.rss_first_mib
        )

    @property
    def is_good(self) -> bool:
        totals = self.balance
        deferred_lost = 0 if self.is_killed else totals.deferred_lost
        bad = (
            totals.lost
            or deferred_lost
            or totals.foreign
            or self.tracebacks
            or self.client_failures
            or self.left_in_nsqd
        )
        return not bad and self.is_flat


class Soak:
    """One nsqd with its restarts, and the processes with its clients."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._connections = arguments.connections
        self._rate = arguments.rate
        self._duration_s = arguments.minutes * 60
        self._is_killed = arguments.kill
        self._random = random.Random(arguments.seed)
        self._seed = arguments.seed
        self._directory = tempfile.mkdtemp(prefix="soak-")
        self._tcp_port, self._http_port = _unassigned_port(), _unassigned_port()
        self._share = multiprocessing.get_context("spawn").Value("d", 1.0)
        self._started_s = time.monotonic()
        self._process_began_s = 0.0
        self._paused: list[tuple[float, str, dict[str, str]]] = []
        self._logs: list[str] = []
        self.figures = Figures(arguments.minutes, is_killed=arguments.kill)
        self.daemon = self._start()

    def run(self) -> Figures:
        """Run from the first client to the last message and return the results."""
        client_processes = []
        try:
            for topic in range(TOPICS):
                self.daemon.post("/topic/create", topic=f"soak{topic}")
                for channel in range(CHANNELS):
                    self.daemon.post("/channel/create", topic=f"soak{topic}", channel=f"ch{channel}")
            client_processes = [self._start_clients(origin) for origin in range(PROCESSES)]
            self._await_clients(client_processes)
            self._pause_and_restart()
            for _, pipe in client_processes:
                pipe.send("drain")
            self._drain()
            self._settle_accounts(client_processes)
        finally:
            for process, _ in client_processes:
                process.kill()
            self._logs.append(self.daemon.log)
            self.daemon.stop(timeout_s=STOP_S)
            shutil.rmtree(self._directory, ignore_errors=True)
        self.figures.tracebacks = [line for log in self._logs for line in trouble_in(log)]
        self._judge_memory()
        return self.figures

    def _start(self) -> Daemon:
        flags = ["--mem-queue-size=0", "--sync-every=1"] if self._is_killed else ["--mem-queue-size=500"]
        daemon = start_nsqd(
            "nsqx",
            f"--tcp-address=127.0.0.1:{self._tcp_port}",
            f"--http-address=127.0.0.1:{self._http_port}",
            "--max-msg-timeout=5m",
            *flags,
            data_path=self._directory,
        )
        daemon.request("PUT", "/config/log_level", b"warn")
        self._process_began_s = time.monotonic()
        return daemon

    def _start_clients(self, origin: int) -> tuple[Any, Any]:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        clients = self._connections // PROCESSES
        producers = max(TOPICS, int(clients * PRODUCER_SHARE))
        plan = Plan(
            origin,
            self._tcp_port,
            TOPICS,
            CHANNELS,
            producers,
            clients - producers,
            self._rate / PROCESSES,
            LIFETIME_S,
            10_000 if self._duration_s >= 60 else 3_000,
            self._seed + origin,
        )
        process = context.Process(target=run_client_group, args=(plan, self._share, there))
        process.start()
        return process, here

    def _await_clients(self, client_processes: list[tuple[Any, Any]]) -> None:
        """Wait until nearly all clients are connected; the duration counts from then on."""
        deadline_s = time.monotonic() + RAMP_S
        while time.monotonic() < deadline_s:
            for _, pipe in client_processes:
                pipe.send("count")
            if sum(pipe.recv().connected for _, pipe in client_processes) >= RAMP_SHARE * self._connections:
                break
            time.sleep(0.2)
        self._started_s = time.monotonic()

    def _pause_and_restart(self) -> None:
        """Pause topics and channels, restart nsqd, and sample its memory."""
        restarts = [self._started_s + share * self._duration_s for share in RESTARTS_AT]
        end_s = self._started_s + self._duration_s
        next_sample_s = next_pause_s = time.monotonic()
        while (now_s := time.monotonic()) < end_s or restarts:
            if restarts and now_s >= restarts[0]:
                self._restart()
                # The time of a restart does not count.
                taken_s = time.monotonic() - now_s
                restarts = [when_s + taken_s for when_s in restarts[1:]]
                end_s += taken_s
            if now_s >= next_sample_s:
                next_sample_s = now_s + SAMPLE_S
                self._sample()
            if now_s >= next_pause_s:
                next_pause_s = now_s + self._random.uniform(1.0, 4.0)
                self._pause_something()
            self._unpause(now_s)
            time.sleep(0.1)
        self._unpause(float("inf"))

    def _restart(self) -> None:
        began_s = time.monotonic()
        if self._is_killed:
            self.daemon.process.send_signal(signal.SIGKILL)
            self.daemon.kill()
        else:
            self.daemon.stop(timeout_s=STOP_S)
            self.figures.stop_s.append(round(time.monotonic() - began_s, 2))
        self._logs.append(self.daemon.log)
        self.daemon = self._start()
        self.figures.restarts += 1

    def _pause_something(self) -> None:
        query = {"topic": f"soak{self._random.randrange(TOPICS)}"}
        kind = "topic"
        if self._random.random() < 0.7:
            kind = "channel"
            query["channel"] = f"ch{self._random.randrange(CHANNELS)}"
        self.daemon.post(f"/{kind}/pause", **query)
        self.figures.pauses += 1
        self._paused.append((time.monotonic() + self._random.uniform(0.5, 4.0), kind, query))

    def _unpause(self, now_s: float) -> None:
        for entry in [entry for entry in self._paused if entry[0] <= now_s]:
            self._paused.remove(entry)
            self.daemon.post(f"/{entry[1]}/unpause", **entry[2])

    def _sample(self) -> None:
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        rss_mib = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        self.figures.rss_mib.append((round(time.monotonic() - self._process_began_s, 1), round(rss_mib, 1)))
        self._share.value = 0.0 if sum(self._message_counts()) > MAX_BACKLOG else 1.0

    def _message_counts(self) -> tuple[int, int, int]:
        """Return how many messages wait, are in flight, and are deferred."""
        topics = self.daemon.stats(include_clients="false", include_mem="false")["topics"]
        channels = [channel for topic in topics for channel in topic["channels"]]
        return (
            sum(entry["depth"] for entry in [*topics, *channels]),
            sum(channel["in_flight_count"] for channel in channels),
            sum(channel["deferred_count"] for channel in channels),
        )

    def _drain(self) -> None:
        deadline_s = time.monotonic() + DRAIN_S
        while (left := self._message_counts()) != (0, 0, 0) and time.monotonic() < deadline_s:
            time.sleep(0.5)
        self.figures.left_in_nsqd = sum(left)

    def _settle_accounts(self, client_processes: list[tuple[Any, Any]]) -> None:
        total = Accounts()
        for process, pipe in client_processes:
            pipe.send("end")
            accounts, counts = pipe.recv()
            process.join()
            total.merge(accounts)
            self._add(counts)
        self.figures.balance = balance(total, CHANNELS)
        self.figures.mib_sent = round(total.sent_bytes / (1 << 20), 1)

    def _add(self, counts: Counts) -> None:
        figures = self.figures
        figures.connections += counts.most_connected
        figures.connects += counts.connects
        figures.breaks += counts.breaks
        figures.requeued += counts.requeued
        figures.left_to_time_out += counts.left_to_time_out
        figures.client_failures += counts.failures
        for code, count in counts.refusals.items():
            figures.refusals[code] = figures.refusals.get(code, 0) + count

    def _judge_memory(self) -> None:
        """Compare the first and last third of the last process's samples after its warm-up; compute the slope."""
        figures = self.figures
        figures.rss_most_mib = max((mib for _, mib in figures.rss_mib), default=0.0)
        last_process: list[tuple[float, float]] = []
        for sample in figures.rss_mib:
            if last_process and sample[0] < last_process[-1][0]:
                last_process = []
            last_process.append(sample)
        window = [sample for sample in last_process if sample[0] >= WARM_UP_S]
        if len(window) < 3:
            return
        third = len(window) // 3
        figures.rss_window_s = window[-1][0] - window[0][0]
        figures.rss_first_mib = round(sum(mib for _, mib in window[:third]) / third, 1)
        figures.rss_last_mib = round(sum(mib for _, mib in window[-third:]) / third, 1)
        figures.rss_slope_mib_per_min = round(_slope(window) * 60, 3)


def _slope(points: list[tuple[float, float]]) -> float:
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def _unassigned_port() -> int:
    """Return a free port outside of the range for clients, so that no client takes it while nsqd is down."""
    while True:
        port = random.randint(20_000, 30_000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def show(figures: Figures) -> None:
    """Print the results as a table."""
    totals = figures.balance
    rows = {
        "minutes": figures.minutes,
        "connections at once": figures.connections,
        "connections made, closed by clients": f"{figures.connects}, {figures.breaks}",
        "restarts": f"{figures.restarts} (stops took {figures.stop_s} s)" if figures.stop_s else figures.restarts,
        "pauses of topics and channels": figures.pauses,
        "messages sent, MiB": f"{totals.sent}, {figures.mib_sent}",
        "acknowledged": totals.acked,
        "deliveries": totals.deliveries,
        "requeued, left to time out": f"{figures.requeued}, {figures.left_to_time_out}",
        "LOST": totals.lost,
        "lost messages of DPUB": totals.deferred_lost,
        "changed": totals.foreign,
        "delivered more than once": totals.duplicated,
        "left in nsqd at the end": figures.left_in_nsqd,
        "tracebacks": len(figures.tracebacks),
        "maximum memory, MiB": figures.rss_most_mib,
        "memory of the last process after warm-up, MiB": f"{figures.rss_first_mib}, at the end {figures.rss_last_mib}",
        "slope, MiB per minute": f"{figures.rss_slope_mib_per_min} over {figures.rss_window_s:.0f} s",
        "refusals": figures.refusals,
        "verdict": "good" if figures.is_good else "NOT GOOD",
    }
    print("| figure | |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")
    for line in [*figures.tracebacks[:5], *figures.client_failures[:5]]:
        print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description="Load one nsqd and account for every message.")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration (default 10)")
    parser.add_argument("--connections", type=int, default=5000, help="clients at once (default 5000)")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages published per second (default 1000)")
    parser.add_argument("--kill", action="store_true", help="restart by kill -9")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < arguments.connections + 500:
        print(f"{arguments.connections} connections need as many open files; the limit is {hard}: raise `ulimit -Hn`")
        return 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures = Soak(arguments).run()
    show(figures)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(asdict(figures), indent=1))
    return 0 if figures.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
