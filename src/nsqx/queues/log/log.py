"""The log of one topic: the offsets it has given out, and the batches that are not durable in its segments yet.

A batch goes through these steps, in order. Batches are counted, and a count says how far a step has come.

      pending     has its offsets, but no write has begun
      given       part of a running or finished write to a commit file or a segment; kept in memory as *held*
      written     the write has succeeded: channels may see it
      safe        durable, in a commit file or a segment
      synced      durable in a segment; no longer held

A batch keeps its offsets for ever. If a write fails, the batch is pending again and is written later.

Messages that are published one after the other share a batch: they are *gathered* until the batch is needed, is large
enough, or a millisecond has passed. The timestamp of the batch is that of its first messages.

Offsets at or above the durable *lease* are seen by no consumer: the write that renews the lease is synced before its
messages count as written. So after a power cut, which may take away offsets that consumers have seen, the log
continues at the lease and gives no offset to two messages.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from nsqx.queues.log.batch import ADDRESSED as ADDRESSED_KIND
from nsqx.queues.log.batch import DEFERRED as DEFERRED_KIND
from nsqx.queues.log.batch import (
    DELETED,
    DELTA,
    MESSAGES,
    LogBatch,
    addressed,
    deferred,
    encode_extension,
    expiring,
    new_batch,
    new_record,
    originating,
    read_batch,
    releasing,
    salvage,
    seed_of,
)
from nsqx.queues.log.commit_file import ENTRY_OVERHEAD, identity_record
from nsqx.queues.log.index import NO_TIME, SPACING
from nsqx.queues.log.segment import LogSegment, SegmentReader, SegmentWriter
from nsqx.queues.log.state import Changes, LogState
from nsqx.queues.log.tail import LogTail
from nsqx.units import NS_PER_MS

if TYPE_CHECKING:
    from nsqx.queues.log.identity import LogIdentity

DIRECTORY_SUFFIX = ".topic"
# The log that has the ledger of transactions and no messages. Its name is not a valid name of a topic.
LEDGER_LOG = "+ledger"
LEDGER_DIRECTORY = "nsqx.ledger"
# Messages share a batch if they are appended within this time, and if they are not larger together.
_GATHER_NS = NS_PER_MS
_GATHER_SIZE = 16 * 1024
_NOTHING: Mapping[int, bytes] = {}


def log_directory(data_path: str, topic: str) -> str:
    """Return the directory of the log of a topic."""
    return os.path.join(data_path, LEDGER_DIRECTORY if topic == LEDGER_LOG else topic + DIRECTORY_SUFFIX)


class TopicLog:
    """The log of one topic. Created by a LogStore. Not thread-safe; only its jobs can run in other threads."""

    __slots__ = (
        "_gathered",
        "_gathered_count",
        "_gathered_first",
        "_gathered_ns",
        "_gathered_size",
        "_given_size",
        "_held",
        "_held_from",
        "_lease_count",
        "_lease_step",
        "_on_pending",
        "_pending",
        "commit_seed",
        "direct_count",
        "durable_end",
        "durable_serial",
        "given_count",
        "identity",
        "identity_size",
        "is_deleted",
        "is_removed",
        "is_writing",
        "pending_size",
        "safe_count",
        "stable",
        "state",
        "tail",
        "writer",
        "written",
        "written_count",
    )

    def __init__(
        self,
        writer: SegmentWriter,
        state: LogState,
        held: Sequence[LogBatch],
        lease_step: int,
        on_pending: Callable[[TopicLog], object],
    ) -> None:
        """``state`` is the state after the held batches, all of which an earlier process has written."""
        self.identity: LogIdentity = writer.identity
        self.state = state
        self.writer = writer
        self.tail = LogTail()
        # Offsets below these are written and durable. The held batches must be in segments before they are used.
        self.written = self.stable = writer.state.end
        self.pending_size = 0  # about, because gathered messages have no head yet
        self.is_deleted = False
        self.is_removed = False  # deleted durably, and its directory too
        self.is_writing = False  # a job uses the writer
        self._lease_step = lease_step
        self._on_pending = on_pending
        self._gathered: list[bytes] = []  # items that are in no batch yet
        self._gathered_first = 0
        self._gathered_count = 0
        self._gathered_size = 0
        self._gathered_ns = 0
        self._pending: list[LogBatch] = []
        self._held: deque[LogBatch] = deque(held)
        self._held_from = 0  # the number of batches before the held ones
        self.given_count = len(held)
        self._given_size = sum([batch.size for batch in held])
        self.written_count = len(held)
        self.safe_count = 0
        self.direct_count = 0  # batches up to this one may be in no commit file
        self.durable_end = writer.state.end  # what is durable in segments: offsets, and serials of changes
        self.durable_serial = writer.state.serial
        self.commit_seed = seed_of(self.identity.log_id)  # of the heads in commit files
        self.identity_size = 2 * identity_record(self.identity, 0, 0).size + 2 * ENTRY_OVERHEAD
        self._lease_count = 0  # the count at which the newest lease is safe
        for batch in held:
            if batch.has_offsets:
                self.tail.add(batch)

    # Offsets

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self.identity.topic

    @property
    def first(self) -> int:
        """The first offset that the log still has."""
        first: int = self.state.first
        return max(first, self.writer.segments[0].first) if self.writer.segments else first

    @property
    def first_kept(self) -> int:
        """The first offset that a channel may move to. A running checkpoint may remove what is before it."""
        return max(self.first, self.writer.removable_end)

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self.state.end

    @property
    def size(self) -> int:
        """The size of the segments and of the batches that are not in segments yet."""
        unwritten_size = self.pending_size + self._given_size - self.writer.written_size
        return sum([segment.size for segment in self.writer.segments]) + unwritten_size

    @property
    def pending_count(self) -> int:
        """The number of batches that wait for a write."""
        return len(self._pending) + (1 if self._gathered else 0)

    def has_pending(self) -> bool:
        """True if a batch waits for a write."""
        return len(self._pending) > 0 or len(self._gathered) > 0

    @property
    def newest_part_ns(self) -> int:
        """The timestamp of the first message that is in the newest segment or in none; 0 without such a message."""
        segments = self.writer.segments
        index = segments[len(segments) - 1].index if segments else None
        if index is not None and index.first_time != NO_TIME:
            return int(index.first_time)
        for batch in chain(self._held, self._pending):
            if batch.has_offsets:
                return batch.timestamp
        return self._gathered_ns if self._gathered else 0

    # Appending

    def publish(
        self, items: bytes, count: int, timestamp: int, values: Mapping[int, bytes] = _NOTHING, due_ns: int = 0
    ) -> int:
        """Append messages as one batch of their own, with the ``values`` of tags in its extension.

        Every channel gets them: now, or when they are due and appended again if ``due_ns`` is not 0. Return the first
        offset.
        """
        if due_ns:
            return self._append(DEFERRED_KIND, items, count, timestamp, deferred(due_ns, values))
        return self._append(MESSAGES, items, count, timestamp, encode_extension(values))

    def append(self, items: bytes, count: int, timestamp: int, releases: Sequence[int] = (), ttl_ns: int = 0) -> int:
        """Append messages for every channel and return the first offset.

        ``items`` are ``count`` valid items: int32 size and body each. ``releases`` are the offsets of deferred messages
        that these ones repeat because they are due. After ``ttl_ns``, if not 0, they are not delivered any more.
        """
        extension = releasing(list(releases)) if releases else b""
        return self._append(MESSAGES, items, count, timestamp, extension + expiring(ttl_ns))

    def gather(self, items: bytes, count: int, timestamp: int) -> int:
        """Append messages as ``append``, but in one batch with others if possible.

        Their timestamp may become up to a millisecond older, because a batch has only one.
        """
        self._renew_lease(count)
        size = len(items)
        if self._gathered and (
            self._gathered_size + size > _GATHER_SIZE or not 0 <= timestamp - self._gathered_ns < _GATHER_NS
        ):
            self._end_gathering()
        first = self.state.end
        if not self._gathered:
            assert not self.is_deleted
            self._gathered_first = first
            self._gathered_ns = timestamp
            self._on_pending(self)
        self._gathered.append(items)
        self._gathered_count += count
        self._gathered_size += size
        self.pending_size += size
        self.state.end = first + count
        return first

    def _end_gathering(self) -> None:
        """Make a batch of the gathered messages."""
        if not self._gathered:
            return
        items = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
        batch = new_batch(MESSAGES, self._gathered_first, self._gathered_count, self._gathered_ns, items)
        self._gathered = []
        self._gathered_count = self._gathered_size = 0
        self._pending.append(batch)
        self.pending_size += batch.size - len(items)
        self.tail.add(batch)

    def append_deferred(
        self, items: bytes, count: int, timestamp: int, due_ns: int, releases: Sequence[int] = (), ttl_ns: int = 0
    ) -> int:
        """Append messages that no channel gets; they must be appended again when they are due.

        ``releases`` are the offsets of deferred messages that these ones replace.
        """
        extension = deferred(due_ns) + (releasing(list(releases)) if releases else b"")
        return self._append(DEFERRED_KIND, items, count, timestamp, extension + expiring(ttl_ns))

    def append_addressed(
        self,
        channel: int,
        items: bytes,
        count: int,
        timestamp: int,
        attempts: int = 0,
        due_ns: int = 0,
        ttl_ns: int = 0,
    ) -> int:
        """Append messages for one channel."""
        extension = addressed(channel, attempts, due_ns) + expiring(ttl_ns)
        return self._append(ADDRESSED_KIND, items, count, timestamp, extension)

    def append_checked(self, items: bytes, sums: bytes, count: int, timestamp: int, due_ns: int = 0) -> int:
        """Append messages as ``publish``, with their known checksums."""
        self._renew_lease(count)
        kind, extension = (DEFERRED_KIND, deferred(due_ns)) if due_ns else (MESSAGES, b"")
        batch = LogBatch(kind, self.state.end, count, timestamp, items, sums, extension)
        self._add(batch)
        self.tail.add(batch)
        return batch.first

    def append_letter(self, item: bytes, timestamp: int, origin: bytes) -> int:
        """Append a dead letter: a message for every channel, with the JSON that says where it comes from."""
        return self._append(MESSAGES, item, 1, timestamp, originating(origin))

    def _append(self, kind: int, items: bytes, count: int, timestamp: int, extension: bytes) -> int:
        self._renew_lease(count)
        batch = new_batch(kind, self.state.end, count, timestamp, items, extension)
        self._add(batch)
        self.tail.add(batch)
        return batch.first

    def forget_producers(self, max_count: int, before_ns: int) -> int:
        """Forget the producers above a number, and those that were silent since a time; return how many."""
        offsets = self.state.producers.forgettable(max_count, before_ns)
        if offsets:
            changes = Changes()
            changes.forget_producers(offsets)
            self.change(changes)
        return len(offsets)

    def skip_to(self, end: int) -> None:
        """Use no offset below ``end``. This must be durable before anything else of the log is written."""
        changes = Changes()
        changes.skip(end)
        changes.set_lease(end + self._lease_step)
        self._add_changes(changes)
        self._lease_count = self.given_count + len(self._pending)

    def change(self, changes: Changes) -> None:
        """Apply changes to the state, and write them with the next frame."""
        self._renew_lease(0)
        self._add_changes(changes)

    def _add_changes(self, changes: Changes) -> None:
        self._add(new_record(DELTA, self.state.serial + 1, changes.take()))

    def _renew_lease(self, count: int) -> None:
        end = self.state.end + count
        if end + self._lease_step // 2 <= self.state.lease:
            return
        changes = Changes()
        changes.set_lease(end + self._lease_step)
        self._add_changes(changes)
        self._lease_count = self.given_count + len(self._pending)

    def _add(self, batch: LogBatch) -> None:
        assert not self.is_deleted
        self._end_gathering()
        self.state.add(batch)
        self._pending.append(batch)
        self.pending_size += batch.size
        self._on_pending(self)

    def delete(self) -> None:
        """Replace everything pending by the end of the log. The caller removes the directory when that is durable."""
        self.is_deleted = True
        self._gathered = []
        self._gathered_count = self._gathered_size = 0
        self._pending = [new_record(DELETED, 0, b"")]
        self.pending_size = self._pending[0].size
        self._on_pending(self)

    # Writing, for the store

    @property
    def pending(self) -> list[LogBatch]:
        """The batches that wait for a write. Messages that are appended later are in other batches."""
        self._end_gathering()
        return self._pending[:]

    def is_lease_wanted(self) -> bool:
        """True if the next write must be synced, because it contains a new lease."""
        return self._lease_count > self.safe_count

    @property
    def is_safe(self) -> bool:
        """True if every batch given to a write is durable."""
        return self.safe_count >= self.given_count

    def is_frame_unsafe(self) -> bool:
        """True if a batch is only in a commit file and is not durable there."""
        return self.safe_count < self.given_count and self.writer.written_count < self.given_count

    def give(self, batches: Sequence[LogBatch]) -> None:
        """Note that a write of the first pending batches begins."""
        del self._pending[: len(batches)]
        self._held += batches
        self.given_count += len(batches)
        size = 0
        for batch in batches:
            size += batch.size
        self._given_size += size
        self.pending_size -= size

    def take_back(self, count: int) -> None:
        """Note that the write of the last ``count`` batches has failed; they are pending again."""
        if not count:
            return
        batches = [self._held.pop() for _ in range(count)]
        self.given_count -= count
        self._given_size -= sum([batch.size for batch in batches])
        if self.is_deleted:
            batches = [batch for batch in batches if batch.kind == DELETED]
        self._pending[:0] = reversed(batches)
        self.pending_size += sum([batch.size for batch in batches])
        self._on_pending(self)

    def note_written(self, batches: Sequence[LogBatch]) -> None:
        """Note that a write has succeeded."""
        self.written_count += len(batches)
        for batch in batches:
            if batch.end > self.written:
                self.written = batch.end

    def note_safe(self, count: int) -> None:
        """Note that the first ``count`` batches are durable."""
        if count > self.safe_count:
            self.safe_count = count
        if self.safe_count >= self.given_count:
            self.stable = self.written

    def unwritten(self, count: int) -> list[LogBatch]:
        """Return the held batches up to the number ``count`` that are not in a segment."""
        first, end = self.writer.written_count - self._held_from, count - self._held_from
        if end - first == 1:
            return [self._held[first]]  # usually the newest, which is found faster by its index
        return list(islice(self._held, first, end))

    def note_synced(self) -> None:
        """Drop the held batches that are durable in segments."""
        self.durable_end, self.durable_serial = self.writer.state.end, self.writer.state.serial
        self.written = max(self.written, self.durable_end)
        self.note_safe(self.writer.synced_count)
        while self._held_from < self.writer.synced_count:
            self._held.popleft()
            self._held_from += 1

    def is_segment_unsynced(self) -> bool:
        """True if batches that are in no commit file are not durable in a segment."""
        return self.writer.synced_count < self.direct_count

    def is_in_segments(self, count: int) -> bool:
        """True if the first ``count`` batches are durable in segments, or the log is gone for ever."""
        writer = self.writer
        if self.is_removed:
            return True
        return writer.synced_count >= count and not (writer.must_roll or writer.is_unsynced or writer.is_new)

    @property
    def is_forgettable(self) -> bool:
        """True if the first batch of the tail is durable in a segment."""
        return self.tail.first >= 0 and self.tail.first_end <= self.durable_end

    # Reading

    def batch_at(self, offset: int) -> LogBatch | None:
        """Return the batch with the written message at ``offset``, or the next one; None if it is not in memory."""
        batch = self.tail.find(offset)
        return batch if batch is not None and batch.end <= self.written else None

    def begin_read(self, offset: int, max_bytes: int) -> ReadJob:
        """Return a job that reads batches from ``offset`` on, which are not in memory, from the segments."""
        if 0 <= self.tail.first <= offset:
            return ReadJob([], offset, self.written, max_bytes)  # no message follows
        end = self.tail.first if self.tail.first >= 0 else self.written
        segments = self.writer.segments
        index = max(0, bisect_right([segment.first for segment in segments], offset) - 1)
        return ReadJob(segments[index : index + 2], offset, min(end, self.written), max_bytes)

    def end_read(self, job: ReadJob) -> int:
        """Note the messages that a job did not find, and return how many there are. Raises the OSError of the job."""
        if job.error is not None:
            raise job.error
        return self.lose(job.missing if job.gone_end <= self.first else [*job.missing, (job.gone_first, job.gone_end)])

    def lose(self, missing: Iterable[tuple[int, int]]) -> int:
        """Note that offsets are damaged or missing, and return how many of them were messages."""
        changes = Changes()
        lost_count = 0
        for first, end in missing:
            for start, stop in self.state.present_between(max(first, self.state.first), end):
                changes.lose(start, stop)
                lost_count += stop - start
        if changes:
            self.change(changes)
        return lost_count

    def forget_ranges(self, end: int) -> None:
        """Drop what the state knows about removed offsets below ``end``, from which on messages are still read."""
        self.state.forget_ranges(min(end, self.first))

    def time_of(self, offset: int) -> int | None:
        """Return about when the message at ``offset`` was published; None if no index of its segment is in memory."""
        batch = self.tail.find(offset)
        if batch is not None:
            return batch.timestamp
        segment = self.segment_of(offset)
        return segment.index.time_at(offset) if segment is not None and segment.index is not None else None

    def segment_of(self, offset: int) -> LogSegment | None:
        """Return the segment that contains an offset; the first one if the offset is before it."""
        segments = self.writer.segments
        index = max(0, bisect_right([segment.first for segment in segments], offset) - 1)
        return segments[index] if segments else None

    def begin_find(self, time_ns: int) -> FindJob:
        """Return a job that finds the first written message at or after a time in the segments."""
        return FindJob(self.writer.segments[:], time_ns, min(self.durable_end, self.written))

    def end_find(self, job: FindJob) -> int:
        """Return the offset of the first written message at or after the time of a job; -1 if there is none."""
        if job.error is not None:
            raise job.error
        if job.offset >= 0:
            return max(job.offset, self.first)
        offset = self.tail.first_at(job.time_ns, job.end)
        return offset if offset < self.written else -1


class FindJob:
    """Finds the first message at or after a time. ``run`` may be called in any thread."""

    def __init__(self, segments: Sequence[LogSegment], time_ns: int, end: int) -> None:
        self.offset = -1
        self.time_ns = time_ns
        self.end = end  # of the offsets that are searched
        self.error: OSError | None = None
        self._segments = segments

    def run(self) -> None:
        """Search the segments in their order; the index says which of them are too old."""
        try:
            for index, segment in enumerate(self._segments, 1):
                end = self._segments[index].first if index < len(self._segments) else self.end
                if segment.first < self.end:
                    self._search(segment, min(end, self.end))
                if self.offset >= 0:
                    return
        except OSError as error:
            self.error = error

    def _search(self, segment: LogSegment, end: int) -> None:
        try:
            index = segment.loaded_index()
            if index.max_time < self.time_ns:
                return
            reader = SegmentReader(segment)
        except FileNotFoundError:
            return  # its messages were finished, and it was removed
        position, _ = index.position_of_time(self.time_ns)
        with reader:
            for part in reader.parts(position):
                head = part.head
                if head is None or not head.has_offsets or head.timestamp < self.time_ns:
                    continue
                if head.first < end:
                    self.offset = head.first
                return


class ReadJob:
    """Reads batches of one segment. ``run`` may be called in any thread."""

    def __init__(self, segments: Sequence[LogSegment], offset: int, end: int, max_bytes: int) -> None:
        self.batches: list[LogBatch] = []
        self.missing: list[tuple[int, int]] = []  # offsets that should be there
        self.error: OSError | None = None
        # Offsets in a segment that does not exist. It was removed after its messages were finished, or it is missing.
        self.gone_first = self.gone_end = 0
        self._segment = segments[0] if segments else None
        self._end = min(end, segments[1].first) if len(segments) > 1 else end
        self._max_bytes = max_bytes
        # Where to read on. What is before the first segment was removed.
        self.next = min(max(offset, segments[0].first), self._end) if segments else offset

    def run(self) -> None:
        """Read until the limit is exceeded or the segment ends."""
        if self._segment is None or self.next >= self._end:
            self.next = max(self.next, self._end)
            return
        try:
            # One read of the file is enough, unless a batch is large. Each read waits for the event loop.
            with SegmentReader(self._segment, self._max_bytes + SPACING) as reader:
                self._read(reader, self._segment.loaded_index().position_of(self.next))
        except FileNotFoundError:
            self.gone_first, self.gone_end = self.next, self._end
            self.next = self._end
        except OSError as error:
            self.error = error

    def _read(self, reader: SegmentReader, position: int) -> None:
        size = 0
        for part in reader.parts(position):
            head = part.head
            if head is None or not head.has_offsets or head.first + head.item_count <= self.next:
                continue
            if head.first >= self._end:
                break
            tail = reader.tail(part)
            batch = read_batch(head, tail)
            for one in [batch] if batch is not None else salvage(head, tail):
                if one.end > self.next:
                    self._note_missing(one.first)
                    self.batches.append(one)
                    self.next = one.end
            size += head.size
            if size >= self._max_bytes:
                return
        self._note_missing(self._end)
        self.next = self._end

    def _note_missing(self, first: int) -> None:
        if first > self.next:
            self.missing.append((self.next, first))
