"""The broker: its connection, its publishes, and the arguments that FastStream gives every broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.response import PublishType
from faststream.security import BaseSecurity
from faststream.specification.schema import BrokerSpec

from nsqx.adapters.faststream.config import NSQBrokerConfig
from nsqx.adapters.faststream.connector import Connector
from nsqx.adapters.faststream.log_fields import nsq_logger_state
from nsqx.adapters.faststream.message import ReceivedMessage
from nsqx.adapters.faststream.producer import NSQProducer
from nsqx.adapters.faststream.registrator import NSQRegistrator
from nsqx.adapters.faststream.response import NSQPublishCommand
from nsqx.adapters.faststream.subscriber import log_fields
from nsqx.client.health import START_TIMEOUT_S
from nsqx.client.producer import PUBLISH_TIMEOUT_S, Producer

if TYPE_CHECKING:
    from typing import Unpack

    from fast_depends import Provider
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto, SendableMessage
    from faststream._internal.configs import UnderlyingDriverAnnotations
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.middlewares import AckPolicy
    from faststream.specification.schema import Tag, TagDict

    from nsqx.adapters.faststream.message import NSQStreamMessage
    from nsqx.client.options import Duration, OptionKeywords

_PROTOCOL_VERSION = "V2"


class NSQBroker(NSQRegistrator, BrokerUsecase[ReceivedMessage, Producer, NSQBrokerConfig]):
    """A FastStream broker on NSQ."""

    _connection: Producer | None

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        lookupd_http_addresses: str | Iterable[str] = (),
        channel: str = "",
        raw: bool = False,
        publish_timeout: Duration = PUBLISH_TIMEOUT_S,
        start_timeout: Duration = START_TIMEOUT_S,
        require_connection: bool = False,
        graceful_timeout: float | None = 15.0,
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[NSQRegistrator] = (),
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        security: BaseSecurity | None = None,
        specification_url: str | Iterable[str] | None = None,
        protocol: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        underlying_driver_annotations: UnderlyingDriverAnnotations | None = None,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """Create a broker. No connection is opened before ``connect`` or ``start``.

        Args:
            nsqd_tcp_addresses: nsqds to publish to, as ``host:port``. Without ``lookupd_http_addresses``, subscribers
                consume from them too. The default is ``127.0.0.1:4150`` if there is no nsqlookupd either.
            lookupd_http_addresses: nsqlookupds that name the nsqds of subscribers, and those to publish to if
                ``nsqd_tcp_addresses`` names none.
            channel: Channel of subscribers that name none.
            raw: Publish payloads without an envelope, so without headers, as other clients of NSQ expect. Subscribers
                always accept both.
            publish_timeout: Longest time for one publish, including retries (10 s by default).
            start_timeout: Longest time that ``start`` waits for the first connections (10 s by default).
            require_connection: Raise ConnectFailed from ``start`` if no nsqd can be reached. By default the broker
                starts and goes on to connect in the background.
            graceful_timeout: Longest time that ``stop`` waits for running handlers, in seconds. Then they are cancelled
                and their messages requeued.
            parser: Replaces the parser of messages.
            decoder: Replaces the decoder of payloads.
            codec: Replaces the encoder and the decoder of payloads.
            dependencies: Dependencies of all handlers.
            middlewares: Middlewares of all subscribers and publishers, the outermost first.
            routers: Routers to include.
            ack_policy: Acknowledgement policy of subscribers that have none. Routers have their own.
            id_generator: Returns a new correlation id.
            security: ``BaseSecurity`` for TLS. NSQ's secret is the option ``auth_secret``.
            specification_url: Addresses in the AsyncAPI document.
            protocol: Protocol in the AsyncAPI document.
            protocol_version: Version of the protocol in the AsyncAPI document.
            description: Description in the AsyncAPI document.
            tags: Tags in the AsyncAPI document.
            logger: Logger in place of FastStream's; None logs nothing.
            log_level: Level of FastStream's logger.
            apply_types: Validate and convert the arguments of handlers.
            serializer: Serializer of FastDepends.
            provider: Provider of FastDepends.
            context: Context of the application.
            underlying_driver_annotations: Annotations to suggest for classes that handlers cannot receive.
            **options: Options of the client, such as ``auth_secret``. Subscribers may have their own.

        Raises:
            ConfigError: An option or address is invalid.
            SetupError: NSQ does not have this kind of ``security``.
        """
        connector = Connector(
            nsqd_tcp_addresses,
            lookupd_http_addresses,
            {**_tls_options(security), **options},
            publish_timeout=publish_timeout,
            start_timeout=start_timeout,
            require_connection=require_connection,
        )
        urls = [specification_url] if isinstance(specification_url, str) else specification_url
        config = NSQBrokerConfig(
            connector=connector,
            channel=channel,
            producer=NSQProducer(parser, decoder, raw=raw),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            logger=nsq_logger_state(logger=logger, log_level=log_level),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types,
                serializer=serializer,
                provider=provider or dependency_provider,
                context=context or ContextRepo(),
            ),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            id_generator=id_generator,
            extra_context={"broker": self},
            underlying_driver_annotations=underlying_driver_annotations or {},
        )
        super().__init__(
            config=config,
            routers=routers,
            specification=BrokerSpec(
                url=list(urls or connector.addresses),
                protocol=protocol or "nsq",
                protocol_version=protocol_version or _PROTOCOL_VERSION,
                description=description,
                tags=tags,
                security=security,
            ),
        )

    # Start and stop

    async def _connect(self) -> Producer:
        config = self.config.broker_config
        client = config.opened().producer()
        await client.start()
        config.connect(client)
        return client

    async def start(self) -> None:
        """Connect and start the subscribers. Raises ConnectRefused if every nsqd rejects the connection."""
        await self.connect()
        await super().start()
        self.config.logger.log("connected to NSQ", logging.INFO, log_fields("", "", None))

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, wait for the outcome of all publishes, and disconnect."""
        await super().stop(exc_type, exc_val, exc_tb)
        client, self._connection = self._connection, None
        if client is not None:
            await self.config.broker_config.disconnect()
            await client.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Return True if an nsqd that the broker publishes to answers within ``timeout`` seconds (5 by default)."""
        if self._connection is None:
            return False
        return await self.config.broker_config.opened().ping(self._connection, timeout)

    # Publishing

    async def publish(  # type: ignore[override]
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        delay: Duration | None = None,
        raw: bool | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: Duration | None = None,
    ) -> None:
        """Publish a message, and return when nsqd has it.

        Args:
            message: The message. bytes and text are payloads as they are, everything else becomes JSON.
            topic: Name of the topic.
            delay: Time after which nsqd delivers the message, in seconds or as text such as ``"1m30s"``.
            raw: True publishes the payload without an envelope, so without headers. The default is that of the broker.
            headers: Headers of the message.
            correlation_id: Correlation id of the message. The default is a new one.
            reply_to: Topic for the result of the handler.
            timeout: Longest time for the publish, including retries. The default is ``publish_timeout``.

        Raises:
            PublishFailed: No nsqd has accepted the message.
            InvalidName: The name of the topic is not valid.
        """
        command = NSQPublishCommand(
            message,
            topic=topic,
            delay=delay,
            raw=raw,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
        await self._basic_publish(command, producer=self.config.producer)

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: SendableMessage,
        topic: str = "",
        raw: bool | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: Duration | None = None,
    ) -> None:
        """Publish several messages in one command. They have the same headers and correlation id."""
        if not messages:
            return
        command = NSQPublishCommand(
            *messages,
            topic=topic,
            raw=raw,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
        await self._basic_publish_batch(command, producer=self.config.producer)

    async def request(  # type: ignore[override]
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: Duration | None = 0.5,
    ) -> NSQStreamMessage:
        """Publish a message and return the reply, which is what its handler returns.

        Raises:
            TimeoutError: No reply has arrived within ``timeout``.
        """
        command = NSQPublishCommand(
            message,
            topic=topic,
            raw=False,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: NSQStreamMessage = await self._basic_request(command, producer=self.config.producer)
        return reply


def _tls_options(security: BaseSecurity | None) -> Mapping[str, Any]:
    """Return the options of the client for FastStream's security. Raises SetupError if NSQ has nothing like it."""
    if security is None:
        return {}
    if type(security) is not BaseSecurity:
        raise SetupError(
            f"{type(security).__name__} is not possible with NSQ: use BaseSecurity for TLS and"
            " NSQBroker(auth_secret=...) for NSQ's secret"
        )
    return {"tls_v1": True, "tls_context": security.ssl_context} if security.use_ssl else {}
