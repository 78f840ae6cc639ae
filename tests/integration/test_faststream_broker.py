"""FastStream on a real nsqd: acknowledgement, dead letters, delays, plain messages, replies, shutdown and security."""

import asyncio
import json
import logging
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

faststream = pytest.importorskip("faststream", reason="pip install 'faststream[cli]'")

from faststream import AckPolicy  # noqa: E402
from faststream.exceptions import (  # noqa: E402
    AckMessage,
    FeatureNotSupportedException,
    IncorrectState,
    NackMessage,
    RejectMessage,
    SetupError,
)
from faststream.security import BaseSecurity, SASLPlaintext  # noqa: E402

from certificates import Authority  # noqa: E402
from daemons import IMPLEMENTATIONS, Fleet, wait_until  # noqa: E402
from nsqx import ConfigError, ConnectFailed, Consumer, InvalidMessage, InvalidName, Producer, PublishFailed  # noqa: E402
from nsqx.adapters.faststream import NSQBroker, NSQMessage, NSQRouter  # noqa: E402
from nsqx.testing import LocalBroker  # noqa: E402

TIMEOUT_S = 30.0
CHANNEL = "handlers"


@pytest.fixture(scope="module")
def nsqd() -> Iterator[LocalBroker]:
    """An nsqd that the tests share. Its clock is moved forward only by less than a message timeout."""
    with LocalBroker() as running:
        yield running


@pytest.fixture
def own_nsqd() -> Iterator[LocalBroker]:
    """An nsqd whose clock may be moved forward."""
    with LocalBroker() as running:
        yield running


def broker_of(nsqd: LocalBroker, **options: Any) -> NSQBroker:
    return NSQBroker(nsqd.tcp_address, **{"channel": CHANNEL, "logger": None, **options})


@asynccontextmanager
async def running(broker: NSQBroker) -> AsyncIterator[NSQBroker]:
    async with broker:
        await broker.start()
        yield broker


async def soon(waiter: Any) -> Any:
    async with asyncio.timeout(TIMEOUT_S):
        return await waiter


async def counts(nsqd: LocalBroker, topic: str, channel: str = CHANNEL, **expected: int) -> None:
    """Return when the stats of a channel have these values."""
    await asyncio.to_thread(nsqd.wait_for, topic, channel, TIMEOUT_S, **expected)


# Acknowledgement


def succeed() -> None: ...


def fail() -> None:
    raise ValueError("no")


def raise_(error: Exception) -> Any:
    def handler() -> None:
        raise error

    return handler


FINISHED = {"message_count": 1, "depth": 0, "in_flight_count": 0, "deferred_count": 0, "requeue_count": 0}
REQUEUED = {"message_count": 1, "depth": 0, "in_flight_count": 0, "deferred_count": 1, "requeue_count": 1}
IN_FLIGHT = {"message_count": 1, "depth": 0, "in_flight_count": 1, "deferred_count": 0, "requeue_count": 0}


@pytest.mark.parametrize(
    ("policy", "handler", "outcome"),
    [
        (None, succeed, FINISHED),
        (None, fail, REQUEUED),
        (None, raise_(NackMessage(delay="5s", backoff=False)), REQUEUED),
        (None, raise_(RejectMessage()), FINISHED),
        (None, raise_(AckMessage()), FINISHED),
        (AckPolicy.NACK_ON_ERROR, fail, REQUEUED),
        (AckPolicy.REJECT_ON_ERROR, fail, FINISHED),
        (AckPolicy.ACK, fail, FINISHED),
        (AckPolicy.ACK_FIRST, fail, FINISHED),
        (AckPolicy.MANUAL, succeed, IN_FLIGHT),
        (AckPolicy.MANUAL, fail, IN_FLIGHT),
    ],
)
@pytest.mark.parametrize("level", ["broker", "subscriber"])
async def test_the_policy_decides_what_happens_to_a_message(
    nsqd: LocalBroker, topic: str, policy: Any, handler: Any, outcome: dict[str, int], level: str
) -> None:
    chosen = {} if policy is None else {"ack_policy": policy}
    broker = broker_of(nsqd, graceful_timeout=0.1, **(chosen if level == "broker" else {}))
    called = asyncio.Event()

    @broker.subscriber(topic, **(chosen if level == "subscriber" else {}))
    async def handle() -> None:
        called.set()
        handler()

    async with running(broker):
        await broker.publish("a", topic)
        await soon(called.wait())
        await counts(nsqd, topic, **outcome)


async def test_a_message_is_answered_by_hand_and_once(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd, max_in_flight=5)
    received: asyncio.Queue[NSQMessage] = asyncio.Queue()

    @broker.subscriber(topic, ack_policy=AckPolicy.MANUAL)
    async def handle(message: NSQMessage) -> None:
        received.put_nowait(message)

    async with running(broker):
        await broker.publish_batch(1, 2, 3, topic=topic)
        messages = [await soon(received.get()) for _ in range(3)]
        await counts(nsqd, topic, in_flight_count=3)
        await messages[0].ack()
        await messages[1].nack(delay=600, backoff=False)
        await messages[2].touch()
        await messages[2].reject()
        await counts(nsqd, topic, in_flight_count=0, deferred_count=1, requeue_count=1)
        for message in messages:
            await message.ack()
            await message.nack()
            await message.reject()
            await message.touch()
    assert (messages[0].committed, messages[1].committed, messages[2].committed) == ("ACKED", "NACKED", "REJECTED")


async def test_a_requeued_message_is_delivered_again(own_nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(own_nsqd)
    received: asyncio.Queue[tuple[int, str, str, int]] = asyncio.Queue()

    @broker.subscriber(topic)
    async def handle(message: NSQMessage) -> None:
        received.put_nowait((message.attempts, message.message_id, message.correlation_id, message.timestamp_ns))
        if message.attempts == 1:
            raise NackMessage(delay=600, backoff=False)

    async with running(broker):
        await broker.publish("a", topic)
        first = await soon(received.get())
        await counts(own_nsqd, topic, deferred_count=1)
        own_nsqd.advance(600)
        second = await soon(received.get())
        assert (first[0], second[0]) == (1, 2)
        assert first[1:] == second[1:]
        await counts(own_nsqd, topic, depth=0, in_flight_count=0, deferred_count=0)


async def test_a_touched_message_does_not_time_out(own_nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(own_nsqd, msg_timeout="60s")
    started, moved, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @broker.subscriber(topic, max_workers=2)
    async def handle(body: str, message: NSQMessage) -> None:
        if body == "long":
            started.set()
            await moved.wait()
            await message.touch()
            ended.set()
            await asyncio.get_running_loop().create_future()

    async with running(broker):
        await broker.publish("long", topic)
        await soon(started.wait())
        own_nsqd.advance(50)
        moved.set()
        await soon(ended.wait())
        # The answer to this message follows TOUCH on the same connection.
        await broker.publish("short", topic)
        await counts(own_nsqd, topic, message_count=2, in_flight_count=1)
        own_nsqd.advance(50)
        assert own_nsqd.stats(topic, CHANNEL)["timeout_count"] == 0
        own_nsqd.advance(50)
        await counts(own_nsqd, topic, timeout_count=1)
        broker.config.broker_config.graceful_timeout = 0


# Dead letters


@pytest.mark.parametrize("reason", ["rejected", "last attempt"])
async def test_dead_letters_keep_their_body_and_headers(nsqd: LocalBroker, topic: str, reason: str) -> None:
    broker = broker_of(nsqd, max_attempts=3)
    router = NSQRouter("r_")
    attempts: list[int] = []
    buried: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()

    @router.subscriber(topic, dead_letter_topic=f"{topic}_dead")
    async def handle(message: NSQMessage) -> None:
        attempts.append(message.attempts)
        raise RejectMessage if reason == "rejected" else NackMessage(delay=0, backoff=False)

    @router.subscriber(f"{topic}_dead")
    async def bury(body: str, message: NSQMessage) -> None:
        buried.put_nowait((body, message.headers["tenant"], message.correlation_id))

    broker.include_router(router)
    async with running(broker):
        await broker.publish("a", f"r_{topic}", headers={"tenant": "acme"}, correlation_id="c-1")
        assert await soon(buried.get()) == ("a", "acme", "c-1")
        await counts(nsqd, f"r_{topic}", depth=0, in_flight_count=0, deferred_count=0)
    assert attempts == ([1] if reason == "rejected" else [1, 2, 3])


async def test_a_message_over_the_attempt_limit_is_a_dead_letter(own_nsqd: LocalBroker, topic: str) -> None:
    # Two deliveries to a consumer that dies without an answer.
    own_nsqd.create(topic, CHANNEL)
    own_nsqd.publish(topic, "a")
    for _ in range(2):
        async with Consumer(topic, CHANNEL, nsqd_tcp_addresses=own_nsqd.tcp_address) as consumer:
            await soon(anext(consumer))
            await consumer.stop(0)
        own_nsqd.advance(60)
        await counts(own_nsqd, topic, depth=1)
    broker = broker_of(own_nsqd)
    buried: asyncio.Queue[bytes] = asyncio.Queue()

    @broker.subscriber(topic, dead_letter_topic="dead", max_attempts=2)
    async def handle(body: str) -> None:
        raise AssertionError("it was delivered too often")

    @broker.subscriber("dead")
    async def bury(body: bytes) -> None:
        buried.put_nowait(body)

    async with running(broker):
        assert await soon(buried.get()) == b"a"
        await counts(own_nsqd, topic, depth=0, in_flight_count=0)


async def test_a_message_stays_if_the_dead_letter_topic_is_out_of_reach(topic: str) -> None:
    with LocalBroker(lookupd=True) as nsqd:
        nsqd.create(topic, CHANNEL)
        nsqd.publish(topic, "a")
        broker = NSQBroker(
            "127.0.0.1:1",
            lookupd_http_addresses=nsqd.lookupd_http_address,
            publish_timeout="50ms",
            start_timeout=1,
            channel=CHANNEL,
            logger=None,
        )

        @broker.subscriber(topic, dead_letter_topic="dead")
        async def handle() -> None:
            raise RejectMessage

        async with running(broker):
            await counts(nsqd, topic, deferred_count=1, requeue_count=1)


async def test_an_invalid_dead_letter_topic_is_refused_at_the_start(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd)

    @broker.subscriber(topic, dead_letter_topic="dead letters")
    async def handle() -> None: ...

    with pytest.raises(InvalidName, match="invalid topic name 'dead letters'"):
        async with running(broker):
            pass


# Publishing


async def test_a_delayed_message_is_delivered_when_it_is_due(own_nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(own_nsqd)
    publisher = broker.publisher(topic, delay="10m")
    received: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber(topic)
    async def handle(body: str) -> None:
        received.put_nowait(body)

    async with running(broker):
        await broker.publish("a", topic, delay=600)
        await publisher.publish("b")
        await counts(own_nsqd, topic, deferred_count=2)
        assert received.empty()
        own_nsqd.advance(600)
        assert sorted([await soon(received.get()), await soon(received.get())]) == ["a", "b"]


@pytest.mark.parametrize("level", ["broker", "publisher", "publish"])
async def test_raw_messages_are_those_of_other_clients(nsqd: LocalBroker, topic: str, level: str) -> None:
    broker = broker_of(nsqd, raw=level == "broker")
    publisher = broker.publisher(topic, raw=True if level == "publisher" else None)
    raw = True if level == "publish" else None
    nsqd.create(topic, "others")
    async with running(broker):
        await publisher.publish({"a": 1}, raw=raw, headers={"lost": "yes"})
        await publisher.publish_batch("text", b"\xff\x00", raw=raw)
        async with Consumer(topic, "others", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=3) as consumer:
            bodies = []
            for _ in range(3):
                message = await soon(anext(consumer))
                bodies.append(message.body)
                message.finish()
        assert sorted(bodies) == sorted([b'{"a":1}', b"text", b"\xff\x00"])
        with pytest.raises(FeatureNotSupportedException, match="a raw message has no headers"):
            await publisher.publish("a", raw=raw, reply_to="replies")
        with pytest.raises(InvalidMessage, match="the body is empty"):
            await publisher.publish(None, raw=raw)


async def test_messages_of_other_clients_are_received(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd)
    received: asyncio.Queue[Any] = asyncio.Queue()

    @broker.subscriber(topic)
    async def handle(body: Any, message: NSQMessage) -> None:
        received.put_nowait((body, message.headers, message.correlation_id == message.message_id))

    bodies: dict[bytes, Any] = {b'{"a": 1}': {"a": 1}, b"text": b"text", b"\xff": b"\xff", b"12": 12}
    async with running(broker), Producer(nsqd.tcp_address) as producer:
        for body, value in bodies.items():
            await producer.publish(topic, body)
            assert await soon(received.get()) == (value, {}, True)


async def test_other_clients_can_write_an_envelope(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd)

    @broker.subscriber(topic)
    async def handle(body: str) -> str:
        return body.upper()

    nsqd.create("replies", "others")
    async with running(broker):
        envelope = {"data": "hello", "faststream": 1, "headers": {"reply_to": "replies", "correlation_id": "7"}}
        nsqd.publish(topic, json.dumps(envelope))
        nsqd.publish(topic, json.dumps({**envelope, "headers": {"reply_to": None, "correlation_id": None}}))
        await counts(nsqd, "replies", "others", depth=1)
        await counts(nsqd, topic, message_count=2, depth=0, in_flight_count=0, requeue_count=0)
    (reply,) = nsqd.bodies("replies", "others")
    headers = {"content-type": "text/plain", "correlation_id": "7"}
    assert json.loads(reply) == {"faststream": 1, "headers": headers, "data": "HELLO"}


async def test_a_reply_to_an_invalid_topic_is_left_out(
    nsqd: LocalBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_of(nsqd, logger=logging.getLogger("shop"))

    @broker.subscriber(topic)
    async def handle(body: str) -> str:
        return body

    async with running(broker):
        await broker.publish("a", topic, reply_to="not a topic")
        await counts(nsqd, topic, message_count=1, depth=0, in_flight_count=0, requeue_count=0)
    assert "invalid topic name 'not a topic'" in caplog.text


async def test_a_publish_that_fails_is_reported(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd)
    with pytest.raises(IncorrectState, match="connect"):
        await broker.publish("a", topic)
    with pytest.raises(IncorrectState, match="connect"):
        await broker.request("a", topic)
    async with broker:
        with pytest.raises(InvalidName, match="invalid topic name"):
            await broker.publish("a", "not a topic")
        with pytest.raises(InvalidMessage, match="the delay is negative"):
            await broker.publish("a", topic, delay=-1)
    lost = NSQBroker("127.0.0.1:1", publish_timeout="50ms", start_timeout=1, logger=None)
    async with lost:
        with pytest.raises(PublishFailed):
            await lost.publish("a", topic)


# Reading by hand


async def test_a_subscriber_is_read_by_hand(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd)
    subscriber = broker.subscriber(topic)
    async with running(broker):
        assert await subscriber.get_one(timeout=0.01) is None
        await broker.publish_batch("a", "b", "c", topic=topic)
        first = await subscriber.get_one(timeout=TIMEOUT_S)
        assert first is not None
        await first.ack()
        values = [await first.decode()]
        async with asyncio.timeout(TIMEOUT_S):
            async for message in subscriber:
                values.append(await message.decode())
                if len(values) == 3:
                    await message.ack()
                    break
        assert sorted(values) == ["a", "b", "c"]
        await counts(nsqd, topic, depth=0, in_flight_count=0)
        await broker.stop()
        assert await subscriber.get_one(timeout=0.01) is None


async def test_a_message_read_by_hand_can_be_acknowledged_first(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd)
    subscriber = broker.subscriber(topic, ack_policy=AckPolicy.ACK_FIRST)
    async with running(broker):
        await subscriber.get_one(timeout=0.01)
        await broker.publish("a", topic)
        message = await subscriber.get_one(timeout=TIMEOUT_S)
        assert message is not None
        await counts(nsqd, topic, depth=0, in_flight_count=0)
        await message.ack()


# Requests


async def test_many_requests_at_once_get_their_own_replies(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd)

    @broker.subscriber(topic, max_workers=10)
    async def handle(number: int) -> int:
        return 2 * number

    async with running(broker):
        requests = [broker.request(number, topic, timeout=TIMEOUT_S) for number in range(50)]
        replies = await asyncio.gather(*requests)
        assert [await reply.decode() for reply in replies] == list(range(0, 100, 2))
        # Equal correlation ids of requests under way share their replies.
        same = [broker.request(number, topic, timeout=TIMEOUT_S, correlation_id="same") for number in (1, 2)]
        assert sorted([await reply.decode() for reply in await asyncio.gather(*same)]) == [2, 4]
        found = [name for name in topics(nsqd) if name.startswith("faststream-reply-")]
        assert len(found) == 1
    await asyncio.to_thread(wait_until, lambda: not set(found) & set(topics(nsqd)), "the reply topic is removed")


def topics(nsqd: LocalBroker) -> list[str]:
    return [each["topic_name"] for each in nsqd._get("/stats", format="json")["topics"] or []]


async def test_a_late_reply_is_dropped(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd)
    go_on = asyncio.Event()

    @broker.subscriber(topic, max_workers=2)
    async def handle(body: str) -> str:
        if body == "slow":
            await go_on.wait()
        return body

    async with running(broker):
        with pytest.raises(TimeoutError):
            await broker.request("slow", topic, timeout=0.05)
        go_on.set()
        reply = await broker.request("fast", topic, timeout=TIMEOUT_S)
        assert await reply.decode() == "fast"
        await counts(nsqd, topic, depth=0, in_flight_count=0)


async def test_a_request_works_after_one_that_could_not_wait_for_the_start(own_nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(own_nsqd)

    @broker.subscriber(topic)
    async def handle(body: str) -> str:
        return body.upper()

    async with running(broker):
        with own_nsqd.frozen(), pytest.raises(TimeoutError):
            await broker.request("a", topic, timeout=0.05)
        reply = await broker.request("b", topic, timeout=TIMEOUT_S)
        assert await reply.decode() == "B"
        with own_nsqd.frozen(), pytest.raises(TimeoutError):
            await broker.request("a", topic, timeout=0.05)


async def test_a_request_without_nsqd_says_so() -> None:
    async with NSQBroker("127.0.0.1:1", start_timeout=1, logger=None) as broker:
        for _ in range(2):
            with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
                await broker.request("a", "topic", timeout=TIMEOUT_S)


async def test_requests_and_replies_may_pass_through_different_nsqds(fleet: Fleet, topic: str) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    here, there = (fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}") for _ in range(2))
    requester = NSQBroker(here.tcp_address, lookupd_http_addresses=lookupd.http_address, logger=None)
    responder = NSQBroker(
        there.tcp_address,
        lookupd_http_addresses=lookupd.http_address,
        lookupd_poll_interval="50ms",
        channel=CHANNEL,
        logger=None,
    )

    @responder.subscriber(topic)
    async def handle(body: str) -> str:
        return body.upper()

    async with running(responder), running(requester):
        reply = await requester.request("a", topic, timeout=TIMEOUT_S)
        assert await reply.decode() == "A"


# Start and stop


async def test_stop_waits_for_handlers_and_returns_the_rest(nsqd: LocalBroker, topic: str) -> None:
    broker = broker_of(nsqd)
    started, go_on = asyncio.Event(), asyncio.Event()
    handled: list[str] = []

    @broker.subscriber(topic, max_in_flight=10)
    async def handle(body: str) -> None:
        handled.append(body)
        started.set()
        await go_on.wait()

    await broker.start()
    await broker.publish_batch("a", "b", "c", topic=topic)
    await soon(started.wait())
    await counts(nsqd, topic, in_flight_count=3)
    stopping = asyncio.create_task(broker.stop())
    await counts(nsqd, topic, client_count=1, in_flight_count=3)
    assert not stopping.done()
    go_on.set()
    await soon(stopping)
    await counts(nsqd, topic, depth=2, in_flight_count=0, client_count=0)
    assert handled == ["a"]
    # The same broker starts again.
    await broker.start()
    await counts(nsqd, topic, depth=0, in_flight_count=0)
    await broker.stop()
    assert sorted(handled) == ["a", "b", "c"]


@pytest.mark.parametrize("timeout_s", [None, 0.05])
async def test_stop_cancels_handlers_that_take_too_long(
    nsqd: LocalBroker, topic: str, timeout_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_of(nsqd, graceful_timeout=timeout_s)
    started, cancelled = asyncio.Event(), asyncio.Event()

    @broker.subscriber(topic)
    async def handle() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    await broker.start()
    await broker.publish("a", topic)
    await soon(started.wait())
    await soon(broker.stop())
    assert cancelled.is_set()
    await counts(nsqd, topic, depth=1, in_flight_count=0)
    assert "stopped with unanswered messages: 1" in caplog.text


async def test_a_broker_that_has_not_started_is_stopped(nsqd: LocalBroker) -> None:
    broker = broker_of(nsqd)
    assert not await broker.ping()
    await broker.stop()
    async with broker:
        assert await broker.ping(timeout=TIMEOUT_S)


async def test_ping_fails_while_nsqd_does_not_answer(own_nsqd: LocalBroker) -> None:
    broker = broker_of(own_nsqd)
    async with broker:
        assert await broker.ping(timeout=TIMEOUT_S)
        with own_nsqd.frozen():
            assert not await broker.ping(timeout=0.1)
        assert await broker.ping(timeout=TIMEOUT_S)
        own_nsqd.stop()
        assert not await broker.ping(timeout=TIMEOUT_S)


async def test_nsqds_are_found_by_nsqlookupd(topic: str) -> None:
    with LocalBroker(lookupd=True) as nsqd:
        nsqd.create(topic, CHANNEL)
        broker = NSQBroker(lookupd_http_addresses=[nsqd.lookupd_http_address], channel=CHANNEL, logger=None)
        received: asyncio.Queue[str] = asyncio.Queue()

        @broker.subscriber(topic)
        async def handle(body: str) -> str:
            received.put_nowait(body)
            return body.upper()

        async with running(broker):
            assert await broker.ping(timeout=TIMEOUT_S)
            reply = await broker.request("a", topic, timeout=TIMEOUT_S)
            assert (await soon(received.get()), await reply.decode()) == ("a", "A")
        assert broker.specification.url == [f"http://{nsqd.lookupd_http_address}"]


async def test_a_start_without_nsqd_fails_if_a_connection_is_required() -> None:
    broker = NSQBroker("127.0.0.1:1", require_connection=True, logger=None)
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
        await broker.start()


async def test_security_is_tls(fleet: Fleet, tmp_path: Path, topic: str) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("server")
    nsqd = fleet.nsqd("nsqx", f"--tls-cert={server.cert}", f"--tls-key={server.key}", "--tls-required=true")
    context = ssl.create_default_context(cafile=str(authority.cert))
    broker = NSQBroker(nsqd.tcp_address, security=BaseSecurity(context), channel=CHANNEL, logger=None)
    received: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber(topic)
    async def handle(body: str) -> None:
        received.put_nowait(body)

    async with running(broker):
        await broker.publish("a", topic)
        assert await soon(received.get()) == "a"
        assert await broker.ping(timeout=TIMEOUT_S)
    with pytest.raises(SetupError, match="SASLPlaintext is not possible with NSQ: use BaseSecurity"):
        NSQBroker(security=SASLPlaintext("user", "password"))


@pytest.mark.parametrize(
    ("create", "complaint"),
    [
        (lambda: NSQBroker("nsq://127.0.0.1:4150"), "use host:port without nsq://"),
        (lambda: NSQBroker(max_in_flght=3), "invalid option max_in_flght: did you mean max_in_flight"),
        (lambda: NSQBroker().subscriber("a", "b", max_workers=0), "option max_workers: must be an integer of at least"),
        (lambda: NSQRouter().subscriber("a", "b", max_in_flight=-1), "option max_in_flight: -1 is out of range"),
    ],
)
def test_invalid_arguments_are_refused_at_once(create: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        create()


def test_the_import_names_the_extra() -> None:
    program = "import sys; sys.modules['faststream'] = None; import nsqx.adapters.faststream"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: nsqx.adapters.faststream needs faststream: pip install 'nsqx[faststream]'"


# Several nsqds, and Go's


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
async def test_a_whole_application_on_both_implementations(fleet: Fleet, topic: str, implementation: str) -> None:
    nsqds = [fleet.nsqd(implementation) for _ in range(2)]
    broker = NSQBroker([each.tcp_address for each in nsqds], max_in_flight=10, channel=CHANNEL, logger=None)
    done: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber(topic, max_workers=4)
    @broker.publisher(f"{topic}_2", delay="10ms")
    async def handle(body: str, message: NSQMessage) -> str:
        if message.attempts == 1 and body == "twice":
            raise NackMessage(delay=0, backoff=False)
        return f"{body} {message.attempts}"

    @broker.subscriber(f"{topic}_2")
    async def last(body: str) -> None:
        done.put_nowait(body)

    async with running(broker):
        await broker.publish("twice", topic)
        await broker.publish_batch("b", "c", topic=topic)
        found = sorted([await soon(done.get()) for _ in range(3)])
        assert found == ["b 1", "c 1", "twice 2"]
        reply = await broker.request("d", topic, timeout=TIMEOUT_S)
        assert await reply.decode() == "d 1"
        await soon(done.get())
        for nsqd in nsqds:

            def is_finished(nsqd: Any = nsqd) -> bool:
                stats = nsqd.channel_stats(topic, CHANNEL)
                return all(stats[name] == 0 for name in ("depth", "in_flight_count", "deferred_count"))

            await asyncio.to_thread(wait_until, is_finished, "everything is finished", TIMEOUT_S)
