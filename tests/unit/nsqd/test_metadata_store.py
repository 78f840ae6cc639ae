"""nsqd.dat is saved in a thread. Concurrent saves are shared, and a failed save is retried."""

import asyncio
import json
import os
import threading

import pytest

from broker_bench import BenchLog
from nsqx.nsqd import metadata_store
from nsqx.nsqd.metadata_store import MetadataStore

SOON_S = 0.01


class StoredState:
    """A dict and the MetadataStore that saves it as JSON."""

    def __init__(self, path):
        self.path = path
        self.state = {"number": 1}
        self.content_count = 0
        self.failures = []
        self.succeeds_again = asyncio.Event()
        self.store = MetadataStore(str(path), self.content, BenchLog(), self.ended)

    async def content(self):
        self.content_count += 1
        return json.dumps(self.state).encode()

    def ended(self, error):
        if error is None:
            self.succeeds_again.set()
        else:
            self.failures.append(error)

    def saved(self):
        return json.loads(self.path.read_bytes())


@pytest.fixture
async def open_store(tmp_path):
    opened = []

    def open_at(*names):
        opened.append(StoredState(tmp_path.joinpath(*names)))
        return opened[-1]

    yield open_at
    for each in opened:
        await each.store.close()


async def test_save_returns_true_when_the_file_is_written(open_store):
    stored = open_store("file")
    assert await stored.store.save()
    assert stored.saved() == {"number": 1}


async def test_concurrent_saves_share_one_write(open_store):
    stored = open_store("file")
    await asyncio.gather(*(stored.store.save() for _ in range(10)))
    assert stored.content_count == 1


async def test_a_change_during_a_save_is_written_by_the_next_save(open_store, monkeypatch):
    stored = open_store("file")
    writing, release = threading.Event(), threading.Event()
    rename = os.rename

    def slow_rename(source, target):
        writing.set()
        release.wait(10)
        rename(source, target)

    monkeypatch.setattr(os, "rename", slow_rename)
    first = stored.store.save()
    await asyncio.to_thread(writing.wait, 10)
    stored.state["number"] = 2
    second = stored.store.save(is_urgent=True)
    third = stored.store.save()
    release.set()
    await asyncio.gather(first, second, third)
    assert stored.saved() == {"number": 2}


async def test_a_failed_save_is_reported_and_retried_without_another_change(open_store, monkeypatch):
    monkeypatch.setattr(metadata_store, "_RETRY_SAVE_S", SOON_S)
    stored = open_store("absent", "file")
    assert not await stored.store.save()
    assert len(stored.failures) == 1
    stored.path.parent.mkdir()
    async with asyncio.timeout(10):
        await stored.succeeds_again.wait()
    assert stored.saved() == {"number": 1}


async def test_a_failed_save_does_not_block_the_next(open_store):
    stored = open_store("absent", "file")
    await stored.store.save()
    assert len(stored.failures) == 1
    stored.path.parent.mkdir()
    assert await stored.store.save(is_urgent=True)
    assert stored.saved() == {"number": 1}


async def test_close_waits_for_the_save_in_progress(open_store):
    stored = open_store("file")
    stored.store.save()
    await stored.store.close()
    assert stored.saved() == {"number": 1}
    await stored.store.close()
