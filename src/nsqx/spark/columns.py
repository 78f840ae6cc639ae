"""Column buffers for the messages of one connection, and one write for all of their FINs.

Every received message passes through here, so no Python object is created per message. Ids and bodies are appended to
two buffers and numbers to others, in the layout of Arrow arrays. Knows frames and the connection; ``intake`` decides
when messages are taken and finished.
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
# Columns of this size are closed. Arrow's offsets have 31 bits; a segment needs far less.
_FULL_BYTES = 64 * 1024 * 1024
# Columns are reused, because the first write to fresh memory is slow. Unusually large ones are not kept.
_SPARE_COUNT = 2
_SPARE_BYTES = 8 * 1024 * 1024


class Columns:
    """Messages of one topic from one nsqd, in order of arrival.

    The buffers are larger than needed; only the part for ``count`` messages is valid:

        id_values    ids of 16 bytes
        values       bodies
        ends         int32: 0, then the end of each body in ``values``
        times        int64: time of publishing in nanoseconds
        attempts     int32
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
        # Total bytes of the bodies.
        self.size = 0
        # Some messages may be duplicates although their attempt count is 1.
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
        # A bytearray with an exported view cannot be resized, so larger ones replace them.
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
        """Remove all messages and keep the buffers."""
        self.count = 0
        self.size = 0
        self.is_suspect = False

    def message_id(self, place: int) -> bytes:
        """Return the id of the message at this index."""
        return byteops.cut(self.id_values, _ID_BYTES * place, _ID_BYTES * (place + 1))

    def time_ns(self, place: int) -> int:
        """Return the time of publishing of the message at this index."""
        return self._times[place]

    def attempt(self, place: int) -> int:
        """Return how often nsqd had delivered the message at this index, this delivery included."""
        return self._attempts[place]

    def oldest_ns(self) -> int:
        """Return the earliest time of publishing; there must be at least one message."""
        oldest = self._times[0]
        for place in range(1, self.count):
            if self._times[place] < oldest:
                oldest = self._times[place]
        return oldest

    def newest_ns(self) -> int:
        """Return the latest time of publishing; there must be at least one message."""
        newest = self._times[0]
        for place in range(1, self.count):
            if self._times[place] > newest:
                newest = self._times[place]
        return newest

    def count_until(self, time_ns: int) -> int:
        """Return how many messages were published at or before ``time_ns``."""
        found = 0
        for place in range(self.count):
            if self._times[place] <= time_ns:
                found += 1
        return found

    def greatest_if_new(self, boundary: bytes) -> bytes:
        """Return the greatest id if every message is a first attempt with an id above ``boundary``, otherwise b""."""
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
    """Sits between a connection and its subscription: appends messages to columns and passes on all other frames."""

    __slots__ = (
        "_arrived",
        "_clock",
        "_columns",
        "_full",
        "_has_new",
        "_is_held",
        "_spares",
        "broker",
        "node",
        "pending_count",
        "subscription",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        broker: str,
        subscription: Subscription,
        arrived: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """``broker`` identifies the nsqd.

        ``arrived`` is called once for all messages of one socket read. If it returns True, the connection is held.
        """
        self.topic = topic
        self.broker = broker
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

    # Called by the connection

    def message(self, reader: FrameReader) -> None:
        """Append the message to the columns."""
        columns = self._columns
        columns.add(reader)
        self.pending_count += 1
        self.subscription.in_flight_count += 1
        self.subscription.message_count += 1
        self._has_new = True
        if columns.size >= _FULL_BYTES:
            self._set_aside()

    def drained(self) -> None:
        """Report new messages after all frames of one socket read."""
        if self._has_new:
            self._has_new = False
            self.subscription.last_message_s = self._clock()
            if self._arrived():
                self.hold(True)

    def response(self, data: bytes) -> None:
        """Pass a response on."""
        self.subscription.response(data)

    def refusal(self, text: str) -> None:
        """Pass an error on."""
        self.subscription.refusal(text)

    def writable(self) -> None:
        """Pass on that the socket accepts more data again."""
        self.subscription.writable()

    def lost(self, error: Exception | None) -> None:
        """Pass on that the connection is closed."""
        self.subscription.lost(error)

    # Called by the intake

    @property
    def is_lost(self) -> bool:
        """True if the connection is closed: nsqd will deliver again every message that was not finished."""
        return self.subscription.connection.is_closed

    @property
    def pending_bytes(self) -> int:
        """Bytes of the bodies that were received and not taken yet."""
        return self._columns.size + sum([columns.size for columns in self._full])

    def hold(self, is_held: bool) -> None:
        """Stop reading from the socket, which stops nsqd, or resume reading."""
        transport = self.subscription.connection.transport
        if is_held == self._is_held or transport.is_closing():
            return
        self._is_held = is_held
        if is_held:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def suspect(self) -> None:
        """Mark the messages that were not taken yet as possible duplicates.

        Another connection to the same nsqd may deliver them with an attempt count of 1.
        """
        if self._columns.count:
            self._set_aside()
        for columns in self._full:
            columns.is_suspect = True

    def take(self) -> Columns:
        """Return the oldest received messages; the caller must pass them to ``finish``. More may be left."""
        if not self._full:
            self._set_aside()
        columns = self._full.pop(0)
        self.pending_count -= columns.count
        return columns

    def _set_aside(self) -> None:
        self._full.append(self._columns)
        self._columns = self._spares.pop() if self._spares else Columns(self.topic, self.node)

    def finish(self, columns: Columns) -> None:
        """Send a FIN for each message and reuse the columns; no FIN is sent on a closed connection."""
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
        """Send TOUCH for the messages in ``taken`` and for those that were not taken yet."""
        connection = self.subscription.connection
        if connection.is_closed:
            return
        for columns in [*taken, *self._full, self._columns]:
            for place in range(columns.count):
                connection.send(requests.encode_touch(columns.message_id(place)))
