"""Subscribers: each consumes one channel of a topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as SpecifiedMessage
from faststream.specification.schema import Operation, SubscriberSpec

from nsqx.adapters.faststream.config import NSQBrokerConfig
from nsqx.adapters.faststream.message import NSQStreamMessage, ReceivedMessage
from nsqx.adapters.faststream.parser import NSQParser
from nsqx.adapters.faststream.publisher import NSQReplyPublisher
from nsqx.client.arguments import check_name
from nsqx.names import invalid_name, is_valid_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream.message import StreamMessage

    from nsqx.client.consumer import Consumer
    from nsqx.client.options import OptionKeywords
    from nsqx.client.subscription import Message


@dataclass(kw_only=True)
class SubscriberDocument(SubscriberSpecificationConfig):
    """The settings of a subscriber's part of the AsyncAPI document. ``topic`` is without the prefix of its router."""

    topic: str
    channel: str


@dataclass(kw_only=True)
class SubscriberSettings(SubscriberUsecaseConfig):
    """The settings of a subscriber. The topics are without the prefix of its router."""

    _outer_config: NSQBrokerConfig = field(default_factory=NSQBrokerConfig)
    topic: str
    channel: str
    max_workers: int
    dead_letter_topic: str
    options: OptionKeywords

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy of the subscriber, else that of its router or broker, else NSQ's: requeue after a failure."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


class NSQSubscriberSpecification(SubscriberSpecification[NSQBrokerConfig, SubscriberDocument]):
    """A subscriber in the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic, with the prefix of its router."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel(self) -> str:
        """The channel of the subscriber, or else that of the broker. Raises SetupError if there is none."""
        channel = self.config.channel or self._outer_config.channel
        if not channel:
            raise SetupError(
                f'the subscriber of topic "{self.topic}" has no channel: use subscriber("{self.topic}", "CHANNEL")'
                ' or NSQBroker(channel="CHANNEL")'
            )
        return channel

    @property
    def channel_labels(self) -> list[str]:
        """NSQ's topic and channel. Two channels of a topic are two AsyncAPI channels with one address."""
        return [f"{self.topic}:{self.channel}"]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the AsyncAPI channel. AsyncAPI has no bindings for NSQ."""
        message = SpecifiedMessage(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class NSQSubscriber(SubscriberUsecase[ReceivedMessage]):
    """A subscriber of one channel.

    A subscriber without a handler is read with ``get_one`` or ``async for``.
    """

    _outer_config: NSQBrokerConfig

    def __init__(
        self,
        config: SubscriberSettings,
        specification: NSQSubscriberSpecification,
        calls: CallsCollection[ReceivedMessage],
    ) -> None:
        parser = NSQParser()
        config.parser = parser.parse_message
        config.decoder = parser.decode_message
        super().__init__(config, specification, calls)  # type: ignore[arg-type]
        self._names = specification
        self._settings = config
        self._consumer: Consumer | None = None

    @property
    def topic(self) -> str:
        """The topic, with the prefix of its router."""
        return self._names.topic

    @property
    def channel(self) -> str:
        """The channel."""
        return self._names.channel

    @property
    def dead_letter_topic(self) -> str:
        """The topic of rejected messages, with the prefix of its router; empty if they are dropped."""
        name = self._settings.dead_letter_topic
        return f"{self._outer_config.prefix}{name}" if name else ""

    # Start and stop

    async def start(self) -> None:
        """Begin to consume. Raises what ``nsqx.Consumer`` raises."""
        if self.dead_letter_topic:
            check_name("topic", self.dead_letter_topic)
        await super().start()
        self._consumer = None
        self._post_start()
        if self.calls:
            self._consumer = self._new_consumer(self._handle)
            try:
                await self._consumer.start()
            except BaseException:
                self.running = False
                raise

    async def stop(self) -> None:
        """Requeue the messages that wait, and wait for those in handlers, at most ``graceful_timeout``.

        Handlers that take longer are cancelled, and their messages are requeued.
        """
        self.running = False
        if self._consumer is not None:
            await self._consumer.stop(self._outer_config.graceful_timeout or 0)
        await super().stop()

    def _new_consumer(self, handler: Callable[[Message], Awaitable[None]] | None) -> Consumer:
        return self._outer_config.opened().consumer(
            self.topic,
            self.channel,
            handler,
            workers=self._settings.max_workers,
            options=self._settings.options,
            give_up=self._give_up,
        )

    # Messages with a handler

    async def _handle(self, message: Message) -> None:
        """Pass a message to FastStream, which answers it by the acknowledgement policy."""
        if not self.running:
            message.requeue(0, backoff=False)
            return
        try:
            await self.consume(self._received(message))
        except asyncio.CancelledError:
            # The time for stop is over. nsqd would wait for the message timeout before it delivers the message again.
            if not message.is_answered:
                message.requeue(0, backoff=False)
            raise
        if not message.is_answered:
            if self.ack_policy is AckPolicy.MANUAL:
                message.answer_later()
            else:
                # The acknowledgement failed, for example because the dead-letter topic refuses the message.
                message.requeue()

    async def _give_up(self, message: Message) -> None:
        """Reject a message that was delivered too often, because earlier deliveries timed out."""
        await self._received(message).give_up()

    def _received(self, message: Message) -> ReceivedMessage:
        return self.received(message.body, message)

    def received(self, body: bytes, message: Any) -> ReceivedMessage:
        """Return a message of this subscriber as FastStream processes it."""
        bury = partial(self._bury, self.dead_letter_topic) if self.dead_letter_topic else None
        max_attempts = self._outer_config.opened().attempt_limit(self._settings.options)
        return ReceivedMessage(self.topic, self.channel, body, message, max_attempts, bury)

    async def _bury(self, topic: str, body: bytes) -> None:
        await self._outer_config.producer.send(topic, [body])

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        if not is_valid_name(message.reply_to):
            # An error would requeue the message, and each of its deliveries would fail in the same way.
            text = f"no reply to {message.message_id}: {invalid_name('topic', message.reply_to)}"
            self._log(logging.WARNING, text, extra=self.get_log_context(message))
            return ()
        return (NSQReplyPublisher(self._outer_config.producer, message.reply_to),)

    # Messages without a handler

    async def get_one(self, *, timeout: float = 5.0) -> NSQStreamMessage | None:
        """Return the next message, or None after ``timeout``. Acknowledge it with ``ack``."""
        assert not self.calls, "a subscriber with a handler has no get_one"
        consumer = await self._pulled()
        message: Message | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                message = await anext(consumer, None)
        return None if message is None else await self._processed(message)

    async def __aiter__(self) -> AsyncIterator[NSQStreamMessage]:  # type: ignore[override]
        """Iterate over the messages.

        A message that is not answered is acknowledged when the loop asks for the next one, unless the policy is MANUAL.
        """
        assert not self.calls, "a subscriber with a handler cannot be iterated"
        consumer = await self._pulled()
        async for message in consumer:
            received = await self._processed(message)
            yield received
            if self.ack_policy is not AckPolicy.MANUAL:
                await received.ack()

    async def _pulled(self) -> Consumer:
        """Return the running consumer of a subscriber without a handler."""
        if self._consumer is None:
            consumer = self._new_consumer(None)
            await consumer.start()
            self._consumer = consumer
        return self._consumer

    async def _processed(self, message: Message) -> NSQStreamMessage:
        if self.ack_policy is AckPolicy.ACK_FIRST:
            message.finish()
        raw = self._received(message)
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        processed: Any = await process_msg(
            msg=raw,
            middlewares=(each(raw, context=context) for each in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert isinstance(processed, NSQStreamMessage)
        return processed

    # Log

    def get_log_context(self, message: StreamMessage[ReceivedMessage] | None) -> dict[str, str]:
        """Return the fields of a log line."""
        return log_fields(self.topic, self.channel, message)


def log_fields(topic: str, channel: str, message: StreamMessage[ReceivedMessage] | None) -> dict[str, str]:
    """Return the fields of a log line of a subscriber."""
    return {"topic": topic, "channel": channel, "message_id": getattr(message, "message_id", "")}


def create_subscriber(
    config: NSQBrokerConfig,
    *,
    topic: str,
    channel: str,
    max_workers: int,
    dead_letter_topic: str,
    options: OptionKeywords,
    ack_policy: AckPolicy,
    no_reply: bool,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> NSQSubscriber:
    """Return a subscriber and its part of the AsyncAPI document."""
    settings = SubscriberSettings(
        _outer_config=config,
        topic=topic,
        channel=channel,
        max_workers=max_workers,
        dead_letter_topic=dead_letter_topic,
        options=options,
        no_reply=no_reply,
        _ack_policy=ack_policy,
    )
    document = SubscriberDocument(
        topic=topic, channel=channel, title_=title, description_=description, include_in_schema=include_in_schema
    )
    calls = CallsCollection[ReceivedMessage]()
    return NSQSubscriber(settings, NSQSubscriberSpecification(config, document, calls), calls)
