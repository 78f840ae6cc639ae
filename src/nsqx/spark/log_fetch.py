"""Reads a range of a log in an executor: raw batches from nsqd become Arrow record batches.

The next piece is requested while one is parsed. Heads and checksums are checked here, because nsqd sends the bytes as
they are on disk. Offsets outside the range, deferred messages and those addressed to other channels are left out.
"""

from __future__ import annotations

import functools
import logging
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from nsqx.errors import NSQError
from nsqx.queues.log import batch as batches
from nsqx.spark.log_columns import LogColumns
from nsqx.spark.log_http import POOL, NodeAccess, NodeAway, NodeRefused, NsqdAnswer
from nsqx.spark.rows import SPARK_SCHEMA
from nsqx.spark.slices import DataLost
from nsqx.wire import byteops

_log = logging.getLogger("nsqx.spark")

# The size of one answer, about. Larger ones leave the caches of the processor before they are parsed and sent on.
PIECE_BYTES = 2 * 1024 * 1024
_ID_BYTES = 16
_ID_ENDS = 1 << 14

# Spark's rows with the position of each message.
OFFSET_SCHEMA = SPARK_SCHEMA.append(pa.field("offset", pa.int64())).append(pa.field("log", pa.utf8()))

REMEDY = "set failOnDataLoss to false to continue without these messages"


class Refetch(NamedTuple):
    """How often a failed request is repeated, and the pause before."""

    tries: int
    interval_s: float


@dataclass
class LogRange(InputPartition):
    """The messages of one task, with everything that an executor needs to read them."""

    topic: str
    log: str
    start: int
    end: int
    address: str
    node: str
    channel: str
    access: NodeAccess = field(repr=False)
    refetch: Refetch
    fail_on_data_loss: bool
    has_offset: bool

    def __str__(self) -> str:
        return f"topic {self.topic} on nsqd {self.node} (log {self.log}), offsets {self.start} to {self.end}"


class RangeLost(DataLost):
    """Messages of a log are gone; ``resume`` is the first offset that may still be there."""

    def __init__(self, text: str, resume: int) -> None:
        super().__init__(text)
        self.resume = resume


def read_range(part: LogRange) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range; raises DataLost, or NodeAway if nsqd does not answer."""
    with ThreadPoolExecutor(1, "nsq fetch") as threads:
        at = part.start
        fetching = threads.submit(fetch, part, at)
        while at < part.end:
            try:
                answer = fetching.result()
            except RangeLost as lost:
                if part.fail_on_data_loss:
                    raise
                _log.warning("%s; these messages are left out", lost)
                at = max(at, min(lost.resume, part.end))
                if at < part.end:
                    fetching = threads.submit(fetch, part, at)
                continue
            next_at = min(part.end, int(answer.headers["x-nsq-next"]))
            if next_at <= at:
                raise NSQError(f"nsq: {part}: nsqd's answer has no messages after offset {at}")
            if next_at < part.end:
                fetching = threads.submit(fetch, part, next_at)
            rows = parse(part, answer, at, next_at)
            if rows is not None:
                yield rows
            at = next_at


def fetch(part: LogRange, at: int) -> NsqdAnswer:
    """Return raw batches from an offset on; raises RangeLost, or NodeAway after the last repetition."""
    query: dict[str, object] = {
        "topic": part.topic,
        "log": part.log,
        "from": at,
        "to": part.end,
        "max_bytes": PIECE_BYTES,
    }
    if part.channel:
        query["channel"] = part.channel
    tries = 0
    while True:
        try:
            return POOL.ask(part.access, part.address, "GET", "/log/read", query)
        except NodeRefused as refusal:
            if refusal.code == "CHANNEL_NOT_FOUND" and "channel" in query:
                del query["channel"]  # it has been deleted, and with it the messages that only it has
                continue
            raise _lost(part, at, refusal) from None
        except NodeAway as away:
            tries += 1
            if tries > part.refetch.tries:
                raise NodeAway(
                    f"nsq: cannot read {part}: {away}: start this nsqd again, or raise fetchRetries"
                    f" ({part.refetch.tries})"
                ) from None
            if tries == 1:
                _log.warning("cannot read %s, will try again: %s", part, away)
            time.sleep(part.refetch.interval_s)


def _lost(part: LogRange, at: int, refusal: NodeRefused) -> NSQError:
    """Return the error for a refused read."""
    if refusal.status == 410:
        first = int(refusal.fields.get("first", part.end))
        return RangeLost(
            f"nsq: {part}: nsqd has removed the messages from {at} to {min(first, part.end)}: the retention of the"
            f" topic has overtaken this query. Raise retain_age or max_bytes of the topic, and {REMEDY}",
            first,
        )
    reasons = {
        "LOG_CHANGED": "the topic was deleted and created again",
        "TOPIC_NOT_FOUND": "the topic was deleted",
        "NOT_A_LOG": "the topic was converted to the classic store",
        "OFFSET_BEYOND_END": f"the log ends at offset {refusal.fields.get('stable')}, so this nsqd has lost messages",
    }
    if refusal.code not in reasons:
        return NSQError(f"nsq: cannot read {part}: {refusal}")
    return RangeLost(
        f"nsq: {part}: the messages from {at} to {part.end} are lost: {reasons[refusal.code]}. Start with a new"
        f" checkpoint, or {REMEDY}",
        part.end,
    )


# Parsing


def parse(part: LogRange, answer: NsqdAnswer, start: int, end: int) -> pa.RecordBatch | None:
    """Return the messages from ``start`` to ``end`` in an answer, or None without any; raises DataLost for damage."""
    headers, data = answer.headers, answer.body
    seed = batches.seed_of(int(part.log, 16), int(headers["x-nsq-segment"]))
    channel = int(headers.get("x-nsq-channel", 0))
    view = memoryview(data)
    columns = LogColumns(byteops.id_number(headers["x-nsq-first-id"].encode()), len(data))
    at = min(int(headers["x-nsq-first"]), start)  # the offset after the last batch
    position = 0
    is_broken = False  # something before this position is no batch
    damaged: list[tuple[int, int]] = []
    while position < len(data) and at < end:
        head = batches.read_head(data, position, seed)
        if head is None:
            is_broken = True
            position = batches.find_head(data, position + 1, seed)
            if position < 0:
                break
            continue
        tail = view[position + batches.HEAD_SIZE : position + head.size]
        position += head.size
        if not head.has_offsets:
            continue
        if is_broken and head.first > at:
            damaged.append((at, head.first))
        is_broken = False
        whole = batches.read_batch(head, tail)
        parts = [whole] if whole is not None else batches.salvage(head, tail)
        if whole is None:
            damaged += _missing(head.first, head.first + head.item_count, parts)
        for one in parts:
            if one.kind == batches.MESSAGES or (
                one.kind == batches.ADDRESSED and channel and batches.channel_of(one)[0] == channel
            ):
                columns.add(one.items, one.first, one.count, start, end, one.timestamp)
        at = max(at, head.first + head.item_count)
    damaged.append((at, min(end, int(headers["x-nsq-last"]))))
    _report(part, [(max(first, start), min(last, end)) for first, last in damaged])
    return to_record_batch(part, columns) if columns.count else None


def _missing(first: int, end: int, parts: list[batches.LogBatch]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a batch that are in none of its intact parts."""
    for one in parts:
        yield first, one.first
        first = one.end
    yield first, end


def _report(part: LogRange, damaged: list[tuple[int, int]]) -> None:
    lost = [(first, end) for first, end in damaged if first < end]
    if not lost:
        return
    ranges = ", ".join(f"{first} to {end}" for first, end in lost)
    text = (
        f"nsq: {part}: the files of this nsqd are damaged, and the messages {ranges} cannot be read (see nsqx doctor)."
        f" To continue, {REMEDY}"
    )
    if part.fail_on_data_loss:
        raise DataLost(text)
    _log.warning("%s; these messages are left out", text)


@functools.lru_cache(4)
def _longest_id_ends(count: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, _ID_BYTES * (count + 1), _ID_BYTES)))


def to_record_batch(part: LogRange, columns: LogColumns) -> pa.RecordBatch:
    """Return the columns as rows for Spark, without copying them."""
    count = columns.count
    ids = _longest_id_ends(max(1 << count.bit_length(), _ID_ENDS))
    arrays = [
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(columns.ends), pa.py_buffer(columns.values)]),
        pa.repeat(part.topic, count),
        pa.Array.from_buffers(pa.utf8(), count, [None, ids, pa.py_buffer(columns.id_values)]),
        pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), count, [None, pa.py_buffer(columns.times)]),
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.repeat(part.node, count),
    ]
    if not part.has_offset:
        return pa.RecordBatch.from_arrays(arrays, schema=SPARK_SCHEMA)
    arrays.append(pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(columns.offsets)]))
    arrays.append(pa.repeat(part.log, count))
    return pa.RecordBatch.from_arrays(arrays, schema=OFFSET_SCHEMA)
