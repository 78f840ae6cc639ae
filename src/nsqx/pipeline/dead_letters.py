"""Dead letters: records that cannot be processed go to a topic or a directory, with the reason.

The stage that rejects a record writes it, in the executor, so a batch without rejected records costs nothing. In a
directory a record is stored exactly once: a file is named after a hash of its content, and a repeated task replaces its
own file. On a topic a record may be published twice, as with every topic sink.

The files have the columns of an archive and more, so ``nsqx replay`` can publish them after the cause is fixed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from nsqx.pipeline.letter_counts import LETTERS, note_count
from nsqx.spark.sink import publisher_of
from nsqx.spark.storage import open_storage

if TYPE_CHECKING:
    from nsqx.spark.options import ClusterAddresses

PUBLISH_ATTEMPTS = 10

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("attempts", pa.int32()),
        ("node", pa.string()),
        ("reason", pa.string()),
        ("origin", pa.string()),
        ("pipeline", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A rejected record and the reason; unknown fields are None."""

    value: bytes | None
    reason: str
    topic: str | None = None
    id: str | None = None
    timestamp: datetime | None = None
    attempts: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The topic or directory for the dead letters of a pipeline; sent to executors with the tasks."""

    pipeline: str
    topic: str
    directory: str
    cluster: ClusterAddresses
    state: str = ""
    """The state directory, in which the letters of ``sink`` are counted; if empty they are not counted."""
    sink: str = ""

    def write(self, origin: str, letters: Sequence[DeadLetter]) -> None:
        """Write records that ``origin``, such as source.orders, rejected.

        On return they are durable in the directory, or acknowledged on the topic.
        """
        if not letters:
            return
        if self.topic:
            self._publish(origin, letters)
        else:
            self._store(origin, letters)
        if self.state:
            note_count(self.state, LETTERS, self.sink, len(letters))

    def _publish(self, origin: str, letters: Iterable[DeadLetter]) -> None:
        bodies = [envelope(self.pipeline, origin, letter) for letter in letters]
        publisher_of(self.cluster, PUBLISH_ATTEMPTS).publish([(self.topic, bodies, 0)]).result()

    def _store(self, origin: str, letters: Iterable[DeadLetter]) -> None:
        rows: list[dict[str, Any]] = [
            {
                "value": letter.value,
                "topic": letter.topic,
                "id": letter.id,
                "timestamp": letter.timestamp,
                "attempts": letter.attempts,
                "node": letter.node,
                "reason": letter.reason,
                "origin": origin,
                "pipeline": self.pipeline,
            }
            for letter in letters
        ]
        storage = open_storage(self.directory)
        storage.create()
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        storage.write(f"{origin}-{_digest(rows)}.parquet", lambda stream: pq.write_table(table, stream))


def _digest(rows: Iterable[dict[str, Any]]) -> str:
    """Return a hash of the records that does not depend on their order."""
    keys = sorted(
        b"\0".join(str(row[name]).encode() for name in ("node", "topic", "id", "timestamp", "value", "reason"))
        for row in rows
    )
    return hashlib.sha256(b"\1".join(keys)).hexdigest()[:24]


def envelope(pipeline: str, origin: str, letter: DeadLetter) -> bytes:
    """Return the message for the dead-letter topic: JSON with the value as text, or as base64 if it is not UTF-8."""
    record: dict[str, Any] = {
        "pipeline": pipeline,
        "origin": origin,
        "reason": letter.reason,
        "topic": letter.topic,
        "id": letter.id,
        "timestamp": letter.timestamp.isoformat() if letter.timestamp else None,
        "attempts": letter.attempts,
        "node": letter.node,
    }
    value = letter.value or b""
    try:
        record["value"] = value.decode("utf-8")
    except UnicodeDecodeError:
        record["value_base64"] = base64.b64encode(value).decode("ascii")
    return orjson.dumps(record)
