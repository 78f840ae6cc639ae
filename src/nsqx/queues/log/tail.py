"""The newest batches of a log in memory, found by offset."""

from __future__ import annotations

from nsqx.queues.log.batch import DELTA, LogBatch, new_record

# In place of a batch that was dropped.
_DROPPED = new_record(DELTA, 0, b"")


class LogTail:
    """Batches of messages in the order of their offsets. ``size`` is the memory that they take, about."""

    __slots__ = ("_batches", "_start", "size")

    def __init__(self) -> None:
        self._batches: list[LogBatch] = []
        self._start = 0  # what is before it in the list has been dropped
        self.size = 0

    @property
    def first(self) -> int:
        """The first offset; -1 if there is no batch."""
        return self._batches[self._start].first if self._start < len(self._batches) else -1

    @property
    def first_end(self) -> int:
        """The offset after the first batch. There must be one."""
        return self._batches[self._start].end

    def add(self, batch: LogBatch) -> None:
        """Add a batch after all others."""
        self._batches.append(batch)
        self.size += batch.size

    def find(self, offset: int) -> LogBatch | None:
        """Return the batch that contains an offset, or the first one after it; None if older batches were dropped."""
        index = self._index_after(offset)
        if index >= len(self._batches):
            return None
        batch = self._batches[index]
        return None if index == self._start and offset < batch.first else batch

    def _index_after(self, offset: int) -> int:
        """Return the index of the first batch that ends after ``offset``."""
        batches = self._batches
        low, high = self._start, len(batches)
        while low < high:
            middle = (low + high) // 2
            batch = batches[middle]
            if batch.end <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def first_at(self, time_ns: int, offset: int) -> int:
        """Return the first offset at or after a time, in a batch at or after ``offset``; -1 if there is none."""
        for batch in self._batches[self._index_after(offset) :]:
            if batch.timestamp >= time_ns and batch.first >= offset:
                return batch.first
        return -1

    def drop_first(self) -> int:
        """Drop the first batch and return its size."""
        batch = self._batches[self._start]
        size = batch.size
        self.size -= size
        self._batches[self._start] = _DROPPED
        self._start += 1
        if self._start > 64 and self._start * 2 > len(self._batches):
            del self._batches[: self._start]
            self._start = 0
        return size
