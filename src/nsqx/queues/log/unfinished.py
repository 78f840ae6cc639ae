"""The unfinished messages of a log, by the disk queue of the classic store that gets them.

A channel's unfinished messages go to its disk queue. Deferred messages, and those that no channel has yet, go to the
disk queue of the topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from nsqx.names import is_ephemeral
from nsqx.queues.log.batch import ADDRESSED, DEFERRED
from nsqx.queues.log.state import EVERY_CHANNEL, Changes, ChannelState, Hole, LogState

if TYPE_CHECKING:
    from nsqx.queues.log.stored import OffsetRange, StoredMessage

_NO_HOLE = Hole()


class ChannelTarget:
    """The messages that one channel has not finished."""

    def __init__(self, topic: str, channel: ChannelState, released: int) -> None:
        self.name = f"{topic}:{channel.name}"
        self.start = channel.floor
        self.channel = channel
        self._released = released

    def hole_of(self, message: StoredMessage) -> Hole | None:
        """Return the attempts and the due time of a message; None if the channel does not need it."""
        channel = self.channel
        if message.kind == DEFERRED or (message.kind == ADDRESSED and message.channel != channel.number):
            return None
        if message.offset < channel.next:
            hole = channel.holes.get(message.offset)
        else:
            hole = _NO_HOLE if message.offset < self._released or message.kind == ADDRESSED else None
        if hole is None or message.kind != ADDRESSED:
            return hole
        return Hole(max(hole.attempts, message.attempts), max(hole.due_ns, message.due_ns))

    def wanted_ranges(self, state: LogState, start: int) -> Iterator[OffsetRange]:
        """Yield the offsets of the messages, readable or not."""
        yield from ((offset, offset + 1) for offset in self.channel.holes if offset >= start)
        yield from state.messages_between(self.channel.number, max(start, self.channel.next), state.end)

    def count(self, state: LogState) -> int:
        """Return the number of messages, readable or not."""
        channel = self.channel
        count = len(channel.holes) + _length(state, channel.number, channel.next)
        return count - _length(state, EVERY_CHANNEL, max(channel.next, self._released))


class TopicTarget:
    """The messages that are due later, or that no channel has yet."""

    def __init__(self, topic: str, state: LogState, released: int) -> None:
        self.name = topic
        self.start = min([released, *state.deferred])
        self._state = state
        self._released = released

    def hole_of(self, message: StoredMessage) -> Hole | None:
        """Return the due time of a message; None if it is not the topic's."""
        if message.kind == DEFERRED:
            due_ns = self._state.deferred.get(message.offset)
            return Hole(0, due_ns) if due_ns is not None else None
        return _NO_HOLE if message.kind != ADDRESSED and message.offset >= self._released else None

    def wanted_ranges(self, state: LogState, start: int) -> Iterator[OffsetRange]:
        """Yield the offsets of the messages, readable or not."""
        yield from ((offset, offset + 1) for offset in state.deferred if offset >= start)
        yield from state.messages_between(EVERY_CHANNEL, max(start, self._released), state.end)

    def count(self, state: LogState) -> int:
        """Return the number of messages, readable or not."""
        return len(state.deferred) + _length(state, EVERY_CHANNEL, self._released)


Target = ChannelTarget | TopicTarget


class UnfinishedMessages:
    """The disk queues that the unfinished messages of a log belong to. Ephemeral channels have none."""

    def __init__(self, topic: str, state: LogState) -> None:
        self._state = state
        self.channels = [channel for channel in state.channels.values() if not is_ephemeral(channel.name)]
        self._released = self._find_released()
        self.targets: list[Target] = [TopicTarget(topic, state, self._released)]
        self.targets += (ChannelTarget(topic, channel, self._released) for channel in self.channels)
        self.start = min([state.floor, *(target.start for target in self.targets)])

    def _find_released(self) -> int:
        """Return the offset from which on messages belong to the topic, because no channel has them yet."""
        state = self._state
        if not self.channels:
            return state.unclaimed
        if state.is_paused and all(channel.next <= state.paused_at for channel in self.channels):
            return state.paused_at
        return state.end

    def next_from(self, offset: int) -> int:
        """Return the first offset from ``offset`` on that may have an unfinished message, or the end."""
        state = self._state
        found = [first for first, _ in islice(state.present_between(offset, state.end), 1)]
        found += (each for each in state.deferred if each >= offset)
        return min(found, default=state.end)

    def finish(self, first: int, end: int) -> Changes:
        """Return changes that finish all messages from ``first`` to ``end``; those before must be finished."""
        state = self._state
        changes = Changes()
        for channel in self.channels:
            if channel.number in state.channels and end > channel.floor:
                changes.finish(channel.number, [(min(first, channel.floor), end)])
        changes.remove_deferred([offset for offset in state.deferred if offset < end])
        if not self.channels:
            changes.set_unclaimed(max(end, state.unclaimed))
        if state.is_paused and end > state.paused_at:
            changes.pause_topic(True, end)  # messages after it still belong to the topic
        return changes

    def discard_channel(self, name: str, finished: int, *, is_deleted: bool) -> Changes:
        """Return changes that discard the messages of one channel. All messages below ``finished`` are finished."""
        changes = Changes()
        for channel in [channel for channel in self.channels if channel.name == name]:
            if not is_deleted:
                start = max(self._released, finished)
                changes.move(channel.number, start)
                for first, end, number in self._state.ranges_from(start):
                    if number == channel.number:
                        changes.lose(first, end)
                continue
            changes.delete_channel(channel.number)
            self.channels.remove(channel)
            if not self.channels:
                changes.set_unclaimed(self._released)
        self.targets = [
            target for target in self.targets if isinstance(target, TopicTarget) or target.channel.name != name
        ]
        return changes

    def discard_topic(self) -> Changes:
        """Return changes that discard the messages of the topic that no channel has."""
        state = self._state
        changes = Changes()
        changes.remove_deferred(state.deferred)
        for first, end in state.messages_between(EVERY_CHANNEL, self._released, state.end):
            changes.lose(first, end)
        self.targets = [target for target in self.targets if isinstance(target, ChannelTarget)]
        return changes


def _length(state: LogState, number: int, first: int) -> int:
    return sum(end - start for start, end in state.messages_between(number, first, state.end))
