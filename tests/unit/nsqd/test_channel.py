"""A channel: delivery, finish, requeue, timeout and deferral, with any store."""

import random
import struct

import pytest

from broker_bench import MINUTE, MS, SECOND, Bench, BenchLink
from nsqx.errors import TooManyConsumers
from nsqx.nsqd.channel_store import NOT_IN_FLIGHT, NOT_OWNER
from nsqx.nsqd.client import OUTPUT_LIMIT
from nsqx.nsqd.protocol_states import ClientState


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def make_bench(tmp_path, **options):
    return Bench(tmp_path, **options)


def the_channel(bench):
    return bench.broker.topic("t").channel("c")


def take_one(client):
    (message,) = client.link.take_messages()
    return message


# Delivery


def test_a_message_frame_byte_for_byte(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"body")
    data = bytes(client.link.data)
    wall_ns = bench.clock.wall_ns()
    number = ((wall_ns >> 20) - 1288834974288) << 22 | 1 << 12
    assert data == struct.pack(">iiqH16s", 34, 2, wall_ns, 1, b"%016x" % number) + b"body"


def test_a_client_gets_as_many_messages_as_its_ready_count(bench):
    client = bench.consume("t", "c", 2)
    bench.publish("t", b"1", b"2", b"3")
    first, second = client.link.take_messages()
    assert (first.body, second.body) == (b"1", b"2")
    channel = the_channel(bench)
    assert (channel.depth, channel.in_flight_count, client.in_flight_count) == (1, 2, 2)
    assert channel.finish(client, first.id) is None
    bench.settle()
    assert client.link.take_bodies() == [b"3"]
    assert (client.message_count, client.finish_count) == (3, 1)


def test_the_ready_count_is_a_level_and_not_a_budget(bench):
    client = bench.consume("t", "c", 1)
    for number in range(5):
        bench.publish("t", b"%d" % number)
        message = take_one(client)
        assert message.body == b"%d" % number
        assert client.channel.finish(client, message.id) is None


def test_lowering_ready_stops_delivery_and_raising_it_resumes(bench):
    client = bench.consume("t", "c", 3)
    bench.publish("t", b"1", b"2")
    assert len(client.link.take_messages()) == 2
    bench.set_ready(client, 1)
    bench.publish("t", b"3")
    assert client.link.take_frames() == []
    bench.set_ready(client, 0)
    assert client.link.take_frames() == []
    bench.set_ready(client, 3)
    assert client.link.take_bodies() == [b"3"]


def test_messages_wait_for_a_client(bench):
    the_channel(bench)
    bench.publish("t", b"1", b"2")
    assert the_channel(bench).depth == 2
    client = bench.consume("t", "c", 10)
    assert client.link.take_bodies() == [b"1", b"2"]
    assert the_channel(bench).depth == 0


@pytest.mark.parametrize("published_first", [False, True])
def test_ready_clients_take_turns(bench, published_first):
    clients = [bench.consume("t", "c") for _ in range(3)]
    if published_first:
        bench.publish("t", *(b"%d" % number for number in range(9)))
    for client in clients:
        client.ready_count = 100
        client.channel.add_if_ready(client)
    bench.settle()
    if not published_first:
        for number in range(9):
            bench.publish("t", b"%d" % number)
    shares = [client.link.take_bodies() for client in clients]
    assert [len(share) for share in shares] == [3, 3, 3]
    assert sorted(sum(shares, [])) == [b"%d" % number for number in range(9)]


def test_a_closing_client_gets_nothing_more(bench):
    client = bench.consume("t", "c", 10)
    client.state = ClientState.CLOSING
    bench.publish("t", b"1")
    assert client.link.take_frames() == []


def test_a_client_that_left_gets_nothing_more(bench):
    left, stays = bench.consume("t", "c", 10), bench.consume("t", "c", 10)
    bench.leave(left)
    bench.publish("t", b"1", b"2")
    assert (left.link.take_frames(), len(stays.link.take_messages())) == ([], 2)


def test_a_client_whose_connection_is_ending_gets_nothing_more(bench):
    client = bench.consume("t", "c", 10)
    bench.broker.turn.close(client)
    bench.publish("t", b"1")
    assert client.link.take_frames() == []
    assert the_channel(bench).depth == 1


def test_a_blocked_client_gets_nothing_until_its_socket_takes_more(bench):
    client = bench.consume("t", "c", 10)
    client.writable = False
    bench.publish("t", b"1")
    assert client.link.take_frames() == []
    client.writable = True
    client.channel.add_if_ready(client)
    bench.settle()
    assert client.link.take_bodies() == [b"1"]


@pytest.mark.parametrize("waiting", [False, True])
def test_a_full_output_stops_delivery_and_resumes_once_it_is_sent(bench, waiting):
    body = b"x" * 10_000
    if waiting:
        the_channel(bench)
        bench.publish("t", *[body] * 100)
    client = bench.consume("t", "c", 100)
    if not waiting:
        bench.publish("t", *[body] * 100)
    writes = client.link.write_count
    assert client.link.take_bodies() == [body] * 100
    assert writes >= 100 * 10_000 // (OUTPUT_LIMIT + 10_034)


def test_an_output_does_not_grow_far_beyond_its_limit(bench):
    lengths = []

    class MeasuringLink(BenchLink):
        def write(self, data):
            lengths.append(len(data))

    client = bench.consume("t", "c", 2000)
    client.link = MeasuringLink()
    bench.publish("t", *[b"x" * 1000] * 1000)
    assert max(lengths) <= OUTPUT_LIMIT + 1034


def test_attempts_count_deliveries(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    for attempt in (1, 2, 3):
        message = take_one(client)
        assert message.attempts == attempt
        client.channel.requeue(client, message.id, 0)
        bench.settle()


def test_sampling_discards_what_it_does_not_deliver(bench):
    random.seed(11)
    draws = [random.randrange(100) for _ in range(1000)]
    client = bench.consume("t", "c", 2000, sample_rate=29)
    random.seed(11)
    bench.publish("t", *(b"%d" % number for number in range(1000)))
    expected = [b"%d" % number for number, draw in enumerate(draws) if draw <= 29]
    assert client.link.take_bodies() == expected
    assert 200 < len(expected) < 400
    channel = the_channel(bench)
    assert (channel.depth, channel.in_flight_count, channel.message_count) == (0, len(expected), 1000)


@pytest.mark.parametrize("rate", [0, 99])
def test_a_client_without_sampling_gets_every_message(bench, rate):
    client = bench.consume("t", "c", 2000, sample_rate=rate)
    bench.publish("t", *[b"x"] * 1000)
    assert len(client.link.take_messages()) == 1000


# FIN, REQ, TOUCH


@pytest.mark.parametrize("action", ["finish", "requeue", "touch"])
def test_only_the_owner_can_answer_a_message(bench, action):
    owner = bench.consume("t", "c", 1)
    other = bench.consume("t", "c")
    bench.publish("t", b"1")
    message_id = take_one(owner).id
    arguments = (0,) if action == "requeue" else ()
    channel = the_channel(bench)
    assert getattr(channel, action)(other, message_id, *arguments) == NOT_OWNER == "client does not own message"
    assert getattr(channel, action)(owner, b"f" * 16, *arguments) == NOT_IN_FLIGHT == "ID not in flight"
    assert getattr(channel, action)(owner, message_id, *arguments) is None


@pytest.mark.parametrize("action", ["finish", "requeue", "touch"])
def test_a_client_with_another_timeout_is_not_the_owner(bench, action):
    owner = bench.consume("t", "c", 1, msg_timeout_ns=5 * SECOND)
    other = bench.consume("t", "c", msg_timeout_ns=7 * SECOND)
    bench.publish("t", b"1")
    message_id = take_one(owner).id
    arguments = (0,) if action == "requeue" else ()
    assert getattr(the_channel(bench), action)(other, message_id, *arguments) == NOT_OWNER


def test_a_second_finish_is_refused(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    message_id = take_one(client).id
    assert client.channel.finish(client, message_id) is None
    assert client.channel.finish(client, message_id) == NOT_IN_FLIGHT
    assert (client.in_flight_count, client.finish_count) == (0, 1)


def test_a_message_requeued_without_delay_is_delivered_at_once(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    message = take_one(client)
    assert client.channel.requeue(client, message.id, 0) is None
    bench.settle()
    again = take_one(client)
    assert (again.id, again.attempts, again.timestamp_ns) == (message.id, 2, message.timestamp_ns)
    channel = client.channel
    assert (channel.requeue_count, channel.message_count, client.requeue_count) == (1, 1, 1)


def test_a_message_requeued_with_a_delay_is_delivered_exactly_then(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    channel = client.channel
    channel.requeue(client, take_one(client).id, 1500 * MS)
    assert (channel.deferred_count, channel.in_flight_count, channel.depth) == (1, 0, 0)
    bench.advance(1500 * MS - 1)
    assert client.link.take_frames() == []
    bench.advance(1)
    assert take_one(client).attempts == 2
    assert channel.deferred_count == 0


def test_a_requeued_message_may_go_to_another_client(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    message = take_one(client)
    client.ready_count = 0
    other = bench.consume("t", "c", 1)
    client.channel.requeue(client, message.id, 0)
    bench.settle()
    assert take_one(other).id == message.id
    assert client.channel.finish(client, message.id) == NOT_OWNER


@pytest.mark.parametrize("timeout_ns", [1 * SECOND, MINUTE])
def test_timeouts_are_exact(bench, timeout_ns):
    client = bench.consume("t", "c", 1, msg_timeout_ns=timeout_ns)
    bench.publish("t", b"1")
    first = take_one(client)
    bench.advance(timeout_ns - 1)
    assert client.link.take_frames() == []
    bench.advance(1)
    again = take_one(client)
    assert (again.id, again.attempts) == (first.id, 2)
    channel = client.channel
    assert (channel.timeout_count, channel.requeue_count, channel.message_count) == (1, 0, 1)
    assert (client.in_flight_count, channel.in_flight_count) == (1, 1)


def test_every_message_times_out_at_its_own_time(bench):
    slow = bench.consume("t", "c", 1, msg_timeout_ns=10 * SECOND)
    bench.publish("t", b"slow")
    quick = bench.consume("t", "c", 1, msg_timeout_ns=2 * SECOND)
    bench.publish("t", b"quick")
    slow.ready_count = quick.ready_count = 0
    bench.advance(2 * SECOND)
    assert (slow.channel.depth, slow.channel.timeout_count) == (1, 1)
    bench.advance(8 * SECOND - 1)
    assert slow.channel.timeout_count == 1
    bench.advance(1)
    assert (slow.channel.depth, slow.channel.timeout_count) == (2, 2)


def test_messages_of_a_lost_client_are_redelivered_after_their_timeout(bench):
    left = bench.consume("t", "c", 1, msg_timeout_ns=5 * SECOND)
    bench.publish("t", b"1")
    bench.leave(left)
    stays = bench.consume("t", "c", 1)
    bench.advance(5 * SECOND - 1)
    assert stays.link.take_frames() == []
    assert stays.channel.in_flight_count == 1
    bench.advance(1)
    assert take_one(stays).attempts == 2
    assert stays.channel.timeout_count == 1


def test_touch_restarts_the_timeout_of_the_client(bench):
    client = bench.consume("t", "c", 1, msg_timeout_ns=10 * SECOND)
    bench.publish("t", b"1")
    message_id = take_one(client).id
    bench.advance(6 * SECOND)
    assert client.channel.touch(client, message_id) is None
    bench.advance(10 * SECOND - 1)
    assert client.link.take_frames() == []
    bench.advance(1)
    assert take_one(client).attempts == 2


def test_touch_never_exceeds_max_msg_timeout(tmp_path):
    bench = make_bench(tmp_path, max_msg_timeout=25 * SECOND)
    client = bench.consume("t", "c", 1, msg_timeout_ns=10 * SECOND)
    bench.publish("t", b"1")
    message_id = take_one(client).id
    for _ in range(3):
        bench.advance(8 * SECOND)
        assert client.channel.touch(client, message_id) is None
    bench.advance(1 * SECOND - 1)
    assert client.link.take_frames() == []
    bench.advance(1)
    assert take_one(client).attempts == 2


def test_touch_after_the_timeout_is_refused(bench):
    client = bench.consume("t", "c", 1, msg_timeout_ns=1 * SECOND)
    bench.publish("t", b"1")
    message_id = take_one(client).id
    client.ready_count = 0
    bench.advance(1 * SECOND)
    assert client.channel.touch(client, message_id) == NOT_IN_FLIGHT


def test_latency_is_measured_from_publish_to_finish(tmp_path):
    bench = make_bench(tmp_path, e2e_processing_latency_percentiles=[1.0])
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    message_id = take_one(client).id
    bench.advance(2 * SECOND)
    client.channel.finish(client, message_id)
    result = client.channel.latency.result(bench.clock.wall_ns())
    assert result["count"] == 1
    assert result["percentiles"][0]["value"] == pytest.approx(2 * SECOND, rel=0.01)


# Deferral


def test_a_deferred_message_is_counted_and_delivered_exactly_when_due(bench):
    client = bench.consume("t", "c", 1)
    bench.defer("t", b"1", 700 * MS)
    channel = client.channel
    assert (channel.deferred_count, channel.depth, channel.message_count) == (1, 0, 1)
    bench.advance(700 * MS - 1)
    assert client.link.take_frames() == []
    bench.advance(1)
    assert take_one(client).attempts == 1


def test_deferred_messages_are_delivered_in_the_order_of_their_due_times(bench):
    client = bench.consume("t", "c", 10)
    for delay_ms in (300, 100, 200):
        bench.defer("t", b"%d" % delay_ms, delay_ms * MS)
    bench.advance(SECOND)
    assert client.link.take_bodies() == [b"100", b"200", b"300"]


# Pausing


def test_a_paused_channel_delivers_nothing(bench):
    client = bench.consume("t", "c", 10)
    client.channel.pause()
    bench.publish("t", b"1")
    bench.set_ready(client, 20)
    assert (client.link.take_frames(), client.channel.depth) == ([], 1)
    client.channel.unpause()
    bench.settle()
    assert client.link.take_bodies() == [b"1"]
    bench.publish("t", b"2")
    assert client.link.take_bodies() == [b"2"]


def test_timeouts_and_due_times_are_processed_while_paused(bench):
    client = bench.consume("t", "c", 10, msg_timeout_ns=SECOND)
    bench.publish("t", b"1")
    bench.defer("t", b"2", SECOND)
    client.link.take_messages()
    client.channel.pause()
    bench.advance(SECOND)
    channel = client.channel
    assert (channel.depth, channel.in_flight_count, channel.deferred_count, channel.timeout_count) == (2, 0, 0, 1)
    assert client.link.take_frames() == []


# Clients


def test_more_consumers_than_max_channel_consumers_are_refused(tmp_path):
    bench = make_bench(tmp_path, max_channel_consumers=2)
    first = bench.consume("t", "c")
    bench.consume("t", "c")
    with pytest.raises(TooManyConsumers, match="^consumers for t:c exceeds limit of 2$"):
        bench.consume("t", "c")
    bench.consume("t", "other")
    bench.leave(first)
    bench.consume("t", "c")


def test_an_ephemeral_channel_is_deleted_with_its_last_client(bench):
    clients = [bench.consume("t", "c#ephemeral", 10) for _ in range(2)]
    bench.leave(clients[0])
    assert bench.broker.topic("t").find_channel("c#ephemeral") is not None
    bench.leave(clients[1])
    assert bench.broker.topic("t").find_channel("c#ephemeral") is None
    bench.leave(clients[1])
    bench.publish("t", b"1")
    assert bench.broker.topic("t").depth == 1


def test_an_ephemeral_channel_without_a_client_so_far_is_kept(bench):
    bench.broker.topic("t").channel("c#ephemeral")
    bench.publish("t", b"1")
    client = bench.consume("t", "c#ephemeral", 1)
    assert client.link.take_bodies() == [b"1"]


# Topology


NEAR = {
    "enable_experiment": ["topology-aware-consumption"],
    "topology_region": "r",
    "topology_zone": "z",
}


def test_the_nearest_ready_client_is_served_first(tmp_path):
    bench = make_bench(tmp_path, **NEAR)
    far = bench.consume("t", "c", 2, topology_region="elsewhere", topology_zone="elsewhere")
    region = bench.consume("t", "c", 2, topology_region="r", topology_zone="other")
    zone = bench.consume("t", "c", 2, topology_region="r", topology_zone="z")
    bench.publish("t", b"1", b"2", b"3", b"4", b"5")
    assert zone.link.take_bodies() == [b"1", b"2"]
    assert region.link.take_bodies() == [b"3", b"4"]
    assert far.link.take_bodies() == [b"5"]
    channel = far.channel
    counts = (channel.zone_local_msg_count, channel.region_local_msg_count, channel.global_msg_count)
    assert counts == (2, 2, 1)


def test_without_the_experiment_no_client_is_near(tmp_path):
    bench = make_bench(tmp_path, topology_region="r", topology_zone="z")
    clients = [bench.consume("t", "c", 2, topology_zone=zone, topology_region="r") for zone in ("z", "other")]
    bench.publish("t", b"1", b"2")
    assert [len(client.link.take_messages()) for client in clients] == [1, 1]
    channel = clients[0].channel
    counts = (channel.zone_local_msg_count, channel.region_local_msg_count, channel.global_msg_count)
    assert counts == (0, 0, 2)
