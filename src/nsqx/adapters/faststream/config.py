"""What the subscribers and publishers of a broker share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import BrokerConfig, UnderlyingDriverAnnotation
from faststream.exceptions import NOT_CONNECTED_YET, IncorrectState

from nsqx.adapters.faststream.producer import NSQProducer

if TYPE_CHECKING:
    from faststream._internal.configs import UnderlyingDriverAnnotations

    from nsqx.adapters.faststream.connector import Connector
    from nsqx.client.producer import Producer


def _driver_annotations() -> UnderlyingDriverAnnotations:
    """Return the annotations that FastStream suggests for a handler that has a class in place of them."""
    from nsqx.adapters.faststream import annotations
    from nsqx.adapters.faststream.broker import NSQBroker
    from nsqx.adapters.faststream.message import NSQStreamMessage
    from nsqx.client.producer import Producer

    module = annotations.__name__
    return {
        Producer: UnderlyingDriverAnnotation(type_hint=annotations.Client, module=module, name="Client"),
        NSQBroker: UnderlyingDriverAnnotation(type_hint=annotations.NSQBroker, module=module, name="NSQBroker"),
        NSQStreamMessage: UnderlyingDriverAnnotation(
            type_hint=annotations.NSQMessage, module=module, name="NSQMessage"
        ),
    }


@dataclass(kw_only=True)
class NSQBrokerConfig(BrokerConfig):
    """The settings of a broker, or of a router that may be included in one.

    Attributes:
        producer: Publishes the messages.
        connector: Creates the clients; None for a router.
        channel: Channel of subscribers that name none.
    """

    producer: NSQProducer = field(default_factory=NSQProducer)
    connector: Connector | None = None
    channel: str = ""
    default_driver_annotations: UnderlyingDriverAnnotations = field(default_factory=_driver_annotations)

    def opened(self) -> Connector:
        """Return the connector. Raises IncorrectState for a router that is not included in a broker."""
        if self.connector is None:
            raise IncorrectState(NOT_CONNECTED_YET)
        return self.connector

    def connect(self, client: Producer) -> None:
        """Publish through ``client`` from now on."""
        serializer: Any = self.fd_config._serializer
        self.producer.connect(client, self.opened(), serializer, self.broker_codec)

    async def disconnect(self) -> None:
        """Publish no longer."""
        await self.producer.disconnect()
