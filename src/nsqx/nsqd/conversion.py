"""Conversion of topics between the classic store and the log, while nsqd runs.

A topic has one store, to which publishes go. During a conversion some of its messages are still in the old store. They
are moved a few at a time, and a message leaves the old store only when it is durable in the new one. So the messages of
a topic are always those of both stores together. A conversion can end at any point without a loss: the next start finds
both stores and continues, in the direction that the settings say then. The messages that were being moved at that
moment may be in both stores, and are delivered twice.

A chosen store, set over HTTP, wins over the configuration. It is a setting in the log of the topic. Without a log, it
is in nsqd.dat.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from nsqx.errors import BrokerExiting, DiskQueueError
from nsqx.names import is_ephemeral
from nsqx.nsqd.classic_flow import ClassicFlow
from nsqx.nsqd.log_drain import LogDrain
from nsqx.nsqd.log_flow import LogFlow
from nsqx.nsqd.queue_import import ClosingStore, QueueImport
from nsqx.nsqd.topic_settings import CLASSIC, LOG
from nsqx.queues.log.state import Changes

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.log_stats import ConversionStats
    from nsqx.nsqd.topic import Topic
    from nsqx.nsqd.topic_flow import TopicFlow

# How many topics move messages at the same time.
_MAX_MOVING = 4
_STORE_SETTING = "store"

Conversion = QueueImport | LogDrain


class Conversions:
    """The stores of all topics, and the conversions that are running."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._chosen: dict[str, str] = {}  # stores chosen over HTTP, of topics without a log
        self._running: dict[str, Conversion] = {}
        self._switching: set[str] = set()
        self._waiting: deque[Conversion] = deque()
        self._moving: set[Conversion] = set()

    # The store of a topic

    def note_chosen(self, topic_name: str, store: str) -> None:
        """Note the store of a topic that nsqd.dat contains; empty if none was chosen."""
        if store == CLASSIC:
            self._chosen[topic_name] = store

    def chosen_store(self, topic_name: str) -> str:
        """Return the store that was chosen over HTTP, if it must be in nsqd.dat; empty otherwise."""
        return self._chosen.get(topic_name, "")

    def open_flow(self, topic: Topic) -> TopicFlow:
        """Return the flow of a new topic in its store; raises DiskQueueError or OSError."""
        if self.store_of(topic.name) == LOG:
            return self._log_flow(topic)
        return ClassicFlow(topic, self._broker)

    def store_of(self, topic_name: str) -> str:
        """Return the store of a topic: that chosen over HTTP, or that of the configuration."""
        log = self._broker.logs.find(topic_name)
        chosen = log.state.settings.get(_STORE_SETTING, "") if log is not None else ""
        return chosen or self.chosen_store(topic_name) or self._broker.configs.configured_store(topic_name)

    def choose_new(self, topic_name: str, store: str) -> None:
        """Choose the store of a topic that does not exist yet, whatever the configuration says."""
        if self.store_of(topic_name) == store or is_ephemeral(topic_name):
            return
        if store == CLASSIC:
            self._chosen[topic_name] = store
            return
        changes = Changes()
        changes.set_setting(_STORE_SETTING, store)
        self._broker.logs.create(topic_name).change(changes)
        self._broker.logs.write_later(is_synced=True)

    def _log_flow(self, topic: Topic) -> LogFlow:
        log = self._broker.logs.find(topic.name) or self._broker.logs.create(topic.name)
        return LogFlow(topic, self._broker, log)

    # Topics that have both stores

    def resume(self, topic: Topic) -> None:
        """Move the messages that a topic and its channels have in the other store, if there are any."""
        broker = self._broker
        if self.is_converting(topic.name) or topic.exiting:
            return
        log = broker.logs.find(topic.name)
        if topic.log_stats() is None:
            if log is not None:
                self._begin(LogDrain(topic, log, broker, self._ended))
        elif any(
            map(broker.classic_files.has_queue, [topic.name, *(f"{topic.name}:{name}" for name in topic.channels)])
        ):
            self._begin(QueueImport(topic, broker, self._ended))

    # Conversion on request

    def is_converting(self, topic_name: str) -> bool:
        """True while a topic has messages in its old store."""
        return topic_name in self._running or topic_name in self._switching

    async def convert(self, topic: Topic, store: str) -> bool:
        """Choose the store of a topic; return when the choice is durable. False if the topic has the store already.

        No conversion of the topic may be running. Raises DiskQueueError, OSError or BrokerExiting.
        """
        broker = self._broker
        if (topic.log_stats() is None) == (store == CLASSIC):
            self._choose(topic, store)
            await broker.saved(topic)
            return False
        switched: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._switching.add(topic.name)
        broker.turn.run(broker.commits.after_writes, partial(self._switch, topic, store, switched))
        await switched
        await broker.saved(topic)
        return True

    def _choose(self, topic: Topic, store: str) -> None:
        """Record the choice: in the log of a topic, and in nsqd.dat if the log will be gone."""
        log = self._broker.logs.find(topic.name)
        if log is not None:
            changes = Changes()
            changes.set_setting(_STORE_SETTING, store)
            log.change(changes)
            self._broker.logs.write_later(is_synced=True)
        if store == CLASSIC:
            self._chosen[topic.name] = store
        else:
            self._chosen.pop(topic.name, None)
        topic.note_settings(self._broker.configs.settings_of(topic.name))
        self._broker.save_metadata()

    def _switch(self, topic: Topic, store: str, switched: asyncio.Future[None]) -> None:
        self._switching.discard(topic.name)
        try:
            if topic.exiting or self._broker.exiting:
                raise BrokerExiting
            conversion = self._to_log(topic) if store == LOG else self._to_classic(topic)
        except (BrokerExiting, DiskQueueError, OSError) as error:
            self._broker.log.error("TOPIC(%s): failed to convert to the store %s - %s", topic.name, store, error)
            if not switched.done():
                switched.set_exception(error)
            return
        self._broker.log.info("TOPIC(%s): converting to the store %s", topic.name, store)
        self._begin(conversion)
        if not switched.done():
            switched.set_result(None)

    def _to_log(self, topic: Topic) -> QueueImport:
        store = ClosingStore(*topic.replace_flow(self._log_flow(topic)))
        self._choose(topic, LOG)
        self._broker.configs.save_in_log(topic)
        return QueueImport(topic, self._broker, self._ended, store)

    def _to_classic(self, topic: Topic) -> LogDrain:
        broker = self._broker
        log = broker.logs.find(topic.name)
        assert log is not None
        old_flow, old_channels = topic.replace_flow(ClassicFlow(topic, broker))
        for channel in old_channels:
            channel.spill()
        old_flow.spill()
        broker.logs.remove(log)
        self._choose(topic, CLASSIC)
        broker.record(topic)
        return LogDrain(topic, log, broker, self._ended)

    # Running conversions

    def _begin(self, conversion: Conversion) -> None:
        self._running[conversion.topic.name] = conversion
        self._waiting.append(conversion)
        conversion.prepare()
        self._move_next()

    def _move_next(self) -> None:
        while self._waiting and len(self._moving) < _MAX_MOVING:
            conversion = self._waiting.popleft()
            self._moving.add(conversion)
            conversion.start()

    def _ended(self, conversion: Conversion) -> None:
        name = conversion.topic.name
        if self._running.get(name) is conversion:
            del self._running[name]
            self._broker.log.info("TOPIC(%s): converted, %d messages moved", name, conversion.moved_count)
        if conversion in self._waiting:
            self._waiting.remove(conversion)
        self._moving.discard(conversion)
        self._move_next()
        self.resume(conversion.topic)  # a channel may have been created whose queue is on disk

    def stats_of(self, topic_name: str) -> ConversionStats | None:
        """Return the numbers of a conversion; None if the topic has none."""
        conversion = self._running.get(topic_name)
        if conversion is None:
            return None
        topic = conversion.topic
        left = topic.unmoved_count + sum(channel.unmoved_count for channel in topic.channels.values())
        is_import = isinstance(conversion, QueueImport)
        source, target = (CLASSIC, LOG) if is_import else (LOG, CLASSIC)
        return {"from": source, "to": target, "moved": conversion.moved_count, "left": left}

    # Administration of topics that are being converted

    def empty(self, topic_name: str, channel_name: str = "") -> None:
        """Discard the messages that a topic, or one of its channels, has in the old store."""
        conversion = self._running.get(topic_name)
        if conversion is not None:
            conversion.discard(channel_name, is_deleted=False)

    def delete_channel(self, topic_name: str, channel_name: str) -> None:
        """Discard a channel and its messages in the old store."""
        conversion = self._running.get(topic_name)
        if conversion is not None:
            conversion.discard(channel_name, is_deleted=True)

    def delete_topic(self, topic_name: str) -> None:
        """Discard everything that a topic has in its old store, and the chosen store."""
        self._chosen.pop(topic_name, None)
        conversion = self._running.pop(topic_name, None)
        if conversion is not None:
            conversion.delete()

    def note_closed(self, topic: Topic) -> None:
        """Note that a topic is closed at exit, and that every message is on disk. The logs are not closed yet."""
        conversion = self._running.get(topic.name)
        if conversion is not None:
            conversion.note_closed()

    def close(self) -> int:
        """Release the files of all conversions; return the number of lost messages.

        The topics and logs are closed, and no job is running.
        """
        return sum([conversion.close() for conversion in self._running.values()])
