"""Worker processes: all workers prepare, start at the same time, and return a result.

Owns the start and the end of the processes. A worker is any object with ``prepare`` and ``run``.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from threading import BrokenBarrierError
from typing import Any, Protocol

from nsqx.bench.failure import BenchFailed
from nsqx.bench.shared_counters import CONTEXT
from nsqx.errors import NSQError
from nsqx.units import NS_PER_S

_PREPARE_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 10.0


@dataclass(slots=True)
class WorkerResult:
    """The result of one worker."""

    count: int
    """Messages published or received."""
    ended_ns: int
    """The time of the last message, by the monotonic clock."""
    samples_ns: array[int] = field(default_factory=lambda: array("q"))


class Worker(Protocol):
    """Work for a process; it must be picklable."""

    def prepare(self) -> None:
        """Connect, so that the time for connecting is not measured."""

    def run(self) -> WorkerResult:
        """Work until done."""


@dataclass(slots=True)
class RunResult:
    """The results of all workers of a run."""

    started_ns: int
    outcomes: list[WorkerResult]

    def elapsed_s(self) -> float:
        """Return the time from the common start to the last message of any worker."""
        return max(max(each.ended_ns for each in self.outcomes) - self.started_ns, 1) / NS_PER_S

    def count(self) -> int:
        """Return the number of messages of all workers."""
        return sum(each.count for each in self.outcomes)


def _work(worker: Worker, barrier: Any, results: Connection) -> None:
    """Run a worker in its process and send the result."""
    try:
        worker.prepare()
        barrier.wait(_PREPARE_TIMEOUT_S)
        results.send(worker.run())
    except BrokenBarrierError:
        results.send(None)
    except (NSQError, OSError, EOFError) as error:
        barrier.abort()
        results.send(str(error) or type(error).__name__)


def run_together(workers: Sequence[Worker], limit_s: float, on_start: Callable[[], None] | None = None) -> RunResult:
    """Run workers at the same time; raises BenchFailed if one fails or is not done within ``limit_s``."""
    barrier = CONTEXT.Barrier(len(workers) + 1)
    pipes = [CONTEXT.Pipe(duplex=False) for _ in workers]
    processes = [
        CONTEXT.Process(target=_work, args=(worker, barrier, sender), daemon=True)
        for worker, (_, sender) in zip(workers, pipes, strict=True)
    ]
    try:
        for process in processes:
            process.start()
        for _, sender in pipes:
            sender.close()
        try:
            barrier.wait(_PREPARE_TIMEOUT_S)
        except BrokenBarrierError:
            _collect([receiver for receiver, _ in pipes], _END_TIMEOUT_S)
            raise BenchFailed(f"the workers were not ready within {_PREPARE_TIMEOUT_S:.0f} s") from None
        started_ns = time.monotonic_ns()
        if on_start is not None:
            on_start()
        return RunResult(started_ns, _collect([receiver for receiver, _ in pipes], limit_s))
    finally:
        for process in processes:
            if process.pid is not None:
                process.join(0.5)
                process.kill()
                process.join()
        for receiver, _ in pipes:
            receiver.close()


def _collect(receivers: list[Connection], limit_s: float) -> list[WorkerResult]:
    """Return the results in the order of the workers; raises BenchFailed."""
    deadline_s = time.monotonic() + limit_s
    found: dict[int, WorkerResult] = {}
    waiting = {id(receiver): index for index, receiver in enumerate(receivers)}
    left = list(receivers)
    while left:
        ready = wait(left, max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise BenchFailed(f"the workers were not done within {limit_s:.0f} s")
        for receiver in ready:
            assert isinstance(receiver, Connection)
            try:
                outcome = receiver.recv()
            except EOFError:
                raise BenchFailed("a worker process ended unexpectedly") from None
            if isinstance(outcome, str):
                raise BenchFailed(outcome)
            if outcome is not None:
                found[waiting[id(receiver)]] = outcome
            left.remove(receiver)
    return [found[index] for index in sorted(found)]
