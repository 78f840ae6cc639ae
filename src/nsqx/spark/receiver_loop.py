"""The receiver loop: everything that runs on the receiver's thread.

Calls go in one direction. Connections put messages and events into the intake. The loop takes them, has them stored,
and finishes them; results come back as return values:

    ReceiverLoop ──▶ Topics ──▶ TopicConsumer, ColumnReceiver      which topics are consumed, and how fast
         │                              │ connected, arrived, report
         │                              ▼
         ├─────────────────────────▶ Intake                        what has arrived and is not stored
         ├──▶ BoundedRead                                          when a bounded read is complete
         ├──▶ Recorder ──▶ SeenMessages                            which messages are duplicates
         │        └──── a pool thread ──▶ SegmentDirectory         rows and pins on disk
         └──▶ ProgressBoard                                        read by the reader's thread

Pauses consuming when the buffer is full. Knows nothing of Spark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from nsqx.spark.bounded_read import BoundedRead
from nsqx.spark.intake import Intake
from nsqx.spark.topics import MAX_LANES, MAX_LANES_TO_REMOTE, Topics

if TYPE_CHECKING:
    from nsqx.spark.options import SourceOptions
    from nsqx.spark.progress import ProgressBoard
    from nsqx.spark.recorder import Recorder
    from nsqx.spark.segments import SegmentDirectory

_log = logging.getLogger("nsqx.spark")

# How long messages are collected for a segment, because many small segments are slow to write and to read; shorter if a
# reader waits for rows.
_LINGER_S = 0.05
_AWAITED_LINGER_S = 0.003
# After a pause, consuming resumes when the buffer is filled less than this.
_RESUME_SHARE = 0.8
_LEASE_TICK_S = 1.0
_DEPTH_INTERVAL_S = 5.0


class ReceiverLoop:
    """Consumes a channel into a segment directory. From ``run`` on, it belongs to the thread of its event loop."""

    def __init__(
        self,
        options: SourceOptions,
        directory: SegmentDirectory,
        recorder: Recorder,
        board: ProgressBoard,
        *,
        bound_ns: int = 0,
    ) -> None:
        """With ``bound_ns``, receiving ends when every message published before that time has arrived."""
        self._options = options
        self._directory = directory
        self._recorder = recorder
        self._board = board
        self._intake = Intake(options.max_in_flight_bytes)
        max_lanes = MAX_LANES if directory.storage.is_local else MAX_LANES_TO_REMOTE
        self._topics = Topics(options, self._intake, max_lanes)
        self._drain = BoundedRead(bound_ns, options.drain_idle_s) if bound_ns else None
        self._ending = asyncio.Event()
        self._is_paused = False
        self._rows = directory.next_row
        # The reader waits for a row after this one, until this time of the event loop.
        self._awaited_row = -1
        self._awaited_until_s = 0.0

    # Commands of the reader, called on the event loop

    def expect_rows(self, beyond: int, timeout_s: float) -> None:
        """Write soon: for up to ``timeout_s``, the reader waits until there are more than ``beyond`` rows."""
        self._awaited_row = beyond
        self._awaited_until_s = asyncio.get_running_loop().time() + timeout_s
        self._intake.flush()

    def regulate(self) -> None:
        """Pause consuming when the buffer is full, and resume when there is room again."""
        rows, size = self._directory.buffered()
        fill = max(rows / self._options.max_buffered_rows, size / self._options.max_buffered_bytes)
        is_paused = fill >= (_RESUME_SHARE if self._is_paused else 1.0)
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            _log.info("%s: %d rows wait for Spark", "pausing" if is_paused else "resuming", rows)
            self._topics.pause(is_paused)
            self._board.update(is_paused=is_paused)

    def stop(self) -> None:
        """Store and finish what was received, then end."""
        self._ending.set()
        self._intake.flush()

    # The main task

    async def run(self) -> bool:
        """Receive until ``stop`` is called or a bounded read is complete; return True if nsqd confirmed every FIN.

        Raises ConfigError, ClientError or LeaseLost.
        """
        topics = await self._topics.find()
        if self._drain is not None:
            self._drain.expect(await self._topics.ask_depth(topics))
        try:
            await asyncio.gather(*map(self._topics.subscribe, topics))
            self._board.update(has_started=True)
            async with asyncio.TaskGroup() as tasks:
                companions = [tasks.create_task(work) for work in self._companions()]
                recording = tasks.create_task(self._record())
                await self._ending.wait()
                for companion in companions:
                    companion.cancel()
                is_clean = await self._topics.end()
                self._intake.close()
                await recording
            return is_clean
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await self._topics.abandon()

    async def _record(self) -> None:
        """Store and finish messages until the intake is closed and empty."""
        while await self._intake.wait():
            await self._linger()
            arrivals = self._intake.take()
            if self._drain is not None:
                for _, columns in arrivals.messages:
                    self._drain.took(columns)
            self._rows = await self._recorder.store(arrivals)
            self._intake.finish()
            if self._drain is not None:
                self._drain.stored()
            self.regulate()
            self._board.update(rows=self._rows, known_count=self._recorder.known_count)

    async def _linger(self) -> None:
        """Collect messages for a short time, unless nsqd waits for FINs or receiving ends."""
        if not self._intake.pending_count or self._ending.is_set() or self._topics.is_starved:
            return
        now_s = asyncio.get_running_loop().time()
        is_awaited = self._rows <= self._awaited_row and now_s < self._awaited_until_s
        await self._intake.gather(_AWAITED_LINGER_S if is_awaited else _LINGER_S)

    # Its companions, which are cancelled when receiving ends

    def _companions(self) -> list[Coroutine[Any, Any, None]]:
        companions = [self._intake.keep_touching(self._topics.msg_timeout_s), self._watch_lease()]
        if self._options.cluster.lookupd_http_addresses:
            companions.append(self._watch_depth())
        if self._options.topic_pattern:
            companions.append(self._topics.keep_finding())
        if self._drain is not None:
            companions.append(self._end_when_complete(self._drain))
        return companions

    async def _watch_lease(self) -> None:
        """Stop receiving, by raising LeaseLost, when another process has taken over the directory."""
        while True:
            await asyncio.sleep(_LEASE_TICK_S)
            if self._directory.is_lost:
                self._directory.verify()

    async def _watch_depth(self) -> None:
        while True:
            self._board.update(depth=await self._topics.ask_depth(self._topics.names))
            await asyncio.sleep(_DEPTH_INTERVAL_S)

    async def _end_when_complete(self, drain: BoundedRead) -> None:
        while not drain.is_complete:
            await asyncio.sleep(drain.tick_s)
            drain.tick(has_pending=self._intake.pending_count > 0, is_paused=self._is_paused)
        self.stop()
