"""The files of a data directory as bytes: the positions of records, and ways to damage them.

A record is an int32 length and a message; a message is a timestamp (8 bytes), attempts (2), an id (16) and the body.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

BROKER_ID_FILE = "broker.id"
GO_FILES = re.compile(r"nsqd\.dat|.+\.diskqueue\.(\d{6}|meta)\.dat")
BODY_OFFSET = 4 + 8 + 2 + 16
ID_OFFSET = 4 + 8 + 2


@dataclass(frozen=True)
class Record:
    """The position of one record."""

    path: Path
    position: int
    body: bytes

    @property
    def end(self) -> int:
        return self.position + BODY_OFFSET + len(self.body)


def data_files(data_path: Path, queue: str) -> list[Path]:
    """Return the data files of a queue, oldest first."""
    return sorted(data_path.glob(f"{queue}.diskqueue.[0-9]*.dat"))


def meta_file(data_path: Path, queue: str) -> Path:
    return data_path / f"{queue}.diskqueue.meta.dat"


def is_saved(data_path: Path, queue: str) -> bool:
    """True if the write position in the meta file is the end of the last data file."""
    last = data_files(data_path, queue)[-1:]
    meta = meta_file(data_path, queue)
    if not last or not meta.exists():
        return False
    write_file, write_position = meta.read_text().split("\n")[2].split(",")
    return int(write_file) == int(last[0].name.split(".")[-2]) and int(write_position) == last[0].stat().st_size


def find_records(data_path: Path, queue: str) -> list[Record]:
    """Return every complete record in the data files of a queue, read or not."""
    found = []
    for path in data_files(data_path, queue):
        content = path.read_bytes()
        position = 0
        while position + 4 <= len(content):
            (length,) = struct.unpack_from(">i", content, position)
            end = position + 4 + length
            if length < BODY_OFFSET - 4 or end > len(content):
                break
            found.append(Record(path, position, content[position + BODY_OFFSET : end]))
            position = end
    return found


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    """Invert one bit."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def cut(path: Path, length: int) -> None:
    """Truncate a file to ``length`` bytes."""
    path.write_bytes(path.read_bytes()[:length])


def files_that_go_ignores(data_path: Path) -> list[Path]:
    """Return the files that Go's nsqd neither reads nor writes, except broker.id, which holds no message."""
    found = [path for path in data_path.iterdir() if path.name != BROKER_ID_FILE]
    return sorted(path for path in found if not GO_FILES.fullmatch(path.name))
