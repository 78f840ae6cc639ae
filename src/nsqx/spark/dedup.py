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
from collections.abc import Iterable, Sequence

from nsqx.spark.rows import Identities, Rows

# By topic, by nsqd: when the message of this id was published.
_Times = dict[bytes, int]
_Known = dict[str, dict[str, _Times]]


class SeenMessages:
    """What was received, as far back as it matters."""

    def __init__(self, window_rows: int) -> None:
        self._generation_rows = max(1, window_rows // 2)
        # The window is two generations: when the young one is full it becomes the old one, and the old one goes.
        self._young: _Known = {}
        self._young_rows = 0
        self._old: _Known = {}
        self._pinned: _Known = {}
        self.pin_count = 0

    def admit(self, rows: Rows) -> list[int]:
        """Remember rows; the places of those that were known before."""
        topic = rows.topic
        young = self._young.setdefault(topic, {})
        old = self._old.get(topic, {})
        pinned = self._pinned.get(topic, {})
        known: list[int] = []
        columns = zip(rows.nodes, rows.ids, rows.timestamps_ns, rows.attempts, strict=True)
        for place, (node, message_id, time_ns, attempts) in enumerate(columns):
            times = young.get(node)
            if times is None:
                times = young[node] = {}
            if (
                times.get(message_id) == time_ns
                or (node in old and old[node].get(message_id) == time_ns)
                or (node in pinned and pinned[node].get(message_id) == time_ns)
                or (attempts > 1 and _is_anywhere((young, old, pinned), message_id, time_ns))
            ):
                known.append(place)
            else:
                times[message_id] = time_ns
                self._young_rows += 1
        if self._young_rows >= self._generation_rows:
            self._turn()
        return known

    def _turn(self) -> None:
        self._old = self._young
        self._young = {}
        self._young_rows = 0

    def remember(self, parts: Iterable[Identities]) -> None:
        """Take up rows that were received before this process began, the oldest first."""
        for part in parts:
            times = self._young.setdefault(part.topic, {}).setdefault(part.node, {})
            times.update(zip(part.ids, part.timestamps_ns, strict=True))
            self._young_rows += len(part.ids)
            if self._young_rows >= self._generation_rows:
                self._turn()

    def remember_pinned(self, parts: Iterable[Identities]) -> None:
        """Take up pins, or add to them."""
        for part in parts:
            times = self._pinned.setdefault(part.topic, {}).setdefault(part.node, {})
            before = len(times)
            times.update(zip(part.ids, part.timestamps_ns, strict=True))
            self.pin_count += len(times) - before

    def latest(self, topic: str, node: str, count: int) -> Identities:
        """The latest rows from one nsqd that are not pinned yet: those whose FIN may have been lost with it."""
        pinned = self._pinned.get(topic, {}).get(node, {})
        young = self._young.get(topic, {}).get(node, {})
        old = self._old.get(topic, {}).get(node, {})
        ids: list[bytes] = []
        times: list[int] = []
        for message_id, time_ns in itertools.islice(
            itertools.chain(reversed(young.items()), reversed(old.items())), count
        ):
            if pinned.get(message_id) != time_ns:
                ids.append(message_id)
                times.append(time_ns)
        return Identities(topic, node, ids[::-1], times[::-1])

    def one(self, topic: str, node: str, message_id: bytes) -> list[Identities]:
        """The identity of one message, unless it is pinned or forgotten."""
        for known in (self._young, self._old):
            time_ns = known.get(topic, {}).get(node, {}).get(message_id)
            if time_ns is not None and self._pinned.get(topic, {}).get(node, {}).get(message_id) != time_ns:
                return [Identities(topic, node, [message_id], [time_ns])]
        return []

    def every_latest(self, count: int) -> list[Identities]:
        """The same for every nsqd of every topic."""
        pairs = {
            (topic, node) for known in (self._young, self._old) for topic, nodes in known.items() for node in nodes
        }
        return [self.latest(topic, node, count) for topic, node in sorted(pairs)]

    def unpinned(self, rows: Rows, places: Sequence[int]) -> list[Identities]:
        """Of the rows at these places those that are not pinned, by nsqd."""
        pinned = self._pinned.get(rows.topic, {})
        found: dict[str, Identities] = {}
        for place in places:
            node, message_id, time_ns = rows.nodes[place], rows.ids[place], rows.timestamps_ns[place]
            if pinned.get(node, {}).get(message_id) == time_ns:
                continue
            part = found.setdefault(node, Identities(rows.topic, node, [], []))
            part.ids.append(message_id)
            part.timestamps_ns.append(time_ns)
        return list(found.values())


def _is_anywhere(memories: Iterable[dict[str, _Times]], message_id: bytes, time_ns: int) -> bool:
    return any(times.get(message_id) == time_ns for memory in memories for times in memory.values())
