"""What surrounds a FastStream application: its command, AsyncAPI documents, telemetry and FastAPI."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("faststream", reason="pip install 'faststream[cli]'")

from faststream import FastStream  # noqa: E402
from faststream.specification import AsyncAPI  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from daemons import Fleet, wait_until  # noqa: E402
from nsqx.adapters.faststream import NSQBroker, NSQRouter  # noqa: E402
from nsqx.testing import LocalBroker  # noqa: E402

TIMEOUT_S = 30.0

PROGRAM = """
import asyncio, os
from contextlib import asynccontextmanager
from faststream import FastStream
from nsqx.adapters.faststream import NSQBroker

broker = NSQBroker(os.environ["NSQD"])


@asynccontextmanager
async def lifespan():
    print("lifespan begins", flush=True)
    yield
    print("lifespan ends", flush=True)


app = FastStream(broker, lifespan=lifespan)


@app.after_startup
async def begin():
    await broker.publish("first", "orders")


@broker.subscriber("orders", "billing")
@broker.publisher("invoices")
async def bill(order: str) -> str:
    print("begin", order, flush=True)
    await asyncio.sleep(float(os.environ["SECONDS"]))
    print("end", order, flush=True)
    return f"invoice of {order}"
"""


class Order(BaseModel):
    number: int


@pytest.fixture(scope="module")
def nsqd() -> Iterator[LocalBroker]:
    with LocalBroker() as running:
        yield running


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM)
    return tmp_path


def command(*words: str) -> list[str]:
    pytest.importorskip("typer", reason="pip install 'faststream[cli]'")
    return [sys.executable, "-m", "faststream", *words]


def test_the_command_runs_an_application_until_it_is_stopped(fleet: Fleet, program: Path) -> None:
    nsqd = fleet.nsqd("nsqx")
    nsqd.post("/topic/create", topic="invoices")
    nsqd.post("/channel/create", topic="invoices", channel="archive")
    environment = {**os.environ, "NSQD": nsqd.tcp_address, "SECONDS": "0.3"}
    output = program / "output"
    with output.open("wb") as stream:
        process = subprocess.Popen(command("run", "shop:app"), cwd=program, env=environment, stdout=stream)
        try:
            wait_until(lambda: "begin first" in output.read_text(), "the application has started", TIMEOUT_S)
            words = ("publish", "shop:app", '"second"', "--topic=orders", "--rpc", f"--timeout={TIMEOUT_S}")
            done = subprocess.run(
                command(*words), cwd=program, env=environment, capture_output=True, text=True, check=False
            )
            assert (done.returncode, "invoice of second" in done.stdout) == (0, True), done.stdout + done.stderr
            nsqd.post("/pub", b"third", topic="orders")
            wait_until(lambda: "begin third" in output.read_text(), "the handler has begun", TIMEOUT_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
            process.wait()
    handled = [f"{event} {order}" for order in ("first", "second", "third") for event in ("begin", "end")]
    lines = ["lifespan begins", *handled, "lifespan ends"]
    assert [line for line in output.read_text().splitlines() if line in lines] == lines
    assert nsqd.channel_stats("orders", "billing")["in_flight_count"] == 0
    assert nsqd.channel_stats("orders", "billing")["requeue_count"] == 0
    assert nsqd.channel_stats("invoices", "archive")["depth"] == 3


def test_the_command_writes_the_asyncapi_document(program: Path) -> None:
    environment = {**os.environ, "NSQD": "192.0.2.1:4150", "SECONDS": "0"}
    done = subprocess.run(
        command("docs", "gen", "shop:app"), cwd=program, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((program / "asyncapi.json").read_text())
    assert document["servers"]["development"]["host"] == "192.0.2.1:4150"
    assert sorted(document["channels"]) == ["invoices:Publisher", "orders:billing:Bill"]


@pytest.mark.parametrize("version", ["2.6.0", "3.0.0"])
def test_an_asyncapi_document_has_every_channel(version: Any) -> None:
    broker = NSQBroker(["192.0.2.1:4150", "192.0.2.2:4150"], channel="billing", description="the shop")
    router = NSQRouter("eu_")

    @router.subscriber("orders")
    @router.publisher("invoices", description="One for each order.", schema=Order)
    async def bill(order: Order) -> Any:
        """Write an invoice."""

    @broker.subscriber("orders", "stock", title="Stock")
    async def take(order: Order) -> None: ...

    @broker.subscriber("orders", "secret", include_in_schema=False)
    async def spy(order: Order) -> None: ...

    broker.include_router(router)
    specification = AsyncAPI(schema_version=version)
    app = FastStream(broker, specification=specification)
    document = app.schema.to_specification().to_jsonable()
    servers = document["servers"].values()
    assert {(each["protocol"], each["protocolVersion"], each["description"]) for each in servers} == {
        ("nsq", "V2", "the shop")
    }
    assert len(servers) == 2
    channels = document["channels"]
    assert sorted(channels) == ["Stock", "eu_invoices:Publisher", "eu_orders:billing:Bill"]
    assert channels["eu_orders:billing:Bill"]["description"] == "Write an invoice."
    assert channels["eu_invoices:Publisher"]["description"] == "One for each order."
    if version == "3.0.0":
        addresses = {name: channel["address"] for name, channel in channels.items()}
        assert addresses == {
            "Stock": "orders",
            "eu_invoices:Publisher": "eu_invoices",
            "eu_orders:billing:Bill": "eu_orders",
        }
        assert len(document["operations"]) == 3
    assert document["components"]["schemas"]["Order"]["properties"]["number"]["type"] == "integer"


async def test_a_trace_continues_in_the_handler(nsqd: LocalBroker, topic: str) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="pip install opentelemetry-sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from nsqx.adapters.faststream.opentelemetry import NSQTelemetryMiddleware

    exported = InMemorySpanExporter()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exported))
    middleware = NSQTelemetryMiddleware(tracer_provider=tracers)
    broker = NSQBroker(nsqd.tcp_address, middlewares=[middleware], channel="traced", logger=None)
    received = asyncio.Event()

    @broker.subscriber(topic)
    @broker.publisher(f"{topic}_2")
    async def handle(body: str) -> str:
        return body

    @broker.subscriber(f"{topic}_2")
    async def last(body: str) -> None:
        received.set()

    async with broker:
        await broker.start()
        await broker.publish("a", topic)
        async with asyncio.timeout(TIMEOUT_S):
            await received.wait()
    spans = {span.name: span for span in exported.get_finished_spans()}
    names = [f"{name} {action}" for name in (topic, f"{topic}_2") for action in ("publish", "process")]
    assert {f"{topic} create", *names} == set(spans)
    assert len({span.context.trace_id for span in spans.values()}) == 1
    attributes = dict(spans[f"{topic} process"].attributes or {})
    assert (attributes["messaging.system"], attributes["messaging.destination_publish.name"]) == ("nsq", topic)
    assert attributes["messaging.message.payload_size_bytes"] == 1
    assert dict(spans[f"{topic} publish"].attributes or {})["messaging.destination.name"] == topic


async def test_prometheus_counts_messages(nsqd: LocalBroker, topic: str) -> None:
    prometheus_client = pytest.importorskip("prometheus_client", reason="pip install prometheus-client")
    from nsqx.adapters.faststream.prometheus import NSQPrometheusMiddleware

    registry = prometheus_client.CollectorRegistry()
    middleware = NSQPrometheusMiddleware(registry=registry, app_name="shop")
    broker = NSQBroker(nsqd.tcp_address, middlewares=[middleware], channel="counted", logger=None)
    received: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber(topic)
    async def handle(body: str) -> None:
        received.put_nowait(body)
        if body == "bad":
            raise ValueError

    async with broker:
        await broker.start()
        await broker.publish("good", topic)
        await broker.publish("bad", topic)
        async with asyncio.timeout(TIMEOUT_S):
            await received.get()
            await received.get()
    common = {"app_name": "shop", "broker": "nsq"}
    published = {**common, "destination": topic, "status": "success"}
    assert registry.get_sample_value("faststream_published_messages_total", published) == 2
    handled = {**common, "handler": topic}
    assert registry.get_sample_value("faststream_received_messages_total", handled) == 2
    acked = {**handled, "status": "acked"}
    assert registry.get_sample_value("faststream_received_processed_messages_total", acked) == 1


async def test_fastapi_starts_the_broker_and_injects_dependencies(nsqd: LocalBroker, topic: str) -> None:
    pytest.importorskip("faststream_fastapi", reason="pip install faststream-fastapi")
    from fastapi import Depends, FastAPI
    from faststream_fastapi import FastStreamAPI

    broker = NSQBroker(nsqd.tcp_address, channel="web", logger=None)
    received: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    @broker.subscriber(topic)
    async def handle(order: Order, name: str = Depends(lambda: "injected")) -> None:  # noqa: B008
        received.put_nowait((order.number, name))

    application = FastStreamAPI(broker, application=FastAPI(), safe_connection=True)
    requests: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    answers: asyncio.Queue[Any] = asyncio.Queue()
    requests.put_nowait({"type": "lifespan.startup"})

    async def send(message: Any) -> None:
        answers.put_nowait(message["type"])

    served = asyncio.create_task(application({"type": "lifespan", "state": {}}, requests.get, send))  # type: ignore[arg-type]
    async with asyncio.timeout(TIMEOUT_S):
        assert await answers.get() == "lifespan.startup.complete"
        await broker.publish(Order(number=3), topic)
        assert await received.get() == (3, "injected")
        requests.put_nowait({"type": "lifespan.shutdown"})
        assert await answers.get() == "lifespan.shutdown.complete"
        await served
