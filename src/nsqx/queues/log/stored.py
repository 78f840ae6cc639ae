"""Logs in a data directory that no nsqd uses, read without changing a file.

The logs are those that the next nsqd would open: segments combined with the commit files. The caller must hold the
lock of the directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from nsqx.queues.log.batch import ADDRESSED, LogBatch, channel_of, due_ns_of
from nsqx.queues.log.log import LEDGER_LOG, TopicLog
from nsqx.queues.log.recovery import LoadedLog, Recovery, read_boot_id
from nsqx.queues.log.state import NO_CHANNEL
from nsqx.queues.log.store import LogOptions, LogStore

if TYPE_CHECKING:
    from nsqx.queues.log.identity import LogIdentity
    from nsqx.queues.log.segment import LogSegment
    from nsqx.queues.log.state import LogState

_READ_BYTES = 4 * 1024 * 1024
# Recovery gives nothing to write, so these have no meaning here.
_NO_SEGMENT_SIZE = _NO_LEASE_STEP = 0
# The next nsqd makes its commit files larger.
_OFFLINE = LogOptions(commit_size=256 * 1024)

OffsetRange = tuple[int, int]  # first and end


class StoredMessage(NamedTuple):
    """A message of a log. ``channel`` is the number of its only channel, or NO_CHANNEL if it is for all."""

    offset: int
    timestamp: int
    body: bytes
    kind: int
    channel: int
    attempts: int
    due_ns: int


def messages_of(batch: LogBatch, offset: int) -> Iterator[StoredMessage]:
    """Yield the messages of a batch from ``offset`` on."""
    channel, attempts = channel_of(batch) if batch.kind == ADDRESSED else (NO_CHANNEL, 0)
    due_ns = due_ns_of(batch) if batch.extension else 0
    for at, body in batch.bodies():
        if at >= offset:
            yield StoredMessage(at, batch.timestamp, body, batch.kind, channel, attempts, due_ns)


class SilentLog:
    """A log that drops its lines."""

    def info(self, text: str, *args: object) -> None:
        """Drop a line."""

    warn = error = info


def _ignore(_log: TopicLog) -> None:
    pass


class StoredLog:
    """One log. Methods that read raise OSError."""

    def __init__(self, loaded: LoadedLog) -> None:
        self.loaded = loaded
        self.identity: LogIdentity = loaded.writer.identity
        self.directory: str = loaded.writer.directory
        self.state: LogState = loaded.state
        self._log = TopicLog(loaded.writer, loaded.state, loaded.held, _NO_LEASE_STEP, _ignore)
        self._log.note_written(loaded.held)

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self.identity.topic

    @property
    def segments(self) -> list[LogSegment]:
        """The segments, in order."""
        return self.loaded.writer.segments

    @property
    def first(self) -> int:
        """The first offset that the log still has."""
        return self._log.first

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self.state.end

    @property
    def message_count(self) -> int:
        """The number of messages, finished or not, without those known to be lost."""
        waiting = sum(1 for offset in self.state.deferred if offset >= self.first)
        return waiting + sum(end - first for first, end in self.state.present_between(self.first, self.end))

    def batches(self, offset: int) -> Iterator[LogBatch]:
        """Yield the batches of messages from ``offset`` on; only the intact messages of a damaged batch."""
        while offset < self._log.written:
            batch = self._log.batch_at(offset)
            if batch is not None:
                offset = batch.end
                yield batch
                continue
            job = self._log.begin_read(offset, _READ_BYTES)
            job.run()
            if job.error is not None:
                raise job.error
            yield from job.batches
            offset = job.next

    def messages(self, offset: int) -> Iterator[StoredMessage]:
        """Yield the readable messages from ``offset`` on."""
        for batch in self.batches(offset):
            yield from messages_of(batch, offset)


def open_offline(data_path: str) -> LogStore:
    """Open the logs to change them, as nsqd does at its start, and write all batches to segments. Raises OSError."""
    store = LogStore(data_path, _OFFLINE, read_boot_id(), SilentLog())
    while store.is_recovering:
        job = store.begin_checkpoint(is_complete=True)
        assert job is not None
        job.run()
        store.end_checkpoint(job)
        if job.error is not None:
            raise job.error
    return store


class StoredLogs:
    """All logs of a data directory: those of topics, sorted by topic, and that of the ledger."""

    def __init__(self, data_path: str) -> None:
        """Read the directory. Raises OSError."""
        self.data_path = data_path
        self.recovery = Recovery(data_path, read_boot_id(), _NO_LEASE_STEP, SilentLog())
        self.recovery.run(_NO_SEGMENT_SIZE)
        found = sorted(map(StoredLog, self.recovery.logs), key=lambda log: log.topic)
        self.logs = [log for log in found if log.topic != LEDGER_LOG]
        self.ledger = next((log for log in found if log.topic == LEDGER_LOG), None)

    @property
    def with_ledger(self) -> list[StoredLog]:
        """The logs of topics, and that of the ledger if there is one."""
        return [*self.logs, self.ledger] if self.ledger is not None else self.logs


def join_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges in order, with adjacent and overlapping ones joined, and without empty ones."""
    joined: list[OffsetRange] = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif first < end:
            joined.append((first, end))
    return joined


def without(ranges: Iterable[OffsetRange], removed: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the parts of ``ranges`` that are in none of ``removed``. Both must be joined."""
    left: list[OffsetRange] = []
    gaps = iter([*removed, (1 << 63, 1 << 63)])
    gap = next(gaps)
    for first, end in ranges:
        at = first
        while at < end:
            while gap[1] <= at:
                gap = next(gaps)
            if gap[0] > at:
                left.append((at, min(gap[0], end)))
            if gap[1] >= end or gap[0] >= end:
                break
            at = gap[1]
    return left
