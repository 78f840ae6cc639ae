"""The producers of a log that number their publishes, and the last publish of each.

A publish with a number is one batch. Its extension contains the name of the producer, the number, the number of its
publish before, and the count of messages. So the message and the fact that it is stored are written together.

      extension   u64 number   u64 number before (0: none known)   u32 count of messages   name

A producer is forgotten when there are too many, or when it has been silent for too long. The change names the offset of
its last publish. So a producer that publishes later is not forgotten, although recovery applies the messages first. Nor
is another one, of whose last publishes a power cut has taken some away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from nsqx.queues.log.batch import PRODUCER, decode_extension

if TYPE_CHECKING:
    from nsqx.queues.log.batch import LogBatch

_PRODUCER = Struct(">QQI")


class ProducerTag(NamedTuple):
    """The producer and the number of a publish, as they are in the extension of its batch."""

    name: str
    seq: int
    previous: int  # the number of the publish before; 0 if none is known
    message_count: int

    def encode(self) -> bytes:
        """Return the value in an extension."""
        return _PRODUCER.pack(self.seq, self.previous, self.message_count) + self.name.encode()


def producer_of(batch: LogBatch) -> ProducerTag | None:
    """Return the producer of a batch; None if the publish had no number."""
    value = decode_extension(batch.extension).get(PRODUCER) if batch.extension else None
    if value is None:
        return None
    seq, previous, count = _PRODUCER.unpack_from(value)
    return ProducerTag(value[_PRODUCER.size :].decode(), seq, previous, count)


class LastPublish(NamedTuple):
    """The last publish of a producer."""

    seq: int
    first: int  # offset
    message_count: int
    timestamp: int

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return self.first + self.message_count


class LogProducers:
    """The last publish of each producer that is not forgotten, in the order of their offsets."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, LastPublish] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogProducers) and list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> Iterator[tuple[str, LastPublish]]:
        """Yield names and last publishes, oldest first."""
        yield from self._by_name.items()

    def find(self, name: str) -> LastPublish | None:
        """Return the last publish of a producer, or None."""
        return self._by_name.get(name)

    def set(self, name: str, last: LastPublish) -> None:
        """Note the last publish of a producer. Its offset is above those of all others."""
        self._by_name.pop(name, None)
        self._by_name[name] = last

    def add(self, batch: LogBatch) -> None:
        """Note the producer of a batch. If a part of the batch is lost, its publish does not count as stored."""
        tag = producer_of(batch)
        if tag is not None and tag.message_count == batch.count:
            self.set(tag.name, LastPublish(tag.seq, batch.first, batch.count, batch.timestamp))

    def forget(self, offsets: Collection[int]) -> None:
        """Forget the producers whose last publishes are at the given offsets."""
        highest = max(offsets, default=-1)
        names = []
        for name, last in self._by_name.items():
            if last.first > highest:
                break
            if last.first in offsets:
                names.append(name)
        for name in names:
            del self._by_name[name]

    def forgettable(self, max_count: int, before_ns: int) -> list[int]:
        """Return the offsets of the last publishes of the producers that must be forgotten.

        These are the oldest ones above ``max_count``, and those whose last publish was earlier than ``before_ns``.
        """
        excess = len(self._by_name) - max_count
        offsets: list[int] = []
        for last in self._by_name.values():
            if len(offsets) >= excess and last.timestamp >= before_ns:
                break
            offsets.append(last.first)
        return offsets
