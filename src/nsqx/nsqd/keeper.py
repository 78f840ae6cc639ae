"""What the broker keeps on disk besides messages in the making: syncs of disk queues, and nsqd.dat.

All of it runs in a few threads, so the event loop never waits for the disk to confirm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nsqx.errors import DiskQueueError
from nsqx.queues.files import replace_file

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.sync import SyncJob

_THREADS = 4
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
        self._unsynced: set[DiskQueue] = set()
        self._running: dict[DiskQueue, asyncio.Future[None]] = {}
        self._commits: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Future[None] | None = None
        self._save_task: asyncio.Task[None] | None = None
        self._is_stale = False
        self._retry: asyncio.TimerHandle | None = None
        self._next_save_at_s = 0.0
        self._hurry = asyncio.Event()
        self._is_closing = False

    # Disk queues

    def note(self, queue: DiskQueue) -> None:
        """Something happened in ``queue``: sync it now if that is due by count, else when sync-timeout is over."""
        if queue.needs_sync(self._sync_every):
            self._sync(queue)
            return
        self._unsynced.add(queue)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._sync_timeout_s, self._on_timer)

    def commit(self, queues: list[DiskQueue], done: Callable[[DiskQueueError | None], None]) -> None:
        """Make queues durable now and then call ``done``, with an error if one could not be."""
        task = asyncio.get_running_loop().create_task(self._commit(queues, done))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _commit(self, queues: list[DiskQueue], done: Callable[[DiskQueueError | None], None]) -> None:
        outcomes = await asyncio.gather(*(self._make_durable(queue) for queue in queues))
        done(next((failure for failure in outcomes if failure is not None), None))

    async def _make_durable(self, queue: DiskQueue) -> DiskQueueError | None:
        """Sync what is written now; a sync that began before does not count, but has to end first."""
        try:
            job = queue.begin_sync()
            while job is None and queue in self._running:
                await self._running[queue]
                job = queue.begin_sync()
        except OSError as error:
            self._failed(queue, error)
            return DiskQueueError(error.strerror or str(error))
        if job is not None:
            await self._run(job)
        return queue.failure

    def _run(self, job: SyncJob) -> asyncio.Future[None]:
        """Run a job in a thread; done when its end has been noted."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._running[job.queue] = ended

        def end() -> None:
            del self._running[job.queue]
            self._synced(job)
            ended.set_result(None)

        self._executor.submit(job.run).add_done_callback(
            lambda _: None if loop.is_closed() else loop.call_soon_threadsafe(end)
        )
        return ended

    def forget(self, queue: DiskQueue) -> None:
        """``queue`` is going away."""
        self._unsynced.discard(queue)

    def _on_timer(self) -> None:
        self._timer = None
        queues, self._unsynced = self._unsynced, set()
        for queue in queues:
            if queue.has_unsynced():
                self._sync(queue)
            else:
                queue.release_idle_files()

    def _sync(self, queue: DiskQueue) -> None:
        try:
            job = queue.begin_sync()
        except OSError as error:
            self._failed(queue, error)
            return
        if job is None:
            self._unsynced.add(queue)
            return
        self._run(job)

    def _synced(self, job: SyncJob) -> None:
        job.queue.end_sync(job)
        if job.error is not None:
            self._failed(job.queue, job.error)
            return
        self._on_end(job.queue, None)
        if job.queue.has_unsynced():
            self.note(job.queue)
        else:
            # Once more later, to let go of the files if it stays empty.
            self._unsynced.add(job.queue)
            if self._timer is None and job.queue.depth == 0:
                self._timer = asyncio.get_running_loop().call_later(self._sync_timeout_s, self._on_timer)

    def _failed(self, queue: DiskQueue, error: OSError) -> None:
        self._log.error("DISKQUEUE(%s) failed to sync - %s", queue.name, error)
        self._on_end(queue, error)
        self._unsynced.add(queue)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._sync_timeout_s, self._on_timer)

    # Metadata

    def save(
        self, path: str, content: Callable[[], Awaitable[bytes]], *, is_urgent: bool = False
    ) -> asyncio.Future[None]:
        """Replace a file by ``content()`` soon; done when a save that took in every change so far is.

        However many calls come meanwhile, they are served by one more save; changes while the content is made too.
        With very many topics making the content takes its time, so saves keep a distance that leaves the loop free for
        other things, unless urgent.
        """
        if is_urgent:
            self._hurry.set()
        if self._saving is None or self._is_stale:
            previous = self._saving
            self._saving = asyncio.get_running_loop().create_future()
            self._is_stale = False
            self._save_task = asyncio.create_task(self._save(path, content, previous, self._saving))
        return self._saving

    async def _save(
        self,
        path: str,
        content: Callable[[], Awaitable[bytes]],
        previous: asyncio.Future[None] | None,
        done: asyncio.Future[None],
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
        try:
            data = await content()
            distance_s = min(_SAVE_DISTANCE * (loop.time() - started_s), _MAX_SAVE_DISTANCE_S)
            self._next_save_at_s = loop.time() + distance_s
            self._log.info("NSQ: persisting topic/channel metadata to %s", path)
            await loop.run_in_executor(self._executor, replace_file, path, data)
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
            done.set_result(None)

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
        await asyncio.get_running_loop().run_in_executor(None, self._executor.shutdown)
