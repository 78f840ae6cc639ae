"""The limit of --min-free-disk."""

import os
from types import SimpleNamespace

import pytest

from nsqx.errors import DiskQueueError
from nsqx.nsqd.free_disk import FreeDisk

S = 1_000_000_000


class FileSystem:
    """A file system whose free space the test sets. ``paths`` are the paths that were measured."""

    def __init__(self, free_blocks: int) -> None:
        self.free_blocks = free_blocks
        self.error: OSError | None = None
        self.paths: list[str] = []

    def statvfs(self, path: str) -> SimpleNamespace:
        self.paths.append(path)
        if self.error is not None:
            raise self.error
        # Blocks that are free for root only do not count.
        return SimpleNamespace(f_bavail=self.free_blocks, f_bfree=self.free_blocks + 1000, f_frsize=512, f_bsize=4096)


def test_publishes_are_refused_below_the_limit():
    disk = FreeDisk("/data", 1024, FileSystem(free_blocks=1).statvfs)
    with pytest.raises(DiskQueueError, match="^512 bytes of disk are free, --min-free-disk is 1024$"):
        disk.refuse_if_low(0)
    assert disk.is_low


def test_exactly_the_limit_is_enough():
    disk = FreeDisk("/data", 1024, FileSystem(free_blocks=2).statvfs)
    disk.refuse_if_low(0)
    assert not disk.is_low


def test_the_space_is_measured_at_most_once_a_second():
    files = FileSystem(free_blocks=2)
    disk = FreeDisk("/data", 1024, files.statvfs)
    for now_ns in (5 * S, 5 * S + 1, 6 * S - 1):
        disk.refuse_if_low(now_ns)
    assert files.paths == ["/data"]
    files.free_blocks = 0
    with pytest.raises(DiskQueueError):
        disk.refuse_if_low(6 * S)
    with pytest.raises(DiskQueueError):
        disk.refuse_if_low(7 * S - 1)
    assert files.paths == ["/data"] * 2


def test_publishes_are_accepted_again_when_there_is_space():
    files = FileSystem(free_blocks=0)
    disk = FreeDisk("/data", 1024, files.statvfs)
    with pytest.raises(DiskQueueError):
        disk.refuse_if_low(0)
    files.free_blocks = 2
    disk.refuse_if_low(S)
    assert not disk.is_low


def test_a_clock_that_is_set_back_does_not_delay_the_next_measurement():
    files = FileSystem(free_blocks=0)
    disk = FreeDisk("/data", 1024, files.statvfs)
    with pytest.raises(DiskQueueError):
        disk.refuse_if_low(3600 * S)
    files.free_blocks = 2
    disk.refuse_if_low(0)


def test_space_that_cannot_be_measured_counts_as_enough():
    files = FileSystem(free_blocks=0)
    disk = FreeDisk("/data", 1024, files.statvfs)
    with pytest.raises(DiskQueueError):
        disk.refuse_if_low(0)
    files.error = OSError(5, "Input/output error")
    disk.refuse_if_low(S)
    assert not disk.is_low


def test_without_a_limit_nothing_is_measured():
    files = FileSystem(free_blocks=0)
    FreeDisk("/data", 0, files.statvfs).refuse_if_low(0)
    assert files.paths == []


def test_the_real_file_system_is_measured(tmp_path):
    found = os.statvfs(tmp_path)
    FreeDisk(str(tmp_path), 1).refuse_if_low(0)
    with pytest.raises(DiskQueueError):
        FreeDisk(str(tmp_path), found.f_blocks * found.f_frsize + 1).refuse_if_low(0)
