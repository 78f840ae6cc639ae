"""Channels of a log topic that are moved, or created at a position: depths, deliveries, and what a restart finds."""

import random

import pytest
from test_log_cursor import LogBench, finish_all
from test_log_flow import move_to

from broker_bench import MS, SECOND
from nsqx.nsqd.channel_store import NOT_IN_FLIGHT


@pytest.fixture(params=["fsync", "write"])
def bench(request, tmp_path):
    return LogBench(tmp_path, durability=request.param)


def channel_of(bench, name="c"):
    return bench.broker.topic("t").channel(name)


def seek(bench, offset, channel="c", **options):
    result = channel_of(bench, channel).seek(offset, **options)
    bench.settle()
    return result


def log_of(bench):
    return bench.broker.logs.find("t")


def test_a_channel_goes_back_and_delivers_again(bench):
    client = bench.consume("t", "c", 10)
    bench.publish("t", b"1", b"2", b"3")
    assert finish_all(client) == [b"1", b"2", b"3"]
    result = seek(bench, 1)
    assert result == (3, 1, 0, 2, 0, 0)
    assert finish_all(client) == [b"2", b"3"]
    assert bench.counts() == (0, 0, 0)


def test_a_new_position_survives_a_crash(bench):
    client = bench.consume("t", "c", 10)
    bench.publish("t", b"1", b"2", b"3", b"4")
    finish_all(client)
    bench.leave(client)
    seek(bench, 1)
    assert bench.counts() == (3, 0, 0)
    again = bench.crash()
    assert again.counts() == (3, 0, 0)
    assert finish_all(again.consume("t", "c", 10)) == [b"2", b"3", b"4"]


def test_messages_in_flight_and_requeued_are_forgotten(bench):
    client = bench.consume("t", "c", 4)
    bench.publish("t", b"1", b"2", b"3", b"4", b"5")
    first, second, third, fourth = client.link.take_messages()
    client.channel.requeue(client, first.id, 10 * SECOND)
    client.channel.requeue(client, second.id, 0)
    client.ready_count = 0
    bench.settle()
    result = seek(bench, 5)
    assert (result.in_flight_count, result.forgotten_count) == (2, 2)
    assert bench.counts() == (0, 0, 0)
    assert client.in_flight_count == 0
    for message in (third, fourth):
        assert client.channel.finish(client, message.id) == NOT_IN_FLIGHT
        assert client.channel.requeue(client, message.id, 0) == NOT_IN_FLIGHT
        assert client.channel.touch(client, message.id) == NOT_IN_FLIGHT
    assert bench.crash().counts() == (0, 0, 0)


def test_the_counts_of_a_seek(bench):
    client = bench.consume("t", "c", 3)
    bench.publish("t", b"1", b"2", b"3", b"4")
    first, second, _ = client.link.take_messages()
    client.ready_count = 0
    client.channel.requeue(client, first.id, 10 * SECOND)
    client.channel.requeue(client, second.id, 0)
    bench.settle()
    before = bench.counts()
    assert before == (2, 1, 1)
    expected = (3, 2, 2, 2, 1, 2)
    assert seek(bench, 2, is_dry_run=True) == expected
    assert bench.counts() == before
    assert len(log_of(bench).state.channels[1].holes) == 2
    assert seek(bench, 2) == expected
    assert bench.counts() == (2, 0, 0)


def test_a_seek_to_the_end_skips_what_is_not_written_yet(tmp_path):
    bench = LogBench(tmp_path)
    channel_of(bench)
    bench.publish("t", b"1")
    bench.sync_threads.is_slow = True
    bench.publish("t", b"2", b"3")
    assert seek(bench, log_of(bench).end).depth == 0
    bench.sync_threads.is_slow = False
    bench.sync_threads.finish()
    bench.settle()
    assert bench.counts() == (0, 0, 0)
    bench.publish("t", b"4")
    assert bench.counts() == (1, 0, 0)
    assert channel_of(bench).message_count == 2  # 1 and 4
    assert finish_all(bench.consume("t", "c", 10)) == [b"4"]


def test_gaps_deferred_and_addressed_messages_do_not_count(bench):
    channel_of(bench)
    channel_of(bench, "d")
    bench.publish("t", b"1")
    bench.defer("t", b"later", 10 * SECOND)
    move_to(bench, b"only c")
    move_to(bench, b"only d", channel="d")
    bench.publish("t", b"2")
    assert (bench.counts("c"), bench.counts("d")) == ((3, 0, 1), (3, 0, 1))
    client = bench.consume("t", "c", 10)
    assert finish_all(client) == [b"1", b"only c", b"2"]
    for offset, depth in [(0, 3), (1, 2), (2, 2), (3, 1), (4, 1), (5, 0), (2, 2), (0, 3)]:
        client.ready_count = 0
        assert seek(bench, offset).depth == depth
        assert bench.counts("c") == (depth, 0, 1)
        assert bench.counts("d") == (3, 0, 1)
    assert bench.crash().counts("c") == (3, 0, 1)
    bench.set_ready(client, 10)
    assert finish_all(client) == [b"1", b"only c", b"2"]


def test_a_deferred_message_is_repeated_once_after_it_was_due(bench):
    client = bench.consume("t", "c", 10)
    bench.defer("t", b"later", SECOND)
    bench.publish("t", b"1")
    bench.advance(SECOND)
    assert finish_all(client) == [b"1", b"later"]
    assert seek(bench, 0).depth == 2
    assert finish_all(client) == [b"1", b"later"]


def test_a_channel_of_a_paused_topic_gets_only_what_it_may_have(bench):
    client = bench.consume("t", "c", 10)
    topic = bench.broker.topic("t")
    bench.publish("t", b"1", b"2")
    finish_all(client)
    topic.pause()
    bench.publish("t", b"3")
    assert seek(bench, 0).depth == 2
    assert finish_all(client) == [b"1", b"2"]
    assert (topic.depth, bench.counts()) == (1, (0, 0, 0))
    topic.unpause()
    bench.settle()
    assert finish_all(client) == [b"3"]


def test_a_channel_can_pass_the_messages_of_a_paused_topic(bench):
    channel_of(bench)
    topic = bench.broker.topic("t")
    topic.pause()
    bench.publish("t", b"1", b"2")
    seek(bench, 2)
    channel_of(bench).empty()
    bench.settle()
    bench.publish("t", b"3")
    assert (topic.depth, bench.counts()) == (3, (0, 0, 0))
    again = bench.crash()
    again.broker.topic("t").unpause()
    again.settle()
    assert again.counts() == (1, 0, 0)
    assert channel_of(again).message_count == 1
    assert finish_all(again.consume("t", "c", 10)) == [b"3"]


def test_emptying_a_paused_topic_leaves_exact_depths(bench):
    channel_of(bench)
    topic = bench.broker.topic("t")
    topic.pause()
    bench.publish("t", b"1", b"2")
    seek(bench, 2)
    topic.empty()
    topic.unpause()
    bench.settle()
    bench.publish("t", b"3", b"4", b"5")
    assert bench.counts() == (3, 0, 0)
    assert channel_of(bench).message_count == 3


def test_a_paused_channel_moves_and_stays_paused(bench):
    client = bench.consume("t", "c", 10)
    bench.publish("t", b"1", b"2")
    finish_all(client)
    client.channel.pause()
    seek(bench, 0)
    assert (bench.counts(), client.link.take_messages()) == ((2, 0, 0), [])
    again = bench.crash()
    assert (again.counts(), channel_of(again).paused) == ((2, 0, 0), True)
    client.channel.unpause()
    bench.settle()
    assert finish_all(client) == [b"1", b"2"]


def test_an_ephemeral_channel_moves_within_its_limit(tmp_path):
    bench = LogBench(tmp_path, mem_queue_size=3)
    channel_of(bench, "durable")
    client = bench.consume("t", "c#ephemeral", 10)
    bench.publish("t", *(b"%d" % number for number in range(5)))
    assert len(finish_all(client)) == 5
    client.ready_count = 0
    assert seek(bench, 0, "c#ephemeral").depth == 3
    assert bench.counts("c#ephemeral") == (3, 0, 0)
    bench.set_ready(client, 10)
    assert finish_all(client) == [b"2", b"3", b"4"]
    assert seek(bench, 4, "c#ephemeral").depth == 1
    assert "c#ephemeral" not in [saved.name for saved in log_of(bench).state.channels.values()]


def test_clients_that_were_at_their_limit_get_messages_after_a_seek(bench):
    client = bench.consume("t", "c", 2)
    bench.publish("t", b"1", b"2", b"3")
    assert [message.body for message in client.link.take_messages()] == [b"1", b"2"]
    seek(bench, 2)
    assert finish_all(client) == [b"3"]


@pytest.mark.parametrize(("start", "bodies"), [(0, [b"1", b"2"]), (1, [b"2"]), (2, [])])
def test_a_new_channel_begins_where_it_is_told(bench, start, bodies):
    client = bench.consume("t", "first", 10)
    bench.publish("t", b"1", b"2")
    finish_all(client)
    bench.broker.topic("t").channel("c", start)
    bench.settle()
    assert bench.counts() == (len(bodies), 0, 0)
    again = bench.crash()
    assert again.counts() == (len(bodies), 0, 0)
    again.publish("t", b"3")
    assert finish_all(again.consume("t", "c", 10)) == [*bodies, b"3"]


@pytest.mark.parametrize(("configured", "depths"), [("auto", (2, 0)), ("beginning", (2, 2)), ("end", (0, 0))])
def test_the_start_of_new_channels_is_configured(tmp_path, configured, depths):
    bench = LogBench(tmp_path, channel_start=configured)
    bench.publish("t", b"1", b"2")
    for name, depth in zip(("c", "d"), depths, strict=True):
        channel_of(bench, name)
        bench.settle()
        assert bench.counts(name) == (depth, 0, 0)
    again = bench.restart(channel_start=configured)
    assert (again.counts("c")[0], again.counts("d")[0]) == depths
    again.broker.topic("t").channel("e", 1)
    assert again.counts("e") == (1, 0, 0)


def test_channels_of_a_topic_that_has_not_started_get_its_first_messages(tmp_path):
    """They exist on other nsqds, and nsqlookupd was asked for them when the first message was published."""
    bench = LogBench(tmp_path, channel_start="end")
    start = bench.broker._start_topic
    bench.broker._start_topic = lambda topic: None
    bench.publish("t", b"1")
    channel_of(bench)
    start(bench.broker.topic("t"))
    bench.settle()
    assert bench.counts() == (1, 0, 0)


@pytest.mark.parametrize("start", [0, 1, 2])
def test_the_first_channel_can_leave_out_messages(bench, start):
    topic = bench.broker.topic("t")
    bench.publish("t", b"1", b"2")
    assert topic.depth == 2
    topic.channel("c", start)
    bench.settle()
    assert (topic.depth, bench.counts(), channel_of(bench).message_count) == (0, (2 - start, 0, 0), 2 - start)


def test_a_seek_needs_the_segments_of_finished_messages(tmp_path):
    """Segments that a channel has moved back to are not removed."""
    bench = LogBench(tmp_path, max_bytes_per_file=2000)
    bench.broker.close_topics()
    bench = bench.crash()
    client = bench.consume("t", "c", 100)
    for number in range(40):
        bench.publish("t", b"%d" % number + b"x" * 100)
    finish_all(client)
    client.ready_count = 0
    first = log_of(bench).first_kept
    count = seek(bench, first).depth
    bench.advance(5 * SECOND)
    assert log_of(bench).first == first
    assert bench.counts() == (count, 0, 0)
    bench.set_ready(client, 100)
    assert len(finish_all(client)) == count
    bench.advance(5 * SECOND)


class RandomUse:
    """Random use of one topic with two channels; the seed determines it."""

    def __init__(self, bench, seed):
        self.bench = bench
        self.rng = random.Random(seed)
        for name in ("c", "d"):
            channel_of(bench, name)
        self.clients = {}

    def step(self):
        rng, bench = self.rng, self.bench
        topic = bench.broker.topic("t")
        name = rng.choice(("c", "d"))
        action = rng.randrange(10)
        if action < 2:
            bench.publish("t", *(b"%d" % number for number in range(rng.randint(1, 4))))
        elif action == 2:
            bench.defer("t", b"later", rng.randint(1, 50) * MS)
        elif action == 3:
            move_to(bench, b"addressed", channel=name)
        elif action == 4:
            topic.unpause() if topic.paused else topic.pause()
        elif action == 5 and rng.random() < 0.3:
            topic.empty()
        elif action == 5 and rng.random() < 0.3:
            channel_of(bench, name).empty()
        elif action == 6:
            self.consume(name)
        elif action == 7:
            bench.advance(rng.randint(1, 30) * MS)
        else:
            seek(bench, rng.randint(log_of(bench).first_kept, log_of(bench).end), name)
        bench.settle()

    def consume(self, name):
        client = self.bench.consume("t", name, self.rng.randint(1, 5))
        for message in client.link.take_messages():
            if self.rng.random() < 0.7:
                client.channel.finish(client, message.id)
            elif self.rng.random() < 0.5:
                client.channel.requeue(client, message.id, self.rng.choice((0, 5 * SECOND)))
        self.bench.leave(client)

    def totals(self, bench):
        topic = bench.broker.topic("t")
        found = [topic.depth]
        for name in ("c", "d"):
            depth, in_flight, deferred = bench.counts(name)
            found += [depth + in_flight, deferred]
        return found


@pytest.mark.parametrize("seed", range(25))
def test_depths_are_those_that_a_crash_finds(tmp_path, seed):
    """A restart counts from the log, so it finds every number that a seek has got wrong."""
    use = RandomUse(LogBench(tmp_path), seed)
    for _ in range(12):
        for _ in range(10):
            use.step()
        use.bench.advance(60 * MS)
        expected = use.totals(use.bench)
        use.bench = use.bench.crash()
        assert use.totals(use.bench) == expected
