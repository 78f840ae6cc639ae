"""Syncs of disk queues: when one is due, and the threads that run it.

The event loop never waits for an fsync. Each queue is synced separately, so a slow sync of one queue delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.errors import DiskQueueError
    from nsqx.log import Log
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.sync import SyncJob

# A slow sync occupies a thread. Syncs that are due by time have their own few threads, because on a large broker many
# queues become due at once; they must not delay the syncs that are due by count or that a client waits for.
_THREADS = 32
_TIMER_THREADS = 4


class DiskSync:
    """Runs syncs in threads, at most one at a time per queue."""

    def __init__(
        self,
        log: Log,
        sync_every: int,
        sync_timeout_s: float,
        on_end: Callable[[DiskQueue, OSError | None], object],
    ) -> None:
        """Call ``on_end`` with the queue and the error, or None, after each sync."""
        self._log = log
        self._sync_every = sync_every
        self._sync_timeout_s = sync_timeout_s
        self._on_end = on_end
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="sync")
        self._timer_executor = ThreadPoolExecutor(_TIMER_THREADS, thread_name_prefix="sync-timer")
        self._unsynced: dict[DiskQueue, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    def sync_when_due(self, queue: DiskQueue) -> None:
        """Sync ``queue`` now if a sync is due by count or a callback waits for it, else within --sync-timeout."""
        if queue.is_awaited() or queue.needs_sync(self._sync_every):
            self._sync(queue, self._executor)
        else:
            self._sync_later(queue)

    def commit(self, queue: DiskQueue, done: Callable[[DiskQueueError | None], object]) -> None:
        """Sync ``queue`` now. Call ``done`` with None once a sync covers every record put so far, or with the error."""
        queue.when_durable(done)
        if queue.is_awaited():
            self._sync(queue, self._executor)

    def forget(self, queue: DiskQueue) -> None:
        """Never sync ``queue`` again: it is being deleted."""
        self._unsynced.pop(queue, None)

    def _sync_later(self, queue: DiskQueue) -> None:
        self._unsynced[queue] = None
        if self._timer is None and not self._is_closing:
            self._timer = asyncio.get_running_loop().call_later(self._sync_timeout_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        queues, self._unsynced = self._unsynced, {}
        for queue in queues:
            if queue.has_unsynced():
                self._sync(queue, self._timer_executor)
            else:
                queue.release_idle_files()

    def _sync(self, queue: DiskQueue, executor: ThreadPoolExecutor) -> None:
        """Begin a sync, unless one is in progress. Its end starts the next one if newer records need it."""
        if self._is_closing:
            return
        try:
            job = queue.begin_sync()
        except OSError as error:
            self._failed(queue, error)
            return
        if job is None:
            return
        loop = asyncio.get_running_loop()
        executor.submit(job.run).add_done_callback(
            lambda _: None if loop.is_closed() else loop.call_soon_threadsafe(self._synced, job)
        )

    def _synced(self, job: SyncJob) -> None:
        queue = job.queue
        queue.end_sync(job)
        if job.error is not None:
            self._failed(queue, job.error)
            if queue.is_awaited():
                self.sync_when_due(queue)
            return
        self._on_end(queue, None)
        if queue.is_awaited() or queue.has_unsynced():
            self.sync_when_due(queue)
        elif queue.depth == 0:
            self._sync_later(queue)  # closes the files if the queue stays empty
        else:
            self._unsynced[queue] = None

    def _failed(self, queue: DiskQueue, error: OSError) -> None:
        self._log.error("DISKQUEUE(%s) failed to sync - %s", queue.name, error)
        self._on_end(queue, error)
        self._sync_later(queue)

    async def close(self) -> None:
        """Wait for the syncs in progress and stop."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unsynced.clear()
        for executor in (self._executor, self._timer_executor):
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)
