"""One connection's messages and the answers to them, and who handles them."""

import asyncio

import pytest
from client_bench import ConnectionBench, error_frame, message_frame

from nsqx.client.dispatcher import Dispatcher
from nsqx.client.subscription import Subscription
from nsqx.errors import AlreadyAnswered
from nsqx.wire import frames


class Owner:
    """Takes note of what a subscription tells, and of outcomes, as a flow does."""

    def __init__(self):
        self.told = []

    def on_close_wait(self, subscription):
        self.told.append("close wait")

    def on_answer_failed(self, subscription, text, is_harmless):
        self.told.append((text, is_harmless))

    def on_lost(self, subscription, error):
        self.told.append("lost")

    def failed(self):
        self.told.append("failed")

    def succeeded(self):
        self.told.append("succeeded")

    def held(self):
        self.told.append("held")


class Bench(ConnectionBench):
    def __init__(self, handler=None, *, concurrency=10, max_attempts=0, give_up=None):
        super().__init__()
        self.owner = Owner()
        self.dispatcher = Dispatcher(handler, concurrency=concurrency, max_attempts=max_attempts, give_up=give_up)
        self.dispatcher.start()
        self.subscription = Subscription(
            self.connection, self.owner, self.owner, self.dispatcher, 2500, lambda attempts: attempts * 1.5, lambda: 7.0
        )
        self.connection.start(self.subscription)


async def test_a_message_and_its_answers():
    bench = Bench()
    bench.receive(message_frame(1, 3, b"one"), message_frame(2), message_frame(3))
    first, second, third = (bench.dispatcher.take() for _ in range(3))
    assert (first.id, first.timestamp, first.attempts, first.body) == (b"%016d" % 1, 1, 3, b"one")
    assert repr(first) == "<Message 0000000000000001 attempts=3 body=3 bytes>"
    assert bench.subscription.in_flight_count == 3
    assert bench.subscription.last_message_s == 7.0
    assert first.touch()
    assert first.finish()
    assert second.requeue()
    assert third.requeue("20ms", backoff=False)
    expected = [b"TOUCH %016d" % 1, b"FIN %016d" % 1, b"REQ %016d 1500" % 2, b"REQ %016d 20" % 3]
    assert await bench.sent() == b"\n".join([*expected, b""])
    assert bench.subscription.in_flight_count == 0
    assert bench.owner.told == ["failed"]
    for message in (first, second):
        for answer in (message.finish, message.requeue, message.touch):
            with pytest.raises(AlreadyAnswered):
                answer()


async def test_outcomes_count_in_backoff():
    bench = Bench()
    bench.subscription.is_backing_off = True
    bench.receive(*(message_frame(number) for number in range(3)))
    bench.dispatcher.take().finish()
    bench.dispatcher.take().requeue(backoff=False)
    bench.dispatcher.take().requeue()
    assert bench.owner.told == ["succeeded", "held", "failed"]


async def test_the_end_waits_for_answers():
    bench = Bench()
    bench.receive(message_frame(1))
    message = bench.dispatcher.take()
    bench.subscription.start_close()
    assert await bench.sent() == b"CLS\n"
    bench.receive(frames.CLOSE_WAIT)
    assert bench.owner.told == ["close wait"]
    assert not bench.transport.is_closed
    message.finish()
    assert bench.transport.is_closed
    assert await bench.sent() == b"FIN %016d\n" % 1


async def test_after_the_loss_answers_go_nowhere():
    bench = Bench()
    bench.receive(message_frame(1), message_frame(2), message_frame(3))
    messages = [bench.dispatcher.take() for _ in range(2)]
    bench.transport.abort()
    await asyncio.sleep(0)
    assert bench.owner.told == ["lost"]
    assert messages[0].is_lost
    assert [messages[0].touch(), messages[0].finish(), messages[1].requeue(0)] == [False, False, False]
    assert bench.dispatcher.take() is None, "what was not taken is dropped"


@pytest.mark.parametrize(
    ("text", "is_harmless"),
    [
        (b"E_FIN_FAILED FIN x failed ID not in flight", True),
        (b"E_REQ_FAILED REQ x failed", True),
        (b"E_TOUCH_FAILED TOUCH x failed", True),
        (b"E_INVALID cannot FIN in current state", False),
    ],
)
async def test_refused_answers(text, is_harmless):
    bench = Bench()
    bench.receive(error_frame(text))
    assert bench.owner.told == [(text.decode(), is_harmless)]


async def test_ready():
    bench = Bench()
    bench.subscription.set_ready(25, 9.0)
    assert await bench.sent() == b"RDY 25\n"
    assert (bench.subscription.ready_count, bench.subscription.ready_at_s) == (25, 9.0)


# Handlers


async def test_a_function_is_called_at_once():
    handled = []
    bench = Bench(handled.append)
    bench.receive(message_frame(1), message_frame(2))
    assert [message.timestamp for message in handled] == [1, 2]
    assert await bench.sent() == b"FIN %016d\nFIN %016d\n" % (1, 2)


async def test_a_failing_function_requeues():
    def handler(message):
        raise ValueError("no")

    bench = Bench(handler)
    bench.receive(message_frame(1))
    assert await bench.sent() == b"REQ %016d 1500\n" % 1
    assert bench.owner.told == ["failed"]


async def test_a_handler_that_answers_itself_is_left_alone():
    bench = Bench(lambda message: message.requeue(0, backoff=False))
    bench.receive(message_frame(1))
    assert await bench.sent() == b"REQ %016d 0\n" % 1


async def test_a_function_that_takes_long_lets_others_have_their_turn(monkeypatch):
    """More than a turn's time is spent: the rest waits for the loop to come round."""
    handled = []
    now_s = [0.0]

    def handler(message):
        now_s[0] += 0.015
        handled.append(message.timestamp)

    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    bench = Bench(handler)
    bench.receive(*(message_frame(number) for number in range(5)))
    assert handled == [0, 1]
    await asyncio.sleep(0)
    assert handled == [0, 1, 2, 3]
    await asyncio.sleep(0)
    assert handled == [0, 1, 2, 3, 4]
    await bench.dispatcher.close()


async def test_a_coroutine_that_never_waits_needs_one_worker():
    tasks = set()

    async def handler(message):
        tasks.add(asyncio.current_task())

    bench = Bench(handler)
    bench.receive(*(message_frame(number) for number in range(100)))
    sent = await bench.sent() + await bench.sent()
    assert sent.count(b"FIN ") == 100
    assert len(tasks) == 1
    await bench.dispatcher.close()


async def test_coroutines_that_wait_run_at_once_up_to_the_limit():
    running = []
    go_on = asyncio.Event()

    async def handler(message):
        running.append(message.timestamp)
        await go_on.wait()

    bench = Bench(handler, concurrency=4)
    bench.receive(*(message_frame(number) for number in range(10)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert running == [0, 1, 2, 3]
    go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert sorted(running) == list(range(10))
    await bench.dispatcher.close()


async def test_too_many_attempts_are_not_handled():
    handled = []
    bench = Bench(handled.append, max_attempts=2)
    bench.receive(message_frame(1, 2), message_frame(2, 3))
    assert [message.timestamp for message in handled] == [1]
    assert (await bench.sent()).count(b"FIN ") == 2


async def test_a_reader_that_is_cancelled_leaves_the_message_to_another():
    bench = Bench()
    first, second = asyncio.ensure_future(bench.dispatcher.next()), asyncio.ensure_future(bench.dispatcher.next())
    await asyncio.sleep(0)
    bench.receive(message_frame(1))
    first.cancel()
    assert (await second).timestamp == 1
    assert first.cancelled()


async def test_the_end_wakes_everybody():
    bench = Bench()
    reading = [asyncio.ensure_future(bench.dispatcher.next()) for _ in range(3)]
    await asyncio.sleep(0)
    bench.dispatcher.end()
    assert await asyncio.gather(*reading) == [None, None, None]


async def test_refusing_gives_everything_back():
    bench = Bench()
    bench.receive(message_frame(1))
    bench.dispatcher.refuse()
    bench.receive(message_frame(2))
    assert await bench.sent() == b"REQ %016d 0\nREQ %016d 0\n" % (1, 2)
    assert bench.owner.told == []
