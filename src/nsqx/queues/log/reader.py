"""A reader of a log: finds the bytes of messages by offset, in memory or in a block read from a segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqx.queues.deadlines import NEVER_NS
from nsqx.queues.log.batch import ADDRESSED, channel_of, due_ns_of, origin_of, ttl_ns_of
from nsqx.wire import byteops

if TYPE_CHECKING:
    from nsqx.queues.log.batch import LogBatch
    from nsqx.queues.log.blocks import LogBlock, LogBlocks
    from nsqx.queues.log.log import TopicLog

# Results of ``find``.
FOUND = 0
UNREAD = 1
MISSING = 2
_FOUND = FOUND
_UNREAD = UNREAD
_MISSING = MISSING
_NEVER_NS = NEVER_NS


class LogReader:
    """One place in a log. After ``find``, ``data[start:end]`` is the body of the message."""

    __slots__ = (
        "_at", "_batch", "_batch_end", "_batch_first", "_block", "_blocks", "_log", "_tail",
        "data", "end", "expires_ns", "is_addressed", "start", "timestamp", "ttl_ns",
    )  # fmt: skip

    def __init__(self, log: TopicLog, blocks: LogBlocks) -> None:
        self.data = b""  # the items of the batch
        self.start = self.end = 0
        self.timestamp = 0
        self.ttl_ns = 0  # how long messages without a ttl of their own are delivered; 0 is for ever
        self.expires_ns = _NEVER_NS  # when the message must not be delivered any more, on the wall clock
        self.is_addressed = False  # the message is for one channel
        self._log = log
        self._tail = log.tail
        self._blocks = blocks
        self._block: LogBlock | None = None  # that the batch is in; None if it is in the tail of the log
        self._batch: LogBatch | None = None
        self._batch_first = -1
        self._batch_end = -1
        self._at = 0  # the offset of the message that follows ``end`` in the batch

    def find(self, offset: int) -> int:
        """Find the written message at ``offset``.

        Return FOUND; MISSING if the log has no message at this offset; UNREAD if it is not in memory. Then the caller
        adds a block with this offset to the blocks and calls ``find`` again.
        """
        if offset < self._batch_first or offset >= self._batch_end:
            found = self._open_batch(offset)
            if found != _FOUND:
                return found
        if offset < self._at:
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
        block = None
        batch = self._tail.find(offset)
        if batch is None or batch.end > self._log.written:
            block = self._block
            if block is None or offset < block.first or offset >= block.end:
                block = self._block = self._blocks.find(self._log, offset)
            if block is None:
                return _UNREAD
            batch = block.find(offset)
        if batch is None or offset < batch.first:
            return _MISSING
        if batch.first != self._batch_first:
            self._at = self._batch_first = batch.first
            self.end = 0
        self._batch_end = batch.end
        self._block = block
        self._batch = batch
        self.data = batch.items
        self.timestamp = batch.timestamp
        self.is_addressed = batch.kind == ADDRESSED
        self.expires_ns = _NEVER_NS
        if self.ttl_ns > 0 or batch.extension:
            self._note_ttl()
        return _FOUND

    def _note_ttl(self) -> None:
        """Note when the messages of the batch expire."""
        ttl_ns = self.own_ttl_ns() or self.ttl_ns
        if 0 < ttl_ns < _NEVER_NS - self.timestamp:
            self.expires_ns = self.timestamp + ttl_ns

    def block_end(self) -> int:
        """Return the offset after the block that is in use, or -1 if none is."""
        return -1 if self._block is None else self._block.end

    def release(self) -> None:
        """Keep no message in memory until the next ``find``. The place in the batch is kept."""
        self._block = None
        self._batch = None
        self._batch_end = -1
        self.data = b""

    def attempts(self) -> int:
        """Return how often the found message was delivered before it was addressed to its channel."""
        return channel_of(self._batch)[1] if self._batch is not None else 0

    def origin(self) -> bytes:
        """Return where the found dead letter comes from, in JSON; empty for other messages."""
        return origin_of(self._batch) if self._batch is not None else b""

    def own_ttl_ns(self) -> int:
        """Return the time to live that the found message was published with; 0 is for ever."""
        return ttl_ns_of(self._batch) if self._batch is not None else 0

    def due_ns(self) -> int:
        """Return when the found message is due; 0 is at once."""
        return due_ns_of(self._batch) if self._batch is not None else 0
