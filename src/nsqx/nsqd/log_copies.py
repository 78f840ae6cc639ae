"""Copying unfinished messages to the end of a log, so that a few of them do not keep its oldest segments on disk.

If the messages of the oldest segments are finished except for less than a tenth, and none of these is in flight, they
are appended again: a deferred publish as such, a requeued message addressed to its channel, with its attempts, its due
time and its timestamp. The same frame of the commit file finishes the old messages, so a crash neither loses nor
repeats one. The segments are removed like all finished ones.

Some messages are copied in each turn. Messages that are not in memory are read in threads.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from nsqx.queues.log.batch import LogBatch, ttl_ns_of
from nsqx.queues.log.state import Changes
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.clock import Timer
    from nsqx.nsqd.log_flow import LogFlow
    from nsqx.queues.log.log import ReadJob, TopicLog
    from nsqx.queues.log.segment import LogSegment

# Less than this part of the messages must be unfinished.
_WANTED_SHARE = 10
# How many messages and how many bytes are copied in one turn of the loop, about, and how much is read at once.
_COPIES_PER_TURN = 500
_BYTES_PER_TURN = 256 * 1024
_READ_BYTES = 64 * 1024
# The delay after a search that found too many unfinished messages, because it takes long if there are many.
_PAUSE_NS = 10 * NS_PER_S


class CopiedMessage(NamedTuple):
    """A message as it was published. ``item`` is the body with its size before it."""

    item: bytes
    timestamp: int
    ttl_ns: int


class LogCopies:
    """The copies of one log."""

    def __init__(self, flow: LogFlow, log: TopicLog, broker: Broker) -> None:
        self.count = 0  # messages copied since the start
        self._flow = flow
        self._log = log
        self._broker = broker
        self._logs = broker.logs
        self._left: list[int] = []  # offsets, the lowest is the last
        self._size_left = 0  # of the messages that may be copied; large ones are not worth it
        self._unsuitable_first = -1  # of the first segment, if copying has found out that it has large messages
        self._is_reading = False
        self._paused_until_ns = 0
        self._timer: Timer | None = None

    def stop(self) -> None:
        """Copy nothing any more."""
        self._left = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def delete(self) -> None:
        """Forget the flow, whose log is deleted. This breaks a reference cycle."""
        del self._flow

    # Planning

    def plan(self, segments: Sequence[LogSegment], keep_from: int) -> None:
        """Begin to copy, if that makes the oldest segments removable. Those from ``keep_from`` on stay anyway."""
        if self._left or self._logs.failure is not None or len(segments) < 2:
            return
        if segments[0].first == self._unsuitable_first:
            return
        firsts = [segment.first for segment in segments]
        limit = min(keep_from, self._flow.copy_limit())
        count = bisect_right(firsts, limit) - 1
        if count < 1 or sum(segment.size for segment in segments[:count]) <= self._logs.options.idle_size:
            return
        if self._is_paused():
            return
        while count > 0:
            size = sum(segment.size for segment in segments[:count])
            most = (firsts[count] - firsts[0]) // _WANTED_SHARE
            wanted = self._flow.wanted_below(firsts[count], most)
            if wanted is not None:
                self._left = sorted(wanted, reverse=True)
                self._size_left = size // _WANTED_SHARE
                if wanted:
                    self._broker.call_soon(self._copy)
                return
            count //= 2
        self._paused_until_ns = self._broker.clock.now_ns() + _PAUSE_NS

    def _is_paused(self) -> bool:
        if self._broker.clock.now_ns() >= self._paused_until_ns:
            return False
        if self._timer is None:
            self._timer = self._broker.call_at(self._paused_until_ns, self._on_timer)
        return True

    def _on_timer(self) -> None:
        self._timer = None
        self._logs.look_at(self._log)

    # Copying

    def _copy(self) -> None:
        """Copy some messages."""
        if self._is_reading or self._log.is_deleted or self._logs.failure is not None:
            self._left = [] if not self._is_reading else self._left  # the next search begins again
            return
        found: dict[int, CopiedMessage] = {}
        size = 0
        while self._left and len(found) < _COPIES_PER_TURN and size < _BYTES_PER_TURN:
            batch = self._log.batch_at(self._left[-1])
            if batch is None:
                break
            size += self._take([batch], batch.end, found)
        self._append(found, size)
        if self._left and not found:
            self._is_reading = True
            self._logs.read(self._log.begin_read(self._left[-1], _READ_BYTES), self._on_read)
        elif self._left:
            self._broker.call_soon(self._copy)

    def _on_read(self, job: ReadJob) -> None:
        self._is_reading = False
        if self._log.is_deleted or not self._left:
            return
        if not self._flow.end_read(job):
            self._left = []
            return
        found: dict[int, CopiedMessage] = {}
        size = self._take(job.batches, job.next, found)
        self._append(found, size)
        self._broker.call_soon(self._copy)

    def _take(self, batches: Sequence[LogBatch], end: int, found: dict[int, CopiedMessage]) -> int:
        """Add the wanted messages below ``end`` to ``found``; return their size. Those in no batch are lost."""
        wanted = set()
        while self._left and self._left[-1] < end:
            wanted.add(self._left.pop())
        size = 0
        for batch in batches:
            if wanted.isdisjoint(range(batch.first, batch.end)):
                continue
            for offset, body in batch.bodies():
                if offset in wanted:
                    found[offset] = CopiedMessage(
                        len(body).to_bytes(4, "big") + body, batch.timestamp, ttl_ns_of(batch)
                    )
                    size += len(body)
        return size

    def _append(self, found: dict[int, CopiedMessage], size: int) -> None:
        """Append messages again, and finish the old ones in the same frame."""
        self._size_left -= size
        if self._size_left < 0:
            # The unfinished messages are much larger than the others.
            self._left = []
            self._unsuitable_first = self._log.writer.segments[0].first
            return
        if not found:
            return
        changes = Changes()
        self._flow.write_changes()
        self.count += self._flow.copy(found, changes)
        if changes:
            self._log.change(changes)
        self._logs.join(self._log)
        self._logs.write_later(is_synced=self._flow.is_synced)
