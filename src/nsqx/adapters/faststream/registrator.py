"""The decorators that brokers and routers have in common: ``subscriber`` and ``publisher``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream.exceptions import SetupError

from nsqx.adapters.faststream.config import NSQBrokerConfig
from nsqx.adapters.faststream.message import ReceivedMessage
from nsqx.adapters.faststream.publisher import NSQTopicPublisher, create_publisher
from nsqx.adapters.faststream.subscriber import NSQSubscriber, create_subscriber
from nsqx.client.arguments import at_least_one
from nsqx.client.options import Options

if TYPE_CHECKING:
    from typing import Unpack

    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable
    from faststream.middlewares import AckPolicy

    from nsqx.client.options import Duration, OptionKeywords


class NSQRegistrator(Registrator[ReceivedMessage, NSQBrokerConfig]):
    """Registers subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        channel: str = "",
        *,
        max_workers: int = 1,
        dead_letter_topic: str = "",
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Unpack[OptionKeywords],
    ) -> NSQSubscriber:
        """Subscribe a handler to a channel of a topic.

        Args:
            topic: Name of the topic.
            channel: Name of the channel. The default is that of the broker.
            max_workers: Largest number of messages that are handled at once.
            dead_letter_topic: Topic of messages that are rejected or were delivered ``max_attempts`` times. By default
                they are dropped.
            ack_policy: When messages are finished or requeued. By default a message is finished when its handler
                returns, and requeued when its handler raises.
            no_reply: Do not publish the result of the handler as a reply.
            dependencies: Dependencies of the handler.
            parser: Replaces the parser of messages.
            decoder: Replaces the decoder of payloads.
            codec: Replaces the encoder and the decoder of payloads.
            persistent: False if the broker must not keep the subscriber alive.
            title: Name of the AsyncAPI channel.
            description: Description of the AsyncAPI channel. The default is the docstring of the handler.
            include_in_schema: False leaves the subscriber out of the AsyncAPI document.
            **options: Options of the client, such as ``max_in_flight``, in place of those of the broker. The default
                of ``max_in_flight`` is ``max_workers``, and that of ``max_attempts`` is 0, no limit.

        Raises:
            ConfigError: An option is invalid.
        """
        at_least_one("max_workers", max_workers)
        Options.of(options)
        subscriber = create_subscriber(
            cast("NSQBrokerConfig", self.config),
            topic=topic,
            channel=channel,
            max_workers=max_workers,
            dead_letter_topic=dead_letter_topic,
            options=options,
            ack_policy=ack_policy,
            no_reply=no_reply,
            title=title,
            description=description,
            include_in_schema=include_in_schema,
        )
        super().subscriber(subscriber, persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        delay: Duration | None = None,
        raw: bool | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> NSQTopicPublisher:
        """Return a publisher to a topic. As a decorator, it publishes what the handler returns.

        Args:
            topic: Name of the topic.
            delay: Time after which nsqd delivers the messages.
            raw: True publishes payloads without an envelope, so without headers. The default is that of the broker.
            headers: Headers of every message.
            reply_to: Topic for the replies of those who receive the messages.
            persistent: False if the broker must not keep the publisher alive.
            title: Name of the AsyncAPI channel.
            description: Description of the AsyncAPI channel.
            schema: Type of the messages in the AsyncAPI document. The default is what the handlers return.
            include_in_schema: False leaves the publisher out of the AsyncAPI document.
        """
        publisher = create_publisher(
            cast("NSQBrokerConfig", self.config),
            topic=topic,
            delay=delay,
            raw=raw,
            headers=headers,
            reply_to=reply_to,
            title=title,
            description=description,
            schema=schema,
            include_in_schema=include_in_schema,
        )
        super().publisher(publisher, persistent)
        return publisher

    def include_router(
        self,
        router: NSQRegistrator,  # type: ignore[override]
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Include the subscribers and publishers of a router. ``prefix`` is that of their topics."""
        if not isinstance(router, NSQRegistrator):
            raise SetupError(f"{type(router).__name__} is no router of NSQ: use NSQRouter")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
