"""Publishing and consuming, as the bytes of both sides."""

import struct

import pytest
from conversation import SessionClient

from broker_bench import MINUTE, SECOND
from nsqx.nsqd.protocol_states import ClientState
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
    assert talk.send(sub("t", "c")) == [OK]
    return talk


# Publishing


def test_publishing_creates_the_topic_and_counts_messages(talk):
    assert talk.send(pub("t", b"one")) == [OK]
    assert talk.send(mpub("t", [b"two", b"three"])) == [OK]
    assert talk.send(dpub("t", 0, b"four")) == [OK]
    topic = talk.bench.broker.topics["t"]
    assert (topic.depth, topic.message_count, topic.message_bytes) == (4, 4, 15)
    assert talk.client.pub_counts == {"t": 4}
    assert talk.client.state == ClientState.INIT


def test_pipelined_commands_are_answered_in_order(talk):
    assert talk.send(pub("t", b"1") * 3 + nop() + mpub("t", [b"2"]) + b"OOPS\n") == [
        *[OK] * 4,
        Frame(ERROR, b"E_INVALID invalid command OOPS"),
    ]


def test_bodies_can_contain_any_bytes(talk, consumer):
    body = b"FIN 0123456789abcdef\n\x00\xff\r\n"
    consumer.send(rdy(2))
    assert talk.send(pub("t", body) + mpub("t", [body])) == [OK, OK]
    assert bodies(consumer.receive()) == [body, body]


def test_a_body_of_the_maximum_size_is_accepted(make_bench):
    bench = make_bench(max_msg_size=100, max_body_size=200)
    talk = SessionClient(bench)
    assert talk.send(pub("t", b"x" * 100)) == [OK]
    assert talk.send(mpub("t", [b"x" * 100])) == [OK]
    assert talk.send(b"MPUB t\n" + struct.pack(">i", 200) + struct.pack(">i", 39) + sized(b"x") * 39) == [OK]


def test_the_count_of_a_batch_decides_where_it_ends(talk):
    sent = (
        b"MPUB t\n" + struct.pack(">i", 1) + struct.pack(">i", 2) + sized(b"one") + sized(b"two") + pub("t", b"three")
    )
    assert talk.send(sent) == [OK, OK]
    assert talk.bench.broker.topics["t"].depth == 3


def test_a_batch_with_an_invalid_message_publishes_nothing_but_creates_the_topic(talk):
    sent = b"MPUB t\n" + struct.pack(">i", 50) + struct.pack(">i", 2) + sized(b"good") + struct.pack(">i", 0)
    assert talk.send(sent) == [Frame(ERROR, b"E_BAD_MESSAGE MPUB invalid message(1) body size 0")]
    assert talk.bench.broker.topics["t"].depth == 0


def test_mpub_creates_its_topic_before_the_body_is_read_and_pub_after(talk):
    talk.send(b"MPUB batch\n")
    assert list(talk.bench.broker.topics) == ["batch"]
    other = SessionClient(talk.bench)
    other.send(b"PUB single\n" + struct.pack(">i", 5))
    assert list(talk.bench.broker.topics) == ["batch"]


@pytest.mark.parametrize("delay", [b"1", b"5000", b"3600000"])
def test_a_deferred_message_is_delivered_after_its_delay(talk, consumer, delay):
    consumer.send(rdy(1))
    assert talk.send(b"DPUB t " + delay + b"\n" + sized(b"later")) == [OK]
    delay_ns = int(delay) * 1_000_000
    for _ in range(3):
        consumer.bench.advance((delay_ns - 1) // 3)
        assert consumer.receive() == []
    consumer.bench.advance(delay_ns - (delay_ns - 1) // 3 * 3)
    assert bodies(consumer.receive()) == [b"later"]


@pytest.mark.parametrize("delay", [b"0", b"", b"000"])
def test_a_delay_of_0_delivers_at_once(talk, consumer, delay):
    consumer.send(rdy(1))
    assert talk.send(b"DPUB t " + delay + b"\n" + sized(b"now")) == [OK]
    assert bodies(consumer.receive()) == [b"now"]


# Consuming


def test_sub_creates_topic_and_channel(consumer):
    channel = consumer.bench.broker.topics["t"].channels["c"]
    assert list(channel.clients.values()) == [consumer.client]
    assert (consumer.client.state, consumer.client.ready_count) == (ClientState.SUBSCRIBED, 0)


def test_words_after_the_last_parameter_are_ignored(talk):
    assert talk.send(b"SUB t c more\n") == [OK]
    assert talk.send(b"RDY 1 more\n") == []
    assert talk.send(b"PUB u more\n" + sized(b"x")) == [OK]


def test_a_message_comes_only_when_the_client_is_ready(talk, consumer):
    talk.send(pub("t", b"1") + pub("t", b"2"))
    assert consumer.receive() == []
    assert bodies(consumer.send(rdy(1))) == [b"1"]
    assert consumer.send(rdy(1)) == []
    assert bodies(consumer.send(rdy(2))) == [b"2"]


def test_the_frame_of_a_message(talk, consumer):
    consumer.send(rdy(1))
    talk.send(pub("t", b"body"))
    (frame,) = consumer.receive()
    timestamp_ns, attempts, message_id = struct.unpack_from(">qH16s", frame.data)
    assert (frame.type, timestamp_ns, attempts) == (2, talk.bench.clock.wall_ns(), 1)
    assert (len(message_id), set(message_id) <= set(b"0123456789abcdef")) == (16, True)
    assert frame.data[26:] == b"body"


def test_fin_lets_the_next_message_be_delivered(talk, consumer):
    talk.send(mpub("t", [b"1", b"2", b"3"]))
    message = Message.decode(consumer.send(rdy(1))[0].data)
    for expected in (b"2", b"3"):
        (frame,) = consumer.send(fin(message.id))
        message = Message.decode(frame.data)
        assert message.body == expected
    assert consumer.send(fin(message.id)) == []
    channel = consumer.client.channel
    assert (channel.depth, channel.in_flight_count, consumer.client.finish_count) == (0, 0, 3)


def test_fin_with_unusual_syntax_is_accepted(talk, consumer):
    talk.send(pub("t", b"1"))
    (frame,) = consumer.send(rdy(1))
    message_id = Message.decode(frame.data).id
    assert consumer.send(b"FIN " + message_id + b" extra\r\n") == []
    assert consumer.client.finish_count == 1


def test_a_requeued_message_is_delivered_again_with_one_more_attempt(talk, consumer):
    talk.send(pub("t", b"1"))
    first = Message.decode(consumer.send(rdy(1))[0].data)
    again = Message.decode(consumer.send(req(first.id, 0))[0].data)
    assert (again.id, again.attempts, again.timestamp_ns) == (first.id, 2, first.timestamp_ns)


@pytest.mark.parametrize(
    ("delay", "delay_ns"),
    [
        (b"1500", 1500_000_000),
        (b"3600000", 60 * MINUTE),
        (b"3600001", 60 * MINUTE),  # more than max-req-timeout is limited to it
        (b"999999999", 60 * MINUTE),
    ],
)
def test_a_message_requeued_with_a_delay_is_delivered_after_it(talk, consumer, delay, delay_ns):
    talk.send(pub("t", b"1"))
    message_id = Message.decode(consumer.send(rdy(1))[0].data).id
    assert consumer.send(b"REQ %s %s\n" % (message_id, delay)) == []
    assert consumer.client.channel.deferred_count == 1
    consumer.bench.advance(delay_ns - 1)
    assert consumer.receive() == []
    consumer.bench.advance(1)
    assert consumer.take_message().attempts == 2


@pytest.mark.parametrize("delay", [b"", b"0", b"18446744073709551615", b"9223372036855"])
def test_requeue_delays_of_0_or_less_deliver_at_once(talk, consumer, delay):
    """The delay is 0, or so large that it wraps below zero."""
    talk.send(pub("t", b"1"))
    message_id = Message.decode(consumer.send(rdy(1))[0].data).id
    (frame,) = consumer.send(b"REQ %s %s\n" % (message_id, delay))
    assert Message.decode(frame.data).attempts == 2


def test_touch_extends_the_timeout_of_a_message(talk, consumer):
    talk.send(pub("t", b"1"))
    message_id = Message.decode(consumer.send(rdy(1))[0].data).id
    consumer.bench.advance(50 * SECOND)
    assert consumer.send(touch(message_id)) == []
    consumer.bench.advance(50 * SECOND)
    assert consumer.send(fin(message_id)) == []


def test_the_requested_message_timeout_is_used(make_talk):
    talk = make_talk()
    talk.send(identify(msg_timeout=1000) + sub("t", "c") + rdy(1))
    talk.send(pub("t", b"1"))
    talk.bench.advance(1 * SECOND - 1)
    assert talk.receive() == []
    talk.bench.advance(1)
    assert talk.take_message().attempts == 2


def test_cls_stops_delivery_and_messages_can_still_be_finished(talk, consumer):
    talk.send(mpub("t", [b"1", b"2", b"3"]))
    messages = [Message.decode(frame.data) for frame in consumer.send(rdy(3))]
    assert consumer.send(cls()) == [CLOSE_WAIT]
    assert (consumer.client.state, consumer.client.ready_count) == (ClientState.CLOSING, 0)
    talk.send(pub("t", b"4"))
    assert consumer.receive() == []
    assert consumer.send(fin(messages[0].id) + touch(messages[1].id) + req(messages[1].id, 0)) == []
    assert consumer.client.channel.depth == 2
    assert not consumer.is_closed


def test_a_consumer_with_a_fatal_error_gets_no_more_messages(talk, consumer):
    consumer.send(rdy(10))
    consumer.session.receive(b"OOPS\n")
    consumer.carry_out()
    talk.send(pub("t", b"1"))
    assert consumer.receive() == [Frame(ERROR, b"E_INVALID invalid command OOPS")]
    assert consumer.client.channel.depth == 1


def test_messages_of_a_disconnected_client_stay_in_flight(talk, consumer):
    talk.send(pub("t", b"1"))
    consumer.send(rdy(1))
    channel = consumer.client.channel
    consumer.disconnect()
    assert (channel.clients, channel.in_flight_count, channel.depth) == ({}, 1, 0)
    talk.bench.advance(MINUTE)
    assert (channel.in_flight_count, channel.depth, channel.timeout_count) == (0, 1, 1)


def test_a_client_can_publish_to_its_own_channel(consumer):
    consumer.send(rdy(10))
    frames = consumer.send(pub("t", b"1"))
    assert sorted(frame.type for frame in frames) == [0, 2]
    assert OK in frames


def test_deleting_the_channel_disconnects_the_client(talk, consumer):
    talk.bench.broker.delete_channel("t", "c")
    talk.bench.settle()
    assert consumer.is_closed
    consumer.disconnect()


def test_an_ephemeral_channel_is_deleted_with_its_last_client(make_talk):
    talk = make_talk()
    talk.send(sub("t#ephemeral", "c#ephemeral"))
    assert "t#ephemeral" in talk.bench.broker.topics
    talk.disconnect()
    assert talk.bench.broker.topics == {}


def test_commands_are_counted(talk):
    talk.send(nop() + pub("t", b"x") + identify() + sub("t", "c") + rdy(1) + fin(b"0" * 16))
    assert talk.session.command_count == 6


def test_commands_can_arrive_byte_by_byte(talk, consumer):
    consumer.send(rdy(10))
    stream = identify() + pub("t", b"one") + mpub("t", [b"two", b"three"]) + dpub("t", 0, b"four") + nop()
    for index in range(len(stream)):
        talk.session.receive(stream[index : index + 1])
    assert talk.receive() == [OK] * 4
    assert bodies(consumer.receive()) == [b"one", b"two", b"three", b"four"]
