"""Compares this client library with third-party clients on one nsqd. Prints medians and ratios, asserts nothing.

      python tests/bench/compare_clients.py [--nsqd go|nsqx] [--rounds 3] [--messages 100000] [--python PATH]

Each client runs in its own process with one connection. A rate may be limited by nsqd and not by the client; the cost
of the client is its CPU time per message. The rates of Go's programs bench_writer and bench_reader (one core, so also
one connection) show the limit of nsqd. Results depend on the machine and its load.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from daemons import GO_PROGRAMS, Daemon, has_go, start_nsqd  # noqa: E402

TASKS = ("publish", "publish_many", "consume")
CLIENTS = ("pynsq", "gnsq", "ansq", "nsqx")
VARIANTS = {"publish": ("batching",), "consume": ("coroutine", "iterate")}
PACKAGES = {"pynsq": "nsq", "gnsq": "gnsq", "ansq": "ansq", "nsqx": "nsqx"}
SIZE = 200
RUN_FOR = "2s"
TIMEOUT_S = 300
_RATE = re.compile(r"([\d.]+)ops/s")


def has_package(python: str, package: str) -> bool:
    """Return True if that Python interpreter can import the package."""
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


def fill(daemon: Daemon, topic: str, count: int) -> None:
    """Publish messages to a channel."""
    daemon.post("/topic/create", topic=topic)
    daemon.post("/channel/create", topic=topic, channel="ch")
    command = [sys.executable, str(HERE / "clients" / "with_nsqx.py"), "publish_many"]
    subprocess.run([*command, daemon.tcp_address, topic, str(count), str(SIZE)], check=True, capture_output=True)


def measure(python: str, client: str, task: str, variant: str, implementation: str, count: int) -> tuple[float, float]:
    """Run one task of one client on a new nsqd. Return messages per second and CPU microseconds per message."""
    with start_nsqd(implementation, "--mem-queue-size=10000000") as daemon:
        if task == "consume":
            fill(daemon, "bench", count)
        program = [python, str(HERE / "clients" / f"with_{client}.py"), task]
        command = [*program, daemon.tcp_address, "bench", str(count), str(SIZE), *filter(None, [variant])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode or not done.stdout.strip():
            raise SystemExit(f"{command} failed:\n{done.stderr}")
        elapsed_s, processor_s = map(float, done.stdout.split()[:2])
        return count / elapsed_s, processor_s / count * 1e6


def go_rate(task: str, implementation: str, count: int) -> float:
    """Return the messages per second of Go's benchmark program for the task."""
    with start_nsqd(implementation, "--mem-queue-size=10000000") as daemon:
        if task == "consume":
            fill(daemon, "bench", count * 20)
            command = [str(GO_PROGRAMS / "bench_reader"), "--rdy=2500", "--runfor=500ms"]
        else:
            batch = 1 if task == "publish" else 200
            command = [str(GO_PROGRAMS / "bench_writer"), f"--batch-size={batch}", f"--runfor={RUN_FOR}"]
        command += [f"--nsqd-tcp-address={daemon.tcp_address}", "--topic=bench", f"--size={SIZE}"]
        environment = {**os.environ, "GOMAXPROCS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=environment)
        return float(_RATE.findall(done.stderr + done.stdout)[-1])


def compare(
    task: str, contenders: list[tuple[str, str]], pythons: dict[str, str], arguments: argparse.Namespace
) -> None:
    """Measure one task with every client in turn, and print the medians."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {contender: [] for contender in contenders}
    go_rates: list[float] = []
    for _ in range(arguments.rounds):
        for client, variant in contenders:
            outcome = measure(pythons[client], client, task, variant, arguments.nsqd, arguments.messages)
            found[client, variant].append(outcome)
        if has_go():
            go_rates.append(go_rate(task, arguments.nsqd, arguments.messages))
    medians = {each: [statistics.median(column) for column in zip(*found[each], strict=True)] for each in contenders}
    our_rate, our_cost = medians["nsqx", ""]
    for (client, variant), (rate, cost) in medians.items():
        name = f"{client} {variant}".strip()
        ratios = f"({our_rate / rate:.1f}x)", f"({cost / our_cost:.1f}x)"
        print(f"{task:14} {name:20} {rate:12,.0f} {ratios[0]:>9} {cost:14.2f} {ratios[1]:>9}", flush=True)
    if go_rates:
        rate = statistics.median(go_rates)
        print(f"{task:14} {'Go bench program':20} {rate:12,.0f} {f'({our_rate / rate:.1f}x)':>9}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nsqd", choices=["go", "nsqx"], default="nsqx")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--python", default=sys.executable, help="the Python that has the other clients")
    arguments = parser.parse_args()
    pythons = {client: sys.executable if client == "nsqx" else arguments.python for client in CLIENTS}
    clients = [client for client in CLIENTS if has_package(pythons[client], PACKAGES[client])]
    for missing in sorted(set(CLIENTS) - set(clients)):
        print(f'{missing} missing: pip install "nsqx[peers]"', file=sys.stderr)
    print(f"nsqd: {arguments.nsqd}; medians of {arguments.rounds}; in brackets how many times better nsqx is")
    print(f"{'task':14} {'client':20} {'messages/s':>12} {'':9} {'CPU us/message':>14}")
    for task in TASKS:
        contenders = [*((client, "") for client in clients), *(("nsqx", each) for each in VARIANTS.get(task, ()))]
        compare(task, contenders, pythons, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
