"""Every publish ends before its deadline, and its error says whether the message may have been published."""

import asyncio
import contextlib
import signal
import socket

import pytest

from daemons import Fleet, free_port, wait_until
from eventually import until
from nsqx import ConnectFailed, Consumer, Producer, PublishFailed, PublishTimedOut, blocking
from scripted_nsqd import scripted_nsqd
from utilities import Running, make_channels, publish

# Far above every deadline in this file. Only a wait without a limit reaches it.
LIMIT_S = 30.0


@pytest.fixture
def black_hole():
    """Return the address of a listener that drops the packets of new connections, as a firewall does."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(8):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(address)
        yield f"127.0.0.1:{address[1]}"


@pytest.fixture
def silent_listener():
    """Return the address of a listener that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def frozen(daemon):
    """Freeze the process of a daemon with SIGSTOP."""
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


async def timed_out(publish):
    """Return the error of a publish that must time out."""
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(PublishTimedOut) as caught:
            await publish
    return caught.value


def test_the_default_timeout_is_ten_seconds():
    assert Producer("127.0.0.1:4150").publish_timeout_s == 10.0
    assert Producer("127.0.0.1:4150", publish_timeout="3s").publish_timeout_s == 3.0


async def test_a_publish_to_a_frozen_nsqd_times_out(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    async with Producer(daemon.tcp_address, publish_timeout="300ms") as producer:
        await producer.publish(topic, b"before")
        with frozen(daemon):
            publishes = [
                producer.publish(topic, b"one"),
                producer.publish_many(topic, [b"two", b"three"]),
                producer.publish_deferred(topic, b"four", "1ms"),
                producer.publish(topic, b"five", timeout="20s"),
            ]
            for publish in publishes[:3]:
                error = await timed_out(publish)
                assert error.may_be_published
                assert str(error) == (
                    f"publish to {topic} timed out after 0.3 s: {daemon.tcp_address}: nsqd did not answer;"
                    " the message may have been published"
                )
            assert isinstance(error, PublishFailed)
            assert isinstance(error, TimeoutError)
            assert not publishes[3].done()
        await publishes[3]
        await producer.publish(topic, b"after", timeout="20s")


async def test_a_late_answer_does_not_complete_another_publish(topic):
    answers = asyncio.Semaphore(0)

    async def script(conversation):
        await conversation.greet()
        while True:
            await conversation.command()
            await answers.acquire()
            conversation.respond()

    async with scripted_nsqd(script) as address, Producer(address) as producer:
        await timed_out(producer.publish(topic, b"first", timeout="50ms"))
        assert producer.outstanding == 0
        second = producer.publish(topic, b"second")
        third = producer.publish(topic, b"third")
        answers.release()
        answers.release()
        await second
        assert not third.done()
        answers.release()
        await third


async def test_a_publish_without_an_nsqd_times_out(topic):
    address = f"127.0.0.1:{free_port()}"
    producer = Producer(address, publish_timeout="400ms", max_publish_attempts=1_000_000)
    error = await timed_out(producer.publish(topic, b"x"))
    assert not error.may_be_published
    assert f"timed out after 0.4 s: no nsqd is connected ({address}: Connection refused)" in str(error)
    assert str(error).endswith("; the message was not sent")
    await producer.close()


async def test_a_publish_times_out_if_packets_are_dropped(topic, black_hole):
    producer = Producer(black_hole, publish_timeout="300ms", dial_timeout="5m")
    error = await timed_out(producer.publish(topic, b"x"))
    assert not error.may_be_published
    assert f"no nsqd is connected ({black_hole}: connecting)" in str(error)
    await producer.close()


async def test_start_times_out(black_hole, silent_listener):
    for arguments, text in [
        ({"nsqd_tcp_addresses": black_hole, "dial_timeout": 0}, f"{black_hole}: connecting"),
        ({"nsqd_tcp_addresses": silent_listener}, f"{silent_listener}: connecting"),
        ({"lookupd_http_addresses": silent_listener}, f"waiting for nsqlookupd {silent_listener}"),
    ]:
        producer = Producer(start_timeout="200ms", require_connection=True, **arguments)
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ConnectFailed, match=rf"no nsqd is connected after 0.2 s \({text}\)"):
                await producer.start()


async def test_a_publish_times_out_if_nsqlookupd_does_not_answer(topic, silent_listener):
    producer = Producer(lookupd_http_addresses=silent_listener, publish_timeout="200ms")
    error = await timed_out(producer.publish(topic, b"x"))
    assert f"no nsqd is connected (waiting for nsqlookupd {silent_listener})" in str(error)
    await producer.close()


async def test_a_publish_times_out_during_authentication(topic):
    async def script(conversation):
        await conversation.greet(auth_required=True)
        await asyncio.Event().wait()

    async with scripted_nsqd(script) as address:
        producer = Producer(address, auth_secret="s", publish_timeout="200ms")
        assert not (await timed_out(producer.publish(topic, b"x"))).may_be_published
        await producer.close()


async def test_a_publish_times_out_behind_a_full_socket_buffer(topic):
    async def script(conversation):
        await conversation.greet()
        await asyncio.Event().wait()

    async with scripted_nsqd(script) as address:
        producer = Producer(address, write_timeout="5m", publish_timeout="1s")
        await producer.start()
        publishes = [producer.publish(topic, bytes([1]) * 1_000_000) for _ in range(60)]
        async with asyncio.timeout(LIMIT_S):
            errors = await asyncio.gather(*publishes, return_exceptions=True)
            await producer.drain()
        assert all(isinstance(error, PublishTimedOut) for error in errors)
        assert errors[0].may_be_published
        assert not errors[-1].may_be_published
        assert "earlier publishes are not answered yet; the message was not sent" in str(errors[-1])
        async with asyncio.timeout(LIMIT_S):
            await producer.close()


async def test_after_a_lost_connection_the_message_may_be_published(topic):
    async def script(conversation):
        await conversation.greet()
        await conversation.command()

    async with scripted_nsqd(script) as address:
        producer = Producer(address, max_publish_attempts=1000, retry_delay="10ms", publish_timeout="300ms")
        error = await timed_out(producer.publish(topic, b"x"))
        assert error.may_be_published
        assert error.__cause__ is not None
        await producer.close()


async def test_not_connected_is_raised_only_if_the_message_was_never_sent(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    producer = Producer(daemon.tcp_address, max_publish_attempts=3, retry_delay="10ms")
    await producer.publish(topic, b"x")
    with frozen(daemon):
        publish = producer.publish(topic, b"y")
        await asyncio.sleep(0)
        daemon.kill()
    with pytest.raises(PublishFailed, match="Connection refused.*; the message may have been published") as caught:
        await publish
    assert type(caught.value) is PublishFailed
    await producer.close()


async def test_publishes_move_from_a_frozen_nsqd_to_another(fleet: Fleet, topic):
    first, second = fleet.nsqd("nsqx"), fleet.nsqd("nsqx")
    async with Producer([first.tcp_address, second.tcp_address], publish_timeout="1s") as producer:
        await until(lambda: len(producer.connected_addresses) == 2, "both are connected")
        with frozen(first):
            patient = [producer.publish(topic, b"%d" % number, timeout="25s") for number in range(10)]
            outcomes = await asyncio.gather(*(producer.publish(topic, b"x") for _ in range(10)), return_exceptions=True)
            assert sum(isinstance(each, PublishTimedOut) for each in outcomes) == 5
            await asyncio.gather(*patient)
            assert producer.connected_addresses == [second.tcp_address]
            await asyncio.gather(*(producer.publish(topic, b"x") for _ in range(10)))


async def test_an_expired_member_of_a_batch_is_not_sent_later(fleet: Fleet, topic):
    port = free_port()
    address = f"127.0.0.1:{port}"
    producer = Producer(
        address, batching=True, max_publish_attempts=1_000_000, publish_timeout="25s", retry_delay="10ms"
    )
    hasty = producer.publish(topic, b"hasty", timeout="100ms")
    patient = [producer.publish(topic, b"patient"), producer.publish(topic, b"calm")]
    assert not (await timed_out(hasty)).may_be_published
    daemon = fleet.nsqd("nsqx", f"--tcp-address={address}")
    await asyncio.gather(*patient)
    await producer.close()
    found = []
    async with Consumer(topic, "check", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=10) as consumer:
        while len(found) < daemon.topic_stats(topic)["message_count"]:
            message = await anext(consumer)
            found.append(message.body)
            message.finish()
    assert sorted(found) == [b"calm", b"patient"]


async def test_close_ends_while_nsqd_is_frozen(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    producer = Producer(daemon.tcp_address, publish_timeout="300ms")
    await producer.publish(topic, b"x")
    with frozen(daemon):
        publish = producer.publish(topic, b"y")
        cancelled = producer.publish(topic, b"z")
        cancelled.cancel()
        async with asyncio.timeout(LIMIT_S):
            await producer.close()
        with pytest.raises(PublishTimedOut):
            await publish


async def test_many_publishes_expire_together(topic, silent_listener):
    producer = Producer(silent_listener, publish_timeout="500ms")
    publishes = [producer.publish(topic, b"x") for _ in range(20_000)]
    async with asyncio.timeout(LIMIT_S):
        outcomes = await asyncio.gather(*publishes, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {PublishTimedOut}
    await producer.close()


def test_a_blocking_publish_times_out(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address, publish_timeout="300ms") as producer:
        producer.publish(topic, b"x", timeout="20s")
        with frozen(daemon):
            for publish in (
                lambda: producer.publish(topic, b"x"),
                lambda: producer.publish(topic, b"x", timeout="200ms"),
                lambda: producer.publish_many(topic, [b"x", b"y"]),
                lambda: producer.publish_deferred(topic, b"x", "1ms"),
                lambda: producer.submit(topic, b"x").result(LIMIT_S),
                lambda: producer.submit_many(topic, [b"x"], timeout="200ms").result(LIMIT_S),
            ):
                with pytest.raises(PublishTimedOut):
                    publish()


def test_the_constructor_of_a_blocking_producer_times_out(silent_listener):
    with pytest.raises(ConnectFailed, match="no nsqd is connected after 0.2 s"):
        blocking.Producer(silent_listener, start_timeout="200ms", require_connection=True)


def test_nsq_to_nsq_requeues_messages_that_its_destination_does_not_answer(fleet: Fleet, tmp_path):
    source, destination = fleet.nsqd("nsqx"), fleet.nsqd("nsqx")
    make_channels(source, "t", "c")
    flags = ["--topic=t", "--channel=c", f"--nsqd-tcp-address={source.tcp_address}"]
    flags.append(f"--destination-nsqd-tcp-address={destination.tcp_address}")
    with Running("nsqx", "nsq_to_nsq", *flags, log=tmp_path / "log"):
        publish(source, "t", [b"before"])
        wait_until(lambda: destination.topic_stats("t"), "the first message has arrived")
        with frozen(destination):
            publish(source, "t", [b"during"])
            wait_until(lambda: source.channel_stats("t", "c")["requeue_count"], "the message is requeued", LIMIT_S)
