"""Dead letters: messages that have failed their last attempt go to the dead-letter topic of their channel.

A message whose attempts have reached the limit of its channel, and that is requeued or times out, becomes a *failure*:
it is neither delivered nor finished. At the end of the turn it is published to the dead-letter topic and finished.
If both topics have logs, one frame of the commit file contains both, so after a crash the message is in exactly one of
them. Otherwise it is published first, and finished when the publish could be acknowledged; a crash in between repeats
it. If the dead-letter topic cannot be written, the failure is tried again each second.

A dead-letter topic has the store of its source. Its channel ``dead`` keeps the letters until they are redriven or
purged, or until a consumer finishes them there.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import orjson

from nsqx.errors import BrokerExiting, DiskQueueError
from nsqx.nsqd.topic_settings import CLASSIC, LOG
from nsqx.queues.log.reader import FOUND, UNREAD, LogReader
from nsqx.units import NS_PER_S
from nsqx.wire import byteops

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.log_flow import LogFlow
    from nsqx.nsqd.topic import Topic
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.log.log import TopicLog
    from nsqx.wire.message import QueuedMessage

# The channel of a dead-letter topic in which the letters wait.
DEAD_CHANNEL = "dead"
# Why a message has failed.
REQUEUED, TIMED_OUT = "requeued", "timed out"
# How many failures are handled in one turn of the loop.
_LETTERS_PER_TURN = 2000
# The delay before a failure is tried again.
_RETRY_NS = NS_PER_S
# How many consumers are remembered that left with messages in flight.
_MAX_LEFT = 1000


class LetterOrigin(TypedDict):
    """Where a dead letter comes from, as in the extension of its batch and in the answers of nsqd."""

    topic: str
    channel: str
    offset: int
    id: str
    timestamp: int
    attempts: int
    reason: str
    consumer: str
    time: int


class LogFailure:
    """A message of a log topic that has failed its last attempt."""

    store = LOG
    is_on_disk = True

    def __init__(
        self,
        channel: Channel,
        flow: LogFlow,
        log: TopicLog,
        offset: int,
        attempts: int,
        consumer: str,
        reason: str,
        time_ns: int,
    ) -> None:
        self.channel = channel
        self.flow = flow
        self.log = log
        self.offset = offset
        self._attempts = attempts
        self._consumer = consumer
        self._reason = reason
        self._time_ns = time_ns

    @property
    def is_open(self) -> bool:
        """True if the message is still unfinished in its channel."""
        return not self.channel.exiting and not self.log.is_deleted and self._cursor.is_failed(self.offset)

    @property
    def _cursor(self) -> Any:
        return self.channel.store

    def origin(self, timestamp: int) -> bytes:
        """Return the JSON of the origin; ``timestamp`` is that of the message."""
        origin: LetterOrigin = {
            "topic": self.channel.topic_name,
            "channel": self.channel.name,
            "offset": self.offset,
            "id": byteops.id_text(self.log.identity.id_number(self.offset)).decode(),
            "timestamp": timestamp,
            "attempts": self._attempts,
            "reason": self._reason,
            "consumer": self._consumer,
            "time": self._time_ns,
        }
        return orjson.dumps(origin)

    def finish(self) -> None:
        """Finish the message in its channel."""
        if self.is_open:
            self._cursor.finish_failed(self.offset)


class ClassicFailure:
    """A message of a classic topic that has failed its last attempt."""

    store = CLASSIC

    def __init__(self, channel: Channel, message: QueuedMessage) -> None:
        self.channel = channel
        self.message = message
        self.is_on_disk = message.record > 0  # its letter must be on disk, too, before it is finished

    @property
    def is_open(self) -> bool:
        """True if the message is still unfinished in its channel."""
        return not self.channel.exiting and self._classic_store.is_failed(self.message)

    @property
    def _classic_store(self) -> Any:
        return self.channel.store

    def finish(self) -> None:
        """Finish the message in its channel."""
        if self.is_open:
            self._classic_store.finish_failed(self.message)


Failure = LogFailure | ClassicFailure


class DeadLetterWriter:
    """The failures of a broker that are not dead letters yet."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._new: deque[Failure] = deque()
        self._again: list[Failure] = []  # tried again when the timer fires
        self._is_awake = False
        self._is_failing = False  # the last attempt to write a letter has failed
        self._left: dict[int, str] = {}  # addresses of consumers that left with messages in flight, by client id

    # Failures

    def note_left(self, client: Client) -> None:
        """Remember the address of a consumer that leaves with messages in flight: they time out later."""
        self._left[client.id] = client.remote_address
        if len(self._left) > _MAX_LEFT:
            del self._left[next(iter(self._left))]

    def add_of_log(
        self, channel: Channel, flow: LogFlow, log: TopicLog, offset: int, attempts: int, client_id: int, reason: str
    ) -> None:
        """Make a dead letter of a message of a log topic at the end of the turn."""
        client = channel.clients.get(client_id)
        consumer = client.remote_address if client is not None else self._left.get(client_id, "")
        time_ns = self._broker.clock.wall_ns()
        self._add(LogFailure(channel, flow, log, offset, attempts, consumer, reason, time_ns))

    def add_classic(self, channel: Channel, message: QueuedMessage) -> None:
        """Make a dead letter of a message of a classic topic at the end of the turn."""
        self._add(ClassicFailure(channel, message))

    def _add(self, failure: Failure) -> None:
        self._new.append(failure)
        self._wake()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._broker.turn.wake(self)

    def pump(self) -> None:
        """Publish failures as dead letters, a bounded number in each turn."""
        self._is_awake = False
        flows: dict[LogFlow, None] = {}
        for _ in range(min(len(self._new), _LETTERS_PER_TURN)):
            failure = self._new.popleft()
            if not failure.is_open:
                continue
            if not failure.channel.dead_letter:
                failure.finish()
            elif isinstance(failure, ClassicFailure):
                body = failure.message.body
                self._publish(failure, len(body).to_bytes(4, "big") + body)
            elif self._bury(failure):
                flows[failure.flow] = None
        # Now, because the frame with the letters must contain that the messages are finished.
        for flow in flows:
            flow.write_changes()
        if self._new:
            self._broker.call_soon(self._wake)

    def _bury(self, failure: LogFailure) -> bool:
        """Append the letter and finish the message in one frame; False if that is not possible, or not now.

        The caller writes the changes of the flow in this turn.
        """
        reader = LogReader(failure.log, self._broker.logs.blocks)
        found = reader.find(failure.offset)
        if found == UNREAD:
            failure.flow.reads.read(failure.offset, partial(self._on_read, failure))
            return False
        if found != FOUND:
            self._broker.log.error(
                "LOG(%s): message %d of channel %s is damaged, so there is no dead letter",
                failure.log.topic, failure.offset, failure.channel.name,
            )  # fmt: skip
            failure.finish()
            return False
        item = reader.data[reader.start - 4 : reader.end]
        try:
            topic = self.open_topic(failure.channel.dead_letter, LOG)
            if topic.log_stats() is not None:
                topic.publish_letter(item, failure.origin(reader.timestamp), failure.log)
        except (BrokerExiting, DiskQueueError, OSError) as error:
            self._retry(failure, error)
            return False
        if topic.log_stats() is None:
            self._publish(failure, item)
            return False
        self._is_failing = False
        failure.finish()
        return True

    def _on_read(self, failure: LogFailure, is_read: bool) -> None:
        if is_read:
            self._add(failure)
        else:
            self._retry(failure, None)

    def _publish(self, failure: Failure, item: bytes) -> None:
        """Publish a letter, and finish the message when the publish can be acknowledged."""
        try:
            topic = self.open_topic(failure.channel.dead_letter, failure.store)
            queue = topic.publish_durably(item) if failure.is_on_disk else None
            if queue is None:
                topic.publish_in_drain(item, 1)
        except (BrokerExiting, DiskQueueError, OSError) as error:
            self._retry(failure, error)
            return
        if queue is None:
            self._broker.commits.when_written(partial(self._on_published, failure, topic), topic)
        else:
            self._await_durable(failure, topic, queue, queue.put_serial())

    def _await_durable(self, failure: Failure, topic: Topic, queue: DiskQueue, serial: int) -> None:
        if failure.is_open and not topic.exiting:
            queue.when_durable(partial(self._on_durable, failure, topic, queue, serial))

    def _on_durable(
        self, failure: Failure, topic: Topic, queue: DiskQueue, serial: int, error: DiskQueueError | None
    ) -> None:
        if error is not None and not queue.is_lost(serial):
            self._broker.call_in(_RETRY_NS, partial(self._await_durable, failure, topic, queue, serial))
        else:
            self._on_published(failure, topic, error)

    def _on_published(self, failure: Failure, topic: Topic, error: DiskQueueError | None) -> None:
        if error is not None:
            self._retry(failure, error)
        elif not (failure.is_on_disk and self._broker.when_recorded(topic, partial(self._on_recorded, failure))):
            self._on_recorded(failure)

    def _on_recorded(self, failure: Failure, _: None = None) -> None:
        self._is_failing = False
        failure.finish()

    # Retries

    def _retry(self, failure: Failure, error: Exception | None) -> None:
        """Try again later."""
        if not self._is_failing and error is not None:
            name = failure.channel.dead_letter
            self._broker.log.error("TOPIC(%s): cannot write dead letters, trying again each second - %s", name, error)
            self._is_failing = True
        if not self._again:
            self._broker.call_in(_RETRY_NS, self._try_again)
        self._again.append(failure)

    def _try_again(self) -> None:
        again, self._again = self._again, []
        for failure in again:
            self._add(failure)

    # Dead-letter topics

    def open_topic(self, name: str, store: str) -> Topic:
        """Return a dead-letter topic with its channel; a new one has this store, whatever the configuration says.

        Raises BrokerExiting, DiskQueueError or OSError.
        """
        broker = self._broker
        topic = broker.find_topic(name)
        if topic is None:
            broker.refuse_if_exiting()
            broker.conversions.choose_new(name, store)
            topic = broker.create_topic(name)
        topic.channel(DEAD_CHANNEL)
        return topic
