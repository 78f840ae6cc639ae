"""Group commit: records are written together, synced when due, and acknowledged only then."""

import asyncio
import errno
import os
import threading
from collections import Counter

import pytest

from broker_bench import SECOND, BenchLog, ClassicBench
from nsqx.errors import DiskQueueError
from nsqx.nsqd.clock import LoopClock
from nsqx.nsqd.group_commit import GroupCommit
from nsqx.nsqd.turn import Turn
from nsqx.queues.diskqueue import DiskQueue
from nsqx.wire import frames
from nsqx.wire.message import new_message
from rawclient import ERROR, OK, RESPONSE, Frame, sized

HEARTBEAT = Frame(RESPONSE, b"_heartbeat_")
FAILED = Frame(ERROR, b"E_PUB_FAILED PUB failed No space left on device")


def no_space(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def publish(bench, client, topic_name, *bodies):
    """Publish as a session does for a PUB."""
    try:
        bench.broker.topic(topic_name).publish(b"".join(map(sized, bodies)), len(bodies))
    except DiskQueueError:
        return
    bench.broker.commits.hold(client, "PUB", bench.broker.topic(topic_name))
    client.output.frames += frames.OK
    bench.broker.turn.send_to(client)


def send_heartbeat(bench, client):
    client.send_heartbeat()
    bench.broker.turn.send_to(client)


# Writing: without syncs (a large sync-every) a publish is acknowledged after its write


@pytest.fixture
def bench(tmp_path):
    return ClassicBench(tmp_path, mem_queue_size=0)


def count_writes(monkeypatch):
    writes, pwrite = [], os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: (writes.append(len(data)), pwrite(fd, data, at))[1])
    return writes


def test_an_answer_waits_for_the_write(bench, monkeypatch):
    client = bench.connect()
    bench.broker.topic("t")
    bench.settle()
    writes = count_writes(monkeypatch)
    bench.broker.turn.run(publish, bench, client, "t", b"x")
    assert (writes, client.link.take_frames()) == ([], [])
    bench.settle()
    assert writes[0] == 31
    assert client.link.take_frames() == [OK]


def test_records_of_many_publishers_are_written_together(bench, monkeypatch):
    clients = [bench.connect() for _ in range(5)]
    publish(bench, clients[0], "t", b"first")  # creates the file
    bench.settle()
    clients[0].link.take_frames()
    writes = count_writes(monkeypatch)
    for client in clients:
        bench.broker.turn.run(publish, bench, client, "t", b"x")
    assert all(client.link.take_frames() == [] for client in clients)
    bench.settle()
    assert writes == [5 * 31]
    assert all(client.link.take_frames() == [OK] for client in clients)


def test_written_messages_are_delivered_after_the_answers(bench):
    order = []
    consumer, producer = bench.consume("t", "c", 10), bench.connect()
    for name, client in (("consumer", consumer), ("producer", producer)):
        write = client.link.write
        client.link.write = lambda data, name=name, write=write: (order.append(name), write(data))
    publish(bench, producer, "t", b"x")
    bench.settle()
    assert order == ["producer", "consumer"]
    assert consumer.link.take_bodies() == [b"x"]


def test_a_failed_write_is_reported_to_the_publisher_only(bench, monkeypatch):
    client, other = bench.connect(), bench.connect()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        publish(bench, client, "t", b"x")
        send_heartbeat(bench, other)
        bench.settle()
    assert client.link.take_frames() == [FAILED]
    assert client.link.is_closed
    assert other.link.take_frames() == [HEARTBEAT]
    assert not other.link.is_closed
    assert bench.broker.topic("t").depth == 1  # it is delivered later, when it can be written
    assert bench.broker.commits.has_failures
    assert bench.broker.health == "NOK - No space left on device"
    bench.publish("t", b"x")
    assert bench.broker.is_healthy
    assert not bench.broker.commits.has_failures
    assert bench.broker.topic("t").depth == 2


def test_a_failed_early_write_is_reported_to_every_publisher(tmp_path, monkeypatch):
    """A record that fills the file makes the queue write at once, including the records of other publishers."""
    bench = ClassicBench(tmp_path, mem_queue_size=0, max_bytes_per_file=100)
    early, late = bench.connect(), bench.connect()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        publish(bench, early, "t", b"x" * 50)
        publish(bench, late, "t", b"y" * 50)
        bench.settle()
    assert bench.broker.topic("t").depth == 2
    assert early.link.take_frames() == [FAILED]
    assert not bench.broker.is_healthy


def test_every_queue_is_written_even_if_one_fails(bench, tmp_path):
    clients = {name: bench.connect() for name in ("first", "bad", "last")}
    bench.broker.topic("bad")
    (tmp_path / "bad.diskqueue.000000.dat").mkdir()
    for name, client in clients.items():
        publish(bench, client, name, b"x")
    bench.settle()
    answers = {name: client.link.take_frames()[0] for name, client in clients.items()}
    assert (answers["first"], answers["last"]) == (OK, OK)
    assert answers["bad"].type == ERROR


def test_a_failed_write_is_retried_after_a_second(bench, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        publish(bench, bench.connect(), "t", b"x")
        bench.settle()
    bench.advance(SECOND - 1)
    assert not bench.broker.is_healthy
    bench.advance(1)
    assert bench.broker.is_healthy
    (queue,) = bench.broker.topic("t").disk_queues()
    assert queue.get().body == b"x"


def test_recover_writes_now_or_raises(bench, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        publish(bench, bench.connect(), "t", b"x")
        bench.settle()
        (queue,) = bench.broker.topic("t").disk_queues()
        with pytest.raises(DiskQueueError):
            bench.broker.commits.recover(queue)
    bench.broker.commits.recover(queue)
    assert bench.broker.is_healthy


@pytest.mark.parametrize("fails", [False, True])
def test_when_written_calls_back_after_the_write(bench, monkeypatch, fails):
    results, topic = [], bench.broker.topic("t")
    with monkeypatch.context() as patch:
        if fails:
            patch.setattr(os, "pwrite", no_space)
        topic.publish(sized(b"x"), 1)
        bench.broker.commits.when_written(results.append, topic)
        assert results == []
        bench.settle()
    assert list(map(str, results)) == ["No space left on device" if fails else "None"]


def test_when_written_calls_back_at_once_without_pending_writes(bench):
    results = []
    bench.broker.commits.when_written(results.append, bench.broker.topic("t"))
    assert results == [None]


# Commits: with sync-every=1 the answers wait for a sync


@pytest.fixture
def committing(tmp_path):
    bench = ClassicBench(tmp_path, mem_queue_size=0, sync_every=1)
    bench.sync_threads.is_slow = True
    return bench


def publish_and_settle(bench, client, topic_name="t"):
    publish(bench, client, topic_name, b"x")
    bench.settle()


def end_sync(bench, topic_name="t"):
    """End the running sync of a topic's queue; the next one may begin."""
    bench.sync_threads.finish(*bench.broker.topic(topic_name).disk_queues())
    bench.settle()


def test_an_answer_waits_for_the_sync(committing):
    client = committing.connect()
    publish_and_settle(committing, client)
    assert client.link.take_frames() == []
    end_sync(committing)
    assert client.link.take_frames() == [OK]


def test_publishes_during_a_sync_share_the_next_one(committing):
    early, late = committing.connect(), committing.connect()
    publish_and_settle(committing, early)
    publish_and_settle(committing, late)
    publish_and_settle(committing, early)
    end_sync(committing)
    assert (early.link.take_frames(), late.link.take_frames()) == ([OK], [])
    end_sync(committing)
    assert (early.link.take_frames(), late.link.take_frames()) == ([OK], [OK])


def test_a_slow_sync_delays_no_other_client(committing):
    waiting, other, consumer = (committing.connect() for _ in range(3))
    publish_and_settle(committing, waiting, "slow")
    publish_and_settle(committing, other, "quick")
    end_sync(committing, "quick")
    assert other.link.take_frames() == [OK]
    publish_and_settle(committing, other, "memory#ephemeral")
    send_heartbeat(committing, consumer)
    committing.settle()
    assert other.link.take_frames() == [OK]
    assert consumer.link.take_frames() == [HEARTBEAT]
    assert waiting.link.take_frames() == []


def test_each_topic_of_a_turn_has_its_own_commit(committing):
    first, second = committing.connect(), committing.connect()
    publish(committing, first, "slow", b"x")
    publish(committing, second, "quick", b"x")
    committing.settle()
    end_sync(committing, "quick")
    assert (first.link.take_frames(), second.link.take_frames()) == ([], [OK])


def test_a_publish_waits_for_every_queue_it_was_written_to(committing):
    client, topic = committing.connect(), committing.broker.topic("t")
    queues = [queue for name in "cd" for queue in topic.channel(name).store.disk_queues()]
    publish_and_settle(committing, client)
    committing.sync_threads.finish(queues[1])
    committing.settle()
    assert client.link.take_frames() == []
    committing.sync_threads.finish(queues[0])
    committing.settle()
    assert client.link.take_frames() == [OK]


def test_a_failed_sync_is_reported_to_its_publisher_only(committing, monkeypatch):
    publisher, other, results = committing.connect(), committing.connect(), []
    publish(committing, publisher, "t", b"x")
    committing.broker.commits.when_written(results.append, committing.broker.topic("t"))
    send_heartbeat(committing, other)
    committing.settle()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", no_space)
        end_sync(committing)
    assert list(map(str, results)) == ["No space left on device"]
    assert publisher.link.take_frames() == [FAILED]
    assert publisher.link.is_closed
    assert other.link.take_frames() == [HEARTBEAT]
    assert not other.link.is_closed


def test_records_that_cannot_be_written_cause_no_syncs(tmp_path, monkeypatch):
    """A callback may wait for records whose write fails. Syncs cannot help before the write is retried."""
    bench = ClassicBench(tmp_path, mem_queue_size=0)
    bench.publish("t", b"1")
    syncs = []
    (queue,) = bench.broker.topic("t").disk_queues()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        patch.setattr(os, "fdatasync", syncs.append)
        queue.put_message(new_message(b"%016x" % 0, b"2", 0, 0))
        queue.when_durable(syncs.append)
        bench.settle()
    assert syncs == []


# Saves of nsqd.dat


class SaveStandIn:
    """A save that ends when the test ends it."""

    def __init__(self):
        self.callbacks = []

    def done(self):
        return False

    def add_done_callback(self, callback):
        self.callbacks.append(callback)

    def cancelled(self):
        return True

    def end(self):
        for callback in self.callbacks:
            callback(self)


@pytest.fixture
def slow_save(bench):
    save = SaveStandIn()
    bench.metadata_store.save = lambda *, is_urgent=False: save
    bench.metadata_store.hurry = lambda: None
    return save


def test_a_publish_to_a_new_topic_waits_until_the_topic_is_recorded(bench, slow_save):
    client = bench.connect()
    publish_and_settle(bench, client)
    assert client.link.take_frames() == []
    slow_save.end()
    bench.settle()
    assert client.link.take_frames() == [OK]


def test_only_the_client_that_needs_the_saved_topic_waits_for_it(bench, slow_save):
    subscriber, other, topic = bench.connect(), bench.connect(), bench.broker.topic("t")
    bench.broker.commits.hold_until_recorded(subscriber, "SUB", topic)
    for client in (subscriber, other):
        client.output.frames += frames.OK
        bench.broker.turn.send_to(client)
    bench.settle()
    assert (subscriber.link.take_frames(), other.link.take_frames()) == ([], [OK])
    slow_save.end()
    bench.settle()
    assert subscriber.link.take_frames() == [OK]


# Syncs in real threads


SOON_NS = 10_000_000
NEVER_NS = 3600 * SECOND


class CountingQueue(DiskQueue):
    """Counts the syncs that are over."""

    sync_count = 0

    def end_sync(self, job):
        super().end_sync(job)
        self.sync_count += 1


class LoopServices:
    """Timers of the running loop; every topic is recorded."""

    def __init__(self):
        self._clock = LoopClock(asyncio.get_running_loop())

    def call_in(self, delay_ns, handler):
        return self._clock.call_at(self._clock.now_ns() + delay_ns, handler)

    def when_recorded(self, topic, done):
        return False


class SyncedQueue:
    """A queue that real threads sync."""

    def __init__(self, directory, sync_every, sync_timeout_ns):
        self.log = BenchLog()
        turn = Turn(asyncio.get_running_loop().call_soon)
        self.commits = GroupCommit(turn, LoopServices(), self.log, sync_every, sync_timeout_ns)
        self.queue = CountingQueue(
            "q", str(directory), 1 << 20, 1000, self.log, lambda: self.commits.write_later(self.queue, self)
        )
        self.meta = directory / "q.diskqueue.meta.dat"

    def pump(self):
        pass

    def disk_queues(self):
        return [self.queue]

    def put(self, body):
        self.queue.put_message(new_message(b"%016x" % 0, body, 0, 0))

    async def write(self, body):
        """Write a record; return a future that is done when it is acknowledged."""
        self.put(body)
        acknowledged = asyncio.get_running_loop().create_future()
        self.commits.when_written(acknowledged.set_result, self)
        await asyncio.sleep(0)
        return acknowledged

    def meta_text(self):
        return self.meta.read_bytes() if self.meta.exists() else b""


@pytest.fixture
async def open_queue(tmp_path):
    made = []

    def make(sync_every=1000, sync_timeout_ns=NEVER_NS):
        made.append(SyncedQueue(tmp_path, sync_every, sync_timeout_ns))
        return made[-1]

    yield make
    for synced in made:
        await synced.commits.close()
        synced.queue.close()


async def until(condition):
    """Wait until ``condition`` is true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - there is no event for a changed file
            await asyncio.sleep(0.001)


async def test_the_positions_are_saved_soon_after_a_change_of_files(open_queue):
    synced = open_queue()
    await synced.write(b"x")
    await until(lambda: synced.meta_text() == b"1\n0,0\n0,31\n")


async def test_a_sync_is_due_after_sync_every_records(open_queue):
    synced = open_queue(sync_every=3)
    await synced.write(b"1")
    await until(lambda: synced.queue.sync_count == 1)
    await synced.write(b"2")
    await synced.write(b"3")
    assert synced.queue.unsynced_count() == 2
    await synced.write(b"4")
    await until(lambda: synced.queue.unsynced_count() == 0)
    await until(lambda: synced.meta_text() == b"4\n0,0\n0,124\n")


async def test_a_sync_is_due_after_the_timeout(open_queue):
    synced = open_queue(sync_timeout_ns=SOON_NS)
    await synced.write(b"1")
    await until(lambda: synced.meta_text() == b"1\n0,0\n0,31\n")
    await synced.write(b"2")
    await until(lambda: synced.meta_text() == b"2\n0,0\n0,62\n")


async def test_the_event_loop_runs_during_a_sync(open_queue, monkeypatch):
    synced = open_queue()
    release = threading.Event()
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (release.wait(10), sync(descriptor)))
    await synced.write(b"1")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not synced.meta.exists()
    release.set()
    await until(synced.meta.exists)


async def test_a_failed_sync_is_reported_and_retried(open_queue, monkeypatch):
    synced = open_queue(sync_timeout_ns=SOON_NS)

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        await synced.write(b"1")
        await until(lambda: synced.commits.failure)
    assert (synced.commits.failure, synced.commits.has_failures) == ("Input/output error", True)
    assert any("DISKQUEUE(q) failed to sync" in line for line in synced.log.errors())
    await until(lambda: synced.meta_text() == b"1\n0,0\n1,0\n")
    await until(lambda: not synced.commits.has_failures)
    assert synced.commits.failure == ""


async def test_a_sync_that_cannot_begin_is_reported_and_retried(open_queue, monkeypatch):
    synced = open_queue(sync_timeout_ns=SOON_NS)

    def fail(descriptor):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", fail)
        await synced.write(b"1")
        await until(lambda: synced.commits.failure == "Too many open files")
    await until(lambda: synced.meta_text() == b"1\n0,0\n0,31\n")


async def test_the_files_of_an_empty_queue_are_closed(open_queue):
    synced = open_queue(sync_timeout_ns=SOON_NS)
    before = len(os.listdir("/proc/self/fd"))
    await synced.write(b"1")
    assert synced.queue.get().body == b"1"
    synced.commits.sync_later(synced.queue)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_a_forgotten_queue_is_not_synced(open_queue):
    synced = open_queue(sync_timeout_ns=SOON_NS)
    await synced.write(b"1")
    await until(lambda: synced.queue.sync_count == 1)
    await synced.write(b"2")
    synced.commits.forget(synced.queue)
    await asyncio.sleep(3 * SOON_NS / SECOND)
    assert synced.meta_text() == b"1\n0,0\n0,31\n"


async def test_close_waits_for_the_sync_in_progress(open_queue):
    synced = open_queue(sync_every=1)
    await synced.write(b"1")
    await synced.commits.close()
    assert synced.meta.exists()
    await synced.commits.close()


async def test_a_commit_ends_only_after_a_sync_that_covers_it(open_queue, monkeypatch):
    """A sync that began earlier does not end it, nor do records that other publishers put in the meantime."""
    synced = open_queue(sync_every=1)
    assert await (await synced.write(b"0")) is None
    may_sync = threading.Semaphore(0)
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (may_sync.acquire(timeout=10), sync(descriptor)))
    first = await synced.write(b"1")  # begins a sync that does not cover what follows
    second = await synced.write(b"2")
    synced.put(b"3")
    may_sync.release()
    await until(first.done)
    assert not second.done()
    for _ in range(100):
        may_sync.release()
    assert await second is None


async def test_a_commit_costs_one_sync_and_the_positions_are_saved_ten_times_a_second(open_queue, monkeypatch):
    synced = open_queue(sync_every=1)
    await (await synced.write(b"0"))  # creates the file
    await until(lambda: synced.meta_text() == b"1\n0,0\n0,31\n")
    counts = Counter()
    for name in ("fsync", "fdatasync"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda fd, name=name, call=call: (counts.update([name]), call(fd))[1])
    for _ in range(50):
        await (await synced.write(b"x"))
    assert counts["fdatasync"] >= 50
    assert counts["fsync"] <= counts["fdatasync"] // 2
    await until(lambda: synced.meta_text() == b"51\n0,0\n0,1581\n")


async def test_a_save_of_the_positions_waits_for_a_free_thread_and_delays_no_commit(tmp_path):
    """On a broker with very many queues, a commit is a sync of the data while the save of its positions waits."""
    bench = ClassicBench(tmp_path, mem_queue_size=0, sync_every=1)
    names = [f"t{number}" for number in range(8)]
    client = bench.connect()
    for name in names:
        publish_and_settle(bench, client, name)
        publish_and_settle(bench, client, name)  # the positions must be saved again
    assert client.link.take_frames() == [OK] * 16
    queues = {name: bench.broker.topic(name).disk_queues()[0] for name in names}
    bench.sync_threads.is_slow = True
    bench.advance(SECOND // 10)
    saving = [name for name, queue in queues.items() if not queue.has_unsynced()]
    assert len(saving) == 4
    (waiting, *_) = [name for name in names if name not in saving]
    publish_and_settle(bench, client, waiting)
    end_sync(bench, waiting)
    assert client.link.take_frames() == [OK]
    bench.sync_threads.is_slow = False
    bench.sync_threads.finish()
    bench.settle()
    assert not any(queue.has_unsynced() for queue in queues.values())
