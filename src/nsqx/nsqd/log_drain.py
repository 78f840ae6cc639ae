"""The conversion of a topic to the classic store: the unfinished messages of its log are moved into disk queues.

The log is read from its first unfinished message to its end. Each message goes to the disk queues that
``UnfinishedMessages`` says, and is finished in the log when it is durable there and nsqd.dat names the topic and its
channels. Message ids and timestamps stay. At the end the log is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nsqx.nsqd.classic_flow import ClassicFlow
from nsqx.nsqd.classic_store import ClassicStore
from nsqx.queues.log.stored import messages_of
from nsqx.queues.log.unfinished import ChannelTarget, UnfinishedMessages
from nsqx.units import NS_PER_MS, NS_PER_S
from nsqx.wire import byteops
from nsqx.wire.message import new_message

if TYPE_CHECKING:
    from nsqx.errors import DiskQueueError
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.topic import Topic
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.log.batch import LogBatch
    from nsqx.queues.log.log import ReadJob, TopicLog
    from nsqx.queues.log.state import Changes, Hole
    from nsqx.queues.log.stored import StoredMessage
    from nsqx.queues.log.unfinished import Target

# How many copies of messages are put into disk queues in one turn of the loop, and how much of the log is read.
_COPIES_PER_TURN = 2000
_READ_BYTES = 256 * 1024
_MAX_ATTEMPTS = 0xFFFF
# The delay before a failed operation is repeated.
_RETRY_NS = NS_PER_S
# The delay before it is checked again whether nsqd.dat is saved.
_RECORDED_NS = 20 * NS_PER_MS


class LogDrain:
    """Moves the messages of one log into the classic store of its topic."""

    def __init__(self, topic: Topic, log: TopicLog, broker: Broker, on_end: Callable[[LogDrain], object]) -> None:
        self.topic = topic
        self.moved_count = 0
        self._log = log
        self._broker = broker
        self._on_end = on_end
        self._unfinished = UnfinishedMessages(topic.name, log.state)
        self._at = self._unfinished.start  # messages below it are finished
        self._is_stopped = False
        self._copied_end = 0  # messages below it are in disk queues, perhaps not durably
        self._pending_count = 0  # disk queues whose copies are not durable
        self._is_lost = False  # some copies may be lost
        for target in self._unfinished.targets:
            self._add_unmoved(target, target.count(log.state))

    def _add_unmoved(self, target: Target, count: int) -> None:
        owner = self.topic.find_channel(target.channel.name) if isinstance(target, ChannelTarget) else self.topic
        if owner is not None:
            owner.unmoved_count = max(0, owner.unmoved_count + count)

    @property
    def _is_over(self) -> bool:
        return self._is_stopped or self._broker.exiting

    def prepare(self) -> None:
        """No-op: the log needs no preparation."""

    def start(self) -> None:
        """Begin to move messages, when everything in the log is durable."""
        if self._is_over:
            return
        self._broker.logs.write_later(is_synced=True)
        if not self._broker.logs.when_committed(self._log, True, self._on_committed):
            self._read()

    def _on_committed(self, error: DiskQueueError | None) -> None:
        if error is None:
            self._read()
        else:
            self._retry(error, self.start)

    def _retry(self, error: Exception, step: Callable[[], None]) -> None:
        """Repeat a failed step later."""
        self._broker.log.error("TOPIC(%s): cannot move messages now - %s", self.topic.name, error)
        self._broker.call_in(_RETRY_NS, step)

    # Reading

    def _read(self) -> None:
        if self._is_over:
            return
        offset = self._unfinished.next_from(self._at)
        if offset >= self._log.end:
            self._end_when_recorded()
            return
        batch = self._log.batch_at(offset)
        if batch is not None:
            self._copy([batch], batch.end)
        else:
            self._broker.logs.read(self._log.begin_read(offset, _READ_BYTES), self._on_read)

    def _on_read(self, job: ReadJob) -> None:
        if self._is_over:
            return
        try:
            lost_count = self._log.end_read(job)
        except OSError as error:
            self._retry(error, self._read)
            return
        if lost_count:
            self._broker.logs.damaged_count += lost_count
            self._broker.log.error("LOG(%s): %d messages are damaged and lost", self.topic.name, lost_count)
        self._copy(job.batches, max(job.next, self._at + 1))

    # Copying

    def _copy(self, batches: list[LogBatch], end: int) -> None:
        """Put the messages of some batches into disk queues; ``end`` is the offset after them."""
        queues: dict[DiskQueue, None] = {}
        count = 0
        for message in (message for batch in batches for message in messages_of(batch, self._at)):
            if count >= _COPIES_PER_TURN:
                end = message.offset
                break
            for target in self._unfinished.targets:
                hole = target.hole_of(message)
                if hole is not None:
                    count += 1
                    queue = self._put(target, message, hole)
                    if queue is not None:
                        queues[queue] = None
        self._copied_end = end
        self._pending_count = len(queues)
        self._is_lost = False
        if not queues:
            self._copied(end)
        for queue in queues:
            self._await_copies(queue, queue.put_serial(), end)

    def _put(self, target: Target, message: StoredMessage, hole: Hole) -> DiskQueue | None:
        message_id = byteops.id_text(self._log.identity.id_number(message.offset))
        copy = new_message(message_id, message.body, message.timestamp, min(hole.attempts, _MAX_ATTEMPTS))
        copy.defer_ns = max(0, hole.due_ns - self._broker.clock.wall_ns()) if hole.due_ns else 0
        self.moved_count += 1
        self._add_unmoved(target, -1)
        if not isinstance(target, ChannelTarget):
            flow = self.topic.flow
            assert isinstance(flow, ClassicFlow)
            return flow.put_moved(copy)
        channel = self.topic.find_channel(target.channel.name)
        if channel is None:
            return None
        store = channel.store
        assert isinstance(store, ClassicStore)
        store.put_moved(copy, False)
        return store.disk

    def _await_copies(self, queue: DiskQueue, serial: int, end: int) -> None:
        if not self._is_over:
            queue.when_durable(partial(self._on_durable, queue, serial, end))

    def _on_durable(self, queue: DiskQueue, serial: int, end: int, failure: DiskQueueError | None) -> None:
        if self._is_over:
            return
        if failure is not None and not queue.is_lost(serial):
            self._retry(failure, partial(self._await_copies, queue, serial, end))
            return
        self._is_lost = self._is_lost or failure is not None
        self._pending_count -= 1
        if self._pending_count == 0:
            self._copied(end)

    def _copied(self, end: int) -> None:
        """Finish the messages below ``end`` in the log."""
        if self._is_over:
            return
        if self._is_lost:
            self._broker.log.error("TOPIC(%s): moving messages again after a failed sync", self.topic.name)
            self._broker.call_in(_RETRY_NS, self._read)
        elif not self._broker.is_recorded(self.topic):
            self._broker.call_in(_RECORDED_NS, partial(self._copied, end))
        else:
            self._change(self._unfinished.finish(self._at, end))
            self._at = end
            self._read_later()

    def _read_later(self) -> None:
        self._broker.call_soon(self._read)

    def _change(self, changes: Changes) -> None:
        if changes:
            self._log.change(changes)
            self._broker.logs.write_later(is_synced=True)

    # The end

    def _end_when_recorded(self) -> None:
        if self._is_over:
            return
        if not self._broker.is_recorded(self.topic):
            self._broker.call_in(_RECORDED_NS, self._end_when_recorded)
            return
        self._broker.logs.delete(self._log)
        self.topic.unmoved_count = 0
        for channel in self.topic.channels.values():
            channel.unmoved_count = 0
        self._end()

    def _end(self) -> None:
        self._is_stopped = True
        self._on_end(self)

    # Administration

    def discard(self, name: str, *, is_deleted: bool) -> None:
        """Discard the messages of a channel, or of the topic if ``name`` is empty, and the channel if it is deleted."""
        if name:
            self._change(self._unfinished.discard_channel(name, self._at, is_deleted=is_deleted))
            channel = self.topic.find_channel(name)
            if channel is not None:
                channel.unmoved_count = 0
        else:
            self._change(self._unfinished.discard_topic())
            self.topic.unmoved_count = 0

    def delete(self) -> None:
        """Delete the log, because the topic is deleted."""
        self._broker.logs.delete(self._log)
        self._end()

    def note_closed(self) -> None:
        """Finish what was copied, at exit, when the disk queues were closed without a failure."""
        if self._copied_end > self._at and not self._is_lost and self._broker.is_recorded(self.topic):
            self._change(self._unfinished.finish(self._at, self._copied_end))

    def close(self) -> int:
        """Stop at exit."""
        self._is_stopped = True
        return 0
