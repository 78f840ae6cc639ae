"""The messages of one connection, taken apart into columns as they come, and their FINs, joined into one write.

This is where every message passes, so nothing is made for a message but its id: bodies lie one behind the other in one
buffer, numbers in buffers that Arrow takes as they are. Knows frames and the connection; what becomes of the rows is
decided by whoever takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqx.client.connection import Receiver
from nsqx.wire import packing, requests

if TYPE_CHECKING:
    from nsqx.client.subscription import Subscription
    from nsqx.wire.responses import FrameReader

_FIRST_CAPACITY = 1024
# Arrow counts the bytes of a column in 31 bits; long before that the columns are enough for a segment.
_FULL_BYTES = 64 * 1024 * 1024


class Columns:
    """Messages of one topic from one nsqd, in the order in which they came.

    ``ends`` holds 0 and then where each value ends, int32; ``times`` when each was published, int64 nanoseconds;
    ``attempts`` int32; ``id_values`` holds the ids once more, one behind the other. Of the numbers only the first
    ``count`` (of ``ends`` one more) mean something.
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
        "ids",
        "node",
        "times",
        "topic",
        "values",
    )

    def __init__(self, topic: str, node: str) -> None:
        self.topic = topic
        self.node = node
        self.count = 0
        self.ids: list[bytes] = []
        self.id_values = bytearray()
        self.values = bytearray()
        self.ends = bytearray()
        self.times = bytearray()
        self.attempts = bytearray()
        self._capacity = 0
        self._grow()

    def __len__(self) -> int:
        return self.count

    def add(self, message_id: bytes, time_ns: int, attempts: int, value: bytes) -> None:
        """Add a message."""
        count = self.count
        if count == self._capacity:
            self._grow()
        self.ids.append(message_id)
        self.id_values += message_id
        self.values += value
        self._times[count] = time_ns
        self._attempts[count] = attempts
        count += 1
        self._ends[count] = len(self.values)
        self.count = count

    def _grow(self) -> None:
        # Whoever holds a view of a bytearray keeps it from growing, so they are replaced.
        capacity = self._capacity * 2 or _FIRST_CAPACITY
        self.ends = _enlarged(self.ends, 4 * (capacity + 1))
        self.times = _enlarged(self.times, 8 * capacity)
        self.attempts = _enlarged(self.attempts, 4 * capacity)
        self._ends = memoryview(self.ends).cast("i")
        self._times = memoryview(self.times).cast("q")
        self._attempts = memoryview(self.attempts).cast("i")
        self._capacity = capacity

    def time_ns(self, place: int) -> int:
        """When the message at this place was published."""
        return self._times[place]

    def attempt(self, place: int) -> int:
        """How often the message at this place had been handed out."""
        return self._attempts[place]

    def count_until(self, time_ns: int) -> int:
        """How many were published not later than that."""
        found = 0
        for place in range(self.count):
            if self._times[place] <= time_ns:
                found += 1
        return found


def _enlarged(old: bytearray, size: int) -> bytearray:
    new = bytearray(size)
    new[: len(old)] = old
    return new


class ColumnReceiver(Receiver):
    """Stands between a connection and its subscription: messages become columns, all else goes through."""

    __slots__ = ("_arrived", "_clock", "_columns", "_full", "_has_new", "_topic", "pending_count", "subscription")

    def __init__(
        self, topic: str, subscription: Subscription, arrived: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        """``arrived`` is called when messages have come, once for all that came together."""
        self.subscription = subscription
        self.pending_count = 0
        self._topic = topic
        self._arrived = arrived
        self._clock = clock
        self._columns = Columns(topic, subscription.connection.address)
        self._full: list[Columns] = []
        self._has_new = False

    # From the connection

    def message(self, reader: FrameReader) -> None:
        """A message came."""
        columns = self._columns
        columns.add(reader.message_id(), reader.message_timestamp(), reader.message_attempts(), reader.message_body())
        self.pending_count += 1
        self.subscription.in_flight_count += 1
        self.subscription.message_count += 1
        self._has_new = True
        if len(columns.values) >= _FULL_BYTES:
            self._full.append(columns)
            self._columns = Columns(columns.topic, columns.node)

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

    def take(self) -> Columns:
        """What has come, the oldest first; more may be left if it is much."""
        if self._full:
            columns = self._full.pop(0)
        else:
            columns = self._columns
            self._columns = Columns(columns.topic, columns.node)
        self.pending_count -= columns.count
        return columns

    def finish(self, ids: list[bytes]) -> None:
        """Send a FIN for each, unless the connection is gone."""
        subscription = self.subscription
        subscription.in_flight_count -= len(ids)
        subscription.finish_count += len(ids)
        connection = subscription.connection
        if connection.is_closed:
            return
        output = connection.output
        for message_id in ids:
            packing.append_finish(output, message_id)
        connection.flush_soon()
        if subscription.is_closing and subscription.in_flight_count <= 0:
            connection.close()

    def touch_all(self, taken: list[Columns]) -> None:
        """Ask for more time for what was taken, and for what is still to be."""
        connection = self.subscription.connection
        if connection.is_closed:
            return
        for columns in [*taken, *self._full, self._columns]:
            for message_id in columns.ids:
                connection.send(requests.encode_touch(message_id))
