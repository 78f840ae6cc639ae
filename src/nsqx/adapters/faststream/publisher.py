"""Publishers to topics, and those of replies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from nsqx.adapters.faststream.config import NSQBrokerConfig
from nsqx.adapters.faststream.response import NSQPublishCommand

if TYPE_CHECKING:
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.producer import ProducerProto
    from faststream._internal.types import PublisherMiddleware
    from faststream.response import PublishCommand

    from nsqx.adapters.faststream.message import NSQStreamMessage
    from nsqx.client.options import Duration


@dataclass(kw_only=True)
class PublisherDocument(PublisherSpecificationConfig):
    """The settings of a publisher's part of the AsyncAPI document. ``topic`` is without the prefix of its router."""

    topic: str


@dataclass(kw_only=True)
class PublisherSettings(PublisherUsecaseConfig):
    """The settings of a publisher. ``topic`` is without the prefix of its router."""

    _outer_config: NSQBrokerConfig = field(default_factory=NSQBrokerConfig)
    topic: str
    delay: Duration | None
    raw: bool | None
    headers: dict[str, Any]
    reply_to: str


class NSQPublisherSpecification(PublisherSpecification[NSQBrokerConfig, PublisherDocument]):
    """A publisher in the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic, with the prefix of its router."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The key of the AsyncAPI channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the AsyncAPI channel. AsyncAPI has no bindings for NSQ."""
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher"))
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class NSQTopicPublisher(PublisherUsecase):
    """A publisher to one topic."""

    _outer_config: NSQBrokerConfig

    def __init__(self, config: PublisherSettings, specification: NSQPublisherSpecification) -> None:
        super().__init__(config, specification)  # type: ignore[arg-type]
        self._topic = config.topic
        self._delay = config.delay
        self._raw = config.raw
        self._reply_to = config.reply_to
        self.headers = config.headers

    @property
    def topic(self) -> str:
        """The topic, with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        delay: Duration | None = None,
        raw: bool | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: Duration | None = None,
    ) -> None:
        """Publish a message. The arguments are those of ``NSQBroker.publish``; the defaults are the publisher's."""
        command = NSQPublishCommand(
            message,
            topic=topic or self.topic,
            delay=self._delay if delay is None else delay,
            raw=self._raw if raw is None else raw,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self._reply_to,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
        await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=())

    async def publish_batch(
        self,
        *messages: SendableMessage,
        raw: bool | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Publish several messages in one command."""
        if not messages:
            return
        command = NSQPublishCommand(
            *messages,
            topic=self.topic,
            raw=self._raw if raw is None else raw,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
        await self._basic_publish_batch(command, producer=self._outer_config.producer, _extra_middlewares=())

    async def request(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: Duration | None = 0.5,
    ) -> NSQStreamMessage:
        """Publish a message and return the reply. Raises TimeoutError."""
        command = NSQPublishCommand(
            message,
            topic=topic or self.topic,
            raw=False,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: NSQStreamMessage = await self._basic_request(command, producer=self._outer_config.producer)
        return reply

    async def _publish(
        self, cmd: PublishCommand | NSQPublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish the result of a handler."""
        command = NSQPublishCommand.from_cmd(cmd)
        command.destination = self.topic
        command.delay = self._delay if command.delay is None else command.delay
        command.raw = self._raw if command.raw is None else command.raw
        command.reply_to = command.reply_to or self._reply_to
        command.add_headers(self.headers, override=False)
        await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)


class NSQReplyPublisher(FakePublisher):
    """Publishes the result of a handler to the topic that a message names for its reply."""

    def __init__(self, producer: ProducerProto[NSQPublishCommand], topic: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic

    def patch_command(self, cmd: PublishCommand | NSQPublishCommand) -> NSQPublishCommand:
        """Address the command. A reply is never raw, because its correlation id names the request."""
        command = NSQPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._topic
        command.raw = False
        return command


def create_publisher(
    config: NSQBrokerConfig,
    *,
    topic: str,
    delay: Duration | None,
    raw: bool | None,
    headers: dict[str, Any] | None,
    reply_to: str,
    title: str | None,
    description: str | None,
    schema: Any | None,
    include_in_schema: bool,
) -> NSQTopicPublisher:
    """Return a publisher and its part of the AsyncAPI document."""
    document = PublisherDocument(
        topic=topic, title_=title, description_=description, schema_=schema, include_in_schema=include_in_schema
    )
    settings = PublisherSettings(
        _outer_config=config, topic=topic, delay=delay, raw=raw, headers=headers or {}, reply_to=reply_to
    )
    return NSQTopicPublisher(settings, NSQPublisherSpecification(config, document))
