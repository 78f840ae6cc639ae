"""A topic: every channel gets every message, and messages wait if there is no channel, with any flow."""

import os

import pytest

from broker_bench import SECOND, Bench
from nsqx.errors import BrokerExiting
from rawclient import sized


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def depths(bench, name="t"):
    """Return the number of messages that wait in the topic, and in each of its channels."""
    topic = bench.broker.topic(name)
    return topic.depth, {channel.name: channel.depth for channel in topic.channels.values()}


def move_all(bench):
    """Run the loop until the topic has moved its whole backlog."""
    for _ in range(20):
        bench.advance(0)


# Fan-out


def test_every_channel_gets_its_own_copy(bench):
    consumers = [bench.consume("t", name, 10) for name in ("a", "b", "c")]
    bench.publish("t", b"1", b"2")
    got = [consumer.link.take_messages() for consumer in consumers]
    assert [[message.body for message in messages] for messages in got] == [[b"1", b"2"]] * 3
    assert len({tuple((m.id, m.timestamp_ns, m.attempts) for m in messages) for messages in got}) == 1
    first, second, _ = consumers
    first.channel.requeue(first, got[0][0].id, 0)
    bench.settle()
    assert first.link.take_messages()[0].attempts == 2
    assert second.channel.finish(second, got[1][0].id) is None


def test_ids_are_unique_and_increasing(bench):
    client = bench.consume("t", "c", 10)
    bench.publish("t", b"1", b"2")
    bench.publish("t", b"3")
    bench.advance(5)
    bench.publish("t", b"4")
    ids = [message.id for message in client.link.take_messages()]
    assert ids == sorted(set(ids))


def test_counters(bench):
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"12345", b"67")
    bench.defer("t", b"890", SECOND)
    topic = bench.broker.topic("t")
    assert (topic.message_count, topic.message_bytes) == (3, 10)
    assert topic.channels["c"].message_count == 3


def test_a_later_channel_gets_only_later_messages(bench):
    bench.broker.topic("t").channel("a")
    bench.publish("t", b"1")
    bench.broker.topic("t").channel("b")
    bench.publish("t", b"2")
    assert depths(bench) == (0, {"a": 2, "b": 1})


# Waiting


def test_messages_wait_for_the_first_channel(bench):
    bench.publish("t", b"1", b"2")
    bench.publish("t", b"3")
    assert depths(bench) == (3, {})
    client = bench.consume("t", "c", 10)
    assert client.link.take_bodies() == [b"1", b"2", b"3"]
    assert depths(bench) == (0, {"c": 0})


def test_a_topic_keeps_messages_again_after_its_last_channel_is_deleted(bench):
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    assert bench.broker.delete_channel("t", "c")
    bench.publish("t", b"2")
    assert depths(bench) == (1, {})


@pytest.mark.parametrize("mem_queue_size", [0, 1, 100])
def test_a_paused_topic_keeps_messages_from_its_channels(tmp_path, mem_queue_size):
    bench = Bench(tmp_path, mem_queue_size=mem_queue_size)
    client = bench.consume("t", "c", 10)
    topic = bench.broker.topic("t")
    topic.pause()
    bench.publish("t", b"1", b"2")
    bench.publish("t", b"3")
    assert (topic.depth, client.link.take_frames()) == (3, [])
    topic.unpause()
    bench.settle()
    move_all(bench)
    assert sorted(client.link.take_bodies()) == [b"1", b"2", b"3"]
    bench.publish("t", b"4")
    assert client.link.take_bodies() == [b"4"]


def test_pausing_a_topic_does_not_stop_its_channels(bench):
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    bench.broker.topic("t").pause()
    client = bench.consume("t", "c", 10)
    assert client.link.take_bodies() == [b"1"]


# Deferral


def test_every_channel_defers_its_copy(bench):
    consumers = [bench.consume("t", name, 10) for name in ("a", "b")]
    bench.defer("t", b"1", SECOND)
    assert [consumer.channel.deferred_count for consumer in consumers] == [1, 1]
    bench.advance(SECOND)
    assert [consumer.link.take_bodies() for consumer in consumers] == [[b"1"], [b"1"]]


# Ephemeral topics


def test_an_ephemeral_topic_is_deleted_with_its_last_channel(bench):
    bench.publish("t#ephemeral", b"1")
    assert bench.broker.find_topic("t#ephemeral") is not None
    first = bench.consume("t#ephemeral", "a#ephemeral")
    second = bench.consume("t#ephemeral", "b#ephemeral")
    bench.leave(first)
    assert bench.broker.find_topic("t#ephemeral") is not None
    bench.leave(second)
    assert bench.broker.find_topic("t#ephemeral") is None


def test_a_durable_topic_stays_without_channels(bench):
    bench.leave(bench.consume("t", "c#ephemeral"))
    assert bench.broker.find_topic("t").channels == {}


# Administration


def test_empty_clears_the_topic_and_not_its_channels(bench):
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    topic = bench.broker.topic("t")
    topic.pause()
    bench.publish("t", b"2")
    topic.empty()
    topic.unpause()
    bench.settle()
    assert depths(bench) == (0, {"c": 1})
    bench.publish("t", b"3")
    assert depths(bench) == (0, {"c": 2})


def test_delete_removes_channels_messages_and_files(tmp_path):
    bench = Bench(tmp_path, store="classic", mem_queue_size=0)
    client = bench.consume("t", "c")
    topic = bench.broker.topic("t")
    bench.publish("t", b"1")
    topic.pause()
    bench.publish("t", b"2")
    assert len(os.listdir(tmp_path)) >= 2
    assert bench.broker.delete_topic("t")
    bench.settle()
    assert client.link.is_closed
    assert bench.broker.find_topic("t") is None
    assert os.listdir(tmp_path) == []
    with pytest.raises(BrokerExiting):
        topic.publish(sized(b"3"), 1)
    with pytest.raises(BrokerExiting):
        topic.publish_deferred(b"3", 1)
    with pytest.raises(BrokerExiting):
        topic.channel("new")
    assert (topic.depth, topic.backend_depth, topic.disk_queues(), topic.lost_counts()) == (0, 0, [], {})
    for end in (topic.empty, topic.close, topic.delete):
        end()
    assert not bench.broker.delete_topic("t")
