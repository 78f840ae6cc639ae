"""The keeper: syncs and saves in threads, each when it is due and none twice at once."""

import asyncio
import errno
import json
import os
import threading

import pytest

from broker_bench import BenchLog
from nsqx.nsqd import keeper
from nsqx.nsqd.keeper import Keeper
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


class Kept:
    """A keeper and a queue that it looks after."""

    def __init__(self, directory, sync_every, sync_timeout_s):
        self.log = BenchLog()
        self.failures = []
        self.works_again = asyncio.Event()
        self.keeper = Keeper(self.log, sync_every, sync_timeout_s, self.ended)
        self.queue = CountingQueue("q", str(directory), 1 << 20, 1000, self.log, lambda: None)
        self.meta = directory / "q.diskqueue.meta.dat"

    def ended(self, queue, error):
        if queue is None and error is None:
            self.works_again.set()
        if error is not None:
            self.failures.append(error)

    def write(self, *bodies):
        for body in bodies:
            self.queue.put_message(new_message(b"%016x" % 0, body, 0, 0))
        self.queue.write_pending()
        self.keeper.note(self.queue)


@pytest.fixture
async def keep(tmp_path):
    made = []

    def make(sync_every=1000, sync_timeout_s=NEVER_S):
        made.append(Kept(tmp_path, sync_every, sync_timeout_s))
        return made[-1]

    yield make
    for kept in made:
        await kept.keeper.close()
        kept.queue.close()


async def until(condition):
    """Wait for what a thread or a timer brings about."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nothing tells when a file has changed
            await asyncio.sleep(0.001)


def meta_text(kept):
    return kept.meta.read_bytes() if kept.meta.exists() else b""


async def test_a_new_file_is_synced_at_once(keep):
    kept = keep()
    kept.write(b"x")
    await until(lambda: meta_text(kept) == b"1\n0,0\n0,31\n")


async def test_a_sync_is_due_after_so_many_operations(keep):
    kept = keep(sync_every=3)
    kept.write(b"1")
    await until(lambda: kept.queue.sync_count == 1)
    kept.write(b"2")
    kept.write(b"3")
    await asyncio.sleep(0)
    assert meta_text(kept) == b"1\n0,0\n0,31\n"
    kept.write(b"4")
    await until(lambda: meta_text(kept) == b"4\n0,0\n0,124\n")


async def test_a_sync_is_due_after_the_timeout(keep):
    kept = keep(sync_timeout_s=SOON_S)
    kept.write(b"1")
    await until(lambda: meta_text(kept) == b"1\n0,0\n0,31\n")
    kept.write(b"2")
    await until(lambda: meta_text(kept) == b"2\n0,0\n0,62\n")


async def test_what_happens_during_a_sync_is_synced_after_it(keep, monkeypatch):
    kept = keep(sync_every=1)
    release = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (release.wait(10), fsync(descriptor)))
    kept.write(b"1")
    kept.write(b"2")
    assert not kept.meta.exists()
    release.set()
    await until(lambda: meta_text(kept) == b"2\n0,0\n0,62\n")


async def test_the_loop_goes_on_during_a_sync(keep, monkeypatch):
    kept = keep()
    release = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (release.wait(10), fsync(descriptor)))
    kept.write(b"1")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not kept.meta.exists()
    release.set()
    await until(kept.meta.exists)


async def test_a_failed_sync_is_reported_and_tried_again(keep, monkeypatch):
    kept = keep(sync_timeout_s=SOON_S)

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        kept.write(b"1")
        await until(lambda: kept.failures)
    assert any("DISKQUEUE(q) failed to sync" in line for line in kept.log.errors())
    await until(lambda: meta_text(kept) == b"1\n0,0\n1,0\n")


async def test_a_sync_that_cannot_begin_is_reported_and_tried_again(keep, monkeypatch):
    kept = keep(sync_timeout_s=SOON_S)

    def fail(descriptor):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", fail)
        kept.write(b"1")
        assert len(kept.failures) == 1
    await until(lambda: meta_text(kept) == b"1\n0,0\n0,31\n")


async def test_an_empty_queue_lets_its_files_go(keep):
    kept = keep(sync_timeout_s=SOON_S)
    before = len(os.listdir("/proc/self/fd"))
    kept.write(b"1")
    assert kept.queue.get().body == b"1"
    kept.keeper.note(kept.queue)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_a_queue_that_was_forgotten_is_left_alone(keep):
    kept = keep(sync_timeout_s=SOON_S)
    kept.write(b"1")
    await until(lambda: kept.queue.sync_count == 1)
    kept.write(b"2")
    kept.keeper.forget(kept.queue)
    await asyncio.sleep(3 * SOON_S)
    assert meta_text(kept) == b"1\n0,0\n0,31\n"


# nsqd.dat


async def content():
    return b"content"


async def test_save_is_done_when_the_file_is_there(keep, tmp_path):
    kept = keep()
    path = tmp_path / "file"
    await kept.keeper.save(str(path), content)
    assert path.read_bytes() == b"content"


async def test_saves_that_come_together_are_one(keep, tmp_path):
    kept = keep()
    contents = []

    async def content():
        contents.append(len(contents))
        return b"%d" % len(contents)

    await asyncio.gather(*(kept.keeper.save(str(tmp_path / "file"), content) for _ in range(10)))
    assert len(contents) == 1


async def test_a_change_during_a_save_is_in_the_next(keep, tmp_path, monkeypatch):
    kept = keep()
    path = str(tmp_path / "file")
    state = {"number": 1}
    writing, release = threading.Event(), threading.Event()
    rename = os.rename

    def slow_rename(source, target):
        writing.set()
        release.wait(10)
        rename(source, target)

    async def state_as_json():
        return json.dumps(state).encode()

    monkeypatch.setattr(os, "rename", slow_rename)
    first = kept.keeper.save(path, state_as_json)
    await until(writing.is_set)
    state["number"] = 2
    second = kept.keeper.save(path, state_as_json, is_urgent=True)
    third = kept.keeper.save(path, state_as_json)
    release.set()
    await asyncio.gather(first, second, third)
    assert json.loads((tmp_path / "file").read_bytes()) == {"number": 2}


async def test_a_failed_save_is_tried_again_by_itself(keep, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "_RETRY_SAVE_S", SOON_S)
    kept = keep()
    path = tmp_path / "not yet" / "file"
    await kept.keeper.save(str(path), content)
    assert len(kept.failures) == 1
    path.parent.mkdir()
    async with asyncio.timeout(10):
        await kept.works_again.wait()
    assert path.read_bytes() == b"content"


async def test_a_failed_save_is_reported_and_does_not_block_the_next(keep, tmp_path):
    kept = keep()
    await kept.keeper.save(str(tmp_path / "absent" / "file"), content)
    assert len(kept.failures) == 1
    await kept.keeper.save(str(tmp_path / "file"), content)
    assert (tmp_path / "file").read_bytes() == b"content"


async def test_close_waits_for_what_is_under_way(keep, tmp_path):
    kept = keep()
    kept.keeper.save(str(tmp_path / "file"), content)
    kept.write(b"1")
    await kept.keeper.close()
    assert (tmp_path / "file").read_bytes() == b"content"
    assert kept.meta.exists()
    await kept.keeper.close()


async def test_a_commit_ends_only_after_a_sync_that_covers_it(keep, monkeypatch):
    """Records that other publishers put meanwhile, and a sync that began before, change nothing about that."""
    kept = keep(sync_every=1)
    may_sync = threading.Semaphore(0)
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (may_sync.acquire(timeout=10), fsync(descriptor)))
    outcomes = []
    kept.write(b"1")  # begins a sync that does not cover what follows
    kept.queue.put_message(new_message(b"%016x" % 0, b"2", 0, 0))
    kept.queue.write_pending()
    kept.keeper.commit(kept.queue, outcomes.append)
    kept.queue.put_message(new_message(b"%016x" % 0, b"3", 0, 0))
    for _ in range(4):  # data file, meta file, directory; and the data file of the next sync
        may_sync.release()
    await until(lambda: kept.queue.sync_count == 1)
    assert outcomes == []
    for _ in range(100):
        may_sync.release()
    await until(lambda: outcomes == [None])
    assert kept.queue.sync_count == 2
    kept.queue.write_pending()


async def test_a_commit_whose_sync_fails_ends_with_the_error(keep, monkeypatch):
    kept = keep(sync_every=1)
    outcomes = []

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        kept.write(b"1")
        kept.keeper.commit(kept.queue, outcomes.append)
        await until(lambda: outcomes)
    assert str(outcomes[0]) == "Input/output error"
