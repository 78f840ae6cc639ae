"""Staged parts: messages of a transaction that are durable, but in no log yet.

      <data path>/nsqx.staged/<query>,<batch>,<part>,<attempt>.part

A file has the head of the part in JSON as a record, and then batches of messages, each for one topic. The heads of all
of them have a seed made from the name of the file, so a file that was renamed is not valid. Items and their sums are
copied unchanged to the logs.

A part has several attempts if a task is repeated. The commit of the transaction names one of them. The others, and the
parts of transactions that are never committed, are removed later.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import orjson

from nsqx.queues.files import (
    STAGE,
    Buffer,
    make_directory,
    read_file,
    remove_if_there,
    replace_file,
    sync_directory,
)
from nsqx.queues.log.batch import (
    HEAD_SIZE,
    PART,
    STAGED,
    TOPIC,
    LogBatch,
    decode_extension,
    encode_extension,
    new_batch,
    new_record,
    payload_of,
    read_batch,
    read_head,
)

STAGED_DIRECTORY = "nsqx.staged"
_SUFFIX = ".part"
_TEMPORARY_SUFFIX = ".tmp"
_NAME = re.compile(
    r"(?P<query>[.a-zA-Z0-9_-]{1,64}),(?P<batch>\d{1,19}),(?P<part>[.a-zA-Z0-9_-]{1,64}),"
    r"(?P<attempt>[.a-zA-Z0-9_-]{1,64})\.part",
    re.ASCII,
)
_DEFER = Struct(">q")
# Smaller groups for one topic with one delay are appended to the log together, up to this size.
_MERGED_SIZE = 256 * 1024


class PartDamaged(Exception):
    """The file of a staged part is not intact."""


class PartName(NamedTuple):
    """The name of a staged part."""

    query: str
    batch: int
    part: str
    attempt: str

    @property
    def file_name(self) -> str:
        """The name of the file."""
        return f"{self.query},{self.batch},{self.part},{self.attempt}{_SUFFIX}"


class StagedPart(NamedTuple):
    """A file of the directory."""

    name: PartName
    size: int
    time_ns: int  # when it was written


class PartMessages(NamedTuple):
    """Messages of a part for one topic, in the layout of an MPUB body; ``sums`` are their checksums."""

    topic: str
    defer_ns: int
    message_count: int
    items: bytes
    sums: bytes = b""


def staged_directory(data_path: str) -> str:
    """Return the directory of the staged parts."""
    return os.path.join(data_path, STAGED_DIRECTORY)


def parse_file_name(file_name: str) -> PartName | None:
    """Return the part that a file name stands for, or None if it is not the name of a part."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    return PartName(match["query"], int(match["batch"]), match["part"], match["attempt"])


def list_staged(data_path: str) -> list[StagedPart]:
    """Return the staged parts, sorted by name. Raises OSError."""
    found = []
    try:
        entries = sorted(os.scandir(staged_directory(data_path)), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    for entry in entries:
        name = parse_file_name(entry.name)
        if name is not None:
            status = entry.stat()
            found.append(StagedPart(name, status.st_size, status.st_mtime_ns))
    return found


def remove_unfinished(data_path: str) -> None:
    """Remove the temporary files that a crash has left. Raises OSError."""
    directory = staged_directory(data_path)
    if os.path.isdir(directory):
        for file_name in os.listdir(directory):
            if file_name.endswith(_TEMPORARY_SUFFIX):
                remove_if_there(STAGE, os.path.join(directory, file_name))


def _seed_of(name: PartName) -> int:
    return crc32(name.file_name.encode())


def encode_part(name: PartName, groups: Sequence[PartMessages]) -> bytes:
    """Return the content of the file of a part."""
    seed = _seed_of(name)
    batches = []
    for group in groups:
        extension = encode_extension({TOPIC: _DEFER.pack(group.defer_ns) + group.topic.encode()})
        batches.append(new_batch(PART, 0, group.message_count, 0, group.items, extension))
    fields = {**name._asdict(), "groups": len(batches), "bytes": sum(batch.size for batch in batches)}
    buffers: list[Buffer] = []
    for batch in (new_record(STAGED, 0, orjson.dumps(fields)), *batches):
        buffers += batch.buffers(seed)
    return b"".join(buffers)


def decode_part(name: PartName, data: bytes) -> list[PartMessages]:
    """Return the messages of a part, with their checksums; raises PartDamaged."""
    batches = list(_batches(name, data))
    if not batches or batches[0].kind != STAGED:
        raise PartDamaged(f"{name.file_name} has no valid head")
    fields = orjson.loads(payload_of(batches[0]))
    groups = batches[1:]
    if len(groups) != fields["groups"] or sum(batch.size for batch in groups) != fields["bytes"]:
        raise PartDamaged(f"{name.file_name} is not complete")
    return [_messages_of(batch) for batch in groups]


def _batches(name: PartName, data: bytes) -> Iterator[LogBatch]:
    seed = _seed_of(name)
    position = 0
    view = memoryview(data)
    while position < len(data):
        head = read_head(view, position, seed)
        batch = read_batch(head, view[position + HEAD_SIZE : position + head.size]) if head is not None else None
        if head is None or batch is None:
            raise PartDamaged(f"{name.file_name} is damaged at byte {position}")
        yield batch
        position += head.size


def _messages_of(batch: LogBatch) -> PartMessages:
    value = decode_extension(batch.extension)[TOPIC]
    (defer_ns,) = _DEFER.unpack(value[: _DEFER.size])
    return PartMessages(value[_DEFER.size :].decode(), defer_ns, batch.count, batch.items, batch.sums)


def _merged(groups: Sequence[PartMessages]) -> list[PartMessages]:
    """Return fewer and larger groups with the same messages."""
    found: list[PartMessages] = []
    open_groups: dict[tuple[str, int], list[PartMessages]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for group in groups:
        key = group.topic, group.defer_ns
        open_groups.setdefault(key, []).append(group)
        size = sizes[key] = sizes.get(key, 0) + len(group.items)
        if size >= _MERGED_SIZE:
            found.append(_joined(open_groups.pop(key)))
            sizes[key] = 0
    return [*found, *map(_joined, open_groups.values())]


def _joined(groups: Sequence[PartMessages]) -> PartMessages:
    if len(groups) == 1:
        return groups[0]
    return groups[0]._replace(
        message_count=sum([group.message_count for group in groups]),
        items=b"".join([group.items for group in groups]),
        sums=b"".join([group.sums for group in groups]),
    )


def is_intact(data_path: str, name: PartName) -> bool:
    """True if the file of a part is complete and not damaged. Raises OSError."""
    try:
        decode_part(name, read_file(STAGE, os.path.join(staged_directory(data_path), name.file_name)))
    except PartDamaged:
        return False
    return True


class StageJob:
    """Writes the file of a part, durably. ``run`` may be called in any thread and never raises OSError."""

    def __init__(self, data_path: str, name: PartName, groups: Sequence[PartMessages], *, is_first: bool) -> None:
        """``is_first``: this process has staged no part yet, so the directory may not be durable."""
        self.name = name
        self.size = 0
        self.error: OSError | None = None
        self._data_path = data_path
        self._groups = groups
        self._is_first = is_first

    def run(self) -> None:
        """Write the file under another name, sync it, and rename it."""
        directory = staged_directory(self._data_path)
        data = encode_part(self.name, self._groups)
        self.size = len(data)
        try:
            if self._is_first or not os.path.isdir(directory):
                make_directory(directory)
                sync_directory(self._data_path)
            replace_file(os.path.join(directory, self.name.file_name), data, STAGE)
        except OSError as error:
            self.error = error


class ReadPartsJob:
    """Reads parts. ``run`` may be called in any thread and never raises OSError or PartDamaged.

    Small groups are merged. The messages for one topic with one delay stay in their order.
    """

    def __init__(self, data_path: str, names: Sequence[PartName]) -> None:
        self.groups: list[PartMessages] = []
        self.missing: PartName | None = None
        self.error: OSError | PartDamaged | None = None
        self._directory = staged_directory(data_path)
        self._names = names

    def run(self) -> None:
        """Read until a file is missing or damaged."""
        for name in self._names:
            try:
                data = read_file(STAGE, os.path.join(self._directory, name.file_name))
                self.groups += _merged(decode_part(name, data))
            except FileNotFoundError:
                self.missing = name
                return
            except (OSError, PartDamaged) as error:
                self.error = error
                return


class RemovePartsJob:
    """Removes the files of parts. ``run`` may be called in any thread and never raises OSError."""

    def __init__(self, data_path: str, names: Sequence[PartName]) -> None:
        self.removed: list[PartName] = []
        self.error: OSError | None = None
        self._directory = staged_directory(data_path)
        self._names = names

    def run(self) -> None:
        """Remove as many files as possible. Nothing depends on it, so it is not synced."""
        for name in self._names:
            try:
                remove_if_there(STAGE, os.path.join(self._directory, name.file_name))
                self.removed.append(name)
            except OSError as error:
                self.error = error
