"""Finding out what data files hold, when the meta file does not say or cannot be right."""

from __future__ import annotations

import os
import re

from nsqx.queues.files import remove_if_there
from nsqx.wire import octets
from nsqx.wire.message import HEADER_LENGTH

# What ``files.write_temporary`` names its files.
_TEMPORARY = re.compile(r".+\.dat\.\d+\.tmp")
_CHUNK_SIZE = 4 * 1024 * 1024


_DATA_FILE = re.compile(r"(.+)\.diskqueue\.(\d{6,})\.dat")


def data_file_numbers(directory: str) -> dict[str, list[int]]:
    """The numbers of the data files in a directory, ascending, by the name of their queue."""
    numbers: dict[str, list[int]] = {}
    for entry in os.listdir(directory):
        match = _DATA_FILE.fullmatch(entry)
        if match:
            numbers.setdefault(match[1], []).append(int(match[2]))
    for found in numbers.values():
        found.sort()
    return numbers


def remove_temporary_files(directory: str) -> None:
    """Remove what a crash kept from being renamed; nobody else may use the directory meanwhile."""
    for entry in os.listdir(directory):
        if _TEMPORARY.fullmatch(entry):
            remove_if_there(os.path.join(directory, entry))


def count_records(path: str, position: int, max_record_size: int) -> tuple[int, int]:
    """How many whole records follow ``position``, and where the last of them ends."""
    count = 0
    with open(path, "rb") as file:
        while True:
            file.seek(position)
            data = file.read(max(_CHUNK_SIZE, 4 + max_record_size))
            offset = 0
            while len(data) - offset >= 4:
                size = octets.int32_at(data, offset)
                if size < HEADER_LENGTH or size > max_record_size or len(data) - offset < 4 + size:
                    break
                offset += 4 + size
                count += 1
            if offset == 0:
                return count, position
            position += offset
