"""Applications: subscribers, publishers, dead letters, lifespans and signals, with a real nsqd."""

import asyncio
import socket
import threading

import pytest

from daemons import Fleet, free_port
from eventually import until
from nsqx import App, ClientClosed, ConnectFailed, Consumer, GiveUp, Message, Producer

LIMIT_S = 40.0
FAST = {"default_requeue_delay": "1ms", "backoff_multiplier": "1ms"}


async def test_a_pipeline_of_subscribers_and_publishers(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    app = App(daemon.tcp_address)
    invoices = app.publisher(f"{topic}.invoices", dict)
    received = []
    done = asyncio.Event()

    @app.subscriber(topic, "billing", concurrency=10)
    @invoices
    async def bill(order: dict) -> dict | None:
        return {"invoice": order["id"]} if order["id"] else None

    @app.subscriber(f"{topic}.invoices", "mail")
    def mail(invoice: dict) -> None:
        received.append((invoice["invoice"], threading.current_thread() is threading.main_thread()))
        if len(received) == 20:
            app_loop.call_soon_threadsafe(done.set)

    app_loop = asyncio.get_running_loop()
    for _ in range(2):  # an app can be started again
        received.clear()
        done.clear()
        async with asyncio.timeout(LIMIT_S), app:
            assert app.is_connected
            assert set(app.health) == {f"{topic}/billing", f"{topic}.invoices/mail", "producer"}
            orders = app.producer.publisher(topic, dict)
            await orders.publish_many([{"id": number} for number in range(21)])
            await done.wait()
        assert sorted(received) == [(number, False) for number in range(1, 21)]
        assert not app.is_connected
        with pytest.raises(ClientClosed, match="the app is not running"):
            invoices.publish({})


async def test_dead_letters_are_published(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    app = App(daemon.tcp_address, max_attempts=2, **FAST)
    calls = []

    @app.subscriber(topic, "ch", dead_letter_topic=f"{topic}.dead")
    async def handle(order: dict, message: Message) -> None:
        calls.append((order["id"], message.attempts))
        raise GiveUp("no such customer") if order["id"] == 1 else ValueError("not now")

    async with asyncio.timeout(LIMIT_S), app:
        await app.producer.publish_many(topic, [b'{"id":1}', b'{"id":2}', b"no JSON"])
        async with Consumer(f"{topic}.dead", "ch", nsqd_tcp_addresses=daemon.tcp_address) as letters:
            bodies = []
            async for letter in letters:
                bodies.append(letter.body)
                letter.finish()
                if len(bodies) == 3:
                    break
    assert sorted(bodies) == [b"no JSON", b'{"id":1}', b'{"id":2}']
    assert sorted(calls) == [(1, 1), (2, 1), (2, 2)]


async def test_on_give_up_has_the_error(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    app = App(daemon.tcp_address)
    given_up = asyncio.Queue()

    @app.subscriber(topic, "ch", on_give_up=lambda message: given_up.put_nowait(str(message.error)))
    async def handle(message: Message) -> None:
        raise GiveUp("no")

    async with asyncio.timeout(LIMIT_S), app:
        await app.producer.publish(topic, b"x")
        assert await given_up.get() == "no"


async def test_as_many_calls_at_once_as_the_concurrency_says(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    app = App(daemon.tcp_address)
    running = 0
    all_run = asyncio.Event()

    @app.subscriber(topic, "ch", concurrency=50)
    async def handle(message: Message) -> None:
        nonlocal running
        running += 1
        if running == 50:
            all_run.set()
        await all_run.wait()

    async with asyncio.timeout(LIMIT_S), app:
        await app.producer.publish_many(topic, [b"x"] * 60)
        await all_run.wait()
        await until(lambda: running == 60, "the others follow")


async def test_an_app_starts_before_its_nsqd(fleet: Fleet, topic):
    address = f"127.0.0.1:{free_port()}"
    app = App(address, lookupd_poll_interval="50ms")
    handled = asyncio.Event()

    @app.subscriber(topic, "ch")
    async def handle(message: Message) -> None:
        handled.set()

    async with asyncio.timeout(LIMIT_S), app:
        assert not app.is_connected
        assert app.health[f"{topic}/ch"].failures == {address: f"{address}: Connection refused"}
        fleet.nsqd("nsqx", f"--tcp-address={address}")
        async with Producer(address) as producer:
            await producer.publish(topic, b"x")
        await handled.wait()
        assert app.is_connected
    strict = App(f"127.0.0.1:{free_port()}", require_connection=True)
    strict.include(app)
    with pytest.raises(ConnectFailed, match="Connection refused"):
        await strict.start()
    assert not strict.is_connected


async def test_run_returns_after_cancellation_when_the_messages_are_handled(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    app = App(daemon.tcp_address)
    outcomes = []
    running = asyncio.Event()

    @app.subscriber(topic, "ch")
    async def handle(message: Message) -> None:
        running.set()
        await asyncio.sleep(0.2)
        outcomes.append("handled")

    async with Producer(daemon.tcp_address) as producer:
        await producer.publish(topic, b"x")
    async with asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(app.run())
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert outcomes == ["handled"]
    assert daemon.channel_stats(topic, "ch")["depth"] == 0


async def test_a_cancelled_start_leaves_nothing_running(fleet: Fleet, topic):
    """The consumer is connected while the producer waits for an nsqd that does not answer."""
    silent = socket.create_server(("127.0.0.1", 0))
    daemon = fleet.nsqd("nsqx")
    app = App(daemon.tcp_address, publish_to=f"127.0.0.1:{silent.getsockname()[1]}", start_timeout="30s")

    @app.subscriber(topic, "ch")
    async def handle(message: Message) -> None:
        pass

    app.publisher(topic, bytes)
    starting = asyncio.ensure_future(app.start())
    await until(lambda: any(each.is_connected for each in app._consumers), "the consumer is connected")
    consumers = list(app._consumers)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    silent.close()
    assert [each.is_connected for each in consumers] == [False]
    with pytest.raises(ClientClosed):
        _ = app.producer


async def test_the_producer_of_dead_letters_counts_for_the_health(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    app = App(daemon.tcp_address, publish_to=f"127.0.0.1:{free_port()}", start_timeout="1s")

    @app.subscriber(topic, "ch", dead_letter_topic=f"{topic}.dead")
    async def handle(message: Message) -> None:
        pass

    async with asyncio.timeout(LIMIT_S), app:
        assert set(app.health) == {f"{topic}/ch", "producer"}
        assert not app.is_connected
