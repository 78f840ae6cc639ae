"""A channel: one copy of a topic's messages, divided among its consumers.

In Go nsqd a goroutine for each consumer takes messages from the channel. Here the channel distributes them: ``pump``
gives waiting messages to ready clients in turn until there are no more messages or no more ready clients. It is called
at the end of a turn in which a message arrived or a client became ready, so nothing is polled. Message timeouts and
due times are exact: one timer is set to the earliest.
"""

from __future__ import annotations

from random import randrange
from typing import TYPE_CHECKING

from nsqx.errors import BrokerExiting, TooManyConsumers
from nsqx.names import is_ephemeral
from nsqx.queues.deadlines import NEVER_NS, Deferred, InFlight
from nsqx.queues.due_times import DueTime, save_due_times
from nsqx.units import NS_PER_S
from nsqx.wire import byteops
from nsqx.wire.message import Batch, QueuedMessage

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.clock import Timer
    from nsqx.nsqd.latency import LatencySketch
    from nsqx.queues.backlog import Backlog

# How near a client is, when topology-aware consumption is on. The nearest ready one is served first.
SAME_ZONE = 0
SAME_REGION = 1
ELSEWHERE = 2

# The delay before a disk queue is read again after a failed read.
RETRY_NS = 100_000_000

# How many timed-out and how many due messages are put back in one turn of the loop.
_PUT_BACK_PER_TURN = 2000
_NEVER_NS = NEVER_NS
_ELSEWHERE = ELSEWHERE
# The delay for a different message whose id is in flight already. That happens only if the clock was set back between
# two runs.
_ID_CLASH_DELAY_NS = NS_PER_S

NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNER = "client does not own message"


class Channel:
    """Backlog, messages in flight and deferred messages of one channel, and the clients that consume it."""

    __slots__ = (
        "_broker",
        "_clock",
        "_due_ns",
        "_has_near",
        "_is_awake",
        "_max_consumers",
        "_next",
        "_ready",
        "_ready_near",
        "_recorded_count",
        "_timer",
        "_timer_ns",
        "_turn",
        "backlog",
        "clients",
        "deferred",
        "exiting",
        "global_msg_count",
        "in_flight",
        "is_ephemeral",
        "latency",
        "lost_count",
        "message_count",
        "name",
        "paused",
        "region_local_msg_count",
        "requeue_count",
        "timeout_count",
        "topic_name",
        "zone_local_msg_count",
    )

    def __init__(self, topic_name: str, name: str, broker: Broker) -> None:
        self.topic_name = topic_name
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        self.paused = False
        self.exiting = False
        self.clients: dict[int, Client] = {}
        self.in_flight = InFlight()
        self.deferred = Deferred()
        self.latency: LatencySketch | None = broker.new_latency_sketch()
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.zone_local_msg_count = 0
        self.region_local_msg_count = 0
        self.global_msg_count = 0
        self._broker = broker
        self._turn = broker.turn
        self._clock = broker.clock
        self._max_consumers = broker.options.max_channel_consumers
        # Clients that may be ready, in round-robin order; nearer ones in lists of their own if topology matters.
        self._ready: list[Client] = []
        self._ready_near: list[list[Client]] = [[], []]
        self._has_near = False
        self._next = 0
        self._is_awake = False
        self._timer: Timer | None = None
        self._timer_ns = NEVER_NS
        self._recorded_count = 0  # messages that are in the disk queue twice since ``spill``
        self.lost_count = 0  # messages that ``close`` could not write
        self.backlog: Backlog = broker.open_backlog(self.queue_name, self.is_ephemeral, self._disk_pending)
        self._due_ns: dict[bytes, int] = {} if self.is_ephemeral else self._load_due_times()

    @property
    def queue_name(self) -> str:
        """The name that its files start with."""
        return f"{self.topic_name}:{self.name}"

    @property
    def depth(self) -> int:
        """Waiting messages, without those in flight or deferred."""
        return self.backlog.depth

    @property
    def backend_depth(self) -> int:
        """Messages waiting on disk."""
        return self.backlog.disk_depth

    @property
    def in_flight_count(self) -> int:
        """Messages in flight."""
        return len(self.in_flight)

    @property
    def deferred_count(self) -> int:
        """Deferred messages."""
        return len(self.deferred)

    # Arrivals

    def put_batch(self, batch: Batch) -> None:
        """Take over a batch from the topic."""
        self.message_count += batch.count
        # With a memory queue of 0 a message is on disk before it is delivered.
        if (self.is_ephemeral or self.backlog.holds_memory()) and not self.paused and not self.backlog.has_messages():
            self._deliver_batch(batch)
        if batch.count:
            self.backlog.put_batch(batch)
            if self._ready or self._has_near:
                self._wake()  # otherwise the channel wakes when a client becomes ready

    def put_message(self, message: QueuedMessage) -> None:
        """Take over one message from the topic, and defer it if it has a delay."""
        self.message_count += 1
        if message.defer_ns > 0:
            self._defer(message, self._clock.now_ns() + message.defer_ns)
        else:
            self._put_back(message)

    def put_moved(self, message: QueuedMessage) -> None:
        """Move one message from the topic's disk queue to the channel's own, where it stays durable."""
        assert self.backlog.disk is not None
        self.message_count += 1
        if message.defer_ns > 0:
            self._due_ns[message.id] = self._clock.now_ns() + message.defer_ns
        self.backlog.disk.put_message(message)

    def _put_back(self, message: QueuedMessage) -> None:
        if self.backlog.disk is None and not self.backlog.holds_memory():
            self._deliver_or_drop(message)
            return
        self.backlog.put_back(message)
        self._wake()

    def _deliver_or_drop(self, message: QueuedMessage) -> None:
        """Deliver or drop: an ephemeral channel with a memory queue of 0 keeps no messages."""
        client = None if self.paused else self._next_ready()
        if client is not None:
            self._deliver(client, message, self._clock.now_ns())
            self._arm(self._clock.now_ns() + client.msg_timeout_ns)

    def _defer(self, message: QueuedMessage, due_ns: int) -> None:
        self.deferred.push(message, due_ns)
        self._arm(due_ns)

    def _disk_pending(self) -> None:
        self._turn.write_for(self)

    # Delivery

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._turn.wake(self)

    def pump(self) -> None:
        """Give waiting messages to ready clients in turn, until there are no more of either."""
        self._is_awake = False
        if self.paused or self.exiting:
            return
        now_ns = self._clock.now_ns()
        earliest_ns = _NEVER_NS
        while True:
            client = self._next_ready()
            if client is None:
                break
            message = self.backlog.get()
            if message is None:
                if self.backlog.has_messages():
                    earliest_ns = now_ns + RETRY_NS
                break
            if self._due_ns and self._hold_if_not_due(message, now_ns):
                continue
            self._deliver(client, message, now_ns)
            if now_ns + client.msg_timeout_ns < earliest_ns:
                earliest_ns = now_ns + client.msg_timeout_ns
        if earliest_ns < self._timer_ns:
            self._arm(earliest_ns)
        if self.backlog.disk is not None and self.backlog.disk.has_unsynced():
            self._turn.sync_later(self.backlog.disk)

    def _deliver_batch(self, batch: Batch) -> None:
        """Deliver a batch directly to ready clients; undelivered messages stay in the batch."""
        client = self._next_ready()
        if client is None:
            return
        now_ns = self._clock.now_ns()
        earliest_ns = _NEVER_NS
        while client is not None and batch.count:
            self._deliver(client, batch.take(), now_ns)
            if now_ns + client.msg_timeout_ns < earliest_ns:
                earliest_ns = now_ns + client.msg_timeout_ns
            client = self._next_ready()
        if earliest_ns < self._timer_ns:
            self._arm(earliest_ns)

    def _next_ready(self) -> Client | None:
        """Return the next ready client in turn, or None."""
        if self._has_near:
            for near in self._ready_near:
                while near:
                    client = near[0]
                    if client.is_ready():
                        near.append(near.pop(0))
                        return client
                    del near[0]
                    client.is_in_ready_list = False
            self._has_near = False
        ready = self._ready
        while ready:
            if self._next >= len(ready):
                self._next = 0
            client = ready[self._next]
            if client.is_ready():
                self._next += 1
                return client
            del ready[self._next]
            client.is_in_ready_list = False
        return None

    def _deliver(self, client: Client, message: QueuedMessage, now_ns: int) -> None:
        if client.sample_rate > 0 and randrange(100) > client.sample_rate:
            self.backlog.finish(message)  # sampling discards the message for this channel
            return
        if not self.in_flight.add(message, now_ns, client.msg_timeout_ns):
            self._resolve_duplicate_id(message, now_ns)
            return
        message.client_id = client.id
        message.attempts = (message.attempts + 1) & 0xFFFF
        client.in_flight_count += 1
        client.message_count += 1
        if client.locality == _ELSEWHERE:
            self.global_msg_count += 1
        elif client.locality == SAME_ZONE:
            self.zone_local_msg_count += 1
        else:
            self.region_local_msg_count += 1
        byteops.append_message(client.output.frames, message.timestamp, message.attempts, message.id, message.body)
        if not client.has_unsent:
            self._turn.send_to(client)

    def _resolve_duplicate_id(self, message: QueuedMessage, now_ns: int) -> None:
        """Handle a message whose id is in flight: drop the same message read twice from disk, defer a different one."""
        existing = self.in_flight.find(message.id, 0)
        if existing is None or existing.timestamp != message.timestamp:
            self._defer(message, now_ns + _ID_CLASH_DELAY_NS)
        else:
            self.backlog.finish(message)

    def _hold_if_not_due(self, message: QueuedMessage, now_ns: int) -> bool:
        """Defer a message that has a due time from the topic or an earlier process; True if it is not due yet."""
        due_ns = self._due_ns.pop(message.id, 0)
        if due_ns <= now_ns:
            return False
        self._defer(message, due_ns)
        return True

    def add_if_ready(self, client: Client) -> None:
        """Add ``client`` to the ready list if it can take another message."""
        if not client.is_in_ready_list and client.is_ready():
            client.is_in_ready_list = True
            if client.locality == _ELSEWHERE:
                self._ready.append(client)
            else:
                self._ready_near[client.locality].append(client)
                self._has_near = True
            if not self._is_awake and not self.paused and self.backlog.has_messages():
                self._is_awake = True
                self._turn.wake(self)

    # Commands of clients for messages in flight

    def finish(self, client: Client, message_id: bytes) -> str | None:
        """Finish a message; returns None, or the reason for a refusal."""
        message = self.in_flight.take(message_id, client.msg_timeout_ns, client.id)
        if message is None:  # in another list: its timeout was shortened, or the client has changed its timeout
            message = self.in_flight.find(message_id, client.msg_timeout_ns)
            if message is None:
                return NOT_IN_FLIGHT
            if message.client_id != client.id:
                return NOT_OWNER
            self.in_flight.remove(message, client.msg_timeout_ns)
        if message.record and self.backlog.finish(message) and self.backlog.disk is not None:
            self._turn.sync_later(self.backlog.disk)
        client.in_flight_count -= 1
        client.finish_count += 1
        if self.latency is not None:
            now_ns = self._clock.wall_ns()
            self.latency.add(now_ns - message.timestamp, now_ns)
        if not client.is_in_ready_list:
            self.add_if_ready(client)
        return None

    def requeue(self, client: Client, message_id: bytes, delay_ns: int) -> str | None:
        """Deliver a message again, now or after a delay; returns None, or the reason for a refusal."""
        message = self.in_flight.find(message_id, client.msg_timeout_ns)
        if message is None:
            return NOT_IN_FLIGHT
        if message.client_id != client.id:
            return NOT_OWNER
        if self.exiting:
            return "exiting"
        self.in_flight.remove(message, client.msg_timeout_ns)
        self.requeue_count += 1
        client.in_flight_count -= 1
        client.requeue_count += 1
        self.add_if_ready(client)
        if delay_ns > 0:
            self._defer(message, self._clock.now_ns() + delay_ns)
        else:
            self._put_back(message)
        return None

    def touch(self, client: Client, message_id: bytes) -> str | None:
        """Restart the timeout of a message; returns None, or the reason for a refusal."""
        message = self.in_flight.find(message_id, client.msg_timeout_ns)
        if message is None:
            return NOT_IN_FLIGHT
        if message.client_id != client.id:
            return NOT_OWNER
        max_timeout_ns = self._broker.options.max_msg_timeout
        self.in_flight.touch(message, self._clock.now_ns(), client.msg_timeout_ns, max_timeout_ns)
        return None

    # Deadlines

    def _arm(self, deadline_ns: int) -> None:
        """Make sure that the timer fires at ``deadline_ns`` or earlier."""
        if deadline_ns >= self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        self._timer = self._broker.call_at(deadline_ns, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_ns = NEVER_NS
        if self.exiting:
            return
        now_ns = self._clock.now_ns()
        self._put_back_late(now_ns)
        self._arm(min(self.in_flight.next_deadline(), self.deferred.next_deadline()))
        self._wake()

    def _put_back_late(self, now_ns: int) -> None:
        """Put back some of the timed-out and due messages; the timer fires at once again for the others."""
        for message in self.in_flight.pop_due(now_ns, _PUT_BACK_PER_TURN):
            self.timeout_count += 1
            client = self.clients.get(message.client_id)
            if client is not None:
                client.in_flight_count -= 1
                self.add_if_ready(client)
            self._put_back(message)
        for message in self.deferred.pop_due(now_ns, _PUT_BACK_PER_TURN):
            self._put_back(message)

    # Clients

    def add_client(self, client: Client) -> None:
        """Add a consumer; raises TooManyConsumers or BrokerExiting."""
        if self.exiting:
            raise BrokerExiting
        if self._max_consumers and len(self.clients) >= self._max_consumers:
            raise TooManyConsumers(self.topic_name, self.name, self._max_consumers)
        self.clients[client.id] = client
        client.locality = self._broker.locality_of(client)

    def remove_client(self, client: Client) -> None:
        """Remove a consumer; its messages stay in flight until they time out."""
        if self.clients.pop(client.id, None) is None:
            return
        if client.is_in_ready_list:
            client.is_in_ready_list = False
            for ready in (self._ready, *self._ready_near):
                if client in ready:
                    ready.remove(client)
        if self.is_ephemeral and not self.clients and not self.exiting:
            self._broker.delete_channel(self.topic_name, self.name)

    # Administration

    def pause(self) -> None:
        """Deliver nothing until ``unpause``."""
        self.paused = True

    def unpause(self) -> None:
        """Deliver again."""
        self.paused = False
        self._wake()

    def empty(self) -> None:
        """Discard all messages: waiting, in flight and deferred."""
        self._broker.discard(self.in_flight.clear())
        self._broker.discard(self.deferred.take_entries())
        self._due_ns.clear()
        self.backlog.empty()
        for client in self.clients.values():
            client.in_flight_count = 0
            self.add_if_ready(client)

    def delete(self) -> None:
        """Disconnect the clients, discard all messages and remove the files."""
        self._stop()
        self._broker.discard(self.in_flight.clear())
        self._broker.discard(self.deferred.take_entries())
        self.backlog.delete()
        self._save_due_times({})

    def spill(self) -> None:
        """Stop, and move every message to the disk queue, which writes them later."""
        self._stop()
        disk = self.backlog.disk
        if disk is None:
            return
        deferred = self.deferred.clear()
        self._due_ns.update((message.id, message.deadline_ns) for message in deferred)
        recorded: list[QueuedMessage] = []
        for item in [*self.backlog.drain_memory(), *self.in_flight.clear(), *deferred]:
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
        self.spill()
        disk = self.backlog.disk
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

    def _stop(self) -> None:
        self.exiting = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for client in self.clients.values():
            self._turn.close(client)

    def _load_due_times(self) -> dict[bytes, int]:
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
        saved = self._broker.load_due_times(self.queue_name)
        return {message_id: now_ns + due_time.delay_ns(wall_ns) for message_id, due_time in saved.items()}

    def _save_due_times(self, due_times: dict[bytes, DueTime]) -> None:
        if not self.is_ephemeral:
            save_due_times(self._broker.data_path, self.queue_name, due_times)
