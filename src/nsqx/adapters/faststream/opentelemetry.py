"""Traces and metrics of a broker: ``NSQBroker(middlewares=[NSQTelemetryMiddleware()])``.

It needs ``pip install opentelemetry-sdk``. A trace continues from the publish to the handler, unless the message is
raw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.opentelemetry import TelemetryMiddleware, TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from opentelemetry.semconv.trace import SpanAttributes

from nsqx.adapters.faststream.message import ReceivedMessage
from nsqx.adapters.faststream.response import NSQPublishCommand

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

_SYSTEM = "nsq"


class NSQTelemetryAttributes(TelemetrySettingsProvider[ReceivedMessage, NSQPublishCommand]):
    """The attributes of spans and metrics."""

    messaging_system = _SYSTEM

    def get_consume_attrs_from_message(self, msg: StreamMessage[ReceivedMessage]) -> dict[str, Any]:
        """Return the attributes of a received message."""
        return {
            SpanAttributes.MESSAGING_SYSTEM: _SYSTEM,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: len(msg.body),
            MESSAGING_DESTINATION_PUBLISH_NAME: msg.raw_message.topic,
        }

    def get_consume_destination_name(self, msg: StreamMessage[ReceivedMessage]) -> str:
        """Return the topic of a received message."""
        return msg.raw_message.topic

    def get_publish_attrs_from_cmd(self, cmd: NSQPublishCommand) -> dict[str, Any]:
        """Return the attributes of a publish."""
        return {
            SpanAttributes.MESSAGING_SYSTEM: _SYSTEM,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: NSQPublishCommand) -> str:
        """Return the topic of a publish."""
        return cmd.destination


class NSQTelemetryMiddleware(TelemetryMiddleware[NSQPublishCommand]):
    """Records spans and metrics of publishes and handlers."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: NSQTelemetryAttributes(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
