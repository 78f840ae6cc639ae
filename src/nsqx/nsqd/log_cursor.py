"""The store of a channel of a log topic: a position in the log, and the messages before it that are unfinished.

A message stays in the log and is read from there, as often as it is delivered. The id of a message is the first id of
the log plus its offset, so FIN, REQ and TOUCH need no lookup.

The cursor of an ephemeral channel is only in memory. It drops the oldest messages if more than --mem-queue-size wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import randrange
from typing import TYPE_CHECKING, NamedTuple

from nsqx.nsqd.channel_store import EXITING, NOT_IN_FLIGHT, NOT_OWNER, ChannelStore, SeekResult
from nsqx.nsqd.client import OUTPUT_LIMIT
from nsqx.nsqd.dead_letters import REQUEUED, TIMED_OUT
from nsqx.queues.log.reader import FOUND, UNREAD, LogReader
from nsqx.queues.log.state import EVERY_CHANNEL, Changes, ChannelState, Hole
from nsqx.queues.log.window import DONE, NEVER_NS, Window
from nsqx.queues.log.window import NOT_IN_FLIGHT as WINDOW_NOT_IN_FLIGHT
from nsqx.units import NS_PER_MS
from nsqx.wire import byteops
from nsqx.wire.message import NODE_MASK, advance_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.log_copies import CopiedMessage
    from nsqx.nsqd.log_flow import LogFlow
    from nsqx.nsqd.log_stats import CursorStats
    from nsqx.nsqd.ready_clients import ReadyClients
    from nsqx.nsqd.topic_settings import TopicSettings
    from nsqx.queues.log.log import TopicLog

# Typed in the .pxd.
_FOUND = FOUND
_UNREAD = UNREAD
_DONE = DONE
_WINDOW_NOT_IN_FLIGHT = WINDOW_NOT_IN_FLIGHT
_NEVER_NS = NEVER_NS
_NODE_MASK = NODE_MASK
_OUTPUT_LIMIT = OUTPUT_LIMIT

# The delay before the log is read again after a failed read.
_RETRY_NS = 100 * NS_PER_MS
# How many timed-out and how many due messages are put back in one turn of the loop.
_PUT_BACK_PER_TURN = 2000
# How many expired messages are finished in one turn.
_EXPIRED_PER_TURN = 5000


class CursorSnapshot(NamedTuple):
    """A cursor at one moment. A thread can read it while the cursor is in use."""

    number: int  # of the channel
    released: int
    window: Window


class LogCursor(ChannelStore):
    """The position of one channel in the log of its topic."""

    __slots__ = (
        "_again_reader",
        "_channel",
        "_clock",
        "_dead_letters",
        "_early_due",
        "_first_id",
        "_first_linear_id",
        "_flow",
        "_is_changed",
        "_is_reading",
        "_log",
        "_logs",
        "_max_delay_ns",
        "_max_waiting",
        "_new_reader",
        "_next_number",
        "_number",
        "_reads",
        "_released",
        "_released_number",
        "_run_end",
        "_start_number",
        "_window",
        "dropped_count",
        "expired_count",
    )

    def __init__(self, channel: Channel, flow: LogFlow, log: TopicLog, broker: Broker, start: int) -> None:
        """Continue where the channel was when the log was closed; a new channel begins at ``start``."""
        self._channel = channel
        self._flow = flow
        self._log = log
        self._first_id = log.identity.first_id
        self._first_linear_id = byteops.linear_id(self._first_id)
        self._logs = broker.logs
        self._clock = broker.clock
        self._dead_letters = broker.dead_letters
        self._max_delay_ns = broker.options.max_req_timeout
        self._max_waiting = broker.options.mem_queue_size if channel.is_ephemeral else -1
        self._reads = flow.reads
        self._new_reader = LogReader(log, broker.logs.blocks)
        self._again_reader = LogReader(log, broker.logs.blocks)
        self.note_settings(flow.settings)
        self.dropped_count = 0  # by limits of the log, and by trims
        self.expired_count = 0
        self._early_due: dict[int, int] = {}  # due times of copied messages that were not reached
        self._is_reading = False
        self._is_changed = False  # the flow will take changes
        self._released = flow.released  # the channel may have what is before it
        self._released_number = flow.released_number
        self._run_end = 0  # the offsets from ``next`` to it are released messages for this channel
        saved = next((each for each in log.state.channels.values() if each.name == channel.name), None)
        if saved is None:
            self._window = Window(start)
            self._number = EVERY_CHANNEL if channel.is_ephemeral else self._create(start)
        else:
            self._number = saved.number
            self._window = self._restored_window(saved)
        self.count_again()

    def _create(self, offset: int) -> int:
        number = self._log.state.next_number
        changes = Changes()
        changes.create_channel(number, self._channel.name, offset)
        self._change(changes)
        return number

    def _restored_window(self, saved: ChannelState) -> Window:
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
        holes = []
        for offset, hole in saved.holes.items():
            delay_ns = min(hole.due_ns - wall_ns, self._max_delay_ns) if hole.due_ns else 0
            holes.append((offset, hole.attempts, now_ns + delay_ns if delay_ns > 0 else 0))
        window = Window(saved.next, holes)
        self._channel.arm(window.next_deadline())
        return window

    def _number_of(self, offset: int) -> int:
        """Return the number of the message at ``offset``, which may be released or not.

        Messages for this channel alone have no numbers. All of them that wait are subtracted, released or not.
        """
        flow = self._flow
        released_count = flow.count_for(EVERY_CHANNEL, offset, flow.released)
        number = flow.released_number - released_count + flow.count_for(EVERY_CHANNEL, flow.released, offset)
        return number - sum(end - first for first, end in self._addressed_from(offset))

    def _addressed_from(self, offset: int) -> list[tuple[int, int]]:
        """Return first and end of each run of messages for this channel alone."""
        return [(first, end) for first, end, channel in self._log.state.ranges_from(offset) if channel == self._number]

    def _change(self, changes: Changes) -> None:
        if not self._log.is_deleted:
            self._log.change(changes)
            self._logs.write_later(is_synced=self._flow.is_synced)

    # Counts

    @property
    def depth(self) -> int:
        """Waiting messages, without those in flight or deferred."""
        window = self._window
        waiting_count = max(0, self._released_number - self._next_number) + window.again_count + window.aside_count
        return waiting_count - self._early_count() if self._early_due else waiting_count

    @property
    def backend_depth(self) -> int:
        """The same: all messages are on disk."""
        return self.depth

    @property
    def in_flight_count(self) -> int:
        """Messages in flight."""
        return self._window.in_flight_count

    @property
    def deferred_count(self) -> int:
        """Deferred messages, of the channel and of the topic."""
        return self._window.deferred_count + self._early_count() + self._flow.deferred_count(self._window.next)

    @property
    def next(self) -> int:
        """The offset after all that were delivered or skipped."""
        return self._window.next

    def snapshot(self) -> CursorSnapshot:
        """Return the position and the unfinished messages as they are now."""
        return CursorSnapshot(self._number, self._released, self._window.copy())

    def cursor_stats(self) -> CursorStats:
        """Return the position in the log."""
        window = self._window
        return {
            "floor": window.floor(),
            "next": window.next,
            "holes": window.in_flight_count + window.again_count + window.aside_count + window.deferred_count,
            "dead": self._channel.dead_count,
            "dropped": self.dropped_count,
            "expired": self.expired_count,
            "oldest": self._flow.time_of(window.floor()) if self._has_unfinished() else 0,
        }

    def oldest_time_ns(self) -> int:
        """Return about when the oldest waiting or in-flight message was published; 0 if none, -1 if unknown."""
        if not self.depth and not self._window.in_flight_count:
            return 0
        return self._flow.time_of(self._window.oldest_due()) or -1

    def _has_unfinished(self) -> bool:
        window = self._window
        return self.depth > 0 or window.in_flight_count > 0 or window.deferred_count > 0

    # Arrivals

    def count_deferred(self, count: int) -> None:
        """Count messages that were published with a delay."""
        self._channel.arrived(count)

    def arrived(self, released: int, released_number: int, count: int) -> None:
        """Note that the messages below ``released`` may be delivered, and the number of the first that may not.

        ``count`` of them were not counted, and may be older than the channel.
        """
        self._released = released
        self._released_number = released_number
        channel = self._channel
        channel.arrived(min(count, max(0, released_number - self._start_number)))
        if channel.ready.has_any() and not channel.paused:
            channel.wake()  # otherwise the channel wakes when a client becomes ready
        elif self._max_waiting >= 0:
            self._drop_oldest()

    def append_addressed(self, items: bytes, count: int, timestamp: int, attempts: int, due_ns: int) -> None:
        """Append messages for this channel alone to the log. The caller writes it."""
        self._log.append_addressed(self._number, items, count, timestamp, attempts, due_ns)
        self._next_number -= count

    def _drop_oldest(self) -> None:
        """Drop the oldest waiting messages if there are too many."""
        excess = self._released_number - self._next_number - self._max_waiting
        while excess > 0 and self._find_run():
            count = min(excess, self._run_end - self._window.next)
            self._window.skip_to(self._window.next + count)
            self._next_number += count
            excess -= count
        self._window.take_changes()

    # Delivery

    def has_messages(self) -> bool:
        """True if ``hand_out`` may deliver a message now."""
        return self._window.again_count > 0 or self._released_number > self._next_number

    def hand_out(self, ready: ReadyClients, now_ns: int) -> int:
        """Deliver waiting messages to ready clients in turn; return the earliest deadline."""
        window = self._window
        channel = self._channel
        released = self._released
        earliest_ns = _NEVER_NS
        expired_count = 0
        room = 0  # how many messages ``client`` gets before it is the turn of another one
        while not self._is_reading:
            offset = window.choose(released)
            if offset < 0:
                break
            is_new = offset == window.next
            if is_new and offset >= self._run_end:
                if not self._find_run():
                    continue
                offset = window.next
            reader = self._new_reader if is_new else self._again_reader
            found = reader.find(offset)
            if found == _UNREAD:
                if ready.has_any():
                    self._is_reading = True
                    self._reads.read(offset, self._on_read)
                break
            if reader.expires_ns != _NEVER_NS and found == _FOUND and ready.has_any() and self._is_expired(reader):
                self._expire_message(offset)
                expired_count += 1
                if expired_count >= _EXPIRED_PER_TURN:
                    earliest_ns = now_ns  # the rest in another turn
                    break
                continue
            if is_new and reader.is_addressed and found == _FOUND and ready.has_any() and self._hold(reader):
                continue
            if room <= 0:
                chosen = ready.next()
                if chosen is None:
                    break
                client = chosen
                room = ready.room(client)
                frames = client.output.frames
            if is_new:
                self._next_number += 1
            if found != _FOUND or (client.sample_rate > 0 and randrange(100) > client.sample_rate):
                window.discard(offset)
                self._note_changes(is_urgent=False)
                continue
            attempts = window.deliver(offset, client.id, now_ns, client.msg_timeout_ns, reader.timestamp)
            byteops.append_message_from(
                frames,
                reader.timestamp,
                attempts,
                advance_id(self._first_id, offset),
                reader.data,
                reader.start,
                reader.end,
            )
            channel.delivered(client)
            room = room - 1 if len(frames) < _OUTPUT_LIMIT else 0
            if now_ns + client.msg_timeout_ns < earliest_ns:
                earliest_ns = now_ns + client.msg_timeout_ns
        if self._new_reader.block_end() >= 0:
            self._reads.read_ahead(self._new_reader.block_end())
        self._new_reader.release()
        self._again_reader.release()
        if self._max_waiting >= 0:
            self._drop_oldest()
        return earliest_ns

    def _is_expired(self, reader: LogReader) -> bool:
        return reader.expires_ns <= self._clock.wall_ns()

    def _expire_message(self, offset: int) -> None:
        """Finish the chosen message, which must not be delivered any more."""
        if offset == self._window.next:
            self._next_number += 1
        self._window.discard(offset)
        self.expired_count += 1
        self._note_changes(is_urgent=False)

    def note_settings(self, settings: TopicSettings) -> None:
        """Use the settings of the topic."""
        self._new_reader.ttl_ns = self._again_reader.ttl_ns = settings.message_ttl

    def _hold(self, reader: LogReader) -> bool:
        """Make a message that was delivered before, or that is not due, wait as such; False if it is neither."""
        attempts, due_ns = reader.attempts(), reader.due_ns()
        delay_ns = min(due_ns - self._clock.wall_ns(), self._max_delay_ns) if due_ns else 0
        if not attempts and delay_ns <= 0:
            return False
        due_ns = self._clock.now_ns() + delay_ns if delay_ns > 0 else 0
        if self._early_due:
            self._early_due.pop(self._window.next, None)
        self._window.hold(attempts, due_ns)
        self._next_number += 1
        self._note_changes(is_urgent=False)
        if due_ns:
            self._channel.arm(due_ns)
        return True

    def _find_run(self) -> bool:
        """Pass over offsets that are no messages for this channel; False if no released message follows."""
        window = self._window
        if window.next < self._run_end:
            return True
        first, self._run_end = self._log.state.next_run(self._number, window.next, self._released)
        self._skip_to(first)
        return window.next < self._run_end

    def _skip_to(self, offset: int) -> None:
        if offset > self._window.next:
            self._window.skip_to(offset)
            self._note_changes(is_urgent=False)

    def _on_read(self, is_read: bool) -> None:
        self._is_reading = False
        if self._channel.exiting:
            return
        if is_read:
            self._channel.wake()
        else:
            self._channel.arm(self._clock.now_ns() + _RETRY_NS)

    def count_again(self) -> None:
        """Count the waiting messages again, because the position has changed, or messages were discarded."""
        self._run_end = 0
        self._next_number = self._number_of(self._window.next)
        # What is released was counted when it was released, or is older than the channel.
        self._start_number = max(self._next_number, self._released_number)

    # Retention

    @property
    def channel_name(self) -> str:
        """The name of the channel."""
        return self._channel.name

    @property
    def number(self) -> int:
        """The number of the channel in the log; that of all channels if it is ephemeral."""
        return self._number

    @property
    def floor(self) -> int:
        """The first unfinished offset."""
        return self._window.floor()

    def count_below(self, first: int) -> int:
        """Return how many unfinished messages below ``first`` the channel has, without those of the topic."""
        waiting_count = self._flow.count_for(self._number, self._window.next, min(first, self._released))
        addressed = self._addressed_from(max(self._window.next, self._released))
        waiting_count += sum(max(0, min(end, first) - start) for start, end in addressed)
        return waiting_count + self._window.count_below(first)

    def copy_limit(self) -> int:
        """Return the first offset of a message that is in flight or was never delivered, or the end of the log."""
        if self._number == EVERY_CHANNEL:
            return int(self._log.end)  # an ephemeral channel keeps nothing
        window = self._window
        new_first: int = self._log.state.next_run(self._number, window.next, self._log.end)[0]
        in_flight = window.oldest_in_flight()
        return min(in_flight, new_first) if in_flight < window.next else new_first

    def waiting_below(self, end: int) -> list[int]:
        """Return the offsets below ``end`` of the messages that wait to be delivered again, or are not due."""
        return self._window.waiting_below(end) if self._number != EVERY_CHANNEL else []

    def copy(self, messages: Mapping[int, CopiedMessage], changes: Changes) -> int:
        """Append those of the messages again that wait, for this channel alone; return how many.

        ``changes`` finish the old ones. The caller writes both in one frame.
        """
        waiting = self._window.waiting_among(messages) if self._number != EVERY_CHANNEL else {}
        if not waiting:
            return 0
        offsets = sorted(waiting)
        for offset in offsets:
            item, timestamp, ttl_ns = messages[offset]
            attempts, due_ns = self._hole(*waiting[offset])
            again = self._log.append_addressed(self._number, item, 1, timestamp, attempts, due_ns, ttl_ns)
            self._next_number -= 1
            if due_ns:
                self._early_due[again] = waiting[offset][1]
        self._window.forget(offsets)
        changes.finish(self._number, [(offset, offset + 1) for offset in offsets])
        return len(offsets)

    def _early_count(self) -> int:
        """Return how many messages wait in the log that were copied and are not due."""
        now_ns = self._clock.now_ns() if self._early_due else 0
        return sum([due_ns > now_ns for due_ns in self._early_due.values()])

    def trim(self, first: int, released: int, released_number: int) -> None:
        """Drop every message below ``first``; the log has dropped them. The rest is as in ``arrived``."""
        self.dropped_count += self.count_below(first)
        self._released = released
        self._released_number = released_number
        self._early_due = {offset: due_ns for offset, due_ns in self._early_due.items() if offset >= first}
        for client_id in self._window.trim(first):
            self._channel.dropped(client_id)
        self.count_again()

    # Deadlines

    def expire(self, now_ns: int) -> None:
        """Put back some of the timed-out and due messages."""
        clients = self._window.expire(now_ns, _PUT_BACK_PER_TURN, self._channel.max_attempts)
        for client_id in clients:
            self._channel.timed_out(client_id)
        self._window.release_due(now_ns, _PUT_BACK_PER_TURN)
        if clients:
            self._note_changes(is_urgent=True)
            self._note_failed(TIMED_OUT)

    def _note_failed(self, reason: str) -> None:
        """Have dead letters made of the messages that have failed their last attempt."""
        for offset, attempts, client_id in self._window.take_failed():
            self._dead_letters.add_of_log(self._channel, self._flow, self._log, offset, attempts, client_id, reason)

    def next_deadline(self) -> int:
        """Return the time of the next timeout or due time, or NEVER_NS."""
        return self._window.next_deadline()

    # Commands of clients for messages in flight

    def _offset(self, id_number: int) -> int:
        """Return the offset of the message with this id number; it is negative or too large for other ids."""
        if (id_number ^ self._first_id) & _NODE_MASK:
            return -1
        return byteops.linear_id(id_number) - self._first_linear_id

    def finish(self, client: Client, message_id: bytes) -> str | None:
        """Finish a message; returns None, or the reason for a refusal."""
        id_number = byteops.id_number(message_id)
        if self.finish_number(client, id_number):
            return None
        result = self._window.finish(self._offset(id_number), client.id)
        return NOT_IN_FLIGHT if result == _WINDOW_NOT_IN_FLIGHT else NOT_OWNER

    def finish_number(self, client: Client, id_number: int) -> bool:
        """Finish the message whose id has this number; if False is returned, ``finish`` returns the reason."""
        if self._window.finish(self._offset(id_number), client.id) != _DONE:
            return False
        if not self._is_changed:
            self._note_changes(is_urgent=False)
        self._channel.finished(client, self._window.timestamp)
        return True

    def requeue(self, client: Client, message_id: bytes, delay_ns: int) -> str | None:
        """Deliver a message again, now or after a delay; returns None, or the reason for a refusal."""
        if self._channel.exiting:
            return EXITING
        due_ns = self._clock.now_ns() + delay_ns if delay_ns > 0 else 0
        limit = self._channel.max_attempts
        result = self._window.requeue(self._offset(byteops.id_number(message_id)), client.id, due_ns, limit)
        if result != _DONE:
            return NOT_IN_FLIGHT if result == _WINDOW_NOT_IN_FLIGHT else NOT_OWNER
        self._note_changes(is_urgent=True)
        self._channel.requeued(client)
        if limit > 0:
            self._note_failed(REQUEUED)
        if due_ns:
            self._channel.arm(due_ns)
        else:
            self._channel.wake()
        return None

    def touch(self, client: Client, message_id: bytes, max_timeout_ns: int) -> str | None:
        """Restart the timeout of a message; returns None, or the reason for a refusal."""
        now_ns = self._clock.now_ns()
        offset = self._offset(byteops.id_number(message_id))
        result = self._window.touch(offset, client.id, now_ns, client.msg_timeout_ns, max_timeout_ns)
        if result != _DONE:
            return NOT_IN_FLIGHT if result == _WINDOW_NOT_IN_FLIGHT else NOT_OWNER
        self._channel.arm(self._window.next_deadline())
        return None

    # Messages out of order

    def is_failed(self, offset: int) -> bool:
        """True if a message has failed its last attempt and is not finished."""
        return self._window.is_aside(offset)

    def finish_failed(self, offset: int) -> None:
        """Finish a message that has failed its last attempt. The next changes contain it."""
        if self._window.is_aside(offset):
            self._window.take_out(offset)
            self._channel.dead_count += 1
            self._note_changes(is_urgent=False)

    def unfinished_from(self, offset: int) -> Iterator[int]:
        """Yield the offsets of the unfinished messages from ``offset`` on that the channel may have now.

        Some of them may be finished before they are yielded.
        """
        released, start = self._released, max(offset, self._window.next)
        yield from [first for first, _, _ in self._window.unfinished() if first >= offset]
        while start < released:
            first, start = self._log.state.next_run(self._number, start, released)
            yield from range(first, start)

    def is_takable(self, offset: int) -> bool:
        """True if a message is unfinished and waits, so that ``take`` can finish it."""
        window = self._window
        if offset < window.next:
            return window.is_waiting(offset)
        return offset < self._released and self._log.state.next_run(self._number, offset, offset + 1)[0] == offset

    def due_ns(self, offset: int) -> int:
        """Return when a message is due that the channel has requeued with a delay; 0 if it has not."""
        return self._window.due_ns(offset)

    def is_in_flight(self, offset: int) -> bool:
        """True if a message is in flight."""
        return self._window.is_in_flight(offset)

    def reach(self, offset: int, limit: int) -> bool:
        """Make the messages before ``offset`` wait as requeued ones, at most ``limit``; False if there are more.

        A message can be finished before older ones only then.
        """
        while self._window.next < offset and self._find_run() and self._window.next < offset:
            if limit <= 0:
                return False
            limit -= 1
            self._window.hold(0, 0)
            self._next_number += 1
        self._note_changes(is_urgent=False)
        return True

    def take(self, offset: int) -> None:
        """Finish a message out of order that is takable and that ``reach`` has reached."""
        if offset >= self._window.next:
            self._window.skip_to(offset + 1)
            self._next_number += 1
        else:
            self._window.take_out(offset)
        self._note_changes(is_urgent=False)

    # Changes

    def _note_changes(self, *, is_urgent: bool) -> None:
        """Have the flow take the changes of the window: at the end of the turn if urgent, else soon."""
        self._is_changed = True
        self._logs.note_changes(self._flow, is_urgent=is_urgent)

    def take_changes(self, changes: Changes) -> None:
        """Add what has changed since the last call."""
        self._is_changed = False
        if not self._window.has_changes():
            return
        runs, requeued = self._window.take_changes()
        if self._number == EVERY_CHANNEL:
            return
        if runs:
            changes.finish(self._number, runs)
        if requeued:
            changes.requeue(self._number, [(offset, self._hole(*entry)) for offset, entry in requeued.items()])

    def _hole(self, attempts: int, due_ns: int) -> Hole:
        if due_ns:
            due_ns += self._clock.wall_ns() - self._clock.now_ns()
        return Hole(attempts, due_ns)

    # Administration

    def note_pause(self) -> None:
        """Record that the channel was paused or unpaused."""
        saved = self._log.state.channels.get(self._number)
        if saved is not None and saved.is_paused != self._channel.paused:
            changes = Changes()
            changes.pause_channel(self._number, self._channel.paused)
            self._change(changes)

    def empty(self) -> None:
        """Finish all messages: waiting, in flight and deferred.

        Deferred messages that are not due belong to all channels of the topic. They stay if there are other channels.
        """
        self._flow.empty_deferred()
        offset = max(self._flow.start[0], self._window.next)
        changes = Changes()
        for first, end in self._addressed_from(offset):
            changes.lose(first, end)
        self._move(offset, changes)

    def seek(self, offset: int, *, is_dry_run: bool = False) -> SeekResult:
        """Continue at an offset of the log, and return what that does; a dry run changes nothing.

        Messages in flight, requeued ones and those that the channel has deferred are forgotten.
        """
        window = self._window
        depth = max(0, self._released_number - self._number_of(offset))
        if self._max_waiting >= 0:
            depth = min(depth, self._max_waiting)
        forgotten_count = window.again_count + window.aside_count + window.deferred_count
        result = SeekResult(window.next, offset, self.depth, depth, window.in_flight_count, forgotten_count)
        if not is_dry_run:
            self._move(offset, Changes())
            if self._max_waiting >= 0:
                self._drop_oldest()
        return result

    def commit(self, offset: int) -> None:
        """Finish every message below ``offset``, delivered or not. The position never goes back."""
        if offset <= self._window.floor():
            return
        for client_id in self._window.trim(offset):
            self._channel.dropped(client_id)
        self._early_due = {at: due_ns for at, due_ns in self._early_due.items() if at >= offset}
        if self._number != EVERY_CHANNEL:
            changes = Changes()
            changes.finish(self._number, [(0, offset)])
            self._change(changes)
        self.count_again()

    def _move(self, offset: int, changes: Changes) -> None:
        """Forget every unfinished message and continue at ``offset``, with further changes."""
        self._window.seek(offset)
        self._early_due = {}
        if self._number != EVERY_CHANNEL:
            changes.move(self._number, offset)
            self._change(changes)
        self.count_again()

    def delete(self) -> None:
        """Delete the channel from the log."""
        self._window.seek(self._window.next)
        state = self._log.state
        if self._number != EVERY_CHANNEL and not self._log.is_deleted:
            changes = Changes()
            changes.delete_channel(self._number)
            if len(state.channels) == 1:
                changes.set_unclaimed(self._flow.start[0])
            self._change(changes)

    def spill(self) -> None:
        """Record the attempts of the messages in flight, which the next process delivers again."""
        saved = self._log.state.channels.get(self._number)
        if saved is None or self._log.is_deleted:
            return
        changes = Changes()
        self.take_changes(changes)
        if changes:
            self._log.change(changes)
        holes = []
        for offset, attempts, due_ns in self._window.unfinished():
            hole = saved.holes.get(offset)
            if hole is None or hole.attempts != attempts:
                holes.append((offset, self._hole(attempts, due_ns)))
        if holes:
            changes.requeue(self._number, holes)
            self._log.change(changes)
