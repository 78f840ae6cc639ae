# cython: wraparound=True, boundscheck=True
"""The index of a segment: where offsets and times are, every 64 KiB.

      head     "NXI1", u32 count, CRC-32 of the entries with the seed of the segment
      entry    u64 first offset of a batch, u64 its position, i64 highest timestamp of the batches before it

The index of a full segment is in the file ``<first offset>.idx``. It is never synced: a missing or damaged index is
built again from the heads of the batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct
from zlib import crc32

SPACING = 64 * 1024
_SPACING = SPACING
_MAGIC = b"NXI1"
_HEAD = Struct(">4sII")
_ENTRY = Struct(">QQq")
# Older than any message.
NO_TIME = -(1 << 63)


class SegmentIndex:
    """The entries of one segment. ``max_time`` is the highest timestamp of all its batches.

    ``first_time`` is the timestamp of the first batch, or NO_TIME. The file does not contain it.
    """

    __slots__ = ("_offsets", "_positions", "_times", "first_time", "max_time")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._times: list[int] = []
        self.first_time = self.max_time = NO_TIME

    def add(self, offset: int, position: int, timestamp: int) -> None:
        """Note a batch of messages; batches are noted in their order."""
        if not self._positions:
            self.first_time = timestamp
        if not self._positions or position - self._positions[-1] >= _SPACING:
            self._times.append(self.max_time)
            self._positions.append(position)
            self._offsets.append(offset)
        self.max_time = max(self.max_time, timestamp)

    def position_of(self, offset: int) -> int:
        """Return a position at or before the batch that contains an offset; 0 is the start of the segment."""
        index = bisect_right(self._offsets, offset) - 1
        return self._positions[index] if index >= 0 else 0

    def span(self, first: int, end: int, max_size: int) -> tuple[int, int, int, int]:
        """Return a part of the segment with the batches from ``first`` on: first offset, position, end, end position.

        The part ends where a batch begins: at or after ``end``, or after ``max_size`` bytes. Its end is -1 if no such
        batch is in the index; then the part reaches to the end of the segment.
        """
        index = max(0, bisect_right(self._offsets, first) - 1)
        if index >= len(self._offsets):
            return first, 0, -1, -1
        position = self._positions[index]
        last = max(index + 1, min(bisect_left(self._offsets, end), bisect_left(self._positions, position + max_size)))
        # A thread may be adding an entry; the offset is added last.
        if last >= len(self._offsets):
            return self._offsets[index], position, -1, -1
        return self._offsets[index], position, self._offsets[last], self._positions[last]

    def time_at(self, offset: int) -> int:
        """Return the highest timestamp of the batches up to the one that contains an offset, and a few later ones."""
        index = bisect_right(self._offsets, offset)
        return self._times[index] if index < len(self._times) else self.max_time

    def position_of_time(self, time_ns: int) -> tuple[int, int]:
        """Return a position before which every batch is older than a time, and the highest timestamp before it."""
        # The times are running maxima, so they are in order.
        index = bisect_right(self._times, time_ns - 1) - 1
        return (self._positions[index], self._times[index]) if index >= 0 else (0, NO_TIME)

    def encode(self, seed: int) -> bytes:
        """Return the content of the file."""
        # The last entry has the highest timestamp of all batches, and no batch.
        rows = zip([*self._offsets, 0], [*self._positions, 0], [*self._times, self.max_time], strict=True)
        entries = b"".join(_ENTRY.pack(*row) for row in rows)
        return _HEAD.pack(_MAGIC, len(self._offsets) + 1, crc32(entries, seed)) + entries


def decode_index(data: bytes, seed: int) -> SegmentIndex | None:
    """Return the index in a file; None if it is damaged or belongs to another segment."""
    if len(data) < _HEAD.size:
        return None
    magic, count, crc = _HEAD.unpack_from(data)
    entries = data[_HEAD.size :]
    if magic != _MAGIC or count < 1 or len(entries) != count * _ENTRY.size or crc32(entries, seed) != crc:
        return None
    index = SegmentIndex()
    rows = list(_ENTRY.iter_unpack(entries))
    for offset, position, time_ns in rows[:-1]:
        index._offsets.append(offset)
        index._positions.append(position)
        index._times.append(time_ns)
    index.max_time = rows[-1][2]
    return index
