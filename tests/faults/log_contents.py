"""The messages in the topic logs of a data directory that no nsqd uses, as the next nsqd finds them."""

from dataclasses import dataclass
from pathlib import Path

from nsqx.queues.log.batch import DEFERRED
from nsqx.queues.log.state import EVERY_CHANNEL, LogState
from nsqx.queues.log.stored import StoredLog, StoredLogs

Messages = dict[int, bytes]  # bodies by offset


@dataclass(frozen=True)
class LogContents:
    """The messages of one topic, by their offsets."""

    log_id: int
    messages: Messages
    """Every readable message, finished or not."""
    deferred: Messages
    """Messages that are not due. They count for every channel."""
    channels: dict[str, Messages]
    """For each channel the unfinished messages, with those that are still in the topic, but without deferred ones."""
    unclaimed: Messages
    """Messages that no channel had yet, if there is no channel."""
    segments: list[int]

    def unfinished(self, channel: str) -> set[bytes]:
        """Return the bodies that a channel must still deliver; with an empty name, those of a topic without channels.

        /stats must report as many: depth, deferred_count and in_flight_count of the channel, and the topic's depth.
        """
        waiting = self.channels[channel] if channel else self.unclaimed
        bodies = {*waiting.values(), *self.deferred.values()}
        assert len(bodies) == len(waiting) + len(self.deferred), "a message is in the log twice"
        return bodies


NO_LOG = LogContents(0, {}, {}, {}, {}, [])


def read_logs(directory: Path) -> dict[str, LogContents]:
    """Return the contents of every log, by topic."""
    stored = StoredLogs(str(directory))
    assert stored.recovery.damaged_count == 0, f"{stored.recovery.damaged_count} messages are damaged"
    return {log.topic: _contents(log) for log in stored.logs}


def _contents(log: StoredLog) -> LogContents:
    state = log.state
    messages = {}
    deferred = {}
    for message in log.messages(log.first):
        messages[message.offset] = message.body
        if message.kind == DEFERRED and message.offset in state.deferred:
            deferred[message.offset] = message.body
    assert len(deferred) == len(state.deferred), "a deferred message is missing"
    channels = {}
    for channel in state.channels.values():
        offsets = [*channel.holes, *_offsets(state, channel.number, channel.next)]
        channels[channel.name] = {offset: messages[offset] for offset in offsets}
    unclaimed = {} if channels else {at: messages[at] for at in _offsets(state, EVERY_CHANNEL, state.unclaimed)}
    firsts = [segment.first for segment in log.segments]
    return LogContents(log.identity.log_id, messages, deferred, channels, unclaimed, firsts)


def _offsets(state: LogState, number: int, start: int) -> list[int]:
    runs = state.messages_between(number, start, state.end)
    return [offset for first, end in runs for offset in range(first, end)]
