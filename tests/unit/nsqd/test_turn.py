"""The end of a turn: messages are delivered, records are written, and only then answers are sent."""

import errno
import os

import pytest

from broker_bench import Bench, BenchLink
from nsqx.errors import DiskQueueError
from nsqx.nsqd.client import Client
from nsqx.nsqd.turn import Turn
from nsqx.wire import frames
from rawclient import ERROR, OK, RESPONSE, Frame, sized


class DiskStandIn:
    def __init__(self, calls):
        self.calls = calls
        self.error = None

    def unsynced_count(self):
        return 1

    def write_pending(self):
        self.calls.append("write")
        if self.error is not None:
            raise self.error


class BacklogStandIn:
    def __init__(self, calls):
        self.disk = DiskStandIn(calls)


class PumpStandIn:
    """A stand-in for a channel: records that it was pumped, and runs an action."""

    def __init__(self, calls, name="pump", action=lambda: None):
        self.calls = calls
        self.name = name
        self.action = action
        self.backlog = BacklogStandIn(calls)
        self.topic = TopicStandIn(self)

    def pump(self):
        self.calls.append(self.name)
        self.action()


class NotingLink(BenchLink):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def write(self, data):
        self.calls.append("send")
        super().write(data)


class TopicStandIn:
    """A topic whose records go to the disk queues of some pumps."""

    def __init__(self, *pumps):
        self.pumps = pumps

    def disk_queues(self):
        return [pump.backlog.disk for pump in self.pumps]


class DurabilityStandIn:
    """Commits and saves that end when the test ends them."""

    def __init__(self):
        self.writes = []
        self.commits = []
        self.records = []
        self.is_recorded = True

    def disk_written(self, pump, error):
        self.writes.append((pump.backlog.disk, error))

    def disk_used(self, queue):
        pass

    def commit(self, queue, done):
        self.commits.append((queue, done))

    def when_recorded(self, topic, done):
        if not self.is_recorded:
            self.records.append((topic, done))
        return not self.is_recorded


class TurnBench:
    def __init__(self, commit_at=1 << 30):
        self.calls = []
        self.soon = []
        self.durability = DurabilityStandIn()
        self.writes = self.durability.writes
        self.turn = Turn(self.soon.append, self.durability, commit_at)
        self.serial = 0

    def client(self):
        self.serial += 1
        return Client(self.serial, "", "", NotingLink(self.calls), 0)

    def answer(self, client, command="PUB", pump=None):
        self.turn.hold(client, command, TopicStandIn() if pump is None else pump.topic)
        client.output.frames += frames.OK
        self.turn.send_to(client)

    def run_scheduled(self):
        callbacks = self.soon[:]
        self.soon.clear()
        for callback in callbacks:
            callback()


@pytest.fixture
def bench():
    return TurnBench()


def test_a_turn_without_disk_writes_ends_at_once(bench):
    client = bench.client()
    bench.turn.run(bench.answer, client)
    assert client.link.take_frames() == [OK]
    assert bench.soon == []


def test_an_event_within_a_turn_belongs_to_it(bench):
    client = bench.client()

    def handle():
        bench.turn.run(bench.answer, client)
        assert client.link.write_count == 0
        bench.turn.run(bench.answer, client)

    bench.turn.run(handle)
    assert client.link.write_count == 1


def test_run_returns_the_result_of_the_handler(bench):
    assert bench.turn.run(divmod, 7, 2) == (3, 1)


def test_a_handler_that_raises_ends_the_turn(bench):
    client = bench.client()

    def handle():
        bench.answer(client)
        raise KeyError

    with pytest.raises(KeyError):
        bench.turn.run(handle)
    assert client.link.take_frames() == [OK]
    bench.turn.run(bench.answer, client)
    assert client.link.take_frames() == [OK]


@pytest.mark.parametrize("note", ["send_to", "wake", "write_for", "sync_later"])
def test_work_noted_outside_of_a_turn_is_done_in_the_next_iteration_of_the_loop(bench, note):
    """A forgotten ``run`` delays the work a little, but never loses it."""
    client, pump, used = bench.client(), PumpStandIn(bench.calls), []
    client.output.frames += frames.OK
    bench.durability.disk_used = used.append
    work = {"send_to": client, "wake": pump, "write_for": pump, "sync_later": pump.backlog.disk}
    getattr(bench.turn, note)(work[note])
    assert (bench.calls, used, len(bench.soon)) == ([], [], 1)
    bench.run_scheduled()
    expected = {"send_to": ["send"], "wake": ["pump"], "write_for": ["write", "pump"], "sync_later": []}
    assert bench.calls == expected[note]
    assert used == ([pump.backlog.disk] if note == "sync_later" else [])
    assert bench.soon == []


def test_the_output_of_a_client_is_sent_with_one_write(bench):
    client = bench.client()
    bench.turn.run(lambda: [bench.answer(client) for _ in range(3)])
    bench.turn.run(lambda: None)
    assert client.link.write_count == 1
    assert client.link.take_frames() == [OK] * 3


def test_pumps_run_before_output_is_sent_and_can_wake_others(bench):
    client = bench.client()
    second = PumpStandIn(bench.calls, "second", lambda: bench.answer(client))
    bench.turn.run(bench.turn.wake, PumpStandIn(bench.calls, "first", lambda: bench.turn.wake(second)))
    assert bench.calls == ["first", "second", "send"]


def test_answers_wait_for_the_write(bench):
    client = bench.client()
    pump = PumpStandIn(bench.calls)
    bench.turn.write_for(pump)
    bench.answer(client, pump=pump)
    assert (bench.calls, len(bench.soon)) == ([], 1)
    bench.run_scheduled()
    assert bench.calls == ["write", "send", "pump"]
    assert client.link.take_frames() == [OK]
    assert bench.writes == [(pump.backlog.disk, None)]


def test_the_records_of_several_events_share_one_write(bench):
    clients = [bench.client() for _ in range(3)]
    pump = PumpStandIn(bench.calls)
    bench.turn.write_for(pump)
    for client in clients:
        bench.answer(client, pump=pump)
    assert len(bench.soon) == 1
    bench.run_scheduled()
    assert bench.calls == ["write", "send", "send", "send", "pump"]
    assert bench.soon == []


def test_the_next_turn_has_its_own_write(bench):
    client = bench.client()
    pump = PumpStandIn(bench.calls)
    bench.turn.write_for(pump)
    bench.answer(client, pump=pump)
    bench.run_scheduled()
    bench.turn.run(bench.answer, client)
    assert client.link.take_frames() == [OK, OK]
    assert bench.soon == []


@pytest.mark.parametrize("command", ["PUB", "MPUB", "DPUB"])
def test_a_failed_write_replaces_the_answers_by_an_error_and_closes(bench, command):
    client = bench.client()
    pump = PumpStandIn(bench.calls)
    pump.backlog.disk.error = DiskQueueError("No space left on device")
    client.output.frames += frames.HEARTBEAT
    bench.turn.write_for(pump)
    bench.answer(client, command, pump)
    bench.answer(client, "PUB", pump)
    bench.run_scheduled()
    assert client.link.take_frames() == [
        Frame(0, b"_heartbeat_"),
        Frame(ERROR, f"E_{command}_FAILED {command} failed No space left on device".encode()),
    ]
    assert client.link.is_closed
    assert bench.writes == [(pump.backlog.disk, pump.backlog.disk.error)]


def test_a_failed_write_does_not_affect_clients_that_published_nothing(bench):
    publisher, other = bench.client(), bench.client()
    pump = PumpStandIn(bench.calls)
    pump.backlog.disk.error = DiskQueueError("full")
    bench.turn.write_for(pump)
    bench.answer(publisher, pump=pump)
    other.output.frames += frames.HEARTBEAT
    bench.turn.send_to(other)
    bench.run_scheduled()
    assert other.link.take_frames() == [Frame(0, b"_heartbeat_")]
    assert not other.link.is_closed


def test_every_queue_is_written_even_if_one_fails(bench):
    pumps = [PumpStandIn(bench.calls) for _ in range(3)]
    pumps[1].backlog.disk.error = DiskQueueError("full")
    for pump in pumps:
        bench.turn.write_for(pump)
    bench.run_scheduled()
    assert [error for _, error in bench.writes] == [None, pumps[1].backlog.disk.error, None]


@pytest.mark.parametrize("error", [None, DiskQueueError("full")])
def test_when_written_calls_back_after_the_write(bench, error):
    results = []
    pump = PumpStandIn(bench.calls)
    pump.backlog.disk.error = error
    bench.turn.write_for(pump)
    bench.turn.when_written(results.append, pump.topic)
    assert results == []
    bench.run_scheduled()
    assert results == [error]
    bench.turn.when_written(results.append, pump.topic)
    assert results == [error, None]


def test_when_written_calls_back_at_once_without_pending_writes(bench):
    results = []
    bench.turn.when_written(results.append, TopicStandIn())
    assert results == [None]


def test_close_ends_the_connection_after_its_output(bench):
    client = bench.client()
    client.output.frames += frames.OK
    bench.turn.close(client)
    assert not client.link.is_closed
    bench.run_scheduled()
    assert client.link.take_frames() == [OK]
    assert client.link.is_closed


# The same with real queues: nothing is acknowledged before it is on disk.


def no_space(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def publish(real, client, topic_name, *bodies):
    """Publish as a session does for a PUB."""
    try:
        real.broker.topic(topic_name).publish(b"".join(map(sized, bodies)), len(bodies))
    except DiskQueueError:
        return
    real.broker.turn.hold(client, "PUB", real.broker.topic(topic_name))
    client.output.frames += frames.OK
    real.broker.turn.send_to(client)


FAILED = Frame(ERROR, b"E_PUB_FAILED PUB failed No space left on device")


def test_a_failed_write_is_reported_to_the_publisher(tmp_path, monkeypatch):
    real = Bench(tmp_path, mem_queue_size=0)
    client = real.connect()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        publish(real, client, "t", b"x")
        real.settle()
    assert client.link.take_frames() == [FAILED]
    assert client.link.is_closed
    assert real.broker.topic("t").depth == 1  # it is delivered later, when it can be written
    assert not real.broker.is_healthy
    assert real.broker.health == "NOK - No space left on device"
    real.publish("t", b"x")
    assert real.broker.is_healthy
    assert real.broker.topic("t").depth == 2


def test_a_failed_early_write_is_reported_to_every_publisher(tmp_path, monkeypatch):
    """A record that fills the file makes the queue write at once, including the records of other publishers."""
    real = Bench(tmp_path, mem_queue_size=0, max_bytes_per_file=100)
    early, late = real.connect(), real.connect()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        publish(real, early, "t", b"x" * 50)
        publish(real, late, "t", b"y" * 50)
        real.settle()
    topic = real.broker.topic("t")
    assert topic.depth == 2
    assert early.link.take_frames() == [FAILED]
    assert not real.broker.is_healthy


def test_records_of_many_publishers_are_written_together(tmp_path, monkeypatch):
    real = Bench(tmp_path, mem_queue_size=0)
    clients = [real.connect() for _ in range(5)]
    real.broker.topic("t")
    writes = []
    pwrite = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: (writes.append(len(data)), pwrite(fd, data, at))[1])
        for client in clients:
            publish(real, client, "t", b"x")
        assert all(client.link.take_frames() == [] for client in clients)
        real.run_scheduled()
    assert writes == [5 * 31]
    assert all(client.link.take_frames() == [OK] for client in clients)


# Commits: with sync-every=1 the answers wait for a sync


@pytest.fixture
def committing():
    """A turn in which every write needs a commit."""
    return TurnBench(commit_at=1)


def publish_to(bench, client, pump):
    """Answer a publish to the topic of ``pump``, and run the loop."""
    bench.turn.write_for(pump)
    bench.answer(client, pump=pump)
    settle(bench)


def settle(bench):
    bench.run_scheduled()


def confirm(bench, pump, failure=None):
    """End the oldest commit of a queue."""
    entry = next(entry for entry in bench.durability.commits if entry[0] is pump.backlog.disk)
    bench.durability.commits.remove(entry)
    entry[1](failure)
    settle(bench)


def test_an_answer_waits_for_the_commit(committing):
    client, pump = committing.client(), PumpStandIn(committing.calls)
    publish_to(committing, client, pump)
    assert client.link.take_frames() == []
    confirm(committing, pump)
    assert client.link.take_frames() == [OK]


def test_publishes_during_a_commit_wait_for_the_next_commit(committing):
    early, late = committing.client(), committing.client()
    pump = PumpStandIn(committing.calls)
    publish_to(committing, early, pump)
    publish_to(committing, late, pump)
    publish_to(committing, early, pump)
    confirm(committing, pump)
    assert (early.link.take_frames(), late.link.take_frames()) == ([OK], [])
    confirm(committing, pump)
    assert (early.link.take_frames(), late.link.take_frames()) == ([], [OK])
    confirm(committing, pump)
    assert (early.link.take_frames(), late.link.take_frames()) == ([OK], [])


def test_a_slow_commit_delays_no_other_client(committing):
    waiting, other, consumer = (committing.client() for _ in range(3))
    slow, quick = PumpStandIn(committing.calls), PumpStandIn(committing.calls)
    publish_to(committing, waiting, slow)
    publish_to(committing, other, quick)
    confirm(committing, quick)
    assert other.link.take_frames() == [OK]
    committing.answer(other)  # to a topic without disk writes
    consumer.output.frames += frames.HEARTBEAT
    committing.turn.send_to(consumer)
    committing.run_scheduled()
    assert other.link.take_frames() == [OK]
    assert consumer.link.take_frames() == [Frame(RESPONSE, b"_heartbeat_")]
    assert waiting.link.take_frames() == []


def test_each_topic_of_a_turn_has_its_own_commit(committing):
    first, second = committing.client(), committing.client()
    slow, quick = PumpStandIn(committing.calls), PumpStandIn(committing.calls)
    committing.turn.write_for(slow)
    committing.answer(first, pump=slow)
    publish_to(committing, second, quick)
    confirm(committing, quick)
    assert (first.link.take_frames(), second.link.take_frames()) == ([], [OK])


def test_a_publish_waits_for_every_queue_it_was_written_to(committing):
    client = committing.client()
    pumps = [PumpStandIn(committing.calls) for _ in range(2)]
    for pump in pumps:
        pump.topic = TopicStandIn(*pumps)
        committing.turn.write_for(pump)
    committing.answer(client, pump=pumps[0])
    settle(committing)
    confirm(committing, pumps[1])
    assert client.link.take_frames() == []
    confirm(committing, pumps[0])
    assert client.link.take_frames() == [OK]


def test_a_publish_to_a_new_topic_waits_until_the_topic_is_recorded(bench):
    client, pump = bench.client(), PumpStandIn(bench.calls)
    bench.durability.is_recorded = False
    publish_to(bench, client, pump)
    assert client.link.take_frames() == []
    ((topic, done),) = bench.durability.records
    assert topic is pump.topic
    done(None)
    settle(bench)
    assert client.link.take_frames() == [OK]


def test_only_the_client_that_needs_the_saved_topic_waits_for_it(bench):
    subscriber, other = bench.client(), bench.client()
    for is_recorded in (True, False):
        bench.durability.is_recorded = is_recorded
        bench.turn.hold_until_recorded(subscriber, "SUB", TopicStandIn())
        for client in (subscriber, other):
            client.output.frames += frames.OK
            bench.turn.send_to(client)
        bench.run_scheduled()
        assert subscriber.link.take_frames() == ([OK] if is_recorded else [])
        assert other.link.take_frames() == [OK]
    bench.durability.records.pop()[1](None)
    settle(bench)
    assert subscriber.link.take_frames() == [OK]


def test_a_failed_commit_is_reported_to_its_publisher_only(committing):
    publisher, other = committing.client(), committing.client()
    pump, results = PumpStandIn(committing.calls), []
    committing.turn.write_for(pump)
    committing.answer(publisher, pump=pump)
    committing.turn.when_written(results.append, pump.topic)
    other.output.frames += frames.HEARTBEAT
    committing.turn.send_to(other)
    settle(committing)
    failure = DiskQueueError("No space left on device")
    confirm(committing, pump, failure)
    assert results == [failure]
    assert publisher.link.take_frames() == [FAILED]
    assert publisher.link.is_closed
    assert other.link.take_frames() == [Frame(RESPONSE, b"_heartbeat_")]
    assert not other.link.is_closed
