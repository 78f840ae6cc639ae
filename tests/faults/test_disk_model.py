"""The model of the disk keeps what was synced, and any part of the rest."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from disk_model import (
    CONTENT_ONLY,
    EVERYTHING,
    FIRST_PAGE_LOST,
    LAST_PAGE_LOST,
    NAMES_ONLY,
    NOTHING,
    OLD_SIZE,
    PAGE_SIZE,
    SECTOR_SIZE,
    SIZE_ONLY,
    WORST_CASES,
    ZERO_TAIL,
    DiskModel,
    Image,
    ModelFile,
    RandomSurvival,
    Survival,
)
from durable import TracedDisk
from recording_os import RecordingOS
from tracing import Call

from nsqx.queues import files

ROOT = Path("/data")
PAGES = b"".join(bytes([letter]) * PAGE_SIZE for letter in b"ABCD")


def synced(content: bytes) -> ModelFile:
    return ModelFile(content)


def remains(file: ModelFile, survival: Survival) -> bytes:
    return file.after_power_cut(survival).content


def any_remains(file: ModelFile, count: int = 2000) -> set[bytes]:
    """The contents that random power cuts leave."""
    return {remains(file, RandomSurvival(random.Random(seed))) for seed in range(count)}


# Contents


@pytest.mark.parametrize("survival", WORST_CASES, ids=lambda survival: survival.name)
def test_synced_content_survives_every_power_cut(survival: Survival) -> None:
    file = ModelFile()
    file.write(0, PAGES)
    file.truncate(5000)
    file.begin_sync()()
    assert remains(file, survival) == PAGES[:5000]


def test_a_sync_covers_only_the_changes_before_it_began() -> None:
    file = ModelFile()
    file.write(0, b"before")
    end = file.begin_sync()
    file.write(6, b" after")
    assert remains(file, NOTHING) == b""
    end()
    assert remains(file, NOTHING) == b"before"
    assert remains(file, EVERYTHING) == b"before after"


def test_syncs_may_end_in_another_order() -> None:
    file = ModelFile()
    file.write(0, b"one")
    first = file.begin_sync()
    file.write(3, b"two")
    second = file.begin_sync()
    second()
    first()
    assert remains(file, NOTHING) == b"onetwo"


def test_changes_of_a_failed_sync_are_lost_for_good() -> None:
    file = synced(b"old")
    file.write(3, b"lost")
    file.fail_sync()
    file.write(7, b"new")
    file.begin_sync()()
    assert remains(file, EVERYTHING) == b"old\0\0\0\0new"
    assert file.current == b"oldlostnew"


def test_a_failed_sync_may_keep_a_part_of_the_changes() -> None:
    file = synced(b"old")
    file.write(0, PAGES)
    file.fail_sync(LAST_PAGE_LOST)
    assert remains(file, NOTHING) == PAGES[:-PAGE_SIZE] + bytes(PAGE_SIZE)
    assert len(file.after_power_cut(NOTHING).lost) == PAGE_SIZE // SECTOR_SIZE


def test_worst_cases_of_a_file_that_grows() -> None:
    file = synced(PAGES[:PAGE_SIZE])
    file.write(PAGE_SIZE, PAGES[PAGE_SIZE:])
    kept, zeros = PAGES[:PAGE_SIZE], bytes(PAGE_SIZE)
    second, third, last = (PAGES[PAGE_SIZE * number :][:PAGE_SIZE] for number in (1, 2, 3))
    assert remains(file, NOTHING) == kept
    assert remains(file, OLD_SIZE) == kept
    assert remains(file, SIZE_ONLY) == kept + 3 * zeros
    assert remains(file, FIRST_PAGE_LOST) == kept + zeros + third + last
    assert remains(file, LAST_PAGE_LOST) == kept + second + third + zeros
    assert remains(file, ZERO_TAIL) == kept + second + 2 * zeros


def test_lost_pages_of_a_reused_file_have_their_old_content() -> None:
    file = synced(PAGES)
    file.write(0, b"x" * 4 * PAGE_SIZE)
    assert remains(file, SIZE_ONLY) == PAGES
    assert remains(file, LAST_PAGE_LOST) == b"x" * 3 * PAGE_SIZE + PAGES[-PAGE_SIZE:]
    assert remains(file, OLD_SIZE) == b"x" * 4 * PAGE_SIZE


def test_any_subset_of_pages_survives() -> None:
    file = synced(PAGES)
    file.write(0, PAGES.lower())
    whole_pages = {
        content
        for content in any_remains(file)
        if all(len(set(content[start : start + PAGE_SIZE])) == 1 for start in range(0, len(content), PAGE_SIZE))
    }
    assert {bytes(content[::PAGE_SIZE]) for content in whole_pages if len(content) == len(PAGES)} == {
        bytes([a, b, c, d]) for a in b"Aa" for b in b"Bb" for c in b"Cc" for d in b"Dd"
    }


def test_a_page_is_torn_between_sectors_only() -> None:
    file = synced(b"o" * PAGE_SIZE)
    file.write(0, b"n" * PAGE_SIZE)
    found = any_remains(file)
    for content in found:
        assert all(len(set(content[at : at + SECTOR_SIZE])) == 1 for at in range(0, PAGE_SIZE, SECTOR_SIZE))
    assert len(found) > 100


def test_a_page_may_have_the_content_between_two_writes() -> None:
    file = synced(b"a" * 10)
    for letter in b"bcd":
        file.write(0, bytes([letter]) * 10)
    assert {content[:1] for content in any_remains(file)} == {b"a", b"b", b"c", b"d"}


def test_any_size_since_the_sync_may_survive() -> None:
    file = synced(b"x" * 10)
    file.write(10, b"y" * 5)
    file.truncate(3)
    assert {len(content) for content in any_remains(file)} == set(range(3, 16))
    assert remains(file, SIZE_ONLY) == b"x" * 3
    assert remains(file, OLD_SIZE) == b"x" * 3 + b"\0" * 7
    assert remains(file, EVERYTHING) == b"x" * 3


def test_allocated_space_is_zeros_and_keeps_existing_bytes() -> None:
    file = synced(b"x" * 10)
    file.allocate(5)
    assert remains(file, EVERYTHING) == b"x" * 10
    file.allocate(20)
    assert remains(file, NOTHING) == b"x" * 10
    assert remains(file, SIZE_ONLY) == remains(file, EVERYTHING) == b"x" * 10 + bytes(10)


def test_ranges_that_lost_a_change_are_reported() -> None:
    file = synced(b"")
    file.write(0, PAGES[: PAGE_SIZE + 100])
    assert file.after_power_cut(EVERYTHING).lost == ()
    assert file.after_power_cut(LAST_PAGE_LOST).lost == ((PAGE_SIZE, PAGE_SIZE + 100),)
    assert len(file.after_power_cut(FIRST_PAGE_LOST).lost) == PAGE_SIZE // SECTOR_SIZE


# Names


def disk(**contents: bytes) -> DiskModel:
    return DiskModel(ROOT, Image(contents))


def sync(model: DiskModel, path: str) -> None:
    node = model.node(path)
    assert node is not None
    model.begin_sync(node)()


def names(model: DiskModel, survival: Survival) -> list[str]:
    image = model.after_power_cut(survival)
    return sorted([*image.files, *(f"{path}/" for path in image.directories)])


def any_names(model: DiskModel) -> set[tuple[str, ...]]:
    return {tuple(names(model, RandomSurvival(random.Random(seed)))) for seed in range(300)}


def test_a_new_file_needs_a_sync_of_its_directory() -> None:
    model = disk()
    file = model.create("/data/new")
    assert file is not None
    file.write(0, b"content")
    sync(model, "/data/new")
    assert model.after_power_cut(NOTHING).files == {}
    assert model.after_power_cut(NAMES_ONLY).files == {"new": b"content"}
    sync(model, "/data")
    assert model.after_power_cut(NOTHING).files == {"new": b"content"}


def test_a_durable_name_may_have_no_content() -> None:
    model = disk()
    file = model.create("/data/new")
    assert file is not None
    file.write(0, b"content")
    sync(model, "/data")
    assert model.after_power_cut(NOTHING).files == {"new": b""}
    assert model.after_power_cut(CONTENT_ONLY).files == {"new": b"content"}


def test_a_removed_file_may_come_back() -> None:
    model = disk(a=b"1")
    model.remove("/data/a")
    assert model.after_power_cut(NOTHING).files == {"a": b"1"}
    sync(model, "/data")
    assert model.after_power_cut(NOTHING).files == {}


def test_changes_of_names_survive_in_any_subset() -> None:
    model = disk(a=b"1")
    model.create("/data/b")
    model.create("/data/c")
    model.remove("/data/a")
    every = {"a", "b", "c"}
    assert any_names(model) == {
        tuple(sorted(every - missing)) for missing in map(set, ("", "a", "b", "c", "ab", "ac", "bc", "abc"))
    }


def test_a_rename_is_atomic() -> None:
    model = disk(target=b"old", source=b"new")
    model.rename("/data/source", "/data/target")
    images = [model.after_power_cut(RandomSurvival(random.Random(seed))).files for seed in range(100)]
    assert {"target": b"new"} in images
    assert {"target": b"old", "source": b"new"} in images
    assert all(image in ({"target": b"new"}, {"target": b"old", "source": b"new"}) for image in images)


def test_a_rename_may_survive_without_the_content() -> None:
    model = disk(target=b"old")
    file = model.create("/data/source")
    assert file is not None
    file.write(0, b"new")
    model.rename("/data/source", "/data/target")
    assert model.after_power_cut(NAMES_ONLY).files == {"target": b""}
    assert model.after_power_cut(SIZE_ONLY).files == {"target": b"\0\0\0"}
    assert model.after_power_cut(CONTENT_ONLY).files == {"target": b"old"}


def test_a_file_in_a_new_directory_needs_a_sync_of_both_directories() -> None:
    model = disk()
    model.make_directory("/data/topic")
    model.create("/data/topic/segment")
    sync(model, "/data/topic")
    assert names(model, NOTHING) == []
    sync(model, "/data")
    assert names(model, NOTHING) == ["topic/", "topic/segment"]
    other = disk()
    other.make_directory("/data/topic")
    other.create("/data/topic/segment")
    sync(other, "/data")
    assert names(other, NOTHING) == ["topic/"]
    assert any_names(other) == {("topic/",), ("topic/", "topic/segment")}


def test_a_renamed_directory_keeps_its_files() -> None:
    model = disk()
    model.make_directory("/data/topic")
    model.create("/data/topic/segment")
    sync(model, "/data/topic")
    sync(model, "/data")
    model.rename("/data/topic", "/data/deleted")
    assert any_names(model) == {("topic/", "topic/segment"), ("deleted/", "deleted/segment")}


def test_a_rename_between_directories_needs_both_syncs() -> None:
    model = disk(a=b"1")
    model.make_directory("/data/sub")
    sync(model, "/data")
    model.rename("/data/a", "/data/sub/a")
    either = {("a", "sub/"), ("sub/", "sub/a")}
    assert any_names(model) == either
    sync(model, "/data/sub")
    assert any_names(model) == either
    sync(model, "/data")
    assert names(model, NOTHING) == ["sub/", "sub/a"]


def test_a_directory_sync_covers_only_the_names_before_it_began() -> None:
    model = disk()
    node = model.node("/data")
    assert node is not None
    model.create("/data/before")
    end = model.begin_sync(node)
    model.create("/data/after")
    end()
    assert names(model, NOTHING) == ["before"]


def test_an_image_is_written_and_read(tmp_path: Path) -> None:
    image = Image({"a": b"1", "sub/deep/b": b"2"}, ["sub", "sub/deep"])
    image.write_to(tmp_path)
    assert Image.read(tmp_path) == image


# Operations of this process


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[DiskModel, RecordingOS]]:
    model = DiskModel(tmp_path, Image())
    recorder = RecordingOS(model)
    with recorder.installed():
        yield model, recorder


def test_operations_of_the_package_are_followed(recorded: tuple[DiskModel, RecordingOS]) -> None:
    model, recorder = recorded
    path = f"{model.root}/a"
    descriptor = files.open_file(files.DATA, path, os.O_RDWR | os.O_CREAT)
    files.write_all(files.DATA, descriptor, b"content", 0)
    recorder.begin_sync(descriptor)()
    files.write_all(files.DATA, descriptor, b"CONT", 0)
    files.cut_file(files.DATA, descriptor, 6)
    files.rename(files.DATA, path, f"{model.root}/b")
    recorder.check()
    assert model.present().files == {"b": b"CONTen"}
    assert model.after_power_cut(NAMES_ONLY).files == {"b": b"content"}
    files.remove_if_there(files.DATA, f"{model.root}/b")
    recorder.check()
    os.close(descriptor)


def test_vectored_writes_preallocation_and_directories_are_followed(recorded: tuple[DiskModel, RecordingOS]) -> None:
    model, recorder = recorded
    recorder.mkdir(f"{model.root}/sub")
    descriptor = recorder.open(f"{model.root}/sub/a", os.O_RDWR | os.O_CREAT)
    recorder.posix_fallocate(descriptor, 0, 10)
    recorder.pwritev(descriptor, [b"one", b"two"], 2)
    recorder.check()
    assert model.present().files == {"sub/a": b"\0\0onetwo\0\0"}
    os.close(descriptor)
    recorder.unlink(f"{model.root}/sub/a")
    recorder.rmdir(f"{model.root}/sub")
    recorder.check()


def test_a_missed_change_is_noticed(recorded: tuple[DiskModel, RecordingOS]) -> None:
    model, recorder = recorded
    (model.root / "a").write_bytes(b"unnoticed")
    with pytest.raises(AssertionError):
        recorder.check()


# Traced system calls


def traced(*texts: str) -> TracedDisk:
    """Play calls, written as strace writes them but with plain strings; each has its own line unless it says lines."""
    calls = []
    for number, text in enumerate(texts):
        name, _, tail = text.partition("(")
        arguments, _, result = tail.rpartition(") = ")
        began, ended = number, number
        if "@" in result:
            result, _, line = result.partition("@")
            began = int(line)
        calls.append(Call(name, _in_hex(arguments), int(result), began, ended))
    player = TracedDisk(ROOT, Image({"old": b"durable"}), calls)
    for call in calls:
        player.apply(call)
    return player


def _in_hex(text: str) -> str:
    parts = text.split('"')
    parts[1::2] = ["".join(f"\\x{byte:02x}" for byte in part.encode()) for part in parts[1::2]]
    return '"'.join(parts)


def test_traced_writes() -> None:
    player = traced(
        'openat(AT_FDCWD</>, "/data/a", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 5',
        'write(5</data/a>, "one", 3) = 3',
        'writev(5</data/a>, [{iov_base="tw", iov_len=2}, {iov_base="o", iov_len=1}], 2) = 3',
        'pwrite64(5</data/a>, "THREE", 5, 6) = 5',
        'pwritev(5</data/a>, [{iov_base="fo", iov_len=2}, {iov_base="ur", iov_len=2}], 2, 11) = 4',
        'pwritev2(5</data/a>, [{iov_base="!", iov_len=1}], 1, 15, 0) = 1',
        "fallocate(5</data/a>, 0, 0, 18) = 0",
        "fallocate(5</data/a>, FALLOC_FL_KEEP_SIZE, 0, 100) = 0",
        'openat(AT_FDCWD</>, "/data/old", O_WRONLY|O_APPEND) = 6',
        'write(6</data/old>, "+", 1) = 1',
        "ftruncate(7</elsewhere>, 0) = 0",
        'write(8<socket:[123]>, "OK", 2) = 2',
    )
    assert player.after_power_cut(EVERYTHING).files == {"a": b"onetwoTHREEfour!\0\0", "old": b"durable+"}
    assert player.after_power_cut(NOTHING).files == {"old": b"durable"}


def test_traced_syncs_and_directories() -> None:
    player = traced(
        'mkdir("/data/sub", 0700) = 0',
        'openat(9</data/sub>, "a", O_RDWR|O_CREAT, 0600) = 5',
        'pwrite64(5</data/sub/a>, "one", 3, 0) = 3',
        "fdatasync(5</data/sub/a>) = 0",
        'renameat2(9</data/sub>, "a", AT_FDCWD</>, "/data/sub/b", 0) = 0',
        "fsync(9</data/sub>) = 0",
        "fsync(10</data>) = 0",
        'unlinkat(AT_FDCWD</>, "/data/old", 0) = 0',
        "ftruncate(5</data/sub/b>, 1) = 0",
    )
    assert player.after_power_cut().files == {"sub/b": b"one", "old": b"durable"}
    assert player.after_power_cut(EVERYTHING).files == {"sub/b": b"o"}


def test_a_traced_sync_covers_only_calls_that_returned_before_it_began() -> None:
    player = traced(
        'pwrite64(5</data/old>, "X", 1, 0) = 1',
        'pwrite64(5</data/old>, "Y", 1, 1) = 1',
        "fsync(5</data/old>) = 0@1",
    )
    assert player.after_power_cut().files == {"old": b"Xurable"}


def test_a_traced_sync_that_fails_loses_the_changes() -> None:
    player = traced(
        'pwrite64(5</data/old>, "X", 1, 0) = 1',
        "fdatasync(5</data/old>) = -1",
        "fdatasync(5</data/old>) = 0",
    )
    assert player.after_power_cut(EVERYTHING).files == {"old": b"durable"}


def test_unknown_calls_on_the_directory_are_refused() -> None:
    hole = "fallocate(5</data/old>, FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE, 0, 3) = 0"
    for text in ('truncate("/data/old", 3) = 0', hole):
        with pytest.raises(NotImplementedError):
            traced(text)
