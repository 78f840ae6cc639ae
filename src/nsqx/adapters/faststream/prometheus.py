"""Prometheus metrics of a broker: ``NSQBroker(middlewares=[NSQPrometheusMiddleware(registry=registry)])``.

It needs ``pip install prometheus-client``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.constants import EMPTY
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider, PrometheusMiddleware

from nsqx.adapters.faststream.message import ReceivedMessage
from nsqx.adapters.faststream.response import NSQPublishCommand

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from prometheus_client import CollectorRegistry


class NSQMetricsLabels(MetricsSettingsProvider[ReceivedMessage, NSQPublishCommand]):
    """The labels of the metrics."""

    messaging_system = "nsq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[ReceivedMessage]) -> ConsumeAttrs:
        """Return the topic and the size of a received message."""
        return {"destination_name": msg.raw_message.topic, "message_size": len(msg.body), "messages_count": 1}

    def get_publish_destination_name_from_cmd(self, cmd: NSQPublishCommand) -> str:
        """Return the topic of a publish."""
        return cmd.destination


class NSQPrometheusMiddleware(PrometheusMiddleware[ReceivedMessage, NSQPublishCommand]):
    """Counts and measures publishes and handlers."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: NSQMetricsLabels(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
