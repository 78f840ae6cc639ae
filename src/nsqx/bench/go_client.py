"""Go's bench_writer and bench_reader as load generators, for the workloads that they support.

They publish to the topic sub_bench and consume its channel ch, with one connection per core.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqx.bench.failure import BenchFailed
from nsqx.bench.figures import PER_SECOND, Figure

if TYPE_CHECKING:
    from nsqx.bench.brokers import Target
    from nsqx.bench.loads import Limits

PROGRAMS: Final = ("bench_writer", "bench_reader")
WORKLOADS: Final = ("mem", "spill", "disk", "pub-2")
_TOPIC = "sub_bench"
_CHANNEL = "ch"
_RATE = re.compile(r"([\d.]+)ops/s")
_READ_SHARE = 0.5


def check_programs(directory: Path) -> None:
    """Raise BenchFailed unless both programs exist."""
    for program in PROGRAMS:
        if not (directory / program).is_file():
            raise BenchFailed(f"--client go requires {program} in {directory}")


def measure_by_go(directory: Path, workload: str) -> Callable[[Target, Limits], list[Figure]]:
    """Return a function that runs a workload with Go's programs; only the time limits them."""

    def run(target: Target, limits: Limits) -> list[Figure]:
        target.protocol.make_queue(target.tcp_address, _TOPIC, _CHANNEL)
        size = f"--size={limits.size or 200}"
        seconds = min(limits.seconds, 3.0)
        if workload == "pub-2":
            return [_measure(directory, "bench_writer", "pub-2", target, seconds, size, "--batch-size=1")]
        written = _measure(directory, "bench_writer", f"mpub-{workload}", target, seconds, size, "--batch-size=200")
        read = _measure(directory, "bench_reader", f"sub-{workload}", target, seconds * _READ_SHARE, size, "--rdy=2500")
        return [written, read]

    return run


def _measure(directory: Path, program: str, name: str, target: Target, seconds: float, *flags: str) -> Figure:
    before = target.usage()
    command = [str(directory / program), f"--nsqd-tcp-address={target.tcp_address}", f"--runfor={seconds}s", *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120, check=True)
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{program} did not end") from None
    except (subprocess.CalledProcessError, OSError) as error:
        raise BenchFailed(f"{program} failed: {error}") from None
    after = target.usage()
    found = _RATE.findall(done.stderr + done.stdout)
    if not found:
        raise BenchFailed(f"{program} printed no rate")
    rate = float(found[-1])
    if before is None or after is None or not rate:
        return Figure(name, rate, PER_SECOND)
    return Figure(name, rate, PER_SECOND, (after.cpu_s - before.cpu_s) * 1e6 / (rate * seconds))
