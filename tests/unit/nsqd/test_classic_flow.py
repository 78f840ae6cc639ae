"""The classic flow of a topic: a backlog that moves to the channels, durable while it moves."""

import errno
import os
import shutil

import pytest

from broker_bench import MINUTE, SECOND, BenchClock, ClassicBench
from nsqx.errors import DiskQueueError
from rawclient import sized


def depths(bench):
    """Return the number of messages that wait in the topic, and in each of its channels."""
    topic = bench.broker.topic("t")
    return topic.depth, {channel.name: channel.depth for channel in topic.channels.values()}


def move_all(bench):
    """Run the loop until the topic has moved its whole backlog."""
    for _ in range(20):
        bench.advance(0)


def no_space(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Waiting


def test_messages_on_disk_go_to_the_first_channel_too(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=2)
    bench.publish("t", *(b"%d" % number for number in range(6)))
    topic = bench.broker.topic("t")
    assert (topic.depth, topic.backend_depth) == (6, 4)
    client = bench.consume("t", "c", 10)
    move_all(bench)
    assert sorted(client.link.take_bodies()) == [b"%d" % number for number in range(6)]
    assert (topic.depth, topic.backend_depth) == (0, 0)


def test_a_long_backlog_is_moved_over_several_turns(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=20_000)
    for _ in range(5):
        bench.publish("t", *[b"x"] * 1000)
    bench.broker.topic("t").channel("c")
    bench.settle()
    waiting, _ = depths(bench)
    assert 0 < waiting < 5000
    move_all(bench)
    assert depths(bench) == (0, {"c": 5000})


def test_messages_published_during_a_move_are_not_lost(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=20_000)
    for _ in range(5):
        bench.publish("t", *[b"old"] * 1000)
    client = bench.consume("t", "c", 6000)
    bench.publish("t", b"new")
    move_all(bench)
    bodies = client.link.take_bodies()
    assert (len(bodies), bodies.count(b"new")) == (5001, 1)


def test_with_a_memory_queue_of_0_waiting_messages_are_on_disk(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    bench.publish("t", b"1", b"2")
    topic = bench.broker.topic("t")
    assert (topic.depth, topic.backend_depth) == (2, 2)
    client = bench.consume("t", "c", 10)
    move_all(bench)
    assert client.link.take_bodies() == [b"1", b"2"]


# Deferral


@pytest.mark.parametrize("mem_queue_size", [0, 1, 100])
def test_deferred_messages_that_wait_in_the_topic_stay_deferred(tmp_path, mem_queue_size):
    """This holds in memory and on disk."""
    bench = ClassicBench(tmp_path, mem_queue_size=mem_queue_size)
    for number in range(3):
        bench.defer("t", b"%d" % number, MINUTE)
    client = bench.consume("t", "c", 10)
    move_all(bench)
    assert client.link.take_frames() == []
    assert client.channel.deferred_count == 3
    bench.advance(MINUTE)
    assert sorted(client.link.take_bodies()) == [b"0", b"1", b"2"]


def test_a_clock_set_back_does_not_extend_a_deferral_in_the_topic(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    bench.defer("t", b"1", MINUTE)
    bench.clock.wall_offset_ns -= 24 * 60 * MINUTE
    client = bench.consume("t", "c", 10)
    bench.advance(MINUTE - 1)
    assert client.link.take_frames() == []
    bench.advance(1)
    assert client.link.take_bodies() == [b"1"]


def test_deferred_messages_do_not_delay_others(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    bench.defer("t", b"deferred", MINUTE)
    bench.publish("t", b"plain")
    client = bench.consume("t", "c", 10)
    move_all(bench)
    assert client.link.take_bodies() == [b"plain"]


# Ephemeral topics


def test_an_ephemeral_topic_drops_its_overflow_and_has_no_files(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=2)
    bench.publish("t#ephemeral", b"1", b"2", b"3")
    topic = bench.broker.topic("t#ephemeral")
    assert (topic.depth, topic.backend_depth, topic.message_count) == (2, 0, 3)
    client = bench.consume("t#ephemeral", "c#ephemeral", 10)
    assert client.link.take_bodies() == [b"1", b"2"]
    assert os.listdir(tmp_path) == []
    assert bench.metadata_store.save_count == 0


# Administration


def test_close_keeps_the_messages_that_wait_in_the_topic(tmp_path):
    clock = BenchClock()
    bench = ClassicBench(tmp_path, clock=clock, mem_queue_size=3)
    bench.publish("t", b"1", b"2")
    bench.defer("t", b"deferred", MINUTE)
    bench.defer("t", b"deferred on disk", MINUTE)
    bench.broker.topic("t").close()
    clock.advance(20 * SECOND)

    bench = ClassicBench(tmp_path, clock=clock)
    assert bench.broker.topic("t").depth == 4
    client = bench.consume("t", "c", 10)
    move_all(bench)
    assert sorted(client.link.take_bodies()) == [b"1", b"2"]
    assert client.channel.deferred_count == 2
    # The message in memory is deferred for a minute after it reaches a channel, so it is due by then.
    bench.advance(40 * SECOND)
    assert sorted(client.link.take_bodies()) == [b"deferred", b"deferred on disk"]


# Messages on disk stay durable while they move


class MovedTopic:
    """A topic with three messages on disk that were moved to channels whose queues are not synced."""

    def __init__(self, directory, *channel_names):
        directory.mkdir(exist_ok=True)
        self.bench = ClassicBench(directory, mem_queue_size=0)
        self.topic = self.bench.broker.topic("t")
        (self.disk,) = self.topic.disk_queues()
        self.bench.publish("t", b"1", b"2", b"3")
        self.bench.sync_threads.is_slow = True
        self.channels = [self.topic.channel(name) for name in channel_names]
        self.bench.settle()
        move_all(self.bench)

    def sync(self, channel):
        self.bench.sync(*channel.store.disk_queues())
        move_all(self.bench)

    def kept_count(self):
        """Return the number of messages that a restart would find in the topic."""
        self.bench.sync(self.disk)
        copy = ClassicBench(self.disk_copy(), mem_queue_size=0)
        return copy.broker.topic("t").depth

    def disk_copy(self):
        directory = self.bench.broker.data_path
        target = f"{directory}.copy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(directory, target)
        return target


def test_a_record_is_finished_when_its_copies_are_durable_everywhere(tmp_path):
    moving = MovedTopic(tmp_path / "data", "a", "b")
    assert depths(moving.bench) == (0, {"a": 3, "b": 3})
    assert moving.kept_count() == 3
    moving.sync(moving.channels[0])
    assert moving.kept_count() == 3
    moving.sync(moving.channels[1])
    assert moving.kept_count() == 0


def test_messages_on_disk_stay_on_disk_even_with_a_memory_queue(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=2)
    bench.publish("t", b"1", b"2", b"3", b"4")
    channel = bench.broker.topic("t").channel("c")
    bench.settle()
    move_all(bench)
    assert (channel.depth, channel.backend_depth) == (4, 2)


@pytest.mark.parametrize("ending", ["delete", "empty"])
def test_a_move_does_not_wait_for_a_deleted_channel(tmp_path, ending):
    moving = MovedTopic(tmp_path / "data", "a", "b")
    moving.sync(moving.channels[0])
    if ending == "delete":
        moving.topic.delete_channel("b")
    else:
        moving.channels[1].empty()
    assert moving.kept_count() == 0


def test_a_move_does_not_wait_for_an_ephemeral_channel(tmp_path):
    moving = MovedTopic(tmp_path / "data", "a#ephemeral")
    assert moving.kept_count() == 0


def test_copies_lost_in_a_failed_sync_are_made_again(tmp_path, monkeypatch):
    moving = MovedTopic(tmp_path / "data", "a")
    (channel,) = moving.channels
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", no_space)
        patch.setattr(os, "fsync", no_space)
        moving.sync(channel)
    assert (moving.topic.depth, moving.kept_count()) == (3, 3)
    moving.bench.advance(SECOND)
    assert moving.topic.depth == 3  # nothing moves while the disk of a channel fails
    moving.sync(channel)
    moving.bench.advance(SECOND)
    assert (moving.topic.depth, moving.kept_count()) == (0, 3)
    moving.sync(channel)
    assert moving.kept_count() == 0
    client = moving.bench.consume("t", "a", 10)
    assert set(client.link.take_bodies()) == {b"1", b"2", b"3"}


def test_moves_do_not_run_far_ahead_of_the_syncs(tmp_path, monkeypatch):
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    topic = bench.broker.topic("t")
    for _ in range(6):
        bench.publish("t", *[b"x"] * 2000)
    bench.sync_threads.is_slow = True
    channel = topic.channel("c")
    bench.settle()
    move_all(bench)
    assert (topic.depth, channel.depth) == (2000, 10_000)
    bench.sync(*channel.store.disk_queues())
    move_all(bench)
    assert (topic.depth, channel.depth) == (0, 12_000)


def test_deferred_messages_on_disk_stay_on_disk_until_they_are_due(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    bench.defer("t", b"later", MINUTE)
    client = bench.consume("t", "c", 10)
    move_all(bench)
    assert client.link.take_bodies() == []
    bench.advance(MINUTE)
    assert client.link.take_bodies() == [b"later"]
    (queue,) = client.channel.store.disk_queues()
    assert queue.begin_sync() is not None


def test_records_whose_copies_cannot_be_written_stay_when_the_broker_stops(tmp_path, monkeypatch):
    moving = MovedTopic(tmp_path, "a")
    sync = os.fdatasync
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "fdatasync", lambda fd: no_space() if "t:a" in os.readlink(f"/proc/self/fd/{fd}") else sync(fd)
        )
        moving.bench.broker.close_topics()
    again = ClassicBench(tmp_path, mem_queue_size=0)
    assert again.broker.topic("t").depth == 3


# Disks that fail


def test_a_failed_write_to_a_full_file_is_reported_to_its_publisher(tmp_path, monkeypatch):
    bench = ClassicBench(tmp_path, mem_queue_size=0, max_bytes_per_file=100)
    topic = bench.broker.topic("t")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        failures = []
        try:
            topic.publish(b"".join(map(sized, [b"x" * 50] * 3)), 3)
        except DiskQueueError as error:
            failures.append(error)
        bench.broker.commits.when_written(failures.append, topic)
        bench.settle()
    assert str(failures[0]) == "No space left on device"
    assert not bench.broker.is_healthy
    bench.publish("t", b"after")
    client = bench.consume("t", "c", 10)
    move_all(bench)
    assert client.link.take_bodies()[-1:] == [b"after"]


def test_a_failing_channel_does_not_keep_messages_from_the_others(tmp_path, monkeypatch):
    """A message that waited in the topic was acknowledged long ago, so every other channel must get it."""
    bench = ClassicBench(tmp_path, mem_queue_size=0, max_bytes_per_file=100)
    topic = bench.broker.topic("t")
    bench.publish("t", b"x" * 50, b"y" * 50, b"z" * 50)
    topic.pause()
    good, bad = bench.consume("t", "good", 10), topic.channel("bad")
    pwrite, open_file = os.pwrite, os.open
    bad_descriptors = set()

    def note_open(path, *arguments):
        descriptor = open_file(path, *arguments)
        if "t:bad." in os.fspath(path):
            bad_descriptors.add(descriptor)
        else:
            bad_descriptors.discard(descriptor)
        return descriptor

    def fail_for_bad(descriptor, data, position):
        return no_space() if descriptor in bad_descriptors else pwrite(descriptor, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", note_open)
        patch.setattr(os, "pwrite", fail_for_bad)
        topic.unpause()
        bench.settle()
        move_all(bench)
        bench.advance(SECOND)
    assert sorted(good.link.take_bodies()) == [b"x" * 50, b"y" * 50, b"z" * 50]
    assert bad.depth == 3
    assert not bench.broker.is_healthy


def test_a_failed_write_at_close_is_retried(tmp_path, monkeypatch):
    bench = ClassicBench(tmp_path, max_bytes_per_file=100)
    bodies = [b"%d" % number * 50 for number in range(4)]
    for body in bodies:
        bench.publish("t", body)
    pwrite, failed = os.pwrite, []

    def fail_once(descriptor, data, position):
        if len(data) > 50 and not failed:
            failed.append(position)
            no_space()
        return pwrite(descriptor, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail_once)
        bench.broker.topic("t").close()
    assert ClassicBench(tmp_path).broker.topic("t").depth == 4
