"""Spans and metrics follow OpenTelemetry's conventions for messaging."""

import asyncio
import sys

import pytest

from nsqx import ConfigError, Consumer, Producer
from nsqx.client.telemetry import OpenTelemetryConsumer, OpenTelemetryProducer


class Exported:
    """OpenTelemetry providers that keep spans and metrics in memory."""

    def __init__(self, monkeypatch):
        pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk missing: pip install opentelemetry-sdk")
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider([self._metrics], shutdown_on_exit=False)
        monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
        monkeypatch.setattr(metrics, "get_meter", meters.get_meter)

    def spans(self):
        return self._spans.get_finished_spans()

    def metrics(self):
        """Return the sum or the count of each metric."""
        data = self._metrics.get_metrics_data()
        found = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                found[metric.name] = getattr(point, "count", None) or point.value
        return found


@pytest.fixture
def exported(monkeypatch):
    return Exported(monkeypatch)


async def test_a_publish_makes_a_span_and_metrics(exported):
    telemetry = OpenTelemetryProducer()
    future = asyncio.get_running_loop().create_future()
    telemetry.published("orders", 3, 42, future)
    assert exported.spans() == ()
    future.set_result(None)
    await asyncio.sleep(0)
    (span,) = exported.spans()
    assert (span.name, span.kind.name, span.status.status_code.name) == ("publish orders", "PRODUCER", "UNSET")
    assert dict(span.attributes) == {
        "messaging.system": "nsq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.body.size": 42,
        "messaging.batch.message_count": 3,
    }
    assert exported.metrics() == {"messaging.client.sent.messages": 3, "messaging.client.operation.duration": 1}


async def test_a_failed_publish_is_marked_as_an_error(exported):
    telemetry = OpenTelemetryProducer()
    future = asyncio.get_running_loop().create_future()
    telemetry.published("orders", 1, 42, future)
    future.set_exception(ValueError("no"))
    await asyncio.sleep(0)
    (span,) = exported.spans()
    assert span.status.status_code.name == "ERROR"
    assert span.attributes["error.type"] == "ValueError"
    assert future.exception() is not None


class FakeMessage:
    id = b"0123456789abcdef"
    body = b"body"
    attempts = 2
    timestamp = 1
    nsqd_address = "127.0.0.1:4150"
    is_lost = False
    is_detached = False
    is_answered = False

    def __init__(self):
        self.answers = []

    def finish(self):
        self.answers.append("finish")

    def requeue(self):
        self.answers.append("requeue")


def test_a_handled_message_makes_a_span_and_metrics(exported):
    telemetry = OpenTelemetryConsumer("orders", "billing")
    with telemetry.processing(FakeMessage()):
        pass
    (span,) = exported.spans()
    assert (span.name, span.kind.name) == ("process orders", "CONSUMER")
    assert dict(span.attributes) == {
        "messaging.system": "nsq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.subscription.name": "billing",
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": "0123456789abcdef",
        "messaging.message.body.size": 4,
        "messaging.nsq.message.attempts": 2,
        "server.address": "127.0.0.1",
        "server.port": 4150,
    }
    assert exported.metrics() == {"messaging.client.consumed.messages": 1, "messaging.process.duration": 1}


def test_a_failing_handler_is_marked_as_an_error(exported):
    telemetry = OpenTelemetryConsumer("orders", "billing")
    with pytest.raises(ValueError), telemetry.processing(FakeMessage()):
        raise ValueError("no")
    (span,) = exported.spans()
    assert span.status.status_code.name == "ERROR"
    assert span.attributes["error.type"] == "ValueError"


def test_an_iterated_message_is_counted(exported):
    OpenTelemetryConsumer("orders", "billing").received()
    assert exported.metrics() == {"messaging.client.consumed.messages": 1}


def test_telemetry_without_opentelemetry_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    for make in (
        lambda: Producer("a:1", telemetry=True),
        lambda: Consumer("t", "c", nsqd_tcp_addresses="a:1", telemetry=True),
    ):
        with pytest.raises(ConfigError, match=r"pip install 'nsqx\[telemetry\]'"):
            make()


async def test_a_custom_telemetry_object_is_accepted():
    """An object with the methods of ``ProducerTelemetry`` is accepted."""
    published = []

    class RecordingTelemetry:
        def published(self, topic, count, size, future):
            published.append((topic, count, size))

    producer = Producer("127.0.0.1:1", telemetry=RecordingTelemetry(), max_publish_attempts=1)
    publishes = [producer.publish("t", b"abc"), producer.publish_many("t", [b"a", b"b"])]
    await asyncio.gather(*publishes, return_exceptions=True)
    await producer.close()
    assert published == [("t", 1, 3), ("t", 2, 14)]
