"""The flow of a log topic: published messages are appended to the log, and the channels read them there.

``released`` is the offset up to which channels may read: what is written, or less while messages must not flow (the
topic is paused, has no channel, or has not started). The messages from ``_limit`` on are then the depth of the topic.

A deferred message is in the log twice: when it is published, for no channel, and when it is due, for every channel.
Until the second one is released, the message counts as deferred.

Messages are counted besides their offsets, because not every offset is a message for the channels. The number of a
message is how many messages the flow has appended before it. Differences of numbers are depths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from nsqx.errors import DiskQueueError
from nsqx.nsqd.log_cursor import LogCursor
from nsqx.nsqd.log_reads import LogReads
from nsqx.nsqd.log_retention import NO_LIMIT, LogRetention
from nsqx.nsqd.log_stats import LOG_FULL, NO_SPACE, WRITE_FAILED
from nsqx.nsqd.publish_options import NO_OFFSET, PublishOptions, PublishOutcome
from nsqx.nsqd.topic_flow import TopicFlow
from nsqx.nsqd.topic_settings import AUTO, BEGINNING, FSYNC, LOG, WRITE
from nsqx.queues.log.batch import PRODUCER, TTL, encode_ttl
from nsqx.queues.log.producers import ProducerTag
from nsqx.queues.log.reader import FOUND, UNREAD, LogReader
from nsqx.queues.log.segment_times import SegmentIndexJob
from nsqx.queues.log.state import EVERY_CHANNEL, Changes
from nsqx.units import NS_PER_MS
from nsqx.wire.log_place import LogPlace

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.channel_store import ChannelStore
    from nsqx.nsqd.clock import Timer
    from nsqx.nsqd.log_copies import CopiedMessage
    from nsqx.nsqd.log_stats import LogStats
    from nsqx.nsqd.topic import Topic
    from nsqx.nsqd.topic_settings import TopicSettings
    from nsqx.queues.log.log import ReadJob, TopicLog

# How many due messages are appended in one turn of the loop.
_DUE_PER_TURN = 2000
# The delay before a due message is tried again that cannot be read or appended now.
_RETRY_NS = 100 * NS_PER_MS


class _DueMessage(NamedTuple):
    """A deferred message that was appended again and is not released."""

    offset: int
    is_counted: bool  # the channels have counted it as published


class LogFlow(TopicFlow):
    """The log of a topic, the cursors of its channels, and the deferred messages that are not due."""

    __slots__ = (
        "_broker",
        "_clock",
        "_cursors",
        "_dropped_count",
        "_due",
        "_due_reader",
        "_due_timer",
        "_due_timer_ns",
        "_duplicate_count",
        "_end_number",
        "_forgotten_count",
        "_held_deferred",
        "_held_from",
        "_is_flowing",
        "_is_loading_index",
        "_is_reading",
        "_limit",
        "_limit_number",
        "_log",
        "_logs",
        "_refused",
        "_topic",
        "_unreleased_due",
        "is_synced",
        "reads",
        "released",
        "released_number",
        "retention",
        "room",
    )

    def __init__(self, topic: Topic, broker: Broker, log: TopicLog) -> None:
        """Continue ``log``."""
        # A publish is acknowledged when it is durable, else when it is written.
        self.is_synced = topic.settings.durability == FSYNC
        self._topic = topic
        self._broker = broker
        self._clock = broker.clock
        self._logs = broker.logs
        self._log = log
        self._cursors: list[LogCursor] = []
        self._is_flowing = False
        state = log.state
        # Where messages begin that no channel may have. Valid while they must not flow.
        self._limit = state.end
        if not state.channels:
            self._limit = state.unclaimed
        elif state.is_paused:
            self._limit = state.paused_at
        self.released = min(log.written, self._limit)
        self.released_number = 0
        self._limit_number = self._count(self.released, self._limit)
        self._end_number = self._limit_number + self._count(self._limit, state.end)
        # Deferred messages by due time, on the monotonic clock; some may have been discarded.
        self._due = [(self._when_due(due_ns), offset) for offset, due_ns in state.deferred.items()]
        heapify(self._due)
        # Deferred messages from this offset on count for the topic while messages must not flow.
        self._held_from = self._limit if state.channels else 0
        self._held_deferred = sum(offset >= self._held_from for offset in state.deferred)
        self._unreleased_due: deque[_DueMessage] = deque()
        self.reads = LogReads(log, broker.logs, self.end_read)
        self._due_reader = LogReader(log, broker.logs.blocks)
        self._due_timer: Timer | None = None
        self._due_timer_ns = 0
        self._is_reading = False
        self._duplicate_count = 0
        self._forgotten_count = 0
        self._is_loading_index = False
        self._refused = {NO_SPACE: 0, WRITE_FAILED: 0, LOG_FULL: 0}
        self._dropped_count = 0  # messages that no channel had
        self.room = NO_LIMIT  # how many bytes can be published before the limits of the log are checked
        self.retention = LogRetention(self, topic, log, broker)
        self._logs.add(log, self)
        self._arm()

    @property
    def log(self) -> TopicLog:
        """The log of the topic."""
        return self._log

    @property
    def depth(self) -> int:
        """Messages that have not reached the channels."""
        return 0 if self._is_flowing else self._end_number - self._limit_number + self._held_deferred

    @property
    def backend_depth(self) -> int:
        """The same: all messages are on disk."""
        return self.depth

    def oldest_time_ns(self) -> int:
        """Return when the oldest message was published that has not reached the channels; 0 if none, -1 if unknown."""
        return self.time_of(self._limit) or -1 if self.depth else 0

    def deferred_count(self, start: int) -> int:
        """Return the number of deferred messages that count for a channel with the position ``start``."""
        end = self._log.end if self._is_flowing else self._limit
        due_count = sum(start <= offset < end for offset, _ in self._unreleased_due)
        return len(self._log.state.deferred) - self._held_deferred + due_count

    def deferred_of_channels(self) -> list[int]:
        """Return the offsets of the deferred messages that count for the channels, and not for the topic."""
        if not self._held_deferred:
            return list(self._log.state.deferred)
        return [offset for offset in self._log.state.deferred if not self._is_held(offset)]

    def log_stats(self) -> LogStats:
        """Return the numbers of the log."""
        log = self._log
        return {
            "store": LOG,
            "durability": FSYNC if self.is_synced else WRITE,
            "id": f"{log.identity.log_id:016x}",
            "first": log.first,
            "stable": log.stable,
            "end": log.end,
            "bytes": log.size,
            "segments": len(log.writer.segments),
            "deferred_count": len(log.state.deferred),
            "refused": dict(self._refused),
            "producers": len(log.state.producers),
            "producers_forgotten": self._forgotten_count,
            "duplicates": self._duplicate_count,
            "kept_bytes": self.retention.kept_bytes,
            "dropped": self._dropped_count + sum([cursor.dropped_count for cursor in self._cursors]),
            "expired": sum([cursor.expired_count for cursor in self._cursors]),
        }

    def log_place(self) -> LogPlace:
        """Return what clients must know of the log."""
        identity = self._log.identity
        return LogPlace(f"{identity.log_id:016x}", identity.first_id)

    def note_settings(self) -> None:
        """Use the changed settings of the topic."""
        self.is_synced = self._topic.settings.durability == FSYNC
        self.retention.note_settings()
        for cursor in self._cursors:
            cursor.note_settings(self._topic.settings)

    @property
    def settings(self) -> TopicSettings:
        """The settings of the topic."""
        return self._topic.settings

    def _count(self, first: int, end: int) -> int:
        """Return how many of the offsets from ``first`` to ``end`` are messages for every channel."""
        return self.count_for(EVERY_CHANNEL, first, end)

    def count_for(self, channel_number: int, first: int, end: int) -> int:
        """Return how many of the offsets from ``first`` to ``end`` are messages for a channel."""
        return self._log.state.count_between(channel_number, first, end)

    # Publishing

    def publish(self, items: bytes, count: int) -> None:
        """Append ``count`` messages to the log; raises DiskQueueError if it must not grow now."""
        now_ns = self._clock.wall_ns()
        self._logs.refuse_if_full(now_ns, self)
        if self.room < len(items):
            self._make_room(len(items))
        self.room -= len(items)
        self._log.gather(items, count, now_ns)
        self._end_number += count
        self._logs.write_later(is_synced=self.is_synced)

    def publish_deferred(self, body: bytes, defer_ns: int) -> None:
        """Append a message that every channel gets after ``defer_ns``; raises the errors of ``publish``."""
        self.publish_with(len(body).to_bytes(4, "big") + body, 1, PublishOptions(defer_ns=defer_ns))

    def publish_with(self, items: bytes, count: int, options: PublishOptions) -> PublishOutcome:
        """Append messages with options, or find that they are stored already; raises the errors of ``publish``."""
        now_ns = self._clock.wall_ns()
        is_synced = self.is_synced or options.is_synced
        duplicate = self._find_duplicate(options, now_ns, is_synced)
        if duplicate is not None:
            return duplicate
        self._logs.refuse_if_full(now_ns, self)
        if self.room < len(items):
            self._make_room(len(items))
        self.room -= len(items)
        due_ns = now_ns + options.defer_ns if options.defer_ns > 0 else 0
        first = self._log.publish(items, count, now_ns, self._tags(options, count), due_ns)
        if due_ns:
            self._add_deferred(first, count, due_ns)
        else:
            self._end_number += count
        self._forget_producers(now_ns)
        self._logs.write_later(is_synced=is_synced)
        return PublishOutcome(first, count)

    def _tags(self, options: PublishOptions, count: int) -> dict[int, bytes]:
        """Return what is stored with a publish, by the tags of extensions."""
        values = {}
        if options.producer:
            last = self._log.state.producers.find(options.producer)
            tag = ProducerTag(options.producer, options.seq, last.seq if last is not None else 0, count)
            values[PRODUCER] = tag.encode()
        if options.ttl_ns:
            values[TTL] = encode_ttl(options.ttl_ns)
        return values

    def _find_duplicate(self, options: PublishOptions, now_ns: int, is_synced: bool) -> PublishOutcome | None:
        """Return the result of a publish whose messages are in the log already; None if they are not.

        The answer waits until the first publish is as durable as the answer says.
        """
        if not options.producer:
            return None
        self._forget_producers(now_ns)
        last = self._log.state.producers.find(options.producer)
        if last is None or options.seq > last.seq:
            return None
        self._duplicate_count += 1
        if last.end > (self._log.stable if is_synced else self._log.written):
            self._logs.write_later(is_synced=is_synced)
        if options.seq < last.seq:
            return PublishOutcome(NO_OFFSET, 0, is_duplicate=True)
        return PublishOutcome(last.first, last.message_count, is_duplicate=True)

    def _forget_producers(self, now_ns: int) -> None:
        if len(self._log.state.producers):
            options = self._broker.options
            before_ns = now_ns - options.dedup_age
            self._forgotten_count += self._log.forget_producers(options.dedup_producers, before_ns)

    def _add_deferred(self, first: int, count: int, due_ns: int) -> None:
        for offset in range(first, first + count):
            heappush(self._due, (self._when_due(due_ns), offset))
        if self._is_flowing:
            self._count_deferred(count)
        else:
            self._held_deferred += count
        self._arm()

    def admit_part(self, size: int) -> None:
        """Raise DiskQueueError if messages of a transaction with this size cannot be appended now."""
        self._logs.refuse_if_full(self._clock.wall_ns(), self)
        if self.room < size:
            self._make_room(size)

    def append_part(self, items: bytes, sums: bytes, count: int, defer_ns: int) -> None:
        """Append messages of a transaction. The caller writes them in one frame with the rest of the transaction."""
        now_ns = self._clock.wall_ns()
        self.room -= len(items)
        due_ns = now_ns + defer_ns if defer_ns > 0 else 0
        first = self._log.append_checked(items, sums, count, now_ns, due_ns)
        if due_ns:
            self._add_deferred(first, count, due_ns)
        else:
            self._end_number += count

    def append_letter(self, item: bytes, origin: bytes, source: TopicLog) -> None:
        """Append a dead letter, in one frame with the pending changes of the log ``source``."""
        self._logs.refuse_if_full(self._clock.wall_ns())
        if self.room < len(item):
            self._make_room(len(item))
        self.room -= len(item)
        self._log.append_letter(item, self._clock.wall_ns(), origin)
        self._end_number += 1
        self._logs.join(self._log, source)
        self._logs.write_later()

    def cancel(self, offset: int) -> bool:
        """Discard a deferred message that is not due; False if there is none at ``offset``."""
        if offset not in self._log.state.deferred:
            return False
        if self._is_held(offset):
            self._held_deferred -= 1
        changes = Changes()
        changes.remove_deferred([offset])
        self._log.change(changes)
        self._logs.write_later(is_synced=True)
        return True

    def _make_room(self, size: int) -> None:
        """Refuse a publish that exceeds ``max_bytes``, or drop the oldest messages for it."""
        try:
            self.retention.make_room(size)
        except DiskQueueError as error:
            self.note_refused(1, error)
            raise

    def _count_deferred(self, count: int) -> None:
        for cursor in self._cursors:
            cursor.count_deferred(count)

    def when_committed(self, done: Callable[[DiskQueueError | None], object]) -> bool:
        """Call ``done`` when the log has everything so far, or with the error of a write; False if it has already."""
        return self._logs.when_committed(self._log, self.is_synced, done)

    def note_refused(self, count: int, failure: DiskQueueError) -> None:
        """Count refused publishes."""
        reason = NO_SPACE if failure.is_space_low else WRITE_FAILED
        self._refused[LOG_FULL if failure.is_log_full else reason] += count

    # Messages of another store

    def append_moved(self, items: bytes, count: int, timestamp: int, due_ns: int) -> None:
        """Append messages of the topic that another store had, for every channel, when they are due if not 0."""
        if due_ns <= self._clock.wall_ns():
            self._log.append(items, count, timestamp)
            self._end_number += count
        else:
            self._add_deferred(self._log.append_deferred(items, count, timestamp, due_ns), count, due_ns)
        self._logs.write_later(is_synced=True)

    def append_moved_to(
        self, store: ChannelStore, items: bytes, count: int, timestamp: int, attempts: int, due_ns: int
    ) -> None:
        """Append messages of one channel that another store had."""
        assert isinstance(store, LogCursor)
        store.append_addressed(items, count, timestamp, attempts, due_ns)
        if not self._is_flowing and not self.depth:
            # Messages of a channel do not wait for the topic, unless messages of the topic are before them.
            self._limit = self._held_from = self._log.end
            if self._topic.paused:
                changes = Changes()
                changes.pause_topic(True, self._limit)
                self._log.change(changes)
        self._logs.write_later(is_synced=True)

    def when_durable(self, done: Callable[[DiskQueueError | None], object]) -> bool:
        """Call ``done`` when everything so far is durable, or with the error of a write; False if it is already."""
        return self._logs.when_committed(self._log, True, done)

    # Deferred messages that are due

    def _when_due(self, due_ns: int) -> int:
        """Return a due time of the wall clock, which may be set later, as a time of the monotonic clock.

        If the wall clock was set back before nsqd started, the delay is at most --max-req-timeout.
        """
        delay_ns = min(due_ns - self._clock.wall_ns(), self._broker.options.max_req_timeout)
        return self._clock.now_ns() + delay_ns

    def _arm(self) -> None:
        """Set the timer for the first due message."""
        if self._due and not self._is_reading:
            self._arm_at(self._due[0][0])

    def _arm_at(self, when_ns: int) -> None:
        if self._due_timer is not None:
            if self._due_timer_ns <= when_ns:
                return
            self._due_timer.cancel()
        self._due_timer_ns = when_ns
        self._due_timer = self._broker.call_at(when_ns, self._on_due)

    def _on_due(self) -> None:
        """Append messages that are due, so that the channels get them."""
        self._due_timer = None
        if self._topic.exiting or self._is_reading:
            return
        now_ns = self._clock.now_ns()
        for _ in range(_DUE_PER_TURN):
            if not self._due or self._due[0][0] > now_ns:
                break
            offset = self._due[0][1]
            if offset in self._log.state.deferred and not self._append_due(offset):
                return
            heappop(self._due)
        self._due_reader.release()
        self._arm()

    def _is_held(self, offset: int) -> bool:
        """True if a deferred message counts for the topic, and not for the channels."""
        return not self._is_flowing and offset >= self._held_from

    def _append_due(self, offset: int) -> bool:
        """Append a deferred message again; False if that is not possible now and is tried later."""
        if self._logs.failure is not None or offset >= self._log.written:
            self._arm_at(self._clock.now_ns() + _RETRY_NS)
            return False
        reader = self._due_reader
        found = reader.find(offset)
        if found == UNREAD:
            self._is_reading = True
            self.reads.read(offset, self._on_due_read)
            return False
        is_counted = not self._is_held(offset)
        if not is_counted:
            self._held_deferred -= 1
        if found == FOUND:
            item = reader.data[reader.start - 4 : reader.end]
            again = self._log.append(item, 1, reader.timestamp, [offset], reader.own_ttl_ns())
            self._unreleased_due.append(_DueMessage(again, is_counted))
            self._end_number += 1
        else:
            changes = Changes()
            changes.remove_deferred([offset])
            self._log.change(changes)
        self._logs.write_later()
        return True

    def _on_due_read(self, is_read: bool) -> None:
        self._is_reading = False
        if is_read:
            self._on_due()
        else:
            self._arm_at(self._clock.now_ns() + _RETRY_NS)

    def end_read(self, job: ReadJob) -> bool:
        """Note what a job did not find; False if the log could not be read."""
        try:
            lost_count = self._log.end_read(job)
        except OSError as error:
            self._broker.log.error("LOG(%s): failed to read - %s", self._topic.name, error)
            return False
        if lost_count:
            self._logs.damaged_count += lost_count
            self._broker.log.error("LOG(%s): %d messages are damaged and lost", self._topic.name, lost_count)
            self._end_number = self.released_number + self._count(self.released, self._log.end)
            self._limit_number = self._end_number - self._count(self._limit, self._log.end)
            for cursor in self._cursors:
                cursor.count_again()
            self._logs.write_later()
        return True

    # Channels

    @property
    def start(self) -> tuple[int, int]:
        """The offset and the number of the first message that a new channel gets."""
        return (self._log.end, self._end_number) if self._is_flowing else (self._limit, self._limit_number)

    def _default_start(self) -> int:
        """Return where a new channel begins: by default at the first message that no channel has yet.

        Channels of a topic that has not started exist on other nsqds. They get the first messages too.
        """
        configured = self._topic.settings.channel_start
        if configured == AUTO or not self._topic.is_started:
            return self.start[0]
        return self._log.first_kept if configured == BEGINNING else self._log.end

    def open_store(self, channel: Channel, start: int | None = None) -> LogCursor:
        """Return the cursor of a channel, where the log says. A new channel begins at ``start``, or as configured."""
        cursor = LogCursor(channel, self, self._log, self._broker, self._default_start() if start is None else start)
        self._cursors.append(cursor)
        return cursor

    def remove_store(self, store: ChannelStore) -> None:
        """Give no more messages to a cursor, and discard the deferred messages that count only for it."""
        self.empty_deferred()
        self._cursors = [each for each in self._cursors if each is not store]

    def update(self, is_flowing: bool) -> None:
        """Note whether messages may go to the channels, and whether the topic is paused."""
        if self._log.is_deleted:
            return
        if is_flowing != self._is_flowing:
            if not is_flowing:
                self._limit, self._limit_number = self.start
                self._held_from = self._limit
            self._is_flowing = is_flowing
            self._count_deferred(self._held_deferred)
            self._held_deferred = 0
        if self._topic.paused != self._log.state.is_paused:
            changes = Changes()
            changes.pause_topic(self._topic.paused, self._limit if self._topic.paused else 0)
            self._log.change(changes)
            self._logs.write_later(is_synced=self.is_synced)
        self.release()

    def release(self) -> None:
        """Let the channels have what is written."""
        end = self._log.written
        if not self._is_flowing:
            end = min(end, self._limit)
        if end <= self.released:
            return
        self.released = end
        number = self._end_number
        if end < self._log.end:
            number -= self._count(end, self._log.end)
        count, self.released_number = number - self.released_number, number
        while self._unreleased_due and self._unreleased_due[0].offset < end:
            count -= self._unreleased_due.popleft().is_counted
        for cursor in self._cursors:
            cursor.arrived(end, number, count)
        if not self._log.state.channels:
            self._logs.note_changes(self, is_urgent=False)

    def write_changes(self) -> None:
        """Append the changes of the channels to the log."""
        if self._log.is_deleted:
            return
        changes = Changes()
        for cursor in self._cursors:
            cursor.take_changes(changes)
        state = self._log.state
        if not state.channels and state.unclaimed < self.released:
            changes.set_unclaimed(self.released)  # ephemeral channels have the messages before it
        if changes:
            self._log.change(changes)

    def forget_removed(self) -> None:
        """Forget what the log has removed, except what a cursor has not passed."""
        self._log.forget_ranges(min((cursor.next for cursor in self._cursors), default=self._log.end))

    # Retention

    def time_of(self, offset: int) -> int:
        """Return about when the message at ``offset`` was published; 0 while that is being read."""
        time_ns = self._log.time_of(offset)
        segment = self._log.segment_of(offset)
        if time_ns is None and segment is not None and not self._is_loading_index:
            self._is_loading_index = True
            self._logs.read(SegmentIndexJob(segment), self._on_index)
        return time_ns or 0

    def _on_index(self, _job: SegmentIndexJob) -> None:
        self._is_loading_index = False

    def count_below(self, first: int) -> dict[str, int]:
        """Return how many unfinished messages below ``first`` each channel has, and those of the topic as "".

        Channels without such messages are left out.
        """
        counts = {cursor.channel_name: cursor.count_below(first) for cursor in self._cursors}
        deferred = sum(offset < first for offset in self._log.state.deferred)
        counts[""] = deferred + (0 if self._is_flowing else self._count(self._limit, first))
        return {name: count for name, count in counts.items() if count}

    def trim(self, first: int, reason: str) -> dict[str, int]:
        """Drop every message below ``first``, which must be written; return the result of ``count_below`` before."""
        log = self._log
        self.release()
        dropped = self.count_below(first)
        floors = {"": log.first} | {cursor.channel_name: cursor.floor for cursor in self._cursors}
        self._held_deferred -= sum(offset < first and self._is_held(offset) for offset in log.state.deferred)
        changes = Changes()
        changes.trim(first)
        log.change(changes)
        if not self._is_flowing and first > self._limit:
            self._limit = first
            self._limit_number = self._end_number - self._count(first, log.end)
            while self._unreleased_due and self._unreleased_due[0].offset < first:
                self._unreleased_due.popleft()
        if first > self.released:
            self.released = first
            self.released_number = self._end_number - self._count(first, log.end)
        for cursor in self._cursors:
            cursor.trim(first, self.released, self.released_number)
        self._dropped_count += dropped.get("", 0)
        for name, count in dropped.items():
            owner = f"channel({name})" if name else "the topic"
            text = "LOG(%s): %s dropped %d unfinished messages of %s, offsets %d to %d"
            self._broker.log.warn(text, log.topic, reason, count, owner, floors[name], first - 1)
        self._logs.write_later(is_synced=self.is_synced)
        return dropped

    def copy_limit(self) -> int:
        """Return the first offset that cannot be copied: from it on, messages are in flight or were not delivered."""
        if not self._is_flowing:
            return 0  # copied messages would wait for the topic
        return min([cursor.copy_limit() for cursor in self._cursors], default=self._log.end)

    def wanted_below(self, end: int, most: int) -> set[int] | None:
        """Return the offsets below ``end`` of unfinished messages; None if there are more than ``most``."""
        wanted = {offset for offset in self._log.state.deferred if offset < end}
        for cursor in self._cursors:
            if len(wanted) > most:
                return None
            wanted.update(cursor.waiting_below(end))
        return wanted if len(wanted) <= most else None

    def copy(self, messages: Mapping[int, CopiedMessage], changes: Changes) -> int:
        """Append those of the messages again that are deferred or wait in a channel; return how many copies there are.

        The copy of a deferred message replaces it. ``changes`` finish the others in their channels.
        """
        log = self._log
        due = [(when_ns, offset) for when_ns, offset in self._due if offset in messages]
        count = 0
        for when_ns, offset in due:
            due_ns = log.state.deferred.get(offset)
            if due_ns is not None:
                item, timestamp, ttl_ns = messages[offset]
                again = log.append_deferred(item, 1, timestamp, due_ns, [offset], ttl_ns)
                heappush(self._due, (when_ns, again))
                count += 1
        return count + sum([cursor.copy(messages, changes) for cursor in self._cursors])

    # Administration

    def empty(self) -> None:
        """Discard the messages that have not reached the channels."""
        if not self.depth:
            return
        changes = Changes()
        changes.remove_deferred([offset for offset in self._log.state.deferred if self._is_held(offset)])
        for first, end in self._log.state.messages_between(EVERY_CHANNEL, self._limit, self._log.end):
            changes.lose(first, end)
        changes.set_unclaimed(self._log.end)
        if self._topic.paused:
            changes.pause_topic(True, self._log.end)
        while self._unreleased_due and self._unreleased_due[len(self._unreleased_due) - 1].offset >= self._limit:
            self._unreleased_due.pop()
        self._limit = self._log.end
        self._end_number = self._limit_number
        self._held_deferred = 0
        self._log.change(changes)
        for cursor in self._cursors:
            cursor.count_again()  # a channel may have moved beyond the messages
        self._logs.write_later(is_synced=self.is_synced)
        self.release()

    def empty_deferred(self) -> None:
        """Discard the deferred messages that count for the only channel."""
        if len(self._cursors) > 1 or self._log.is_deleted:
            return
        offsets = [offset for offset in self._log.state.deferred if not self._is_held(offset)]
        if offsets:
            changes = Changes()
            changes.remove_deferred(offsets)
            self._log.change(changes)
            self._logs.write_later(is_synced=self.is_synced)

    def delete(self) -> None:
        """Discard the messages and remove the files."""
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        self.retention.delete()
        self._due.clear()
        self._cursors = []  # breaks the reference cycles
        self.reads.stop()
        self._logs.delete(self._log)

    def spill(self) -> None:
        """Stop the deferred messages. The logs are written by ``LogCommits.close``."""
        self.retention.stop()
        self._due.clear()
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
