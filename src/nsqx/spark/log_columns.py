"""Arrow column buffers for the messages in the batches of a log.

Every message that is read from a log passes through here, so no Python object is created per message except its id.
The caller has checked the batches. Knows neither heads nor HTTP.
"""

from __future__ import annotations

from nsqx.wire import byteops
from nsqx.wire.message import advance_id

_ID_BYTES = 16
_FIRST_CAPACITY = 4096


class LogColumns:
    """Messages of one log, in order.

    The buffers are larger than needed; only the part for ``count`` messages is valid:

        values       bodies
        ends         int32: 0, then the end of each body in ``values``
        id_values    ids of 16 bytes
        times        int64: time of publishing in microseconds
        offsets      int64
    """

    __slots__ = (
        "_capacity",
        "_ends",
        "_first_id",
        "_offsets",
        "_times",
        "count",
        "ends",
        "id_values",
        "offsets",
        "size",
        "times",
        "values",
    )

    def __init__(self, first_id: int, size: int) -> None:
        """``first_id`` is the number of the id at offset 0. There is room for bodies of ``size`` bytes."""
        self.count = 0
        self.size = 0
        self.values = bytearray(size)
        self.ends = bytearray()
        self.id_values = bytearray()
        self.times = bytearray()
        self.offsets = bytearray()
        self._first_id = first_id
        self._capacity = 0
        self._grow()

    def _grow(self) -> None:
        # A bytearray with an exported view cannot be resized, so larger ones replace them.
        capacity = self._capacity * 2 or _FIRST_CAPACITY
        self.id_values = _enlarged(self.id_values, _ID_BYTES * capacity)
        self.ends = _enlarged(self.ends, 4 * (capacity + 1))
        self.times = _enlarged(self.times, 8 * capacity)
        self.offsets = _enlarged(self.offsets, 8 * capacity)
        self._ends = memoryview(self.ends).cast("i")
        self._times = memoryview(self.times).cast("q")
        self._offsets = memoryview(self.offsets).cast("q")
        self._capacity = capacity

    def add(self, items: bytes, first: int, count: int, start: int, end: int, timestamp: int) -> None:
        """Add those of the ``count`` messages in ``items``, the first of which is ``first``, from ``start`` to ``end``.

        The messages have the ``timestamp`` in nanoseconds. The bodies must fit into the room for them.
        """
        time_us = timestamp // 1000
        position = 0
        size = self.size
        place = self.count
        stop = min(first + count, end)
        for offset in range(first, stop):
            length = byteops.int32_at(items, position)
            position += 4
            if offset >= start:
                if place == self._capacity:
                    self._grow()
                byteops.copy_into(self.values, size, items, position, position + length)
                size += length
                byteops.copy_into(
                    self.id_values, _ID_BYTES * place, byteops.id_text(advance_id(self._first_id, offset)), 0, _ID_BYTES
                )
                self._times[place] = time_us
                self._offsets[place] = offset
                place += 1
                self._ends[place] = size
            position += length
        self.size = size
        self.count = place


def _enlarged(old: bytearray, size: int) -> bytearray:
    new = bytearray(size)
    new[: len(old)] = old
    return new
