"""Saves of nsqd.dat, the file that names every topic and channel.

A thread writes the file, so the event loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nsqx.queues.files import replace_file

if TYPE_CHECKING:
    from nsqx.log import Log

# The pause between two saves is this many times the time that building the content took, up to a maximum.
_PAUSE_FACTOR = 20
_MAX_PAUSE_S = 1.0
_RETRY_SAVE_S = 1.0


class MetadataStore:
    """Writes the current metadata to its file, one save at a time."""

    def __init__(
        self,
        path: str,
        content: Callable[[], Awaitable[bytes]],
        log: Log,
        on_end: Callable[[OSError | None], object],
    ) -> None:
        """Save what ``content`` returns to ``path``.

        ``on_end`` gets the error of each failed save, and None when a save succeeds after a failed one.
        """
        self._path = path
        self._content = content
        self._log = log
        self._on_end = on_end
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        self._saving: asyncio.Future[bool] | None = None
        self._save_task: asyncio.Task[None] | None = None
        self._is_stale = False
        self._retry: asyncio.TimerHandle | None = None
        self._next_save_at_s = 0.0
        self._is_urgent = asyncio.Event()
        self._is_closing = False

    def save(self, *, is_urgent: bool = False) -> asyncio.Future[bool]:
        """Save soon, or now if urgent. The result of the future is True if every change so far is durable.

        Calls that arrive before the next save begins share that save. Building the content takes long with very many
        topics, so there is a pause between two saves, unless one is urgent.
        """
        if is_urgent:
            self.hurry()
        if self._saving is None or self._is_stale:
            previous = self._saving
            self._saving = asyncio.get_running_loop().create_future()
            self._is_stale = False
            self._save_task = asyncio.create_task(self._save(previous, self._saving))
        return self._saving

    def hurry(self) -> None:
        """Begin the next save without the pause, because a client waits for it."""
        self._is_urgent.set()

    async def _save(self, previous: asyncio.Future[bool] | None, done: asyncio.Future[bool]) -> None:
        loop = asyncio.get_running_loop()
        if previous is not None:
            await previous
        try:
            async with asyncio.timeout_at(self._next_save_at_s):
                await self._is_urgent.wait()
        except TimeoutError:
            pass
        # Changes made from here on need another save.
        self._is_urgent.clear()
        self._is_stale = True
        started_s = loop.time()
        is_saved = False
        try:
            data = await self._content()
            pause_s = min(_PAUSE_FACTOR * (loop.time() - started_s), _MAX_PAUSE_S)
            self._next_save_at_s = loop.time() + pause_s
            self._log.info("NSQ: persisting topic/channel metadata to %s", self._path)
            await loop.run_in_executor(self._executor, replace_file, self._path, data)
            is_saved = True
        except OSError as error:
            self._log.error("failed to persist metadata - %s", error)
            self._on_end(error)
            self._save_later()
        else:
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None
                self._on_end(None)
        finally:
            if self._saving is done:
                self._saving = None
            if not done.done():
                done.set_result(is_saved)

    def _save_later(self) -> None:
        """Retry a failed save without waiting for another change."""
        if self._retry is not None:
            self._retry.cancel()
        if not self._is_closing:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SAVE_S, self.save)

    async def close(self) -> None:
        """Wait for the save in progress and stop."""
        self._is_closing = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._is_urgent.set()
        if self._saving is not None:
            await self._saving
        await asyncio.get_running_loop().run_in_executor(None, self._executor.shutdown)
