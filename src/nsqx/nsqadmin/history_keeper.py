"""Keeps the long history of one cluster: adds points after polls, notes restarts, and saves it every few minutes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nsqx.nsqadmin.history_file import HistoryFile
from nsqx.nsqadmin.long_history import LongHistory, tiers_for
from nsqx.nsqadmin.subject import CHANNEL_SERIES, TOPIC_SERIES

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqadmin.poller import Poller

_SAVE_S = 300.0
_FINAL_SAVE_TIMEOUT_S = 10.0


class HistoryKeeper:
    """``start`` it in a running event loop before the poller, ``stop`` it once after the poller."""

    def __init__(self, poller: Poller, window_s: float, path: str, log: Log) -> None:
        """With an empty path the history is kept in memory only."""
        stats = poller.cluster_stats
        fine_s = min(window_s, stats.clock.capacity * poller.interval_s)
        self.history = LongHistory(
            stats,
            tiers_for(window_s, fine_s, poller.interval_s),
            fine_s,
            topic_series=TOPIC_SERIES,
            channel_series=CHANNEL_SERIES,
        )
        self._poller = poller
        self._log = log
        self._file = HistoryFile(path, log)
        self._task: asyncio.Task[None] | None = None
        self._saved_s = 0.0
        poller.after_poll.append(self._note_poll)

    async def start(self) -> None:
        """Load the history of before."""
        saved_s = await self._file.load(self.history)
        self.history.note_stop(saved_s, time.time())
        self._saved_s = time.monotonic()

    async def stop(self) -> None:
        """Add what is not complete, and save."""
        try:
            async with asyncio.timeout(_FINAL_SAVE_TIMEOUT_S):
                if self._task is not None:
                    await self._task
                await self.history.advance(is_last=True)
                await self._file.save(self.history, time.time())
        except TimeoutError:
            self._log.warn("saving the history timed out")

    def _note_poll(self, _is_measured: bool) -> None:
        now_s = time.time()
        for node, start_s in self._poller.started_s.items():
            self.history.note_start(node, start_s, now_s)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._advance())

    async def _advance(self) -> None:
        try:
            await self.history.advance()
            if time.monotonic() - self._saved_s >= _SAVE_S:
                self._saved_s = time.monotonic()
                await self._file.save(self.history, time.time())
        except Exception as error:
            self._log.error("the history failed - %r", error)
