"""A broker in memory, for tests without nsqd: ``async with TestNSQBroker(broker) as broker``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast, overload
from unittest.mock import AsyncMock
from uuid import uuid4

from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from faststream.response import PublishType

from nsqx.adapters.faststream.broker import NSQBroker
from nsqx.adapters.faststream.message import ReceivedMessage
from nsqx.adapters.faststream.producer import NSQProducer
from nsqx.adapters.faststream.response import NSQPublishCommand
from nsqx.client.options import seconds_of

if TYPE_CHECKING:
    from typing import Self

    from nsqx.adapters.faststream.connector import Connector
    from nsqx.adapters.faststream.publisher import NSQTopicPublisher
    from nsqx.adapters.faststream.subscriber import NSQSubscriber
    from nsqx.client.options import Duration

_CHANNEL = "faststream-test#ephemeral"


class TestNSQBroker(TestBroker[NSQBroker, EnterType], broker=NSQBroker):  # type: ignore[call-arg]
    """Delivers messages in memory: one copy for each channel of a topic, and at once, also with a delay.

    A message that is requeued is not delivered again. With ``with_real=True``, the messages pass through nsqd.
    """

    @overload
    def __init__(
        self: TestNSQBroker[NSQBroker],  # type: ignore[type-arg]
        broker: NSQBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: TestNSQBroker[tuple[NSQBroker, ...]],  # type: ignore[type-arg]
        *brokers: NSQBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(self, *brokers: NSQBroker, with_real: bool = False, connect_only: bool | None = None) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: NSQBroker, publisher: NSQTopicPublisher
    ) -> tuple[NSQSubscriber, bool]:
        """Return a subscriber that receives what ``publisher`` publishes, and whether it is one of the brokers."""
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        return broker.subscriber(publisher.topic, _CHANNEL, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: NSQBroker) -> Iterator[None]:
        config = broker.config.broker_config
        connector, config.connector = config.connector, cast("Connector", MemoryConnector())
        try:
            with change_producer(config, MemoryProducer(broker, self.brokers)):
                yield
        finally:
            config.connector = connector

    async def _fake_connect(self, broker: NSQBroker, *args: Any, **kwargs: Any) -> AsyncMock:  # type: ignore[override]
        return AsyncMock()


class MemoryProducer(NSQProducer):
    """Passes what is published to the subscribers, which process it before ``send`` returns."""

    def __init__(self, broker: NSQBroker, brokers: Sequence[NSQBroker]) -> None:
        config = broker.config.broker_config
        super().__init__(broker._parser, broker._decoder, raw=config.producer.is_raw)
        self._brokers = brokers
        self._serializer = config.fd_config._serializer
        self.codec = config.broker_codec or DefaultCodec()

    async def send(
        self, topic: str, bodies: Sequence[bytes], *, delay: Duration | None = None, timeout: Duration | None = None
    ) -> None:
        """Deliver each body to one subscriber of each channel."""
        for body in bodies:
            for subscriber in self._one_of_each_channel(topic):
                await subscriber.process_message(subscriber.received(body, MemoryMessage()))

    async def request(self, cmd: NSQPublishCommand) -> ReceivedMessage:
        """Return the result of the first subscriber of the topic. Raises TimeoutError or SubscriberNotFound."""
        body = await self._encoded(cmd, cmd.body)
        for subscriber in self._one_of_each_channel(cmd.destination):
            async with asyncio.timeout(None if cmd.timeout is None else seconds_of("timeout", cmd.timeout)):
                result = await subscriber.process_message(subscriber.received(body, MemoryMessage()))
            reply = NSQPublishCommand(
                result.body,
                raw=False,
                headers=result.headers,
                correlation_id=result.correlation_id,
                _publish_type=PublishType.REPLY,
            )
            answer = await self._encoded(reply, reply.body)
            return ReceivedMessage(cmd.destination, _CHANNEL, answer, MemoryMessage())
        raise SubscriberNotFound(f"no subscriber of topic {cmd.destination}")

    def _one_of_each_channel(self, topic: str) -> list[NSQSubscriber]:
        found: dict[str, NSQSubscriber] = {}
        for subscriber in _subscribers(self._brokers):
            if subscriber.topic == topic:
                found.setdefault(subscriber.channel, subscriber)
        return list(found.values())


class MemoryMessage:
    """A message in memory. It remembers how it was answered."""

    def __init__(self) -> None:
        self.id = uuid4().hex[:16].encode()
        self.timestamp = 0
        self.attempts = 1
        self.is_answered = False

    def finish(self) -> bool:
        """Mark the message as answered."""
        self.is_answered = True
        return True

    def requeue(self, delay: Duration | None = None, backoff: bool = True) -> bool:
        """Mark the message as answered. It is not delivered again."""
        return self.finish()

    def touch(self) -> bool:
        """Do nothing: messages in memory do not time out."""
        return True


class MemoryConnector:
    """Creates consumers that receive nothing, because ``MemoryProducer`` calls the subscribers."""

    def attempt_limit(self, options: Mapping[str, Any]) -> int:
        """Return the option ``max_attempts`` of a subscriber."""
        limit: int = options.get("max_attempts", 0)
        return limit

    def consumer(self, *arguments: Any, **keywords: Any) -> IdleConsumer:
        """Return a consumer."""
        return IdleConsumer()


class IdleConsumer:
    """A consumer without messages."""

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self, timeout: float) -> None:
        """Do nothing."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await asyncio.get_running_loop().create_future()


def _subscribers(brokers: Sequence[NSQBroker]) -> list[NSQSubscriber]:
    return [cast("NSQSubscriber", subscriber) for broker in brokers for subscriber in broker.subscribers]
