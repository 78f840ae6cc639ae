"""Messages, and batches of messages that were published together.

The layout of a message, in a message frame and in a disk queue record:

      0               8         10                26
      +---------------+---------+-----------------+------ ... ------+
      | timestamp     | attempts| message id      | body            |
      | int64, ns     | uint16  | 16 ASCII hex    | at least 1 byte |
      +---------------+---------+-----------------+------ ... ------+

The number that a message id encodes:

      63                               22 21      12 11        0
      +----------------------------------+----------+-----------+
      | ticks of 2^20 ns since the epoch | node id  | sequence  |
      +----------------------------------+----------+-----------+

An MPUB body stays one buffer. A Batch is a view of consecutive ``int32 size, body`` items in it. A Message object is
created only when a message is taken out for delivery. A single PUB is a batch of one.
"""

from __future__ import annotations

from nsqx.wire import byteops

ID_LENGTH = 16
HEADER_LENGTH = 26  # timestamp, attempts and id

NODE_MASK = 0x3FF000
_NODE_MASK = NODE_MASK
_SEQUENCE_MASK = 0xFFF
_TICK_SHIFT = 22


def advance_id(number: int, count: int) -> int:
    """Return the id number ``count`` steps after ``number``: the sequence carries into the tick, past the node id."""
    sequence = (number & _SEQUENCE_MASK) + count
    tick = (number >> _TICK_SHIFT) + (sequence >> 12)
    return (tick << _TICK_SHIFT) | (number & _NODE_MASK) | (sequence & _SEQUENCE_MASK)


class QueuedMessage:
    """One message in a queue or a channel. Created by ``new_message``; times are in nanoseconds."""

    __slots__ = (
        "attempts",
        "body",
        "client_id",
        "deadline_ns",
        "defer_ns",
        "delivered_ns",
        "id",
        "record",
        "timestamp",
    )

    id: bytes
    body: bytes
    timestamp: int
    attempts: int
    # In flight: the client that has it, when it was delivered, and when it times out. Deferred: when it is due.
    client_id: int
    delivered_ns: int
    deadline_ns: int
    # How long to defer it when it reaches a channel.
    defer_ns: int
    # The record of the disk queue that it was read from, or 0. The record is kept until the message is finished.
    record: int

    def copy(self) -> QueuedMessage:
        """Return the same message for another channel, as never delivered."""
        copied = new_message(self.id, self.body, self.timestamp, 0)
        copied.defer_ns = self.defer_ns
        return copied

    def __repr__(self) -> str:
        return f"<Message {self.id.decode('ascii', 'replace')} attempts={self.attempts} body={len(self.body)} bytes>"


def new_message(message_id: bytes, body: bytes, timestamp: int, attempts: int) -> QueuedMessage:
    """Return a message that is neither in flight nor deferred."""
    message = QueuedMessage.__new__(QueuedMessage)
    message.id = message_id
    message.body = body
    message.timestamp = timestamp
    message.attempts = attempts
    message.client_id = 0
    message.delivered_ns = 0
    message.deadline_ns = 0
    message.defer_ns = 0
    message.record = 0
    return message


def message_at(data: bytes | bytearray, start: int, end: int) -> QueuedMessage:
    """Return the message in ``data[start:end]``, which must have at least HEADER_LENGTH bytes."""
    return new_message(
        byteops.cut(data, start + 10, start + HEADER_LENGTH),
        byteops.cut(data, start + HEADER_LENGTH, end),
        byteops.int64_at(data, start),
        byteops.uint16_at(data, start + 8),
    )


class Batch:
    """``count`` undelivered messages in ``data`` from ``position`` on, each an int32 size and a body.

    All have the same timestamp. ``number`` is the id of the first one, and the others follow it. Taking and splitting
    move the view forward, so code that shares a batch makes a ``copy`` first. None of these copies the bytes.
    """

    __slots__ = ("count", "data", "number", "position", "timestamp")

    data: bytes
    position: int
    count: int
    timestamp: int
    number: int

    def take(self) -> QueuedMessage:
        """Remove and return the first message; the batch must not be empty."""
        start = self.position + 4
        end = start + byteops.int32_at(self.data, self.position)
        message = new_message(byteops.id_text(self.number), byteops.cut(self.data, start, end), self.timestamp, 0)
        self.position = end
        self.count -= 1
        if self.number & _SEQUENCE_MASK == _SEQUENCE_MASK:
            self.number = advance_id(self.number, 1)
        else:
            self.number += 1
        return message

    def split(self, count: int) -> Batch:
        """Remove the first ``count`` messages and return them as a batch of their own."""
        front = new_batch(self.data, self.position, count, self.timestamp, self.number)
        position = self.position
        for _ in range(count):
            position += 4 + byteops.int32_at(self.data, position)
        self.position = position
        self.count -= count
        self.number = advance_id(self.number, count)
        return front

    def skip(self) -> None:
        """Remove the first message without creating an object for it."""
        self.position += 4 + byteops.int32_at(self.data, self.position)
        self.count -= 1
        self.number = advance_id(self.number, 1)

    def size(self) -> int:
        """Return the total size of all bodies, in bytes."""
        position, total = self.position, 0
        for _ in range(self.count):
            size = byteops.int32_at(self.data, position)
            position += 4 + size
            total += size
        return total

    def copy(self) -> Batch:
        """Return the same messages for another reader."""
        return new_batch(self.data, self.position, self.count, self.timestamp, self.number)

    def __repr__(self) -> str:
        return f"<Batch of {self.count}>"


def new_batch(data: bytes, position: int, count: int, timestamp: int, number: int) -> Batch:
    """Return a batch of the ``count`` messages at ``position`` of ``data``; see Batch."""
    batch = Batch.__new__(Batch)
    batch.data = data
    batch.position = position
    batch.count = count
    batch.timestamp = timestamp
    batch.number = number
    return batch
