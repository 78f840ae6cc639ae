"""Transactions: messages for several log topics that are stored together, and once.

A *query* is a program that numbers its batches, such as a streaming query of Spark. Its tasks stage the parts of a
batch: each part is a file of its own (see ``queues.log.staging``). Then the query commits the batch. All messages of
the named parts, and the entry of the batch in the ledger (see ``queues.log.ledger``), are written in one frame of the
commit file. So after a crash all of it is there or nothing. A batch that the ledger has already is not stored again.

Commits are made one after the other, because each holds all messages of its batch in memory. A commit is appended to
the logs in one turn of the event loop. That takes a moment for each deferred message, so their number is limited. Only
a few parts are written at the same time, because the threads also sync publishes.

Parts are removed with the next commit of their query: those of its batch, and those of earlier ones. Parts of a query
that commits no more are removed after a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from errno import EDQUOT, ENOSPC
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from nsqx.errors import DiskQueueError, NSQError
from nsqx.nsqd.free_disk import low_space
from nsqx.nsqd.sync_threads import completed
from nsqx.queues.log.ledger import LedgerEntry
from nsqx.queues.log.staging import (
    PartDamaged,
    PartName,
    ReadPartsJob,
    RemovePartsJob,
    StagedPart,
    StageJob,
    list_staged,
    remove_unfinished,
)
from nsqx.queues.log.state import Changes
from nsqx.units import NS_PER_MINUTE

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.clock import Timer
    from nsqx.nsqd.sync_threads import Job
    from nsqx.nsqd.topic import Topic
    from nsqx.nsqd.transaction_stats import TransactionStats
    from nsqx.queues.log.log import TopicLog
    from nsqx.queues.log.staging import PartMessages

    AnyTransactionJob = TypeVar("AnyTransactionJob", bound=Job)

MAX_QUERIES = 10_000
MAX_DEFERRED = 100_000
_MAX_STAGING = 8
# How long parts are kept that no commit has named.
PART_AGE_NS = 24 * 60 * NS_PER_MINUTE
_CHECK_NS = 60 * NS_PER_MINUTE


class LedgerMismatch(NSQError):
    """A query has committed with another list of nodes, so this node may not know a batch that is repeated."""

    def __init__(self, entry: LedgerEntry) -> None:
        super().__init__(f"batch {entry.batch} was committed with the nodes {', '.join(entry.nodes)}")
        self.entry = entry


class PartMissing(NSQError):
    """A commit names a part that is not staged."""

    def __init__(self, name: PartName) -> None:
        super().__init__(f"part {name.part}, attempt {name.attempt}, of batch {name.batch} is not staged")
        self.name = name


class TransactionTooLarge(NSQError):
    """The parts of a commit are larger than --max-transaction-bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the parts have {size} bytes, more than --max-transaction-bytes")
        self.size = size


class TooManyDeferred(NSQError):
    """A commit has more than MAX_DEFERRED deferred messages."""

    def __init__(self, count: int) -> None:
        super().__init__(f"the batch has {count} deferred messages, more than {MAX_DEFERRED}")
        self.count = count


class CommitRequest(NamedTuple):
    """A batch of a query, with the parts that have its messages.

    ``nodes`` are the nsqds that get the batches of the query, and ``place`` is the index of this one. With
    ``is_replacing``, the query may have used other nodes before.
    """

    query: str
    batch: int
    nodes: tuple[str, ...]
    place: int
    parts: Sequence[PartName]
    is_replacing: bool


class CommitOutcome(NamedTuple):
    """``message_count`` is 0 if the batch was committed before."""

    message_count: int
    is_duplicate: bool


class Transactions:
    """The staged parts and the ledger of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._staged: dict[str, dict[PartName, StagedPart]] = {}  # by query
        self._is_committing = asyncio.Lock()
        self._staging = asyncio.Semaphore(_MAX_STAGING)
        self._timer: Timer | None = None
        self._has_staged = False
        self._committed_count = 0
        self._message_count = 0
        self._duplicate_count = 0
        self._forgotten_count = 0

    def load(self) -> None:
        """Find the parts that an earlier process left; raises OSError."""
        data_path = self._broker.data_path
        remove_unfinished(data_path)
        for part in list_staged(data_path):
            self._note_staged(part)
        self._remove_useless()

    @property
    def _ledger(self) -> TopicLog | None:
        return self._broker.logs.find_ledger()

    def find(self, query: str) -> LedgerEntry | None:
        """Return the last batch that a query has committed here, or None."""
        log = self._ledger
        return log.state.ledger.find(query) if log is not None else None

    def entries(self) -> list[tuple[str, LedgerEntry]]:
        """Return all queries with their last batches, oldest first."""
        log = self._ledger
        return list(log.state.ledger.items()) if log is not None else []

    def stats(self) -> TransactionStats | None:
        """Return the numbers of the transactions; None if there was never one."""
        query_count = len(self.entries())
        if not (query_count or self._staged):
            return None
        parts = [part for parts in self._staged.values() for part in parts.values()]
        return {
            "staged_parts": len(parts),
            "staged_bytes": sum(part.size for part in parts),
            "queries": query_count,
            "queries_forgotten": self._forgotten_count,
            "committed": self._committed_count,
            "messages": self._message_count,
            "duplicates": self._duplicate_count,
        }

    # Staging

    async def stage(self, name: PartName, groups: Sequence[PartMessages]) -> bool:
        """Write a part, durably; False if its batch is committed already. Raises the errors of a publish."""
        if self._is_committed(name.query, name.batch):
            return False
        broker = self._broker
        broker.logs.refuse_if_full(broker.clock.wall_ns())
        for topic_name in _sizes(groups):
            await self._open(topic_name)
        async with self._staging:
            job = StageJob(broker.data_path, name, groups, is_first=not self._has_staged)
            await self._run(job)
        if job.error is not None:
            raise _disk_error(job.error)
        self._has_staged = True
        self._note_staged(StagedPart(name, job.size, broker.clock.wall_ns()))
        return True

    async def _open(self, topic_name: str) -> None:
        """Create a topic, with the channels that it has on other nsqds; raises the errors of a publish."""
        topic = self._broker.turn.run(self._admit, topic_name)
        fetch = self._broker.channels_fetch(topic)
        if fetch is not None:
            await asyncio.wait([fetch])

    def _admit(self, topic_name: str) -> Topic:
        """Return a topic that takes parts. A staged part needs no room in the log, and drops nothing from it."""
        topic = self._broker.topic(topic_name)
        topic.admit_part(0)
        return topic

    def _note_staged(self, part: StagedPart) -> None:
        self._staged.setdefault(part.name.query, {})[part.name] = part
        if self._timer is None:
            self._timer = self._broker.call_in(_CHECK_NS, self._on_check)

    # Commits

    async def commit(self, request: CommitRequest) -> CommitOutcome:
        """Store a batch, or find that it is stored; return when that is durable.

        Raises LedgerMismatch, PartMissing, PartDamaged, TransactionTooLarge, TooManyDeferred, or the errors of a
        publish. Then nothing is stored, except after a DiskQueueError: then the batch may become durable later.
        """
        async with self._is_committing:
            outcome = self._find_duplicate(request)
            if outcome is None:
                groups = await self._read(request)
                outcome = self._broker.turn.run(self._append, request, groups)
            await self._durable()
        self._remove_later(name for name in self._staged.get(request.query, ()) if name.batch <= request.batch)
        return outcome

    def _is_committed(self, query: str, batch: int) -> bool:
        entry = self.find(query)
        return entry is not None and entry.batch >= batch

    def _find_duplicate(self, request: CommitRequest) -> CommitOutcome | None:
        entry = self.find(request.query)
        if entry is None:
            return None
        if entry.batch >= request.batch:
            self._duplicate_count += 1
            return CommitOutcome(0, is_duplicate=True)
        if (entry.nodes, entry.place) != (request.nodes, request.place) and not request.is_replacing:
            raise LedgerMismatch(entry)
        return None

    async def _read(self, request: CommitRequest) -> list[PartMessages]:
        staged = self._staged.get(request.query, {})
        for name in request.parts:
            if name not in staged:
                raise PartMissing(name)
        size = sum(staged[name].size for name in request.parts)
        if size > self._broker.options.max_transaction_bytes:
            raise TransactionTooLarge(size)
        job = ReadPartsJob(self._broker.data_path, request.parts)
        await self._run(job)
        if job.missing is not None:
            staged.pop(job.missing, None)
            raise PartMissing(job.missing)
        if isinstance(job.error, PartDamaged):
            raise job.error
        if job.error is not None:
            raise _disk_error(job.error)
        deferred_count = sum(group.message_count for group in job.groups if group.defer_ns)
        if deferred_count > MAX_DEFERRED:
            raise TooManyDeferred(deferred_count)
        return job.groups

    def _append(self, request: CommitRequest, groups: Sequence[PartMessages]) -> CommitOutcome:
        """Append the messages and the entry of the ledger. They are written in one frame at the end of the turn."""
        broker = self._broker
        broker.refuse_if_exiting()
        logs = broker.logs
        logs.refuse_if_full(broker.clock.wall_ns())
        topics = {name: broker.topic(name) for name in _sizes(groups)}
        for name, size in _sizes(groups).items():
            topics[name].admit_part(size)
        # From here on nothing fails.
        message_count = 0
        for topic_name, defer_ns, count, items, sums in groups:
            topics[topic_name].publish_part(items, sums, count, defer_ns)
            message_count += count
        now_ns = broker.clock.wall_ns()
        ledger = logs.open_ledger()
        changes = Changes()
        changes.commit_batch(request.query, LedgerEntry(request.batch, request.nodes, request.place, now_ns))
        ledger.change(changes)
        self._forget(ledger, now_ns)
        logs.join(ledger, *(log for log in map(logs.find, topics) if log is not None))
        logs.write_later(is_synced=True)
        self._committed_count += 1
        self._message_count += message_count
        return CommitOutcome(message_count, is_duplicate=False)

    def _forget(self, ledger: TopicLog, now_ns: int) -> None:
        queries = ledger.state.ledger.forgettable(MAX_QUERIES, now_ns - self._broker.options.ledger_age)
        if queries:
            self._forgotten_count += len(queries)
            changes = Changes()
            changes.forget_queries(queries)
            ledger.change(changes)

    async def _durable(self) -> None:
        """Return when the ledger, and all that was written with it, is durable; raises DiskQueueError."""
        log = self._ledger
        written: asyncio.Future[DiskQueueError | None] = asyncio.get_running_loop().create_future()

        def done(error: DiskQueueError | None) -> None:
            if not written.done():
                written.set_result(error)

        if log is None or not self._broker.turn.run(self._broker.logs.when_committed, log, True, done):
            return
        error = await written
        if error is not None:
            raise error

    # Removal

    def _on_check(self) -> None:
        self._timer = None
        self._remove_useless()
        if self._staged and not self._broker.exiting:
            self._timer = self._broker.call_in(_CHECK_NS, self._on_check)

    def _remove_useless(self) -> None:
        """Remove the parts of committed batches, and those that are too old."""
        before_ns = self._broker.clock.wall_ns() - PART_AGE_NS
        self._remove_later(
            part.name
            for parts in self._staged.values()
            for part in parts.values()
            if part.time_ns < before_ns or self._is_committed(part.name.query, part.name.batch)
        )

    def _remove_later(self, names: Iterable[PartName]) -> None:
        """Remove parts in a thread. If that fails, they are removed later."""
        found = list(names)
        if found and not self._broker.exiting:
            job = RemovePartsJob(self._broker.data_path, found)
            self._broker.commits.threads.run(job, partial(self._broker.turn.run, self._on_removed), is_urgent=False)

    def _on_removed(self, job: RemovePartsJob) -> None:
        for name in job.removed:
            parts = self._staged.get(name.query, {})
            parts.pop(name, None)
            if not parts:
                self._staged.pop(name.query, None)
        if job.error is not None:
            self._broker.log.warn("TRANSACTIONS: failed to remove staged parts - %s", job.error)

    async def _run(self, job: AnyTransactionJob) -> AnyTransactionJob:
        """Run a job in a thread."""
        return await completed(partial(self._broker.commits.threads.run, is_urgent=True), job)


def _sizes(groups: Iterable[PartMessages]) -> dict[str, int]:
    """Return the size of the messages for each topic."""
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group.topic] = sizes.get(group.topic, 0) + len(group.items)
    return sizes


def _disk_error(error: OSError) -> DiskQueueError:
    text = error.strerror or str(error)
    return low_space(text) if error.errno in (ENOSPC, EDQUOT) else DiskQueueError(text)
