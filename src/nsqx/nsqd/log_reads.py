"""The reads of one log from its segments, in threads. Cursors that need the same messages share one read.

While a cursor delivers a block, the next ones are read. So a channel that is far behind seldom waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nsqx.queues.log.blocks import LogBlock

if TYPE_CHECKING:
    from nsqx.nsqd.log_commits import LogCommits
    from nsqx.queues.log.log import ReadJob, TopicLog

# How many blocks are read ahead.
_BLOCKS_AHEAD = 2

Waiter = Callable[[bool], object]


class LogReads:
    """The reads in progress."""

    __slots__ = ("_block_size", "_end_read", "_log", "_logs", "_running", "_span")

    def __init__(self, log: TopicLog, logs: LogCommits, end_read: Callable[[ReadJob], bool]) -> None:
        """``end_read`` notes the result of a job, and returns False if the log could not be read."""
        self._log = log
        self._logs = logs
        self._end_read = end_read
        self._running: dict[int, list[Waiter]] = {}  # by first offset
        self._span = 1  # how many offsets the last block had
        self._block_size = 0  # how many bytes the last block had

    def read(self, offset: int, done: Waiter) -> None:
        """Read a block that contains ``offset``, then call ``done`` with True, or with False if that failed.

        The caller looks for the offset again. It is not in the block if that is shorter than expected.
        """
        waiters = self._find(offset)
        if waiters is None:
            self._begin(offset, [done])
        else:
            waiters.append(done)

    def read_ahead(self, offset: int) -> None:
        """Read the first of the blocks from ``offset`` on that is not in memory. They are needed soon."""
        blocks = self._logs.blocks
        if (1 + _BLOCKS_AHEAD) * self._block_size > blocks.max_size:
            return  # they would replace the block in use
        tail_first = self._log.tail.first
        cold_end = tail_first if tail_first >= 0 else self._log.written
        for _ in range(_BLOCKS_AHEAD):
            block = blocks.find(self._log, offset)
            if block is None:
                if offset < cold_end and self._find(offset) is None:
                    self._begin(offset, [])
                return
            offset = block.end

    def stop(self) -> None:
        """Note the result of no other job. The log is deleted; this breaks a reference cycle."""
        self._end_read = _ignore

    def _find(self, offset: int) -> list[Waiter] | None:
        """Return the waiters for the block that is expected to contain ``offset``; None if it is not being read."""
        for first, waiters in self._running.items():
            if first <= offset < first + self._span:
                return waiters
        return None

    def _begin(self, offset: int, waiters: list[Waiter]) -> None:
        self._running[offset] = waiters
        job = self._log.begin_read(offset, self._logs.blocks.block_size)
        self._logs.read(job, partial(self._on_read, offset))

    def _on_read(self, offset: int, job: ReadJob) -> None:
        waiters = self._running.pop(offset)
        if self._log.is_deleted:
            return
        is_read = self._end_read(job)
        if is_read:
            block = LogBlock(offset, job.next, job.batches)
            self._span = max(1, block.end - block.first)
            self._block_size = block.size
            self._logs.blocks.add(self._log, block)
        for done in waiters:
            done(is_read)


def _ignore(_job: ReadJob) -> bool:
    return False
