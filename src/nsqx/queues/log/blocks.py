"""Blocks: consecutive messages that were read from segments, shared by all readers of their log.

The blocks of all logs have a limited size together. Readers keep no block of their own while they wait, so the memory
does not depend on the number of channels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.queues.log.batch import LogBatch
    from nsqx.queues.log.log import TopicLog

# How many bytes a block has, about; fewer if that is a large part of the memory for blocks.
_BLOCK_SIZE = 1024 * 1024
_MIN_BLOCK_SIZE = 4096
_MIN_BLOCK_COUNT = 8


class LogBlock:
    """The messages from offset ``first`` to ``end``. Offsets without a batch are no messages, or are missing."""

    __slots__ = ("_batches", "end", "first", "size")

    def __init__(self, first: int, end: int, batches: list[LogBatch]) -> None:
        self.first = first
        self.end = end
        self.size = sum(batch.size for batch in batches)
        self._batches = batches

    def find(self, offset: int) -> LogBatch | None:
        """Return the batch that contains an offset, or None."""
        index = bisect_right(self._batches, offset, key=_first_of) - 1
        return self._batches[index] if index >= 0 and offset < self._batches[index].end else None


class LogBlocks:
    """The blocks that were used last. ``size`` is at most ``max_size``, or that of one block."""

    def __init__(self, max_size: int) -> None:
        self.size = 0
        self.max_size = max_size
        self.block_size = max(_MIN_BLOCK_SIZE, min(_BLOCK_SIZE, max_size // _MIN_BLOCK_COUNT))
        self._by_log: dict[TopicLog, list[LogBlock]] = {}
        self._logs: OrderedDict[LogBlock, TopicLog] = OrderedDict()  # the block that was used last is the last one

    def find(self, log: TopicLog, offset: int) -> LogBlock | None:
        """Return a block that covers an offset, or None."""
        for block in self._by_log.get(log, ()):
            if block.first <= offset < block.end:
                self._logs.move_to_end(block)
                return block
        return None

    def add(self, log: TopicLog, block: LogBlock) -> None:
        """Add a block, and drop those that were not used for the longest time."""
        self._by_log.setdefault(log, []).append(block)
        self._logs[block] = log
        self.size += block.size
        while self.size > self.max_size and len(self._logs) > 1:
            self._drop(next(iter(self._logs)))

    def _drop(self, block: LogBlock) -> None:
        log = self._logs.pop(block)
        self.size -= block.size
        self._by_log[log].remove(block)
        if not self._by_log[log]:
            del self._by_log[log]

    def forget(self, log: TopicLog) -> None:
        """Drop the blocks of a log."""
        for block in self._by_log.get(log, [])[:]:
            self._drop(block)


def _first_of(batch: LogBatch) -> int:
    return batch.first
