"""The threads that run jobs of the disk: ``group_commit`` and ``log_commits`` decide which there are, and when.

The event loop never waits for an fsync. Each queue is synced separately, so a slow sync of one queue delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar


class Job(Protocol):
    """Work for a thread."""

    def run(self) -> None: ...


AnyJob = TypeVar("AnyJob", bound=Job)

# A slow sync occupies a thread. Syncs that save positions have their own few threads, because on a large broker many
# queues become due at once; they must not delay the syncs that are due by count or that a client waits for.
_THREADS = 32
SAVE_THREADS = 4


class SyncThreads:
    """Runs jobs, and reports in the event loop that they have ended."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="sync")
        self._save_executor = ThreadPoolExecutor(SAVE_THREADS, thread_name_prefix="sync-timer")

    def run(self, job: AnyJob, done: Callable[[AnyJob], object], *, is_urgent: bool) -> None:
        """Run ``job`` in a thread, then call ``done`` in the running event loop."""
        loop = asyncio.get_running_loop()
        executor = self._executor if is_urgent else self._save_executor
        executor.submit(job.run).add_done_callback(
            lambda _: None if loop.is_closed() else loop.call_soon_threadsafe(done, job)
        )

    async def close(self) -> None:
        """Wait for the jobs in progress and stop."""
        for executor in (self._executor, self._save_executor):
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)
