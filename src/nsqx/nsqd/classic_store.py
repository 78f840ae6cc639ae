"""The classic store of a channel: a memory queue that overflows to a disk queue, as in Go nsqd.

Messages in flight and deferred messages are in memory. At exit everything goes to the disk queue, and the due times of
deferred messages go to a file beside it. Ephemeral channels have no files: their overflow is dropped.
"""

from __future__ import annotations

from itertools import islice
from random import randrange
from typing import TYPE_CHECKING, NamedTuple

from nsqx.nsqd.channel_store import EXITING, NOT_IN_FLIGHT, NOT_OWNER, ChannelStore
from nsqx.queues.deadlines import NEVER_NS, Deferred, InFlight
from nsqx.queues.due_times import DueTime
from nsqx.units import NS_PER_S
from nsqx.wire import byteops
from nsqx.wire.message import Batch, QueuedMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.ready_clients import ReadyClients
    from nsqx.queues.backlog import Backlog
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.queue_view import QueueView

# The delay before a disk queue is read again after a failed read.
RETRY_NS = 100_000_000

# How many timed-out and how many due messages are put back in one turn of the loop.
_PUT_BACK_PER_TURN = 2000
_NEVER_NS = NEVER_NS
# The delay for a different message whose id is in flight already. That happens only if the clock was set back between
# two runs.
_ID_CLASH_DELAY_NS = NS_PER_S


class ClassicContents(NamedTuple):
    """Messages of a topic or a channel at one moment, for a reader that changes nothing. Times are monotonic."""

    in_flight: list[QueuedMessage]
    deferred: list[QueuedMessage]
    memory: list[Batch | QueuedMessage]
    disk: QueueView | None
    due_ns: dict[bytes, int]  # of waiting messages, by id

    def waiting(self) -> Iterator[QueuedMessage]:
        """Yield the waiting messages, in memory and then on disk. Call it once, in a thread: it reads files."""
        for item in self.memory:
            if isinstance(item, Batch):
                while item.count:
                    yield item.take()
            else:
                yield item
        if self.disk is not None:
            yield from self.disk.messages()


class ClassicStore(ChannelStore):
    """Backlog, messages in flight, deferred messages and due times of one channel."""

    __slots__ = (
        "_backlog",
        "_broker",
        "_channel",
        "_clock",
        "_commits",
        "_deferred",
        "_due_ns",
        "_failed",
        "_in_flight",
        "_recorded_count",
        "disk",
        "lost_count",
        "name",
    )

    def __init__(self, channel: Channel, broker: Broker) -> None:
        """Open the store of ``channel``; raises DiskQueueError if its disk queue cannot be opened."""
        self.name = f"{channel.topic_name}:{channel.name}"  # its files start with it
        self._channel = channel
        self._broker = broker
        self._commits = broker.commits
        self._clock = broker.clock
        self._in_flight = InFlight()
        self._deferred = Deferred()
        # Messages that have failed their last attempt and are not finished, by id. A crash repeats that attempt.
        self._failed: dict[bytes, QueuedMessage] = {}
        self._recorded_count = 0  # messages that are in the disk queue twice since ``spill``
        self.lost_count = 0  # messages that ``close`` could not write
        self._backlog: Backlog = broker.classic_files.open_backlog(self.name, channel.is_ephemeral, channel)
        self.disk = self._backlog.disk  # None for an ephemeral channel
        # Due times of waiting messages, from the topic or an earlier process.
        self._due_ns: dict[bytes, int] = {} if channel.is_ephemeral else self._load_due_times()

    @property
    def depth(self) -> int:
        """Waiting messages, without those in flight or deferred."""
        return self._backlog.depth + len(self._failed)

    @property
    def backend_depth(self) -> int:
        """Messages waiting on disk."""
        return self._backlog.disk_depth

    @property
    def in_flight_count(self) -> int:
        """Messages in flight."""
        return len(self._in_flight)

    @property
    def deferred_count(self) -> int:
        """Deferred messages."""
        return len(self._deferred)

    def oldest_time_ns(self) -> int:
        """Return about when the oldest waiting or in-flight message was published; 0 if none, -1 if unknown."""
        waiting, in_flight = self._backlog.oldest_time_ns(), self._in_flight.oldest_time_ns()
        return min(waiting, in_flight) if waiting and in_flight else waiting or in_flight

    def contents(self, most: int) -> ClassicContents:
        """Return the messages, of those in memory and in flight about ``most`` each. Messages change after that."""
        return ClassicContents(
            list(islice(self._in_flight, most)),
            self._deferred.messages(),
            self._backlog.memory_items(most),
            None if self.disk is None else self.disk.view(),
            self._due_ns.copy(),
        )

    # Arrivals

    def put_batch(self, batch: Batch) -> None:
        """Take over a batch from the topic. Messages for ready clients are delivered at once."""
        channel = self._channel
        channel.arrived(batch.count)
        # With a memory queue of 0 a message is on disk before it is delivered.
        may_skip_disk = channel.is_ephemeral or self._backlog.holds_memory()
        if may_skip_disk and not channel.paused and not self._backlog.has_messages():
            self._hand_out_batch(channel.ready, batch)
        if batch.count:
            self._backlog.put_batch(batch)
            if channel.ready.has_any():
                channel.wake()  # otherwise the channel wakes when a client becomes ready

    def put_message(self, message: QueuedMessage) -> None:
        """Take over one message from the topic, and defer it if it has a delay."""
        self._channel.arrived(1)
        if message.defer_ns > 0:
            self._defer(message, self._clock.now_ns() + message.defer_ns)
        else:
            self._put_back(message)

    def put_moved(self, message: QueuedMessage, is_new: bool = True) -> None:
        """Move one message from the topic's disk queue or another store to the channel's own, where it stays durable.

        ``is_new``: the channel has not counted it.
        """
        assert self.disk is not None
        if is_new:
            self._channel.arrived(1)
        if message.defer_ns > 0:
            self._due_ns[message.id] = self._clock.now_ns() + message.defer_ns
        self.disk.put_message(message)

    def refuse_if_full(self, count: int) -> None:
        """Raise DiskQueueError if ``count`` more messages need the disk queue and it cannot be written."""
        if self.disk is not None and self._backlog.must_refuse(count):
            self._commits.recover(self.disk)

    def _put_back(self, message: QueuedMessage) -> None:
        if self.disk is None and not self._backlog.holds_memory():
            self._deliver_or_drop(message)
            return
        self._backlog.put_back(message)
        self._channel.wake()

    def _deliver_or_drop(self, message: QueuedMessage) -> None:
        """Deliver or drop: an ephemeral channel with a memory queue of 0 keeps no messages."""
        client = None if self._channel.paused else self._channel.ready.next()
        if client is not None:
            self._deliver(client, message, self._clock.now_ns())
            self._channel.arm(self._clock.now_ns() + client.msg_timeout_ns)

    def _defer(self, message: QueuedMessage, due_ns: int) -> None:
        self._deferred.push(message, due_ns)
        self._channel.arm(due_ns)

    # Delivery

    def has_messages(self) -> bool:
        """True if ``hand_out`` may deliver a message now."""
        return self._backlog.has_messages()

    def hand_out(self, ready: ReadyClients, now_ns: int) -> int:
        """Deliver waiting messages to ready clients in turn; return the earliest deadline."""
        earliest_ns = _NEVER_NS
        while True:
            client = ready.next()
            if client is None:
                break
            message = self._backlog.get()
            if message is None:
                if self._backlog.has_messages():
                    earliest_ns = now_ns + RETRY_NS
                break
            if self._due_ns and self._hold_if_not_due(message, now_ns):
                continue
            self._deliver(client, message, now_ns)
            if now_ns + client.msg_timeout_ns < earliest_ns:
                earliest_ns = now_ns + client.msg_timeout_ns
        if self.disk is not None and self.disk.has_unsynced():
            self._commits.sync_later(self.disk)
        return earliest_ns

    def _hand_out_batch(self, ready: ReadyClients, batch: Batch) -> None:
        """Deliver a batch directly to ready clients; undelivered messages stay in the batch."""
        client = ready.next()
        if client is None:
            return
        now_ns = self._clock.now_ns()
        earliest_ns = _NEVER_NS
        while client is not None and batch.count:
            self._deliver(client, batch.take(), now_ns)
            if now_ns + client.msg_timeout_ns < earliest_ns:
                earliest_ns = now_ns + client.msg_timeout_ns
            client = ready.next()
        self._channel.arm(earliest_ns)

    def _deliver(self, client: Client, message: QueuedMessage, now_ns: int) -> None:
        if client.sample_rate > 0 and randrange(100) > client.sample_rate:
            self._backlog.finish(message)  # sampling discards the message for this channel
            return
        if not self._in_flight.add(message, now_ns, client.msg_timeout_ns):
            self._resolve_duplicate_id(message, now_ns)
            return
        message.client_id = client.id
        message.attempts = (message.attempts + 1) & 0xFFFF
        byteops.append_message(client.output.frames, message.timestamp, message.attempts, message.id, message.body)
        self._channel.delivered(client)

    def _resolve_duplicate_id(self, message: QueuedMessage, now_ns: int) -> None:
        """Handle a message whose id is in flight: drop the same message read twice from disk, defer a different one."""
        existing = self._in_flight.find(message.id, 0)
        if existing is None or existing.timestamp != message.timestamp:
            self._defer(message, now_ns + _ID_CLASH_DELAY_NS)
        else:
            self._backlog.finish(message)

    def _hold_if_not_due(self, message: QueuedMessage, now_ns: int) -> bool:
        """Defer a message that has a due time from the topic or an earlier process; True if it is not due yet."""
        due_ns = self._due_ns.pop(message.id, 0)
        if due_ns <= now_ns:
            return False
        self._defer(message, due_ns)
        return True

    def expire(self, now_ns: int) -> None:
        """Put back some of the timed-out and due messages."""
        for message in self._in_flight.pop_due(now_ns, _PUT_BACK_PER_TURN):
            self._channel.timed_out(message.client_id)
            if not self._fails(message):
                self._put_back(message)
        for message in self._deferred.pop_due(now_ns, _PUT_BACK_PER_TURN):
            self._put_back(message)

    def next_deadline(self) -> int:
        """Return the time of the next timeout or due time, or NEVER_NS."""
        return min(self._in_flight.next_deadline(), self._deferred.next_deadline())

    # Commands of clients for messages in flight

    def finish(self, client: Client, message_id: bytes) -> str | None:
        """Finish a message; returns None, or the reason for a refusal."""
        message = self._in_flight.take(message_id, client.msg_timeout_ns, client.id)
        if message is None:  # in another list: its timeout was shortened, or the client has changed its timeout
            message = self._in_flight.find(message_id, client.msg_timeout_ns)
            if message is None:
                return NOT_IN_FLIGHT
            if message.client_id != client.id:
                return NOT_OWNER
            self._in_flight.remove(message, client.msg_timeout_ns)
        if message.record and self._backlog.finish(message) and self.disk is not None:
            self._commits.sync_later(self.disk)
        self._channel.finished(client, message.timestamp)
        return None

    def requeue(self, client: Client, message_id: bytes, delay_ns: int) -> str | None:
        """Deliver a message again, now or after a delay; returns None, or the reason for a refusal."""
        message = self._in_flight.find(message_id, client.msg_timeout_ns)
        if message is None:
            return NOT_IN_FLIGHT
        if message.client_id != client.id:
            return NOT_OWNER
        if self._channel.exiting:
            return EXITING
        self._in_flight.remove(message, client.msg_timeout_ns)
        self._channel.requeued(client)
        if self._fails(message):
            return None
        if delay_ns > 0:
            self._defer(message, self._clock.now_ns() + delay_ns)
        else:
            self._put_back(message)
        return None

    def touch(self, client: Client, message_id: bytes, max_timeout_ns: int) -> str | None:
        """Restart the timeout of a message; returns None, or the reason for a refusal."""
        message = self._in_flight.find(message_id, client.msg_timeout_ns)
        if message is None:
            return NOT_IN_FLIGHT
        if message.client_id != client.id:
            return NOT_OWNER
        self._in_flight.touch(message, self._clock.now_ns(), client.msg_timeout_ns, max_timeout_ns)
        return None

    # Messages at the attempt limit

    def _fails(self, message: QueuedMessage) -> bool:
        """True if a message has had its last attempt. A dead letter is made of it, and it is finished then."""
        if not 0 < self._channel.max_attempts <= message.attempts:
            return False
        message.attempts -= 1  # until it is finished
        self._failed[message.id] = message
        self._broker.dead_letters.add_classic(self._channel, message)
        return True

    def is_failed(self, message: QueuedMessage) -> bool:
        """True if a message has failed its last attempt and is not finished."""
        return self._failed.get(message.id) is message

    def finish_failed(self, message: QueuedMessage) -> None:
        """Finish a message that has failed its last attempt."""
        del self._failed[message.id]
        if self._backlog.finish(message) and self.disk is not None:
            self._commits.sync_later(self.disk)
        self._channel.dead_count += 1

    def take_waiting(self, limit: int) -> list[QueuedMessage]:
        """Remove and return up to ``limit`` waiting messages. The caller puts each back, or finishes it."""
        taken: list[QueuedMessage] = []
        while len(taken) < limit:
            message = self._backlog.get()
            if message is None:
                break
            taken.append(message)
        return taken

    def put_taken_back(self, messages: list[QueuedMessage]) -> None:
        """Let messages wait again."""
        for message in messages:
            self._put_back(message)

    def finish_taken(self, messages: list[QueuedMessage]) -> None:
        """Finish messages that were taken."""
        is_sync_needed = False
        for message in messages:
            self._due_ns.pop(message.id, None)
            is_sync_needed = self._backlog.finish(message) or is_sync_needed
        if is_sync_needed and self.disk is not None:
            self._commits.sync_later(self.disk)

    # Administration

    def empty(self) -> None:
        """Discard all messages: waiting, in flight and deferred."""
        self._discard_unfinished()
        self._due_ns.clear()
        self._backlog.empty()

    def delete(self) -> None:
        """Discard all messages and remove the files."""
        self._discard_unfinished()
        self._backlog.delete()
        for queue in self.disk_queues():
            self._commits.forget(queue)
        self._save_due_times({})

    def _discard_unfinished(self) -> None:
        self._broker.discard(self._in_flight.clear())
        self._broker.discard(self._deferred.take_entries())
        self._failed.clear()

    def spill(self) -> None:
        """Move every message to the disk queue, which writes them later."""
        disk = self.disk
        if disk is None:
            return
        deferred = self._deferred.clear()
        self._due_ns.update((message.id, message.deadline_ns) for message in deferred)
        recorded: list[QueuedMessage] = []
        unfinished = [*self._in_flight.clear(), *deferred, *self._failed.values()]
        self._failed.clear()
        for item in [*self._backlog.drain_memory(), *unfinished]:
            if isinstance(item, Batch):
                disk.put_batch(item)
            elif item.record:
                recorded.append(item)
            else:
                disk.put_message(item)
        # These come last because they are not lost if the write fails: the records they were read from still exist.
        for message in recorded:
            disk.put_message(message)
        self._recorded_count += len(recorded)
        disk.finish_all()

    def close(self) -> None:
        """Write every message to disk and release the files; raises DiskQueueError or OSError on failure."""
        disk = self.disk
        if disk is None:
            return
        try:
            disk.close()
        finally:
            self.lost_count = max(0, disk.lost_count - self._recorded_count)
            now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
            self._save_due_times(
                {
                    message_id: DueTime(wall_ns, wall_ns + due - now_ns)
                    for message_id, due in self._due_ns.items()
                    if due > now_ns
                }
            )

    def disk_queues(self) -> list[DiskQueue]:
        """Return the disk queue, if the store has one."""
        return [] if self.disk is None else [self.disk]

    def _load_due_times(self) -> dict[bytes, int]:
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
        saved = self._broker.classic_files.load_due_times(self.name)
        return {message_id: now_ns + due_time.delay_ns(wall_ns) for message_id, due_time in saved.items()}

    def _save_due_times(self, due_times: dict[bytes, DueTime]) -> None:
        if not self._channel.is_ephemeral:
            self._broker.classic_files.save_due_times(self.name, due_times)
