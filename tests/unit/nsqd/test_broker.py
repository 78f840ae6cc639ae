"""The broker: topics by name, restarts, health and topology."""

import asyncio
import gc
import json

import pytest

from broker_bench import MINUTE, SECOND, Bench, BenchClock, BenchLog
from loop_turns import Progress
from nsqx.errors import BrokerExiting
from nsqx.nsqd.broker import Broker
from nsqx.nsqd.channel import Channel
from nsqx.nsqd.metadata import SavedTopic, load_metadata
from nsqx.nsqd.options import NsqdOptions
from nsqx.nsqd.publish_options import PublishOptions
from nsqx.nsqd.topic import Topic


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_topic_is_created_once(bench):
    topic = bench.broker.topic("t")
    assert bench.broker.topic("t") is topic
    assert bench.broker.find_topic("t") is topic
    assert bench.broker.find_topic("other") is None
    assert topic.channel("c") is topic.channel("c") is topic.find_channel("c")


def test_an_exiting_broker_creates_no_topics(bench):
    topic = bench.broker.topic("t")
    bench.broker.exiting = True
    assert bench.broker.topic("t") is topic
    with pytest.raises(BrokerExiting, match="^exiting$"):
        bench.broker.topic("new")


@pytest.mark.parametrize(
    ("change", "saves"),
    [
        (lambda broker: broker.topic("t"), 1),
        (lambda broker: broker.topic("t").channel("c"), 2),
        (lambda broker: broker.topic("t#ephemeral").channel("c#ephemeral"), 0),
        (lambda broker: broker.topic("t").channel("c#ephemeral"), 1),
    ],
)
def test_durable_topics_and_channels_are_saved_when_created(bench, change, saves):
    change(bench.broker)
    assert bench.metadata_store.save_count == saves


class LookupStandIn:
    """An nsqlookupd that knows the same channels for every topic."""

    def __init__(self, channels):
        self._channels = channels

    def has_connection(self):
        return True

    async def channels_of(self, topic_name):
        return self._channels

    def registered(self, topic_name, channel_name=""):
        pass


async def create_with_known_channels(bench, names):
    """Create the topic "t" on a broker whose nsqlookupd knows these channels of it."""
    bench.broker.options.nsqlookupd_tcp_addresses = ["127.0.0.1:4160"]
    bench.broker.lookup = LookupStandIn(names)
    return bench.broker.topic("t")


def test_channels_known_to_nsqlookupd_are_created_a_few_each_turn(bench):
    async def scenario():
        topic = await create_with_known_channels(bench, [f"c{number}" for number in range(200)])
        progress = Progress(lambda: len(topic.channels))
        await progress.watch(bench.broker.channels_fetch(topic))
        assert bench.broker.channels_fetch(topic) is None
        return len(topic.channels), progress.longest

    assert asyncio.run(scenario()) == (200, 20)


def test_channels_known_to_nsqlookupd_are_not_created_for_a_deleted_topic(bench):
    async def scenario():
        topic = await create_with_known_channels(bench, [f"c{number}" for number in range(200)])
        fetch = bench.broker.channels_fetch(topic)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 < len(topic.channels) < 200
        bench.broker.lookup = None
        bench.broker.delete_topic("t")
        await fetch
        return topic.channels

    assert asyncio.run(scenario()) == {}


def test_deletions_are_saved(bench):
    bench.broker.topic("t").channel("c")
    saved = bench.metadata_store.save_count
    bench.broker.delete_channel("t", "c")
    assert bench.metadata_store.save_count == saved + 1
    bench.broker.delete_topic("t")
    assert bench.metadata_store.save_count == saved + 2


def test_deleting_an_unknown_topic_or_channel_returns_false(bench):
    assert not bench.broker.delete_topic("t")
    assert not bench.broker.delete_channel("t", "c")
    bench.broker.topic("t")
    assert not bench.broker.delete_channel("t", "c")


def test_deleted_queues_are_not_synced(tmp_path):
    bench = Bench(tmp_path, store="classic", mem_queue_size=0)
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    bench.broker.delete_topic("t")
    bench.advance(bench.options.sync_timeout)
    assert list(tmp_path.iterdir()) == []


def test_clients_are_numbered(bench):
    first, second = bench.connect(), bench.connect()
    assert first.id != second.id
    assert bench.broker.clients == {first.id: first, second.id: second}
    assert first.connected_at_s == bench.clock.wall_ns() // SECOND


def test_messages_published_over_http_are_delivered(bench):
    client = bench.consume("t", "c", 10)
    topic = bench.broker.topic("t")
    bench.broker.publish(topic, b"one")
    bench.broker.publish_many(topic, b"\x00\x00\x00\x01a\x00\x00\x00\x02bc", 2)
    bench.broker.publish_with(topic, b"\x00\x00\x00\x05later", 1, PublishOptions(defer_ns=SECOND))
    bench.settle()
    assert client.link.take_bodies() == [b"one", b"a", b"bc"]
    bench.advance(SECOND)
    assert client.link.take_bodies() == [b"later"]


def test_restore_creates_the_saved_topics_and_saves_nothing(tmp_path):
    bench = Bench(tmp_path)
    bench.broker.restore(
        [
            SavedTopic("t", True, [("c", False), ("d", True)]),
            SavedTopic("bad name", False),
            SavedTopic("u", False, [("bad name", False), ("e", False)]),
        ]
    )
    topics = bench.broker.topics
    assert {name: (topic.paused, list(topic.channels)) for name, topic in topics.items()} == {
        "t": (True, ["c", "d"]),
        "u": (False, ["e"]),
    }
    assert [topics["t"].channels[name].paused for name in "cd"] == [False, True]
    assert bench.metadata_store.save_count == 0
    assert sum(level == "warn" for level, _ in bench.log.lines) == 2


def test_messages_are_delivered_only_when_all_channels_are_restored(tmp_path):
    bench = Bench(tmp_path, store="classic")
    bench.publish("t", b"1", b"2")
    bench.broker.close_topics()
    bench = Bench(tmp_path, store="classic")
    bench.broker.restore([SavedTopic("t", False, [("a", False), ("b", False)])])
    bench.settle()
    topic = bench.broker.topic("t")
    assert (topic.depth, topic.channels["a"].depth, topic.channels["b"].depth) == (0, 2, 2)


def test_files_of_an_unsaved_topic_are_found_when_it_is_created(tmp_path):
    bench = Bench(tmp_path)
    bench.publish("t", b"1")
    bench.broker.close_topics()
    bench = Bench(tmp_path)
    bench.broker.restore([])
    client = bench.consume("t", "c", 1)
    bench.settle()
    assert client.link.take_bodies() == [b"1"]


def test_close_topics_keeps_every_message_over_a_restart(tmp_path):
    clock = BenchClock()
    bench = Bench(tmp_path, clock=clock, mem_queue_size=2)
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1", b"2", b"3", b"4")
    bench.defer("t", b"deferred", MINUTE)
    bench.publish("lonely", b"5", b"6", b"7")
    client.link.take_messages()
    bench.broker.close_topics()
    with pytest.raises(BrokerExiting):
        bench.publish("t", b"too late")

    bench = Bench(tmp_path, clock=clock, mem_queue_size=2)
    client = bench.consume("t", "c", 10)
    assert sorted(client.link.take_bodies()) == [b"1", b"2", b"3", b"4"]
    lonely = bench.consume("lonely", "c", 10)
    bench.advance(0)
    assert sorted(lonely.link.take_bodies()) == [b"5", b"6", b"7"]
    bench.advance(MINUTE)
    assert b"deferred" in client.link.take_bodies()


def test_close_topics_logs_a_failed_write_and_closes_the_other_topics(tmp_path):
    bench = Bench(tmp_path, store="classic")
    bench.publish("good", b"1")
    bench.publish("bad", b"1")
    (tmp_path / "bad.diskqueue.000000.dat").mkdir()
    bench.broker.close_topics()
    assert any("TOPIC(bad): failed to flush to disk" in line for line in bench.log.errors())
    assert (tmp_path / "good.diskqueue.000000.dat").exists()


def test_health_follows_the_last_write(bench):
    assert (bench.broker.is_healthy, bench.broker.health) == (True, "OK")
    bench.broker.commits.note_failure(OSError("No space left on device"))
    assert (bench.broker.is_healthy, bench.broker.health) == (False, "NOK - No space left on device")


def test_a_later_successful_write_of_any_queue_restores_health(tmp_path):
    bench = Bench(tmp_path, store="classic", mem_queue_size=0)
    bench.broker.topic("bad")
    (tmp_path / "bad.diskqueue.000000.dat").mkdir()
    bench.broker.topic("bad").publish(b"\x00\x00\x00\x01x", 1)
    bench.settle()
    assert not bench.broker.is_healthy
    bench.publish("good", b"x")
    assert bench.broker.is_healthy


@pytest.mark.parametrize(
    ("zone", "region", "expected"),
    [("z", "r", 0), ("z", "", 0), ("", "r", 1), ("other", "r", 1), ("other", "other", 2), ("", "", 2)],
)
def test_locality(tmp_path, zone, region, expected):
    bench = Bench(tmp_path, enable_experiment=["topology-aware-consumption"], topology_zone="z", topology_region="r")
    client = bench.connect(topology_zone=zone, topology_region=region)
    assert bench.broker.locality_of(client) == expected


def test_a_broker_without_zone_and_region_has_no_near_clients(tmp_path):
    bench = Bench(tmp_path, enable_experiment=["topology-aware-consumption"])
    assert bench.broker.locality_of(bench.connect()) == 2


async def test_metadata_and_messages_with_real_syncs_and_saves(tmp_path):
    """Topics survive a restart with real syncs and saves, without sockets."""
    loop = asyncio.get_running_loop()
    for life in (1, 2):
        broker = Broker(
            NsqdOptions(data_path=str(tmp_path), mem_queue_size=0), BenchLog(), BenchClock(), loop.call_soon
        )
        broker.restore(load_metadata(str(tmp_path)))
        topic = broker.topic("t")
        channel = topic.channel("c")
        assert (channel.depth, channel.paused) == (life - 1, life == 2)
        written = loop.create_future()
        broker.publish(topic, b"message")
        broker.commits.when_written(written.set_result, topic)
        assert await written is None
        assert channel.depth == life
        channel.pause()
        await broker.save_metadata(is_urgent=True)
        saved = json.loads((tmp_path / "nsqd.dat").read_bytes())
        assert saved["topics"] == [{"name": "t", "paused": False, "channels": [{"name": "c", "paused": True}]}]
        await broker.close_disk_threads()
        broker.close_topics()
    assert (tmp_path / "t:c.diskqueue.000000.dat").stat().st_size == 2 * (4 + 26 + 7)


@pytest.mark.parametrize("store", ["classic", "log"])
def test_deleted_topics_and_channels_leave_no_reference_cycles(tmp_path, store):
    """The garbage collector does not visit topics, because they are frozen, so it would not find such cycles."""
    bench = Bench(tmp_path, store=store)
    bench.broker.topic("in_no_cycle").channel("c")
    gc.disable()
    try:
        bench.broker.delete_topic("in_no_cycle")
        topics = [each for each in gc.get_objects() if isinstance(each, Topic)]
        channels = [each for each in gc.get_objects() if isinstance(each, Channel)]
    finally:
        gc.enable()
    assert "in_no_cycle" not in [topic.name for topic in topics]
    assert "in_no_cycle" not in [channel.topic_name for channel in channels]


def test_many_messages_in_memory_are_freed_over_several_turns(bench):
    """Freeing a million messages at once would block every client."""
    items = list(range(12_000))
    bench.broker.discard(items)
    left = [len(items)]
    while bench.soon:
        bench.soon.pop(0)()
        left.append(len(items))
    assert left == [7000, 2000, 0]
