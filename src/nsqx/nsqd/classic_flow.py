"""The classic flow of a topic's messages: directly to the stores of the channels, or through a backlog of the topic.

A published message goes directly to the channels if possible. Otherwise (no channel yet, paused, or channels still
being looked up) it waits in the topic's own backlog. ``pump`` moves the backlog to the channels later, a bounded number
of messages in each turn, so that a long backlog does not block the loop.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from nsqx.errors import NotALogTopic
from nsqx.nsqd.classic_store import RETRY_NS, ClassicContents, ClassicStore
from nsqx.nsqd.publish_options import NO_OFFSET, PublishOptions, PublishOutcome
from nsqx.nsqd.topic_flow import TopicFlow
from nsqx.queues.due_times import DueTime
from nsqx.queues.ids import IdSource
from nsqx.wire import byteops
from nsqx.wire.batches import bodies_of
from nsqx.wire.message import Batch, QueuedMessage, new_batch, new_message

if TYPE_CHECKING:
    from nsqx.errors import DiskQueueError
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.channel_store import ChannelStore
    from nsqx.nsqd.topic import Topic
    from nsqx.queues.backlog import Backlog
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.due_time_queue import DueTimeQueue

# How many messages ``pump`` moves in one turn of the loop.
_MOVES_PER_TURN = 2000
# How many messages may be moved to disk queues of channels without being durable there yet.
_MAX_MOVING = 5 * _MOVES_PER_TURN


class BacklogMove:
    """Records of the topic's disk queue that are copied; ``pending_count`` copies are not durable yet."""

    __slots__ = ("count", "first_record", "is_void", "pending_count")

    def __init__(self, first_record: int, count: int, pending_count: int) -> None:
        self.first_record = first_record
        self.count = count
        self.pending_count = pending_count
        self.is_void = False  # the records were discarded, or are moved again


class ClassicFlow(TopicFlow):
    """The messages of a topic that have not reached its channels, and the stores of the channels."""

    __slots__ = (
        "_backlog",
        "_broker",
        "_clock",
        "_commits",
        "_disk",
        "_due_times",
        "_ids",
        "_is_awake",
        "_is_flowing",
        "_is_open",
        "_moves",
        "_moving_count",
        "_stores",
        "_topic",
        "_turn",
    )

    def __init__(self, topic: Topic, broker: Broker) -> None:
        """Open the flow of ``topic``; raises DiskQueueError or OSError if its files cannot be opened."""
        self._topic = topic
        self._broker = broker
        self._turn = broker.turn
        self._commits = broker.commits
        self._clock = broker.clock
        self._ids = IdSource(broker.options.id)
        self._stores: list[ClassicStore] = []
        self._is_flowing = False  # messages may go to the channels
        self._is_open = False  # published messages go directly to the channels
        self._is_awake = False
        self._moves: deque[BacklogMove] = deque()
        self._moving_count = 0
        files = broker.classic_files
        self._backlog: Backlog = files.open_backlog(topic.name, topic.is_ephemeral, self)
        self._disk = self._backlog.disk
        # The due times of deferred messages that are on disk.
        self._due_times: DueTimeQueue | None = None if topic.is_ephemeral else files.open_due_times(topic.name)

    @property
    def depth(self) -> int:
        """Messages that have not reached the channels, in memory and on disk."""
        return self._backlog.depth

    @property
    def backend_depth(self) -> int:
        """Messages that have not reached the channels, on disk."""
        return self._backlog.disk_depth

    def oldest_time_ns(self) -> int:
        """Return when the oldest message was published that has not reached the channels; 0 if none, -1 if unknown."""
        return self._backlog.oldest_time_ns()

    def contents(self, most: int) -> ClassicContents:
        """Return the messages that wait in the topic, of those in memory about ``most``."""
        disk = None if self._disk is None else self._disk.view()
        return ClassicContents([], [], self._backlog.memory_items(most), disk, {})

    # Publishing

    def publish(self, items: bytes, count: int) -> None:
        """Give ``count`` messages to the channels, or keep them in the backlog.

        Raises DiskQueueError if they need a disk queue that cannot be written.
        """
        if self._commits.has_failures:
            self._refuse_if_full(count)
        now_ns = self._clock.wall_ns()
        batch = new_batch(items, 0, count, now_ns, self._ids.reserve(count, now_ns))
        if self._is_open:
            self._fan_out(batch)
        else:
            self._backlog.put_batch(batch)

    def publish_deferred(self, body: bytes, defer_ns: int) -> None:
        """Take a message that each channel defers for ``defer_ns``; raises the errors of ``publish``."""
        if self._commits.has_failures:
            self._refuse_if_full(1)
        now_ns = self._clock.wall_ns()
        message = new_message(byteops.id_text(self._ids.reserve(1, now_ns)), body, now_ns, 0)
        message.defer_ns = defer_ns
        if self._is_open:
            self._fan_out_message(message)
        else:
            depth = self._backlog.disk_depth
            self._backlog.put_message(message)
            if self._backlog.disk_depth != depth and self._due_times is not None:
                self._due_times.add(message.id, DueTime(now_ns, now_ns + defer_ns))

    def publish_with(self, items: bytes, count: int, options: PublishOptions) -> PublishOutcome:
        """Take messages with options; raises NotALogTopic if an option needs a log, and the errors of ``publish``."""
        if options.log_option:
            raise NotALogTopic(self._topic.name, options.log_option)
        if options.defer_ns:
            for body in bodies_of(items):
                self.publish_deferred(body, options.defer_ns)
        else:
            self.publish(items, count)
        return PublishOutcome(NO_OFFSET, count)

    def admit_part(self, size: int) -> None:  # noqa: ARG002  (a classic topic has no room for any size)
        """Raise NotALogTopic: a transaction needs one frame for all its messages."""
        raise NotALogTopic(self._topic.name, "a transaction")

    def _refuse_if_full(self, count: int) -> None:
        """Raise DiskQueueError if the messages need a disk queue that cannot be written."""
        if self._is_open:
            for store in self._stores:
                store.refuse_if_full(count)
        elif self._disk is not None and self._backlog.must_refuse(count):
            self._commits.recover(self._disk)

    def _fan_out(self, batch: Batch) -> None:
        """Give every channel the batch: copies that share the bytes, and the batch itself for one channel."""
        stores = self._stores
        for index in range(1, len(stores)):
            store = stores[index]
            store.put_batch(batch.copy())
        store = stores[0]
        store.put_batch(batch)

    def _fan_out_message(self, message: QueuedMessage) -> None:
        for store in self._stores:
            store.put_message(message.copy())

    # Channels

    def open_store(self, channel: Channel, start: int | None = None) -> ClassicStore:
        """Return the store of a new channel, which gets messages from now on; raises DiskQueueError."""
        assert start is None, "a classic topic has no offsets"
        store = ClassicStore(channel, self._broker)
        self._stores.append(store)
        return store

    def remove_store(self, store: ChannelStore) -> None:
        """Give no more messages to a store."""
        self._stores = [each for each in self._stores if each is not store]

    # Moving the backlog to the channels

    def update(self, is_flowing: bool) -> None:
        """Decide again whether publishes go directly to the channels, and wake the pump if messages wait."""
        self._is_flowing = is_flowing
        self._is_open = is_flowing and self._backlog.depth == 0
        if is_flowing and not self._is_open:
            self._wake()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._turn.wake(self)

    def pump(self) -> None:
        """Move waiting messages to the channels, a bounded number in each turn."""
        self._is_awake = False
        if not self._is_flowing:
            return
        moved = self._move_from_memory()
        if moved < _MOVES_PER_TURN and self._disk is not None:
            moved += self._move_from_disk(self._disk, _MOVES_PER_TURN - moved)
        self._is_open = self._backlog.depth == 0
        if not self._is_open and self._backlog.has_messages() and self._moving_count < _MAX_MOVING:
            # Continue in the next turn of the loop, or after a pause if a disk cannot be read or written now.
            self._broker.call_at(self._clock.now_ns() + (0 if moved else RETRY_NS), self._wake)

    def _move_from_memory(self) -> int:
        moved = 0
        while moved < _MOVES_PER_TURN:
            item = self._backlog.get_batch()
            if item is None:
                break
            if isinstance(item, Batch):
                moved += item.count
                self._fan_out(item)
            else:
                moved += 1
                self._fan_out_message(item)
        return moved

    def _move_from_disk(self, disk: DiskQueue, limit: int) -> int:
        """Copy messages to the disk queue of each channel; they are finished here when the copies are durable.

        Durable messages stay durable: a power cut during a move loses nothing, but can deliver some messages twice.
        Ephemeral channels get their copies in memory, and the move does not wait for them.
        """
        limit = min(limit, _MAX_MOVING - self._moving_count)
        targets = [queue for store in self._stores for queue in store.disk_queues()]
        if any(target.failure is not None for target in targets):
            return 0
        moved = first_record = 0
        while moved < limit:
            message = disk.get()
            if message is None:
                break
            moved += 1
            first_record = first_record or message.record
            if self._due_times:
                message.defer_ns = self._due_times.take(message.id, self._clock.wall_ns())
            for store in self._stores:
                if store.disk is not None:
                    store.put_moved(message)
                else:
                    store.put_message(message.copy())
        if moved:
            move = BacklogMove(first_record, moved, len(targets))
            self._moves.append(move)
            self._moving_count += moved
            for target in targets:
                self._await_copy(move, target, target.put_serial())
            self.finish_moves()
        return moved

    def _await_copy(self, move: BacklogMove, target: DiskQueue, serial: int) -> None:
        if not move.is_void:
            target.when_durable(partial(self._on_durable, move, target, serial))

    def _on_durable(self, move: BacklogMove, target: DiskQueue, serial: int, failure: DiskQueueError | None) -> None:
        """Note that the copies of ``move`` in ``target`` up to record ``serial`` are durable, or that a sync failed."""
        if move.is_void:
            return
        if failure is None:
            move.pending_count -= 1
            self.finish_moves()
        elif target.is_lost(serial):
            self._move_again()
        else:
            retry_ns = self._clock.now_ns() + RETRY_NS
            self._broker.call_at(retry_ns, partial(self._await_copy, move, target, serial))

    def finish_moves(self) -> None:
        """Finish the records whose copies are durable in channels that nsqd.dat names."""
        disk = self._disk
        if disk is None or not self._moves or not self._broker.is_recorded(self._topic):
            return
        was_full = self._moving_count >= _MAX_MOVING
        while self._moves and self._moves[0].pending_count == 0:
            move = self._moves.popleft()
            self._moving_count -= move.count
            for record in range(move.first_record, move.first_record + move.count):
                disk.finish(record)
        if disk.has_unsynced():
            self._commits.sync_later(disk)
        if was_full and self._moving_count < _MAX_MOVING and not self._is_open and self._is_flowing:
            self._broker.call_at(self._clock.now_ns(), self._wake)

    def _move_again(self) -> None:
        """Read messages again whose copies were lost in a failed sync."""
        self._forget_moves()
        if self._disk is not None:
            self._disk.rewind()
        self._is_open = False
        if self._is_flowing:
            self._broker.call_at(self._clock.now_ns() + RETRY_NS, self._wake)

    def _forget_moves(self) -> None:
        for move in self._moves:
            move.is_void = True
        self._moves.clear()
        self._moving_count = 0

    def put_moved(self, message: QueuedMessage) -> DiskQueue:
        """Put a message of another store into the disk queue of the topic, and return the queue."""
        disk, due_times = self._disk, self._due_times
        assert disk is not None
        assert due_times is not None
        disk.put_message(message)
        if message.defer_ns > 0:
            wall_ns = self._clock.wall_ns()
            due_times.add(message.id, DueTime(wall_ns, wall_ns + message.defer_ns))
        self._is_open = False  # the queue pumps the flow when it is written
        return disk

    def put_letter(self, body: bytes) -> DiskQueue | None:
        """Put a dead letter into the disk queue of the topic, and return the queue; None if the topic has none.

        Raise DiskQueueError if the queue cannot be written.
        """
        if self._disk is None:
            return None
        if self._disk.failure is not None:
            self._commits.recover(self._disk)
        now_ns = self._clock.wall_ns()
        return self.put_moved(new_message(self.new_id(now_ns), body, now_ns, 0))

    def new_id(self, now_ns: int) -> bytes:
        """Return a new message id of the topic."""
        return byteops.id_text(self._ids.reserve(1, now_ns))

    # Administration

    def empty(self) -> None:
        """Discard the messages that have not reached the channels."""
        self._forget_moves()
        self._backlog.empty()
        if self._due_times is not None:
            self._due_times.clear()
        self.update(self._is_flowing)

    def delete(self) -> None:
        """Discard the messages and remove the files."""
        self._forget_moves()
        self._backlog.delete()
        if self._disk is not None:
            self._commits.forget(self._disk)
        if self._due_times is not None:
            self._due_times.clear()

    def spill(self) -> None:
        """Move every message to the disk queue, which writes them later.

        Records whose copies in the channels are not yet durable stay, and the next process moves them again.
        """
        disk, due_times = self._disk, self._due_times
        if disk is None or due_times is None:
            return
        wall_ns = self._clock.wall_ns()
        for item in self._backlog.drain_memory():
            if isinstance(item, Batch):
                disk.put_batch(item)
                continue
            disk.put_message(item)
            if item.defer_ns > 0:
                due_times.add(item.id, DueTime(wall_ns, wall_ns + item.defer_ns))

    def close(self) -> None:
        """Write every message to disk and release the files; raises DiskQueueError or OSError on failure."""
        try:
            if self._disk is not None:
                self._disk.close()
        finally:
            if self._due_times is not None:
                self._due_times.close()

    def disk_queues(self) -> list[DiskQueue]:
        """Return the disk queues of the topic and its channels."""
        own = [] if self._disk is None else [self._disk]
        return own + [queue for store in self._stores for queue in store.disk_queues()]

    def lost_counts(self) -> dict[str, int]:
        """Return how many messages could not be written at the end, by the name of their queue."""
        lost = {store.name: store.lost_count for store in self._stores}
        if self._disk is not None:
            lost[self._disk.name] = self._disk.lost_count
        return {name: count for name, count in lost.items() if count}
