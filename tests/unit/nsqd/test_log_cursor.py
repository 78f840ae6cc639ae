"""The cursor of a channel in a topic log: deliveries, commands, counts, and what a restart finds."""

import os

import pytest

from broker_bench import MS, SECOND, Bench
from nsqx.nsqd.channel_store import NOT_IN_FLIGHT
from nsqx.queues.log.store import LogOptions


class LogBench(Bench):
    """A broker whose topics have logs. ``crash`` is a kill -9: what was not written is lost."""

    def __init__(self, data_path, clock=None, **options):
        super().__init__(data_path, clock, store="log", **options)
        self.data_path = data_path

    def crash(self, **options):
        return LogBench(self.data_path, self.clock, **options)

    def restart(self, **options):
        self.broker.close_topics()
        return self.crash(**options)

    def counts(self, channel_name="c"):
        channel = self.broker.topic("t").channel(channel_name)
        return channel.depth, channel.in_flight_count, channel.deferred_count


@pytest.fixture(params=["fsync", "write"])
def bench(request, tmp_path):
    return LogBench(tmp_path, durability=request.param)


@pytest.fixture
def small(tmp_path):
    """A broker that keeps almost nothing in memory, so that channels read from segments."""
    bench = LogBench(tmp_path)
    bench.broker.close_topics()
    bench = LogBench(tmp_path)
    bench.broker.logs._store.options = LogOptions(commit_size=16384, direct_size=4096, memory_size=0)
    return bench


def finish_all(client):
    messages = client.link.take_messages()
    for message in messages:
        assert client.channel.finish(client, message.id) is None
    return [message.body for message in messages]


def test_a_crash_repeats_what_was_not_finished_and_nothing_else(bench):
    client = bench.consume("t", "c", 10)
    bench.publish("t", b"1", b"2", b"3", b"4")
    first, _, third, _ = client.link.take_messages()
    client.channel.finish(client, first.id)
    client.channel.finish(client, third.id)
    assert bench.counts() == (0, 2, 0)
    bench.advance(60 * MS)
    again = bench.crash()
    assert again.counts() == (2, 0, 0)
    consumer = again.consume("t", "c", 10)
    assert finish_all(consumer) == [b"2", b"4"]
    assert again.restart().counts() == (0, 0, 0)


def test_every_channel_has_its_own_position(bench):
    fast, slow = bench.consume("t", "fast", 10), bench.consume("t", "slow", 1)
    bench.publish("t", b"1", b"2", b"3")
    assert finish_all(fast) == [b"1", b"2", b"3"]
    assert slow.link.take_bodies() == [b"1"]
    bench.advance(60 * MS)
    again = bench.crash()
    assert (again.counts("fast"), again.counts("slow")) == ((0, 0, 0), (3, 0, 0))


def test_the_attempts_of_requeued_messages_survive_a_crash(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    for attempts in (1, 2):
        (message,) = client.link.take_messages()
        assert message.attempts == attempts
        client.channel.requeue(client, message.id, 0)
        bench.settle()
    bench.settle()
    again = bench.crash()
    (message,) = again.consume("t", "c", 1).link.take_messages()
    assert message.attempts == 3


def test_the_attempts_of_messages_in_flight_survive_a_restart(bench):
    client = bench.consume("t", "c", 2)
    bench.publish("t", b"1", b"2")
    assert [message.attempts for message in client.link.take_messages()] == [1, 1]
    again = bench.restart()
    assert [message.attempts for message in again.consume("t", "c", 2).link.take_messages()] == [2, 2]


def test_a_requeued_message_is_delivered_when_it_is_due_after_a_crash(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    (message,) = client.link.take_messages()
    client.channel.requeue(client, message.id, 10 * SECOND)
    bench.settle()
    bench.leave(client)
    bench.clock.advance(4 * SECOND)
    again = bench.crash()
    assert again.counts() == (0, 0, 1)
    consumer = again.consume("t", "c", 1)
    again.advance(5999 * MS)
    assert consumer.link.take_frames() == []
    again.advance(1 * MS)
    assert consumer.link.take_bodies() == [b"1"]


def test_a_message_that_times_out_is_delivered_again(bench):
    client = bench.consume("t", "c", 1, msg_timeout_ns=SECOND)
    bench.publish("t", b"1")
    assert client.link.take_bodies() == [b"1"]
    bench.advance(SECOND)
    (message,) = client.link.take_messages()
    assert (message.attempts, client.channel.timeout_count) == (2, 1)


def test_only_ids_of_messages_in_flight_are_accepted(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1", b"2")
    (message,) = client.link.take_messages()
    other_node = b"%016x" % (int(message.id, 16) ^ 1 << 12)
    following = b"%016x" % (int(message.id, 16) + 1)
    for wrong in (other_node, following, b"0" * 16, b"f" * 16, b"0123456789ABCDEF", b" " * 16, b"_" * 16):
        assert client.channel.finish(client, wrong) == NOT_IN_FLIGHT
        assert client.channel.requeue(client, wrong, 0) == NOT_IN_FLIGHT
        assert client.channel.touch(client, wrong) == NOT_IN_FLIGHT
    assert client.channel.finish(client, message.id) is None


def test_empty_finishes_everything_durably(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1", b"2", b"3")
    bench.defer("t", b"4", SECOND)
    client.channel.empty()
    assert bench.counts() == (0, 0, 0)
    bench.publish("t", b"5")
    again = bench.crash()
    assert again.counts() == (1, 0, 0)
    assert again.consume("t", "c", 9).link.take_bodies() == [b"5"]


def test_a_paused_channel_stays_paused_after_a_crash(bench):
    channel = bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    channel.pause()
    bench.settle()
    again = bench.crash()
    client = again.consume("t", "c", 1)
    assert client.channel.paused
    assert client.link.take_bodies() == []
    client.channel.unpause()
    again.settle()
    assert client.link.take_bodies() == [b"1"]


def test_a_deleted_channel_does_not_come_back(bench):
    bench.broker.topic("t").channel("a")
    bench.broker.topic("t").channel("b")
    bench.publish("t", b"1")
    bench.broker.delete_channel("t", "a")
    bench.settle()
    again = bench.crash()
    assert list(again.broker.topic("t").channels) == ["b"]
    assert again.counts("b") == (1, 0, 0)


def test_a_new_channel_gets_the_messages_that_follow(bench):
    bench.broker.topic("t").channel("a")
    bench.publish("t", b"1")
    bench.broker.topic("t").publish(b"\0\0\0\1" + b"2", 1)
    bench.broker.topic("t").channel("b")
    bench.publish("t", b"3")
    assert bench.counts("b") == (1, 0, 0)
    assert bench.broker.topic("t").channel("b").message_count == 1
    assert bench.consume("t", "b", 9).link.take_bodies() == [b"3"]


def test_an_ephemeral_channel_drops_its_oldest_messages(tmp_path):
    bench = LogBench(tmp_path, mem_queue_size=2)
    channel = bench.broker.topic("t").channel("c#ephemeral")
    bench.publish("t", b"1", b"2", b"3")
    assert (channel.depth, channel.message_count) == (2, 3)
    assert bench.consume("t", "c#ephemeral", 10).link.take_bodies() == [b"2", b"3"]
    again = bench.crash()
    assert (list(again.broker.topic("t").channels), again.broker.topic("t").depth) == ([], 0)


def test_a_sample_finishes_the_messages_that_it_leaves_out(bench):
    client = bench.consume("t", "c", 1000, sample_rate=50)
    bench.publish("t", *(b"%d" % number for number in range(300)))
    bodies = finish_all(client)
    assert 50 < len(bodies) < 250
    assert bench.counts() == (0, 0, 0)
    assert bench.restart().counts() == (0, 0, 0)


def test_messages_that_are_not_in_memory_are_read_in_threads(small):
    bodies = [b"%06d" % number * 20 for number in range(2000)]
    small.broker.topic("t").channel("c")
    for start in range(0, len(bodies), 50):
        small.publish("t", *bodies[start : start + 50])
    small.advance(10 * SECOND)
    assert small.broker.logs._store.memory_size < 40_000
    small.sync_threads.is_slow = True
    client = small.consume("t", "c", 100)
    assert client.link.take_frames() == []
    small.sync_threads.is_slow = False
    small.sync_threads.finish()
    small.settle()
    received = []
    while found := finish_all(client):
        received += found
        small.settle()
    assert received == bodies
    assert small.counts() == (0, 0, 0)


def test_messages_that_come_again_are_read_again(small):
    client = small.consume("t", "c", 3)
    small.publish("t", *(b"%06d" % number * 500 for number in range(20)))
    small.advance(10 * SECOND)
    seen = {}
    for _ in range(200):
        for message in client.link.take_messages():
            assert message.attempts == seen.get(message.body, 0) + 1
            seen[message.body] = message.attempts
            if message.attempts < 3:
                client.channel.requeue(client, message.id, 0)
            else:
                client.channel.finish(client, message.id)
        small.settle()
    assert sorted(seen.values()) == [3] * 20
    assert small.counts() == (0, 0, 0)


def test_the_files_are_small_when_the_topics_are_few(tmp_path):
    bench = LogBench(tmp_path)
    bench.publish("t", b"1")
    bench.broker.close_topics()
    assert sorted(os.listdir(tmp_path)) == ["nsqx.commit.0", "nsqx.commit.1", "t.topic"]


def test_finished_segments_are_removed_while_nsqd_runs(bench):
    client = bench.consume("t", "c", 100)
    slow = bench.consume("t", "slow", 0)
    bodies = [b"%d" % number + b"x" * 100_000 for number in range(30)]
    for start in range(0, 30, 3):
        bench.publish("t", *bodies[start : start + 3])
        assert finish_all(client) == bodies[start : start + 3]
    bench.advance(5 * SECOND)
    assert sum(file.stat().st_size for file in bench.data_path.glob("t.topic/*.seg")) > 3_000_000
    bench.set_ready(slow, 100)
    assert finish_all(slow) == bodies
    for _ in range(5):
        bench.advance(SECOND)
    assert sum(file.stat().st_size for file in bench.data_path.glob("t.topic/*.seg")) < 1000
    bench.publish("t", b"next")
    assert finish_all(client) == [b"next"]
    again = bench.restart()
    assert (again.counts(), again.counts("slow")) == ((0, 0, 0), (1, 0, 0))
