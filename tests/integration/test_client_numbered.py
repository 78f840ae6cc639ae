"""Producers with a name: numbers, order, retries with the same number, failures, and nsqd killed again and again."""

import asyncio
import json
import struct
import time

import pytest

import nsqx.client.blocking
from daemons import Fleet, free_port, start_nsqd
from eventually import until
from nsqx import Consumer, Producer
from nsqx.errors import (
    ClientClosed,
    ConfigError,
    ConnectFailed,
    InvalidMessage,
    InvalidName,
    NotConnected,
    PublishFailed,
    PublishTimedOut,
)
from scripted_nsqd import scripted_nsqd

GRANTED = {"nsqx": {"xpub": True}}


@pytest.fixture(scope="module")
def nsqd():
    with start_nsqd("nsqx", "--store=log", "--store-rule=classic*=classic", "--max-msg-size=1000") as daemon:
        yield daemon


def options_of(body):
    (size,) = struct.unpack_from(">H", body)
    return json.loads(body[2 : 2 + size])


def bodies_of(body):
    (size,) = struct.unpack_from(">H", body)
    bodies, position = [], 2 + size + 4
    while position < len(body):
        (length,) = struct.unpack_from(">i", body, position)
        bodies.append(body[position + 4 : position + 4 + length])
        position += 4 + length
    return bodies


class ScriptedLog:
    """Stores what XPUB publishes, as nsqd does. ``script`` decides what happens to each command."""

    def __init__(self):
        self.received = []  # numbers, in the order of arrival
        self.stored = {}
        self.connection_count = 0

    def store(self, body):
        """Store a publish unless its number is too low; return the answer."""
        seq = options_of(body)["seq"]
        if seq <= max(self.stored, default=0):
            return b'{"count":1,"duplicate":true}'
        self.stored[seq] = bodies_of(body)
        return b'{"offset":%d,"count":1}' % len(self.stored)

    async def serve(self, conversation):
        self.connection_count += 1
        await conversation.greet(**GRANTED)
        assert conversation.identify["nsqx"] is True
        while True:
            words = await conversation.command()
            if words[0] == b"XPUB":
                self.received.append(options_of(words[2])["seq"])
                await self.act(conversation, words[2])

    async def act(self, conversation, body):
        conversation.respond(self.store(body))


def log_of(daemon, topic):
    (found,) = daemon.stats(topic=topic)["topics"]
    return found["log"]


async def consumed(daemon, topic, count):
    found = []
    async with Consumer(topic, "check", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=1000) as consumer:
        while len(found) < count:
            message = await anext(consumer)
            found.append(message.body)
            message.finish()
    return found


async def test_every_publish_method_is_numbered(nsqd, topic):
    before = time.time_ns() // 1000
    async with Producer(nsqd.tcp_address, producer_name="billing-1", max_batch_bytes=30) as producer:
        assert producer.connected_addresses == [nsqd.tcp_address]
        await producer.publish(topic, b"one")
        await producer.publish_many(topic, [b"two", b"three"])
        await producer.publish_many(topic, [b"x" * 20, b"y" * 20, b"z"])  # two commands
        await producer.publish_deferred(topic, b"later", "20ms")
        await producer.publish_many(topic, [])
        await producer.drain()
        assert producer.outstanding == 0
    log = log_of(nsqd, topic)
    assert (log["end"], log["producers"], log["duplicates"]) == (7, 1, 0)
    answer = nsqd.request("POST", "/pub", b"x", query={"topic": topic, "producer": "billing-1", "seq": str(before)})
    assert answer.headers["x-nsq-duplicate"] == "true"
    assert sorted(await consumed(nsqd, topic, 7)) == sorted(
        [b"one", b"two", b"three", b"x" * 20, b"y" * 20, b"z", b"later"]
    )


async def test_a_program_can_number_its_messages(nsqd, topic):
    for _ in range(2):
        async with Producer(nsqd.tcp_address, producer_name="rows") as producer:
            for row in (10, 20, 30):
                await producer.publish(topic, b"row %d" % row, seq=row)
            await producer.publish_many(topic, [b"40", b"41"], seq=40)
            await producer.publish_deferred(topic, b"50", "1ms", seq=50)
    log = log_of(nsqd, topic)
    assert (log["duplicates"], log["producers"]) == (5, 1)
    assert sorted(await consumed(nsqd, topic, 6)) == [b"40", b"41", b"50", b"row 10", b"row 20", b"row 30"]


async def test_a_number_that_is_not_above_the_others_is_refused(nsqd, topic):
    async with Producer(nsqd.tcp_address, producer_name="p", first_seq=100) as producer:
        await producer.publish(topic, b"x")
        await producer.publish(topic, b"x", seq=200)
        for seq, text in (
            (200, "seq 200 is not above 200, which was published before"),
            (0, "seq 0 is not an integer from 1 to"),
            (True, "seq True is not an integer from 1 to"),
        ):
            with pytest.raises(InvalidMessage, match=text):
                producer.publish(topic, b"x", seq=seq)
        await producer.publish(topic, b"x")
        await producer.publish(topic + ".other", b"x", seq=1)
        with pytest.raises(InvalidMessage, match="do not fit into one publish with a number"):
            producer.publish_many(topic, [b"x"] * 20_001, seq=300)
        with pytest.raises(InvalidMessage, match="is empty"):
            producer.publish(topic, b"")
        with pytest.raises(InvalidName):
            producer.publish("bad name", b"x")
    with pytest.raises(ClientClosed):
        producer.publish(topic, b"x")
    assert log_of(nsqd, topic)["end"] == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"producer_name": "a b"}, "producer_name 'a b': use 1 to 64 of"),
        ({"producer_name": "p", "nsqd_tcp_addresses": ["a:1", "b:1"]}, "needs exactly one address"),
        ({"producer_name": "p", "lookupd_http_addresses": "a:1"}, "only the nsqd that has stored a message knows"),
        ({"producer_name": "p", "batching": True}, "does not work with batching"),
        ({"producer_name": "p", "first_seq": 0}, "first_seq 0: must be an integer from 1 to"),
        ({"first_seq": 5}, "first_seq needs a producer_name"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        Producer(**{"nsqd_tcp_addresses": "a:1", **arguments})


async def test_a_number_needs_a_name(nsqd, topic):
    async with Producer(nsqd.tcp_address) as producer:
        for publish in (
            lambda: producer.publish(topic, b"x", seq=1),
            lambda: producer.publish_many(topic, [b"x"], seq=1),
            lambda: producer.publish_deferred(topic, b"x", 1, seq=1),
        ):
            with pytest.raises(ConfigError, match="seq needs a producer with a producer_name"):
                publish()


@pytest.mark.interop
async def test_gos_nsqd_is_refused_at_connect(fleet: Fleet, topic):
    daemon = fleet.nsqd("go")
    with pytest.raises(ConnectFailed, match="this nsqd does not know XPUB, which producer_name needs"):
        await Producer(daemon.tcp_address, producer_name="p").start()
    producer = Producer(daemon.tcp_address, producer_name="p", max_publish_attempts=1)
    with pytest.raises(NotConnected, match="does not know XPUB"):
        await producer.publish(topic, b"x")
    await producer.close()


async def test_what_was_unanswered_is_sent_again_in_order_with_the_same_numbers(topic):
    log = ScriptedLog()

    async def act(conversation, body):
        answer = log.store(body)
        if len(log.received) in (3, 5):
            conversation.reset()  # stored, but never answered
            raise ConnectionError
        conversation.respond(answer)

    log.act = act
    async with (
        scripted_nsqd(log.serve) as address,
        Producer(address, producer_name="p", first_seq=1, retry_delay=0.01) as producer,
    ):
        await asyncio.gather(*(producer.publish(topic, b"%d" % number) for number in range(1, 7)))
    assert log.connection_count == 3
    assert log.received[:3] == [1, 2, 3]
    for part in (log.received[3:5], log.received[5:]):
        assert part == list(range(part[0], part[0] + len(part)))
    assert log.stored == {number: [b"%d" % number] for number in range(1, 7)}


async def test_a_failed_write_is_retried_after_a_delay(topic):
    log = ScriptedLog()
    times = []

    async def act(conversation, body):
        times.append(time.monotonic())
        if len(log.received) <= 2:
            conversation.refuse(b"E_XPUB_FAILED XPUB failed No space left on device")
            raise ConnectionError
        conversation.respond(log.store(body))

    log.act = act
    async with (
        scripted_nsqd(log.serve) as address,
        Producer(address, producer_name="p", first_seq=1, retry_delay=0.1) as producer,
    ):
        await asyncio.gather(*(producer.publish(topic, b"x") for _ in range(3)))
    assert [number for number in log.received if number == 1] == [1, 1, 1]
    assert sorted(log.stored) == [1, 2, 3]
    assert times[2] - times[0] > 0.1


async def test_all_later_publishes_fail_with_one_that_fails(nsqd, topic):
    async with Producer(nsqd.tcp_address, producer_name="p", first_seq=1) as producer:
        bodies = [b"1", b"2", b"x" * 1001, b"4", b"5"]
        outcomes = await asyncio.gather(*(producer.publish(topic, one) for one in bodies), return_exceptions=True)
        assert outcomes[:2] == [None, None]
        assert [(type(one), one.seq, one.may_be_published) for one in outcomes[2:]] == [
            (PublishFailed, 3, False),
            (PublishFailed, 4, False),
            (PublishFailed, 5, False),
        ]
        assert "E_BAD_BODY XPUB message too big 1001 > 1000" in str(outcomes[2])
        assert "number 3 of this producer failed before" in str(outcomes[3])
        # The numbers can be used again, in order.
        await producer.publish(topic, b"4", seq=4)
        await producer.publish(topic, b"6")
    assert await consumed(nsqd, topic, 4) == [b"1", b"2", b"4", b"6"]


async def test_a_classic_topic_is_refused_without_a_retry(nsqd):
    async with Producer(nsqd.tcp_address, producer_name="p", retry_delay=10) as producer:
        with pytest.raises(PublishFailed, match="after 1 attempt: .*producer needs a log topic") as caught:
            await producer.publish("classic", b"x")
        assert not caught.value.may_be_published


async def test_a_publish_that_timed_out_can_be_repeated_with_its_number(topic):
    log = ScriptedLog()

    async def act(conversation, body):
        answer = log.store(body)
        if log.connection_count > 1:
            conversation.respond(answer)

    log.act = act
    async with scripted_nsqd(log.serve) as address, Producer(address, producer_name="p", first_seq=7) as producer:
        first = producer.publish(topic, b"1", timeout=0.2)
        second = producer.publish(topic, b"2", timeout=30)
        with pytest.raises(PublishTimedOut, match="nsqd did not answer; the message may have been published") as caught:
            await first
        assert (caught.value.seq, caught.value.may_be_published) == (7, True)
        with pytest.raises(PublishFailed, match="number 7 of this producer failed before; the message may") as later:
            await second
        assert (later.value.seq, later.value.__cause__) == (8, caught.value)
        await producer.publish(topic, b"1", seq=caught.value.seq)
        await producer.publish(topic, b"2", seq=later.value.seq)
        await producer.publish(topic, b"3")
    assert log.stored == {7: [b"1"], 8: [b"2"], 9: [b"3"]}
    assert log.received == [7, 8, 7, 8, 9]


async def test_an_unexpected_duplicate_is_an_error(nsqd, topic):
    async with Producer(nsqd.tcp_address, producer_name="p", first_seq=100) as producer:
        await producer.publish(topic, b"x")
    async with Producer(nsqd.tcp_address, producer_name="p", first_seq=50) as producer:
        text = "nsqd has stored number 50 of the producer p before: another program uses this name, or the clock"
        with pytest.raises(PublishFailed, match=text) as caught:
            await producer.publish(topic, b"y")
        assert (caught.value.seq, caught.value.may_be_published) == (50, False)


async def test_a_publish_without_a_connection_fails_and_says_why(topic):
    address = f"127.0.0.1:{free_port()}"
    producer = Producer(address, producer_name="p", first_seq=1, max_publish_attempts=2, retry_delay=0.01)
    outcomes = await asyncio.gather(*(producer.publish(topic, b"x") for _ in range(2)), return_exceptions=True)
    assert [(type(one), one.seq) for one in outcomes] == [(NotConnected, 1), (PublishFailed, 2)]
    late = producer.publish(topic, b"x", timeout=0.05)
    with pytest.raises((PublishTimedOut, NotConnected)) as caught:
        await late
    assert (caught.value.seq, caught.value.may_be_published) == (3, False)
    await producer.close()
    with pytest.raises(ConnectFailed):
        await Producer(address, producer_name="p", require_connection=True).start()


async def test_close_fails_what_is_unanswered(topic):
    log = ScriptedLog()

    async def act(conversation, body):
        pass

    log.act = act
    async with scripted_nsqd(log.serve) as address:
        producer = Producer(address, producer_name="p", max_outstanding=1)
        publishes = [producer.publish(topic, b"x") for _ in range(2)]
        draining = asyncio.create_task(producer.drain())
        await until(lambda: log.received, "the first publish has arrived")
        assert (producer.outstanding, draining.done()) == (2, False)
        await producer.close(0)
        outcomes = await asyncio.gather(*publishes, return_exceptions=True)
        await draining
    assert [(type(one), one.may_be_published) for one in outcomes] == [(PublishFailed, True), (PublishFailed, False)]
    assert "the producer was closed" in str(outcomes[0])


async def test_a_cancelled_publish_that_was_not_sent_is_not_published(topic):
    log = ScriptedLog()
    go_on = asyncio.Event()

    async def act(conversation, body):
        await go_on.wait()
        conversation.respond(log.store(body))

    log.act = act
    async with (
        scripted_nsqd(log.serve) as address,
        Producer(address, producer_name="p", first_seq=1, max_outstanding=1) as producer,
    ):
        publishes = [producer.publish(topic, b"x") for _ in range(3)]
        await until(lambda: log.received, "the first publish has arrived")
        publishes[1].cancel()
        go_on.set()
        await asyncio.gather(publishes[0], publishes[2])
    assert log.received == [1, 3]


@pytest.mark.parametrize("answer", [b"OK", b"{}", b"nonsense"])
async def test_an_answer_that_is_none_ends_the_connection(topic, answer):
    log = ScriptedLog()

    async def act(conversation, body):
        stored = log.store(body)
        conversation.respond(answer if log.connection_count == 1 else stored)

    log.act = act
    async with scripted_nsqd(log.serve) as address, Producer(address, producer_name="p", first_seq=1) as producer:
        await producer.publish(topic, b"x")
    assert (log.connection_count, log.received) == (2, [1, 1])


def test_the_blocking_producer(nsqd, topic):
    for _ in range(2):
        with nsqx.client.blocking.Producer(nsqd.tcp_address, producer_name="script") as producer:
            producer.publish(topic, b"1", seq=1)
            producer.publish_many(topic, [b"2", b"3"], seq=2)
            producer.publish_deferred(topic, b"4", "1ms", seq=4)
            producer.submit(topic, b"5", seq=5).result(10)
            with pytest.raises(InvalidMessage):
                producer.publish(topic, b"5", seq=5)
    assert log_of(nsqd, topic)["duplicates"] == 4
    assert sorted(asyncio.run(consumed(nsqd, topic, 5))) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("durability", ["fsync", "write"])
async def test_nothing_is_lost_or_stored_twice_while_nsqd_is_killed(tmp_path, durability):
    port = free_port()
    flags = ("--store=log", f"--durability={durability}", f"--tcp-address=127.0.0.1:{port}", "--commit-bytes=1048576")
    daemon = start_nsqd("nsqx", *flags, data_path=tmp_path)
    is_over = False
    acknowledged = []

    async def publish(producer, number):
        # Several publishes are unanswered at any time, single ones and batches.
        if number % 5:
            await producer.publish("t", b"%d" % number)
        else:
            await producer.publish_many("t", [b"%d.%d" % (number, index) for index in range(20)])
        acknowledged.append(number)

    async def keep_publishing(producer):
        number = 0
        while not is_over or number % 8:
            await asyncio.gather(*(publish(producer, number + index) for index in range(8)))
            number += 8

    try:
        async with Producer(
            f"127.0.0.1:{port}", producer_name="p", retry_delay=0.05, publish_timeout=60, max_publish_attempts=1000
        ) as producer:
            publishing = asyncio.create_task(keep_publishing(producer))
            for _ in range(4):
                count = len(acknowledged)
                await until(lambda count=count: len(acknowledged) > count + 100, "messages are published", 30)
                daemon.kill()
                daemon = await asyncio.to_thread(start_nsqd, "nsqx", *flags, data_path=tmp_path)
            is_over = True
            await publishing
        expected = [
            body
            for number in sorted(acknowledged)
            for body in ([b"%d" % number] if number % 5 else [b"%d.%d" % (number, index) for index in range(20)])
        ]
        assert await consumed(daemon, "t", len(expected)) == expected
        assert log_of(daemon, "t")["end"] == len(expected)
    finally:
        daemon.kill()
        daemon.close()
