"""The events that producers and consumers report with ``telemetry=``, and their OpenTelemetry spans and metrics."""

from nsqx.client.telemetry import ConsumerTelemetry, OpenTelemetryConsumer, OpenTelemetryProducer, ProducerTelemetry

__all__ = ["ConsumerTelemetry", "OpenTelemetryConsumer", "OpenTelemetryProducer", "ProducerTelemetry"]
