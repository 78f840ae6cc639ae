"""The messages of one connection, their answers, and the dispatch to handlers."""

import asyncio

import pytest
from connection_harness import ConnectionHarness, error_frame, message_frame

from nsqx.client.dispatcher import Dispatcher
from nsqx.client.subscription import Subscription
from nsqx.errors import AlreadyAnswered
from nsqx.wire import frames


class Owner:
    """Records the calls of a subscription, both to its owner and to ``rdy``."""

    def __init__(self):
        self.events = []

    def _on_close_wait(self, subscription):
        self.events.append("close wait")

    def _on_answer_failed(self, subscription, text, is_harmless):
        self.events.append((text, is_harmless))

    def _on_lost(self, subscription, error):
        self.events.append("lost")

    def failed(self):
        self.events.append("failed")

    def succeeded(self):
        self.events.append("succeeded")

    def held(self):
        self.events.append("held")


class SubscriptionHarness(ConnectionHarness):
    def __init__(self, handler=None, *, concurrency=10, max_attempts=0, give_up=None):
        super().__init__()
        self.owner = Owner()
        self.dispatcher = Dispatcher(handler, concurrency=concurrency, max_attempts=max_attempts, give_up=give_up)
        self.dispatcher.start()
        self.subscription = Subscription(
            self.connection, self.owner, self.owner, self.dispatcher, 2500, lambda attempts: attempts * 1.5, lambda: 7.0
        )
        self.connection.start(self.subscription)


async def test_answers_are_sent_and_a_second_answer_raises():
    harness = SubscriptionHarness()
    harness.receive(message_frame(1, 3, b"one"), message_frame(2), message_frame(3))
    first, second, third = (harness.dispatcher.take() for _ in range(3))
    assert (first.id, first.timestamp, first.attempts, first.body) == (b"%016d" % 1, 1, 3, b"one")
    assert repr(first) == "<Message 0000000000000001 attempts=3 body=3 bytes>"
    assert harness.subscription.in_flight_count == 3
    assert harness.subscription.last_message_s == 7.0
    assert first.touch()
    assert first.finish()
    assert second.requeue()
    assert third.requeue("20ms", backoff=False)
    expected = [b"TOUCH %016d" % 1, b"FIN %016d" % 1, b"REQ %016d 1500" % 2, b"REQ %016d 20" % 3]
    assert await harness.sent() == b"\n".join([*expected, b""])
    assert harness.subscription.in_flight_count == 0
    assert harness.owner.events == ["failed"]
    for message in (first, second):
        for answer in (message.finish, message.requeue, message.touch):
            with pytest.raises(AlreadyAnswered):
                answer()


async def test_outcomes_are_reported_during_backoff():
    harness = SubscriptionHarness()
    harness.subscription.is_backing_off = True
    harness.receive(*(message_frame(number) for number in range(3)))
    harness.dispatcher.take().finish()
    harness.dispatcher.take().requeue(backoff=False)
    harness.dispatcher.take().requeue()
    assert harness.owner.events == ["succeeded", "held", "failed"]


async def test_a_closing_connection_waits_for_answers():
    harness = SubscriptionHarness()
    harness.receive(message_frame(1))
    message = harness.dispatcher.take()
    harness.subscription.start_close()
    assert await harness.sent() == b"CLS\n"
    harness.receive(frames.CLOSE_WAIT)
    assert harness.owner.events == ["close wait"]
    assert not harness.transport.is_closed
    message.finish()
    assert harness.transport.is_closed
    assert await harness.sent() == b"FIN %016d\n" % 1


async def test_answers_after_a_lost_connection_return_false():
    harness = SubscriptionHarness()
    harness.receive(message_frame(1), message_frame(2), message_frame(3))
    messages = [harness.dispatcher.take() for _ in range(2)]
    harness.transport.abort()
    await asyncio.sleep(0)
    assert harness.owner.events == ["lost"]
    assert messages[0].is_lost
    assert [messages[0].touch(), messages[0].finish(), messages[1].requeue(0)] == [False, False, False]
    assert harness.dispatcher.take() is None, "messages that were not taken are dropped"


@pytest.mark.parametrize(
    ("text", "is_harmless"),
    [
        (b"E_FIN_FAILED FIN x failed ID not in flight", True),
        (b"E_REQ_FAILED REQ x failed", True),
        (b"E_TOUCH_FAILED TOUCH x failed", True),
        (b"E_INVALID cannot FIN in current state", False),
    ],
)
async def test_a_rejected_answer_is_reported(text, is_harmless):
    harness = SubscriptionHarness()
    harness.receive(error_frame(text))
    assert harness.owner.events == [(text.decode(), is_harmless)]


async def test_set_ready_sends_rdy():
    harness = SubscriptionHarness()
    harness.subscription.set_ready(25, 9.0)
    assert await harness.sent() == b"RDY 25\n"
    assert (harness.subscription.ready_count, harness.subscription.ready_at_s) == (25, 9.0)


# Handlers


async def test_a_function_is_called_at_once():
    handled = []
    harness = SubscriptionHarness(handled.append)
    harness.receive(message_frame(1), message_frame(2))
    assert [message.timestamp for message in handled] == [1, 2]
    assert await harness.sent() == b"FIN %016d\nFIN %016d\n" % (1, 2)


async def test_a_message_is_requeued_when_its_function_raises():
    def handler(message):
        raise ValueError("no")

    harness = SubscriptionHarness(handler)
    harness.receive(message_frame(1))
    assert await harness.sent() == b"REQ %016d 1500\n" % 1
    assert harness.owner.events == ["failed"]


async def test_a_message_that_the_handler_answered_is_not_answered_again():
    harness = SubscriptionHarness(lambda message: message.requeue(0, backoff=False))
    harness.receive(message_frame(1))
    assert await harness.sent() == b"REQ %016d 0\n" % 1


async def test_a_slow_function_yields_to_the_event_loop(monkeypatch):
    """After ``_TURN_S`` the remaining messages wait for the next loop turn."""
    handled = []
    now_s = [0.0]

    def handler(message):
        now_s[0] += 0.015
        handled.append(message.timestamp)

    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    harness = SubscriptionHarness(handler)
    harness.receive(*(message_frame(number) for number in range(5)))
    assert handled == [0, 1]
    await asyncio.sleep(0)
    assert handled == [0, 1, 2, 3]
    await asyncio.sleep(0)
    assert handled == [0, 1, 2, 3, 4]
    await harness.dispatcher.close(1.0)


async def test_a_coroutine_that_never_waits_needs_one_worker():
    tasks = set()

    async def handler(message):
        tasks.add(asyncio.current_task())

    harness = SubscriptionHarness(handler)
    harness.receive(*(message_frame(number) for number in range(100)))
    sent = await harness.sent() + await harness.sent()
    assert sent.count(b"FIN ") == 100
    assert len(tasks) == 1
    await harness.dispatcher.close(1.0)


async def test_waiting_coroutines_run_concurrently_up_to_the_limit():
    running = []
    go_on = asyncio.Event()

    async def handler(message):
        running.append(message.timestamp)
        await go_on.wait()

    harness = SubscriptionHarness(handler, concurrency=4)
    harness.receive(*(message_frame(number) for number in range(10)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert running == [0, 1, 2, 3]
    go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert sorted(running) == list(range(10))
    await harness.dispatcher.close(1.0)


async def test_a_message_with_too_many_attempts_is_not_handled():
    handled = []
    harness = SubscriptionHarness(handled.append, max_attempts=2)
    harness.receive(message_frame(1, 2), message_frame(2, 3))
    assert [message.timestamp for message in handled] == [1]
    assert (await harness.sent()).count(b"FIN ") == 2


async def test_a_cancelled_waiter_leaves_the_message_to_another():
    harness = SubscriptionHarness()
    first, second = asyncio.ensure_future(harness.dispatcher.next()), asyncio.ensure_future(harness.dispatcher.next())
    await asyncio.sleep(0)
    harness.receive(message_frame(1))
    first.cancel()
    assert (await second).timestamp == 1
    assert first.cancelled()


async def test_end_wakes_all_waiters():
    harness = SubscriptionHarness()
    reading = [asyncio.ensure_future(harness.dispatcher.next()) for _ in range(3)]
    await asyncio.sleep(0)
    harness.dispatcher.end()
    assert await asyncio.gather(*reading) == [None, None, None]


async def test_refuse_requeues_all_messages():
    harness = SubscriptionHarness()
    harness.receive(message_frame(1))
    harness.dispatcher.refuse()
    harness.receive(message_frame(2))
    assert await harness.sent() == b"REQ %016d 0\nREQ %016d 0\n" % (1, 2)
    assert harness.owner.events == []


@pytest.mark.parametrize("kind", ["function", "coroutine", "lambda"])
async def test_a_handler_that_is_cancelled_from_inside_has_failed(kind):
    """A handler that awaits a cancelled task ends with CancelledError. The next message must still be handled."""
    handled = []

    def handle(message):
        handled.append(message.timestamp)
        if message.timestamp == 1:
            raise asyncio.CancelledError

    async def handle_later(message):
        handle(message)

    handlers = {"function": handle, "coroutine": handle_later, "lambda": lambda message: handle_later(message)}
    harness = SubscriptionHarness(handlers[kind], concurrency=1)
    harness.receive(message_frame(1), message_frame(2))
    sent = await harness.sent() + await harness.sent()
    assert handled == [1, 2]
    assert sent == b"REQ %016d 1500\nFIN %016d\n" % (1, 2)
    assert harness.dispatcher.held() == []
    await harness.dispatcher.close(1.0)


async def test_a_cancelled_on_give_up_requeues_the_message():
    async def give_up(message):
        raise asyncio.CancelledError

    harness = SubscriptionHarness(lambda message: None, max_attempts=1, give_up=give_up)
    harness.receive(message_frame(1, 2))
    assert await harness.sent() + await harness.sent() == b"REQ %016d 3000\n" % 1
