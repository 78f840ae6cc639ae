"""Group commit: the place that decides when records are written, when they are synced, and when clients get answers.

Disk queues announce their records with ``write_later``, topic logs with ``write_logs_later`` (see ``log_commits``). The
turn then ends in the next iteration of the loop, and the records of all publishers are written with one write per
queue. Next, topics and channels are pumped, because written messages can be read.

The publishes to one topic in one turn form a commit, and the answers wait for it. If too many records of the topic's
queues are not durable after the write (any, with sync-every=1), the commit lasts until a completed sync covers its
records. A publish to a new topic also waits until nsqd.dat names the topic. Only clients that wait for a commit are
held back, each until its own commit is done. Other clients, and commits of other topics, continue.

A sync for a commit syncs only the data file, where the meta file on disk already names that file: after a power cut,
records behind the saved write position are found. The positions of reading and writing are saved separately, by a sync
that replaces the meta file (decision 14).

A queue that cannot be written or synced is failing. Its write is retried every second, and publishes that need it are
refused. ``failure`` is the disk's part of the health.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Protocol

from nsqx.errors import DiskQueueError
from nsqx.nsqd.sync_threads import SAVE_THREADS, SyncThreads
from nsqx.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.clock import Timer
    from nsqx.nsqd.topic import Topic
    from nsqx.nsqd.turn import Pump, Turn
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.sync import SyncJob

# The delay before a failed write is retried.
_RETRY_WRITE_NS = NS_PER_S
# The delay before the positions of a queue are saved after --sync-every operations or a change of its files.
_POSITIONS_NS = 100 * NS_PER_MS


class CommitServices(Protocol):
    """Services of the broker: timers whose handlers run in a turn, and the saves of nsqd.dat."""

    def call_in(self, delay_ns: int, handler: Callable[[], None]) -> Timer: ...

    def when_recorded(self, topic: Topic, done: Callable[[None], object]) -> bool:
        """Call ``done`` when the save of nsqd.dat that names the topic and its channels has ended; False if it has."""


class DueQueues:
    """Queues that are due together, some time after the first of them was added."""

    __slots__ = ("_delay_ns", "_handler", "_is_closed", "_queues", "_services", "_timer")

    def __init__(
        self, services: CommitServices, delay_ns: int, handler: Callable[[Collection[DiskQueue]], object]
    ) -> None:
        """Call ``handler`` with the queues when they are due."""
        self._services = services
        self._delay_ns = delay_ns
        self._handler = handler
        self._queues: dict[DiskQueue, None] = {}
        self._timer: Timer | None = None
        self._is_closed = False

    def add(self, queue: DiskQueue) -> None:
        if self._is_closed:
            return
        self._queues[queue] = None
        if self._timer is None:
            self._timer = self._services.call_in(self._delay_ns, self._on_timer)

    def discard(self, queue: DiskQueue) -> None:
        self._queues.pop(queue, None)

    def _on_timer(self) -> None:
        self._timer = None
        queues, self._queues = self._queues, {}
        self._handler(queues)

    def close(self) -> None:
        """Forget all queues, and ignore those that are added later."""
        self._is_closed = True
        self._queues.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Commit:
    """Answers that wait until their messages are on disk. When ``is_done``, ``failure`` is the error or None."""

    __slots__ = ("callbacks", "clients", "failure", "is_done", "pending_count")

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.callbacks: list[Callable[[DiskQueueError | None], object]] = []
        self.pending_count = 1
        self.failure: DiskQueueError | None = None
        self.is_done = False


class GroupCommit:
    """Writes, syncs and commits of all disk queues of a broker."""

    __slots__ = (
        "_after_writes",
        "_commit_at",
        "_commits",
        "_failing",
        "_is_closing",
        "_is_writing",
        "_later",
        "_log",
        "_log_writes",
        "_overdue",
        "_released",
        "_saves",
        "_services",
        "_soon",
        "_sync_every",
        "_turn",
        "_writers",
        "failure",
        "has_failures",
        "threads",
    )

    def __init__(self, turn: Turn, services: CommitServices, log: Log, sync_every: int, sync_timeout_ns: int) -> None:
        self.has_failures = False  # some queue is failing; publishes then check theirs
        self.failure = ""  # the error of the last write or sync; empty if it succeeded
        self.threads = SyncThreads()
        self._turn = turn
        self._services = services
        self._log = log
        self._sync_every = sync_every
        # With sync-every=1 a publish is acknowledged only after the sync. Otherwise one sync can run while the next
        # window fills, and publishers wait only when that window is full too.
        self._commit_at = 1 if sync_every <= 1 else 2 * sync_every
        self._is_writing = False  # something must be written at the end of the turn
        self._writers: dict[DiskQueue, Pump] = {}
        self._log_writes: list[Callable[[], object]] = []
        self._commits: dict[Topic, Commit] = {}
        self._failing: set[DiskQueue] = set()
        # Queues whose positions must be saved: soon, within --sync-timeout, and as soon as a thread is free.
        self._soon = DueQueues(services, min(_POSITIONS_NS, sync_timeout_ns), self._on_positions_due)
        self._later = DueQueues(services, sync_timeout_ns, self._on_timeout)
        self._overdue: dict[DiskQueue, None] = {}
        self._saves: set[SyncJob] = set()
        self._released: dict[DiskQueue, Callable[[], object]] = {}
        self._after_writes: list[Callable[[], object]] = []
        self._is_closing = False

    # Answers

    def hold(self, client: Client, command: str, topic: Topic) -> None:
        """Hold output added to ``client`` from here on: it acknowledges a publish to ``topic`` in this turn."""
        self._turn.busy_poll.note_command()
        if self._is_writing:
            commit = self._commit_of(topic)
            if client.output.seal(commit, command):
                commit.clients.append(client)

    def when_written(self, callback: Callable[[DiskQueueError | None], object], topic: Topic) -> None:
        """Call back when the publishes to ``topic`` in this turn can be acknowledged, at once if possible.

        The callback gets None, or the error if they failed.
        """
        self._turn.busy_poll.note_command()
        if self._is_writing:
            self._commit_of(topic).callbacks.append(callback)
        else:
            callback(None)

    def hold_until_recorded(self, client: Client, command: str, topic: Topic) -> None:
        """Hold output added to ``client`` from here on until ``topic`` and its current channels survive a power cut.

        They are named in nsqd.dat, or in the log of the topic. After a failure the client gets its answer nevertheless.
        """
        commit = Commit()
        if self._services.when_recorded(topic, partial(self._confirm, commit)):
            commit.pending_count += 1
        if topic.when_durable(lambda _: self._confirm(commit, None)):
            commit.pending_count += 1
        if commit.pending_count > 1:
            client.output.seal(commit, command)
            commit.clients.append(client)
        self._confirm(commit, None)

    def hold_until_durable(self, client: Client, command: str, topic: Topic) -> None:
        """Hold output added to ``client`` from here on until the publishes to the log of ``topic`` are durable."""
        self._turn.busy_poll.note_command()
        commit = Commit()
        if topic.when_durable(partial(self._confirm_log, commit, topic)):
            commit.pending_count += 1
            client.output.seal(commit, command)
            commit.clients.append(client)
        self._confirm(commit, None)

    def _commit_of(self, topic: Topic) -> Commit:
        commit = self._commits.get(topic)
        if commit is None:
            commit = self._commits[topic] = Commit()
        return commit

    def _confirm(self, commit: Commit, failure: DiskQueueError | None) -> None:
        """Count one completed or failed operation that ``commit`` waits for; answer after the last one."""
        commit.pending_count -= 1
        if commit.failure is None:
            commit.failure = failure
        if commit.pending_count:
            return
        commit.is_done = True
        for client in commit.clients:
            self._turn.send_to(client)
        for callback in commit.callbacks:
            callback(commit.failure)

    # Writing

    def write_later(self, queue: DiskQueue, pump: Pump) -> None:
        """Write the pending records of ``queue`` at the end of the turn, then call ``pump``."""
        self._write_at_end()
        self._writers[queue] = pump

    def write_logs_later(self, write: Callable[[], object]) -> None:
        """Call ``write`` at the end of the turn, before its commits begin."""
        self._write_at_end()
        self._log_writes.append(write)

    def _write_at_end(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._turn.end_later(self._write)

    def _write(self) -> None:
        """Write the records of this turn, begin its commits and syncs, and wake the pumps."""
        self._is_writing = False
        log_writes, self._log_writes = self._log_writes, []
        for write in log_writes:
            write()
        writers, self._writers = self._writers, {}
        commits, self._commits = self._commits, {}
        outcomes: dict[DiskQueue, DiskQueueError | None] = {}
        for queue in writers:
            try:
                queue.write_pending()
            except DiskQueueError as error:
                outcomes[queue] = error
            else:
                outcomes[queue] = None
        for topic, commit in commits.items():
            self._begin(commit, topic, outcomes)
        for queue, pump in writers.items():
            failure = outcomes[queue]
            if failure is None:
                self._written(queue)
            else:
                self._write_failed(queue, pump, failure)
            self._turn.wake(pump)
        if self._after_writes:
            after_writes, self._after_writes = self._after_writes, []
            for work in after_writes:
                work()

    def after_writes(self, work: Callable[[], object]) -> None:
        """Call ``work`` at the end of the turn, when the commits of all publishes so far have begun."""
        self._write_at_end()
        self._after_writes.append(work)

    def _begin(self, commit: Commit, topic: Topic, outcomes: dict[DiskQueue, DiskQueueError | None]) -> None:
        """Make ``commit`` wait for the log of ``topic``, or for those of its queues that were written in this turn."""
        written: list[DiskQueue] = []
        failure: DiskQueueError | None = None
        if outcomes:
            for queue in topic.disk_queues():
                if queue in outcomes:
                    written.append(queue)
                    failure = failure or outcomes[queue]
        if failure is None and written:
            confirm = partial(self._confirm, commit)
            for queue in written:
                if queue.unsynced_count() >= self._commit_at:
                    commit.pending_count += 1
                    queue.when_durable(confirm)
            if self._services.when_recorded(topic, confirm):
                commit.pending_count += 1
        elif topic.when_committed(partial(self._confirm_log, commit, topic)):
            commit.pending_count += 1
        self._confirm(commit, failure)

    def _confirm_log(self, commit: Commit, topic: Topic, failure: DiskQueueError | None) -> None:
        if failure is not None:
            topic.note_refused(len(commit.clients) + len(commit.callbacks), failure)
        self._confirm(commit, failure)

    def _written(self, queue: DiskQueue) -> None:
        if queue.failure is None:
            self.failure = ""
        self._note_failing(queue)
        self._sync_when_due(queue)

    def _write_failed(self, queue: DiskQueue, pump: Pump, failure: DiskQueueError) -> None:
        self.note_failure(failure)
        self._note_failing(queue)
        self._services.call_in(_RETRY_WRITE_NS, partial(self._write_again, queue, pump))

    def _write_again(self, queue: DiskQueue, pump: Pump) -> None:
        """Retry the records that could not be written."""
        if queue in self._failing and not self._is_closing:
            self.write_later(queue, pump)

    # Failures

    def note_failure(self, error: Exception) -> None:
        """Log a failed write. The broker is unhealthy until a write succeeds."""
        self.failure = str(error)
        self._log.error("failed to write to disk - %s", error)

    def note_success(self) -> None:
        """Note that the topic logs can be written again after a failure."""
        if not self.has_failures:
            self.failure = ""

    def recover(self, queue: DiskQueue) -> None:
        """Try to write a failing queue now; raises DiskQueueError if it still fails."""
        queue.write_pending()
        if queue.failure is not None:
            raise queue.failure
        self._written(queue)

    def forget(self, queue: DiskQueue) -> None:
        """Never write or sync ``queue`` again: it was deleted."""
        self._soon.discard(queue)
        self._later.discard(queue)
        self._overdue.pop(queue, None)
        self._failing.discard(queue)
        self.has_failures = len(self._failing) > 0

    def release(self, queue: DiskQueue, done: Callable[[], object]) -> None:
        """Call ``done`` when nothing waits for a sync of ``queue`` and none is running. It is not used any more then.

        Nothing may be put into the queue. Its pending records are not written.
        """
        self._released[queue] = done
        self._release_when_idle(queue)

    def _release_when_idle(self, queue: DiskQueue) -> None:
        if queue.is_awaited() and not self._is_closing:
            self._sync(queue)
        if queue.is_syncing():
            return
        self.forget(queue)
        self._released.pop(queue)()

    def _note_failing(self, queue: DiskQueue) -> None:
        if queue.failure is None:
            self._failing.discard(queue)
        else:
            self._failing.add(queue)
        self.has_failures = len(self._failing) > 0

    # Syncing

    def sync_later(self, queue: DiskQueue) -> None:
        """Note that messages of ``queue`` were read or finished, so its positions must be saved eventually."""
        if queue.are_positions_due(self._sync_every):
            self._soon.add(queue)
        else:
            self._later.add(queue)

    def _sync_when_due(self, queue: DiskQueue) -> None:
        """Sync the records of ``queue`` now if a commit waits for it or there are many; its positions follow later."""
        if queue.is_awaited() or queue.unsynced_count() >= self._sync_every:
            self._sync(queue)
        if queue.has_unsynced():
            self.sync_later(queue)

    def _on_positions_due(self, queues: Collection[DiskQueue]) -> None:
        for queue in queues:
            if queue.has_unsynced():
                self._overdue[queue] = None
        self._save_positions()

    def _on_timeout(self, queues: Collection[DiskQueue]) -> None:
        self._on_positions_due(queues)
        for queue in queues:
            queue.release_idle_files()

    def _save_positions(self) -> None:
        """Begin syncs that save positions, as many as there are threads for them."""
        for queue in list(self._overdue):
            if len(self._saves) >= SAVE_THREADS:
                return
            self._sync(queue, saves_positions=True)

    def _sync(self, queue: DiskQueue, *, saves_positions: bool = False) -> None:
        """Begin a sync, unless one is in progress. Its end starts the next one if it is needed."""
        if self._is_closing:
            return
        try:
            job = queue.begin_sync(saves_positions=saves_positions)
        except OSError as error:
            self._sync_failed(queue, error)
            return
        if job is None:
            return
        if job.positions is not None:
            self._overdue.pop(queue, None)
        if saves_positions:
            self._saves.add(job)
        self.threads.run(job, partial(self._turn.run, self._synced), is_urgent=not saves_positions)

    def _synced(self, job: SyncJob) -> None:
        queue = job.queue
        queue.end_sync(job)
        self._saves.discard(job)
        if job.error is not None:
            self._sync_failed(queue, job.error)
        else:
            if queue in self._failing and queue.failure is None:
                self.failure = ""
            self._note_failing(queue)
            if queue.depth == 0 and not queue.has_unsynced():
                self._later.add(queue)  # closes the files if the queue stays empty
        self._save_positions()
        if queue in self._released:
            self._release_when_idle(queue)
        elif job.error is None or queue.is_awaited():
            self._sync_when_due(queue)

    def _sync_failed(self, queue: DiskQueue, error: OSError) -> None:
        self._log.error("DISKQUEUE(%s) failed to sync - %s", queue.name, error)
        self.failure = error.strerror or str(error)
        self._note_failing(queue)
        self._overdue.pop(queue, None)
        self._later.add(queue)

    def close(self) -> Awaitable[None]:
        """Begin no other sync; the result can be awaited to wait for the syncs in progress."""
        self._is_closing = True
        self._soon.close()
        self._later.close()
        return self.threads.close()
