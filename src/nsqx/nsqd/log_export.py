"""Export of topic logs to disk queues, which Go's nsqd reads too. No nsqd may use the data directory.

``UnfinishedMessages`` decides which disk queue gets a message. Message ids stay the same. Until the last step, the log
stays in use:

1. All batches of commit files go to segments.
2. The messages are appended to disk queues, and their due times are saved.
3. nsqd.dat gets the topic and its channels.
4. The directory of the log is renamed, so no nsqd opens it any more.

After a crash the export can be repeated: messages that the disk queues have already are not appended again. If an nsqd
runs in between, messages can be duplicated, but none is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from nsqx.errors import ConfigError, DiskQueueError
from nsqx.nsqd.metadata import SavedTopic, encode_saved, load_metadata, metadata_path
from nsqx.queues.diskqueue import DiskQueue
from nsqx.queues.due_times import DueTime, load_due_times, save_due_times
from nsqx.queues.files import NSQD, SEGMENT, rename, replace_file, sync_directory
from nsqx.queues.log.stored import (
    OffsetRange,
    SilentLog,
    StoredLog,
    StoredLogs,
    StoredMessage,
    join_ranges,
    open_offline,
    without,
)
from nsqx.queues.log.unfinished import Target, UnfinishedMessages
from nsqx.wire import byteops
from nsqx.wire.message import new_message

if TYPE_CHECKING:
    from nsqx.queues.log.identity import LogIdentity

EXPORTED_SUFFIX = ".exported"
_MAX_MESSAGE_SIZE = 1 << 30
_MAX_ATTEMPTS = 0xFFFF
_SYNC_BYTES = 64 * 1024 * 1024
_CHANNELS_AT_ONCE = 100  # each has an open file


@dataclass(slots=True)
class ExportedTopic:
    """The result for one topic: the messages of each disk queue, and the offsets of messages that are damaged."""

    topic: str
    directory: str = ""
    """The new name of the directory."""
    counts: dict[str, int] = field(default_factory=dict)
    deferred_count: int = 0
    damaged: list[OffsetRange] = field(default_factory=list)


def export_logs(data_path: str, topics: Sequence[str], max_file_size: int, now_ns: int) -> Iterator[ExportedTopic]:
    """Export the logs of some topics, or all without ``topics``; yield each when it is done.

    Raises ConfigError for a topic without a log, MetadataError if nsqd.dat is damaged, DiskQueueError, or OSError.
    """
    found = {log.topic for log in StoredLogs(data_path).logs}
    unknown = [topic for topic in topics if topic not in found]
    if unknown:
        raise ConfigError(f"{data_path} has no log of the topic {unknown[0]!r}")
    load_metadata(data_path)
    open_offline(data_path).close()
    for log in StoredLogs(data_path).logs:
        if not topics or log.topic in topics:
            exported = _export_queues(log, data_path, max_file_size, now_ns)
            _add_to_metadata(data_path, log)
            exported.directory = _retire(log, data_path)
            yield exported


def _export_queues(log: StoredLog, data_path: str, max_file_size: int, now_ns: int) -> ExportedTopic:
    exported = ExportedTopic(log.topic)
    state = log.state
    unfinished = UnfinishedMessages(log.topic, state)
    targets, start = unfinished.targets, unfinished.start
    readable: list[OffsetRange] = []
    for index in range(0, len(targets), _CHANNELS_AT_ONCE):
        chosen = targets[index : index + _CHANNELS_AT_ONCE]
        group = [_Export(target, log.identity, data_path, max_file_size) for target in chosen]
        readable = _fill(group, log, start, now_ns)
        for export in group:
            exported.counts[export.target.name] = export.count
            exported.deferred_count += len(export.due_times)
    wanted = [run for target in targets for run in target.wanted_ranges(state, start)]
    exported.damaged = without(join_ranges(wanted), readable)
    return exported


def _fill(group: list[_Export], log: StoredLog, start: int, now_ns: int) -> list[OffsetRange]:
    """Append the messages of the log to the queues of a group; return the offsets that are readable."""
    readable: list[OffsetRange] = []
    size = 0
    try:
        for message in log.messages(start):
            if readable and readable[-1][1] == message.offset:
                readable[-1] = readable[-1][0], message.offset + 1
            else:
                readable.append((message.offset, message.offset + 1))
            for export in group:
                export.add(message, now_ns)
            size += len(message.body)
            if size >= _SYNC_BYTES:
                size = 0
                for export in group:
                    export.sync()
    finally:
        for export in group:
            export.close()
    return readable


class _Export:
    """The disk queue of one target. Methods raise DiskQueueError or OSError."""

    def __init__(self, target: Target, identity: LogIdentity, data_path: str, max_file_size: int) -> None:
        self.target = target
        self.count = 0
        self.due_times: dict[bytes, DueTime] = {}
        self._identity = identity
        self._data_path = data_path
        self._queue = DiskQueue(target.name, data_path, max_file_size, _MAX_MESSAGE_SIZE, SilentLog(), _do_nothing)
        self._present = self._find_present()

    def _find_present(self) -> dict[int, tuple[int, int]]:
        """Return timestamp and checksum of the messages of an earlier export that are in the queue, by offset."""
        present = {}
        while self._queue.has_readable():
            message = self._queue.get()
            if message is None:
                if self._queue.has_readable():
                    raise DiskQueueError(f"cannot read the disk queue {self.target.name}")
                break
            try:
                offset = self._identity.offset(int(message.id, 16))
            except ValueError:
                continue
            present[offset] = message.timestamp, crc32(message.body)
        self._queue.rewind()
        return present

    def add(self, message: StoredMessage, now_ns: int) -> None:
        """Append a message that the target needs, if an earlier export has not done it."""
        hole = self.target.hole_of(message)
        if hole is None:
            return
        self.count += 1
        message_id = byteops.id_text(self._identity.id_number(message.offset))
        if hole.due_ns > now_ns:
            self.due_times[message_id] = DueTime(now_ns, hole.due_ns)
        if self._present and self._present.get(message.offset) == (message.timestamp, crc32(message.body)):
            return
        attempts = min(hole.attempts, _MAX_ATTEMPTS)
        self._queue.put_message(new_message(message_id, message.body, message.timestamp, attempts))

    def sync(self) -> None:
        """Write everything and make it durable."""
        self._queue.write_pending()
        job = self._queue.begin_sync()
        assert job is not None
        job.run()
        self._queue.end_sync(job)
        if job.error is not None:
            raise job.error

    def close(self) -> None:
        """Save the due times, and make everything durable."""
        try:
            if self.due_times:
                save_due_times(self._data_path, self.target.name, self._saved_due_times() | self.due_times)
        finally:
            self._queue.close()

    def _saved_due_times(self) -> dict[bytes, DueTime]:
        try:
            return load_due_times(self._data_path, self.target.name)
        except ValueError:
            return {}  # without their due times, messages are delivered at once


def _do_nothing() -> None:
    pass


def _add_to_metadata(data_path: str, log: StoredLog) -> None:
    topics = {topic.name: topic for topic in load_metadata(data_path)}
    topic = topics.setdefault(log.topic, SavedTopic(log.topic, paused=False))
    topic.paused = log.state.is_paused
    channels = {channel.name: channel.is_paused for channel in UnfinishedMessages(log.topic, log.state).channels}
    topic.channels = list((dict(topic.channels) | channels).items())
    replace_file(metadata_path(data_path), encode_saved(topics.values()), NSQD)


def _retire(log: StoredLog, data_path: str) -> str:
    """Rename the directory of a log, and return its new name."""
    target = log.directory + EXPORTED_SUFFIX
    if os.path.exists(target):
        target = f"{log.directory}.{log.identity.log_id:016x}{EXPORTED_SUFFIX}"
    rename(SEGMENT, log.directory, target)
    sync_directory(data_path)
    return target
