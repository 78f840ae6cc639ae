"""Publishing and consuming, as transcripts."""

import struct

import pytest
from conversation import Talk

from broker_bench import MINUTE, SECOND
from nsqx.nsqd.client import CLOSING, INIT, SUBSCRIBED
from rawclient import (
    ERROR,
    OK,
    RESPONSE,
    Frame,
    Message,
    cls,
    dpub,
    fin,
    identify,
    mpub,
    nop,
    pub,
    rdy,
    req,
    sized,
    sub,
    touch,
)

CLOSE_WAIT = Frame(RESPONSE, b"CLOSE_WAIT")


def bodies(frames):
    assert all(frame.type == 2 for frame in frames), frames
    return [Message.decode(frame.data).body for frame in frames]


@pytest.fixture
def consumer(make_talk):
    talk = make_talk()
    assert talk.say(sub("t", "c")) == [OK]
    return talk


# Publishing


def test_publishing_makes_the_topic_and_counts(talk):
    assert talk.say(pub("t", b"one")) == [OK]
    assert talk.say(mpub("t", [b"two", b"three"])) == [OK]
    assert talk.say(dpub("t", 0, b"four")) == [OK]
    topic = talk.bench.broker.topics["t"]
    assert (topic.depth, topic.message_count, topic.message_bytes) == (4, 4, 15)
    assert talk.client.pub_counts == {"t": 4}
    assert talk.client.state == INIT


def test_answers_come_in_order_for_commands_sent_together(talk):
    assert talk.say(pub("t", b"1") * 3 + nop() + mpub("t", [b"2"]) + b"OOPS\n") == [
        *[OK] * 4,
        Frame(ERROR, b"E_INVALID invalid command OOPS"),
    ]


def test_bodies_may_hold_anything(talk, consumer):
    body = b"FIN 0123456789abcdef\n\x00\xff\r\n"
    consumer.say(rdy(2))
    assert talk.say(pub("t", body) + mpub("t", [body])) == [OK, OK]
    assert bodies(consumer.listen()) == [body, body]


def test_the_largest_body(make_bench):
    bench = make_bench(max_msg_size=100, max_body_size=200)
    talk = Talk(bench)
    assert talk.say(pub("t", b"x" * 100)) == [OK]
    assert talk.say(mpub("t", [b"x" * 100])) == [OK]
    assert talk.say(b"MPUB t\n" + struct.pack(">i", 200) + struct.pack(">i", 39) + sized(b"x") * 39) == [OK]


def test_a_batch_ends_where_its_count_says_and_not_where_its_size_does(talk):
    said = (
        b"MPUB t\n" + struct.pack(">i", 1) + struct.pack(">i", 2) + sized(b"one") + sized(b"two") + pub("t", b"three")
    )
    assert talk.say(said) == [OK, OK]
    assert talk.bench.broker.topics["t"].depth == 3


def test_a_batch_with_a_bad_message_publishes_nothing_and_leaves_the_topic(talk):
    said = b"MPUB t\n" + struct.pack(">i", 50) + struct.pack(">i", 2) + sized(b"good") + struct.pack(">i", 0)
    assert talk.say(said) == [Frame(ERROR, b"E_BAD_MESSAGE MPUB invalid message(1) body size 0")]
    assert talk.bench.broker.topics["t"].depth == 0


def test_a_batch_makes_its_topic_before_its_body_is_read_and_a_single_publish_does_not(talk):
    talk.say(b"MPUB batch\n")
    assert list(talk.bench.broker.topics) == ["batch"]
    other = Talk(talk.bench)
    other.say(b"PUB single\n" + struct.pack(">i", 5))
    assert list(talk.bench.broker.topics) == ["batch"]


@pytest.mark.parametrize("delay", [b"1", b"5000", b"3600000"])
def test_deferred_publishing(talk, consumer, delay):
    consumer.say(rdy(1))
    assert talk.say(b"DPUB t " + delay + b"\n" + sized(b"later")) == [OK]
    delay_ns = int(delay) * 1_000_000
    for _ in range(3):
        consumer.bench.advance((delay_ns - 1) // 3)
        assert consumer.listen() == []
    consumer.bench.advance(delay_ns - (delay_ns - 1) // 3 * 3)
    assert bodies(consumer.listen()) == [b"later"]


@pytest.mark.parametrize("delay", [b"0", b"", b"000"])
def test_a_deferral_of_nothing_is_no_deferral(talk, consumer, delay):
    consumer.say(rdy(1))
    assert talk.say(b"DPUB t " + delay + b"\n" + sized(b"now")) == [OK]
    assert bodies(consumer.listen()) == [b"now"]


# Consuming


def test_sub_makes_topic_and_channel(consumer):
    channel = consumer.bench.broker.topics["t"].channels["c"]
    assert list(channel.clients.values()) == [consumer.client]
    assert (consumer.client.state, consumer.client.ready_count) == (SUBSCRIBED, 0)


def test_words_after_the_last_parameter_are_ignored(talk):
    assert talk.say(b"SUB t c more\n") == [OK]
    assert talk.say(b"RDY 1 more\n") == []
    assert talk.say(b"PUB u more\n" + sized(b"x")) == [OK]


def test_a_message_comes_only_when_the_client_is_ready(talk, consumer):
    talk.say(pub("t", b"1") + pub("t", b"2"))
    assert consumer.listen() == []
    assert bodies(consumer.say(rdy(1))) == [b"1"]
    assert consumer.say(rdy(1)) == []
    assert bodies(consumer.say(rdy(2))) == [b"2"]


def test_the_frame_of_a_message(talk, consumer):
    consumer.say(rdy(1))
    talk.say(pub("t", b"body"))
    (frame,) = consumer.listen()
    timestamp_ns, attempts, message_id = struct.unpack_from(">qH16s", frame.data)
    assert (frame.type, timestamp_ns, attempts) == (2, talk.bench.clock.wall_ns(), 1)
    assert (len(message_id), set(message_id) <= set(b"0123456789abcdef")) == (16, True)
    assert frame.data[26:] == b"body"


def test_fin_makes_room_for_the_next(talk, consumer):
    talk.say(mpub("t", [b"1", b"2", b"3"]))
    message = Message.decode(consumer.say(rdy(1))[0].data)
    for expected in (b"2", b"3"):
        (frame,) = consumer.say(fin(message.id))
        message = Message.decode(frame.data)
        assert message.body == expected
    assert consumer.say(fin(message.id)) == []
    channel = consumer.client.channel
    assert (channel.depth, channel.in_flight_count, consumer.client.finish_count) == (0, 0, 3)


def test_fin_in_the_long_form(talk, consumer):
    talk.say(pub("t", b"1"))
    (frame,) = consumer.say(rdy(1))
    message_id = Message.decode(frame.data).id
    assert consumer.say(b"FIN " + message_id + b" extra\r\n") == []
    assert consumer.client.finish_count == 1


def test_requeue_at_once_comes_back_with_one_more_attempt(talk, consumer):
    talk.say(pub("t", b"1"))
    first = Message.decode(consumer.say(rdy(1))[0].data)
    again = Message.decode(consumer.say(req(first.id, 0))[0].data)
    assert (again.id, again.attempts, again.timestamp_ns) == (first.id, 2, first.timestamp_ns)


@pytest.mark.parametrize(
    ("delay", "delay_ns"),
    [
        (b"1500", 1500_000_000),
        (b"3600000", 60 * MINUTE),
        (b"3600001", 60 * MINUTE),  # more than max-req-timeout is cut to it
        (b"999999999", 60 * MINUTE),
    ],
)
def test_requeue_later(talk, consumer, delay, delay_ns):
    talk.say(pub("t", b"1"))
    message_id = Message.decode(consumer.say(rdy(1))[0].data).id
    assert consumer.say(b"REQ %s %s\n" % (message_id, delay)) == []
    assert consumer.client.channel.deferred_count == 1
    consumer.bench.advance(delay_ns - 1)
    assert consumer.listen() == []
    consumer.bench.advance(1)
    assert consumer.take_message().attempts == 2


@pytest.mark.parametrize("delay", [b"", b"0", b"18446744073709551615", b"9223372036855"])
def test_requeue_delays_that_come_to_nothing(talk, consumer, delay):
    """Nothing, or so much that it wraps to below zero."""
    talk.say(pub("t", b"1"))
    message_id = Message.decode(consumer.say(rdy(1))[0].data).id
    (frame,) = consumer.say(b"REQ %s %s\n" % (message_id, delay))
    assert Message.decode(frame.data).attempts == 2


def test_touch_keeps_a_message(talk, consumer):
    talk.say(pub("t", b"1"))
    message_id = Message.decode(consumer.say(rdy(1))[0].data).id
    consumer.bench.advance(50 * SECOND)
    assert consumer.say(touch(message_id)) == []
    consumer.bench.advance(50 * SECOND)
    assert consumer.say(fin(message_id)) == []


def test_the_message_timeout_that_was_asked_for(make_talk):
    talk = make_talk()
    talk.say(identify(msg_timeout=1000) + sub("t", "c") + rdy(1))
    talk.say(pub("t", b"1"))
    talk.bench.advance(1 * SECOND - 1)
    assert talk.listen() == []
    talk.bench.advance(1)
    assert talk.take_message().attempts == 2


def test_cls_ends_delivery_and_lets_messages_be_finished(talk, consumer):
    talk.say(mpub("t", [b"1", b"2", b"3"]))
    messages = [Message.decode(frame.data) for frame in consumer.say(rdy(3))]
    assert consumer.say(cls()) == [CLOSE_WAIT]
    assert (consumer.client.state, consumer.client.ready_count) == (CLOSING, 0)
    talk.say(pub("t", b"4"))
    assert consumer.listen() == []
    assert consumer.say(fin(messages[0].id) + touch(messages[1].id) + req(messages[1].id, 0)) == []
    assert consumer.client.channel.depth == 2
    assert not consumer.is_closed


def test_a_refused_consumer_gets_no_more_messages(talk, consumer):
    consumer.say(rdy(10))
    consumer.session.receive(b"OOPS\n")
    talk.say(pub("t", b"1"))
    assert consumer.listen() == [Frame(ERROR, b"E_INVALID invalid command OOPS")]
    assert consumer.client.channel.depth == 1


def test_a_client_that_left_leaves_its_messages_in_flight(talk, consumer):
    talk.say(pub("t", b"1"))
    consumer.say(rdy(1))
    channel = consumer.client.channel
    consumer.leave()
    assert (channel.clients, channel.in_flight_count, channel.depth) == ({}, 1, 0)
    talk.bench.advance(MINUTE)
    assert (channel.in_flight_count, channel.depth, channel.timeout_count) == (0, 1, 1)


def test_a_client_may_publish_to_itself(consumer):
    consumer.say(rdy(10))
    frames = consumer.say(pub("t", b"1"))
    assert sorted(frame.type for frame in frames) == [0, 2]
    assert OK in frames


def test_deleting_the_channel_closes_the_client(talk, consumer):
    talk.bench.broker.delete_channel("t", "c")
    talk.bench.settle()
    assert consumer.is_closed
    consumer.leave()


def test_an_ephemeral_channel_goes_with_its_session(make_talk):
    talk = make_talk()
    talk.say(sub("t#ephemeral", "c#ephemeral"))
    assert "t#ephemeral" in talk.bench.broker.topics
    talk.leave()
    assert talk.bench.broker.topics == {}


def test_commands_are_counted(talk):
    talk.say(nop() + pub("t", b"x") + identify() + sub("t", "c") + rdy(1) + fin(b"0" * 16))
    assert talk.session.command_count == 6


def test_a_stream_in_single_bytes(talk, consumer):
    consumer.say(rdy(10))
    stream = identify() + pub("t", b"one") + mpub("t", [b"two", b"three"]) + dpub("t", 0, b"four") + nop()
    for index in range(len(stream)):
        talk.session.receive(stream[index : index + 1])
    assert talk.listen() == [OK] * 4
    assert bodies(consumer.listen()) == [b"one", b"two", b"three", b"four"]
