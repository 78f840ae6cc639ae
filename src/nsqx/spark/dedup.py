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


class Generation:
    """Messages remembered in runs, by id when they were published; put together only if somebody asks."""

    __slots__ = ("_index", "_runs")

    def __init__(self) -> None:
        self._index: dict[bytes, int] = {}
        self._runs: list[dict[bytes, int]] = []

    def add(self, run: dict[bytes, int]) -> None:
        """Remember a run, which is not to be changed any more."""
        self._runs.append(run)

    def times(self) -> dict[bytes, int]:
        """All of them, in the order in which they came."""
        if self._runs:
            for run in self._runs:
                self._index.update(run)
            self._runs = []
        return self._index


class Memory:
    """What is known of one topic of one nsqd.

    nsqd counts ids upward, so nearly every message is beyond all that were ever remembered, hence new, and needs no
    looking up. The window is two generations: when the young one is enough it becomes the old one, which is forgotten.
    """

    __slots__ = ("_fresh", "_greatest", "_old", "_pinned", "_settled", "_young")

    def __init__(self) -> None:
        self._fresh: dict[bytes, int] = {}
        self._young = Generation()
        self._old = Generation()
        self._pinned: dict[bytes, int] = {}
        # The greatest id of all, and of all that are not fresh.
        self._greatest = b""
        self._settled = b""

    def admit(self, columns: Columns) -> list[int]:
        """Remember messages; the places of those that are known, or that may be known elsewhere."""
        fresh = self._fresh
        greatest = self._greatest
        settled = self._settled
        doubtful: list[int] = []
        for place in range(columns.count):
            message_id = columns.ids[place]
            time_ns = columns.time_ns(place)
            if columns.attempt(place) > 1:
                doubtful.append(place)
            elif message_id > greatest:
                greatest = message_id
                fresh[message_id] = time_ns
            elif (message_id > settled and message_id not in fresh) or not self.knows(message_id, time_ns):
                # Beyond what is settled: several connections to one nsqd get its messages in turns.
                fresh[message_id] = time_ns
            else:
                doubtful.append(place)
        self._greatest = greatest
        return doubtful

    def add(self, message_id: bytes, time_ns: int) -> None:
        """Remember a message."""
        self._fresh[message_id] = time_ns
        self._greatest = max(self._greatest, message_id)

    def settle(self) -> None:
        """What was admitted together is complete."""
        if self._fresh:
            self._young.add(self._fresh)
            self._fresh = {}
            self._settled = self._greatest

    def knows(self, message_id: bytes, time_ns: int) -> bool:
        """True if the message was received from this nsqd."""
        return (
            self._fresh.get(message_id) == time_ns
            or self._young.times().get(message_id) == time_ns
            or self._old.times().get(message_id) == time_ns
            or self._pinned.get(message_id) == time_ns
        )

    def remember(self, part: Identities) -> None:
        """Remember messages of a former run."""
        self._fresh.update(zip(part.ids, part.timestamps_ns, strict=True))
        self._greatest = max(self._greatest, max(part.ids, default=b""))
        self.settle()

    def pin(self, part: Identities) -> int:
        """Remember messages for good; how many were not pinned before."""
        before = len(self._pinned)
        self._pinned.update(zip(part.ids, part.timestamps_ns, strict=True))
        self._greatest = max(self._greatest, max(part.ids, default=b""))
        self._settled = max(self._settled, self._greatest)
        return len(self._pinned) - before

    def is_pinned(self, message_id: bytes, time_ns: int) -> bool:
        """True if the message is remembered for good."""
        return self._pinned.get(message_id) == time_ns

    def latest(self) -> Iterator[tuple[bytes, int]]:
        """What is in the window, the latest first."""
        self.settle()
        return itertools.chain(reversed(self._young.times().items()), reversed(self._old.times().items()))

    def time_of(self, message_id: bytes) -> int | None:
        """When the message in the window was published."""
        self.settle()
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
        """Remember messages; the places of those that were known before. Call ``settle`` when all are admitted."""
        topic = self._memories.setdefault(columns.topic, {})
        memory = topic.setdefault(columns.node, Memory())
        known: list[int] = []
        for place in memory.admit(columns):
            message_id, time_ns = columns.ids[place], columns.time_ns(place)
            if memory.knows(message_id, time_ns) or (
                columns.attempt(place) > 1 and any(each.knows(message_id, time_ns) for each in topic.values())
            ):
                known.append(place)
            else:
                memory.add(message_id, time_ns)
        self._young_rows += len(columns) - len(known)
        return known

    def settle(self) -> None:
        """What came together was admitted."""
        for _, _, memory in self._each():
            memory.settle()
        self._make_room()

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
        found = [(columns.ids[place], columns.time_ns(place)) for place in places]
        found = [each for each in found if not memory.is_pinned(*each)]
        if not found:
            return []
        return [Identities(columns.topic, columns.node, [each[0] for each in found], [each[1] for each in found])]
