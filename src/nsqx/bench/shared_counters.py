"""Numbers that the workers of a benchmark share while they run: who has published and received how many so far.

Every slot has one writer, so there are no locks.
"""

from __future__ import annotations

import multiprocessing
from typing import Any, Final

# Workers start as fresh processes: a fork of a process with threads is not safe.
CONTEXT: Final = multiprocessing.get_context("spawn")


class SharedCounters:
    """Counts of each publisher and each consumer process."""

    def __init__(self, publishers: int, consumers: int, copies: int = 1) -> None:
        """``copies``: how many channels get every message."""
        self._publishers = publishers
        self._copies = copies
        self._published: Any = CONTEXT.RawArray("q", max(publishers, 1))
        self._is_done: Any = CONTEXT.RawArray("q", max(publishers, 1))
        self._received: Any = CONTEXT.RawArray("q", max(consumers, 1))

    @classmethod
    def of_backlog(cls, count: int, consumers: int) -> SharedCounters:
        """For consumers of ``count`` messages that are there already."""
        counters = cls(1, consumers)
        counters.note_published(0, count)
        counters.note_done(0)
        return counters

    def note_published(self, slot: int, count: int) -> None:
        """The publisher in ``slot`` has published so many."""
        self._published[slot] = count

    def note_done(self, slot: int) -> None:
        """The publisher in ``slot`` will publish no more."""
        self._is_done[slot] = 1

    def note_received(self, slot: int, count: int) -> None:
        """The consumer process in ``slot`` has received so many."""
        self._received[slot] = count

    def published(self) -> int:
        """What all publishers have published."""
        return sum(self._published)

    def received(self) -> int:
        """What all consumers have received."""
        return sum(self._received)

    def outstanding(self) -> int:
        """Published messages that have not reached every channel's consumer."""
        return self.published() - self.received() // self._copies

    def is_published(self) -> bool:
        """True if all is published."""
        return all(self._is_done)

    def is_over(self) -> bool:
        """True if all is published and received."""
        return self.is_published() and self.received() >= self.published() * self._copies
