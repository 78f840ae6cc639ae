"""Producers with real nsqds, and with a scripted nsqd that misbehaves."""

import asyncio
import random

import pytest

from daemons import Fleet, free_port
from eventually import until
from nsqx import (
    ClientClosed,
    ConfigError,
    ConnectFailed,
    Consumer,
    InvalidMessage,
    InvalidName,
    LookupFailed,
    NotConnected,
    Producer,
    PublishFailed,
)
from nsqx.wire import frames
from proxy import Proxy
from scripted_nsqd import scripted_nsqd


async def bodies_in(daemon, topic, count=None):
    """Return the bodies in a topic, including duplicates: ``count`` of them, or all."""
    count = count or daemon.topic_stats(topic)["message_count"]
    found = []
    async with Consumer(topic, "check", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=1000) as consumer:
        while len(found) < count:
            message = await anext(consumer)
            found.append(message.body)
            message.finish()
    return found


async def test_every_publish_method_stores_messages(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    async with Producer(daemon.tcp_address) as producer:
        assert producer.connected_addresses == [daemon.tcp_address]
        await producer.publish(topic, b"one")
        await producer.publish_many(topic, [b"two", b"three"])
        await producer.publish_deferred(topic, b"four", "20ms")
        await producer.publish(topic, bytearray(b"five"))
        await producer.publish(topic, memoryview(b"six"))
        await producer.publish_many(topic, [])
        assert producer.outstanding == 0
    assert sorted(await bodies_in(daemon, topic)) == sorted([b"one", b"two", b"three", b"four", b"five", b"six"])


async def test_publishing_over_a_unix_socket(fleet: Fleet, topic, tmp_path):
    path = str(tmp_path / "nsqd.sock")
    fleet.nsqd("nsqx", f"--tcp-address={path}", "--http-address=")
    async with Producer(path) as producer:
        await producer.publish(topic, b"x")


async def test_many_publishes_can_be_unanswered_at_once(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    bodies = [b"%d" % number for number in range(5000)]
    async with Producer(daemon.tcp_address) as producer:
        await asyncio.gather(*(producer.publish(topic, body) for body in bodies))
    assert sorted(await bodies_in(daemon, topic)) == sorted(bodies)


async def test_large_batches_are_split(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx", "--max-body-size=100000")
    bodies = [b"%05d" % number + b"x" * 995 for number in range(500)]
    async with Producer(daemon.tcp_address, max_batch_bytes=90_000) as producer:
        await producer.publish_many(topic, bodies)
    assert sorted(await bodies_in(daemon, topic)) == bodies


async def test_batching_joins_the_publishes_of_one_loop_turn(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    bodies = [b"%d" % number for number in range(2000)]
    other = f"{topic}_other"
    async with Producer(daemon.tcp_address, batching=True) as producer:
        publishes = [producer.publish(topic, body) for body in bodies]
        publishes.append(producer.publish(other, b"alone"))
        assert producer.outstanding == 2001
        await asyncio.gather(*publishes)
    assert sorted(await bodies_in(daemon, topic)) == sorted(bodies)
    assert await bodies_in(daemon, other) == [b"alone"]


@pytest.mark.parametrize("batching", [False, True])
async def test_only_the_rejected_message_fails(fleet: Fleet, topic, batching):
    daemon = fleet.nsqd("nsqx", "--max-msg-size=1000")
    async with Producer(daemon.tcp_address, batching=batching) as producer:
        publishes = [producer.publish(topic, b"x" * (5000 if number == 50 else 10)) for number in range(100)]
        outcomes = await asyncio.gather(*publishes, return_exceptions=True)
    failed = [number for number, outcome in enumerate(outcomes) if outcome is not None]
    assert failed == [50]
    error = outcomes[50]
    assert isinstance(error, PublishFailed)
    reason = "E_BAD_MESSAGE PUB message too big 5000 > 1000"
    assert str(error) == f"publish to {topic} failed after 1 attempt: {daemon.tcp_address}: {reason}"
    assert len(await bodies_in(daemon, topic)) >= 99


async def test_invalid_arguments_of_a_publish_raise_at_once(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    async with Producer(daemon.tcp_address) as producer:
        with pytest.raises(InvalidName, match="invalid topic name 'no spaces': use 1 to 64 of"):
            await producer.publish("no spaces", b"x")
        with pytest.raises(InvalidMessage, match="the body is empty"):
            await producer.publish(topic, b"")
        with pytest.raises(InvalidMessage, match="body 1 is empty"):
            await producer.publish_many(topic, [b"x", b""])
        with pytest.raises(InvalidMessage, match="must be bytes, not str: encode it first"):
            await producer.publish(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="option delay"):
            await producer.publish_deferred(topic, b"x", "soon")
        with pytest.raises(InvalidMessage, match=r"the delay is negative \(-1 s\)"):
            await producer.publish_deferred(topic, b"x", -1)
        with pytest.raises(PublishFailed, match="E_INVALID DPUB timeout"):
            await producer.publish_deferred(topic, b"x", "1000h")
        await producer.publish(topic, b"still good")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "a producer needs nsqd_tcp_addresses or lookupd_http_addresses"),
        ({"nsqd_tcp_addresses": "localhost"}, "the port is missing"),
        ({"lookupd_http_addresses": "localhost"}, "the port is missing; nsqlookupd's default HTTP port is 4161"),
        ({"lookupd_http_addresses": "ftp://localhost:1"}, "use host:port or an http or https URL"),
        ({"nsqd_tcp_addresses": "a:1", "max_outstanding": 0}, "max_outstanding: must be an integer of at least 1"),
        ({"nsqd_tcp_addresses": "a:1", "retry_delay": "x"}, "option retry_delay: 'x' is not a duration"),
        ({"nsqd_tcp_addresses": "a:1", "nope": 1}, "invalid option nope"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, text):
    with pytest.raises(ConfigError, match=text):
        Producer(**arguments)


async def test_publishes_fail_if_no_nsqd_is_reachable(topic):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectFailed, match=f"{address}: Connection refused"):
        async with Producer(address, require_connection=True):
            pass
    producer = Producer(address, max_publish_attempts=2, retry_delay="1ms")
    with pytest.raises(NotConnected, match=f"publish to {topic} failed after 2 attempts: .*refused"):
        await producer.publish(topic, b"x")
    await producer.close()


async def test_connecting_to_the_http_port_fails(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    with pytest.raises(ConnectFailed, match="the answer is HTTP: this seems to be an HTTP port"):
        async with Producer(daemon.http_address):
            pass


async def test_publishes_wait_for_a_restarted_nsqd(fleet: Fleet, topic, tmp_path):
    port = free_port()
    flags = (f"--tcp-address=127.0.0.1:{port}",)
    daemon = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    async with Producer(daemon.tcp_address, retry_delay="20ms", max_publish_attempts=200) as producer:
        await producer.publish(topic, b"before")
        daemon.stop()
        await until(lambda: not producer.connected_addresses, "the lost connection is noticed")
        publishes = [producer.publish(topic, b"%d" % number) for number in range(100)]
        assert producer.outstanding == 100
        daemon = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
        await asyncio.gather(*publishes)
    assert set(await bodies_in(daemon, topic, 101)) == {b"before", *(b"%d" % number for number in range(100))}


async def test_publishes_move_to_another_nsqd(fleet: Fleet, topic):
    first, second = fleet.nsqd("nsqx"), fleet.nsqd("nsqx")
    async with Producer([first.tcp_address, second.tcp_address]) as producer:
        await until(lambda: len(producer.connected_addresses) == 2, "both are connected")
        await asyncio.gather(*(producer.publish(topic, b"%d" % number) for number in range(100)))
        counts = [daemon.topic_stats(topic)["message_count"] for daemon in (first, second)]
        assert counts == [50, 50]
        publishes = [producer.publish(topic, b"%d" % number) for number in range(1000)]
        first.kill()
        await asyncio.gather(*publishes)
        await asyncio.gather(*(producer.publish(topic, b"%d" % number) for number in range(100)))
    assert second.topic_stats(topic)["message_count"] > 600


async def test_no_message_is_lost_when_connections_break_at_random(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    rng = random.Random(5)
    bodies = [b"%d" % number for number in range(20_000)]
    async with Proxy(daemon.tcp_address) as proxy:
        # On a slow disk, few of the short connections live until the answer of a durable publish.
        patience = {"max_publish_attempts": 1000, "publish_timeout": "50s"}
        async with Producer(proxy.address, retry_delay="5ms", **patience) as producer:
            cutting = asyncio.create_task(proxy.keep_cutting(rng, 0.1))
            for start in range(0, len(bodies), 500):
                await asyncio.gather(*(producer.publish(topic, body) for body in bodies[start : start + 500]))
                if proxy.connection_count < 5:
                    await asyncio.sleep(0.02)
            cutting.cancel()
        assert proxy.connection_count >= 5
    found = await bodies_in(daemon, topic)
    assert set(found) == set(bodies)


async def test_close_waits_for_answers(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    producer = Producer(daemon.tcp_address)
    publishes = [producer.publish(topic, b"%d" % number) for number in range(3000)]
    await producer.close()
    assert all(publish.done() and publish.exception() is None for publish in publishes)
    assert daemon.topic_stats(topic)["message_count"] == 3000
    with pytest.raises(ClientClosed):
        await producer.publish(topic, b"x")
    await producer.close()


async def test_nsqds_are_discovered_and_lost_ones_removed(fleet: Fleet, topic):
    lookupd = fleet.nsqlookupd("nsqx")
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    first = fleet.nsqd("nsqx", flag)
    options = {"lookupd_http_addresses": lookupd.http_address, "lookupd_poll_interval": "20ms"}
    await until(lambda: lookupd.request("GET", "/nodes").json()["producers"], "nsqd is registered")
    async with Producer(**options) as producer:
        await producer.publish(topic, b"x")
        second = fleet.nsqd("nsqx", flag)
        await until(lambda: len(producer.connected_addresses) == 2, "the second nsqd is found")
        first.stop()
        await until(lambda: producer.connected_addresses == [second.tcp_address], "the first nsqd is disconnected")
        await producer.publish(topic, b"y")
    assert second.topic_stats(topic)["message_count"] == 1


async def test_start_fails_if_no_nsqlookupd_is_reachable():
    with pytest.raises(LookupFailed, match="nsqlookupd 127.0.0.1:.*connection refused"):
        async with Producer(lookupd_http_addresses=f"127.0.0.1:{free_port()}", require_connection=True):
            pass


# With a scripted nsqd


async def test_heartbeats_between_answers_are_answered(topic):
    async def script(conversation):
        await conversation.greet()
        while True:
            words = await conversation.command()
            if words[0] == b"PUB":
                conversation.send(frames.HEARTBEAT + frames.OK + frames.HEARTBEAT)

    async with scripted_nsqd(script) as address, Producer(address) as producer:
        await asyncio.gather(*(producer.publish(topic, b"x") for _ in range(100)))


async def test_unanswered_commands_are_limited(topic):
    received = []
    go_on = asyncio.Event()

    async def script(conversation):
        await conversation.greet()
        while True:
            words = await conversation.command()
            received.append(words)
            if len(received) == 10:
                await go_on.wait()
            conversation.respond()

    async with scripted_nsqd(script) as address, Producer(address, max_outstanding=10) as producer:
        publishes = [producer.publish(topic, b"%d" % number) for number in range(100)]
        draining = asyncio.create_task(producer.drain())
        await until(lambda: len(received) == 10, "ten publishes have arrived")
        assert producer.outstanding == 91  # nine of 100 are answered
        assert not draining.done()
        go_on.set()
        await asyncio.gather(*publishes)
        await draining
    assert [words[2] for words in received] == [b"%d" % number for number in range(100)]


async def test_unanswered_bytes_are_limited(topic):
    received = []
    go_on = asyncio.Event()

    async def script(conversation):
        await conversation.greet()
        while True:
            received.append(await conversation.command())
            if len(received) == 4:
                await go_on.wait()
                for _ in range(4):
                    conversation.respond()
            elif len(received) > 4:
                conversation.respond()

    async with scripted_nsqd(script) as address, Producer(address, max_outstanding_bytes=100) as producer:
        publishes = [producer.publish(topic, b"x" * 30) for _ in range(10)]
        await until(lambda: len(received) == 4, "four publishes have arrived")
        assert producer.outstanding == 10
        go_on.set()
        await asyncio.gather(*publishes)


async def test_a_publish_fails_after_max_publish_attempts(topic):
    attempts = 0

    async def script(conversation):
        nonlocal attempts
        await conversation.greet()
        await conversation.command()
        attempts += 1
        conversation.refuse(b"E_PUB_FAILED PUB failed disk full")

    async with (
        scripted_nsqd(script) as address,
        Producer(address, max_publish_attempts=3, retry_delay="1ms") as producer,
    ):
        with pytest.raises(PublishFailed, match="after 3 attempts: .*E_PUB_FAILED PUB failed disk full"):
            await producer.publish(topic, b"x")
    assert attempts == 3


async def test_a_publish_is_repeated_after_a_lost_connection(topic):
    attempts = 0

    async def script(conversation):
        nonlocal attempts
        await conversation.greet()
        await conversation.command()
        attempts += 1

    async with (
        scripted_nsqd(script) as address,
        Producer(address, max_publish_attempts=2, retry_delay="1ms") as producer,
    ):
        with pytest.raises(PublishFailed, match="after 2 attempts: .*nsqd closed the connection"):
            await producer.publish(topic, b"x")
    assert attempts == 2


async def test_cancelling_one_publish_does_not_affect_the_others(topic):
    go_on = asyncio.Event()

    async def script(conversation):
        await conversation.greet()
        while True:
            await conversation.command()
            await go_on.wait()
            conversation.respond()

    async with scripted_nsqd(script) as address, Producer(address, max_outstanding=2) as producer:
        publishes = [producer.publish(topic, b"x") for _ in range(4)]
        publishes[0].cancel()  # sent and unanswered
        publishes[3].cancel()  # waiting for room
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*publishes[1:3]) == [None, None]
        await until(lambda: producer.outstanding == 0, "all are answered")


async def test_close_fails_unanswered_publishes_after_its_timeout(topic):
    async def script(conversation):
        await conversation.greet()
        await conversation.command()
        await asyncio.Event().wait()

    async with scripted_nsqd(script) as address:
        producer = Producer(address)
        publish = producer.publish(topic, b"x")
        await until(lambda: producer.connected_addresses, "connected")
        await producer.close(timeout=0.05)
        with pytest.raises(PublishFailed, match="the producer was closed"):
            await publish


async def test_the_connection_to_a_silent_nsqd_is_closed(topic):
    async def script(conversation):
        await conversation.greet()
        await conversation.command()
        await asyncio.Event().wait()

    async with scripted_nsqd(script) as address:
        options = {"read_timeout": "200ms", "heartbeat_interval": "100ms", "max_publish_attempts": 1}
        async with Producer(address, **options) as producer:
            with pytest.raises(PublishFailed, match="no data from nsqd for 0.2 s"):
                await producer.publish(topic, b"x")


async def test_the_connection_to_an_nsqd_that_reads_nothing_is_closed(topic):
    async def script(conversation):
        await conversation.greet()
        await asyncio.Event().wait()

    async with (
        scripted_nsqd(script) as address,
        Producer(address, write_timeout="200ms", max_publish_attempts=1) as producer,
    ):
        publishes = [producer.publish(topic, bytes([1]) * 1_000_000) for _ in range(40)]
        await asyncio.wait(publishes, return_when=asyncio.FIRST_EXCEPTION)
        await producer.close(timeout=0)
        outcomes = await asyncio.gather(*publishes, return_exceptions=True)
        assert "nsqd accepted no data for 0.2 s" in str(outcomes[0])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00\x00\x00\x02\x00\x00\x00\x00", "a frame of size 2"),
        (frames.encode_frame(frames.RESPONSE, b"{nonsense"), "nsqd's answer to IDENTIFY is not JSON"),
        (frames.encode_frame(frames.ERROR, b"E_BAD_BODY IDENTIFY nope"), "E_BAD_BODY IDENTIFY nope"),
        (frames.encode_frame(frames.MESSAGE, bytes(30)), "nsqd sent a message before the subscription"),
        (b"", "nsqd closed the connection"),
    ],
)
async def test_the_error_of_a_failed_handshake_has_the_reason(data, text):
    async def script(conversation):
        conversation.send(data)
        if data:
            await asyncio.Event().wait()

    async with scripted_nsqd(script) as address:
        with pytest.raises(ConnectFailed, match=f"{address}: {text}"):
            async with Producer(address, require_connection=True):
                pass


async def test_start_fails_if_auth_secret_is_missing():
    async def script(conversation):
        await conversation.greet(auth_required=True)
        await asyncio.Event().wait()

    async with scripted_nsqd(script) as address:
        with pytest.raises(ConnectFailed, match="nsqd requires authentication: set auth_secret"):
            async with Producer(address):
                pass


async def test_start_fails_if_nsqd_does_not_offer_tls(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    with pytest.raises(ConnectFailed, match="tls_v1 is set, but nsqd does not offer TLS"):
        async with Producer(daemon.tcp_address, tls_v1=True):
            pass
