"""The newest batches of a log in memory, found by offset."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.queues.log.batch import LogBatch


class LogTail:
    """Batches of messages in the order of their offsets. ``size`` is the memory that they take, about."""

    __slots__ = ("_batches", "_firsts", "_start", "size")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._batches: list[LogBatch] = []
        self._start = 0  # what is before it in the lists has been dropped
        self.size = 0

    @property
    def first(self) -> int:
        """The first offset; -1 if there is no batch."""
        return self._firsts[self._start] if self._start < len(self._firsts) else -1

    @property
    def first_end(self) -> int:
        """The offset after the first batch. There must be one."""
        return self._batches[self._start].end

    def add(self, batch: LogBatch) -> None:
        """Add a batch after all others."""
        self._firsts.append(batch.first)
        self._batches.append(batch)
        self.size += batch.size

    def find(self, offset: int) -> LogBatch | None:
        """Return the batch that contains an offset, or the first one after it; None if older batches were dropped."""
        index = bisect_right(self._firsts, offset, self._start) - 1
        if index < self._start:
            return None
        if offset < self._batches[index].end:
            return self._batches[index]
        return self._batches[index + 1] if index + 1 < len(self._batches) else None

    def first_at(self, time_ns: int, offset: int) -> int:
        """Return the first offset at or after a time, in a batch at or after ``offset``; -1 if there is none."""
        index = max(self._start, bisect_right(self._firsts, offset - 1))
        for batch in self._batches[index:]:
            if batch.timestamp >= time_ns:
                return batch.first
        return -1

    def drop_first(self) -> int:
        """Drop the first batch and return its size."""
        batch = self._batches[self._start]
        size = batch.size
        self.size -= size
        self._start += 1
        if self._start > 64 and self._start * 2 > len(self._firsts):
            del self._firsts[: self._start], self._batches[: self._start]
            self._start = 0
        return size
