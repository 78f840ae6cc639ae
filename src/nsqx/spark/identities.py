"""The identities of messages whose rows were removed from a segment directory.

Owns two kinds of files of a segment directory:

    ids-FIRST-END.arrow     the identities of removed rows that are still in the window
    pins-NUMBER.arrow       the identities of rows that nsqd may deliver again at any time; if the lock is a lease, the
                            name ends with the owner's epoch

A file that replaces others is written first. Then ``verify`` checks that this process still owns the directory, and
only then the others are deleted. A later owner therefore never misses an identity. Knows neither connections nor Spark.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nsqx.spark.rows import FILE_SCHEMA, NAME_TYPE, read_table, write_batches

if TYPE_CHECKING:
    from nsqx.spark.storage import Storage

# In these files the column "node" contains the broker.
IDENTITY_COLUMNS = ("topic", "id", "timestamp_ns", "node")
_SCHEMA = pa.schema([FILE_SCHEMA.field(name) for name in IDENTITY_COLUMNS])
_PLAIN_SCHEMA = pa.schema([(field.name, pa.utf8() if field.type == NAME_TYPE else field.type) for field in _SCHEMA])
_IDS = re.compile(r"ids-(\d{20})-(\d{20})\.arrow")
_PINS = re.compile(r"pins-(\d{8})(?:-(\d+))?\.arrow")
# A file of identities smaller than this is merged with the next.
_FULL_IDS_ROWS = 50_000
_MAX_PIN_FILES = 16
_MAX_PINS = 1_000_000


@dataclass(frozen=True, slots=True)
class Identities:
    """Identities of messages of one topic and broker, in the order in which they were received.

    ``span`` is the first row and the row after the last one, or (0, 0) if unknown.
    """

    topic: str
    broker: str
    ids: list[bytes]
    timestamps_ns: list[int]
    span: tuple[int, int] = field(default=(0, 0), compare=False)


def to_identity_batch(parts: Iterable[Identities]) -> pa.RecordBatch:
    """Return the content of a file of pins."""
    listed = list(parts)
    columns = [
        pa.array([part.topic for part in listed for _ in part.ids], pa.utf8()).dictionary_encode(),
        pa.array([message_id for part in listed for message_id in part.ids], pa.utf8()),
        pa.array([time_ns for part in listed for time_ns in part.timestamps_ns], pa.int64()),
        pa.array([part.broker for part in listed for _ in part.ids], pa.utf8()).dictionary_encode(),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def join_identities(tables: Sequence[pa.Table]) -> pa.RecordBatch:
    """Return the identities of several files in one batch, without a Python loop over rows."""
    joined = pa.concat_tables([table.cast(_PLAIN_SCHEMA) for table in tables]).combine_chunks()
    columns = []
    for name in IDENTITY_COLUMNS:
        (chunk,) = joined.column(name).chunks or [pa.array([], _PLAIN_SCHEMA.field(name).type)]
        columns.append(chunk.dictionary_encode() if _SCHEMA.field(name).type == NAME_TYPE else chunk)
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def read_identities(stream: Any) -> pa.Table:
    """Return the identities in a segment; segments of old versions have the node address instead of a broker."""
    names = pa.ipc.open_file(stream).schema.names
    wanted = [*IDENTITY_COLUMNS[:-1], "broker" if "broker" in names else "node"]
    options = pa.ipc.IpcReadOptions(included_fields=sorted(map(names.index, wanted)))
    table = pa.ipc.open_file(stream, options=options).read_all()
    return table.select(wanted).rename_columns(list(IDENTITY_COLUMNS))


def identities_of(table: pa.Table, first: int = 0) -> Iterator[Identities]:
    """Yield the identities in a file by topic and broker; ``first`` is the number of the first row."""
    columns = [table.column(name).to_pylist() for name in ("topic", "node", "id", "timestamp_ns")]
    found: dict[tuple[str, str], tuple[int, list[bytes], list[int]]] = {}
    ends: dict[tuple[str, str], int] = {}
    for row, (topic, broker, message_id, time_ns) in enumerate(zip(*columns, strict=True), first):
        group = found.get((topic, broker))
        if group is None:
            group = found[topic, broker] = (row, [], [])
        group[1].append(message_id.encode())
        group[2].append(time_ns)
        ends[topic, broker] = row + 1
    for (topic, broker), (start, ids, times) in found.items():
        yield Identities(topic, broker, ids, times, (start, ends[topic, broker]))


class IdentityFiles:
    """The files of a segment directory with identities of removed rows and with pins."""

    def __init__(self, storage: Storage, epoch: int, verify: Callable[[], None]) -> None:
        self._storage = storage
        self._epoch = epoch
        self._verify = verify
        # The first row of each file and the row after its last one, in order.
        self._ids: list[tuple[int, int]] = []
        # The number and the epoch of each file, in order.
        self._pins: list[tuple[int, int]] = []

    def load(self, names: Iterable[str]) -> None:
        """Find the existing files among ``names``."""
        listed = list(names)
        ids = sorted((int(match[1]), int(match[2])) for match in map(_IDS.fullmatch, listed) if match)
        # A file whose rows another file covers was replaced by it and not deleted yet.
        self._ids = [each for each in ids if not any(_covers(other, each) for other in ids)]
        self._pins = sorted((int(match[1]), int(match[2] or 0)) for match in map(_PINS.fullmatch, listed) if match)

    @property
    def end(self) -> int:
        """The row after the last removed row whose identity is stored, or 0."""
        return self._ids[-1][1] if self._ids else 0

    # Identities of removed rows

    def keep(self, tables: list[pa.Table], first: int, end: int, *, oldest: int) -> None:
        """Add the identities of the rows from ``first`` to ``end``, and remove those of rows before ``oldest``."""
        superseded = [each for each in self._ids if each[1] <= oldest]
        if tables:
            last = self._ids[-1] if self._ids else None
            if last is not None and last not in superseded and last[1] - last[0] < _FULL_IDS_ROWS:
                tables = [self._read(_ids_name(last)), *tables]
                superseded.append(last)
                first = last[0]
            batch = join_identities(tables)
            self._storage.write(_ids_name((first, end)), lambda stream: write_batches([batch], stream))
            self._ids.append((first, end))
        if superseded:
            self._ids = [each for each in self._ids if each not in superseded]
            self._verify()
            for each in superseded:
                self._storage.delete(_ids_name(each))

    def kept(self, oldest: int) -> Iterator[Identities]:
        """Yield the identities of removed rows from ``oldest`` on, the oldest first."""
        for each in self._ids:
            if each[1] > oldest:
                yield from identities_of(self._read(_ids_name(each)), each[0])

    # Pins

    def pinned(self) -> Iterator[Identities]:
        """Yield the pinned identities, the oldest first."""
        for each in self._pins:
            # An owner that lost its lease may delete files that it has merged; the merged file is listed as well.
            with contextlib.suppress(FileNotFoundError):
                yield from identities_of(self._read(_pins_name(each)))

    def pin(self, parts: Iterable[Identities]) -> None:
        """Store pins durably."""
        listed = [part for part in parts if part.ids]
        if not listed:
            return
        if len(self._pins) >= _MAX_PIN_FILES:
            self._merge_pins()
        self._write_pins(listed)

    def _write_pins(self, parts: list[Identities]) -> None:
        name = (self._pins[-1][0] + 1 if self._pins else 1, self._epoch)
        batch = to_identity_batch(parts)
        self._storage.write(_pins_name(name), lambda stream: write_batches([batch], stream))
        self._pins.append(name)

    def _merge_pins(self) -> None:
        parts = list(self.pinned())
        while sum(len(part.ids) for part in parts) > _MAX_PINS:
            parts.pop(0)
        merged = list(self._pins)
        self._write_pins(parts)
        self._pins = self._pins[-1:]
        self._verify()
        for each in merged:
            self._storage.delete(_pins_name(each))

    def _read(self, name: str) -> pa.Table:
        with self._storage.open(name) as stream:
            return read_table(stream)


def _covers(other: tuple[int, int], each: tuple[int, int]) -> bool:
    return other != each and other[0] <= each[0] and each[1] <= other[1]


def _ids_name(each: tuple[int, int]) -> str:
    return f"ids-{each[0]:020d}-{each[1]:020d}.arrow"


def _pins_name(each: tuple[int, int]) -> str:
    number, epoch = each
    return f"pins-{number:08d}-{epoch}.arrow" if epoch else f"pins-{number:08d}.arrow"
