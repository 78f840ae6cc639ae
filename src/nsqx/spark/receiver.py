"""The receiver: consumes a channel into the segment directory, in a thread with its own event loop.

Connects the parts: ``topics`` consumes, ``recorder`` stores, ``bounded_read`` detects the end of a bounded read. Pins
the messages that nsqd may deliver again, pauses consuming when the buffer is full, and reports the number of rows.
Knows nothing of Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from nsqx.client.blocking import new_event_loop
from nsqx.errors import NSQError
from nsqx.spark.bounded_read import BoundedRead
from nsqx.spark.dedup import SeenMessages
from nsqx.spark.recorder import Recorder
from nsqx.spark.topics import MAX_LANES, MAX_LANES_TO_REMOTE, STOP_TIMEOUT_S, Topics

if TYPE_CHECKING:
    from nsqx.spark.columns import ColumnReceiver
    from nsqx.spark.options import SourceOptions
    from nsqx.spark.segments import SegmentDirectory

_log = logging.getLogger("nsqx.spark")

_START_TIMEOUT_S = 60.0
# After a pause, consuming resumes when the buffer is filled less than this.
_RESUME_SHARE = 0.8
_LEASE_TICK_S = 1.0


class Receiver:
    """Receives into an open segment directory between ``start`` and ``stop``."""

    def __init__(self, options: SourceOptions, directory: SegmentDirectory) -> None:
        self.options = options
        self.directory = directory
        self.rows = directory.next_row
        self._seen = SeenMessages(options.dedup_window)
        self._topics = Topics(options, self, MAX_LANES if directory.storage.is_local else MAX_LANES_TO_REMOTE)
        self._drain: BoundedRead | None = None
        self._thread = threading.Thread(target=self._run, name="nsq receiver", daemon=True)
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._has_started = False
        self._has_ended = False
        self._is_clean = False
        self._is_paused = False
        # Created on the event loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._recorder: Recorder
        self._ending: asyncio.Event

    # Called by the readers

    def start(self, *, bound_ns: int = 0) -> None:
        """Start receiving; raises ConfigError or ClientError on failure.

        With ``bound_ns``, receiving ends when every message published before that time has arrived.
        """
        if bound_ns:
            self._drain = BoundedRead(bound_ns, self.options.drain_idle_s)
        self._load_identities()
        self.directory.begin(self.options.max_in_flight)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._has_started or self._has_ended, _START_TIMEOUT_S)
        self.check()

    def _load_identities(self) -> None:
        """Load the identities of earlier runs; after an unclean end, pin those that may have been in flight."""
        self._seen.remember(self.directory.known_identities())
        self._seen.remember_pinned(self.directory.identities.pinned())
        state = self.directory.state
        if not state.is_clean:
            suspects = self._seen.every_latest(2 * max(state.max_in_flight, 1))
            self.directory.identities.pin(suspects)
            self._seen.remember_pinned(suspects)

    def wait_for_rows(self, beyond: int, timeout_s: float) -> int:
        """Wait until there are more than ``beyond`` rows, receiving ends, or the timeout; return the number of rows."""
        with self._changed:
            if self.rows <= beyond and not self._has_ended:
                self._recorder.is_awaited = True
                self._call(self._recorder.flush)
                self._changed.wait_for(lambda: self.rows > beyond or self._has_ended, timeout_s)
                self._recorder.is_awaited = False
        self.check()
        return self.rows

    def check(self) -> None:
        """Raise the error that ended receiving, if any."""
        if self._failure is not None:
            raise self._failure

    @property
    def depth(self) -> int | None:
        """The number of messages that wait in the channel, or None if unknown."""
        return self._topics.depth

    @property
    def known_count(self) -> int:
        """The number of duplicates received."""
        return self._recorder.known_count

    @property
    def is_paused(self) -> bool:
        """True while consuming is paused because the buffer is full."""
        return self._is_paused

    @property
    def is_drained(self) -> bool:
        """True once receiving has ended, for example because a bounded read is complete."""
        return self._has_ended

    def committed(self) -> None:
        """Check the buffer limits again after rows were removed from the directory."""
        self._call(self._regulate)

    def stop(self) -> bool:
        """Store and finish what was received, then end; return True if nsqd confirmed every FIN."""
        if self._thread.is_alive():
            self._call(self._begin_stop)
            self._thread.join(2 * STOP_TIMEOUT_S)
        return self._is_clean

    def _call(self, callback: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(callback)

    # The thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._receive())
        except (NSQError, OSError) as error:
            self._failure = error
        except Exception as error:
            _log.exception("the receiver failed")
            self._failure = error
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    async def _receive(self) -> None:
        self._ending = asyncio.Event()
        self._recorder = Recorder(
            self.directory,
            self._seen,
            max_bytes=self.options.max_in_flight_bytes,
            is_starved=lambda: self._topics.is_starved,
            stored=self._stored,
            drain=self._drain,
        )
        self._loop = asyncio.get_running_loop()
        topics = await self._topics.find()
        if self._drain is not None:
            self._drain.expected = await self._topics.ask_depth(topics)
        try:
            await asyncio.gather(*map(self._topics.subscribe, topics))
            with self._changed:
                self._has_started = True
                self._changed.notify_all()
            async with asyncio.TaskGroup() as tasks:
                companions = [tasks.create_task(work) for work in self._companions()]
                recording = tasks.create_task(self._recorder.run())
                await self._ending.wait()
                for companion in companions:
                    companion.cancel()
                self._is_clean = await self._topics.end(self._recorder.flush)
                self._recorder.stop()
                await recording
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await self._topics.abandon()

    def _companions(self) -> list[Coroutine[Any, Any, None]]:
        companions = [self._recorder.keep_touching(self._topics.msg_timeout_s), self._watch_lease()]
        if self.options.cluster.lookupd_http_addresses:
            companions.append(self._topics.keep_asking_depth())
        if self.options.topic_pattern:
            companions.append(self._topics.keep_finding())
        if self._drain is not None:
            companions.append(self._end_when_drained(self._drain))
        return companions

    async def _end_when_drained(self, drain: BoundedRead) -> None:
        await drain.watch(lambda: self._recorder.pending_count > 0, lambda: self._is_paused)
        self._ending.set()

    async def _watch_lease(self) -> None:
        """Stop receiving, by raising LeaseLost, when another process has taken over the directory."""
        while True:
            await asyncio.sleep(_LEASE_TICK_S)
            if self.directory.is_lost:
                self.directory.verify()

    def _begin_stop(self) -> None:
        self._recorder.flush()
        self._ending.set()

    # Called by the connections

    def connected(self, source: ColumnReceiver, broker: str) -> None:
        """Record messages of a new connection."""
        self._recorder.attach(source, broker)

    def arrived(self) -> None:
        """Wake the recorder."""
        self._recorder.arrived()

    def connection_lost(self, topic: str, node: str) -> None:
        """Pin the messages that may have been in flight: nsqd may deliver them again at any time."""
        broker = self._recorder.broker_at(node)
        self._recorder.pin([self._seen.latest(topic, broker, 2 * self.options.max_in_flight)])

    def finish_failed(self, topic: str, node: str, message_id: bytes) -> None:
        """Pin a message whose FIN failed: nsqd will deliver it again."""
        self._recorder.pin(self._seen.one(topic, self._recorder.broker_at(node), message_id))

    # Called by the recorder

    def _stored(self, rows: int) -> None:
        if rows > self.rows:
            with self._changed:
                self.rows = rows
                self._changed.notify_all()
        self._regulate()

    def _regulate(self) -> None:
        """Pause consuming when the buffer is full, and resume when there is room again."""
        rows, size = self.directory.buffered()
        fill = max(rows / self.options.max_buffered_rows, size / self.options.max_buffered_bytes)
        is_paused = fill >= (_RESUME_SHARE if self._is_paused else 1.0)
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            _log.info("%s: %d rows wait for Spark", "pausing" if is_paused else "resuming", rows)
            self._topics.pause(is_paused)
