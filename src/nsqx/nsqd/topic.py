"""A topic: receives published messages and gives each of its channels a copy.

A published message goes directly to the channels if possible. Otherwise (no channel yet, paused, or channels still
being looked up) it waits in the topic's own backlog. ``pump`` moves the backlog to the channels later, a bounded number
of messages in each turn, so that a long backlog does not block the loop.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from nsqx.errors import BrokerExiting, DiskQueueError
from nsqx.names import is_ephemeral
from nsqx.nsqd.channel import Channel
from nsqx.nsqd.classic_store import RETRY_NS, ClassicStore
from nsqx.queues.due_times import DueTime
from nsqx.queues.ids import IdSource
from nsqx.wire import byteops
from nsqx.wire.message import Batch, QueuedMessage, new_batch, new_message

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
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


class Topic:
    """The channels of a topic, and the messages that have not reached them."""

    __slots__ = (
        "_broker",
        "_clock",
        "_commits",
        "_due_times",
        "_ids",
        "_is_awake",
        "_is_open",
        "_is_started",
        "_moves",
        "_moving_count",
        "_stores",
        "_turn",
        "backlog",
        "channels",
        "exiting",
        "is_ephemeral",
        "message_bytes",
        "message_count",
        "name",
        "paused",
    )

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        self.paused = False
        self.exiting = False
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        self._broker = broker
        self._turn = broker.turn
        self._commits = broker.commits
        self._clock = broker.clock
        self._ids = IdSource(broker.options.id)
        self._stores: list[ClassicStore] = []
        self._is_started = False
        self._is_open = False
        self._is_awake = False
        self._moves: deque[BacklogMove] = deque()
        self._moving_count = 0
        self.backlog: Backlog = broker.open_backlog(name, self.is_ephemeral, self)
        # The due times of deferred messages that are on disk.
        self._due_times: DueTimeQueue | None = None if self.is_ephemeral else broker.open_due_times(name)

    @property
    def depth(self) -> int:
        """Messages that have not reached the channels, in memory and on disk."""
        return self.backlog.depth

    @property
    def backend_depth(self) -> int:
        """Messages that have not reached the channels, on disk."""
        return self.backlog.disk_depth

    # Publishing

    def publish(self, items: bytes, count: int) -> None:
        """Publish ``count`` messages in the layout of an MPUB body: an int32 size before each.

        Raises BrokerExiting, or DiskQueueError if they need a disk queue that cannot be written.
        """
        if self.exiting:
            raise BrokerExiting
        if self._commits.has_failures:
            self._refuse_if_full(count)
        now_ns = self._clock.wall_ns()
        batch = new_batch(items, 0, count, now_ns, self._ids.reserve(count, now_ns))
        if self._is_open:
            self._fan_out(batch)
        else:
            self.backlog.put_batch(batch)
        self.message_count += count
        self.message_bytes += len(items) - 4 * count

    def publish_deferred(self, body: bytes, defer_ns: int) -> None:
        """Publish a message that each channel defers for ``defer_ns``; raises the errors of ``publish``."""
        if self.exiting:
            raise BrokerExiting
        if self._commits.has_failures:
            self._refuse_if_full(1)
        now_ns = self._clock.wall_ns()
        message = new_message(byteops.id_text(self._ids.reserve(1, now_ns)), body, now_ns, 0)
        message.defer_ns = defer_ns
        if self._is_open:
            self._fan_out_message(message)
        else:
            depth = self.backlog.disk_depth
            self.backlog.put_message(message)
            if self.backlog.disk_depth != depth and self._due_times is not None:
                self._due_times.add(message.id, DueTime(now_ns, now_ns + defer_ns))
        self.message_count += 1
        self.message_bytes += len(body)

    def _refuse_if_full(self, count: int) -> None:
        """Raise DiskQueueError if the messages need a disk queue that cannot be written."""
        if self._is_open:
            for store in self._stores:
                store.refuse_if_full(count)
        elif self.backlog.disk is not None and self.backlog.must_refuse(count):
            self._commits.recover(self.backlog.disk)

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

    # Moving the backlog to the channels

    def start(self) -> None:
        """Start giving messages to the channels; called when the channels that must get the first message exist."""
        self._is_started = True
        self._update_flow()

    def _can_flow(self) -> bool:
        return self._is_started and not self.paused and not self.exiting and len(self._stores) > 0

    def _update_flow(self) -> None:
        """Decide again whether publishes go directly to the channels, and wake the pump if messages wait."""
        flows = self._can_flow()
        self._is_open = flows and self.backlog.depth == 0
        if flows and not self._is_open:
            self._wake()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._turn.wake(self)

    def pump(self) -> None:
        """Move waiting messages to the channels, a bounded number in each turn."""
        self._is_awake = False
        if not self._can_flow():
            return
        moved = self._move_from_memory()
        if moved < _MOVES_PER_TURN and self.backlog.disk is not None:
            moved += self._move_from_disk(self.backlog.disk, _MOVES_PER_TURN - moved)
        self._is_open = self.backlog.depth == 0
        if not self._is_open and self.backlog.has_messages() and self._moving_count < _MAX_MOVING:
            # Continue in the next turn of the loop, or after a pause if a disk cannot be read or written now.
            self._broker.call_at(self._clock.now_ns() + (0 if moved else RETRY_NS), self._wake)

    def _move_from_memory(self) -> int:
        moved = 0
        while moved < _MOVES_PER_TURN:
            item = self.backlog.get_batch()
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
        disk = self.backlog.disk
        if disk is None or not self._moves or not self._broker.is_recorded(self):
            return
        was_full = self._moving_count >= _MAX_MOVING
        while self._moves and self._moves[0].pending_count == 0:
            move = self._moves.popleft()
            self._moving_count -= move.count
            for record in range(move.first_record, move.first_record + move.count):
                disk.finish(record)
        if disk.has_unsynced():
            self._commits.sync_later(disk)
        if was_full and self._moving_count < _MAX_MOVING and not self._is_open and self._can_flow():
            self._broker.call_at(self._clock.now_ns(), self._wake)

    def _move_again(self) -> None:
        """Read messages again whose copies were lost in a failed sync."""
        self._forget_moves()
        if self.backlog.disk is not None:
            self.backlog.disk.rewind()
        self._is_open = False
        if self._can_flow():
            self._broker.call_at(self._clock.now_ns() + RETRY_NS, self._wake)

    def _forget_moves(self) -> None:
        for move in self._moves:
            move.is_void = True
        self._moves.clear()
        self._moving_count = 0

    # Channels

    def channel(self, name: str) -> Channel:
        """Return the channel of this name, and create it if needed; raises BrokerExiting."""
        found = self.channels.get(name)
        if found is not None:
            return found
        if self.exiting:
            raise BrokerExiting
        channel = self.channels[name] = Channel(self.name, name, self._broker, self._open_store)
        self._broker.channel_created(self, channel)
        self._update_flow()
        return channel

    def _open_store(self, channel: Channel) -> ClassicStore:
        store = ClassicStore(channel, self._broker)
        self._stores.append(store)
        return store

    def find_channel(self, name: str) -> Channel | None:
        """Return the channel of this name, or None."""
        return self.channels.get(name)

    def delete_channel(self, name: str) -> bool:
        """Delete a channel with its messages; False if unknown. An ephemeral topic is deleted with its last channel."""
        channel = self.channels.pop(name, None)
        if channel is None:
            return False
        self._stores = [store for store in self._stores if store is not channel.store]
        self._update_flow()
        channel.delete()
        self._broker.channel_deleted(channel)
        if self.is_ephemeral and not self.channels and not self.exiting:
            self._broker.delete_topic(self.name)
        return True

    # Administration

    def pause(self) -> None:
        """Give no messages to the channels until ``unpause``."""
        self.paused = True
        self._update_flow()

    def unpause(self) -> None:
        """Give messages to the channels again."""
        self.paused = False
        self._update_flow()

    def empty(self) -> None:
        """Discard the messages that have not reached the channels."""
        self._forget_moves()
        self.backlog.empty()
        if self._due_times is not None:
            self._due_times.clear()
        self._update_flow()

    def delete(self) -> None:
        """Delete the topic, its channels and all their messages."""
        self.exiting = True
        self._update_flow()
        self._forget_moves()
        for name in list(self.channels):
            self.delete_channel(name)
        self.backlog.delete()
        if self._due_times is not None:
            self._due_times.clear()

    def spill(self) -> None:
        """Stop, and move every message to the disk queues, which write them later.

        Records whose copies in the channels are not yet durable stay, and the next process moves them again.
        """
        self.exiting = True
        self._update_flow()
        for channel in self.channels.values():
            channel.spill()
        disk, due_times = self.backlog.disk, self._due_times
        if disk is None or due_times is None:
            return
        wall_ns = self._clock.wall_ns()
        for item in self.backlog.drain_memory():
            if isinstance(item, Batch):
                disk.put_batch(item)
                continue
            disk.put_message(item)
            if item.defer_ns > 0:
                due_times.add(item.id, DueTime(wall_ns, wall_ns + item.defer_ns))

    def close(self) -> None:
        """Write every message to disk and release the files; raises the last error after closing every queue."""
        self.spill()
        failure: Exception | None = None
        for channel in self.channels.values():
            try:
                channel.close()
            except (OSError, DiskQueueError) as error:
                failure = error
        if self.backlog.disk is not None:
            self.backlog.disk.close()
        if self._due_times is not None:
            self._due_times.close()
        if failure is not None:
            raise failure

    def disk_queues(self) -> list[DiskQueue]:
        """Return the disk queues of the topic and its channels."""
        own = [] if self.backlog.disk is None else [self.backlog.disk]
        return own + [queue for store in self._stores for queue in store.disk_queues()]

    def lost_counts(self) -> dict[str, int]:
        """Return how many messages ``close`` could not write, by the name of their queue."""
        lost = {store.name: store.lost_count for store in self._stores}
        if self.backlog.disk is not None:
            lost[self.name] = self.backlog.disk.lost_count
        return {name: count for name, count in lost.items() if count}
