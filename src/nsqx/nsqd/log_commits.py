"""The topic logs of the broker: when they are written, checkpointed and read, and who waits for that.

Everything that is appended to logs in one turn is written at its end, as one frame of the commit file. While a job
runs, the next frame gathers, so many publishers share one fsync. A small frame that needs no fsync is written in the
event loop if the last one was quick. All other jobs run in threads.

Publishers that wait for one fsync each would get one fsync after the other. So before a commit that must be synced, the
loop polls for a moment until as many publishes wait as there were around the last commit (see ``_gather``).

Finished messages are no reason for a write of their own: they wait up to _CHANGES_NS for a frame. What no client waits
for is synced with the next frame that is, or after --sync-timeout.

Once a second, the limits of logs that have changed are applied (see ``log_retention``), and finished segments are
searched. A checkpoint removes these.

If a sync fails, the batches are written to another file at once. If a write fails, those who wait get the error, new
publishes are refused, and the write is retried every second.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EDQUOT, ENOSPC
from functools import partial
from typing import TYPE_CHECKING

from nsqx.errors import DiskQueueError
from nsqx.nsqd.free_disk import FreeDisk, low_space
from nsqx.nsqd.histogram import Histogram
from nsqx.nsqd.log_stats import DURATIONS_NS, MESSAGE_COUNTS
from nsqx.queues.ids import IdSource
from nsqx.queues.log.blocks import LogBlocks
from nsqx.queues.log.log import LEDGER_LOG
from nsqx.queues.log.recovery import read_boot_id
from nsqx.queues.log.store import LogOptions, LogStore
from nsqx.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqd.clock import Clock, Timer
    from nsqx.nsqd.group_commit import CommitServices, GroupCommit
    from nsqx.nsqd.log_flow import LogFlow
    from nsqx.nsqd.options import NsqdOptions
    from nsqx.nsqd.sync_threads import AnyJob
    from nsqx.nsqd.turn import Turn
    from nsqx.queues.log.jobs import CheckpointJob, CommitJob
    from nsqx.queues.log.log import TopicLog

# How long finished messages wait for a frame.
_CHANGES_NS = 50 * NS_PER_MS
# The part of --log-memory for blocks that are read from segments. The newest messages of the logs have the rest.
_BLOCKS_SHARE = 4
_RETRY_NS = NS_PER_S
# The delay before the next checkpoint if one could not release all full commit files.
_CHECKPOINT_AGAIN_NS = 10 * NS_PER_MS
# How long a changed log waits until finished segments are searched.
_FINISHED_NS = NS_PER_S
# A frame up to this size is written in the event loop, if the last such write was not slower than this.
_INLINE_SIZE = 256 * 1024
_INLINE_NS = NS_PER_MS
# A commit waits for other publishes at most as long as the last one took, and at most this long.
_GATHER_NS = 200_000
# If they did not come, so many commits do not wait.
_REST_COMMITS = 64


class _Waiter:
    """A call that waits until the first ``batch_count`` batches of a log are written, and durable if it needs that."""

    __slots__ = ("batch_count", "done", "is_synced", "log")

    def __init__(
        self, log: TopicLog, batch_count: int, is_synced: bool, done: Callable[[DiskQueueError | None], object]
    ) -> None:
        self.log = log
        self.batch_count = batch_count
        self.is_synced = is_synced
        self.done = done


class LogWatch:
    """A call for each commit and checkpoint."""

    def __init__(self, watchers: dict[object, Callable[[], object]]) -> None:
        self._watchers = watchers

    def cancel(self) -> None:
        """Make no more calls."""
        self._watchers.pop(self, None)


class LogCommits:
    """The store of all topic logs, and the jobs that write and read it."""

    __slots__ = (
        "_changed",
        "_changes_timer",
        "_checkpoint",
        "_checkpoint_start_ns",
        "_clock",
        "_commit",
        "_commit_start_ns",
        "_commits",
        "_committed_count",
        "_crowd",
        "_data_path",
        "_end_commit_in_turn",
        "_finished_timer",
        "_flows",
        "_free_disk",
        "_gather_rest",
        "_gather_until_ns",
        "_has_sync_failed",
        "_ids",
        "_is_closing",
        "_is_gathering",
        "_is_noted",
        "_is_quick",
        "_is_sync_wanted",
        "_is_wanted",
        "_logger",
        "_request_count",
        "_retry_timer",
        "_services",
        "_space_timer",
        "_store",
        "_sync_timeout_ns",
        "_sync_timer",
        "_turn",
        "_waiters",
        "_watchers",
        "blocks",
        "checkpoints",
        "cold_read_count",
        "commits",
        "damaged_count",
        "failure",
        "messages",
        "options",
    )

    def __init__(
        self,
        data_path: str,
        options: NsqdOptions,
        turn: Turn,
        commits: GroupCommit,
        services: CommitServices,
        clock: Clock,
        log: Log,
    ) -> None:
        self.options = LogOptions(
            commit_size=options.commit_bytes,
            segment_size=max(options.max_bytes_per_file, 1),
            memory_size=options.log_memory - options.log_memory // _BLOCKS_SHARE,
        )
        self.blocks = LogBlocks(options.log_memory // _BLOCKS_SHARE)
        self.failure: DiskQueueError | None = None  # while the logs cannot be written
        self.damaged_count = 0  # messages that could not be read
        self.cold_read_count = 0
        self.commits = Histogram(DURATIONS_NS)
        self.messages = Histogram(MESSAGE_COUNTS)  # of a commit
        self.checkpoints = Histogram(DURATIONS_NS)
        self._data_path = data_path
        self._turn = turn
        self._commits = commits
        self._services = services
        self._clock = clock
        self._logger = log
        self._free_disk = FreeDisk(data_path, options.min_free_disk)
        self._ids = IdSource(options.id)
        self._sync_timeout_ns = options.sync_timeout
        self._store: LogStore | None = None
        self._flows: dict[TopicLog, LogFlow] = {}
        self._changed: dict[LogFlow, None] = {}  # flows with changes that are not in their logs yet
        self._waiters: list[_Waiter] = []
        self._watchers: dict[object, Callable[[], object]] = {}
        self._commit: CommitJob | None = None
        self._checkpoint: CheckpointJob | None = None
        self._end_commit_in_turn = partial(turn.run, self._end_commit)
        self._commit_start_ns = 0
        self._checkpoint_start_ns = 0
        self._is_noted = False  # a commit begins at the end of the turn
        self._is_wanted = False  # a commit begins after the one that runs
        self._is_sync_wanted = False
        self._request_count = 0  # requests for a synced commit that wait for one
        self._committed_count = 0  # such requests that the commit satisfies which runs, or was the last
        self._crowd = 0  # such requests around the last commit: those in it, and those that came meanwhile
        self._is_gathering = False
        self._gather_until_ns = 0
        self._gather_rest = 0  # commits that do not wait for other publishes
        self._is_quick = True
        self._is_closing = False
        self._has_sync_failed = False  # in the last commit
        self._changes_timer: Timer | None = None
        self._sync_timer: Timer | None = None
        self._retry_timer: Timer | None = None
        self._space_timer: Timer | None = None
        self._finished_timer: Timer | None = None

    # Logs

    def load(self) -> list[TopicLog]:
        """Open the logs that an earlier process left, and return those of topics; raises OSError."""
        start_ns = self._clock.now_ns()
        store = self._store = LogStore(self._data_path, self.options, read_boot_id(), self._logger)
        while store.is_recovering:
            job = store.begin_checkpoint()
            if job is None:
                break
            job.run()
            store.end_checkpoint(job)
            if job.error is not None:
                self._fail(job.error)
                break
        self.damaged_count = store.damaged_count
        if store.logs:
            duration_ms = (self._clock.now_ns() - start_ns) // NS_PER_MS
            self._logger.info("LOG: opened %d topic logs in %d ms", len(store.logs), duration_ms)
        return [log for log in store.logs.values() if log.topic != LEDGER_LOG]

    @property
    def is_recovering(self) -> bool:
        """True until the messages of an earlier process are in segments, which is so unless that has failed."""
        return self._store is not None and self._store.is_recovering

    @property
    def has_logs(self) -> bool:
        """True if a topic has a log."""
        return self._store is not None and len(self._store.logs) > (LEDGER_LOG in self._store.logs)

    @property
    def fill_ratio(self) -> float:
        """The part of the current commit file that is in use, from 0 to 1."""
        return self._store.fill_ratio if self._store is not None else 0.0

    @property
    def memory_size(self) -> int:
        """The memory that messages take, about."""
        return self._store.memory_size + self.blocks.size if self._store is not None else 0

    def find(self, topic_name: str) -> TopicLog | None:
        """Return the log of a topic, or None."""
        return self._store.logs.get(topic_name) if self._store is not None else None

    def create(self, topic_name: str) -> TopicLog:
        """Return the log of a new topic."""
        assert self._store is not None
        now_ns = self._clock.wall_ns()
        return self._store.create_log(topic_name, self._ids.reserve(1, now_ns), now_ns)

    def find_ledger(self) -> TopicLog | None:
        """Return the log that has the ledger of transactions; None before the first one."""
        return self.find(LEDGER_LOG)

    def open_ledger(self) -> TopicLog:
        """Return the log that has the ledger of transactions, and create it if needed. It has no flow."""
        return self.find(LEDGER_LOG) or self.create(LEDGER_LOG)

    def add(self, log: TopicLog, flow: LogFlow) -> None:
        """Tell ``flow`` what is written to its log from now on."""
        self._flows[log] = flow
        self._find_finished_later()

    def remove(self, log: TopicLog) -> None:
        """Write the last changes of the flow of a log, which is not used any more. The log stays."""
        flow = self._flows.pop(log)
        self._changed.pop(flow, None)
        flow.write_changes()
        self.write_later(is_synced=True)

    def delete(self, log: TopicLog) -> None:
        """Delete a log with its files. Publishers that wait for its messages get their answers."""
        assert self._store is not None
        flow = self._flows.pop(log, None)
        if flow is not None:
            self._changed.pop(flow, None)
        waiters = [waiter for waiter in self._waiters if waiter.log is log]
        self._waiters = [waiter for waiter in self._waiters if waiter.log is not log]
        self._store.delete_log(log)
        self.blocks.forget(log)
        for waiter in waiters:
            waiter.done(None)
        self.write_later(is_synced=True)

    def join(self, *logs: TopicLog) -> None:
        """Write all that is pending in these logs in one frame: after a crash all of it is there or nothing."""
        assert self._store is not None
        self._store.join(*logs)

    # Requests to write

    def write_later(self, is_synced: bool = False) -> None:
        """Write what was appended to logs at the end of the turn, and sync it if ``is_synced``."""
        if is_synced:
            self._is_sync_wanted = True
            self._request_count += 1
        if not self._is_noted:
            self._is_noted = True
            self._commits.write_logs_later(self._write)

    def note_changes(self, flow: LogFlow, *, is_urgent: bool) -> None:
        """Collect and write the changes of the channels of ``flow``, at the end of the turn if urgent, else soon."""
        self._changed[flow] = None
        if is_urgent:
            self.write_later()
        elif self._changes_timer is None and not self._is_closing:
            self._changes_timer = self._services.call_in(_CHANGES_NS, self._on_changes_due)

    def _on_changes_due(self) -> None:
        self._changes_timer = None
        self.write_later()

    def refuse_if_full(self, now_ns: int, flow: LogFlow | None = None) -> None:
        """Raise DiskQueueError if nothing can be appended: the logs cannot be written, or the disk is nearly full.

        ``flow`` counts the refusal of a publish.
        """
        if self.failure is not None:
            if flow is not None:
                flow.note_refused(1, self.failure)
            raise self.failure
        try:
            self._free_disk.refuse_if_low(now_ns)
        except DiskQueueError as error:
            if flow is not None:
                flow.note_refused(1, error)
            self._await_space(error)
            raise

    def when_committed(self, log: TopicLog, is_synced: bool, done: Callable[[DiskQueueError | None], object]) -> bool:
        """Call ``done`` when everything in ``log`` is written, and durable if ``is_synced``; False if it is already.

        If a write fails, ``done`` gets the error.
        """
        waiter = _Waiter(log, log.given_count + log.pending_count, is_synced, done)
        if _is_done(waiter):
            return False
        self._waiters.append(waiter)
        if self.failure is not None:
            self._turn.end_later(self._refuse_waiters)
        elif self._commit is None:
            self.write_later()  # the first changes after a power cut wait for a reason to be written
        return True

    # Commits

    def _write(self) -> None:
        self._is_noted = False
        if self._commit is not None:
            self._is_wanted = True
        elif not self._is_gathering:
            self._begin_or_gather()

    def _begin_or_gather(self) -> None:
        """Begin a commit, at once or when the publishes have come that are likely to come soon."""
        if not 0 < self._request_count < self._crowd or not self._turn.busy_poll.is_on or self.failure is not None:
            self._begin_commit()
        elif self._gather_rest > 0:
            self._gather_rest -= 1
            self._begin_commit()
        elif self._clock.now_ns() < self._gather_until_ns:
            self._is_gathering = True
            self._turn.end_later(self._gather)
        else:
            self._begin_commit()

    def _gather(self) -> None:
        """Poll until enough publishes wait, or the time is over."""
        if self._request_count < self._crowd:
            if self._clock.now_ns() < self._gather_until_ns:
                self._turn.end_later(self._gather)
                return
            self._gather_rest = _REST_COMMITS
        self._is_gathering = False
        self._begin_commit()

    def _begin_commit(self) -> None:
        """Begin a commit, and a checkpoint if one is wanted."""
        store = self._store
        if store is None or self._commit is not None or self._is_closing or self._retry_timer is not None:
            return
        self._is_wanted = False
        self._collect_changes()
        is_synced = self._is_sync_wanted
        for waiter in self._waiters:
            if waiter.is_synced:
                is_synced = True
        job = store.begin_commit(is_synced=is_synced)
        if job is not None:
            self._is_sync_wanted = False
            self._committed_count, self._request_count = self._request_count, 0
            self._commit = job
            self._run(job)
        if store.wants_checkpoint or store.is_full:
            self._begin_checkpoint()

    def _collect_changes(self) -> None:
        if self._changed:
            changed, self._changed = self._changed, {}
            for flow in changed:
                flow.write_changes()

    def _run(self, job: CommitJob) -> None:
        start_ns = self._commit_start_ns = self._clock.now_ns()
        if not self._is_quick or not job.is_brief(_INLINE_SIZE):
            self._is_quick = True
            self._commits.threads.run(job, self._end_commit_in_turn, is_urgent=True)
            return
        job.run()
        now_ns = self._clock.now_ns()
        self._is_quick = now_ns - start_ns <= _INLINE_NS
        self._end_commit_at(job, now_ns)

    def _end_commit(self, job: CommitJob) -> None:
        self._end_commit_at(job, self._clock.now_ns())

    def _end_commit_at(self, job: CommitJob, now_ns: int) -> None:
        store = self._store
        assert store is not None
        store.end_commit(job)
        self._commit = None
        duration_ns = now_ns - self._commit_start_ns
        self.commits.add(duration_ns)
        if self._committed_count:
            self._crowd = self._committed_count + self._request_count
            self._gather_until_ns = now_ns + min(duration_ns, _GATHER_NS)
        message_count = 0
        error = job.error
        for taken in (job.framed, job.direct):
            for _, batches in taken:
                for batch in batches:
                    if batch.has_offsets:
                        message_count += batch.count
        for write in job.segment_writes:
            error = error or write.error
        self.messages.add(message_count)
        for taken in (job.framed, job.direct):
            for log, _ in taken:
                self._release(log)
        self._settle()
        if job.failed_sync is not None and not self._has_sync_failed:
            # The batches go to another file now. Publishers get the error only if that fails too.
            self._has_sync_failed = self._is_sync_wanted = True
            self._logger.error("LOG: failed to sync %s - %s", job.failed_sync.path, error)
            self._begin_commit()
            if self._commit is not None or not self._has_sync_failed:
                return
        if error is not None:
            self._fail(error)
            return
        self._has_sync_failed = False
        self._succeed()
        if store.has_unsynced and self._sync_timer is None and not self._is_closing:
            self._sync_timer = self._services.call_in(self._sync_timeout_ns, self._on_sync_due)
        self._find_finished_later()
        if self._is_wanted or self._waiters or store.has_pending or store.wants_checkpoint:
            self._begin_or_gather()

    def _release(self, log: TopicLog) -> None:
        """Let the channels have what is written."""
        flow = self._flows.get(log)
        if flow is not None:
            flow.release()

    def watch(self, has_changed: Callable[[], object]) -> LogWatch:
        """Call ``has_changed`` after each commit and checkpoint, in which offsets may have become durable."""
        watch = LogWatch(self._watchers)
        self._watchers[watch] = has_changed
        return watch

    def _settle(self) -> None:
        """Answer those who have waited long enough."""
        for has_changed in list(self._watchers.values()):
            has_changed()
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        done: list[_Waiter] = []
        for waiter in waiters:
            (done if _is_done(waiter) else self._waiters).append(waiter)
        for waiter in done:
            waiter.done(None)

    def _on_sync_due(self) -> None:
        self._sync_timer = None
        if self._store is not None and self._store.has_unsynced:
            self._is_sync_wanted = True
            self.write_later()

    # Checkpoints

    def _begin_checkpoint(self) -> None:
        assert self._store is not None
        if self._checkpoint is not None or self._is_closing:
            return
        self._checkpoint = self._store.begin_checkpoint()
        if self._checkpoint is not None:
            self._checkpoint_start_ns = self._clock.now_ns()
            done = partial(self._turn.run, self._end_checkpoint)
            self._commits.threads.run(self._checkpoint, done, is_urgent=False)

    def _end_checkpoint(self, job: CheckpointJob) -> None:
        store = self._store
        assert store is not None
        self._checkpoint = None
        self.checkpoints.add(self._clock.now_ns() - self._checkpoint_start_ns)
        store.end_checkpoint(job)
        for log in list(self._flows):
            self._release(log)
        for log in job.finished:
            if log in self._flows:
                self._flows[log].forget_removed()
        self._settle()
        self._find_finished_later()
        if job.error is not None and (store.is_full or store.is_recovering):
            self._fail(job.error)
        elif job.error is not None:
            # There is room in the commit file, so publishes go on.
            self._commits.note_failure(DiskQueueError(job.error.strerror or str(job.error)))
            self._services.call_in(_RETRY_NS, self._begin_commit)
        else:
            if self._retry_timer is None:  # otherwise a failed commit must be repeated
                self._succeed()
                self._commits.note_success()
            if store.wants_checkpoint:
                # What is not durable yet could not be used.
                self._is_sync_wanted = True
                self._services.call_in(_CHECKPOINT_AGAIN_NS, self._begin_commit)
            elif self._waiters or store.has_pending:
                self._begin_commit()

    # Finished segments

    def look_at(self, log: TopicLog) -> None:
        """Apply the limits of a log again, and search it for segments that can be removed."""
        if self._store is not None:
            self._store.look_at(log)
            self._find_finished_later()

    def _find_finished_later(self) -> None:
        is_possible = self._store is not None and self._store.has_changed and not self._is_closing
        if is_possible and self._finished_timer is None:
            self._finished_timer = self._services.call_in(_FINISHED_NS, self._find_finished)

    def _find_finished(self) -> None:
        self._finished_timer = None
        if self._store is not None and not self._is_closing:
            for log in self._store.changed:
                if log in self._flows:
                    self._flows[log].retention.check()
            self._store.find_finished()
            if self._store.wants_checkpoint:
                self._begin_checkpoint()
            self._find_finished_later()

    # Failures

    def _fail(self, error: OSError) -> None:
        """Refuse publishes until a retry succeeds."""
        self.failure = _failure(error)
        self._commits.note_failure(self.failure)
        self._refuse_waiters()
        if self._retry_timer is None and not self._is_closing:
            self._retry_timer = self._services.call_in(_RETRY_NS, self._retry)

    def _refuse_waiters(self) -> None:
        if self.failure is not None:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.done(self.failure)

    def _succeed(self) -> None:
        if self.failure is not None:
            self.failure = None
            self._commits.note_success()

    def _retry(self) -> None:
        self._retry_timer = None
        self._begin_commit()
        if self._commit is None and self._checkpoint is None and self._retry_timer is None:
            self._succeed()  # there was nothing to write

    def _await_space(self, error: DiskQueueError) -> None:
        """Be unhealthy until there is enough space. It is measured each second, even without publishes."""
        if self._space_timer is None and not self._is_closing:
            self._commits.note_failure(error)
            self._space_timer = self._services.call_in(_RETRY_NS, self._check_space)

    def _check_space(self) -> None:
        self._space_timer = None
        try:
            self._free_disk.refuse_if_low(self._clock.wall_ns())
        except DiskQueueError as error:
            self._await_space(error)
            return
        if self.failure is None:
            self._commits.note_success()

    # Reading

    def read(self, job: AnyJob, done: Callable[[AnyJob], object]) -> None:
        """Run ``job`` in a thread, then call ``done`` in a turn. Nothing is read at exit."""
        if not self._is_closing:
            self.cold_read_count += 1
            self._commits.threads.run(job, partial(self._turn.run, done), is_urgent=True)

    # Exit

    def stop(self) -> None:
        """Begin no other job."""
        self._is_closing = True
        timers = (self._changes_timer, self._sync_timer, self._retry_timer, self._space_timer, self._finished_timer)
        for timer in timers:
            if timer is not None:
                timer.cancel()

    def flush(self) -> bool:
        """Write everything now; False if that fails. No job may be running."""
        store = self._store
        if store is None:
            return True
        self._collect_changes()
        while True:
            job = store.begin_commit(is_synced=True)
            if job is None:
                return not store.has_unsynced or store.is_full
            job.run()
            store.end_commit(job)
            if store.failure is not None:
                return False

    def close(self) -> None:
        """Write everything and close the files. If that fails, everything acknowledged is in the commit files."""
        self.stop()
        store, self._store = self._store, None
        if store is None:
            return
        try:
            self._collect_changes()
            store.close()
        except OSError as error:
            self._logger.error("LOG: failed to write the logs at exit - %s", error)
        for log in store.logs.values():
            count = sum(batch.count for batch in log.pending if batch.has_offsets)
            if count:
                text = "LOG(%s): %d messages could not be written, and none of them was acknowledged"
                self._logger.error(text, log.topic, count)


def _failure(error: OSError) -> DiskQueueError:
    text = error.strerror or str(error)
    return low_space(text) if error.errno in (ENOSPC, EDQUOT) else DiskQueueError(text)


def _is_done(waiter: _Waiter) -> bool:
    log = waiter.log
    return (log.safe_count if waiter.is_synced else log.written_count) >= waiter.batch_count
