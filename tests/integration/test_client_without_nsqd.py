"""Clients start while no nsqd can be reached, connect when one is there, and say how they are meanwhile."""

import asyncio
import contextlib
import signal
import socket

import pytest

from daemons import Fleet, free_port, wait_until
from eventually import until
from nsqx import ClientHealth, ConnectFailed, ConnectRefused, Consumer, Producer, blocking
from partition_proxy import Proxy
from scripted_nsqd import scripted_nsqd

LIMIT_S = 40.0
FAST = {"lookupd_poll_interval": "50ms"}


@pytest.fixture
def silent_listener():
    """Return the address of a listener that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_producer_starts_before_its_nsqd(fleet: Fleet, topic):
    address = f"127.0.0.1:{free_port()}"
    async with (
        asyncio.timeout(LIMIT_S),
        Producer(address, retry_delay="20ms", max_publish_attempts=100_000) as producer,
    ):
        assert producer.health == ClientHealth(
            False, (), {address: f"{address}: Connection refused"}, producer.last_error
        )
        assert isinstance(producer.last_error, ConnectFailed)
        early = producer.publish(topic, b"early", timeout="30s")
        daemon = fleet.nsqd("nsqx", f"--tcp-address={address}")
        await early
        assert producer.is_connected
        assert producer.health.connected_addresses == (address,)
        assert producer.health.failures == {}
    assert daemon.topic_stats(topic)["message_count"] == 1


async def test_a_consumer_starts_before_its_nsqd(fleet: Fleet, topic):
    address = f"127.0.0.1:{free_port()}"
    found = asyncio.Event()
    async with (
        asyncio.timeout(LIMIT_S),
        Consumer(topic, "ch", lambda message: found.set(), nsqd_tcp_addresses=address, **FAST) as consumer,
    ):
        assert not consumer.is_connected
        assert consumer.health.failures == {address: f"{address}: Connection refused"}
        fleet.nsqd("nsqx", f"--tcp-address={address}")
        async with Producer(address) as producer:
            await producer.publish(topic, b"x")
        await found.wait()
        assert consumer.is_connected
        assert consumer.health.failures == {}
        assert "Connection refused" in str(consumer.last_error)


async def test_clients_start_before_nsqlookupd(fleet: Fleet, topic):
    port = free_port()
    lookupd_address = f"127.0.0.1:{port}"
    found = asyncio.Event()
    async with (
        asyncio.timeout(LIMIT_S),
        Producer(lookupd_http_addresses=lookupd_address, max_publish_attempts=100_000, **FAST) as producer,
        Consumer(topic, "ch", lambda _: found.set(), lookupd_http_addresses=lookupd_address, **FAST) as consumer,
    ):
        assert not producer.is_connected
        assert not consumer.is_connected
        assert "connection refused" in str(consumer.last_error)
        lookupd = fleet.nsqlookupd("nsqx", f"--http-address={lookupd_address}")
        fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")
        await producer.publish(topic, b"x", timeout="30s")
        await found.wait()
        assert consumer.connected_addresses == producer.connected_addresses


async def test_a_numbered_producer_starts_before_its_nsqd(fleet: Fleet, topic):
    address = f"127.0.0.1:{free_port()}"
    arguments = {"producer_name": "p", "retry_delay": "20ms", "max_publish_attempts": 100_000}
    async with asyncio.timeout(LIMIT_S), Producer(address, **arguments) as producer:
        assert not producer.is_connected
        assert "Connection refused" in producer.health.failures[address]
        fleet.nsqd("nsqx", f"--tcp-address={address}", "--store=log")
        await producer.publish(topic, b"x", timeout="30s")
        assert producer.is_connected


async def test_start_does_not_wait_longer_than_its_timeout(topic, silent_listener):
    for client in (
        Producer(silent_listener, start_timeout="200ms"),
        Consumer(topic, "ch", print, nsqd_tcp_addresses=silent_listener, start_timeout="200ms"),
        Consumer(topic, "ch", print, lookupd_http_addresses=silent_listener, start_timeout="200ms"),
    ):
        async with asyncio.timeout(LIMIT_S):
            await client.start()
            assert not client.is_connected
            await (client.close() if isinstance(client, Producer) else client.stop())


async def test_a_required_connection_is_reported_if_it_is_missing(topic, silent_listener):
    address = f"127.0.0.1:{free_port()}"
    for arguments, text in [
        ({"nsqd_tcp_addresses": address}, f"{address}: Connection refused"),
        ({"nsqd_tcp_addresses": silent_listener}, r"no nsqd is connected after 0.2 s \(no answer\)"),
        ({"lookupd_http_addresses": address}, "connection refused"),
    ]:
        consumer = Consumer(topic, "ch", print, start_timeout="200ms", require_connection=True, **arguments)
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ConnectFailed, match=text):
                await consumer.start()


async def test_a_topic_that_nobody_has_yet_is_no_failure(fleet: Fleet, topic):
    lookupd = fleet.nsqlookupd("nsqx")
    async with Consumer(
        topic, "ch", print, lookupd_http_addresses=lookupd.http_address, require_connection=True
    ) as consumer:
        assert consumer.health == ClientHealth(False, (), {}, None)


async def test_a_rejected_connection_is_always_reported(topic):
    async def script(conversation):
        await conversation.greet(auth_required=True)
        await asyncio.Event().wait()

    async with scripted_nsqd(script) as address:
        with pytest.raises(ConnectRefused, match="nsqd requires authentication: set auth_secret"):
            await Producer(address).start()
        with pytest.raises(ConnectRefused, match="nsqd requires authentication: set auth_secret"):
            await Consumer(topic, "ch", print, nsqd_tcp_addresses=address).start()


async def test_a_rejecting_nsqd_beside_one_that_is_away_is_no_failure(topic):
    async def script(conversation):
        await conversation.greet(auth_required=True)
        await asyncio.Event().wait()

    away = f"127.0.0.1:{free_port()}"
    async with scripted_nsqd(script) as address:
        consumer = Consumer(topic, "ch", print, nsqd_tcp_addresses=[address, away])
        await consumer.start()
        assert set(consumer.health.failures) == {address, away}
        await consumer.stop()


async def test_a_slow_nsqlookupd_does_not_delay_the_lookup(fleet: Fleet, topic, silent_listener):
    lookupd = fleet.nsqlookupd("nsqx")
    daemon = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")
    wait_until(lambda: lookupd.request("GET", "/nodes").json()["producers"], "nsqd is registered")
    # The client begins with one of them at random. The limit of a request is a minute.
    for _ in range(4):
        producer = Producer(lookupd_http_addresses=[silent_listener, lookupd.http_address], start_timeout="30s")
        async with asyncio.timeout(LIMIT_S), producer:
            assert producer.connected_addresses == [daemon.tcp_address]


async def test_stop_does_not_wait_for_a_frozen_nsqd(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    consumer = Consumer(topic, "ch", print, nsqd_tcp_addresses=daemon.tcp_address)
    await consumer.start()
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(LIMIT_S):
            await consumer.stop(timeout="10m")
    finally:
        daemon.process.send_signal(signal.SIGCONT)


async def test_stop_does_not_wait_for_a_half_open_connection(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with Proxy(daemon.tcp_address) as proxy:
        consumer = Consumer(topic, "ch", print, nsqd_tcp_addresses=proxy.address)
        await consumer.start()
        proxy.blackhole()
        async with asyncio.timeout(LIMIT_S):
            await consumer.stop(timeout="10m")


async def test_stop_does_not_wait_for_a_handler_that_ignores_its_cancellation(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    running, end = asyncio.Event(), asyncio.Event()

    async def handler(message):
        while not end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                running.set()
                await end.wait()

    async with Producer(daemon.tcp_address) as producer:
        await producer.publish(topic, b"x")
    consumer = Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address)
    await consumer.start()
    await running.wait()
    async with asyncio.timeout(LIMIT_S):
        await consumer.stop(timeout="50ms")
    end.set()


def test_blocking_clients_start_before_their_nsqd(fleet: Fleet, topic):
    address = f"127.0.0.1:{free_port()}"
    with (
        blocking.Producer(address, retry_delay="20ms", max_publish_attempts=100_000) as producer,
        blocking.Consumer(topic, "ch", nsqd_tcp_addresses=address, **FAST) as consumer,
    ):
        assert not producer.is_connected
        assert not consumer.is_connected
        assert "Connection refused" in str(producer.last_error)
        assert list(consumer.health.failures) == [address]
        fleet.nsqd("nsqx", f"--tcp-address={address}")
        producer.publish(topic, b"x", timeout="30s")
        message = consumer.get(LIMIT_S)
        assert message is not None
        message.finish()
        assert producer.is_connected
        assert consumer.is_connected


async def test_a_lost_connection_is_the_last_error(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    async with (
        Producer(daemon.tcp_address) as producer,
        Consumer(topic, "ch", print, nsqd_tcp_addresses=daemon.tcp_address) as consumer,
    ):
        assert producer.last_error is None
        assert consumer.last_error is None
        daemon.kill()
        await until(lambda: not producer.is_connected and not consumer.is_connected, "the connections are lost")
        assert daemon.tcp_address in str(producer.last_error)
        assert daemon.tcp_address in str(consumer.last_error)
