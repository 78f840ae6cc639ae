"""The threads that run jobs of the disk: ``group_commit`` and ``log_commits`` decide which there are, and when.

The event loop never waits for an fsync. Each queue is synced separately, so a slow sync of one queue delays no other.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar


class Job(Protocol):
    """Work for a thread."""

    def run(self) -> None: ...


AnyJob = TypeVar("AnyJob", bound=Job)

# A slow sync occupies a thread. Syncs that save positions have their own few threads, because on a large broker many
# queues become due at once; they must not delay the syncs that are due by count or that a client waits for.
_THREADS = 32
SAVE_THREADS = 4


async def completed(run: Callable[[AnyJob, Callable[[AnyJob], object]], object], job: AnyJob) -> AnyJob:
    """Give ``job`` to ``run``, which calls back in the event loop when the job has ended, and return it then."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    run(job, lambda _: None if ended.done() else ended.set_result(None))
    await ended
    return job


class JobThreads:
    """Up to ``most`` threads that run jobs in order. They are started when they are needed.

    This is a ThreadPoolExecutor without futures, whose locks would cost more than a fast disk needs for a sync.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._threads: list[threading.Thread] = []
        self._unfinished_count = 0
        self._jobs: SimpleQueue[tuple[Any, Callable[[Any], object], asyncio.AbstractEventLoop] | None] = SimpleQueue()

    def run(self, job: AnyJob, done: Callable[[AnyJob], object]) -> None:
        """Run ``job`` in a thread, then call ``done`` in the running event loop."""
        self._unfinished_count += 1
        if len(self._threads) < min(self._unfinished_count, self._most):
            name = f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((job, done, asyncio.get_running_loop()))

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done, loop = entry
            try:
                job.run()
            except Exception:  # an error of the program; the caller must not wait for ever
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            try:
                loop.call_soon_threadsafe(self._end, job, done)
            except RuntimeError:
                pass  # the loop is closed

    def _end(self, job: AnyJob, done: Callable[[AnyJob], object]) -> None:
        self._unfinished_count -= 1
        done(job)

    def join(self) -> None:
        """Wait for the jobs in progress and end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()


class SyncThreads:
    """Runs jobs, and reports in the event loop that they have ended."""

    def __init__(self) -> None:
        self._urgent = JobThreads(_THREADS, "sync")
        self._saves = JobThreads(SAVE_THREADS, "sync-timer")

    def run(self, job: AnyJob, done: Callable[[AnyJob], object], *, is_urgent: bool) -> None:
        """Run ``job`` in a thread, then call ``done`` in the running event loop."""
        (self._urgent if is_urgent else self._saves).run(job, done)

    async def close(self) -> None:
        """Wait for the jobs in progress and stop."""
        for threads in (self._urgent, self._saves):
            await asyncio.get_running_loop().run_in_executor(None, threads.join)
