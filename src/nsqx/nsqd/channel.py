"""A channel: one copy of a topic's messages, divided among its consumers.

The channel keeps its consumers, its timer, its limits and its counters. The messages are in its store.

In Go nsqd a goroutine for each consumer takes messages from the channel. Here the channel distributes them: ``pump``
has the store give waiting messages to ready clients in turn until there are no more messages or no more ready clients.
It is called at the end of a turn in which a message arrived or a client became ready, so nothing is polled. Message
timeouts and due times are exact: one timer is set to the earliest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqx.errors import BrokerExiting, TooManyConsumers
from nsqx.names import is_ephemeral
from nsqx.nsqd.channel_store import ChannelStore
from nsqx.nsqd.ready_clients import ELSEWHERE, SAME_ZONE, ReadyClients
from nsqx.queues.deadlines import NEVER_NS

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel_store import SeekResult
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.clock import Timer
    from nsqx.nsqd.latency import LatencySketch

_ELSEWHERE = ELSEWHERE
_SAME_ZONE = SAME_ZONE


class Channel:
    """The consumers of one channel, and the store of its messages."""

    __slots__ = (
        "_broker",
        "_clock",
        "_is_awake",
        "_max_consumers",
        "_timer",
        "_timer_ns",
        "_turn",
        "clients",
        "dead_count",
        "dead_letter",
        "exiting",
        "global_msg_count",
        "is_ephemeral",
        "latency",
        "max_attempts",
        "message_count",
        "name",
        "paused",
        "ready",
        "region_local_msg_count",
        "requeue_count",
        "store",
        "timeout_count",
        "topic_name",
        "unmoved_count",
        "zone_local_msg_count",
    )

    def __init__(
        self, topic_name: str, name: str, broker: Broker, open_store: Callable[[Channel], ChannelStore]
    ) -> None:
        """Make a channel whose messages are in the store that ``open_store`` returns; raises what it raises."""
        self.topic_name = topic_name
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        self.paused = False
        self.exiting = False
        self.clients: dict[int, Client] = {}
        self.ready = ReadyClients()
        self.latency: LatencySketch | None = broker.new_latency_sketch()
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.dead_count = 0  # messages that were finished at the attempt limit
        self.zone_local_msg_count = 0
        self.region_local_msg_count = 0
        self.global_msg_count = 0
        self.unmoved_count = 0  # waiting messages in another store, during a conversion
        self._broker = broker
        self._turn = broker.turn
        self._clock = broker.clock
        self._max_consumers = broker.options.max_channel_consumers
        self._is_awake = False
        self._timer: Timer | None = None
        self._timer_ns = NEVER_NS
        self.note_settings()
        self.store = open_store(self)

    def note_settings(self) -> None:
        """Use the attempt limit that is set now. 0 is no limit; without a dead-letter topic messages are finished."""
        self.max_attempts, self.dead_letter = self._broker.configs.limit_of(self.topic_name, self.name)

    @property
    def depth(self) -> int:
        """Waiting messages, without those in flight or deferred."""
        return self.store.depth + self.unmoved_count

    @property
    def backend_depth(self) -> int:
        """Waiting messages that are not in memory."""
        return self.store.backend_depth + self.unmoved_count

    @property
    def in_flight_count(self) -> int:
        """Messages in flight."""
        return self.store.in_flight_count

    @property
    def deferred_count(self) -> int:
        """Deferred messages."""
        return self.store.deferred_count

    # Reports of the store

    def arrived(self, count: int) -> None:
        """Count messages that were published to the channel."""
        self.message_count += count

    def delivered(self, client: Client) -> None:
        """Count a message that is in the output of ``client`` now."""
        client.in_flight_count += 1
        client.message_count += 1
        if client.locality == _ELSEWHERE:
            self.global_msg_count += 1
        elif client.locality == _SAME_ZONE:
            self.zone_local_msg_count += 1
        else:
            self.region_local_msg_count += 1
        if not client.has_unsent:
            self._turn.send_to(client)

    def finished(self, client: Client, timestamp: int) -> None:
        """Count a message that ``client`` finished, and its age."""
        client.in_flight_count -= 1
        client.finish_count += 1
        if self.latency is not None:
            now_ns = self._clock.wall_ns()
            self.latency.add(now_ns - timestamp, now_ns)
        if not client.is_in_ready_list:
            self.add_if_ready(client)

    def requeued(self, client: Client) -> None:
        """Count a message that ``client`` requeued."""
        self.requeue_count += 1
        client.requeue_count += 1
        client.in_flight_count -= 1
        self.add_if_ready(client)

    def timed_out(self, client_id: int) -> None:
        """Count a message that timed out. Its client may have left."""
        self.timeout_count += 1
        client = self.clients.get(client_id)
        if client is not None:
            client.in_flight_count -= 1
            self.add_if_ready(client)

    def dropped(self, client_id: int) -> None:
        """Note that a message in flight was dropped. Its client may have left."""
        client = self.clients.get(client_id)
        if client is not None:
            client.in_flight_count -= 1
            self.add_if_ready(client)

    def wake(self) -> None:
        """Deliver messages at the end of the turn."""
        if not self._is_awake:
            self._is_awake = True
            self._turn.wake(self)

    def arm(self, deadline_ns: int) -> None:
        """Make sure that the timer fires at ``deadline_ns`` or earlier."""
        if deadline_ns >= self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        self._timer = self._broker.call_at(deadline_ns, self._on_timer)

    # Delivery and deadlines

    def pump(self) -> None:
        """Give waiting messages to ready clients in turn, until there are no more of either."""
        self._is_awake = False
        if not self.paused and not self.exiting:
            self.arm(self.store.hand_out(self.ready, self._clock.now_ns()))

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_ns = NEVER_NS
        if self.exiting:
            return
        self.store.expire(self._clock.now_ns())
        self.arm(self.store.next_deadline())
        self.wake()

    # Commands of clients for messages in flight

    def finish(self, client: Client, message_id: bytes) -> str | None:
        """Finish a message; returns None, or the reason for a refusal."""
        return self.store.finish(client, message_id)

    def requeue(self, client: Client, message_id: bytes, delay_ns: int) -> str | None:
        """Deliver a message again, now or after a delay; returns None, or the reason for a refusal."""
        return self.store.requeue(client, message_id, delay_ns)

    def touch(self, client: Client, message_id: bytes) -> str | None:
        """Restart the timeout of a message; returns None, or the reason for a refusal."""
        return self.store.touch(client, message_id, self._broker.options.max_msg_timeout)

    # Clients

    def add_client(self, client: Client) -> None:
        """Add a consumer; raises TooManyConsumers or BrokerExiting."""
        if self.exiting:
            raise BrokerExiting
        if self._max_consumers and len(self.clients) >= self._max_consumers:
            raise TooManyConsumers(self.topic_name, self.name, self._max_consumers)
        self.clients[client.id] = client
        client.locality = self._broker.locality_of(client)

    def add_if_ready(self, client: Client) -> None:
        """Let ``client`` have its turn if it can take another message."""
        if self.ready.add(client) and not self._is_awake and not self.paused and self.store.has_messages():
            self.wake()

    def remove_client(self, client: Client) -> None:
        """Remove a consumer; its messages stay in flight until they time out."""
        if self.clients.pop(client.id, None) is None:
            return
        self.ready.remove(client)
        if self.max_attempts and client.in_flight_count:
            self._broker.dead_letters.note_left(client)
        if self.is_ephemeral and not self.clients and not self.exiting:
            self._broker.delete_channel(self.topic_name, self.name)

    # Administration

    def pause(self) -> None:
        """Deliver nothing until ``unpause``."""
        self.paused = True
        self.store.note_pause()

    def unpause(self) -> None:
        """Deliver again."""
        self.paused = False
        self.store.note_pause()
        self.wake()

    def empty(self) -> None:
        """Discard all messages: waiting, in flight and deferred."""
        self._broker.conversions.empty(self.topic_name, self.name)
        self.store.empty()
        self._forget_in_flight()

    def seek(self, offset: int, *, is_dry_run: bool = False) -> SeekResult:
        """Continue at an offset of the log, and return what that does; a dry run changes nothing.

        Messages in flight, requeued ones and those that the channel has deferred are forgotten.
        """
        result = self.store.seek(offset, is_dry_run=is_dry_run)
        if not is_dry_run:
            self._forget_in_flight()
            self.wake()
        return result

    def _forget_in_flight(self) -> None:
        for client in self.clients.values():
            client.in_flight_count = 0
            self.add_if_ready(client)

    def continue_as(self, successor: Channel) -> None:
        """Disconnect the clients; ``successor`` has another store, and continues the counts and the pause."""
        self.stop()
        successor.latency = self.latency
        successor.message_count = self.message_count
        successor.requeue_count = self.requeue_count
        successor.timeout_count = self.timeout_count
        successor.dead_count = self.dead_count
        successor.zone_local_msg_count = self.zone_local_msg_count
        successor.region_local_msg_count = self.region_local_msg_count
        successor.global_msg_count = self.global_msg_count
        if self.paused:
            successor.pause()

    def delete(self) -> None:
        """Disconnect the clients, discard all messages and remove the files."""
        self.stop()
        self.store.delete()
        self.store = ChannelStore()  # breaks the reference cycle with the store

    def spill(self) -> None:
        """Disconnect the clients, and queue every message for writing."""
        self.stop()
        self.store.spill()

    def close(self) -> None:
        """Write every message to disk and release the files; raises DiskQueueError or OSError on failure."""
        self.spill()
        self.store.close()

    def stop(self) -> None:
        """Disconnect the clients and deliver nothing any more."""
        self.exiting = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for client in self.clients.values():
            self._turn.close(client)
