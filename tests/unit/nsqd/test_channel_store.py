"""The contract between a channel and its store, with calls on the store of a real channel."""

import pytest

from broker_bench import MS, SECOND, Bench
from nsqx.nsqd.channel_store import EXITING, NOT_IN_FLIGHT, NOT_OWNER, ChannelStore
from nsqx.queues.deadlines import NEVER_NS

UNKNOWN_ID = b"f" * 16


class StoreBench(Bench):
    """A channel that is paused, so that only the test makes its store deliver."""

    def __init__(self, tmp_path, **options):
        super().__init__(tmp_path, msg_timeout=SECOND, **options)
        self.channel = self.broker.topic("t").channel("c")
        self.channel.pause()
        self.store = self.channel.store

    def hand_out(self):
        return self.store.hand_out(self.channel.ready, self.clock.now_ns())

    def deliver(self, client):
        """Hand out, and return the messages that ``client`` got."""
        self.hand_out()
        self.settle()
        return client.link.take_messages()

    def counts(self):
        store = self.store
        return store.depth, store.in_flight_count, store.deferred_count


@pytest.fixture(params=["classic", "log"])
def bench(request, tmp_path):
    return StoreBench(tmp_path, store=request.param)


@pytest.fixture
def classic_bench(tmp_path):
    return StoreBench(tmp_path, store="classic")


def test_messages_are_handed_out_until_no_client_is_ready(bench):
    first, second = bench.consume("t", "c", 2), bench.consume("t", "c", 1)
    bench.publish("t", b"1", b"2", b"3", b"4")
    assert bench.counts() == (4, 0, 0)
    assert bench.hand_out() == bench.clock.now_ns() + SECOND
    assert bench.counts() == (1, 3, 0)
    assert (first.in_flight_count, second.in_flight_count) == (2, 1)
    assert bench.hand_out() == NEVER_NS
    bench.settle()
    assert (first.link.take_bodies(), second.link.take_bodies()) == ([b"1", b"3"], [b"2"])


def test_the_earliest_deadline_is_that_of_the_shortest_timeout(bench):
    bench.consume("t", "c", 1)
    bench.consume("t", "c", 1, msg_timeout_ns=100 * MS)
    bench.publish("t", b"1", b"2")
    assert bench.hand_out() == bench.store.next_deadline() == bench.clock.now_ns() + 100 * MS


def test_the_store_reports_what_happens_to_messages(bench):
    client = bench.consume("t", "c", 3)
    bench.publish("t", b"1", b"2", b"3")
    channel, store = bench.channel, bench.store
    assert channel.message_count == 3
    first, second, _ = bench.deliver(client)
    assert (channel.global_msg_count, client.message_count, client.in_flight_count) == (3, 3, 3)
    assert store.finish(client, first.id) is None
    assert (client.finish_count, client.in_flight_count) == (1, 2)
    assert store.requeue(client, second.id, 0) is None
    assert (channel.requeue_count, client.requeue_count, client.in_flight_count) == (1, 1, 1)
    store.expire(bench.clock.now_ns() + SECOND)
    assert (channel.timeout_count, client.in_flight_count) == (1, 0)
    assert bench.counts() == (2, 0, 0)
    assert client.is_in_ready_list


def test_a_requeued_message_is_deferred_until_expire_finds_it_due(classic_bench):
    bench = classic_bench  # the next deadline of a log cursor may be too early
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    (message,) = bench.deliver(client)
    due_ns = bench.clock.now_ns() + 100 * MS
    assert bench.store.requeue(client, message.id, 100 * MS) is None
    assert (bench.counts(), bench.store.next_deadline()) == ((0, 0, 1), due_ns)
    bench.store.expire(due_ns - 1)
    assert bench.counts() == (0, 0, 1)
    bench.store.expire(due_ns)
    assert (bench.counts(), bench.store.next_deadline()) == ((1, 0, 0), NEVER_NS)
    assert bench.store.has_messages()


def test_commands_are_refused_with_a_reason(bench):
    owner, other = bench.consume("t", "c", 1), bench.consume("t", "c")
    bench.publish("t", b"1")
    (message,) = bench.deliver(owner)
    store = bench.store
    for client, message_id, reason in ((owner, UNKNOWN_ID, NOT_IN_FLIGHT), (other, message.id, NOT_OWNER)):
        assert store.finish(client, message_id) == reason
        assert store.requeue(client, message_id, 0) == reason
        assert store.touch(client, message_id, SECOND) == reason
    assert bench.counts() == (0, 1, 0)


def test_a_touch_moves_the_deadline_up_to_the_limit(classic_bench):
    bench = classic_bench  # the next deadline of a log cursor may be too early
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    (message,) = bench.deliver(client)
    start_ns = bench.clock.now_ns()
    bench.advance(900 * MS)
    assert bench.store.touch(client, message.id, 10 * SECOND) is None
    assert bench.store.next_deadline() == start_ns + 1900 * MS
    assert bench.store.touch(client, message.id, 1500 * MS) is None
    assert bench.store.next_deadline() == start_ns + 1500 * MS


def test_an_ephemeral_channel_that_exits_refuses_a_requeue(bench):
    client = bench.consume("t", "e#ephemeral", 1)
    bench.publish("t", b"1")
    (message,) = client.link.take_messages()
    client.channel.spill()
    assert client.channel.store.requeue(client, message.id, 0) == EXITING


def test_empty_discards_everything_and_reports_nothing(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1", b"2")
    bench.defer("t", b"3", SECOND)
    assert len(bench.deliver(client)) == 1
    bench.store.empty()
    assert (bench.counts(), bench.store.next_deadline()) == ((0, 0, 0), NEVER_NS)
    assert (client.in_flight_count, bench.channel.timeout_count) == (1, 0)


def test_a_deleted_channel_has_a_store_without_messages(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    (message,) = bench.deliver(client)
    bench.broker.delete_channel("t", "c")
    store = bench.channel.store
    assert type(store) is ChannelStore
    assert (store.depth, store.backend_depth, store.in_flight_count, store.deferred_count) == (0, 0, 0, 0)
    assert bench.channel.finish(client, message.id) == NOT_IN_FLIGHT
    assert bench.channel.requeue(client, message.id, 0) == NOT_IN_FLIGHT
    assert bench.channel.touch(client, message.id) == NOT_IN_FLIGHT
    assert not store.has_messages()
    assert store.hand_out(bench.channel.ready, bench.clock.now_ns()) == store.next_deadline() == NEVER_NS
    assert store.disk_queues() == []
    for close in (bench.channel.empty, bench.channel.close, bench.channel.delete):
        close()
