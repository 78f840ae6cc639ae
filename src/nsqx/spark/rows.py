"""Messages as Arrow data: the schema of segment files and the schema of Spark's rows.

    file:   value binary | topic dict | id utf8 | timestamp_ns int64       | attempts int32 | node dict | broker dict
    Spark:  value binary | topic utf8 | id utf8 | timestamp us, UTC        | attempts int32 | node utf8

Files keep nanoseconds, because duplicates are recognised by their id and exact time of publishing. Column buffers
become Arrow arrays without a loop over rows.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from nsqx.spark.columns import Columns

NAME_TYPE = pa.dictionary(pa.int32(), pa.utf8())
FILE_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", NAME_TYPE),
        ("id", pa.utf8()),
        ("timestamp_ns", pa.int64()),
        ("attempts", pa.int32()),
        ("node", NAME_TYPE),
        # The broker id, or the address if the nsqd has none. Files of old versions lack this column.
        ("broker", NAME_TYPE),
    ]
)
SPARK_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.utf8()),
        ("id", pa.utf8()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("attempts", pa.int32()),
        ("node", pa.utf8()),
    ]
)
_ID_BYTES = 16
_ID_ENDS = 1 << 14


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages of one broker to be stored: all of ``columns`` except the indices in ``known``."""

    columns: Columns
    known: Sequence[int] = ()
    broker: str = ""

    def __len__(self) -> int:
        return self.columns.count - len(self.known)


def to_file_batches(parts: Iterable[Rows]) -> list[pa.RecordBatch]:
    """Return the content of a segment file: one batch for each part that has rows."""
    filled = [part for part in parts if len(part)]
    # Batches of one file must share their dictionaries.
    topics = list(dict.fromkeys(part.columns.topic for part in filled))
    nodes = list(dict.fromkeys(part.columns.node for part in filled))
    brokers = list(dict.fromkeys(part.broker or part.columns.node for part in filled))
    batches = []
    for part in filled:
        values, ids, times, attempts = _plain_arrays(part)
        topic = _repeated(topics, part.columns.topic, len(part))
        node = _repeated(nodes, part.columns.node, len(part))
        broker = _repeated(brokers, part.broker or part.columns.node, len(part))
        columns = [values, topic, ids, times, attempts, node, broker]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA))
    return batches


def _plain_arrays(part: Rows) -> list[pa.Array]:
    """Return values, ids, times and attempts of the rows."""
    columns = part.columns
    count = columns.count
    arrays = [
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(columns.ends), pa.py_buffer(columns.values)]),
        pa.Array.from_buffers(pa.utf8(), count, [None, _id_ends(count), pa.py_buffer(columns.id_values)]),
        pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(columns.times)]),
        pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(columns.attempts)]),
    ]
    if not part.known:
        return [each.slice(0, count) for each in arrays]
    dropped = set(part.known)
    kept = pa.array([place for place in range(count) if place not in dropped], pa.int32())
    return [each.take(kept) for each in arrays]


@functools.lru_cache(4)
def _longest_id_ends(count: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, _ID_BYTES * (count + 1), _ID_BYTES)))


def _id_ends(count: int) -> pa.Buffer:
    """Return Arrow's offsets for at least ``count`` ids; cached for powers of two."""
    return _longest_id_ends(max(1 << count.bit_length(), _ID_ENDS))


def _repeated(names: list[str], name: str, count: int) -> pa.DictionaryArray:
    indices = pa.repeat(pa.scalar(names.index(name), pa.int32()), count)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.utf8()))


def to_spark_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of a segment file to Spark's schema."""
    columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
    microseconds = pc.divide(columns["timestamp_ns"], 1000)
    return pa.RecordBatch.from_arrays(
        [
            columns["value"],
            columns["topic"].dictionary_decode(),
            columns["id"],
            microseconds.cast(pa.timestamp("us", tz="UTC")),
            columns["attempts"],
            columns["node"].dictionary_decode(),
        ],
        schema=SPARK_SCHEMA,
    )


def write_batches(batches: Sequence[pa.RecordBatch], stream: Any) -> None:
    """Write an Arrow file."""
    with pa.ipc.new_file(stream, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def read_table(stream: Any, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the content of an Arrow file, or some columns of a segment; a memory-mapped file is not copied."""
    if columns is None:
        return pa.ipc.open_file(stream).read_all()
    options = pa.ipc.IpcReadOptions(included_fields=sorted(FILE_SCHEMA.names.index(name) for name in columns))
    return pa.ipc.open_file(stream, options=options).read_all()
