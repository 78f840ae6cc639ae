"""Changed bits in the files of topic logs: every byte in turn. The start succeeds, and nothing false is delivered.

At most the batch that contains the byte is missing, and then damage is reported. Everything else is still there.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from log_model import FAST_DIRECTORY, Logger, items_of, read_all

from nsqx.queues.log.state import Changes
from nsqx.queues.log.store import LogOptions, LogStore

OPTIONS = LogOptions(commit_size=40_000, segment_size=900, direct_size=20_000, memory_size=0, lease_step=100)
BOOT_ID = b"b" * 16
IS_SLOW = bool(os.environ.get("NSQX_SLOW"))
BATCHES = 8


class Expected:
    """The messages by topic and offset, and the offsets of each batch."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, int], bytes] = {}
        self.batches: list[set[tuple[str, int]]] = []
        self.channels: set[int] = set()  # which must be there


def open_store(directory: Path) -> LogStore:
    return LogStore(str(directory), OPTIONS, BOOT_ID, Logger([]))


def commit(store: LogStore) -> None:
    job = store.begin_commit(is_synced=True)
    assert job is not None
    job.run()
    store.end_commit(job)
    assert store.failure is None


def checkpoint(store: LogStore) -> None:
    job = store.begin_checkpoint(is_complete=True)
    if job is not None:
        job.run()
        store.end_checkpoint(job)
        assert store.failure is None


def publish(store: LogStore, expected: Expected, start: int, count: int) -> None:
    for number in range(start, start + count):
        for topic in ("one", "two"):
            log = store.logs.get(topic) or store.create_log(topic, 1 << 30, 5)
            if not log.state.channels:
                changes = Changes()
                changes.create_channel(1, "channel", 0)
                log.change(changes)
            bodies = [b"%s-%d-%d" % (topic.encode(), number, index) for index in range(1 + number % 3)]
            first = log.append(items_of(bodies), len(bodies), number)
            places = [(topic, first + index) for index in range(len(bodies))]
            expected.messages.update(zip(places, bodies, strict=True))
            expected.batches.append(set(places))
            if number % 2:
                changes = Changes()
                changes.finish(1, [(first, first + 1)])
                log.change(changes)
        commit(store)


def in_commit_file(directory: Path) -> Expected:
    """Leave all messages in the commit file only."""
    expected = Expected()
    store = open_store(directory)
    publish(store, expected, 0, BATCHES)
    return expected


def in_segments(directory: Path) -> Expected:
    """Leave all messages in segments, after a clean end."""
    expected = Expected()
    store = open_store(directory)
    publish(store, expected, 0, BATCHES)
    store.close()
    return expected


def in_both(directory: Path) -> Expected:
    """Leave the first messages in segments and in the commit file, and the others in the commit file."""
    expected = Expected()
    store = open_store(directory)
    publish(store, expected, 0, BATCHES // 2)
    checkpoint(store)
    publish(store, expected, BATCHES // 2, BATCHES // 2)
    return expected


def after_removal(directory: Path) -> Expected:
    """Leave some messages in segments, after the removal of the finished ones before them."""
    expected = Expected()
    store = open_store(directory)
    publish(store, expected, 0, BATCHES)
    checkpoint(store)
    for log in store.logs.values():
        changes = Changes()
        changes.move(1, log.end)
        log.change(changes)
    commit(store)
    publish(store, expected, BATCHES, BATCHES // 2)
    checkpoint(store)
    store.find_finished()
    checkpoint(store)
    firsts = {topic: log.first for topic, log in store.logs.items()}
    assert min(firsts.values()) > 0
    expected.messages = {place: body for place, body in expected.messages.items() if place[1] >= firsts[place[0]]}
    expected.channels = {1}
    store.close()
    return expected


def close_descriptors(directory: Path) -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(str(directory)):
                os.close(int(name))
        except OSError:
            pass


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(FAST_DIRECTORY or "/tmp") / f"log-damage-{os.getpid()}-{random.randrange(1 << 40)}"
    path.mkdir()
    yield path
    close_descriptors(path)
    shutil.rmtree(path)


def positions_of(path: Path) -> list[int]:
    """Return the positions to change: all that are not in a long run of zeros, in the quick tests some of them."""
    content = path.read_bytes()
    interesting = [position for position in range(len(content)) if any(content[max(0, position - 4) : position + 5])]
    return interesting if IS_SLOW else interesting[random.randrange(5) :: 5]


def check(directory: Path, expected: Expected) -> tuple[int, bool]:
    """Open the damaged store; return the number of missing messages, and whether damage is reported."""
    store = open_store(directory)
    is_reported = store.damaged_count > 0
    while store.is_recovering:
        checkpoint(store)
    missing = set(expected.messages)
    for topic, log in store.logs.items():
        found, lost_count = read_all(log)
        is_reported = is_reported or lost_count > 0
        for offset, fact in found.items():
            assert expected.messages.get((topic, offset)) == fact.body, "false message"
            missing.discard((topic, offset))
        assert log.state.channels.keys() >= expected.channels, "a channel is lost"
        for number in log.state.channels:
            depth = log.state.depth(number, log.written)
            waiting = [
                o for o in found if o >= log.state.channels[number].next or o in log.state.channels[number].holes
            ]
            assert depth == len(waiting), "wrong depth"
        if log.end < 1000:
            assert log.append(items_of([b"new"]), 1, 1) >= max(found, default=-1)
    if missing:
        assert is_reported, f"silently missing: {missing}"
        assert any(missing <= batch for batch in expected.batches), f"more than a batch is missing: {missing}"
    return len(missing), is_reported


@pytest.mark.parametrize("leave", [in_commit_file, in_segments, in_both, after_removal])
@pytest.mark.timeout(600)
def test_a_changed_byte_loses_at_most_its_batch(place: Path, leave: Callable[[Path], Expected]) -> None:
    original = place / "original"
    original.mkdir()
    expected = leave(original)
    close_descriptors(original)
    paths = [path.relative_to(original) for path in sorted(original.rglob("*")) if path.is_file()]
    missing_count = reported_count = 0
    for path in paths:
        for position in positions_of(original / path):
            damaged = place / "damaged"
            shutil.copytree(original, damaged)
            content = bytearray((damaged / path).read_bytes())
            content[position] ^= 1 << random.randrange(8)
            (damaged / path).write_bytes(content)
            try:
                count, is_reported = check(damaged, expected)
            except Exception as failure:
                raise AssertionError(f"{failure!r} after damage of {path} at {position}") from failure
            finally:
                close_descriptors(damaged)
                shutil.rmtree(damaged)
            missing_count += count
            reported_count += is_reported
    assert reported_count
    if leave is not in_both:
        assert missing_count
