"""The decoded rows of a shared source: one query writes them, and the queries of several sinks read them.

    batches/00000000000000012000.json    the parts of one batch, in their order; the rows are visible from here on
    parts/<unique>.arrow                 rows of one task
    identity.json                        tells this directory from another one at the same place

Rows are counted from the first one that was ever written. A batch file is named after the row that it begins with, so a
reader that has read up to a row finds the next batch by its name. The query writes a batch once, although Spark repeats
it: the newest batch file names the query and its batch, and is therefore never removed.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nsqx.pipeline.state import create, read_json, write_json
from nsqx.spark.slices import DataLost
from nsqx.spark.storage import open_storage

if TYPE_CHECKING:
    from nsqx.pipeline.dead_letters import DeadLetter
    from nsqx.pipeline.decode import RejectedRows

_IDENTITY = "identity.json"
_SUFFIX = ".json"
# A task begins another part after this many bytes, so that a reader can limit the size of its batches.
_PART_BYTES = 16 * 1024**2
_COMPRESSION = "lz4"
_LOOKS = 10


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """A file of rows; ``first`` is the number of rows before it."""

    name: str
    first: int
    rows: int
    size: int
    """The size of the rows in memory."""

    @property
    def end(self) -> int:
        """The number of rows up to the end of the part."""
        return self.first + self.rows


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The rows of one batch of the query that decodes."""

    query: str
    number: int
    first: int
    parts: tuple[DecodedPart, ...]

    @property
    def end(self) -> int:
        """The number of rows up to the end of the batch."""
        return self.parts[-1].end


class DecodedRows:
    """The directory of the rows. One process writes and trims it, and any number of processes read it."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._root = open_storage(location)
        self._batches = open_storage(f"{location}/batches")
        self._parts = open_storage(f"{location}/parts")
        self._known: dict[int, DecodedBatch] = {}

    # The query that decodes, and the driver

    def create(self) -> None:
        """Create the directory if it does not exist; raises ConfigError."""
        for storage in (self._root, self._batches, self._parts):
            create(storage, "the state directory")
        if read_json(self._root, _IDENTITY) is None:
            write_json(self._root, _IDENTITY, {"identity": uuid.uuid4().hex[:16]})

    def append(self, query: str, number: int, written: Sequence[Mapping[str, Any]]) -> None:
        """Make the parts of a batch visible to readers; no-op without rows."""
        first = self.end
        parts: list[DecodedPart] = []
        for each in written:
            part = DecodedPart(each["name"], parts[-1].end if parts else first, int(each["rows"]), int(each["size"]))
            parts.append(part)
        if parts:
            content = {"query": query, "batch": number, "parts": [[p.name, p.rows, p.size] for p in parts]}
            write_json(self._batches, f"{first:020d}{_SUFFIX}", content)

    def has(self, query: str, number: int) -> bool:
        """Return True if a batch was written before."""
        newest = self.newest
        return newest is not None and newest.query == query and newest.number >= number

    def trim(self, position: int) -> None:
        """Remove the batches before a row, except the newest one."""
        firsts = self._firsts()
        for first, after in itertools.pairwise(firsts):
            if after > position:
                return
            batch = self._batch(first)
            self._batches.delete(f"{first:020d}{_SUFFIX}")
            self._known.pop(first, None)
            for part in batch.parts if batch is not None else ():
                self._parts.delete(part.name)

    def sweep(self) -> None:
        """Remove the parts that belong to no batch; the query that writes must not be running."""
        batches = [self._batch(first) for first in self._firsts()]
        used = {part.name for batch in batches if batch is not None for part in batch.parts}
        for name in self._parts.names():
            if name not in used:
                self._parts.delete(name)

    # Readers

    @property
    def identity(self) -> str:
        """The identity of the directory; empty if it does not exist."""
        return str((read_json(self._root, _IDENTITY) or {}).get("identity", ""))

    @property
    def newest(self) -> DecodedBatch | None:
        """The newest batch, or None before the first one."""
        return self._newest_until(None)[0]

    @property
    def end(self) -> int:
        """The number of rows that were ever written."""
        newest = self.newest
        return newest.end if newest is not None else 0

    def parts_after(self, start: int) -> Iterator[DecodedPart]:
        """Yield the parts from row ``start`` on; raises DataLost if the directory does not have that row any more."""
        batch = self._batch(start) or self._around(start)
        while batch is not None:
            yield from (part for part in batch.parts if part.first >= start)
            batch = self._batch(batch.end)

    def forget_before(self, start: int) -> None:
        """Forget the content of batch files that a reader will not need again."""
        for first in [first for first, batch in self._known.items() if batch.end <= start]:
            del self._known[first]

    def open(self, part: str) -> Any:
        """Open a part for reading; raises DataLost."""
        try:
            return self._parts.open(part)
        except FileNotFoundError:
            raise DataLost(f"the decoded rows in {self.location}/parts/{part} are missing: reset the sink") from None

    def _around(self, start: int) -> DecodedBatch | None:
        """Return the batch that has row ``start``, or None if that row is not written yet."""
        batch, firsts = self._newest_until(start)
        end = batch.end if batch is not None else 0
        if start < end:
            return batch
        is_newest = batch is None or batch.first == firsts[-1]
        if (firsts and batch is None) or start > end or not is_newest:
            raise DataLost(
                f"the decoded rows from {start} on are not in {self.location}: they were removed while the sink was not"
                " in the pipeline, or the directory was replaced. Give the sink a new name, to start with new rows"
            )
        return None

    def _newest_until(self, start: int | None) -> tuple[DecodedBatch | None, list[int]]:
        """Return the newest batch that begins at or before a row, and the first rows of all batches."""
        for _ in range(_LOOKS):
            firsts = self._firsts()
            before = [first for first in firsts if start is None or first <= start]
            if not before:
                return None, firsts
            batch = self._batch(before[-1])
            if batch is not None:
                return batch, firsts
            # A newer batch was written and this one was removed in the meantime.
        raise DataLost(f"{self.location}/batches/{before[-1]:020d}{_SUFFIX} is damaged: restore the file")

    def _firsts(self) -> list[int]:
        return sorted(int(name.removesuffix(_SUFFIX)) for name in self._batches.names() if name.endswith(_SUFFIX))

    def _batch(self, first: int) -> DecodedBatch | None:
        """Return the batch that begins with a row, or None."""
        if first not in self._known:
            found = read_json(self._batches, f"{first:020d}{_SUFFIX}")
            if found is None:
                return None
            parts: list[DecodedPart] = []
            for name, rows, size in found["parts"]:
                parts.append(DecodedPart(name, parts[-1].end if parts else first, rows, size))
            self._known[first] = DecodedBatch(found["query"], found["batch"], first, tuple(parts))
        return self._known[first]


PART_STAGE_SCHEMA = "name STRING, rows BIGINT, size BIGINT"


@dataclass(frozen=True, slots=True)
class PartStage:
    """Writes the decoded rows of one task, and its dead letters; returns one row for each part."""

    location: str
    names: list[str]
    """The columns of the decoded rows."""
    rejected: RejectedRows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        letters: list[DeadLetter] = []
        written: list[dict[str, Any]] = []
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            rows, more = self.rejected.split(batch, self.names)
            letters += more
            if rows.num_rows:
                waiting.append(rows)
            if sum(each.nbytes for each in waiting) >= _PART_BYTES:
                written.append(self._write(waiting))
                waiting = []
        if waiting:
            written.append(self._write(waiting))
        self.rejected.write(letters)
        if written:
            yield pa.RecordBatch.from_pylist(written)

    def _write(self, batches: Sequence[pa.RecordBatch]) -> dict[str, Any]:
        """Write a part, which is durable on return."""
        name = f"{uuid.uuid4().hex}.arrow"
        options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)

        def fill(stream: Any) -> None:
            with pa.ipc.new_file(stream, batches[0].schema, options=options) as file:
                for batch in batches:
                    file.write_batch(batch)

        open_storage(f"{self.location}/parts").write(name, fill)
        rows, size = (sum(getattr(each, what) for each in batches) for what in ("num_rows", "nbytes"))
        return {"name": name, "rows": rows, "size": size}


class DecodedRowsWriter:
    """Writes the batches of the query that decodes a source; a repeated batch is stored once."""

    def __init__(self, location: str, names: list[str], rejected: RejectedRows) -> None:
        self._rows = DecodedRows(location)
        self._stage = PartStage(location, names, rejected)

    def prepare(self) -> None:
        """Create the directory; raises ConfigError."""
        self._rows.create()

    def recover(self) -> None:
        """Remove the parts that a killed run has left."""
        self._rows.sweep()

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Write a batch and return the number of decoded rows; 0 if it was written before."""
        if self._rows.has(query_id, batch_id):
            return 0
        written = [row.asDict() for row in rows.mapInArrow(self._stage, PART_STAGE_SCHEMA).collect()]
        self._rows.append(query_id, batch_id, written)
        return sum(int(each["rows"]) for each in written)
