"""Spans and metrics of producers and consumers, by OpenTelemetry's conventions for messaging.

``telemetry=True`` turns them on. opentelemetry is imported only then. The spans and metrics are:

    span    publish <topic>                       each publish, from the call to nsqd's answer
    span    process <topic>                       each message in a handler
    metric  messaging.client.operation.duration   seconds of a publish
    metric  messaging.client.sent.messages        messages published
    metric  messaging.client.consumed.messages    messages passed to a handler or an iterator
    metric  messaging.process.duration            seconds of a handler

A trace does not continue from the publish to the processing, because NSQ's messages have no headers.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from nsqx.errors import ConfigError
from nsqx.net.address import TCPAddress, parse_address
from nsqx.version import VERSION

if TYPE_CHECKING:
    from nsqx.client.subscription import Message

_SYSTEM = {"messaging.system": "nsq"}
_SCOPE = "nsqx"


class ProducerTelemetry(Protocol):
    """The events that a producer reports."""

    def published(self, topic: str, count: int, size: int, future: asyncio.Future[None]) -> None:
        """``count`` messages of ``size`` bytes are being published. ``future`` has the outcome."""


class ConsumerTelemetry(Protocol):
    """The events that a consumer reports."""

    def received(self) -> None:
        """An iterator has received a message."""

    def processing(self, message: Message) -> AbstractContextManager[None]:
        """Return a context in which a handler processes ``message``."""


def producer_telemetry(wanted: bool | ProducerTelemetry) -> ProducerTelemetry | None:
    """Return the telemetry that a producer's argument selects; raises ConfigError if opentelemetry is missing."""
    if isinstance(wanted, bool):
        return OpenTelemetryProducer() if wanted else None
    return wanted


def consumer_telemetry(wanted: bool | ConsumerTelemetry, topic: str, channel: str) -> ConsumerTelemetry | None:
    """Return the telemetry that a consumer's argument selects; raises ConfigError if opentelemetry is missing."""
    if isinstance(wanted, bool):
        return OpenTelemetryConsumer(topic, channel) if wanted else None
    return wanted


def _interface() -> tuple[Any, Any]:
    """Import opentelemetry's modules trace and metrics; raises ConfigError."""
    try:
        return importlib.import_module("opentelemetry.trace"), importlib.import_module("opentelemetry.metrics")
    except ImportError:
        raise ConfigError("telemetry needs the package opentelemetry-api: pip install 'nsqx[telemetry]'") from None


class OpenTelemetryProducer:
    """Spans and metrics of a producer."""

    def __init__(self) -> None:
        self._trace, metrics = _interface()
        self._tracer = self._trace.get_tracer(_SCOPE, VERSION)
        meter = metrics.get_meter(_SCOPE, VERSION)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages published")
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of publishing operations"
        )

    def published(self, topic: str, count: int, size: int, future: asyncio.Future[None]) -> None:
        """Open a span that ends with the outcome."""
        attributes: dict[str, Any] = {
            **_SYSTEM,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
        }
        details: dict[str, Any] = {"messaging.message.body.size": size}
        if count > 1:
            details["messaging.batch.message_count"] = count
        span = self._tracer.start_span(
            f"publish {topic}", kind=self._trace.SpanKind.PRODUCER, attributes={**attributes, **details}
        )
        began_s = time.perf_counter()

        def finished(done: asyncio.Future[None]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is not None:
                attributes["error.type"] = type(error).__name__
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
            span.end()
            self._duration.record(time.perf_counter() - began_s, attributes)
            self._sent.add(count, attributes)

        future.add_done_callback(finished)


class OpenTelemetryConsumer:
    """Spans and metrics of a consumer."""

    def __init__(self, topic: str, channel: str) -> None:
        self._trace, metrics = _interface()
        self._name = f"process {topic}"
        self._tracer = self._trace.get_tracer(_SCOPE, VERSION)
        meter = metrics.get_meter(_SCOPE, VERSION)
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Messages consumed")
        self._duration = meter.create_histogram("messaging.process.duration", "s", "Duration of handlers")
        self._attributes: dict[str, Any] = {
            **_SYSTEM,
            "messaging.destination.name": topic,
            "messaging.destination.subscription.name": channel,
            "messaging.consumer.group.name": channel,
        }

    def received(self) -> None:
        """Count a message."""
        self._consumed.add(1, {**self._attributes, "messaging.operation.name": "receive"})

    @contextmanager
    def processing(self, message: Message) -> Iterator[None]:
        """Count a message and open a span around its handler."""
        attributes = {
            **self._attributes,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
        }
        details = {
            "messaging.message.id": message.id.decode("ascii", "replace"),
            "messaging.message.body.size": len(message.body),
            "messaging.nsq.message.attempts": message.attempts,
            **_server(message.nsqd_address),
        }
        self._consumed.add(1, attributes)
        began_s = time.perf_counter()
        with self._tracer.start_as_current_span(
            self._name, kind=self._trace.SpanKind.CONSUMER, attributes={**attributes, **details}
        ) as span:
            try:
                yield
            except BaseException as error:
                attributes["error.type"] = type(error).__name__
                span.set_attribute("error.type", type(error).__name__)
                raise
            finally:
                self._duration.record(time.perf_counter() - began_s, attributes)


def _server(text: str) -> dict[str, Any]:
    address = parse_address(text)
    if isinstance(address, TCPAddress):
        return {"server.address": address.host, "server.port": address.port}
    return {"server.address": address.path}
