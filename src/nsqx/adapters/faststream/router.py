"""Routers: subscribers and publishers that a broker includes, with a prefix for their topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY

from nsqx.adapters.faststream.config import NSQBrokerConfig
from nsqx.adapters.faststream.message import ReceivedMessage
from nsqx.adapters.faststream.registrator import NSQRegistrator

if TYPE_CHECKING:
    from typing import Unpack

    from fast_depends.dependencies import Dependant
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.configs import UnderlyingDriverAnnotations
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable
    from faststream.middlewares import AckPolicy

    from nsqx.client.options import Duration, OptionKeywords


class NSQPublisher(ArgsContainer):
    """A publisher of a route. The arguments are those of ``NSQRouter.publisher``."""

    def __init__(
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
    ) -> None:
        super().__init__(
            topic,
            delay=delay,
            raw=raw,
            headers=headers,
            reply_to=reply_to,
            persistent=persistent,
            title=title,
            description=description,
            schema=schema,
            include_in_schema=include_in_schema,
        )


class NSQRoute(SubscriberRoute):
    """A handler for ``NSQRouter(handlers=[...])``. The arguments are those of ``NSQRouter.subscriber``."""

    def __init__(
        self,
        call: Callable[..., SendableMessage] | Callable[..., Awaitable[SendableMessage]],
        topic: str,
        channel: str = "",
        *,
        publishers: Iterable[NSQPublisher] = (),
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
    ) -> None:
        super().__init__(
            call,
            topic,
            channel,
            publishers=publishers,
            max_workers=max_workers,
            dead_letter_topic=dead_letter_topic,
            ack_policy=ack_policy,
            no_reply=no_reply,
            dependencies=dependencies,
            parser=parser,
            decoder=decoder,
            codec=codec,
            persistent=persistent,
            title=title,
            description=description,
            include_in_schema=include_in_schema,
            **options,
        )


class NSQRouter(NSQRegistrator, BrokerRouter[ReceivedMessage, NSQBrokerConfig]):
    """Subscribers and publishers to include in a broker."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[NSQRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[NSQRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
        underlying_driver_annotations: UnderlyingDriverAnnotations | None = None,
    ) -> None:
        """Create a router. ``prefix`` precedes the names of its topics, not those of its channels."""
        config = NSQBrokerConfig(
            prefix=prefix,
            ack_policy=ack_policy,
            broker_dependencies=dependencies,
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            include_in_schema=include_in_schema,
            underlying_driver_annotations=underlying_driver_annotations or {},
        )
        super().__init__(config=config, handlers=handlers, routers=routers)
