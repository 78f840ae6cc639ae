"""Power cuts while the header of a commit file is erased, written or replaced: none of them looks like damage.

A file is used by several processes in turn, each of which ends at any operation. Then the power is cut, and parts of
each write since the last sync are lost. The parts have 8 bytes, less than any disk loses, so headers are torn.
"""

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from disk_model import DiskModel, Image, RandomSurvival
from recording_os import RecordingOS

from nsqx.queues import files
from nsqx.queues.files import FileOperation
from nsqx.queues.log.batch import MESSAGES, new_batch, seed_of
from nsqx.queues.log.commit_file import (
    CommitFile,
    CommitHeader,
    Entry,
    decode_header,
    encode_frame,
    is_header_damaged,
)

PAGE_SIZE, SECTOR_SIZE = 64, 8
BOOT_ID = bytes(range(16, 32))
HIGHEST_ID = 1 << 50
FRAMES = 3


class Killed(Exception):
    """The process ends."""


class CommitFileLives:
    """A commit file that several processes use in turn."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self._directory = directory
        self._rng = rng
        self._path = str(directory / "nsqx.commit.0")
        self._disk = DiskModel(directory, Image(), PAGE_SIZE, SECTOR_SIZE)
        self._os = RecordingOS(self._disk)
        self._generation = 0
        self._operations_left = 0

    def live(self) -> None:
        """Use the file for some generations, and end at some operation."""
        self._operations_left = self._rng.randint(1, 25)
        file = CommitFile(self._path)
        with self._os.installed():
            files.set_hook(self._hook)
            try:
                while True:
                    self._use(file)
            except Killed:
                pass
            finally:
                files.set_hook(None)
                file.close()

    def _use(self, file: CommitFile) -> None:
        """Begin a generation with some frames, or none; then perhaps end it cleanly."""
        self._generation += 1
        header = self._header(is_clean=False)
        file.begin_generation(header)
        for _ in range(self._rng.choice((0, 1, FRAMES))):
            batch = new_batch(MESSAGES, 0, 1, 5, b"\0\0\0\1m")
            buffers = encode_frame(header, file.next_serial, 0, HIGHEST_ID, [Entry(1, batch, seed_of(1), 0)])
            file.write(buffers)
            file.sync()
            file.position += sum(map(len, buffers))
            file.next_serial += 1
        if self._rng.random() < 0.5:
            file.save_header(self._header(is_clean=True))

    def _header(self, *, is_clean: bool) -> CommitHeader:
        nonce = self._rng.getrandbits(64)
        serial = self._generation << 32
        return CommitHeader(self._generation, self._generation, serial, nonce, BOOT_ID, HIGHEST_ID, is_clean)

    def _hook(self, operation: FileOperation) -> None:
        self._operations_left -= 1
        if self._operations_left < 0:
            raise Killed
        if operation.name in (files.SYNC, files.DATASYNC):
            self._os.begin_sync(operation.descriptor)()

    def cut_power(self) -> bytes:
        """Cut the power; return the content of the file."""
        self._os.check()
        image = self._disk.after_power_cut(RandomSurvival(self._rng))
        Path(self._path).unlink(missing_ok=True)
        image.write_to(self._directory)
        self._disk.load(image)
        return image.files.get(os.path.basename(self._path), b"")


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_does_not_look_like_a_damaged_header(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    lives = CommitFileLives(tmp_path, rng)
    for _ in range(200):
        for _ in range(rng.randint(1, 3)):
            lives.live()
        data = lives.cut_power()
        assert not is_header_damaged(data), (data[:65].hex(" ", 8), data[4096:4161].hex(" ", 8))


def test_power_cuts_leave_intact_torn_and_erased_headers(tmp_path: Path) -> None:
    lives = CommitFileLives(tmp_path, random.Random(1))
    counts: Counter[str] = Counter()
    for _ in range(600):
        lives.live()
        data = lives.cut_power()
        copies = [data[:65], data[4096:4161]]
        if decode_header(data) is not None:
            counts["intact"] += 1
        else:
            counts[f"{sum(map(any, copies))} torn"] += 1
    assert all(counts[what] for what in ("intact", "0 torn", "1 torn", "2 torn")), counts
