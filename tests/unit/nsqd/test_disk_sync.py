"""Disk syncs run in threads when they are due, at most one at a time per queue."""

import asyncio
import errno
import os
import threading

import pytest

from broker_bench import BenchLog
from nsqx.nsqd.disk_sync import DiskSync
from nsqx.queues.diskqueue import DiskQueue
from nsqx.wire.message import new_message

SOON_S = 0.01
NEVER_S = 3600.0


class CountingQueue(DiskQueue):
    """Counts the syncs that are over."""

    sync_count = 0

    def end_sync(self, job):
        super().end_sync(job)
        self.sync_count += 1


class SyncedQueue:
    """A queue and the DiskSync that syncs it."""

    def __init__(self, directory, sync_every, sync_timeout_s):
        self.log = BenchLog()
        self.failures = []
        self.disk_sync = DiskSync(self.log, sync_every, sync_timeout_s, self.ended)
        self.queue = CountingQueue("q", str(directory), 1 << 20, 1000, self.log, lambda: None)
        self.meta = directory / "q.diskqueue.meta.dat"

    def ended(self, queue, error):
        if error is not None:
            self.failures.append(error)

    def write(self, *bodies):
        for body in bodies:
            self.queue.put_message(new_message(b"%016x" % 0, body, 0, 0))
        self.queue.write_pending()
        self.disk_sync.sync_when_due(self.queue)


@pytest.fixture
async def open_queue(tmp_path):
    made = []

    def make(sync_every=1000, sync_timeout_s=NEVER_S):
        made.append(SyncedQueue(tmp_path, sync_every, sync_timeout_s))
        return made[-1]

    yield make
    for synced in made:
        await synced.disk_sync.close()
        synced.queue.close()


async def until(condition):
    """Wait until ``condition`` is true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - there is no event for a changed file
            await asyncio.sleep(0.001)


def meta_text(synced):
    return synced.meta.read_bytes() if synced.meta.exists() else b""


async def test_a_new_file_is_synced_at_once(open_queue):
    synced = open_queue()
    synced.write(b"x")
    await until(lambda: meta_text(synced) == b"1\n0,0\n0,31\n")


async def test_a_sync_is_due_after_sync_every_operations(open_queue):
    synced = open_queue(sync_every=3)
    synced.write(b"1")
    await until(lambda: synced.queue.sync_count == 1)
    synced.write(b"2")
    synced.write(b"3")
    await asyncio.sleep(0)
    assert meta_text(synced) == b"1\n0,0\n0,31\n"
    synced.write(b"4")
    await until(lambda: meta_text(synced) == b"4\n0,0\n0,124\n")


async def test_a_sync_is_due_after_the_timeout(open_queue):
    synced = open_queue(sync_timeout_s=SOON_S)
    synced.write(b"1")
    await until(lambda: meta_text(synced) == b"1\n0,0\n0,31\n")
    synced.write(b"2")
    await until(lambda: meta_text(synced) == b"2\n0,0\n0,62\n")


async def test_records_written_during_a_sync_are_covered_by_the_next(open_queue, monkeypatch):
    synced = open_queue(sync_every=1)
    release = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (release.wait(10), fsync(descriptor)))
    synced.write(b"1")
    synced.write(b"2")
    assert not synced.meta.exists()
    release.set()
    await until(lambda: meta_text(synced) == b"2\n0,0\n0,62\n")


async def test_the_event_loop_runs_during_a_sync(open_queue, monkeypatch):
    synced = open_queue()
    release = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (release.wait(10), fsync(descriptor)))
    synced.write(b"1")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not synced.meta.exists()
    release.set()
    await until(synced.meta.exists)


async def test_a_failed_sync_is_reported_and_retried(open_queue, monkeypatch):
    synced = open_queue(sync_timeout_s=SOON_S)

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        synced.write(b"1")
        await until(lambda: synced.failures)
    assert any("DISKQUEUE(q) failed to sync" in line for line in synced.log.errors())
    await until(lambda: meta_text(synced) == b"1\n0,0\n1,0\n")


async def test_a_sync_that_cannot_begin_is_reported_and_retried(open_queue, monkeypatch):
    synced = open_queue(sync_timeout_s=SOON_S)

    def fail(descriptor):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", fail)
        synced.write(b"1")
        assert len(synced.failures) == 1
    await until(lambda: meta_text(synced) == b"1\n0,0\n0,31\n")


async def test_the_files_of_an_empty_queue_are_closed(open_queue):
    synced = open_queue(sync_timeout_s=SOON_S)
    before = len(os.listdir("/proc/self/fd"))
    synced.write(b"1")
    assert synced.queue.get().body == b"1"
    synced.disk_sync.sync_when_due(synced.queue)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_a_forgotten_queue_is_not_synced(open_queue):
    synced = open_queue(sync_timeout_s=SOON_S)
    synced.write(b"1")
    await until(lambda: synced.queue.sync_count == 1)
    synced.write(b"2")
    synced.disk_sync.forget(synced.queue)
    await asyncio.sleep(3 * SOON_S)
    assert meta_text(synced) == b"1\n0,0\n0,31\n"


async def test_close_waits_for_the_sync_in_progress(open_queue):
    synced = open_queue()
    synced.write(b"1")
    await synced.disk_sync.close()
    assert synced.meta.exists()
    await synced.disk_sync.close()


async def test_a_commit_ends_only_after_a_sync_that_covers_it(open_queue, monkeypatch):
    """A sync that began earlier does not end it, nor do records that other publishers put in the meantime."""
    synced = open_queue(sync_every=1)
    may_sync = threading.Semaphore(0)
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (may_sync.acquire(timeout=10), fsync(descriptor)))
    outcomes = []
    synced.write(b"1")  # begins a sync that does not cover what follows
    synced.queue.put_message(new_message(b"%016x" % 0, b"2", 0, 0))
    synced.queue.write_pending()
    synced.disk_sync.commit(synced.queue, outcomes.append)
    synced.queue.put_message(new_message(b"%016x" % 0, b"3", 0, 0))
    for _ in range(4):  # data file, meta file, directory; and the data file of the next sync
        may_sync.release()
    await until(lambda: synced.queue.sync_count == 1)
    assert outcomes == []
    for _ in range(100):
        may_sync.release()
    await until(lambda: outcomes == [None])
    assert synced.queue.sync_count == 2
    synced.queue.write_pending()


async def test_a_commit_whose_sync_fails_ends_with_the_error(open_queue, monkeypatch):
    synced = open_queue(sync_every=1)
    outcomes = []

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        synced.write(b"1")
        synced.disk_sync.commit(synced.queue, outcomes.append)
        await until(lambda: outcomes)
    assert str(outcomes[0]) == "Input/output error"
