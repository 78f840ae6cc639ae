"""Handlers that fail, take long or receive invalid bodies, and programs that are stopped by a signal."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from daemons import Fleet, wait_until
from eventually import until
from nsqx import Consumer, GiveUp, InvalidBody, InvalidMessage, Producer, blocking
from nsqx.client.codecs import JSON
from nsqx.client.consumer import STOP_TIMEOUT_S

LIMIT_S = 40.0
FAST = {"default_requeue_delay": "1ms", "backoff_multiplier": "1ms"}


async def publish(daemon, topic, *bodies):
    async with Producer(daemon.tcp_address) as producer:
        await producer.publish_many(topic, bodies)


class GaveUp:
    """An on_give_up function that notes the attempts and the errors."""

    def __init__(self):
        self.seen = []
        self.done = asyncio.Event()

    async def __call__(self, message):
        self.seen.append((message.body, message.attempts, type(message.error), str(message.error)))
        self.done.set()


@pytest.mark.parametrize("kind", ["function", "coroutine"])
async def test_the_error_reaches_on_give_up_in_the_last_delivery(fleet: Fleet, topic, kind):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"x")
    gave_up = GaveUp()
    handled = []

    def handle(message):
        assert message.error is None
        handled.append(message.attempts)
        raise ValueError(f"attempt {message.attempts}")

    async def handle_later(message):
        await asyncio.sleep(0)
        handle(message)

    consumer = Consumer(
        topic,
        "ch",
        handle if kind == "function" else handle_later,
        nsqd_tcp_addresses=daemon.tcp_address,
        on_give_up=gave_up,
        max_attempts=3,
        **FAST,
    )
    async with asyncio.timeout(LIMIT_S), consumer:
        await gave_up.done.wait()
    assert handled == [1, 2, 3]
    assert gave_up.seen == [(b"x", 3, ValueError, "attempt 3")]
    assert (consumer.stats.finished, consumer.stats.requeued) == (1, 2)


async def test_the_last_failure_backs_off_and_finishing_it_is_no_success(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"x")
    gave_up = GaveUp()

    def handle(message):
        raise ValueError("never")

    consumer = Consumer(
        topic,
        "ch",
        handle,
        nsqd_tcp_addresses=daemon.tcp_address,
        on_give_up=gave_up,
        max_attempts=1,
        backoff_multiplier="60s",
    )
    async with asyncio.timeout(LIMIT_S), consumer:
        await gave_up.done.wait()
        await until(lambda: consumer.stats.finished == 1, "the message is finished")
        assert consumer._rdy.backoff.level == 1
        assert consumer._rdy.backoff.is_pausing


async def test_give_up_ends_the_attempts_at_once_and_does_not_back_off(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"x")
    gave_up = GaveUp()

    async def handle(message):
        raise GiveUp("no such customer")

    arguments = {"nsqd_tcp_addresses": daemon.tcp_address, "on_give_up": gave_up}
    async with asyncio.timeout(LIMIT_S), Consumer(topic, "ch", handle, **arguments) as consumer:
        await gave_up.done.wait()
        assert consumer._rdy.backoff.level == 0
    assert gave_up.seen == [(b"x", 1, GiveUp, "no such customer")]
    assert (consumer.stats.finished, consumer.stats.requeued) == (1, 0)


async def test_each_failure_is_one_line_in_the_log(fleet: Fleet, topic, caplog):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"x")
    gave_up = GaveUp()

    def handle(message):
        raise ValueError("first line\nsecond line " + "x" * 1000)

    arguments = {"nsqd_tcp_addresses": daemon.tcp_address, "on_give_up": gave_up, "max_attempts": 2, **FAST}
    with caplog.at_level(logging.INFO, "nsqx.client"):
        async with asyncio.timeout(LIMIT_S), Consumer(topic, "ch", handle, **arguments):
            await gave_up.done.wait()
    failures = [each for each in caplog.records if "failed, attempt" in each.getMessage()]
    first, last = failures
    assert first.levelno == logging.WARNING
    assert f"{topic}/ch: message " in first.getMessage()
    assert "failed, attempt 1 of 2, requeued: ValueError: first line second line xxx" in first.getMessage()
    assert len(first.getMessage()) < 700
    assert first.exc_info is None
    assert last.levelno == logging.ERROR
    assert "failed, attempt 2 of 2, giving up: ValueError" in last.getMessage()
    assert last.exc_info is not None


async def test_the_debug_level_shows_every_traceback(fleet: Fleet, topic, caplog):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"x")
    done = asyncio.Event()

    async def handle(message):
        if message.attempts == 1:
            raise ValueError("not yet")
        done.set()

    with caplog.at_level(logging.DEBUG, "nsqx.client"):
        async with (
            asyncio.timeout(LIMIT_S),
            Consumer(topic, "c", handle, nsqd_tcp_addresses=daemon.tcp_address, **FAST),
        ):
            await done.wait()
    (failure,) = [each for each in caplog.records if "failed, attempt 1 of 5" in each.getMessage()]
    assert failure.exc_info is not None


# Automatic TOUCH


@pytest.mark.parametrize("kind", ["coroutine", "function that returns a coroutine"])
async def test_long_handlers_and_waiting_messages_are_touched(fleet: Fleet, topic, kind):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"1", b"2", b"3")
    attempts = []
    release = asyncio.Event()

    async def handle(message):
        attempts.append(message.attempts)
        await release.wait()

    consumer = Consumer(
        topic,
        "ch",
        handle if kind == "coroutine" else lambda message: handle(message),
        nsqd_tcp_addresses=daemon.tcp_address,
        concurrency=1,
        max_in_flight=3,
        msg_timeout="6s",
    )
    async with asyncio.timeout(LIMIT_S), consumer:
        await until(lambda: consumer.stats.received == 3, "the messages have arrived")
        # Longer than the timeout of a message.
        await asyncio.sleep(7.5)
        assert consumer.stats.received == 3
        release.set()
        await until(lambda: consumer.stats.finished == 3, "all are finished")
    assert attempts == [1, 1, 1]
    assert daemon.channel_stats(topic, "ch")["timeout_count"] == 0


async def test_without_auto_touch_a_long_handler_loses_its_message(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"x")
    release = asyncio.Event()

    async def handle(message):
        await release.wait()

    consumer = Consumer(topic, "ch", handle, nsqd_tcp_addresses=daemon.tcp_address, msg_timeout="1s", auto_touch=False)
    async with asyncio.timeout(LIMIT_S), consumer:
        await until(lambda: daemon.channel_stats(topic, "ch")["timeout_count"], "the message times out")
        release.set()


async def test_messages_that_are_answered_later_are_not_touched(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"x")
    kept = []

    async def handle(message):
        message.answer_later()
        kept.append(message)

    consumer = Consumer(topic, "ch", handle, nsqd_tcp_addresses=daemon.tcp_address, msg_timeout="1s")
    async with asyncio.timeout(LIMIT_S), consumer:
        await until(lambda: daemon.channel_stats(topic, "ch")["timeout_count"], "the message times out")
        for message in kept:
            message.finish()


def test_a_long_blocking_handler_is_touched(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        producer.publish_many(topic, [b"1", b"2"])
    seen = []

    with blocking.Consumer(
        topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=2, msg_timeout="6s"
    ) as consumer:

        def handle(message):
            seen.append((message.body, message.attempts))
            if len(seen) == 1:
                wait_until(lambda: consumer.stats.received == 2, "both have arrived")
                with pytest.raises(AssertionError):
                    # Longer than the timeout of a message.
                    wait_until(lambda: daemon.channel_stats(topic, "ch")["timeout_count"], "a timeout", 7.5)
            else:
                consumer.close()

        consumer.run(handle)
    assert sorted(seen) == [(b"1", 1), (b"2", 1)]


def test_a_failing_blocking_handler_requeues_and_gives_up(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        producer.publish(topic, b"x")
    handled, given_up = [], []
    arguments = {"on_give_up": lambda message: given_up.append((message.attempts, repr(message.error)))}
    with blocking.Consumer(
        topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_attempts=2, **FAST, **arguments
    ) as consumer:

        def handle(message):
            handled.append(message.attempts)
            if message.body == b"end":
                consumer.close()
                return
            if message.attempts == 2:
                with blocking.Producer(daemon.tcp_address) as producer:
                    producer.publish(topic, b"end")
            raise ValueError("no")

        consumer.run(handle)
    assert handled == [1, 2, 1]
    assert given_up == [(2, "ValueError('no')")]


# Codecs


async def test_values_are_published_and_consumed(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    values = []
    done = asyncio.Event()

    def handle(message):
        values.append(message.value)
        if len(values) == 4:
            done.set()

    async with (
        asyncio.timeout(LIMIT_S),
        Producer(daemon.tcp_address) as producer,
        Consumer(topic, "ch", handle, nsqd_tcp_addresses=daemon.tcp_address, codec=dict),
    ):
        orders = producer.publisher(topic, dict)
        await orders.publish({"id": 1})
        await orders.publish_many([{"id": 2}, {"id": 3}])
        await orders.publish_deferred({"id": 4}, "1ms")
        with pytest.raises(InvalidMessage, match=f"publish to {topic}: the value cannot be encoded as JSON"):
            orders.publish({"id": object()})
        await done.wait()
    assert sorted(value["id"] for value in values) == [1, 2, 3, 4]


async def test_an_invalid_body_is_given_up_with_its_reason(fleet: Fleet, topic, caplog):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b'{"id": 1}', b"no JSON", b"[1]")
    gave_up, handled = GaveUp(), []
    consumer = Consumer(
        topic,
        "ch",
        lambda message: handled.append(message.value),
        nsqd_tcp_addresses=daemon.tcp_address,
        on_give_up=gave_up,
        codec=dict,
        max_in_flight=3,
    )
    async with asyncio.timeout(LIMIT_S), consumer:
        await until(lambda: consumer.stats.finished == 3, "all are finished")
        assert consumer._rdy.backoff.level == 0
    assert handled == [{"id": 1}]
    reasons = {body: (attempts, kind, text) for body, attempts, kind, text in gave_up.seen}
    assert reasons[b"no JSON"][:2] == (1, InvalidBody)
    assert reasons[b"no JSON"][2].startswith("the body is not JSON: ")
    assert reasons[b"[1]"] == (1, InvalidBody, "the body is a JSON list, not a dict")
    assert all(each.exc_info is None for each in caplog.records)


async def test_an_iterator_does_not_see_invalid_bodies(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"no JSON", b"1")
    async with (
        asyncio.timeout(LIMIT_S),
        Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, codec=JSON) as consumer,
    ):
        async for message in consumer:
            assert message.value == 1
            message.finish()
            break
    assert consumer.stats.finished == 2


def test_blocking_clients_have_codecs(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with (
        blocking.Producer(daemon.tcp_address) as producer,
        blocking.Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, codec=dict) as consumer,
    ):
        orders = producer.publisher(topic, dict)
        orders.publish({"id": 1})
        orders.publish_many([{"id": 2}])
        orders.publish_deferred({"id": 3}, "1ms")
        found = []
        while len(found) < 3:
            message = consumer.get(LIMIT_S)
            assert message is not None
            found.append(message.value["id"])
            message.finish()
    assert sorted(found) == [1, 2, 3]


# Signals


def run_program(program, daemon, *, signals):
    """Run a program until it prints "ready", send the signals, and return its output and exit code."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "NSQD": daemon.tcp_address},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            assert process.stdout is not None
            lines = []
            for number in signals:
                for line in process.stdout:
                    lines.append(line.strip())
                    if "ready" in line:
                        break
                process.send_signal(number)
            lines += [line.strip() for line in process.stdout]
            return lines, process.wait(LIMIT_S)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_stops_gracefully_at_a_signal(fleet: Fleet, number):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, "t", b"x")
    program = """
        import asyncio, os
        from nsqx import Consumer

        async def handle(message):
            print("ready", flush=True)
            await asyncio.sleep(0.3)
            print("handled", flush=True)

        async def main():
            consumer = Consumer("t", "ch", handle, nsqd_tcp_addresses=os.environ["NSQD"])
            await consumer.run()
            print("stopped", consumer.stats.finished)

        asyncio.run(main())
    """
    lines, code = await asyncio.to_thread(run_program, program, daemon, signals=[number])
    assert lines == ["ready", "handled", "stopped 1"]
    assert code == 0


async def test_a_second_signal_ends_the_program(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, "t", b"x")
    program = """
        import asyncio, os
        from nsqx import Consumer

        async def handle(message):
            print("ready", flush=True)
            loop = asyncio.get_running_loop()
            while consumer.max_in_flight and not consumer._stopping:
                await asyncio.sleep(0.01)
            print("ready again", flush=True)
            await asyncio.sleep(60)

        async def main():
            global consumer
            consumer = Consumer("t", "ch", handle, nsqd_tcp_addresses=os.environ["NSQD"])
            await consumer.run()

        asyncio.run(main())
    """
    signals = [signal.SIGTERM, signal.SIGTERM]
    lines, code = await asyncio.to_thread(run_program, program, daemon, signals=signals)
    assert lines == ["ready", "ready again"]
    assert code == -signal.SIGTERM


async def test_handlers_of_the_program_are_left_alone(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    program = """
        import asyncio, os, signal
        from nsqx import Consumer

        async def main():
            ended = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
            consumer = Consumer("t", "ch", print, nsqd_tcp_addresses=os.environ["NSQD"])
            running = asyncio.create_task(consumer.run())
            await asyncio.sleep(0)
            print("ready", flush=True)
            await ended.wait()
            print("mine", running.done())
            await consumer.stop()
            await running

        asyncio.run(main())
    """
    lines, code = await asyncio.to_thread(run_program, program, daemon, signals=[signal.SIGTERM])
    assert lines == ["ready", "mine False"]
    assert code == 0


async def test_a_signal_during_start_stops_the_consumer(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    program = """
        import asyncio, socket
        from nsqx import Consumer

        async def main():
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            address = "127.0.0.1:%d" % listener.getsockname()[1]
            consumer = Consumer("t", "ch", print, nsqd_tcp_addresses=address, start_timeout="60s")
            asyncio.get_running_loop().call_later(0.1, print, "ready")
            asyncio.get_running_loop().call_later(0.1, __import__("sys").stdout.flush)
            await consumer.run()
            print("stopped")

        asyncio.run(main())
    """
    lines, code = await asyncio.to_thread(run_program, program, daemon, signals=[signal.SIGTERM])
    assert lines == ["ready", "stopped"]
    assert code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_blocking_run_stops_gracefully_at_a_signal(fleet: Fleet, number):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        producer.publish_many("t", [b"1", b"2", b"3"])
    program = """
        import os, time
        from nsqx import blocking

        def handle(message):
            print("ready", flush=True)
            time.sleep(0.3)
            print("handled", flush=True)

        with blocking.Consumer("t", "ch", nsqd_tcp_addresses=os.environ["NSQD"], max_in_flight=3) as consumer:
            consumer.run(handle)
            print("stopped", consumer.stats.finished)
    """
    assert run_program(program, daemon, signals=[number]) == (["ready", "handled", "stopped 1"], 0)
    stats = daemon.channel_stats("t", "ch")
    assert (stats["depth"], stats["in_flight_count"], stats["timeout_count"]) == (2, 0, 0)


def test_a_blocking_run_that_waits_ends_at_a_signal(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    program = """
        import os, threading
        from nsqx import blocking

        consumer = blocking.Consumer("t", "ch", nsqd_tcp_addresses=os.environ["NSQD"])
        threading.Timer(0.2, print, ["ready"], {"flush": True}).start()
        consumer.run(print)
        print("stopped")
    """
    assert run_program(program, daemon, signals=[signal.SIGTERM]) == (["ready", "stopped"], 0)


def test_a_second_signal_ends_a_blocking_run(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        producer.publish("t", b"1")
    program = """
        import os, time
        from nsqx import blocking

        def handle(message):
            print("ready", flush=True)
            while consumer._close_timeout is None:
                time.sleep(0.01)
            print("ready again", flush=True)
            time.sleep(60)

        consumer = blocking.Consumer("t", "ch", nsqd_tcp_addresses=os.environ["NSQD"])
        consumer.run(handle)
    """
    signals = [signal.SIGTERM, signal.SIGTERM]
    assert run_program(program, daemon, signals=signals) == (["ready", "ready again"], -signal.SIGTERM)


def test_an_interrupted_handler_gives_its_message_back(fleet: Fleet, topic):
    """Without the end of the consumer, its message would be touched again and again."""
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        producer.publish_many(topic, [b"1", b"2"])

    def interrupt(message):
        raise KeyboardInterrupt

    consumer = blocking.Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address)
    with pytest.raises(KeyboardInterrupt):
        consumer.run(interrupt)
    consumer.close()
    assert not consumer.is_connected
    wait_until(lambda: daemon.channel_stats(topic, "ch")["depth"] == 2, "both messages wait again")


async def test_an_iteration_that_fails_does_not_wait_for_its_messages(fleet: Fleet, topic):
    """Nobody would answer them. nsqd delivers them again at once, because the connection ends."""
    daemon = fleet.nsqd("nsqx")
    await publish(daemon, topic, b"1", b"2")

    async def iterate():
        async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address) as consumer:
            async for _ in consumer:
                raise ValueError("no")

    def iterate_here():
        with blocking.Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address) as consumer:
            for _ in consumer:
                raise ValueError("no")

    for iterating in (iterate(), asyncio.to_thread(iterate_here)):
        with pytest.raises(ValueError, match="no"):
            await asyncio.wait_for(iterating, STOP_TIMEOUT_S / 2)
