"""A topic: receives published messages and gives each of its channels a copy.

The topic keeps its channels and its counters, and decides whether messages may go to the channels. The messages on
their way are in its flow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nsqx.errors import BrokerDraining, BrokerExiting, DiskQueueError
from nsqx.names import is_ephemeral
from nsqx.nsqd.channel import Channel
from nsqx.nsqd.topic_flow import TopicFlow

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.log_stats import ConversionStats, LogStats
    from nsqx.nsqd.publish_options import PublishOptions, PublishOutcome
    from nsqx.nsqd.topic_settings import TopicSettings
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.log.log import TopicLog
    from nsqx.wire.log_place import LogPlace


class Topic:
    """The channels of a topic, and the flow of messages to them."""

    __slots__ = (
        "_broker",
        "_flow",
        "_is_closed",
        "_is_started",
        "channels",
        "exiting",
        "is_ephemeral",
        "message_bytes",
        "message_count",
        "name",
        "paused",
        "settings",
        "unmoved_count",
    )

    def __init__(self, name: str, broker: Broker) -> None:
        """Open the topic with its files; raises DiskQueueError or OSError."""
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        self.paused = False
        self.exiting = False
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        self.unmoved_count = 0  # messages in another store that no channel has, during a conversion
        self._broker = broker
        self._is_closed = False  # for publishes of clients: exiting, or nsqd is draining
        self._is_started = False
        self.settings = broker.configs.load(name)
        self._flow = broker.open_flow(self)

    @property
    def depth(self) -> int:
        """Messages that have not reached the channels."""
        return self._flow.depth + self.unmoved_count

    @property
    def backend_depth(self) -> int:
        """Messages that have not reached the channels and are not in memory."""
        return self._flow.backend_depth + self.unmoved_count

    @property
    def is_started(self) -> bool:
        """True if the channels that must get the first message exist."""
        return self._is_started

    @property
    def flow(self) -> TopicFlow:
        """The flow of messages to the channels, for conversions."""
        return self._flow

    @property
    def chosen_store(self) -> str:
        """The store that was chosen over HTTP, if it is in no log; empty if the configuration decides."""
        return self._broker.conversions.chosen_store(self.name)

    @property
    def changed_settings(self) -> dict[str, str]:
        """The texts of the settings that were set over HTTP, with those of the channels."""
        return self._broker.configs.changed(self.name)

    def note_settings(self, settings: TopicSettings) -> None:
        """Use changed settings."""
        self.settings = settings
        self._flow.note_settings()
        for channel in self.channels.values():
            channel.note_settings()

    def oldest_time_ns(self) -> int:
        """Return when the oldest message was published that has not reached the channels; 0 if none, -1 if unknown."""
        return self._flow.oldest_time_ns()

    def conversion_stats(self) -> ConversionStats | None:
        """Return the numbers of the conversion that is running; None without one."""
        return self._broker.conversions.stats_of(self.name)

    def log_stats(self) -> LogStats | None:
        """Return the numbers of the topic's log; None if it has none."""
        return self._flow.log_stats()

    def log_place(self) -> LogPlace | None:
        """Return what clients must know of the topic's log; None if it has none."""
        return self._flow.log_place()

    # Publishing

    def publish(self, items: bytes, count: int) -> None:
        """Publish ``count`` messages of a client in the layout of an MPUB body: an int32 size before each.

        Raises BrokerExiting, BrokerDraining, or DiskQueueError if they need a disk queue that cannot be written.
        """
        if self._is_closed:
            self._refuse()
        self._flow.publish(items, count)
        self.message_count += count
        self.message_bytes += len(items) - 4 * count

    def publish_in_drain(self, items: bytes, count: int) -> None:
        """Publish messages that nsqd has accepted already; as ``publish``, but also while nsqd is draining."""
        if self.exiting:
            raise BrokerExiting
        self._flow.publish(items, count)
        self.message_count += count
        self.message_bytes += len(items) - 4 * count

    def publish_deferred(self, body: bytes, defer_ns: int) -> None:
        """Publish a message that each channel defers for ``defer_ns``; raises the errors of ``publish``."""
        if self._is_closed:
            self._refuse()
        self._flow.publish_deferred(body, defer_ns)
        self.message_count += 1
        self.message_bytes += len(body)

    def publish_with(self, items: bytes, count: int, options: PublishOptions) -> PublishOutcome:
        """Publish messages as ``publish``, with options. Raises NotALogTopic too."""
        if self._is_closed:
            self._refuse()
        result = self._flow.publish_with(items, count, options)
        if not result.is_duplicate:
            self.message_count += count
            self.message_bytes += len(items) - 4 * count
        return result

    def admit_part(self, size: int) -> None:
        """Raise an error of ``publish_with`` if messages of a transaction with this size cannot be published now."""
        if self._is_closed:
            self._refuse()
        self._flow.admit_part(size)

    def publish_part(self, items: bytes, sums: bytes, count: int, defer_ns: int) -> None:
        """Publish messages of a transaction after ``admit_part``. They are written with the rest of it."""
        self._flow.append_part(items, sums, count, defer_ns)
        self.message_count += count
        self.message_bytes += len(items) - 4 * count

    def refuse_publishes(self, is_refusing: bool) -> None:
        """Refuse the publishes of clients from now on, or accept them again."""
        self._is_closed = is_refusing or self.exiting

    def _refuse(self) -> None:
        raise BrokerExiting if self.exiting else BrokerDraining

    def publish_durably(self, item: bytes) -> DiskQueue | None:
        """Put a message into the disk queue of the topic and return the queue, which says when the message is durable.

        Return None, without publishing, if the topic has none. Raises the errors of ``publish``.
        """
        if self.exiting:
            raise BrokerExiting
        queue = self._flow.put_letter(item[4:])
        if queue is not None:
            self.message_count += 1
            self.message_bytes += len(item) - 4
        return queue

    def publish_letter(self, item: bytes, origin: bytes, source: TopicLog) -> None:
        """Publish a dead letter with its origin, in one frame with the pending changes of the log ``source``.

        The topic must have a log. Raises the errors of ``publish``.
        """
        if self.exiting:
            raise BrokerExiting
        self._flow.append_letter(item, origin, source)
        self.message_count += 1
        self.message_bytes += len(item) - 4

    def when_committed(self, done: Callable[[DiskQueueError | None], object]) -> bool:
        """Call ``done`` when the topic's log has everything so far; False if it has already, or there is no log."""
        return self._flow.when_committed(done)

    def note_refused(self, count: int, failure: DiskQueueError) -> None:
        """Count publishes that got an answer with this error."""
        self._flow.note_refused(count, failure)

    def when_durable(self, done: Callable[[DiskQueueError | None], object]) -> bool:
        """Call ``done`` when the topic's log has everything so far durably; False if it has, or there is no log."""
        return self._flow.when_durable(done)

    # The flow to the channels

    def start(self) -> None:
        """Start giving messages to the channels; called when the channels that must get the first message exist."""
        self._is_started = True
        self._update_flow()

    def pause(self) -> None:
        """Give no messages to the channels until ``unpause``."""
        self.paused = True
        self._update_flow()

    def unpause(self) -> None:
        """Give messages to the channels again."""
        self.paused = False
        self._update_flow()

    def _update_flow(self) -> None:
        self._flow.update(self._is_started and not self.paused and not self.exiting and len(self.channels) > 0)

    def finish_moves(self) -> None:
        """Note that nsqd.dat names the topic and its channels."""
        self._flow.finish_moves()

    # Channels

    def channel(self, name: str, start: int | None = None) -> Channel:
        """Return the channel of this name, and create it if needed; raises BrokerExiting.

        ``start`` is the offset at which a new channel of a log topic begins.
        """
        found = self.channels.get(name)
        if found is not None:
            return found
        if self.exiting:
            raise BrokerExiting
        open_store = self._flow.open_store if start is None else partial(self._flow.open_store, start=start)
        channel = self.channels[name] = Channel(self.name, name, self._broker, open_store)
        self._broker.channel_created(self, channel)
        self._update_flow()
        return channel

    def find_channel(self, name: str) -> Channel | None:
        """Return the channel of this name, or None."""
        return self.channels.get(name)

    def delete_channel(self, name: str) -> bool:
        """Delete a channel with its messages; False if unknown. An ephemeral topic is deleted with its last channel."""
        channel = self.channels.pop(name, None)
        if channel is None:
            return False
        self._broker.conversions.delete_channel(self.name, name)
        if not self.exiting:
            self._broker.configs.forget_channel(self, name)
        self._flow.remove_store(channel.store)
        self._update_flow()
        channel.delete()
        self._broker.channel_deleted(channel)
        if self.is_ephemeral and not self.channels and not self.exiting:
            self._broker.delete_topic(self.name)
        return True

    # Conversion

    def replace_flow(self, flow: TopicFlow) -> tuple[TopicFlow, list[Channel]]:
        """Continue with another flow and new channels. Consumers are disconnected, and ephemeral channels deleted.

        Return the old flow and its channels, whose messages the caller moves. Raises DiskQueueError or OSError if a
        channel cannot be opened. The topic is unchanged then, except for ephemeral channels.
        """
        for name in [name for name, channel in self.channels.items() if channel.is_ephemeral]:
            self.delete_channel(name)
        channels = {name: Channel(self.name, name, self._broker, flow.open_store) for name in self.channels}
        old_flow, old_channels = self._flow, list(self.channels.values())
        old_flow.update(False)
        for old in old_channels:
            old.continue_as(channels[old.name])
        self._flow, self.channels = flow, channels
        self._update_flow()
        return old_flow, old_channels

    # Administration

    def empty(self) -> None:
        """Discard the messages that have not reached the channels."""
        self._broker.conversions.empty(self.name)
        self._flow.empty()

    def delete(self) -> None:
        """Delete the topic, its channels and all their messages."""
        self.exiting = self._is_closed = True
        self._update_flow()
        self._broker.conversions.delete_topic(self.name)
        self._broker.configs.forget_topic(self.name)
        self._flow.delete()
        self._flow = TopicFlow()  # breaks the reference cycle with the flow
        for name in list(self.channels):
            self.delete_channel(name)

    def spill(self) -> None:
        """Stop, and queue every message for writing."""
        self.exiting = self._is_closed = True
        self._update_flow()
        for channel in self.channels.values():
            channel.spill()
        self._flow.spill()

    def close(self) -> None:
        """Write every message to disk and release the files; raises the last error after closing everything."""
        self.spill()
        failure: Exception | None = None
        for channel in self.channels.values():
            try:
                channel.close()
            except (OSError, DiskQueueError) as error:
                failure = error
        self._flow.close()
        if failure is not None:
            raise failure

    def disk_queues(self) -> list[DiskQueue]:
        """Return the disk queues of the topic and its channels."""
        return self._flow.disk_queues()

    def lost_counts(self) -> dict[str, int]:
        """Return how many messages ``close`` could not write, by the name of their queue."""
        return self._flow.lost_counts()
