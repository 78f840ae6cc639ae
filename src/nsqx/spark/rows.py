"""Messages as Arrow: how they lie in a segment file, and how Spark gets them.

    file:   value binary | topic dict | id utf8 | timestamp_ns int64       | attempts int32 | node dict
    Spark:  value binary | topic utf8 | id utf8 | timestamp us, UTC        | attempts int32 | node utf8

Nanoseconds are kept because a message that comes again is told by its id and its exact time of publishing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_NAME = pa.dictionary(pa.int32(), pa.utf8())
FILE_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", _NAME),
        ("id", pa.utf8()),
        ("timestamp_ns", pa.int64()),
        ("attempts", pa.int32()),
        ("node", _NAME),
    ]
)
IDENTITY_COLUMNS = ("topic", "id", "timestamp_ns", "node")
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


@dataclass(slots=True)
class Rows:
    """Messages of one topic, by column."""

    topic: str
    values: list[bytes]
    ids: list[bytes]
    timestamps_ns: list[int]
    attempts: list[int]
    nodes: list[str]

    def __len__(self) -> int:
        return len(self.ids)

    def without(self, dropped: Sequence[int]) -> Rows:
        """The rows but those at these places."""
        gone = set(dropped)
        kept = [place for place in range(len(self.ids)) if place not in gone]
        columns = (self.values, self.ids, self.timestamps_ns, self.attempts, self.nodes)
        values, ids, timestamps_ns, attempts, nodes = ([column[place] for place in kept] for column in columns)
        return Rows(self.topic, values, ids, timestamps_ns, attempts, nodes)  # type: ignore[arg-type]

    @property
    def value_bytes(self) -> int:
        """How many bytes the bodies have."""
        return sum(map(len, self.values))


@dataclass(frozen=True, slots=True)
class Identities:
    """What tells messages of one topic and nsqd from each other, in the order in which they were received."""

    topic: str
    node: str
    ids: list[bytes]
    timestamps_ns: list[int]


def to_file_batch(parts: Iterable[Rows]) -> pa.RecordBatch:
    """The content of a segment file."""
    filled = [part for part in parts if len(part)]
    topics = list(dict.fromkeys(part.topic for part in filled))
    topic_numbers = [topics.index(part.topic) for part in filled for _ in range(len(part))]
    nodes: dict[str, int] = {}
    node_numbers = [nodes.setdefault(node, len(nodes)) for part in filled for node in part.nodes]
    columns = [
        pa.array([value for part in filled for value in part.values], pa.binary()),
        pa.DictionaryArray.from_arrays(pa.array(topic_numbers, pa.int32()), pa.array(topics, pa.utf8())),
        pa.array([message_id for part in filled for message_id in part.ids], pa.utf8()),
        pa.array([time_ns for part in filled for time_ns in part.timestamps_ns], pa.int64()),
        pa.array([count for part in filled for count in part.attempts], pa.int32()),
        pa.DictionaryArray.from_arrays(pa.array(node_numbers, pa.int32()), pa.array(list(nodes), pa.utf8())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)


def to_spark_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a segment file as Spark wants them."""
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


def to_identity_batch(parts: Iterable[Identities]) -> pa.RecordBatch:
    """The content of a file that keeps identities only."""
    listed = list(parts)
    rows = [
        Rows(part.topic, [b""] * len(part.ids), part.ids, part.timestamps_ns, [0] * len(part.ids), nodes)
        for part in listed
        for nodes in [[part.node] * len(part.ids)]
    ]
    return to_file_batch(rows).select(list(IDENTITY_COLUMNS))


def join_identities(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The same of several files, which may hold more than identities; row by row nothing is done here."""
    columns = []
    for name in IDENTITY_COLUMNS:
        pieces = [batch.column(name) for batch in batches]
        if FILE_SCHEMA.field(name).type == _NAME:
            columns.append(pa.concat_arrays([piece.dictionary_decode() for piece in pieces]).dictionary_encode())
        else:
            columns.append(pa.concat_arrays(pieces))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([FILE_SCHEMA.field(name) for name in IDENTITY_COLUMNS]))


def identities_of(batch: pa.RecordBatch) -> Iterator[Identities]:
    """What tells the rows of a file apart, by topic and nsqd."""
    topics: list[str] = batch.column("topic").dictionary_decode().to_pylist()
    nodes: list[str] = batch.column("node").dictionary_decode().to_pylist()
    ids: list[str] = batch.column("id").to_pylist()
    found: dict[tuple[str, str], Identities] = {}
    for topic, node, message_id, time_ns in zip(
        topics, nodes, ids, batch.column("timestamp_ns").to_pylist(), strict=True
    ):
        identities = found.get((topic, node))
        if identities is None:
            identities = found[topic, node] = Identities(topic, node, [], [])
        identities.ids.append(message_id.encode())
        identities.timestamps_ns.append(time_ns)
    yield from found.values()


def write_batch(batch: pa.RecordBatch, stream: Any) -> None:
    """Write an Arrow file of one batch."""
    with pa.ipc.new_file(stream, batch.schema) as writer:
        writer.write_batch(batch)


def read_batch(stream: Any, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The one batch of an Arrow file, or some of its columns."""
    if columns is None:
        return pa.ipc.open_file(stream).get_batch(0)
    options = pa.ipc.IpcReadOptions(included_fields=sorted(FILE_SCHEMA.names.index(name) for name in columns))
    return pa.ipc.open_file(stream, options=options).get_batch(0)
