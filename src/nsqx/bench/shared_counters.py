"""Counters in shared memory: how many messages each worker of a benchmark has published or received.

Each slot has only one writer, so no locks are needed.
"""

from __future__ import annotations

import multiprocessing
from typing import Any, Final

# Workers are spawned, because forking a process with threads is not safe.
CONTEXT: Final = multiprocessing.get_context("spawn")


class SharedCounters:
    """The counts of each publisher and each consumer process."""

    def __init__(self, publishers: int, consumers: int, copies: int = 1) -> None:
        """``copies`` is the number of channels that get every message."""
        self._publishers = publishers
        self._copies = copies
        self._published: Any = CONTEXT.RawArray("q", max(publishers, 1))
        self._is_done: Any = CONTEXT.RawArray("q", max(publishers, 1))
        self._received: Any = CONTEXT.RawArray("q", max(consumers, 1))

    @classmethod
    def of_backlog(cls, count: int, consumers: int) -> SharedCounters:
        """Return counters for consumers of ``count`` messages that are already published."""
        counters = cls(1, consumers)
        counters.note_published(0, count)
        counters.note_done(0)
        return counters

    def note_published(self, slot: int, count: int) -> None:
        """Set the number of messages that the publisher in ``slot`` has published."""
        self._published[slot] = count

    def note_done(self, slot: int) -> None:
        """Record that the publisher in ``slot`` is done."""
        self._is_done[slot] = 1

    def note_received(self, slot: int, count: int) -> None:
        """Set the number of messages that the consumer process in ``slot`` has received."""
        self._received[slot] = count

    def published(self) -> int:
        """Return the number of messages that all publishers have published."""
        return sum(self._published)

    def received(self) -> int:
        """Return the number of messages that all consumers have received."""
        return sum(self._received)

    def outstanding(self) -> int:
        """Return the number of published messages that not all channels have delivered."""
        return self.published() - self.received() // self._copies

    def is_published(self) -> bool:
        """Return True if all publishers are done."""
        return all(self._is_done)

    def is_over(self) -> bool:
        """Return True if all publishers are done and all messages are received."""
        return self.is_published() and self.received() >= self.published() * self._copies
