"""The state of a topic: its channels, and what is true of the topic itself.

The state is never written as a file. It is the result of applying, in their order, the batches of the log: messages
that are not for every channel, and changes. A ``Changes`` collects changes and encodes them; ``LogState.apply``
decodes and applies them. A snapshot is the list of changes that leads from an empty state to this one.

      change   u8 code, size, values; sizes and values are numbers of variable size (see ``varints``)

A change has a serial. Applying a change or a batch a second time does nothing, so the same batch may be found in a
commit file and in a segment.

A channel has finished every offset below ``next`` except its ``holes``. Deliveries are not recorded. An offset below
the highest finished one that is not finished is a hole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from nsqx.queues.log.batch import (
    ADDRESSED,
    DEFERRED,
    DELTA,
    LogBatch,
    channel_of,
    due_ns_of,
    payload_of,
    releases_of,
)
from nsqx.queues.log.ledger import LedgerEntry, LogLedger
from nsqx.queues.log.producers import LastPublish, LogProducers
from nsqx.queues.log.varints import NumberReader, append_bytes, append_number

# Codes of changes.
(
    _CHANNEL_CREATED, _CHANNEL_DELETED, _FINISHED, _REQUEUED, _MOVED, _CHANNEL_PAUSED, _TOPIC_PAUSED, _LEASE,
    _SETTING, _UNCLAIMED, _DUE_REMOVED, _LOST, _RANGE, _DEFERRED, _NEXT_NUMBER, _END, _SKIPPED, _SEGMENTS,
) = range(1, 19)  # fmt: skip
_TRIMMED = 21
_PRODUCER, _LEDGER, _PRODUCERS_FORGOTTEN, _LEDGER_FORGOTTEN = 30, 31, 32, 33
# In place of the number of a channel: the range has no messages for any channel.
NO_CHANNEL = 0
# In place of the number of a channel: one that gets only messages for every channel.
EVERY_CHANNEL = -1
_FIRST_NUMBER = 1


class Hole(NamedTuple):
    """An unfinished message below ``next`` of a channel."""

    attempts: int = 0
    due_ns: int = 0


class Range(NamedTuple):
    """Offsets that are not messages for every channel: those of one channel, or no messages for any."""

    first: int
    end: int
    channel: int


class Changes:
    """Changes of the state of a topic, encoded in the order of the calls."""

    def __init__(self) -> None:
        self._out = bytearray()

    def __bool__(self) -> bool:
        return bool(self._out)

    def take(self) -> bytes:
        """Remove and return the changes."""
        taken, self._out = bytes(self._out), bytearray()
        return taken

    def _add(self, code: int, *values: int, tail: bytes | bytearray = b"") -> None:
        body = bytearray()
        for value in values:
            append_number(body, value)
        self._out.append(code)
        append_bytes(self._out, body + tail)

    def create_channel(self, number: int, name: str, next_offset: int) -> None:
        """Create a channel that has finished everything below ``next_offset``."""
        self._add(_CHANNEL_CREATED, number, next_offset, tail=name.encode())

    def delete_channel(self, number: int) -> None:
        """Delete a channel."""
        self._add(_CHANNEL_DELETED, number)

    def finish(self, number: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Finish the offsets from ``first`` to ``end`` of each of the ranges, which are in order."""
        body = bytearray()
        at = 0
        for first, end in ranges:
            append_number(body, first - at)
            append_number(body, end - first)
            at = end
        self._add(_FINISHED, number, tail=body)

    def requeue(self, number: int, holes: Iterable[tuple[int, Hole]]) -> None:
        """Make the given offsets holes, or change the attempts and due times of holes."""
        body = bytearray()
        for offset, hole in holes:
            append_number(body, offset)
            append_number(body, hole.attempts)
            append_number(body, hole.due_ns)
        self._add(_REQUEUED, number, tail=body)

    def move(self, number: int, next_offset: int) -> None:
        """Finish everything below ``next_offset`` and nothing else."""
        self._add(_MOVED, number, next_offset)

    def pause_channel(self, number: int, is_paused: bool) -> None:
        """Pause or unpause a channel."""
        self._add(_CHANNEL_PAUSED, number, is_paused)

    def pause_topic(self, is_paused: bool, offset: int) -> None:
        """Pause the topic at an offset, or unpause it."""
        self._add(_TOPIC_PAUSED, is_paused, offset)

    def set_lease(self, end: int) -> None:
        """Allow the use of offsets below ``end``."""
        self._add(_LEASE, end)

    def set_setting(self, name: str, value: str) -> None:
        """Change a setting of the topic; an empty value removes it."""
        body = bytearray()
        append_bytes(body, name.encode())
        append_bytes(body, value.encode())
        self._add(_SETTING, tail=body)

    def set_unclaimed(self, offset: int) -> None:
        """Note the first offset that no channel had yet."""
        self._add(_UNCLAIMED, offset)

    def remove_deferred(self, offsets: Iterable[int]) -> None:
        """Remove deferred messages without delivering them."""
        body = bytearray()
        for offset in offsets:
            append_number(body, offset)
        self._add(_DUE_REMOVED, tail=body)

    def lose(self, first: int, end: int) -> None:
        """Note that the messages from ``first`` to ``end`` are damaged or missing."""
        self._add(_LOST, first, end)

    def trim(self, first: int) -> None:
        """Drop every message below ``first``, finished or not, for all channels."""
        self._add(_TRIMMED, first)

    def skip(self, end: int) -> None:
        """Use no offsets below ``end`` that are not in use."""
        self._add(_SKIPPED, end)

    def forget_producers(self, offsets: Iterable[int]) -> None:
        """Forget the producers whose last publishes are at the given offsets."""
        body = bytearray()
        for offset in offsets:
            append_number(body, offset)
        self._add(_PRODUCERS_FORGOTTEN, tail=body)

    def commit_batch(self, query: str, entry: LedgerEntry) -> None:
        """Note the last committed batch of a query."""
        body = bytearray()
        append_bytes(body, query.encode())
        for address in entry.nodes:
            append_bytes(body, address.encode())
        self._add(_LEDGER, entry.batch, entry.place, entry.time_ns, tail=body)

    def forget_queries(self, queries: Iterable[str]) -> None:
        """Forget the last committed batches of queries."""
        body = bytearray()
        for query in queries:
            append_bytes(body, query.encode())
        self._add(_LEDGER_FORGOTTEN, tail=body)

    def _set_producers(self, producers: LogProducers) -> None:
        for name, last in producers.items():
            self._add(_PRODUCER, last.seq, last.first, last.message_count, last.timestamp, tail=name.encode())

    def _set_ranges(self, ranges: Iterable[Range]) -> None:
        for first, end, channel in ranges:
            self._add(_RANGE, first, end, channel)

    def _set_segments(self, firsts: Iterable[int]) -> None:
        body = bytearray()
        at = 0
        for first in firsts:
            append_number(body, first - at)
            at = first
        self._add(_SEGMENTS, tail=body)

    def _set_deferred(self, deferred: dict[int, int]) -> None:
        for offset, due_ns in deferred.items():
            self._add(_DEFERRED, offset, due_ns)


class ChannelState:
    """The position of a channel."""

    __slots__ = ("holes", "is_paused", "name", "next", "number")

    def __init__(self, number: int, name: str, next_offset: int) -> None:
        self.number = number
        self.name = name
        self.next = next_offset
        self.holes: dict[int, Hole] = {}
        self.is_paused = False

    @property
    def floor(self) -> int:
        """The lowest unfinished offset."""
        return min(self.holes, default=self.next)


class LogState:
    """The state after some batches of a log."""

    def __init__(self, lease: int) -> None:
        self.serial = 0
        self.first = 0  # messages below it were dropped
        self.end = 0  # the offset after the last message
        self.lease = lease  # offsets below it may be in use
        self.channels: dict[int, ChannelState] = {}
        self.next_number = _FIRST_NUMBER
        self.settings: dict[str, str] = {}
        self.unclaimed = 0
        self.is_paused = False
        self.paused_at = 0
        self.deferred: dict[int, int] = {}  # due times by offset
        self.producers = LogProducers()
        self.ledger = LogLedger()
        self.ranges: list[Range] = []  # in order; adjacent ranges of the same kind are one
        self.segments: list[int] = []  # first offsets of the segments before the snapshot that was loaded

    # Applying

    def add(self, batch: LogBatch) -> bool:
        """Apply a batch; False if it was applied before."""
        if not batch.has_offsets:
            return self._add_changes(batch)
        if batch.first < self.end:
            return False
        if batch.first > self.end:
            self._add_range(Range(self.end, batch.first, NO_CHANNEL))
        self.end = batch.end
        if batch.kind == ADDRESSED:
            self._add_range(Range(batch.first, batch.end, channel_of(batch)[0]))
        elif batch.kind == DEFERRED:
            self._add_range(Range(batch.first, batch.end, NO_CHANNEL))
            self.deferred.update(dict.fromkeys(range(batch.first, batch.end), due_ns_of(batch)))
        if batch.extension:
            for offset in releases_of(batch):
                self.deferred.pop(offset, None)
            self.producers.add(batch)
        return True

    def _add_changes(self, batch: LogBatch) -> bool:
        if batch.kind != DELTA or batch.first <= self.serial:
            return False
        self.serial = batch.first
        self.apply(payload_of(batch))
        return True

    def load(self, batch: LogBatch) -> None:
        """Replace an empty state by that of a snapshot."""
        self.serial = batch.first
        self.apply(payload_of(batch))

    def skip_to(self, end: int) -> None:
        """Note that no offset below ``end`` will be used that is not in use."""
        if end > self.end:
            self._add_range(Range(self.end, end, NO_CHANNEL))
            self.end = end

    def apply(self, payload: bytes) -> None:
        """Apply encoded changes."""
        reader = NumberReader(payload)
        while not reader.is_at_end:
            code = reader.number()
            self._apply_change(code, NumberReader(reader.data()))

    def _apply_change(self, code: int, values: NumberReader) -> None:
        if code in _OF_CHANNELS:
            channel = self.channels.get(values.number())
            if channel is not None:
                self._change_channel(code, channel, values)
        elif code == _CHANNEL_CREATED:
            number, next_offset = values.number(), values.number()
            name = values.rest().decode()
            self.channels[number] = ChannelState(number, name, next_offset)
            self.next_number = max(self.next_number, number + 1)
        elif code == _TOPIC_PAUSED:
            self.is_paused, self.paused_at = bool(values.number()), values.number()
        elif code == _LEASE:
            self.lease = max(self.lease, values.number())
        elif code == _SETTING:
            name, value = values.data().decode(), values.data().decode()
            self.settings[name] = value
            if not value:
                del self.settings[name]
        elif code == _UNCLAIMED:
            self.unclaimed = values.number()
        elif code == _DUE_REMOVED:
            while not values.is_at_end:
                self.deferred.pop(values.number(), None)
        elif code == _LOST:
            self._lose(values.number(), values.number())
        elif code == _TRIMMED:
            self._trim(values.number())
        elif code == _RANGE:
            self._add_range(Range(values.number(), values.number(), values.number()))
        elif code == _DEFERRED:
            offset, due_ns = values.number(), values.number()
            self.deferred[offset] = due_ns
        elif code == _PRODUCER:
            seq, first, count, timestamp = values.number(), values.number(), values.number(), values.number()
            self.producers.set(values.rest().decode(), LastPublish(seq, first, count, timestamp))
        elif code == _PRODUCERS_FORGOTTEN:
            offsets = set()
            while not values.is_at_end:
                offsets.add(values.number())
            self.producers.forget(offsets)
        elif code == _LEDGER:
            batch, place, time_ns = values.number(), values.number(), values.number()
            query, *nodes = _texts(values)
            self.ledger.set(query, LedgerEntry(batch, tuple(nodes), place, time_ns))
        elif code == _LEDGER_FORGOTTEN:
            self.ledger.forget(_texts(values))
        elif code == _NEXT_NUMBER:
            self.next_number = values.number()
        elif code == _SKIPPED:
            self.skip_to(values.number())
        elif code == _END:
            self.end = values.number()
        elif code == _SEGMENTS:
            self.segments = []
            while not values.is_at_end:
                self.segments.append(values.number() + (self.segments[-1] if self.segments else 0))

    def _change_channel(self, code: int, channel: ChannelState, values: NumberReader) -> None:
        if code == _CHANNEL_DELETED:
            del self.channels[channel.number]
        elif code == _CHANNEL_PAUSED:
            channel.is_paused = bool(values.number())
        elif code == _MOVED:
            channel.next = values.number()
            channel.holes.clear()
        elif code == _FINISHED:
            at = 0
            while not values.is_at_end:
                first = at + values.number()
                at = first + values.number()
                self._finish(channel, first, at)
        elif code == _REQUEUED:
            holes = []
            while not values.is_at_end:
                holes.append((values.number(), Hole(values.number(), values.number())))
            self._requeue(channel, holes)

    def _finish(self, channel: ChannelState, first: int, end: int) -> None:
        _remove_between(channel.holes, first, min(end, channel.next))
        if end > channel.next:
            if first > channel.next:
                self._advance(channel, first)
            channel.next = end

    def _requeue(self, channel: ChannelState, holes: Iterable[tuple[int, Hole]]) -> None:
        for offset, hole in holes:
            if offset >= channel.next:
                self._advance(channel, offset)
                channel.next = offset + 1
            if offset >= self.first and self._is_message(channel.number, offset):
                channel.holes[offset] = hole

    def _advance(self, channel: ChannelState, end: int) -> None:
        """Raise ``next``; the messages passed become holes. Damage may have left a change without its messages."""
        for first, last in self.messages_between(channel.number, channel.next, min(end, self.end)):
            channel.holes.update(dict.fromkeys(range(first, last), Hole()))
        channel.next = end

    def _lose(self, first: int, end: int) -> None:
        self._add_range(Range(first, end, NO_CHANNEL))
        _remove_between(self.deferred, first, end)
        for channel in self.channels.values():
            _remove_between(channel.holes, first, end)

    def _trim(self, first: int) -> None:
        self.first = max(self.first, first)
        self.unclaimed = max(self.unclaimed, first)
        if self.is_paused:
            self.paused_at = max(self.paused_at, first)
        _remove_below(self.deferred, first)
        for channel in self.channels.values():
            channel.next = max(channel.next, first)
            _remove_below(channel.holes, first)

    # Ranges

    def _add_range(self, added: Range) -> None:
        """Add a range, which replaces the parts of other ranges that it overlaps."""
        if not self.ranges or self.ranges[-1].end <= added.first:
            self._append_range(added)
            return
        pieces = [added]
        for first, end, channel in self.ranges:
            pieces.append(Range(first, min(end, added.first), channel))
            pieces.append(Range(max(first, added.end), end, channel))
        self.ranges = []
        for piece in sorted(pieces):
            if piece.first < piece.end:
                self._append_range(piece)

    def _append_range(self, added: Range) -> None:
        last = self.ranges[-1] if self.ranges else None
        if last is not None and last.end == added.first and last.channel == added.channel:
            self.ranges[-1] = Range(last.first, added.end, added.channel)
        else:
            self.ranges.append(added)

    def messages_between(self, number: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield first and end of each run of offsets that are messages for a channel."""
        return self._between(first, end, lambda channel: channel == number)

    def count_between(self, number: int, first: int, end: int) -> int:
        """Return how many of the offsets are messages for a channel."""
        if not self.ranges or self.ranges[-1].end <= first:
            return max(0, end - first)
        return sum(last - start for start, last in self.messages_between(number, first, end))

    def _is_message(self, number: int, offset: int) -> bool:
        """True if an offset is a message for a channel."""
        if offset >= self.end:
            return False
        index = bisect_left(self.ranges, (offset + 1,)) - 1
        return index < 0 or offset >= self.ranges[index].end or self.ranges[index].channel == number

    def next_run(self, number: int, first: int, end: int) -> tuple[int, int]:
        """Return first and end of the first run of ``messages_between``; both are ``end`` if there is none."""
        if not self.ranges or self.ranges[-1].end <= first:
            return first, end  # usually
        return next(self.messages_between(number, first, end), (end, end))

    def present_between(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield first and end of each run of offsets that are messages for some channel."""
        return self._between(first, end, lambda channel: channel != NO_CHANNEL)

    def last_end(self, first: int, end: int) -> int:
        """Return the offset after the last message for some channel between two offsets; ``first`` if there is none."""
        index = bisect_left(self.ranges, (end,)) - 1
        if index >= 0 and self.ranges[index].end >= end and self.ranges[index].channel == NO_CHANNEL:
            end = self.ranges[index].first
        return max(first, end)

    def _between(self, first: int, end: int, is_included: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
        ranges = self.ranges
        index = max(0, bisect_left(ranges, (first,)) - 1)
        while first < end and index < len(ranges) and ranges[index].first < end:
            one = ranges[index]
            index += 1
            if one.end <= first or is_included(one.channel):
                continue
            if one.first > first:
                yield first, one.first
            first = one.end
        if first < end:
            yield first, end

    def ranges_from(self, offset: int) -> Iterator[Range]:
        """Yield the parts at or after ``offset`` of the ranges that are not messages for every channel."""
        for index in range(max(0, bisect_left(self.ranges, (offset,)) - 1), len(self.ranges)):
            first, end, channel = self.ranges[index]
            if end > offset:
                yield Range(max(first, offset), end, channel)

    def depth(self, number: int, end: int) -> int:
        """Return how many messages below ``end`` a channel has not finished."""
        channel = self.channels[number]
        return len(channel.holes) + self.count_between(number, channel.next, end)

    @property
    def floor(self) -> int:
        """The lowest offset of an unfinished, unclaimed or deferred message, or the end."""
        positions = [(channel.number, channel.next) for channel in self.channels.values()]
        needed = [*self.deferred, *(offset for channel in self.channels.values() for offset in channel.holes)]
        for number, offset in positions or [(EVERY_CHANNEL, self.unclaimed)]:
            needed += (first for first, _ in islice(self.messages_between(number, offset, self.end), 1))
        return min(needed, default=self.end)

    def is_finished(self, end: int) -> bool:
        """True if the floor is not below ``end``. Usually this is known without a look at all unfinished messages."""
        if any(offset < end for offset in self.deferred):
            return False
        if not self.channels:
            return not any(self.messages_between(EVERY_CHANNEL, self.unclaimed, end))
        return all(self._has_finished(channel, end) for channel in self.channels.values())

    def _has_finished(self, channel: ChannelState, end: int) -> bool:
        if any(self.messages_between(channel.number, channel.next, end)):
            return False
        return not any(offset < end for offset in channel.holes)

    def forget_ranges(self, end: int) -> None:
        """Note that there are no messages below ``end``, or below the position of a channel or of the topic.

        Changes that are applied later may move a channel back and then forth over these offsets.
        """
        positions = [channel.next for channel in self.channels.values()] or [self.unclaimed]
        if self.is_paused:
            positions.append(self.paused_at)
        end = min(end, *positions)
        if self.ranges and self.ranges[0].end <= end and self.ranges[0] != (0, end, NO_CHANNEL):
            later = [Range(max(one.first, end), one.end, one.channel) for one in self.ranges if one.end > end]
            self.ranges = [Range(0, end, NO_CHANNEL)]
            for one in later:
                self._append_range(one)

    # Snapshots

    def copy(self) -> LogState:
        """Return an independent state that is equal to this one."""
        copy = LogState(self.lease)
        copy.apply(self.snapshot())
        copy.serial = self.serial
        return copy

    def snapshot(self, segments: Iterable[int] = ()) -> bytes:
        """Return the changes that lead from an empty state to this one.

        ``segments`` are the first offsets of the segments before the one that begins with the snapshot.
        """
        changes = Changes()
        changes._set_segments(segments)
        changes._add(_END, self.end)
        if self.first:
            changes.trim(self.first)
        changes._add(_NEXT_NUMBER, self.next_number)
        changes.set_lease(self.lease)
        changes.set_unclaimed(self.unclaimed)
        changes.pause_topic(self.is_paused, self.paused_at)
        for name, value in self.settings.items():
            changes.set_setting(name, value)
        changes._set_ranges(self.ranges)
        changes._set_deferred(self.deferred)
        changes._set_producers(self.producers)
        for query, entry in self.ledger.items():
            changes.commit_batch(query, entry)
        for channel in self.channels.values():
            changes.create_channel(channel.number, channel.name, channel.next)
            if channel.is_paused:
                changes.pause_channel(channel.number, True)
            if channel.holes:
                changes.requeue(channel.number, channel.holes.items())
        return changes.take()


def _texts(values: NumberReader) -> list[str]:
    texts = []
    while not values.is_at_end:
        texts.append(values.data().decode())
    return texts


def skipped_end(batch: LogBatch) -> int:
    """Return the offset below which a change says that no other is used; 0 if it says nothing of the kind."""
    reader = NumberReader(payload_of(batch))
    end = 0
    while not reader.is_at_end:
        code = reader.number()
        values = NumberReader(reader.data())
        if code == _SKIPPED:
            end = max(end, values.number())
    return end


def _remove_between(by_offset: dict[int, Any], first: int, end: int) -> None:
    if not by_offset:
        return
    if end - first <= len(by_offset):
        for offset in range(first, end):
            by_offset.pop(offset, None)
    else:
        for offset in [offset for offset in by_offset if first <= offset < end]:
            del by_offset[offset]


def _remove_below(by_offset: dict[int, Any], end: int) -> None:
    for offset in [offset for offset in by_offset if offset < end]:
        del by_offset[offset]


_OF_CHANNELS = {_CHANNEL_DELETED, _FINISHED, _REQUEUED, _MOVED, _CHANNEL_PAUSED}
