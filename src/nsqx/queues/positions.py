"""The read and write positions of a disk queue and its depth: the meta file, corrected by the data files.

      <name>.diskqueue.meta.dat      text: depth \\n readFile,readPosition \\n writeFile,writePosition \\n

A meta file is only as recent as its last save. ``PositionFinder`` corrects it by the data files that exist.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Protocol

from nsqx.queues.files import META, read_file
from nsqx.queues.recovery import count_records

_META = re.compile(rb"(-?\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n")
_META_SIZE = 200


class QueueLog(Protocol):
    """The log of a disk queue."""

    def info(self, text: str, *args: object) -> None: ...
    def warn(self, text: str, *args: object) -> None: ...
    def error(self, text: str, *args: object) -> None: ...


@dataclass(slots=True)
class Positions:
    """The depth, and the positions of reading and writing: the number of a data file and a byte in it."""

    depth: int = 0
    read_file: int = 0
    read_position: int = 0
    write_file: int = 0
    write_position: int = 0
    is_corrected: bool = field(default=False, kw_only=True)
    """True if they differ from the meta file."""


def meta_path(directory: str, name: str) -> str:
    """Return the path of a queue's meta file."""
    return os.path.join(directory, f"{name}.diskqueue.meta.dat")


def data_path(directory: str, name: str, number: int) -> str:
    """Return the path of a data file."""
    return os.path.join(directory, f"{name}.diskqueue.{number:06d}.dat")


def is_discarded(directory: str, name: str, numbers: list[int]) -> bool:
    """True if the meta file says that the queue is empty and continues after all these data files; raises OSError."""
    try:
        meta = _META.match(read_file(META, meta_path(directory, name), _META_SIZE))
    except FileNotFoundError:
        return False
    if meta is None:
        return False
    found = Positions(*map(int, meta.groups()))
    is_empty = found.depth == found.read_position == found.write_position == 0 and found.read_file == found.write_file
    return is_empty and max(numbers) < found.read_file


class PositionFinder:
    """Finds the positions of one queue; ``numbers`` are those of the existing data files."""

    def __init__(self, directory: str, name: str, numbers: list[int], max_record_size: int, log: QueueLog) -> None:
        self._directory = directory
        self._name = name
        self._numbers = numbers
        self._max_record_size = max_record_size
        self._log = log

    def find(self) -> Positions:
        """Return the positions of the meta file, or of the data files if it is unusable; raises OSError."""
        try:
            meta = _META.match(read_file(META, meta_path(self._directory, self._name), _META_SIZE))
        except FileNotFoundError:
            meta = None
        if meta is None or not self._is_plausible(meta):
            return self._rebuild()
        positions = Positions(*map(int, meta.groups()))
        self._add_unsaved_tail(positions)
        if not set(self._numbers).issuperset(range(positions.read_file, positions.write_file)):
            # An earlier process set files aside and ended before it saved the meta file.
            positions.depth = self._count_from_read_position(positions)
            positions.is_corrected = True
        return positions

    def _is_plausible(self, meta: re.Match[bytes]) -> bool:
        """False if the meta file names many files that do not exist: reading would try to open all of them."""
        missing = int(meta[4]) - int(meta[2]) - len(self._numbers)
        return missing <= 1 and max(map(int, meta.groups())) < 1 << 53

    def _path(self, number: int) -> str:
        return data_path(self._directory, self._name, number)

    def _count(self, number: int, position: int) -> int:
        return count_records(self._path(number), position, self._max_record_size)

    def _rebuild(self) -> Positions:
        """Return positions without a meta file: everything in the data files is unread."""
        if not self._numbers:
            return Positions()
        self._log.warn("DISKQUEUE(%s) no usable metadata, reading all %d data files", self._name, len(self._numbers))
        depth = sum(self._count(number, 0) for number in self._numbers)
        return Positions(depth, min(self._numbers), 0, max(self._numbers) + 1, 0, is_corrected=True)

    def _add_unsaved_tail(self, positions: Positions) -> None:
        """Add records that were written after the last save of the meta file, and continue writing in a new file."""
        position, last = positions.write_position, positions.write_file
        for number in self._numbers:
            if number < positions.write_file:
                continue
            size = os.stat(self._path(number)).st_size
            if size > position:
                self._log.warn(
                    "DISKQUEUE(%s) %s metadata writePos %d < file size of %d, skipping to new file",
                    self._name,
                    self._path(number),
                    position,
                    size,
                )
                positions.depth += self._count(number, position)
                last = number + 1
            elif number == positions.write_file and size < position:
                self._log.error(
                    "DISKQUEUE(%s) %s metadata writePos %d > file size of %d, data loss, skipping to new file",
                    self._name,
                    self._path(number),
                    position,
                    size,
                )
                positions.depth = self._count_from_read_position(positions)
                last = number + 1
            position = 0
        if last != positions.write_file:
            positions.write_file, positions.write_position = last, 0
            positions.is_corrected = True

    def _count_from_read_position(self, positions: Positions) -> int:
        count = 0
        for number in self._numbers:
            if positions.read_file <= number <= positions.write_file:
                count += self._count(number, positions.read_position if number == positions.read_file else 0)
        return count
