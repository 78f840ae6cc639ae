"""Recognition of duplicates: NSQ delivers at least once, and the source must return each message exactly once.

A message is identified by topic, broker, id and time of publishing. Ids alone are not enough: each topic of each nsqd
counts its own ids, and two nsqds on one machine produce the same ids. nsqx's nsqd reports a broker id. Of Go's nsqd
only the address is known, and it may return under another address. A message from a broker is therefore also compared
with the messages of brokers that may have been the same nsqd: those that are not connected now and are not known to be
different. Two brokers are known to be different if both were connected at once, or if their rows of earlier runs
overlap. In doubt a message is new: duplicates can be removed later, a dropped message is lost.

Messages are remembered in two places. The window holds the latest rows. Pins are permanent and hold the messages that
nsqd may deliver again because their FIN may not have arrived: a requeued message goes to the end of its channel, and
any number of other messages may come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from nsqx.spark.identities import Identities

if TYPE_CHECKING:
    from nsqx.spark.columns import Columns

_LEAST_ID = bytes(16)


class Generation:
    """Half of the window: times of publishing by id. The index is built on the first lookup, from raw columns."""

    __slots__ = ("_index", "_runs")

    def __init__(self) -> None:
        self._index: dict[bytes, int] = {}
        # Concatenated ids, and times as int64.
        self._runs: list[tuple[bytes, bytes]] = []

    def add_all(self, columns: Columns) -> None:
        """Remember all messages of ``columns``."""
        count = columns.count
        self._runs.append((bytes(columns.id_values[: 16 * count]), bytes(columns.times[: 8 * count])))

    def add(self, message_id: bytes, time_ns: int) -> None:
        """Remember one message."""
        self.times()[message_id] = time_ns

    def times(self) -> dict[bytes, int]:
        """Return the times of publishing by id, in order of arrival."""
        if self._runs:
            for ids, times in self._runs:
                each_id = [ids[place : place + 16] for place in range(0, len(ids), 16)]
                self._index.update(zip(each_id, memoryview(times).cast("q"), strict=True))
            self._runs = []
        return self._index


class Memory:
    """The remembered messages of one topic of one broker.

    nsqd counts the attempts of each message and loses the counts only in a crash, which closes its connections. A
    message with an attempt count of 1 is therefore new if its id is above all ids that were known when the latest
    connection was made. That holds for nearly all messages, and they need no lookup. The window consists of two
    generations: when the young one is full it replaces the old one, whose messages are forgotten.
    """

    __slots__ = ("_boundary", "_greatest", "_old", "_pinned", "_predecessors", "_young")

    def __init__(self) -> None:
        self._young = Generation()
        self._old = Generation()
        self._pinned: dict[bytes, int] = {}
        self._greatest = _LEAST_ID
        self._boundary = _LEAST_ID
        self._predecessors: list[Memory] = []

    def connected(self, predecessors: list[Memory]) -> None:
        """Note a new connection, which may deliver known messages again with an attempt count of 1.

        ``predecessors`` are the memories of brokers that may be the same nsqd under another address.
        """
        self._predecessors = predecessors
        self._boundary = self._greatest
        for each in predecessors:
            if each._greatest > self._boundary:
                self._boundary = each._greatest

    def set_different(self, other: Memory) -> None:
        """Note that the other memory belongs to a different nsqd."""
        self._predecessors = [each for each in self._predecessors if each is not other]

    def admit(self, columns: Columns) -> list[int]:
        """Remember new messages; return the indices of those that may be duplicates."""
        if not columns.is_suspect:
            greatest = columns.greatest_if_new(self._boundary)
            if greatest:
                self._young.add_all(columns)
                if greatest > self._greatest:
                    self._greatest = greatest
                return []
        doubtful: list[int] = []
        for place in range(columns.count):
            message_id = columns.message_id(place)
            time_ns = columns.time_ns(place)
            if columns.attempt(place) == 1 and not self.knows(message_id, time_ns):
                self.add(message_id, time_ns)
            else:
                doubtful.append(place)
        return doubtful

    def add(self, message_id: bytes, time_ns: int) -> None:
        """Remember a message."""
        self._young.add(message_id, time_ns)
        if message_id > self._greatest:
            self._greatest = message_id

    def knows(self, message_id: bytes, time_ns: int) -> bool:
        """Return True if the message was received from this broker or from one of its predecessors."""
        if self._has(message_id, time_ns):
            return True
        for each in self._predecessors:  # noqa: SIM110 - Cython has no closures in cpdef methods
            if each._has(message_id, time_ns):
                return True
        return False

    def _has(self, message_id: bytes, time_ns: int) -> bool:
        return (
            self._young.times().get(message_id) == time_ns
            or self._old.times().get(message_id) == time_ns
            or self._pinned.get(message_id) == time_ns
        )

    def remember(self, part: Identities) -> None:
        """Remember messages of an earlier run."""
        for message_id, time_ns in zip(part.ids, part.timestamps_ns, strict=True):
            self.add(message_id, time_ns)

    def pin(self, part: Identities) -> int:
        """Remember messages permanently; return how many were not pinned before."""
        before = len(self._pinned)
        self._pinned.update(zip(part.ids, part.timestamps_ns, strict=True))
        self._greatest = max(self._greatest, max(part.ids, default=_LEAST_ID))
        return len(self._pinned) - before

    def is_pinned(self, message_id: bytes, time_ns: int) -> bool:
        """Return True if the message is remembered permanently."""
        return self._pinned.get(message_id) == time_ns

    def latest(self) -> Iterator[tuple[bytes, int]]:
        """Return the messages of the window, the latest first."""
        return itertools.chain(reversed(self._young.times().items()), reversed(self._old.times().items()))

    def time_of(self, message_id: bytes) -> int | None:
        """Return the time of publishing of a message in the window, or None."""
        time_ns = self._young.times().get(message_id)
        return self._old.times().get(message_id) if time_ns is None else time_ns

    def start_generation(self) -> None:
        """Start a new generation and forget the oldest."""
        self._old = self._young
        self._young = Generation()


class SeenMessages:
    """The messages that were received from all brokers: a window of the latest rows, and pins."""

    def __init__(self, window_rows: int) -> None:
        self._generation_rows = max(1, window_rows // 2)
        self._young_rows = 0
        # By topic, then by broker.
        self._memories: dict[str, dict[str, Memory]] = {}
        # Pairs of brokers that are known to be different nsqds.
        self._different: set[frozenset[str]] = set()
        self.pin_count = 0

    def admit(self, columns: Columns, broker: str) -> list[int]:
        """Remember messages of a broker; return the indices of the duplicates."""
        memory = self._memory(columns.topic, broker)
        known: list[int] = []
        for place in memory.admit(columns):
            message_id, time_ns = columns.message_id(place), columns.time_ns(place)
            if memory.knows(message_id, time_ns):
                known.append(place)
            else:
                memory.add(message_id, time_ns)
        self._young_rows += len(columns) - len(known)
        self._limit_window()
        return known

    def connected(self, topic: str, broker: str, live: Collection[str]) -> None:
        """Note a new connection to ``broker``; ``live`` are the brokers that are connected at this moment."""
        for other in live:
            if other != broker:
                self._set_different(broker, other)
        predecessors = [
            memory
            for other, memory in self._memories.get(topic, {}).items()
            if other != broker and other not in live and frozenset((broker, other)) not in self._different
        ]
        self._memory(topic, broker).connected(predecessors)

    def _set_different(self, one: str, other: str) -> None:
        self._different.add(frozenset((one, other)))
        for brokers in self._memories.values():
            if one in brokers and other in brokers:
                brokers[one].set_different(brokers[other])
                brokers[other].set_different(brokers[one])

    def _limit_window(self) -> None:
        if self._young_rows >= self._generation_rows:
            self._young_rows = 0
            for _, _, memory in self._each():
                memory.start_generation()

    def _each(self) -> Iterator[tuple[str, str, Memory]]:
        for topic, brokers in self._memories.items():
            for broker, memory in brokers.items():
                yield topic, broker, memory

    def _memory(self, topic: str, broker: str) -> Memory:
        return self._memories.setdefault(topic, {}).setdefault(broker, Memory())

    def remember(self, parts: Iterable[Identities]) -> None:
        """Add rows that earlier processes received, the oldest first."""
        spans: dict[str, tuple[int, int]] = {}
        for part in parts:
            self._memory(part.topic, part.broker).remember(part)
            first, last = spans.get(part.broker, part.span)
            spans[part.broker] = (min(first, part.span[0]), max(last, part.span[1]))
            self._young_rows += len(part.ids)
            self._limit_window()
        for one, other in itertools.combinations(spans, 2):
            if spans[one][0] < spans[other][1] and spans[other][0] < spans[one][1]:
                self._set_different(one, other)

    def remember_pinned(self, parts: Iterable[Identities]) -> None:
        """Add pins."""
        for part in parts:
            self.pin_count += self._memory(part.topic, part.broker).pin(part)

    def latest(self, topic: str, broker: str, count: int) -> Identities:
        """Return those of the latest ``count`` messages of a broker that are not pinned yet.

        Their FINs may be lost if the connection breaks.
        """
        memory = self._memory(topic, broker)
        found = [each for each in itertools.islice(memory.latest(), count) if not memory.is_pinned(*each)][::-1]
        return Identities(topic, broker, [each[0] for each in found], [each[1] for each in found])

    def one(self, topic: str, broker: str, message_id: bytes) -> list[Identities]:
        """Return the identity of one message; nothing if it is pinned or forgotten."""
        memory = self._memory(topic, broker)
        time_ns = memory.time_of(message_id)
        if time_ns is None or memory.is_pinned(message_id, time_ns):
            return []
        return [Identities(topic, broker, [message_id], [time_ns])]

    def every_latest(self, count: int) -> list[Identities]:
        """Return ``latest`` for every broker of every topic."""
        pairs = sorted((topic, broker) for topic, broker, _ in self._each())
        return [self.latest(topic, broker, count) for topic, broker in pairs]

    def unpinned(self, columns: Columns, places: Sequence[int], broker: str) -> list[Identities]:
        """Return the identities of the messages at these indices that are not pinned."""
        memory = self._memory(columns.topic, broker)
        found = [(columns.message_id(place), columns.time_ns(place)) for place in places]
        found = [each for each in found if not memory.is_pinned(*each)]
        if not found:
            return []
        return [Identities(columns.topic, broker, [each[0] for each in found], [each[1] for each in found])]
