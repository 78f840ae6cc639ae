"""Syncs of disk queues, and saves of nsqd.dat.

All of it runs in threads, so the event loop never waits for the disk to confirm. Each queue is synced by itself: a slow
sync of one queue delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nsqx.queues.files import replace_file

if TYPE_CHECKING:
    from nsqx.errors import DiskQueueError
    from nsqx.log import Log
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.sync import SyncJob

# Threads for syncs that are due by count or that a client waits for, and for those that are due by time. A slow sync
# takes a thread for itself, and the many queues of a large broker are all due by time at once.
_THREADS = 32
_TIMER_THREADS = 4
# Between two saves of metadata, this many times what making its content took, within reason.
_SAVE_DISTANCE = 20
_MAX_SAVE_DISTANCE_S = 1.0
# After a failed save it is tried again, whether something changes or not.
_RETRY_SAVE_S = 1.0


class Keeper:
    """Runs syncs and saves of metadata in threads, each kind never twice at once for the same file."""

    def __init__(
        self,
        log: Log,
        sync_every: int,
        sync_timeout_s: float,
        on_end: Callable[[DiskQueue | None, OSError | None], object],
    ) -> None:
        """``on_end`` is told how each sync ended, and of saves, with no queue, when one fails or works again."""
        self._log = log
        self._sync_every = sync_every
        self._sync_timeout_s = sync_timeout_s
        self._on_end = on_end
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="keeper")
        self._timer_executor = ThreadPoolExecutor(_TIMER_THREADS, thread_name_prefix="keeper-timer")
        self._save_executor = ThreadPoolExecutor(1, thread_name_prefix="keeper-save")
        self._unsynced: dict[DiskQueue, None] = {}  # in the order in which they were used
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Future[bool] | None = None
        self._save_task: asyncio.Task[None] | None = None
        self._is_stale = False
        self._retry: asyncio.TimerHandle | None = None
        self._next_save_at_s = 0.0
        self._hurry = asyncio.Event()
        self._is_closing = False

    # Disk queues

    def note(self, queue: DiskQueue) -> None:
        """Sync ``queue`` now if that is due by count or a callback waits for it, else when sync-timeout is over."""
        if queue.is_awaited() or queue.needs_sync(self._sync_every):
            self._sync(queue, self._executor)
        else:
            self._sync_later(queue)

    def commit(self, queue: DiskQueue, done: Callable[[DiskQueueError | None], object]) -> None:
        """Sync ``queue`` now; call ``done`` when a completed sync covers what was put so far, or with the error."""
        queue.when_durable(done)
        if queue.is_awaited():
            self._sync(queue, self._executor)

    def forget(self, queue: DiskQueue) -> None:
        """``queue`` is going away."""
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
        """Begin a sync, unless one is under way: at its end what has come since is looked at."""
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
                self.note(queue)
            return
        self._on_end(queue, None)
        if queue.is_awaited() or queue.has_unsynced():
            self.note(queue)
        elif queue.depth == 0:
            self._sync_later(queue)  # to release the files if it stays empty
        else:
            self._unsynced[queue] = None

    def _failed(self, queue: DiskQueue, error: OSError) -> None:
        self._log.error("DISKQUEUE(%s) failed to sync - %s", queue.name, error)
        self._on_end(queue, error)
        self._sync_later(queue)

    # Metadata

    def save(
        self, path: str, content: Callable[[], Awaitable[bytes]], *, is_urgent: bool = False
    ) -> asyncio.Future[bool]:
        """Replace a file by ``content()`` soon; done when a save of every change so far is over, True if it is durable.

        However many calls come meanwhile, they are served by one more save; changes while the content is made too.
        With very many topics making the content takes its time, so saves keep a distance that leaves the loop free for
        other things, unless urgent.
        """
        if is_urgent:
            self.hurry()
        if self._saving is None or self._is_stale:
            previous = self._saving
            self._saving = asyncio.get_running_loop().create_future()
            self._is_stale = False
            self._save_task = asyncio.create_task(self._save(path, content, previous, self._saving))
        return self._saving

    def hurry(self) -> None:
        """A client waits for a save: let the next one begin at once."""
        self._hurry.set()

    async def _save(
        self,
        path: str,
        content: Callable[[], Awaitable[bytes]],
        previous: asyncio.Future[bool] | None,
        done: asyncio.Future[bool],
    ) -> None:
        loop = asyncio.get_running_loop()
        if previous is not None:
            await previous
        try:
            async with asyncio.timeout_at(self._next_save_at_s):
                await self._hurry.wait()
        except TimeoutError:
            pass
        # From here on changes are not in what is written; the next call starts another save.
        self._hurry.clear()
        self._is_stale = True
        started_s = loop.time()
        is_saved = False
        try:
            data = await content()
            distance_s = min(_SAVE_DISTANCE * (loop.time() - started_s), _MAX_SAVE_DISTANCE_S)
            self._next_save_at_s = loop.time() + distance_s
            self._log.info("NSQ: persisting topic/channel metadata to %s", path)
            await loop.run_in_executor(self._save_executor, replace_file, path, data)
            is_saved = True
        except OSError as error:
            self._log.error("failed to persist metadata - %s", error)
            self._on_end(None, error)
            self._save_later(path, content)
        else:
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None
                self._on_end(None, None)
        finally:
            if self._saving is done:
                self._saving = None
            if not done.done():
                done.set_result(is_saved)

    def _save_later(self, path: str, content: Callable[[], Awaitable[bytes]]) -> None:
        """What has changed is to be in the file as soon as it can be saved, without another change to wait for."""
        if self._retry is not None:
            self._retry.cancel()
        if not self._is_closing:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SAVE_S, self.save, path, content)

    # The end

    async def close(self) -> None:
        """Let what is under way finish."""
        self._is_closing = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hurry.set()
        if self._saving is not None:
            await self._saving
        self._unsynced.clear()
        for executor in (self._executor, self._timer_executor, self._save_executor):
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)
