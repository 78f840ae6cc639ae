"""A reader of a log: finds the bytes of messages by offset, in memory or in a block read from a segment.

Reading from a segment is a job for another thread:

      if reader.find(offset) == UNREAD:
          job = reader.begin_read(offset)
          job.run()                                # in any thread
          reader.end_read(job)                     # now ``find`` returns FOUND or MISSING
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from nsqx.queues.log.batch import ADDRESSED, channel_of, due_ns_of
from nsqx.wire import byteops

if TYPE_CHECKING:
    from nsqx.queues.log.batch import LogBatch
    from nsqx.queues.log.log import ReadJob, TopicLog

# How many bytes one job reads, about.
_BLOCK_SIZE = 256 * 1024

# Results of ``find``.
FOUND = 0
UNREAD = 1
MISSING = 2
_FOUND = FOUND
_UNREAD = UNREAD
_MISSING = MISSING


class LogReader:
    """One place in a log. After ``find``, ``data[start:end]`` is the body of the message."""

    __slots__ = (
        "_at", "_batch", "_batch_end", "_batch_first", "_block", "_block_end", "_block_first", "_log",
        "data", "end", "is_addressed", "start", "timestamp",
    )  # fmt: skip

    def __init__(self, log: TopicLog) -> None:
        self.data = b""  # the items of the batch
        self.start = self.end = 0
        self.timestamp = 0
        self.is_addressed = False  # the message is for one channel
        self._log = log
        self._batch: LogBatch | None = None
        self._batch_first = self._batch_end = 0
        self._at = 0  # the offset of the message that follows ``end`` in the batch
        self._block: list[LogBatch] = []  # read from a segment
        self._block_first = self._block_end = 0

    def find(self, offset: int) -> int:
        """Find the written message at ``offset``.

        Return FOUND; UNREAD if it is not in memory; MISSING if the log has no message at this offset.
        """
        if offset < self._batch_first or offset >= self._batch_end:
            found = self._open_batch(offset)
            if found != _FOUND:
                return found
        elif offset < self._at:
            self._at, self.end = self._batch_first, 0
        position = self.end
        while self._at < offset:
            position += 4 + byteops.int32_at(self.data, position)
            self._at += 1
        self._at += 1
        self.start = position + 4
        self.end = self.start + byteops.int32_at(self.data, position)
        return _FOUND

    def _open_batch(self, offset: int) -> int:
        is_in_block = self._block_first <= offset < self._block_end
        batch = self._block_batch(offset) if is_in_block else self._log.batch_at(offset)
        if batch is None:
            return _MISSING if is_in_block else _UNREAD
        if offset < batch.first:
            return _MISSING
        self._batch = batch
        self.data = batch.items
        self.timestamp = batch.timestamp
        self.is_addressed = batch.kind == ADDRESSED
        self._at = self._batch_first = batch.first
        self._batch_end = batch.end
        self.end = 0
        return _FOUND

    def attempts(self) -> int:
        """Return how often the found message was delivered before it was addressed to its channel."""
        return channel_of(self._batch)[1] if self._batch is not None else 0

    def due_ns(self) -> int:
        """Return when the found message is due; 0 is at once."""
        return due_ns_of(self._batch) if self._batch is not None else 0

    def _block_batch(self, offset: int) -> LogBatch | None:
        index = bisect_right(self._block, offset, key=_first_of) - 1
        return self._block[index] if index >= 0 and offset < self._block[index].end else None

    def begin_read(self, offset: int) -> ReadJob:
        """Return a job that reads a block of messages from ``offset`` on."""
        self._block_first = offset
        return self._log.begin_read(offset, _BLOCK_SIZE)

    def end_read(self, job: ReadJob) -> int:
        """Use the result of a job, and return how many messages are missing. Raises the OSError of the job."""
        self._block, self._block_end = [], 0
        lost_count = self._log.end_read(job)
        self._block, self._block_end = job.batches, job.next
        return lost_count


def _first_of(batch: LogBatch) -> int:
    return batch.first
