"""The classic store of a channel: memory queue, disk queue, due times, and what a restart finds."""

import errno
import os
import struct

import pytest

from broker_bench import MINUTE, SECOND, BenchClock, ClassicBench
from nsqx.errors import BrokerExiting
from nsqx.nsqd.channel_store import NOT_IN_FLIGHT
from nsqx.nsqd.classic_store import RETRY_NS


@pytest.fixture
def bench(tmp_path):
    return ClassicBench(tmp_path)


def the_channel(bench):
    return bench.broker.topic("t").channel("c")


def take_one(client):
    (message,) = client.link.take_messages()
    return message


# Reading what waits


def test_waiting_messages_are_read_without_a_change(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=3)
    channel = the_channel(bench)
    bench.publish("t", b"1", b"2")
    bench.publish("t", b"3", b"4", b"5")
    contents = channel.store.contents(100)
    assert [message.body for message in contents.waiting()] == [b"1", b"2", b"3", b"4", b"5"]
    in_memory = channel.store.contents(100)._replace(disk=None)
    assert [message.body for message in in_memory.waiting()] == [b"1", b"2", b"3"]
    assert channel.depth == 5
    client = bench.consume("t", "c", 5)
    assert sorted(client.link.take_bodies()) == [b"1", b"2", b"3", b"4", b"5"]


def test_waiting_messages_of_an_ephemeral_channel_are_in_memory(bench):
    channel = bench.broker.topic("t").channel("c#ephemeral")
    bench.publish("t", b"1", b"2")
    assert [message.body for message in channel.store.contents(100).waiting()] == [b"1", b"2"]


# Records of an earlier process


def test_attempts_wrap(tmp_path):
    path = tmp_path / "t:c.diskqueue.000000.dat"
    path.write_bytes(struct.pack(">iqH16s", 27, 5, 65535, b"0123456789abcdef") + b"x")
    bench = ClassicBench(tmp_path)
    client = bench.consume("t", "c", 1)
    message = take_one(client)
    assert (message.attempts, message.timestamp_ns, message.id) == (0, 5, b"0123456789abcdef")
    client.channel.requeue(client, message.id, 0)
    bench.settle()
    assert take_one(client).attempts == 1


def test_the_same_message_recovered_twice_is_delivered_once(tmp_path):
    record = struct.pack(">iqH16s", 27, 5, 0, b"0123456789abcdef") + b"x"
    (tmp_path / "t:c.diskqueue.000000.dat").write_bytes(record * 2)
    bench = ClassicBench(tmp_path)
    client = bench.consume("t", "c", 10)
    assert len(client.link.take_messages()) == 1
    bench.advance(10 * SECOND)
    assert client.link.take_frames() == []
    assert (client.channel.depth, client.channel.deferred_count, client.in_flight_count) == (0, 0, 1)


def test_a_different_message_with_an_id_in_flight_is_delivered_later(tmp_path):
    records = [struct.pack(">iqH16s", 27, timestamp, 0, b"0123456789abcdef") + b"x" for timestamp in (5, 6)]
    (tmp_path / "t:c.diskqueue.000000.dat").write_bytes(b"".join(records))
    bench = ClassicBench(tmp_path)
    client = bench.consume("t", "c", 10)
    first = take_one(client)
    bench.advance(3 * SECOND)
    assert client.link.take_frames() == []
    assert client.channel.finish(client, first.id) is None
    bench.advance(1 * SECOND)
    second = take_one(client)
    assert {first.timestamp_ns, second.timestamp_ns} == {5, 6}
    assert client.in_flight_count == 1


# Ephemeral channels


def test_an_ephemeral_channel_drops_its_overflow(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=2)
    bench.broker.topic("t").channel("c#ephemeral")
    bench.publish("t", b"1", b"2", b"3")
    client = bench.consume("t", "c#ephemeral", 10)
    assert client.link.take_bodies() == [b"1", b"2"]
    assert client.channel.message_count == 3
    assert os.listdir(tmp_path) == []


def test_an_ephemeral_channel_without_memory_delivers_or_drops(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    client = bench.consume("t#ephemeral", "c#ephemeral", 2, msg_timeout_ns=SECOND)
    bench.publish("t#ephemeral", b"1", b"2", b"3")
    assert client.link.take_bodies() == [b"1", b"2"]
    bench.advance(SECOND)
    assert sorted(client.link.take_bodies()) == [b"1", b"2"]
    bench.set_ready(client, 0)
    bench.advance(SECOND)
    assert (client.channel.depth, client.channel.in_flight_count) == (0, 0)


# Disk


def test_with_a_memory_queue_of_0_every_message_is_on_disk_before_it_is_delivered(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    client = bench.consume("t", "c", 10)
    bench.broker.topic("t").publish(b"\x00\x00\x00\x011", 1)
    assert client.link.take_frames() == []
    bench.run_scheduled()
    assert client.link.take_bodies() == [b"1"]
    assert (tmp_path / "t:c.diskqueue.000000.dat").read_bytes()[-1:] == b"1"


def test_a_failed_read_of_the_disk_is_retried(tmp_path, monkeypatch):
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    the_channel(bench)
    body = b"more than the reader keeps in its buffer" * 2000
    bench.publish("t", body)
    client = bench.consume("t", "c")

    def fail(*arguments):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        bench.set_ready(client, 1)
        bench.advance(RETRY_NS)
    assert (client.link.take_frames(), client.channel.depth) == ([], 1)
    bench.advance(RETRY_NS)
    assert client.link.take_bodies() == [body]


def test_a_read_of_the_disk_schedules_a_sync(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    (queue,) = client.channel.store.disk_queues()
    assert queue.has_unsynced()
    bench.advance(bench.options.sync_timeout)
    assert not queue.has_unsynced()


# Emptying, deleting, closing


def fill(bench):
    """Return a channel with a message waiting, one in flight, one on disk and one deferred; and the client."""
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"held")
    bench.publish("t", b"memory", b"disk")
    bench.defer("t", b"deferred", MINUTE)
    assert (client.channel.depth, client.channel.backend_depth) == (2, 1)
    return client


def test_empty_discards_all_messages_and_makes_the_clients_ready_again(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=1)
    client = fill(bench)
    held = take_one(client)
    channel = client.channel
    channel.empty()
    bench.settle()
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 0)
    assert client.in_flight_count == 0
    assert channel.finish(client, held.id) == NOT_IN_FLIGHT
    bench.publish("t", b"new")
    new = take_one(client)
    assert new.body == b"new"
    assert channel.finish(client, new.id) is None
    bench.advance(2 * MINUTE)
    assert client.link.take_frames() == []


def test_delete_disconnects_the_clients_and_removes_the_files(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=1)
    client = fill(bench)
    channel = client.channel
    assert bench.broker.delete_channel("t", "c")
    bench.settle()
    assert client.link.is_closed
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 0)
    assert [name for name in os.listdir(tmp_path) if name.startswith("t:c")] == []
    with pytest.raises(BrokerExiting, match="^exiting$"):
        channel.add_client(bench.connect())
    assert not bench.broker.delete_channel("t", "c")
    assert the_channel(bench) is not channel
    bench.advance(2 * MINUTE)


def test_close_keeps_every_message_with_attempts_and_due_times(tmp_path):
    clock = BenchClock()
    bench = ClassicBench(tmp_path, clock=clock, mem_queue_size=1)
    client = fill(bench)
    held = take_one(client)
    bench.advance(20 * SECOND)
    client.channel.close()
    bench.settle()
    assert client.link.is_closed

    clock.monotonic_ns = 7 * SECOND  # a new process, whose monotonic clock starts at another value
    clock.wall_offset_ns += 5_020 * SECOND - 7 * SECOND
    bench = ClassicBench(tmp_path, clock=clock, mem_queue_size=1)
    client = bench.consume("t", "c", 10)
    again = {message.body: message for message in client.link.take_messages()}
    assert set(again) == {b"held", b"memory", b"disk"}
    assert (again[b"held"].id, again[b"held"].attempts) == (held.id, 2)
    assert again[b"memory"].attempts == 1
    assert client.channel.deferred_count == 1
    bench.advance(40 * SECOND - 1)
    assert client.link.take_frames() == []
    bench.advance(1)
    assert client.link.take_bodies() == [b"deferred"]


def test_due_times_survive_a_second_restart_without_a_consumer_in_between(tmp_path):
    clock = BenchClock()
    bench = ClassicBench(tmp_path, clock=clock)
    the_channel(bench)
    bench.defer("t", b"deferred", MINUTE)
    for _ in range(3):
        the_channel(bench).close()
        bench = ClassicBench(tmp_path, clock=clock)
        assert the_channel(bench).depth == 1
        bench.advance(10 * SECOND)
    client = bench.consume("t", "c", 10)
    bench.advance(30 * SECOND - 1)
    assert client.link.take_frames() == []
    bench.advance(1)
    assert client.link.take_bodies() == [b"deferred"]


def test_a_deferred_message_that_became_due_while_stopped_is_delivered_at_once(tmp_path):
    clock = BenchClock()
    bench = ClassicBench(tmp_path, clock=clock)
    the_channel(bench)
    bench.defer("t", b"deferred", MINUTE)
    the_channel(bench).close()
    clock.advance(MINUTE)
    client = ClassicBench(tmp_path, clock=clock).consume("t", "c", 10)
    assert client.link.take_bodies() == [b"deferred"]


@pytest.mark.parametrize("with_channel", [True, False], ids=["in the channel", "in the topic"])
def test_a_clock_set_back_during_a_restart_does_not_extend_a_deferral(tmp_path, with_channel):
    clock = BenchClock()
    bench = ClassicBench(tmp_path, clock=clock)
    if with_channel:
        the_channel(bench)
    bench.defer("t", b"deferred", 2 * SECOND)
    bench.broker.close_topics()
    clock.wall_offset_ns -= 24 * 60 * MINUTE
    bench = ClassicBench(tmp_path, clock=clock)
    client = bench.consume("t", "c", 10)
    bench.advance(2 * SECOND - 1)
    assert client.link.take_frames() == []
    bench.advance(1)
    assert client.link.take_bodies() == [b"deferred"]


def test_very_many_messages_due_at_the_same_time_are_put_back_over_several_turns(bench):
    channel = the_channel(bench)
    for number in range(4_500):
        bench.defer("t", b"%d" % number, MINUTE)
    call_at, depths = bench.clock.call_at, []

    def note_depth(*arguments):
        depths.append(channel.depth)
        return call_at(*arguments)

    bench.clock.call_at = note_depth
    bench.advance(MINUTE)
    assert depths == [2_000, 4_000]
    assert channel.depth == 4_500


def test_messages_with_invalid_due_times_are_delivered_at_once(tmp_path):
    clock = BenchClock()
    bench = ClassicBench(tmp_path, clock=clock)
    the_channel(bench)
    bench.defer("t", b"deferred", MINUTE)
    the_channel(bench).close()
    (tmp_path / "t:c.deferred.dat").write_bytes(b"garbage")
    bench = ClassicBench(tmp_path, clock=clock)
    assert bench.consume("t", "c", 10).link.take_bodies() == [b"deferred"]
    assert any("DEFERRED(t:c)" in line for line in bench.log.errors())


# Disks that fail


def fail_once(patch):
    """Make the next write of a record fail, and later ones succeed."""
    pwrite, failed = os.pwrite, []

    def write(descriptor, data, position):
        if len(data) > 50 and not failed:
            failed.append(position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, position)

    patch.setattr(os, "pwrite", write)


BODIES = [b"%d" % number * 50 for number in range(5)]


def test_a_failed_write_after_a_timeout_loses_no_message(tmp_path, monkeypatch):
    """Every record fills a file, so every put writes the one before."""
    bench = ClassicBench(tmp_path, mem_queue_size=0, max_bytes_per_file=100)
    client = bench.consume("t", "c", 5, msg_timeout_ns=SECOND)
    bench.publish("t", *BODIES)
    assert len(client.link.take_messages()) == 5
    client.ready_count = 0
    with monkeypatch.context() as patch:
        fail_once(patch)
        bench.advance(SECOND)
    channel = client.channel
    assert (client.in_flight_count, channel.in_flight_count, channel.timeout_count) == (0, 0, 5)
    assert channel.depth == 5
    bench.set_ready(client, 10)
    assert len(client.link.take_messages()) == 5


def test_a_failed_write_of_due_messages_loses_none(tmp_path, monkeypatch):
    bench = ClassicBench(tmp_path, mem_queue_size=0, max_bytes_per_file=100)
    channel = the_channel(bench)
    for body in BODIES:
        bench.defer("t", body, SECOND)
    with monkeypatch.context() as patch:
        fail_once(patch)
        bench.advance(SECOND)
    assert (channel.deferred_count, channel.depth) == (0, 5)


def test_a_failed_write_at_close_is_retried(tmp_path, monkeypatch):
    bench = ClassicBench(tmp_path, max_bytes_per_file=100)
    client = bench.consume("t", "c", 2)
    bench.publish("t", *BODIES[:4])
    bench.defer("t", BODIES[4], MINUTE)
    with monkeypatch.context() as patch:
        fail_once(patch)
        client.channel.close()
    assert the_channel(ClassicBench(tmp_path)).depth == 5
