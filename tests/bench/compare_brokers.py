"""This broker beside Go's, by Go's own bench programs, alternating; prints medians, spread and their ratio.

      python tests/bench/compare_brokers.py [--rounds 5] [--seconds 3] [workload ...]

Workloads: mem (a memory queue that holds everything), spill (the default one, so most goes over disk), disk (none).
Each is written with MPUBs of 200 messages of 200 bytes, then drained with RDY 2500. pub is PUB by PUB, waiting for
each OK, on one connection per core. Figures belong to the machine and the moment: only ratios within one run mean much.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemons import GO_PROGRAMS, has_go, start_nsqd

MEMORY_FLAGS = {"mem": ["--mem-queue-size=10000000"], "spill": [], "disk": ["--mem-queue-size=0"]}
WORKLOADS = ("mem", "spill", "disk", "pub")
_RATE = re.compile(r"([\d.]+)ops/s")


def measure(program: str, address: str, seconds: float, *flags: str) -> float:
    """Messages per second, as a bench program reports them."""
    command = [
        str(GO_PROGRAMS / program),
        f"--nsqd-tcp-address={address}",
        "--size=200",
        f"--runfor={seconds}s",
        *flags,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True)
    rates = _RATE.findall(done.stderr + done.stdout)
    return float(rates[-1])


def run_once(implementation: str, workload: str, seconds: float) -> dict[str, float]:
    """One round of a workload on a fresh broker."""
    with start_nsqd(implementation, *MEMORY_FLAGS.get(workload, MEMORY_FLAGS["mem"])) as nsqd:
        nsqd.post("/topic/create", topic="sub_bench")
        nsqd.post("/channel/create", topic="sub_bench", channel="ch")
        if workload == "pub":
            return {"pub": measure("bench_writer", nsqd.tcp_address, seconds, "--batch-size=1")}
        written = measure("bench_writer", nsqd.tcp_address, seconds, "--batch-size=200")
        read = measure("bench_reader", nsqd.tcp_address, seconds / 2, "--rdy=2500")
        return {f"mpub-{workload}": written, f"sub-{workload}": read}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    if not has_go():
        print('the Go programs are missing: run "make interop" (needs Go)', file=sys.stderr)
        return 1
    print(f"{'workload':<12}{'Go nsqd':>12}{'nsqx':>12}{'ratio':>8}   spread (min-max of each)")
    for workload in arguments.workloads or WORKLOADS:
        seen: dict[str, dict[str, list[float]]] = {}
        for _ in range(arguments.rounds):
            for implementation in ("go", "nsqx"):
                for name, rate in run_once(implementation, workload, arguments.seconds).items():
                    seen.setdefault(name, {}).setdefault(implementation, []).append(rate)
        for name, rates in seen.items():
            go, ours = (statistics.median(rates[implementation]) for implementation in ("go", "nsqx"))
            spread = ", ".join(f"{min(rates[i]):,.0f}-{max(rates[i]):,.0f}" for i in ("go", "nsqx"))
            print(f"{name:<12}{go:>12,.0f}{ours:>12,.0f}{ours / go:>8.2f}   {spread}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
