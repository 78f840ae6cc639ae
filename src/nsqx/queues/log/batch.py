"""Batches: the only record of a topic log, in segments and in commit files. All numbers are big-endian.

      0  u32 magic "NXB1"     4  u32 size of the batch    8  u64 first offset        16 i64 timestamp, ns
      24 u32 count of items   28 u16 kind                 30 u16 size of extension   32 u32 size of items
      36 u64 synced below     44 u32 CRC of extension and sums                       48 u32 CRC of bytes 0 to 48
      52 u32 unsynced         56 extension, items (int32 size and body each), sums (u32 CRC-32 of each item)

The CRC of the head starts with a seed made from the id of the log and the first offset of the segment, which is 0 in a
commit file. So a batch is valid only in its own file. The sums have no seed: extension, items and sums are copied
unchanged from a commit file to a segment.

*synced below* is an offset. Everything below it was durable when the batch was written. So a bad batch below it was
damaged later; any other bad batch may be a write that a crash cut short.

*unsynced* says the same about bytes, because changes have no offset: 1 + the number of bytes before the batch in its
segment that were not known to be durable, or 0 if nothing is said. If it is not 0, the CRC of the head covers it too.

A batch of messages takes ``count`` offsets. The other kinds take no offset: the field of the first offset contains the
serial of the state, or the number of a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from nsqx.queues import checksums
from nsqx.queues.log import heads

if TYPE_CHECKING:
    from nsqx.queues.files import Buffer

MAGIC = b"NXB1"
_HEAD = Struct(">4sIQqIHHIQIII")
HEAD_SIZE = _HEAD.size
_MAX_OFFSET = (1 << 63) - 1
_CRC_AT, _UNSYNCED_AT = 48, 52
_MAX_UNSYNCED = (1 << 32) - 1
_SUM = Struct(">I")
_LENGTH = Struct(">i")
_SEED = Struct(">QQ")
_TAG = Struct(">BH")

# Kinds. Messages for every channel; for one channel; due later. Changes of the state, and all of the state.
MESSAGES, ADDRESSED, DEFERRED, DELTA, SNAPSHOT = 0, 1, 2, 8, 9
# Only in commit files: the identity of a log, and the end of a log.
IDENTITY, DELETED = 10, 11
# Only in files of staged parts: messages for a topic, and what the part belongs to.
PART, STAGED = 3, 12
_FIRST_WITHOUT_OFFSETS = DELTA

# Tags of an extension. 4 and 5 are reserved: headers, keys.
PRODUCER, DUE, TTL, CHANNEL, ORIGIN, RELEASES, TOPIC = 1, 2, 3, 6, 7, 8, 9
_DUE = Struct(">q")
_TTL = Struct(">q")
_CHANNEL = Struct(">IH")
_OFFSET = Struct(">Q")
_NOTHING: Mapping[int, bytes] = {}

# After a damaged item of unknown size, the next one is searched within this distance, then any later one.
_NEAR = 64 * 1024


def seed_of(log_id: int, segment_first: int = 0) -> int:
    """Return the seed of the heads in a segment of a log; without ``segment_first``, of its heads in commit files."""
    return crc32(_SEED.pack(log_id, segment_first))


class BatchHead(NamedTuple):
    """The head of a batch, without its checksum."""

    size: int
    first: int
    timestamp: int
    item_count: int
    kind: int
    extension_size: int
    items_size: int
    synced_below: int
    tail_crc: int
    unsynced: int

    @property
    def has_offsets(self) -> bool:
        """True if the batch contains messages."""
        return self.kind < _FIRST_WITHOUT_OFFSETS


class LogBatch:
    """A batch in memory, which is not changed any more.

    ``end`` is the offset after the last message, 0 for a batch without offsets. ``size`` is the number of bytes in a
    file. ``synced_below`` is that of the file it was read from.
    """

    __slots__ = (
        "_tail_crc",
        "count",
        "end",
        "extension",
        "first",
        "has_offsets",
        "items",
        "kind",
        "size",
        "sums",
        "synced_below",
        "timestamp",
    )

    def __init__(
        self,
        kind: int,
        first: int,
        count: int,
        timestamp: int,
        items: bytes,
        sums: bytes,
        extension: bytes = b"",
        synced_below: int = 0,
    ) -> None:
        self.kind = kind
        self.first = first
        self.count = count
        self.timestamp = timestamp
        self.items = items
        self.sums = sums
        self.extension = extension
        self.synced_below = synced_below
        self.has_offsets = kind < _FIRST_WITHOUT_OFFSETS
        self.end = first + count if self.has_offsets else 0
        self.size = HEAD_SIZE + len(extension) + len(items) + len(sums)
        self._tail_crc = _tail_crc(extension, sums)

    def head(self, seed: int, synced_below: int, unsynced_size: int = -1) -> bytes:
        """Return the head in a file, and the extension. Items and sums follow.

        ``unsynced_size`` bytes before the batch are not known to be durable; -1 if this is not recorded.
        """
        unsynced = unsynced_size + 1 if unsynced_size < _MAX_UNSYNCED else 0
        head = heads.encode_head(
            self.size, self.first, self.timestamp, self.count, self.kind, len(self.extension), len(self.items),
            synced_below, self._tail_crc, seed, unsynced,
        )  # fmt: skip
        return head + self.extension if self.extension else head

    def buffers(self, seed: int, synced_below: int = 0) -> tuple[bytes, bytes, bytes]:
        """Return the bytes in a file: head and extension, items, sums."""
        return self.head(seed, synced_below), self.items, self.sums

    def bodies(self) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the body of each message."""
        position = 0
        for offset in range(self.first, self.first + self.count):
            end = position + 4 + _LENGTH.unpack_from(self.items, position)[0]
            yield offset, self.items[position + 4 : end]
            position = end


def _tail_crc(extension: bytes, sums: bytes) -> int:
    return checksums.crc_of(sums, checksums.crc_of(extension, 0))


def new_batch(kind: int, first: int, count: int, timestamp: int, items: bytes, extension: bytes = b"") -> LogBatch:
    """Return a batch of ``count`` valid items, with their checksums."""
    return LogBatch(kind, first, count, timestamp, items, checksums.item_sums(items, count), extension)


def new_record(kind: int, number: int, payload: bytes, timestamp: int = 0) -> LogBatch:
    """Return a batch without offsets that contains ``payload`` as its only item."""
    return new_batch(kind, number, 1, timestamp, _LENGTH.pack(len(payload)) + payload)


def payload_of(batch: LogBatch) -> bytes:
    """Return the payload of a batch made by ``new_record``."""
    return batch.items[4:]


# Extensions


def encode_extension(values: Mapping[int, bytes]) -> bytes:
    """Return an extension: for each tag u8 tag, u16 size, value."""
    return b"".join(_TAG.pack(tag, len(value)) + value for tag, value in values.items())


def decode_extension(extension: bytes) -> dict[int, bytes]:
    """Return the values by tag."""
    values = {}
    position = 0
    while position < len(extension):
        tag, size = _TAG.unpack_from(extension, position)
        position += _TAG.size
        values[tag] = extension[position : position + size]
        position += size
    return values


def addressed(channel: int, attempts: int = 0, due_ns: int = 0) -> bytes:
    """Return the extension of messages for one channel, that have been attempted, and are not due before a time."""
    values = {CHANNEL: _CHANNEL.pack(channel, attempts)}
    if due_ns:
        values[DUE] = _DUE.pack(due_ns)
    return encode_extension(values)


def deferred(due_ns: int, values: Mapping[int, bytes] = _NOTHING) -> bytes:
    """Return the extension of messages that are due at a time, with the ``values`` of other tags."""
    return encode_extension({**values, DUE: _DUE.pack(due_ns)})


def releasing(offsets: list[int]) -> bytes:
    """Return the extension of messages that were deferred at ``offsets`` (at most 8,000) and are due now."""
    return encode_extension({RELEASES: b"".join(map(_OFFSET.pack, offsets))})


def originating(origin: bytes) -> bytes:
    """Return the extension of a dead letter; ``origin`` is JSON."""
    return encode_extension({ORIGIN: origin})


def origin_of(batch: LogBatch) -> bytes:
    """Return where a dead letter comes from, in JSON; empty for other messages."""
    return decode_extension(batch.extension).get(ORIGIN, b"") if batch.extension else b""


def encode_ttl(ttl_ns: int) -> bytes:
    """Return the value of the tag TTL: the messages are not delivered any more after this time."""
    return _TTL.pack(ttl_ns)


def expiring(ttl_ns: int) -> bytes:
    """Return an extension with the tag TTL; empty if the time is 0."""
    return encode_extension({TTL: encode_ttl(ttl_ns)}) if ttl_ns else b""


def ttl_ns_of(batch: LogBatch) -> int:
    """Return for how long after their timestamp the messages of a batch are delivered; 0 is for ever."""
    if not batch.extension:
        return 0
    value = decode_extension(batch.extension).get(TTL)
    return _TTL.unpack(value)[0] if value else 0


def channel_of(batch: LogBatch) -> tuple[int, int]:
    """Return the number of the channel and the attempts of an addressed batch."""
    channel, attempts = _CHANNEL.unpack(decode_extension(batch.extension)[CHANNEL])
    return channel, attempts


def due_ns_of(batch: LogBatch) -> int:
    """Return when the messages of a batch are due; 0 is at once."""
    value = decode_extension(batch.extension).get(DUE)
    return _DUE.unpack(value)[0] if value else 0


def releases_of(batch: LogBatch) -> list[int]:
    """Return the offsets of the deferred messages that a batch repeats because they are due."""
    if not batch.extension:
        return []
    value = decode_extension(batch.extension).get(RELEASES, b"")
    return [offset for (offset,) in _OFFSET.iter_unpack(value)]


# Decoding


def read_head(data: Buffer, position: int, seed: int) -> BatchHead | None:
    """Return the head at ``position``, or None if there is no valid one."""
    if len(data) - position < HEAD_SIZE or data[position : position + 4] != MAGIC:
        return None
    _, size, first, timestamp, count, kind, extension_size, items_size, below, tail_crc, crc, unsynced = (
        _HEAD.unpack_from(data, position)
    )
    view = memoryview(data)[position : position + HEAD_SIZE]
    found_crc = crc32(view[:_CRC_AT], seed)
    if (crc32(view[_UNSYNCED_AT:], found_crc) if unsynced else found_crc) != crc:
        return None
    if size != HEAD_SIZE + extension_size + items_size + 4 * count or max(first + count, below) > _MAX_OFFSET:
        return None
    return BatchHead(size, first, timestamp, count, kind, extension_size, items_size, below, tail_crc, unsynced)


def read_batch(head: BatchHead, data: Buffer) -> LogBatch | None:
    """Return the batch in ``data``, its bytes without the head; None if any of them is wrong."""
    batch = _unchecked(head, data)
    if batch is None or _tail_crc(batch.extension, batch.sums) != head.tail_crc:
        return None
    return batch if checksums.are_items_good(batch.items, batch.sums) else None


def _unchecked(head: BatchHead, data: Buffer) -> LogBatch | None:
    if len(data) < head.size - HEAD_SIZE:
        return None
    items_at = head.extension_size
    sums_at = items_at + head.items_size
    return LogBatch(
        head.kind, head.first, head.item_count, head.timestamp, bytes(data[items_at:sums_at]),
        bytes(data[sums_at : sums_at + 4 * head.item_count]), bytes(data[:items_at]), head.synced_below,
    )  # fmt: skip


def _good_items(batch: LogBatch) -> list[tuple[int, int, int]]:
    """Return index, start and end of each item that matches its sum."""
    items = memoryview(batch.items)
    sums = [_SUM.unpack_from(batch.sums, 4 * index)[0] for index in range(batch.count)]
    indexes: dict[int, list[int]] = {}  # by sum, in falling order
    for index in range(batch.count - 1, -1, -1):
        indexes.setdefault(sums[index], []).append(index)
    good = []
    index = position = 0
    while index < len(sums):
        end = _item_end(items, position)
        if end > 0 and crc32(items[position:end]) == sums[index]:
            good.append((index, position, end))
            index, position = index + 1, end
        elif index + 1 < len(sums):
            start = _find_next(items, position, end, sums[index + 1])
            if start > 0:
                index, position = index + 1, start
            else:
                index, position = _find_any(items, position + 4, indexes, index + 1)
        else:
            break
    return good


def _item_end(items: memoryview, position: int) -> int:
    if len(items) - position < 4:
        return -1
    size: int = _LENGTH.unpack_from(items, position)[0]
    end = position + 4 + size
    return end if size >= 0 and end <= len(items) else -1


def _find_next(items: memoryview, position: int, likely: int, wanted_sum: int) -> int:
    """Return where the item with a sum starts, after one of unknown size at ``position``; -1 if it is not near."""
    if likely > 0 and _is_item(items, likely, wanted_sum):
        return likely
    for start in range(position + 4, min(position + _NEAR, len(items) - 3)):
        if _is_item(items, start, wanted_sum):
            return start
    return -1


def _is_item(items: memoryview, start: int, wanted_sum: int) -> bool:
    end = _item_end(items, start)
    return end > 0 and crc32(items[start:end]) == wanted_sum


def _find_any(items: memoryview, position: int, indexes: dict[int, list[int]], first: int) -> tuple[int, int]:
    """Return index and start of the next item at or after ``position`` with an index of at least ``first``.

    If there is none, the index is too large.
    """
    for start in range(position, len(items) - 3):
        end = _item_end(items, start)
        found = indexes.get(crc32(items[start:end])) if end > 0 else None
        while found and found[len(found) - 1] < first:  # compiled code has no negative indexes
            found.pop()
        if found:
            return found[len(found) - 1], start
    return 1 << 31, 0


def salvage(head: BatchHead, data: Buffer) -> list[LogBatch]:
    """Return batches of the intact messages of a damaged batch. ``data`` has its bytes without the head, or fewer."""
    batch = _unchecked(head, bytes(data).ljust(head.size - HEAD_SIZE, b"\0"))
    if batch is None or not head.has_offsets:
        return []
    is_tail_good = _tail_crc(batch.extension, batch.sums) == head.tail_crc
    if not is_tail_good and head.kind != MESSAGES:
        return []  # the extension says for which channel or time the messages are, and it may be damaged
    found = []
    run: list[tuple[int, int, int]] = []
    next_index = 0
    for entry in _good_items(batch):
        if run and entry[0] != next_index:
            found.append(_part(batch, run, is_tail_good))
            run = []
        run.append(entry)
        next_index = entry[0] + 1
    if run:
        found.append(_part(batch, run, is_tail_good))
    return found


def _part(batch: LogBatch, run: list[tuple[int, int, int]], keeps_extension: bool) -> LogBatch:
    index, start, _ = run[0]
    end = run[len(run) - 1][2]  # compiled code has no negative indexes
    return LogBatch(
        batch.kind, batch.first + index, len(run), batch.timestamp, batch.items[start:end],
        batch.sums[4 * index : 4 * (index + len(run))], batch.extension if keeps_extension else b"", batch.synced_below,
    )  # fmt: skip


def find_head(data: Buffer, start: int, seed: int) -> int:
    """Return the position of the first valid head at or after ``start``; -1 if there is none."""
    data = bytes(data)
    position = data.find(MAGIC, start)
    while position >= 0:
        if read_head(data, position, seed) is not None:
            return position
        position = data.find(MAGIC, position + 1)
    return -1
