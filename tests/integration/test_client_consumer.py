"""Consumers with real nsqds, and with a scripted nsqd that misbehaves."""

import asyncio
import random
from collections import Counter

import pytest

from daemons import Fleet, free_port
from eventually import until
from nsqx import AlreadyAnswered, ClientClosed, ConfigError, ConnectFailed, Consumer, InvalidName, Producer
from nsqx.wire import frames
from proxy import Proxy
from scripted_nsqd import scripted_nsqd


async def publish(daemon, topic, bodies):
    async with Producer(daemon.tcp_address) as producer:
        await producer.publish_many(topic, bodies)


def unfinished_count(daemon, topic, channel="ch"):
    channel = daemon.channel_stats(topic, channel)
    return sum(channel[key] for key in ("depth", "in_flight_count", "deferred_count"))


class Collector:
    """A handler that collects messages and sets an event when it has ``count``."""

    def __init__(self, count):
        self.bodies = []
        self.done = asyncio.Event()
        self._count = count

    def __call__(self, message):
        self.bodies.append(message.body)
        if len(self.bodies) == self._count:
            self.done.set()


class AsyncCollector(Collector):
    async def __call__(self, message):
        await asyncio.sleep(0)
        super().__call__(message)


BODIES = [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("kind", [Collector, AsyncCollector])
@pytest.mark.parametrize("max_in_flight", [1, 7, 500])
async def test_a_handler_receives_every_message(fleet: Fleet, topic, kind, max_in_flight):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES)
    handler = kind(len(BODIES))
    consumer = Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=max_in_flight)
    async with consumer:
        await handler.done.wait()
    assert sorted(handler.bodies) == sorted(BODIES)
    assert unfinished_count(daemon, topic) == 0
    stats = consumer.stats
    assert (stats.received, stats.finished, stats.requeued, stats.connections, stats.in_flight) == (1000, 1000, 0, 0, 0)


async def test_a_handler_can_be_a_lambda_that_returns_a_coroutine(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:10])
    handler = AsyncCollector(10)
    options = {"nsqd_tcp_addresses": daemon.tcp_address, "max_in_flight": 5}
    async with Consumer(topic, "ch", lambda message: handler(message), **options):
        await handler.done.wait()
    assert unfinished_count(daemon, topic) == 0


async def test_iterating_receives_every_message(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES)
    found = []
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=100) as consumer:
        async for message in consumer:
            found.append(message.body)
            assert message.attempts == 1
            assert message.nsqd_address == daemon.tcp_address
            assert len(message.id) == 16
            assert message.timestamp > 1_600_000_000 * 10**9
            message.finish()
            if len(found) == len(BODIES):
                break
    assert sorted(found) == sorted(BODIES)
    assert unfinished_count(daemon, topic) == 0


async def test_batches_are_limited_by_count_and_time(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES)
    found = []
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=150) as consumer:
        async for batch in consumer.batches(100, max_wait="50ms"):
            assert 1 <= len(batch) <= 100
            found += [message.body for message in batch]
            for message in batch:
                message.finish()
            if len(found) == len(BODIES):
                break
    assert sorted(found) == sorted(BODIES)


async def test_iteration_ends_when_the_consumer_is_stopped(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, [b"x"])
    consumer = Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address)
    found = []
    async for message in consumer:
        found.append(message.body)
        message.finish()
        asyncio.get_running_loop().create_task(consumer.stop())
    assert found == [b"x"]
    with pytest.raises(ClientClosed):
        await consumer.start()


async def test_messages_that_were_not_taken_are_requeued_at_once(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:10])
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=10) as consumer:
        message = await anext(consumer)
        await until(lambda: consumer.stats.in_flight == 10, "all messages have arrived")
        message.finish()
    stats = daemon.channel_stats(topic, "ch")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (9, 0, 9)


async def test_a_message_is_delivered_again_when_its_handler_raises(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, [b"x"])
    attempts = []
    done = asyncio.Event()

    async def handler(message):
        attempts.append(message.attempts)
        if message.attempts < 4:
            raise ValueError("not yet")
        done.set()

    options = {"default_requeue_delay": "1ms", "backoff_multiplier": "1ms"}
    async with Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address, **options) as consumer:
        await done.wait()
    assert attempts == [1, 2, 3, 4]
    assert (consumer.stats.finished, consumer.stats.requeued) == (1, 3)
    assert unfinished_count(daemon, topic) == 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_on_give_up_receives_a_message_after_max_attempts(fleet: Fleet, topic, is_async, fails):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, [b"x"])
    handled, given_up = [], []
    done = asyncio.Event()

    def handler(message):
        handled.append(message.attempts)
        raise ValueError("never")

    def give_up(message):
        given_up.append(message.attempts)
        if fails and message.attempts == 2:
            raise OSError("no place for it")
        done.set()

    async def give_up_later(message):
        await asyncio.sleep(0)
        give_up(message)

    options = {"max_attempts": 2, "default_requeue_delay": "1ms", "max_backoff_duration": 0}
    hook = give_up_later if is_async else give_up
    address = daemon.tcp_address
    async with Consumer(topic, "ch", handler, nsqd_tcp_addresses=address, on_give_up=hook, **options):
        await done.wait()
    assert handled == [1, 2]
    assert given_up == ([2, 3] if fails else [2])
    assert unfinished_count(daemon, topic) == 0


async def test_max_attempts_0_means_no_limit(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, [b"x"])
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_attempts=0) as consumer:
        for attempt in range(1, 9):
            message = await anext(consumer)
            assert message.attempts == attempt
            if attempt < 8:
                message.requeue(0, backoff=False)
        message.finish()


async def test_a_message_can_be_answered_once(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx", "--msg-timeout=1s")
    await publish(daemon, topic, [b"x"])
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address) as consumer:
        message = await anext(consumer)
        assert not message.is_answered
        assert message.touch()
        assert message.requeue("1ms", backoff=False)
        assert message.is_answered
        with pytest.raises(AlreadyAnswered, match="was already requeued"):
            message.finish()
        message = await anext(consumer)
        assert message.attempts == 2
        assert message.finish()
        for answer in (message.finish, message.requeue, message.touch):
            with pytest.raises(AlreadyAnswered, match="was already finished"):
                answer()


async def test_touch_prevents_the_message_timeout(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx", "--msg-timeout=1s")
    await publish(daemon, topic, [b"x"])
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address) as consumer:
        message = await anext(consumer)
        for _ in range(4):
            await asyncio.sleep(0.4)
            message.touch()
        message.finish()
    stats = daemon.channel_stats(topic, "ch")
    assert (stats["timeout_count"], stats["requeue_count"]) == (0, 0)


async def test_a_message_can_be_answered_after_its_handler_returned(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:5])
    kept = []
    full = asyncio.Event()

    def handler(message):
        message.answer_later()
        kept.append(message)
        if len(kept) == 5:
            full.set()

    async with Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=5) as consumer:
        await full.wait()
        assert consumer.is_starved
        assert consumer.stats.in_flight == 5
        for message in kept:
            message.finish()
        assert not consumer.is_starved
    assert unfinished_count(daemon, topic) == 0


async def test_concurrency_limits_the_running_handlers(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:100])
    running, most, count = 0, 0, 0
    done = asyncio.Event()

    async def handler(message):
        nonlocal running, most, count
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1
        count += 1
        if count == 100:
            done.set()

    options = {"nsqd_tcp_addresses": daemon.tcp_address, "max_in_flight": 50, "concurrency": 3}
    async with Consumer(topic, "ch", handler, **options):
        await done.wait()
    assert most == 3


async def test_failures_start_backoff_and_successes_end_it(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:50])
    failures = 0
    finished = Collector(50)

    def handler(message):
        nonlocal failures
        if failures < 3 and message.attempts == 1:
            failures += 1
            raise ValueError("for now")
        finished(message)

    options = {"max_in_flight": 5, "backoff_multiplier": "10ms", "default_requeue_delay": "1ms"}
    async with Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address, **options) as consumer:
        await finished.done.wait()
        stats = daemon.channel_stats(topic, "ch")
        assert [client["ready_count"] for client in stats["clients"]] == [5]
        assert consumer.max_in_flight == 5
    assert sorted(finished.bodies) == sorted(BODIES[:50])


async def test_max_in_flight_0_pauses_the_consumer(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    handler = Collector(20)
    async with Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=10) as consumer:
        await until(lambda: ready_counts(daemon, topic) == [10], "ready")
        consumer.max_in_flight = 0
        await until(lambda: ready_counts(daemon, topic) == [0], "paused")
        await publish(daemon, topic, BODIES[:20])
        assert daemon.channel_stats(topic, "ch")["depth"] == 20
        consumer.max_in_flight = 3
        await handler.done.wait()
        assert ready_counts(daemon, topic) == [3]
        with pytest.raises(ConfigError):
            consumer.max_in_flight = -1


def ready_counts(daemon, topic):
    channel = daemon.channel_stats(topic, "ch")
    return [client["ready_count"] for client in channel["clients"]] if channel else []


async def test_stop_waits_for_handlers(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:10])
    started, go_on = asyncio.Event(), asyncio.Event()
    handled = []

    async def handler(message):
        started.set()
        await go_on.wait()
        handled.append(message.body)

    consumer = Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=4)
    await consumer.start()
    await started.wait()
    stopping = asyncio.create_task(consumer.stop())
    await until(lambda: ready_counts(daemon, topic) == [0], "nsqd has received CLS")
    assert not stopping.done()
    go_on.set()
    await stopping
    assert len(handled) == 4
    stats = daemon.channel_stats(topic, "ch")
    assert (stats["depth"], stats["in_flight_count"], stats["client_count"]) == (6, 0, 0)


async def test_stop_closes_the_connections_after_its_timeout(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:1])
    started = asyncio.Event()
    cancelled = asyncio.Event()

    async def handler(message):
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    consumer = Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address)
    running = asyncio.create_task(consumer.run())
    await started.wait()
    await consumer.stop(timeout=0.05)
    await running
    assert cancelled.is_set()
    await until(lambda: daemon.channel_stats(topic, "ch")["client_count"] == 0, "the connection is closed")
    assert daemon.channel_stats(topic, "ch")["in_flight_count"] == 1


async def test_a_handler_can_stop_its_consumer(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:5])

    async def handler(message):
        await consumer.stop()

    consumer = Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address)
    await consumer.run()
    assert consumer.stats.finished == 1
    assert daemon.channel_stats(topic, "ch")["in_flight_count"] == 0


async def test_the_messages_of_a_cancelled_batch_are_requeued(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:3])
    consumer = Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=10)
    async with consumer:
        collecting = asyncio.ensure_future(anext(consumer.batches(10, max_wait="1m")))
        await until(lambda: consumer.stats.received == 3, "all messages have arrived")
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
    channel = daemon.channel_stats(topic, "ch")
    assert (channel["depth"], channel["in_flight_count"]) == (3, 0)


async def test_cancelling_run_stops_gracefully(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, BODIES[:1])
    handler = Collector(1)
    running = asyncio.create_task(Consumer(topic, "ch", handler, nsqd_tcp_addresses=daemon.tcp_address).run())
    await handler.done.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert unfinished_count(daemon, topic) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, ConfigError, "a consumer needs nsqd_tcp_addresses or lookupd_http_addresses"),
        ({"topic": "a b"}, InvalidName, "invalid topic name 'a b': use 1 to 64 of"),
        ({"channel": "x" * 65}, InvalidName, "invalid channel name 'xxx.*': use 1 to 64 of"),
        ({"handler": 5}, ConfigError, "the handler must be callable, not 5"),
        ({"concurrency": 0}, ConfigError, "option concurrency: must be an integer of at least 1, not 0"),
        ({"heartbeat_interval": -1}, ConfigError, "nsqd rejects consumers without heartbeats"),
        ({"max_inflight": 5}, ConfigError, "did you mean max_in_flight"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, error, text):
    with pytest.raises(error, match=text):
        Consumer(**{"topic": "t", "channel": "c", **arguments})


async def test_start_fails_if_no_nsqd_is_reachable():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectFailed, match=f"{address}: Connection refused"):
        await Consumer("t", "c", print, nsqd_tcp_addresses=address, require_connection=True).run()


async def test_a_consumer_with_a_handler_cannot_be_iterated():
    with pytest.raises(ConfigError, match="has a handler"):
        aiter(Consumer("t", "c", print, nsqd_tcp_addresses="a:1"))


# Several nsqds, and nsqds that stop and start


async def test_max_in_flight_is_shared_by_several_nsqds(fleet: Fleet, topic):
    daemons = [fleet.nsqd("nsqx") for _ in range(3)]
    for number, daemon in enumerate(daemons):
        await publish(daemon, topic, [b"%d-%d" % (number, each) for each in range(100)])
    handler = Collector(300)
    addresses = [daemon.tcp_address for daemon in daemons]
    async with Consumer(topic, "ch", handler, nsqd_tcp_addresses=addresses, max_in_flight=10) as consumer:
        await handler.done.wait()
        assert [ready_counts(daemon, topic) for daemon in daemons] == [[3], [3], [3]]
        assert sorted(consumer.connected_addresses) == sorted(addresses)
    assert len(set(handler.bodies)) == 300


async def test_more_nsqds_than_max_in_flight_take_turns(fleet: Fleet, topic):
    """With max_in_flight 1, the nsqds take turns."""
    daemons = [fleet.nsqd("nsqx") for _ in range(3)]
    for number, daemon in enumerate(daemons):
        await publish(daemon, topic, [b"%d" % number])
    handler = Collector(3)
    options = {"max_in_flight": 1, "rdy_redistribute_interval": "10ms", "low_rdy_idle_timeout": "1s"}
    async with Consumer(topic, "ch", handler, nsqd_tcp_addresses=[each.tcp_address for each in daemons], **options):
        await asyncio.wait_for(handler.done.wait(), 50)
    assert sorted(handler.bodies) == [b"0", b"1", b"2"]


async def test_the_consumer_reconnects_to_a_restarted_nsqd(fleet: Fleet, topic, tmp_path):
    flags = (f"--tcp-address=127.0.0.1:{free_port()}",)
    daemon = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    await publish(daemon, topic, BODIES[:10])
    first, everything = asyncio.Event(), set()
    handler = Collector(30)

    def handle(message):
        handler(message)
        everything.add(message.body)
        if len(everything) == 10:
            first.set()

    async with Consumer(topic, "ch", handle, nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=5) as consumer:
        await first.wait()
        daemon.stop()
        await until(lambda: not consumer.connected_addresses, "the lost connection is noticed")
        daemon = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
        await publish(daemon, topic, BODIES[10:30])
        await until(lambda: everything == set(BODIES[:30]), "all messages have arrived")


async def test_nsqds_are_discovered_and_lost_ones_removed(fleet: Fleet, topic):
    lookupd = fleet.nsqlookupd("nsqx")
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    found = set()
    options = {"lookupd_http_addresses": [f"http://{lookupd.http_address}"], "lookupd_poll_interval": "20ms"}
    async with Consumer(topic, "ch", lambda message: found.add(message.body), max_in_flight=10, **options) as consumer:
        assert consumer.connected_addresses == []
        first = fleet.nsqd("nsqx", flag)
        await publish(first, topic, [b"first"])
        await until(lambda: found == {b"first"}, "the first nsqd is found")
        second = fleet.nsqd("nsqx", flag)
        await publish(second, topic, [b"second"])
        await until(lambda: found == {b"first", b"second"}, "the second nsqd is found")
        first.stop()
        await until(lambda: consumer.connected_addresses == [second.tcp_address], "the first nsqd is disconnected")
        await publish(second, topic, [b"third"])
        await until(lambda: b"third" in found, "messages still arrive")


async def test_an_nsqd_with_an_invalid_host_name_does_not_end_discovery(fleet: Fleet, topic):
    lookupd = fleet.nsqlookupd("nsqx")
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    fleet.nsqd("nsqx", flag, "--broadcast-address=host..name").post("/topic/create", topic=topic)
    found = set()
    options = {"lookupd_http_addresses": lookupd.http_address, "lookupd_poll_interval": "20ms"}
    async with (
        asyncio.timeout(40),
        Consumer(topic, "ch", lambda message: found.add(message.body), **options) as consumer,
        Producer(**options) as producer,
    ):
        await until(lambda: "host..name" in str(consumer.health.failures), "nsqlookupd lists the invalid host name")
        fleet.nsqd("nsqx", flag)
        await producer.publish(topic, b"1", timeout="30s")
        await until(lambda: found == {b"1"}, "the other nsqd is found")


async def test_the_consumer_survives_a_restart_of_nsqlookupd(fleet: Fleet, topic):
    """Without nsqlookupd a consumer keeps its connections. When nsqlookupd is back, it finds new nsqds."""
    ports = free_port(), free_port()
    flags = [f"--tcp-address=127.0.0.1:{ports[0]}", f"--http-address=127.0.0.1:{ports[1]}"]
    daemon = fleet.nsqd("nsqx", f"--lookupd-tcp-address=127.0.0.1:{ports[0]}")
    found = set()
    options = {"lookupd_http_addresses": f"127.0.0.1:{ports[1]}", "lookupd_poll_interval": "20ms"}
    async with Consumer(topic, "ch", lambda message: found.add(message.body), **options) as consumer:
        assert consumer.connected_addresses == []
        lookupd = fleet.nsqlookupd("nsqx", *flags)
        await publish(daemon, topic, [b"1"])
        await until(lambda: found == {b"1"}, "nsqd is found")
        lookupd.stop()
        await publish(daemon, topic, [b"2"])
        await until(lambda: found == {b"1", b"2"}, "messages still arrive")


@pytest.mark.parametrize("style", ["direct", "async", "iterate"])
async def test_no_message_is_lost_when_connections_break_at_random(fleet: Fleet, topic, style):
    """Connections break at random while messages are in flight. Each message is delivered at least once."""
    daemon = fleet.nsqd("nsqx", "--msg-timeout=1s")
    bodies = [b"%d" % number for number in range(20_000)]
    await publish(daemon, topic, bodies)
    rng = random.Random(11)
    counts: Counter[bytes] = Counter()

    async def handle(message):
        await asyncio.sleep(0)
        counts[message.body] += 1

    def handle_directly(message):
        counts[message.body] += 1

    async def iterate(consumer):
        async for message in consumer:
            counts[message.body] += 1
            message.finish()

    async with Proxy(daemon.tcp_address) as proxy:
        handler = {"direct": handle_directly, "async": handle}.get(style)
        consumer = Consumer(
            topic,
            "ch",
            handler,
            nsqd_tcp_addresses=proxy.address,
            max_in_flight=200,
            lookupd_poll_interval="10ms",
            max_attempts=0,
        )
        async with consumer:
            iterating = asyncio.create_task(iterate(consumer)) if style == "iterate" else None
            for _ in range(8):
                await asyncio.sleep(rng.random() * 0.05)
                seen = proxy.connection_count
                proxy.cut()
                await until(lambda seen=seen: proxy.connection_count > seen, "connected again")
            await until(lambda: len(counts) == len(bodies), "all messages have arrived")
            await until(lambda: unfinished_count(daemon, topic) == 0, "all are answered")
        if iterating is not None:
            await iterating
        assert proxy.connection_count >= 8
    assert set(counts) == set(bodies)
    duplicates = sum(counts.values()) - len(bodies)
    assert duplicates <= 9 * 200


# With a scripted nsqd


def message_frame(number):
    data = number.to_bytes(8, "big") + b"\x00\x01" + b"%016d" % number + b"body %d" % number
    return frames.encode_frame(frames.MESSAGE, data)


async def subscribed(conversation):
    await conversation.greet()
    assert (await conversation.command())[0] == b"SUB"
    conversation.respond()


async def test_answers_of_one_loop_turn_are_one_write(topic):
    commands = []
    done = asyncio.Event()

    async def script(conversation):
        await subscribed(conversation)
        assert await conversation.command() == (b"RDY", b"100")
        conversation.send(b"".join(message_frame(number) for number in range(100)))
        data = await conversation._reader.read(65536)
        commands.append(data)
        done.set()

    async with scripted_nsqd(script) as address:
        consumer = Consumer(topic, "ch", lambda _: None, nsqd_tcp_addresses=address, max_in_flight=100)
        await consumer.start()
        await done.wait()
        await consumer.stop(timeout=0.01)
    assert commands == [b"".join(b"FIN %016d\n" % number for number in range(100))]


async def test_messages_of_a_lost_connection_are_not_handled(topic):
    """They cannot be answered, and nsqd delivers them again."""
    connections = 0
    go_on, handled, second = asyncio.Event(), [], asyncio.Event()

    async def script(conversation):
        nonlocal connections
        await subscribed(conversation)
        connections += 1
        if connections == 1:
            conversation.send(message_frame(1) + message_frame(2))
            return
        second.set()
        await conversation.command()

    async def handler(message):
        await go_on.wait()
        handled.append(message.body)
        assert message.is_lost
        assert not message.finish()

    async with scripted_nsqd(script) as address:
        options = {
            "nsqd_tcp_addresses": address,
            "max_in_flight": 10,
            "concurrency": 1,
            "lookupd_poll_interval": "10ms",
        }
        async with Consumer(topic, "ch", handler, **options) as consumer:
            await second.wait()
            go_on.set()
            await until(lambda: handled, "the first message is handled")
            await consumer.stop(timeout=0.01)
    assert handled == [b"body 1"]


async def test_messages_that_arrive_during_stop_are_requeued(topic):
    requeued = []
    subscribed_now, requeued_now = asyncio.Event(), asyncio.Event()

    async def script(conversation):
        await subscribed(conversation)
        subscribed_now.set()
        while (await conversation.command())[0] != b"CLS":
            pass
        conversation.send(message_frame(1))
        conversation.respond(b"CLOSE_WAIT")
        requeued.append(await conversation.command())
        requeued_now.set()

    async with scripted_nsqd(script) as address:
        consumer = Consumer(topic, "ch", nsqd_tcp_addresses=address)
        await consumer.start()
        await subscribed_now.wait()
        await consumer.stop()
        await requeued_now.wait()
    assert requeued == [(b"REQ", b"%016d" % 1, b"0")]


async def test_rejected_answers_are_logged_and_the_connection_stays_open(topic, caplog):
    handler = Collector(2)

    async def script(conversation):
        await subscribed(conversation)
        conversation.send(message_frame(1))
        while (await conversation.command())[0] != b"FIN":
            pass
        conversation.refuse(b"E_FIN_FAILED FIN 0000000000000001 failed ID not in flight")
        conversation.send(message_frame(2))
        while True:
            await conversation.command()

    async with scripted_nsqd(script) as address:
        consumer = Consumer(topic, "ch", handler, nsqd_tcp_addresses=address)
        await consumer.start()
        await handler.done.wait()
        await consumer.stop(timeout=0.01)
    assert f"{address}: E_FIN_FAILED FIN 0000000000000001 failed ID not in flight" in caplog.text


async def test_start_fails_if_nsqd_rejects_the_subscription(topic):
    async def script(conversation):
        await conversation.greet()
        await conversation.command()
        conversation.refuse(b"E_SUB_FAILED SUB failed consumers for t:ch exceeds limit of 1")

    async with scripted_nsqd(script) as address:
        with pytest.raises(ConnectFailed, match=f"{address}: E_SUB_FAILED SUB failed consumers for t:ch exceeds"):
            await Consumer(topic, "ch", print, nsqd_tcp_addresses=address).start()


async def test_default_requeue_delays_grow_with_attempts(topic):
    requeues = []
    done = asyncio.Event()

    async def script(conversation):
        await subscribed(conversation)
        for attempts in (1, 2, 7):
            data = bytes(8) + attempts.to_bytes(2, "big") + b"%016d" % attempts + b"x"
            conversation.send(frames.encode_frame(frames.MESSAGE, data))
        while len(requeues) < 3:
            words = await conversation.command()
            if words[0] == b"REQ":
                requeues.append(int(words[2]))
        done.set()

    def fail(message):
        raise ValueError("no")

    options = {"default_requeue_delay": "10s", "max_requeue_delay": "1m", "max_attempts": 0, "max_in_flight": 3}
    async with scripted_nsqd(script) as address:
        consumer = Consumer(topic, "ch", fail, nsqd_tcp_addresses=address, **options)
        await consumer.start()
        await done.wait()
        await consumer.stop(timeout=0.01)
    assert requeues == [10_000, 20_000, 60_000]


async def test_a_message_above_max_msg_size_ends_the_connection(topic, caplog):
    lost = asyncio.Event()

    async def script(conversation):
        await subscribed(conversation)
        conversation.send(frames.encode_frame(frames.MESSAGE, bytes(10_000)))
        try:
            while True:
                await conversation.command()
        finally:
            lost.set()

    async with (
        scripted_nsqd(script) as address,
        Consumer(topic, "ch", print, nsqd_tcp_addresses=address, max_msg_size=5000),
    ):
        await lost.wait()
    assert "a frame of size 10004, more than max_msg_size 5000" in caplog.text


async def test_the_consumer_retries_after_a_reset_while_subscribing(topic):
    """The consumer reconnects after any end of a connection."""
    connections = 0
    handler = Collector(1)

    async def script(conversation):
        nonlocal connections
        connections += 1
        if connections == 2:
            await conversation.greet()
            await conversation.command()
            conversation.reset()
            return
        await subscribed(conversation)
        if connections == 3:
            conversation.send(message_frame(1))
            while True:
                await conversation.command()

    async with scripted_nsqd(script) as address:
        consumer = Consumer(topic, "ch", handler, nsqd_tcp_addresses=address, lookupd_poll_interval="10ms")
        await consumer.start()
        await handler.done.wait()
        await consumer.stop(timeout=0.01)
    assert connections == 3
