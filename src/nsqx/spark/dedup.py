"""Which messages were received before: NSQ delivers at least once, a source must deliver exactly once.

A message is told by topic, nsqd, id and time of publishing. Ids alone will not do: every topic of every nsqd counts its
own, and two nsqds on one machine count alike. A message that was tried before is also known when it comes from another
address, since an nsqd may come back on another port.

Two memories. The window holds the latest rows. Pins hold for good those that nsqd may still hand out, because
nobody knows whether it got their FIN: a requeued message goes to the end of its channel, and may come again after any
number of others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from nsqx.spark.identities import Identities

if TYPE_CHECKING:
    from nsqx.spark.columns import Columns

_LEAST_ID = bytes(16)


class Generation:
    """Messages remembered in runs, by id when they were published; put together only if somebody asks."""

    __slots__ = ("_index", "_runs")

    def __init__(self) -> None:
        self._index: dict[bytes, int] = {}
        # Ids one behind the other, and times as int64.
        self._runs: list[tuple[bytes, bytes]] = []

    def add_all(self, columns: Columns) -> None:
        """Remember every message of these."""
        count = columns.count
        self._runs.append((bytes(columns.id_values[: 16 * count]), bytes(columns.times[: 8 * count])))

    def add(self, message_id: bytes, time_ns: int) -> None:
        """Remember one message."""
        self.times()[message_id] = time_ns

    def times(self) -> dict[bytes, int]:
        """All of them, in the order in which they came."""
        if self._runs:
            for ids, times in self._runs:
                each_id = [ids[place : place + 16] for place in range(0, len(ids), 16)]
                self._index.update(zip(each_id, memoryview(times).cast("q"), strict=True))
            self._runs = []
        return self._index


class Memory:
    """What is known of one topic of one nsqd.

    An nsqd counts how often it handed a message out, and forgets that only if it crashes, which ends its connections.
    So a message that is handed out for the first time is new if its id is beyond all that were known when the latest
    connection was made: nearly every message, and none of those needs looking up. The window is two generations: when
    the young one is enough it becomes the old one, which is forgotten.
    """

    __slots__ = ("_boundary", "_greatest", "_old", "_pinned", "_young")

    def __init__(self) -> None:
        self._young = Generation()
        self._old = Generation()
        self._pinned: dict[bytes, int] = {}
        self._greatest = _LEAST_ID
        self._boundary = _LEAST_ID

    def connected(self) -> None:
        """There is a new connection: it may bring again whatever came before, as if for the first time."""
        self._boundary = self._greatest

    def admit(self, columns: Columns) -> list[int]:
        """Remember messages; the places of those that are known, or that may be known elsewhere."""
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
        """True if the message was received from this nsqd."""
        return (
            self._young.times().get(message_id) == time_ns
            or self._old.times().get(message_id) == time_ns
            or self._pinned.get(message_id) == time_ns
        )

    def remember(self, part: Identities) -> None:
        """Remember messages of a former run."""
        for message_id, time_ns in zip(part.ids, part.timestamps_ns, strict=True):
            self.add(message_id, time_ns)

    def pin(self, part: Identities) -> int:
        """Remember messages for good; how many were not pinned before."""
        before = len(self._pinned)
        self._pinned.update(zip(part.ids, part.timestamps_ns, strict=True))
        self._greatest = max(self._greatest, max(part.ids, default=_LEAST_ID))
        return len(self._pinned) - before

    def is_pinned(self, message_id: bytes, time_ns: int) -> bool:
        """True if the message is remembered for good."""
        return self._pinned.get(message_id) == time_ns

    def latest(self) -> Iterator[tuple[bytes, int]]:
        """What is in the window, the latest first."""
        return itertools.chain(reversed(self._young.times().items()), reversed(self._old.times().items()))

    def time_of(self, message_id: bytes) -> int | None:
        """When the message in the window was published."""
        time_ns = self._young.times().get(message_id)
        return self._old.times().get(message_id) if time_ns is None else time_ns

    def turn(self) -> None:
        """Make room in the window."""
        self._old = self._young
        self._young = Generation()


class SeenMessages:
    """What was received, as far back as it matters."""

    def __init__(self, window_rows: int) -> None:
        self._generation_rows = max(1, window_rows // 2)
        self._young_rows = 0
        # By topic, by nsqd.
        self._memories: dict[str, dict[str, Memory]] = {}
        self.pin_count = 0

    def admit(self, columns: Columns) -> list[int]:
        """Remember messages; the places of those that were known before."""
        topic = self._memories.setdefault(columns.topic, {})
        memory = self._memory(columns.topic, columns.node)
        known: list[int] = []
        for place in memory.admit(columns):
            message_id, time_ns = columns.message_id(place), columns.time_ns(place)
            if memory.knows(message_id, time_ns) or (
                columns.attempt(place) > 1 and any(each.knows(message_id, time_ns) for each in topic.values())
            ):
                known.append(place)
            else:
                memory.add(message_id, time_ns)
        self._young_rows += len(columns) - len(known)
        self._make_room()
        return known

    def connected(self, topic: str, node: str) -> None:
        """There is a new connection to that nsqd."""
        self._memory(topic, node).connected()

    def _make_room(self) -> None:
        if self._young_rows >= self._generation_rows:
            self._young_rows = 0
            for _, _, memory in self._each():
                memory.turn()

    def _each(self) -> Iterator[tuple[str, str, Memory]]:
        for topic, nodes in self._memories.items():
            for node, memory in nodes.items():
                yield topic, node, memory

    def _memory(self, topic: str, node: str) -> Memory:
        return self._memories.setdefault(topic, {}).setdefault(node, Memory())

    def remember(self, parts: Iterable[Identities]) -> None:
        """Take up rows that were received before this process began, the oldest first."""
        for part in parts:
            self._memory(part.topic, part.node).remember(part)
            self._young_rows += len(part.ids)
            self._make_room()

    def remember_pinned(self, parts: Iterable[Identities]) -> None:
        """Take up pins, or add to them."""
        for part in parts:
            self.pin_count += self._memory(part.topic, part.node).pin(part)

    def latest(self, topic: str, node: str, count: int) -> Identities:
        """The latest rows from one nsqd that are not pinned yet: those whose FIN may have been lost with it."""
        memory = self._memory(topic, node)
        found = [each for each in itertools.islice(memory.latest(), count) if not memory.is_pinned(*each)][::-1]
        return Identities(topic, node, [each[0] for each in found], [each[1] for each in found])

    def one(self, topic: str, node: str, message_id: bytes) -> list[Identities]:
        """The identity of one message, unless it is pinned or forgotten."""
        memory = self._memory(topic, node)
        time_ns = memory.time_of(message_id)
        if time_ns is None or memory.is_pinned(message_id, time_ns):
            return []
        return [Identities(topic, node, [message_id], [time_ns])]

    def every_latest(self, count: int) -> list[Identities]:
        """The same as ``latest`` for every nsqd of every topic."""
        pairs = sorted((topic, node) for topic, node, _ in self._each())
        return [self.latest(topic, node, count) for topic, node in pairs]

    def unpinned(self, columns: Columns, places: Sequence[int]) -> list[Identities]:
        """Of the messages at these places those that are not pinned."""
        memory = self._memory(columns.topic, columns.node)
        found = [(columns.message_id(place), columns.time_ns(place)) for place in places]
        found = [each for each in found if not memory.is_pinned(*each)]
        if not found:
            return []
        return [Identities(columns.topic, columns.node, [each[0] for each in found], [each[1] for each in found])]
