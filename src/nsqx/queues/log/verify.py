"""Verification of logs that no nsqd uses: every head and every checksum of segments and commit files.

Damage is a place in a file, the messages that are lost by it, or both. Bytes that a crash cut short were never
acknowledged, and are no damage.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from nsqx.queues.files import INDEX, read_file
from nsqx.queues.log.batch import DELTA, IDENTITY, SNAPSHOT, salvage
from nsqx.queues.log.commit_file import FRAMES_AT, NAME_PREFIX
from nsqx.queues.log.index import decode_index
from nsqx.queues.log.segment import LogSegment, SegmentPart, SegmentReader
from nsqx.queues.log.stored import OffsetRange, StoredLog, StoredLogs, join_ranges, without

if TYPE_CHECKING:
    from nsqx.queues.log.batch import BatchHead

_MAX_RANGES_SHOWN = 5
_RECORDS = {
    IDENTITY: "the identity of the log",
    SNAPSHOT: "a snapshot of the channels",
    DELTA: "a change of the channels",
}


class LogDamage(NamedTuple):
    """Damage of a file from byte ``position`` on. ``lost`` are offsets of messages; ``text`` says what is damaged.

    ``topic`` is empty for damage of a commit file, ``size`` is 0 if no bytes are damaged.
    """

    topic: str
    path: str
    position: int
    size: int
    text: str
    lost: list[OffsetRange]
    is_end_unknown: bool = False
    """True if more messages may have followed."""

    def loss_text(self) -> str:
        """Return which messages are lost."""
        count = sum(end - first for first, end in self.lost)
        if not count:
            return "an unknown number of messages may be lost" if self.is_end_unknown else "no message is lost"
        text = "1 message is lost, offset" if count == 1 else f"{count:,} messages are lost, offsets"
        return f"topic {self.topic}: {text} {ranges_text(self.lost)}"


def ranges_text(ranges: list[OffsetRange]) -> str:
    """Return the first ranges as text."""
    shown = [str(first) if end == first + 1 else f"{first} to {end - 1}" for first, end in ranges[:_MAX_RANGES_SHOWN]]
    more = f" and {len(ranges) - _MAX_RANGES_SHOWN} more ranges" if len(ranges) > _MAX_RANGES_SHOWN else ""
    return ", ".join(shown) + more


class SegmentCheck(NamedTuple):
    """One segment. ``bad`` are its damaged parts, with the offsets that they may have contained."""

    segment: LogSegment
    size: int
    batch_count: int
    change_count: int
    readable: list[OffsetRange]
    bad: list[tuple[SegmentPart, OffsetRange]]
    has_snapshot: bool
    last_end: int


def check_segments(log: StoredLog) -> list[SegmentCheck]:
    """Read all segments of a log completely. Raises OSError."""
    following: list[LogSegment | None] = [*log.segments[1:], None]
    return [
        _check_segment(segment, after.first if after is not None else None)
        for segment, after in zip(log.segments, following, strict=False)
    ]


def _check_segment(segment: LogSegment, end: int | None) -> SegmentCheck:
    """Read a segment. ``end`` is the first offset of the next segment, if there is one."""
    readable: list[OffsetRange] = []
    bad: list[tuple[SegmentPart, OffsetRange]] = []
    unplaced: list[SegmentPart] = []  # bytes without a head; they end at the offset of the next batch
    at = segment.first
    batch_count = change_count = 0
    has_snapshot = False
    with SegmentReader(segment) as reader:
        for part in reader.parts(0):
            head = part.head
            if head is not None and head.has_offsets:
                if end is not None and head.first >= end:
                    break  # the next segment has it
                bad += [(one, (at, max(at, head.first))) for one in unplaced]
                unplaced = []
                at = head.first + head.item_count
            batch = reader.batch(part)
            if batch is not None:
                batch_count += 1
                if head is not None and head.has_offsets:
                    readable.append((batch.first, batch.end))
                elif batch.kind != IDENTITY:
                    change_count += batch.kind != SNAPSHOT
                    has_snapshot = has_snapshot or batch.kind == SNAPSHOT
            elif head is None:
                unplaced.append(part)
            else:
                bad.append((part, _offsets(head) if head.has_offsets else (at, at)))
                readable += ((one.first, one.end) for one in salvage(head, reader.tail(part)))
        size = reader.size
    bad += [(one, (at, max(at, end) if end is not None else at)) for one in unplaced]
    return SegmentCheck(segment, size, batch_count, change_count, join_ranges(readable), bad, has_snapshot, at)


def _offsets(head: BatchHead) -> OffsetRange:
    return head.first, head.first + head.item_count


class LogCheck:
    """The verification of one log. Raises OSError."""

    def __init__(self, log: StoredLog) -> None:
        self.log = log
        self.segments = check_segments(log)
        self.torn = {(segment.path, part.start) for segment, part in log.loaded.torn}
        self.damages = [*self._identity_damage(), *self._damages()]

    @property
    def damaged_indexes(self) -> list[LogSegment]:
        """The segments whose index is damaged. It is not needed, because it can be built again."""
        return [one.segment for one in self.segments if _is_index_damaged(one.segment)]

    def _identity_damage(self) -> list[LogDamage]:
        if not self.log.loaded.writer.is_new or not os.path.isdir(self.log.directory):
            return []
        path = os.path.join(self.log.directory, "id")
        return [LogDamage(self.log.topic, path, 0, 0, "the identity of the log is damaged or missing", [])]

    def _damages(self) -> list[LogDamage]:
        topic = self.log.topic
        held = [(batch.first, batch.end) for batch in self.log.loaded.held if batch.has_offsets]
        readable = join_ranges([*held, *(run for one in self.segments for run in one.readable)])
        missing = without(self._expected(), readable)
        found = []
        for check in self.segments:
            for part, (first, end) in check.bad:
                if (check.segment.path, part.start) in self.torn:
                    continue
                lost = _common(missing, first, end)
                missing = without(missing, lost)
                is_end_unknown = part.head is None and check is self.segments[-1] and first == end
                size = part.end - part.start
                found.append(LogDamage(topic, check.segment.path, part.start, size, _text(part), lost, is_end_unknown))
        if missing:
            text = "these messages are in no segment"
            found.append(LogDamage(topic, self.log.directory, 0, 0, text, missing))
        return found

    def _expected(self) -> list[OffsetRange]:
        """Return the offsets of all messages that should be readable.

        The state knows those before the newest intact snapshot. After it, the state was built from the batches that
        are readable, so each damaged part counts with all the offsets that it may have contained.
        """
        state = self.log.state
        known_end = max((one.segment.first for one in self.segments if one.has_snapshot), default=0)
        start = min(state.floor, self.log.first)
        expected = [*state.present_between(start, known_end), *((at, at + 1) for at in state.deferred)]
        for check in self.segments:
            if check.segment.first >= known_end:
                expected += check.readable
                expected += (run for part, run in check.bad if (check.segment.path, part.start) not in self.torn)
        return join_ranges(expected)


def _is_index_damaged(segment: LogSegment) -> bool:
    try:
        return decode_index(read_file(INDEX, segment.index_path), segment.seed) is None
    except FileNotFoundError:
        return False


def _text(part: SegmentPart) -> str:
    if part.head is None:
        return "these bytes are not a batch"
    if part.head.has_offsets:
        return "messages do not match their checksums" if part.is_complete else "a batch of messages is incomplete"
    return f"{_RECORDS.get(part.head.kind, 'a record')} is damaged"


def _common(ranges: list[OffsetRange], first: int, end: int) -> list[OffsetRange]:
    """Return the parts of ``ranges`` between two offsets."""
    return [(max(first, a), min(end, b)) for a, b in ranges if max(first, a) < min(end, b)]


def commit_damages(stored: StoredLogs) -> list[LogDamage]:
    """Return the damage of the commit files, and the messages that are lost by it."""
    found = []
    for path in stored.recovery.damaged_files:
        text = "both copies of the header are damaged; the intact frames are used"
        found.append(LogDamage("", path, 0, FRAMES_AT, text, [], True))
    if stored.recovery.missing_file:
        path = os.path.join(stored.data_path, NAME_PREFIX + "*")
        found.append(LogDamage("", path, 0, 0, stored.recovery.missing_file, [], True))
    for frames in stored.recovery.damaged_frames:
        count = frames.end - frames.first
        text = f"{count} {'frame is' if count == 1 else 'frames are'} damaged or missing"
        found.append(LogDamage("", frames.path, frames.position, 0, text, [], True))
    if found:
        for log in stored.logs:
            lost = _gaps(log)
            if lost:
                text = "these messages were in damaged frames of a commit file"
                found.append(LogDamage(log.topic, log.directory, 0, 0, text, lost))
    return found


def _gaps(log: StoredLog) -> list[OffsetRange]:
    """Return the offsets that are missing between batches that are in commit files only."""
    gaps = []
    at = log.loaded.writer.state.end
    for batch in log.loaded.held:
        if batch.has_offsets:
            if batch.first > at:
                gaps.append((at, batch.first))
            at = max(at, batch.end)
    return gaps
