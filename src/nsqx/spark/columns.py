"""The messages of one connection, taken apart into columns as they come, and their FINs, joined into one write.

This is where every message passes, so nothing is made for a message: ids and bodies lie one behind the other in two
buffers, numbers in others, all of which Arrow takes as they are. Knows frames and the connection; what becomes of the
rows is decided by whoever takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqx.client.connection import FrameReceiver
from nsqx.wire import byteops, encode, requests

if TYPE_CHECKING:
    from nsqx.client.subscription import Subscription
    from nsqx.wire.responses import FrameReader

_ID_BYTES = 16
_FIRST_CAPACITY = 1024
_FIRST_ROOM = 64 * 1024
# Arrow counts the bytes of a column in 31 bits; long before that the columns are enough for a segment.
_FULL_BYTES = 64 * 1024 * 1024
# Columns are used again, for memory that was never touched is slow; but not if they have grown out of the ordinary.
_SPARE_COUNT = 2
_SPARE_BYTES = 8 * 1024 * 1024


class Columns:
    """Messages of one topic from one nsqd, in the order in which they came.

    ``id_values`` and ``values`` hold ids and bodies; ``ends`` 0 and then where each body ends, int32; ``times`` when
    each was published, int64 nanoseconds; ``attempts`` int32. Of all of them only what ``count`` messages need means
    something.
    """

    __slots__ = (
        "_attempts",
        "_capacity",
        "_ends",
        "_times",
        "attempts",
        "count",
        "ends",
        "id_values",
        "is_suspect",
        "node",
        "size",
        "times",
        "topic",
        "values",
    )

    def __init__(self, topic: str, node: str) -> None:
        self.topic = topic
        self.node = node
        self.count = 0
        # Bytes of all bodies.
        self.size = 0
        # Some of these may have come before, even if they say that they were never delivered.
        self.is_suspect = False
        self.id_values = bytearray()
        self.values = bytearray(_FIRST_ROOM)
        self.ends = bytearray()
        self.times = bytearray()
        self.attempts = bytearray()
        self._capacity = 0
        self._grow()

    def __len__(self) -> int:
        return self.count

    def add(self, reader: FrameReader) -> None:
        """Add the message that ``reader`` has just reported."""
        count = self.count
        if count == self._capacity:
            self._grow()
        end = self.size + reader.message_size()
        if end > len(self.values):
            self.values = _enlarged(self.values, 2 * end)
        reader.copy_message_id(self.id_values, _ID_BYTES * count)
        reader.copy_message_body(self.values, self.size)
        self._times[count] = reader.message_timestamp()
        self._attempts[count] = reader.message_attempts()
        count += 1
        self._ends[count] = end
        self.size = end
        self.count = count

    def _grow(self) -> None:
        # Whoever holds a view of a bytearray keeps it from growing, so they are replaced.
        capacity = self._capacity * 2 or _FIRST_CAPACITY
        self.id_values = _enlarged(self.id_values, _ID_BYTES * capacity)
        self.ends = _enlarged(self.ends, 4 * (capacity + 1))
        self.times = _enlarged(self.times, 8 * capacity)
        self.attempts = _enlarged(self.attempts, 4 * capacity)
        self._ends = memoryview(self.ends).cast("i")
        self._times = memoryview(self.times).cast("q")
        self._attempts = memoryview(self.attempts).cast("i")
        self._capacity = capacity

    def clear(self) -> None:
        """Forget the messages and keep the room."""
        self.count = 0
        self.size = 0
        self.is_suspect = False

    def message_id(self, place: int) -> bytes:
        """The id of the message at this place."""
        return byteops.cut(self.id_values, _ID_BYTES * place, _ID_BYTES * (place + 1))

    def time_ns(self, place: int) -> int:
        """When the message at this place was published."""
        return self._times[place]

    def attempt(self, place: int) -> int:
        """How often the message at this place had been handed out."""
        return self._attempts[place]

    def oldest_ns(self) -> int:
        """When the first of them was published; there must be one."""
        oldest = self._times[0]
        for place in range(1, self.count):
            if self._times[place] < oldest:
                oldest = self._times[place]
        return oldest

    def newest_ns(self) -> int:
        """When the last of them was published; there must be one."""
        newest = self._times[0]
        for place in range(1, self.count):
            if self._times[place] > newest:
                newest = self._times[place]
        return newest

    def count_until(self, time_ns: int) -> int:
        """How many were published not later than that."""
        found = 0
        for place in range(self.count):
            if self._times[place] <= time_ns:
                found += 1
        return found

    def greatest_if_new(self, boundary: bytes) -> bytes:
        """The greatest id, if every message is handed out for the first time and beyond ``boundary``; otherwise b""."""
        greatest = 0
        for place in range(self.count):
            if self._attempts[place] != 1 or not byteops.is_greater_id(self.id_values, _ID_BYTES * place, boundary, 0):
                return b""
            if byteops.is_greater_id(self.id_values, _ID_BYTES * place, self.id_values, _ID_BYTES * greatest):
                greatest = place
        return self.message_id(greatest) if self.count else b""


def _enlarged(old: bytearray, size: int) -> bytearray:
    new = bytearray(size)
    new[: len(old)] = old
    return new


class ColumnReceiver(FrameReceiver):
    """Stands between a connection and its subscription: messages become columns, all else goes through."""

    __slots__ = (
        "_arrived",
        "_clock",
        "_columns",
        "_full",
        "_has_new",
        "_is_held",
        "_spares",
        "node",
        "pending_count",
        "subscription",
        "topic",
    )

    def __init__(
        self, topic: str, subscription: Subscription, arrived: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        """``arrived`` is called when messages have come, once for all that came together."""
        self.topic = topic
        self.node = subscription.connection.address
        self.subscription = subscription
        self.pending_count = 0
        self._arrived = arrived
        self._clock = clock
        self._columns = Columns(self.topic, self.node)
        self._full: list[Columns] = []
        self._spares: list[Columns] = []
        self._has_new = False
        self._is_held = False

    # From the connection

    def message(self, reader: FrameReader) -> None:
        """A message came."""
        columns = self._columns
        columns.add(reader)
        self.pending_count += 1
        self.subscription.in_flight_count += 1
        self.subscription.message_count += 1
        self._has_new = True
        if columns.size >= _FULL_BYTES:
            self._set_aside()

    def drained(self) -> None:
        """All that came is in the columns."""
        if self._has_new:
            self._has_new = False
            self.subscription.last_message_s = self._clock()
            self._arrived()

    def response(self, data: bytes) -> None:
        """Another answer came."""
        self.subscription.response(data)

    def refusal(self, text: str) -> None:
        """An error came."""
        self.subscription.refusal(text)

    def writable(self) -> None:
        """The socket takes more again."""
        self.subscription.writable()

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self.subscription.lost(error)

    # For whoever makes rows of the messages

    @property
    def is_lost(self) -> bool:
        """True if no answer can reach nsqd, which will hand out again whatever was not finished."""
        return self.subscription.connection.is_closed

    @property
    def pending_bytes(self) -> int:
        """Bytes of the bodies that have come and were not taken."""
        return self._columns.size + sum([columns.size for columns in self._full])

    def hold(self, is_held: bool) -> None:
        """Read no more from the socket, so that nsqd cannot send more, or go on."""
        transport = self.subscription.connection.transport
        if is_held == self._is_held or transport.is_closing():
            return
        self._is_held = is_held
        if is_held:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def suspect(self) -> None:
        """What has come and was not taken yet may come over another connection too, and look as new there."""
        if self._columns.count:
            self._set_aside()
        for columns in self._full:
            columns.is_suspect = True

    def take(self) -> Columns:
        """What has come, the oldest first; more may be left if it is much. To be given back to ``finish``."""
        if not self._full:
            self._set_aside()
        columns = self._full.pop(0)
        self.pending_count -= columns.count
        return columns

    def _set_aside(self) -> None:
        self._full.append(self._columns)
        self._columns = self._spares.pop() if self._spares else Columns(self.topic, self.node)

    def finish(self, columns: Columns) -> None:
        """Send a FIN for each, unless the connection is gone; the columns are used again."""
        count = columns.count
        subscription = self.subscription
        subscription.in_flight_count -= count
        subscription.finish_count += count
        connection = subscription.connection
        if connection.is_closed:
            return
        encode.append_finishes(connection.output, columns.id_values, count)
        connection.flush_soon()
        if len(self._spares) < _SPARE_COUNT and len(columns.values) <= _SPARE_BYTES:
            columns.clear()
            self._spares.append(columns)
        if subscription.is_closing and subscription.in_flight_count <= 0:
            connection.close()

    def touch_all(self, taken: list[Columns]) -> None:
        """Ask for more time for what was taken, and for what is still to be."""
        connection = self.subscription.connection
        if connection.is_closed:
            return
        for columns in [*taken, *self._full, self._columns]:
            for place in range(columns.count):
                connection.send(requests.encode_touch(columns.message_id(place)))
