"""Whole batches of a log as bytes, for readers that parse them themselves.

Bytes of a segment are sent unchanged: the index says where a range begins and ends, and no batch is parsed. Batches in
memory get heads as in a commit file. The reader must check every head and every sum, and ignore
offsets outside the range it asked for.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import TYPE_CHECKING

from nsqx.queues.files import SEGMENT, open_file, read_at

if TYPE_CHECKING:
    from nsqx.queues.log.batch import LogBatch
    from nsqx.queues.log.log import TopicLog
    from nsqx.queues.log.segment import LogSegment

# The size of one read of a file.
PIECE_SIZE = 1024 * 1024
# How many batches in memory are in one answer at most, and how many bytes. An answer is a copy, and a client that does
# not read holds it for a while.
_MAX_BATCHES = 2000
_MAX_TAIL_BYTES = 8 * 1024 * 1024


class TailRead:
    """Encodes batches that are in memory. ``run`` may be called in any thread."""

    segment_first = 0  # the seed of the heads is that of commit files

    def __init__(self, log: TopicLog, batches: list[LogBatch], first: int, end: int) -> None:
        self.first = first
        self.next = end
        self.data = b""
        self.size = sum([batch.size for batch in batches])
        self.error: OSError | None = None
        self._seed = log.commit_seed
        self._batches = batches

    def run(self) -> None:
        """Encode the batches."""
        self.data = b"".join([buffer for batch in self._batches for buffer in batch.buffers(self._seed)])


class SegmentRead:
    """Finds the bytes of a range in a segment, and reads the first piece. ``run`` may be called in any thread."""

    def __init__(self, segment: LogSegment, first: int, end: int, max_bytes: int) -> None:
        self.segment_first = segment.first
        self.first = first
        self.next = end
        self.data = b""
        self.size = 0
        self.error: OSError | None = None
        self._segment = segment
        self._max_bytes = max_bytes
        self._position = 0  # of the range

    def run(self) -> None:
        """Find the range and read its first piece."""
        try:
            index = self._segment.loaded_index()
            first, position, end, end_position = index.span(self.first, self.next, self._max_bytes)
            self.first = min(first, self.first)
            self._position = position
            descriptor = open_file(SEGMENT, self._segment.path, os.O_RDONLY)
            try:
                if end_position < 0:
                    end_position = os.fstat(descriptor).st_size
                elif end < self.next:
                    self.next = end
                self.size = max(0, end_position - position)
                self.data = read_at(SEGMENT, descriptor, min(PIECE_SIZE, self.size), position)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.error = error

    def piece(self, sent: int) -> SegmentPiece:
        """Return a job that reads the piece after the first ``sent`` bytes."""
        return SegmentPiece(self._segment, self._position + sent, min(PIECE_SIZE, self.size - sent))


class SegmentPiece:
    """Reads a piece of a segment. ``run`` may be called in any thread."""

    def __init__(self, segment: LogSegment, position: int, size: int) -> None:
        self.data = b""
        self.error: OSError | None = None
        self._segment = segment
        self._position = position
        self._size = size

    def run(self) -> None:
        """Read the piece. The file may have been removed."""
        try:
            descriptor = open_file(SEGMENT, self._segment.path, os.O_RDONLY)
            try:
                self.data = read_at(SEGMENT, descriptor, self._size, self._position)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.error = error


def begin_raw_read(log: TopicLog, first: int, end: int, max_bytes: int) -> TailRead | SegmentRead:
    """Return a job that reads about ``max_bytes`` of the batches with offsets from ``first`` to ``end``.

    The messages before ``end`` must be durable. After the job, ``next`` is where to continue.
    """
    tail_first = log.tail.first
    segments = log.writer.segments
    if 0 <= tail_first <= first or not segments:
        return _read_tail(log, first, end, min(max_bytes, _MAX_TAIL_BYTES))
    index = max(0, bisect_right([segment.first for segment in segments], first) - 1)
    if index + 1 < len(segments):
        end = min(end, segments[index + 1].first)
    if tail_first >= 0:
        end = min(end, tail_first)
    return SegmentRead(segments[index], first, end, max_bytes)


def _read_tail(log: TopicLog, first: int, end: int, max_bytes: int) -> TailRead:
    batches: list[LogBatch] = []
    size, at = 0, first
    while at < end:
        batch = log.batch_at(at)
        if batch is None or batch.first >= end:
            at = end  # no message follows
            break
        if size >= max_bytes or len(batches) >= _MAX_BATCHES:
            break
        batches.append(batch)
        size += batch.size
        at = batch.end
    return TailRead(log, batches, batches[0].first if batches else first, min(at, end))
