"""The conversion of a topic to a log: its disk queues are moved into the log.

The classic store is closed as at exit: every message goes to the disk queues, due times to their files. Then each
queue is read in a thread, appended to the log, and finished when that is durable. The messages of a channel are
appended for this channel alone, with their attempts and due times. Message ids change, timestamps stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from nsqx.errors import DiskQueueError
from nsqx.nsqd.log_flow import LogFlow
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.queue_source import MovedMessages, QueueSource
    from nsqx.nsqd.sync_threads import AnyJob
    from nsqx.nsqd.topic import Topic
    from nsqx.nsqd.topic_flow import TopicFlow
    from nsqx.queues.diskqueue import DiskQueue

# The delay before a failed operation is repeated.
_RETRY_NS = NS_PER_S


class ClosingStore:
    """The classic store of a topic that gets no more messages: the old flow and the old channels."""

    def __init__(self, flow: TopicFlow, channels: Sequence[Channel]) -> None:
        self.queues = flow.disk_queues()
        self.flow = flow
        self.channels = list(channels)
        self.is_closed = False
        self._is_spilled = False

    def spill(self) -> None:
        """Put the messages in memory into the disk queues, which nothing else uses any more."""
        if not self._is_spilled:
            self._is_spilled = True
            for queue in self.queues:
                queue.detach()
            for channel in self.channels:
                channel.spill()
            self.flow.spill()

    def write(self) -> None:
        """Write the messages. If this raises DiskQueueError, they are still in memory."""
        for queue in self.queues:
            queue.write_pending()

    def close(self) -> list[Exception]:
        """Make everything durable and release the files; return the errors. All written messages are found again."""
        self.is_closed = True
        errors: list[Exception] = []
        for close in (*(channel.store.close for channel in self.channels), self.flow.close):
            try:
                close()
            except (DiskQueueError, OSError) as error:
                errors.append(error)
        return errors

    def discard(self, name: str, *, is_deleted: bool) -> None:
        """Discard the messages of a channel, or of the topic if ``name`` is empty, and the channel if it is deleted."""
        if not name:
            self.flow.empty()
        for channel in [channel for channel in self.channels if channel.name == name]:
            if is_deleted:
                self.channels.remove(channel)
                channel.delete()
            else:
                channel.store.empty()


class _CloseJob:
    """Writes and closes the classic store, then opens its queues to read them."""

    def __init__(self, lock: threading.Lock, store: ClosingStore | None, sources: Sequence[QueueSource]) -> None:
        self.error: Exception | None = None
        self.close_errors: list[Exception] = []
        self._lock = lock
        self._store = store
        self._sources = sources

    def run(self) -> None:
        """Do it. An error of a write, or of opening a queue, is temporary."""
        with self._lock:
            try:
                if self._store is not None and not self._store.is_closed:
                    self._store.write()
                    self.close_errors = self._store.close()
                for source in self._sources:
                    source.open_queue()
            except (DiskQueueError, OSError) as error:
                self.error = error


class _ReadJob:
    """Finishes the messages that were moved, and reads the next ones. Removes the queue if none are left."""

    def __init__(self, lock: threading.Lock, name: str, source: QueueSource, wall_ns: int) -> None:
        self.name = name
        self.source = source
        self.is_removed = False
        self.messages: list[MovedMessages] = []
        self.error: Exception | None = None
        self._lock = lock
        self._wall_ns = wall_ns

    def run(self) -> None:
        """Do it. An error is temporary."""
        with self._lock:
            try:
                if self.source.is_moved:
                    self.source.finish()
                self.messages = self.source.read(self._wall_ns)
                if not self.messages:
                    self.source.finish()  # sets unreadable files aside
                    self.source.remove()
                    self.is_removed = True
            except (DiskQueueError, OSError) as error:
                self.error = error


class QueueImport:
    """Moves the disk queues of one topic into its log: those of the channels first, then its own."""

    def __init__(
        self, topic: Topic, broker: Broker, on_end: Callable[[QueueImport], object], store: ClosingStore | None = None
    ) -> None:
        """``store`` is the classic store, if it was in use until now."""
        self.topic = topic
        self.moved_count = 0
        self._broker = broker
        self._on_end = on_end
        self._log = broker.logs.find(topic.name)
        self._store = store
        self._sources: dict[str, QueueSource] = {}  # by the name of the channel, empty for the topic
        self._lock = threading.Lock()  # of the store and the sources
        self._is_prepared = False
        self._is_started = False
        self._is_stopped = False
        self._moving: QueueSource | None = None  # whose messages are in the log, but not durable
        self._awaited_count = 0  # the number of batches of the log that must be durable for that
        if store is not None:
            for channel in store.channels:
                self._set_unmoved(channel.name, channel.depth + channel.in_flight_count + channel.deferred_count)
            self._set_unmoved("", store.flow.depth)

    def _set_unmoved(self, name: str, count: int) -> None:
        target = self.topic.find_channel(name) if name else self.topic
        if target is not None:
            target.unmoved_count = count

    @property
    def _is_over(self) -> bool:
        return self._is_stopped or self._broker.exiting

    def _run(self, job: AnyJob, done: Callable[[AnyJob], object]) -> None:
        self._broker.commits.threads.run(job, partial(self._broker.turn.run, done), is_urgent=False)

    def _retry(self, error: Exception, step: Callable[[], None]) -> None:
        """Repeat a failed step later."""
        self._broker.log.error("TOPIC(%s): cannot move messages now - %s", self.topic.name, error)
        self._broker.call_in(_RETRY_NS, step)

    # Closing the classic store

    def prepare(self) -> None:
        """Close the classic store, and open its queues."""
        if self._store is None:
            self._open_sources()
            return
        waiting = set(self._store.queues)
        for queue in self._store.queues:
            self._broker.commits.release(queue, partial(self._on_released, waiting, queue))

    def _on_released(self, waiting: set[DiskQueue], queue: DiskQueue) -> None:
        waiting.discard(queue)
        if not waiting and not self._is_over:
            assert self._store is not None
            self._store.spill()
            self._open_sources()

    def _open_sources(self) -> None:
        files = self._broker.classic_files
        for name in (*self.topic.channels, ""):
            queue_name = f"{self.topic.name}:{name}" if name else self.topic.name
            if self._store is not None or files.has_queue(queue_name):
                self._sources[name] = files.open_source(queue_name)
        self._close_store()

    def _close_store(self) -> None:
        if not self._is_over:
            self._run(_CloseJob(self._lock, self._store, list(self._sources.values())), self._on_closed)

    def _on_closed(self, job: _CloseJob) -> None:
        for error in job.close_errors:
            self._broker.log.error("TOPIC(%s): failed to close the classic store - %s", self.topic.name, error)
        if self._is_over:
            return
        if job.error is not None:
            self._retry(job.error, self._close_store)
            return
        self._is_prepared = True
        for name, source in self._sources.items():
            self._set_unmoved(name, source.depth)
        if self._is_started:
            self._read()

    # Moving

    def start(self) -> None:
        """Begin to move messages."""
        self._is_started = True
        if self._is_prepared:
            self._read()

    def _read(self) -> None:
        if self._is_over:
            return
        for name, source in self._sources.items():
            self._run(_ReadJob(self._lock, name, source, self._broker.clock.wall_ns()), self._on_read)
            return
        self._end()

    def _on_read(self, job: _ReadJob) -> None:
        if self._is_over:
            return
        if job.error is not None:
            self._retry(job.error, self._read)
        elif job.is_removed:
            self._sources.pop(job.name, None)
            self._set_unmoved(job.name, 0)
            self._read()
        else:
            self._append(job)

    def _append(self, job: _ReadJob) -> None:
        """Append the messages of a job to the log."""
        if self._is_over:
            return
        if self._sources.get(job.name) is not job.source:  # discarded meanwhile
            self._read()
            return
        try:
            self._broker.logs.refuse_if_full(self._broker.clock.wall_ns())
        except DiskQueueError as error:
            self._retry(error, partial(self._append, job))
            return
        flow = self.topic.flow
        assert isinstance(flow, LogFlow)
        assert self._log is not None
        channel = self.topic.find_channel(job.name) if job.name else None
        for items, count, timestamp, attempts, due_ns in job.messages:
            if channel is None:
                flow.append_moved(items, count, timestamp, due_ns)
            else:
                flow.append_moved_to(channel.store, items, count, timestamp, attempts, due_ns)
            self.moved_count += count
        self._set_unmoved(job.name, job.source.depth)
        self._moving = job.source
        self._awaited_count = self._log.given_count + self._log.pending_count
        self._await_durable()

    def _await_durable(self) -> None:
        assert self._log is not None
        if not self._is_over and not self._broker.logs.when_committed(self._log, True, self._on_durable):
            self._on_durable(None)

    def _on_durable(self, error: DiskQueueError | None) -> None:
        if self._is_over:
            return
        if error is not None:
            self._retry(error, self._await_durable)
            return
        self._note_moved()
        self._read()

    def _note_moved(self) -> None:
        if self._moving is not None:
            self._moving.is_moved = True
            self._moving = None

    def _end(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._on_end(self)

    # Administration

    def discard(self, name: str, *, is_deleted: bool) -> None:
        """Discard the messages of a channel, or of the topic if ``name`` is empty, and the channel if it is deleted."""
        with self._lock:
            self._discard(name, is_deleted=is_deleted)
        self._set_unmoved(name, 0)

    def _discard(self, name: str, *, is_deleted: bool) -> None:
        if self._store is not None and not self._store.is_closed:
            self._store.discard(name, is_deleted=is_deleted)
            if is_deleted:
                self._sources.pop(name, None)
            return
        source = self._sources.pop(name, None)
        if source is not None:
            try:
                source.remove()
            except (DiskQueueError, OSError) as error:
                self._broker.log.error("DISKQUEUE(%s): failed to discard messages - %s", source.name, error)

    def delete(self) -> None:
        """Discard all messages, because the topic is deleted."""
        with self._lock:
            if self._store is not None and not self._store.is_closed:
                for channel in self._store.channels:
                    channel.delete()
                self._store.flow.delete()
            for name in list(self._sources):
                self._discard(name, is_deleted=True)
        self._end()

    def note_closed(self) -> None:
        """No-op: the disk queues of the topic are not in use."""

    def close(self) -> int:
        """Release the files at exit, when the log is closed and no job is running; return the number of lost messages.

        What was moved is finished, so that it is not moved again.
        """
        self._is_stopped = True
        if self._store is not None and not self._store.is_closed:
            self._store.spill()
            for error in self._store.close():
                self._broker.log.error("TOPIC(%s): failed to flush to disk - %s", self.topic.name, error)
            return sum(self._store.flow.lost_counts().values())
        if self._log is not None and self._awaited_count <= self._log.safe_count:
            self._note_moved()
        for source in self._sources.values():
            try:
                if source.is_moved:
                    source.finish()
                source.close()
            except (DiskQueueError, OSError) as error:
                self._broker.log.error("DISKQUEUE(%s): failed to save what was moved - %s", source.name, error)
        return 0
