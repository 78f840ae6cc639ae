"""Changed bits in the files of topic logs: every byte in turn. The start succeeds, and nothing false is delivered.

At most the batch that contains the byte is missing, and then damage is reported. Everything else is still there. After
another boot, the last commit is an exception: it cannot be distinguished from a write that a power cut tore, so its
damage is not reported. If the last commit is damaged, this is true of the one before it. After a crash without a power
cut, this needs two changes: one in the head and one in the end of the last frame.
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from log_model import FAST_DIRECTORY, Logger, items_of, read_all

from log_directories import close_descriptors
from nsqx.queues.log.commit_file import FRAMES_AT
from nsqx.queues.log.state import Changes
from nsqx.queues.log.store import LogOptions, LogStore

OPTIONS = LogOptions(commit_size=40_000, segment_size=900, direct_size=20_000, memory_size=0, lease_step=100)
BOOT_ID, OTHER_BOOT_ID = b"b" * 16, b"o" * 16
IS_SLOW = bool(os.environ.get("NSQX_SLOW"))
STEP = 23  # in the quick tests
BATCHES = 8


class Expected:
    """The messages by topic and offset, and the offsets of each batch."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, int], bytes] = {}
        self.batches: list[set[tuple[str, int]]] = []
        self.channels: set[int] = set()  # which must be there


def open_store(directory: Path, boot_id: bytes = BOOT_ID, lines: list[str] | None = None) -> LogStore:
    return LogStore(str(directory), OPTIONS, boot_id, Logger([] if lines is None else lines))


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


def in_direct_writes(directory: Path) -> Expected:
    """Leave all messages in segments, to which they were written directly, and none in the commit file."""
    expected = Expected()
    store = open_store(directory)
    store.options = replace(OPTIONS, direct_size=1)
    publish(store, expected, 0, BATCHES)
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
    return interesting if IS_SLOW else interesting[random.randrange(STEP) :: STEP]


def check(directory: Path, expected: Expected, boot_id: bytes, changes: int = 1) -> tuple[int, bool]:
    """Open a store with changed bytes; return the number of missing messages, and whether damage is reported."""
    store = open_store(directory, boot_id)
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
    if not is_reported:
        # A frame says that those before it were durable. Each commit has two batches.
        torn_count = changes if boot_id != BOOT_ID else changes - 1
        missing -= set().union(*expected.batches[len(expected.batches) - 2 * torn_count :])
    if missing:
        assert is_reported, f"silently missing: {missing}"
        if changes == 1:
            assert any(missing <= batch for batch in expected.batches), f"more than a batch is missing: {missing}"
    return len(missing), is_reported


def check_damaged(place: Path, expected: Expected, changes: dict[tuple[Path, int], int], boot_id: bytes) -> list[int]:
    """Change bits, given by path, position and bit, in a copy of ``original``; return the result of ``check``."""
    damaged = place / "damaged"
    shutil.copytree(place / "original", damaged)
    for (path, position), bit in changes.items():
        with (damaged / path).open("r+b") as file:
            file.seek(position)
            changed = file.read(1)[0] ^ 1 << bit
            file.seek(position)
            file.write(bytes([changed]))
    try:
        return list(check(damaged, expected, boot_id, len(changes)))
    except Exception as failure:
        raise AssertionError(f"{failure!r} after damage at {changes}") from failure
    finally:
        close_descriptors(damaged)
        shutil.rmtree(damaged)


def files_of(original: Path) -> list[Path]:
    return [path.relative_to(original) for path in sorted(original.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("boot_id", [BOOT_ID, OTHER_BOOT_ID], ids=["same-boot", "other-boot"])
@pytest.mark.parametrize("leave", [in_commit_file, in_segments, in_both, in_direct_writes, after_removal])
@pytest.mark.timeout(600)
def test_a_changed_byte_loses_at_most_its_batch(place: Path, leave: Callable[[Path], Expected], boot_id: bytes) -> None:
    original = place / "original"
    original.mkdir()
    expected = leave(original)
    close_descriptors(original)
    missing_count = reported_count = 0
    for path in files_of(original):
        for position in positions_of(original / path):
            count, is_reported = check_damaged(place, expected, {(path, position): random.randrange(8)}, boot_id)
            missing_count += count
            reported_count += is_reported
    assert reported_count
    if leave is not in_both:
        assert missing_count


@pytest.mark.parametrize("leave", [in_commit_file, in_segments, in_both, in_direct_writes, after_removal])
@pytest.mark.timeout(600)
def test_two_changed_bytes_are_reported_if_a_message_is_missing(place: Path, leave: Callable[[Path], Expected]) -> None:
    original = place / "original"
    original.mkdir()
    expected = leave(original)
    close_descriptors(original)
    places = [(path, position) for path in files_of(original) for position in positions_of(original / path)]
    seed = int(os.environ.get("NSQX_SEED", time.time_ns()))
    print(f"NSQX_SEED={seed}")
    rng = random.Random(seed)
    for _ in range(2000 if IS_SLOW else 60):
        pair = {each: rng.randrange(8) for each in rng.sample(places, 2)}
        check_damaged(place, expected, pair, rng.choice((BOOT_ID, OTHER_BOOT_ID)))


@pytest.mark.parametrize("leave", [in_commit_file, in_both])
@pytest.mark.parametrize("boot_id", [BOOT_ID, OTHER_BOOT_ID], ids=["same-boot", "other-boot"])
def test_a_damaged_header_of_a_commit_file_loses_nothing_and_the_file_is_kept(
    place: Path, leave: Callable[[Path], Expected], boot_id: bytes
) -> None:
    expected = leave(place)
    close_descriptors(place)
    path = place / "nsqx.commit.0"
    damaged = bytearray(path.read_bytes())
    for position in (0, 4096):
        damaged[position + random.randrange(60)] ^= 1 << random.randrange(8)
    path.write_bytes(damaged)
    lines: list[str] = []
    store = open_store(place, boot_id, lines)
    assert store.damaged_count == 1
    assert any("the header of nsqx.commit.0; its frames are used" in line for line in lines), lines
    while store.is_recovering:
        checkpoint(store)
    found = {
        (topic, offset): fact.body for topic, log in store.logs.items() for offset, fact in read_all(log)[0].items()
    }
    assert found == expected.messages
    assert not path.exists()
    assert (place / "nsqx.commit.0.bad").read_bytes() == damaged
    publish(store, expected, BATCHES, 1)
    store.close()
    store = open_store(place, boot_id)
    assert (store.damaged_count, (place / "nsqx.commit.0.bad").read_bytes()) == (0, damaged)


def test_frames_without_a_header_and_without_a_whole_frame_are_reported(place: Path) -> None:
    in_both(place)
    close_descriptors(place)
    path = place / "nsqx.commit.0"
    size = path.stat().st_size
    path.write_bytes(b"\xff" * size)
    lines: list[str] = []
    store = open_store(place, BOOT_ID, lines)
    assert any("the header of nsqx.commit.0, and no frame in it can be used" in line for line in lines)
    end = store.logs["one"].end
    assert end > OPTIONS.lease_step, "an offset may be used twice"
    while store.is_recovering:
        checkpoint(store)
    assert (place / "nsqx.commit.0.bad").read_bytes() == b"\xff" * size


def test_a_missing_commit_file_is_reported(place: Path) -> None:
    in_both(place)
    close_descriptors(place)
    for path in place.glob("nsqx.commit.*"):
        assert path.stat().st_size >= FRAMES_AT
        path.unlink()
    lines: list[str] = []
    store = open_store(place, BOOT_ID, lines)
    assert any("there is no commit file" in line for line in lines)
    assert store.logs["one"].end > OPTIONS.lease_step
