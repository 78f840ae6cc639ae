"""The store of all topic logs of a broker: commit files, checkpoints, and the memory that batches take.

The caller appends to logs, and then repeats, as often as it likes:

      job = store.begin_commit(is_synced=True)    # None if there is nothing to write, or nothing can be written now
      job.run()                                   # in any thread
      store.end_commit(job)                       # ``written`` and ``stable`` of the logs have changed

      job = store.begin_checkpoint()              # when ``wants_checkpoint``; may run at the same time as a commit
      job.run()
      store.end_checkpoint(job)

All batches of all logs go into one frame of the commit file. A log with much to write writes its segment directly. A
checkpoint writes to segments only batches that are durable in a commit file, because a frame may change several logs
at once.

Batches become durable in their order. So a segment is written directly only if the frames with earlier batches are
durable, and a frame gets batches of a log only if its direct writes are.

If both commit files are full, ``is_full`` is true until a checkpoint has succeeded. After a failed sync, the file is
given up: its batches are still in memory and are written to another file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from nsqx.queues.log.batch import LogBatch, seed_of
from nsqx.queues.log.commit_file import (
    ENTRY_OVERHEAD,
    FRAME_OVERHEAD,
    FRAMES_AT,
    NAME_PREFIX,
    SERIAL_BITS,
    CommitFile,
    CommitHeader,
    Entry,
    encode_frame,
    identity_record,
)
from nsqx.queues.log.identity import LogIdentity, next_tick
from nsqx.queues.log.jobs import CheckpointJob, CommitJob, SegmentWrite, remove_set_aside
from nsqx.queues.log.log import TopicLog, log_directory
from nsqx.queues.log.recovery import NO_BOOT_ID, Recovery
from nsqx.queues.log.segment import SegmentWriter, remove_incomplete
from nsqx.queues.log.state import LogState

if TYPE_CHECKING:
    from nsqx.queues.log.jobs import Taken
    from nsqx.queues.positions import QueueLog

_FRAMES_AT = FRAMES_AT
_FRAME_OVERHEAD = FRAME_OVERHEAD
_ENTRY_OVERHEAD = ENTRY_OVERHEAD
_MAX_FILES = 16
# A small frame is followed by so many zeros: this part of a commit file.
_ZEROS_SHARE = 256
# How many segments may be open because they are not synced.
_MAX_UNSYNCED_SEGMENTS = 256


@dataclass(frozen=True)
class LogOptions:
    """Sizes in bytes, except for ``lease_step``, which is a number of offsets."""

    commit_size: int = 64 * 1024 * 1024
    segment_size: int = 100 * 1024 * 1024
    direct_size: int = 128 * 1024
    unsynced_direct_size: int = 32 * 1024  # the same for a commit that is not synced: a segment is written only once
    memory_size: int = 128 * 1024 * 1024
    unsynced_size: int = 32 * 1024 * 1024
    lease_step: int = 1 << 22
    idle_size: int = 1024 * 1024  # the newest segment is replaced if it is larger and all messages are finished


class _Framed(NamedTuple):
    """A batch in a frame that is not durable yet."""

    log: TopicLog
    batch: LogBatch


class LogStore:
    """All logs in a data directory. Not thread-safe; only its jobs can run in other threads."""

    __slots__ = (
        "_active",
        "_again",
        "_boot_id",
        "_changed",
        "_checkpoint",
        "_commit",
        "_damaged_paths",
        "_data_path",
        "_deleted",
        "_deleted_directories",
        "_deleting",
        "_files",
        "_finished",
        "_free",
        "_generation",
        "_is_clean",
        "_is_recovering",
        "_joined",
        "_logger",
        "_pending",
        "_recovered",
        "_skipping",
        "_synced_below",
        "_unsafe",
        "_unsynced",
        "_unsynced_file",
        "_unsynced_segments",
        "_unsynced_size",
        "_unused_paths",
        "damaged_count",
        "failure",
        "highest_id",
        "is_full",
        "logs",
        "options",
    )

    def __init__(self, data_path: str, options: LogOptions, boot_id: bytes, logger: QueueLog) -> None:
        """Open the logs that an earlier process left. Raises OSError.

        ``boot_id`` has 16 bytes that change with every start of the machine, or is NO_BOOT_ID if they are unknown.
        """
        self.options = options
        self.logs: dict[str, TopicLog] = {}  # by topic
        self.failure: OSError | None = None  # of the last commit or checkpoint
        self.is_full = False
        self.highest_id = 0
        self._data_path = data_path
        self._boot_id = boot_id
        self._logger = logger
        self._pending: dict[TopicLog, None] = {}
        self._joined: list[set[TopicLog]] = []
        self._files: list[CommitFile] = []  # in use, oldest first
        self._active: CommitFile | None = None
        self._free: list[CommitFile] = []
        self._unused_paths: list[str] = []
        self._commit: CommitJob | None = None
        self._checkpoint: CheckpointJob | None = None
        self._skipping: list[TopicLog] = []  # whose first change must be in the first frame
        self._is_recovering = False  # until the batches of the earlier process are in segments
        self._recovered: dict[TopicLog, int] = {}  # logs with such batches
        self._synced_below = 0
        self._unsynced: list[_Framed] = []  # in frames that are not durable
        self._unsynced_size = 0
        self._unsynced_file: CommitFile | None = None
        self._unsynced_segments: set[TopicLog] = set()  # logs with direct writes since the last sync
        self._again: list[_Framed] = []  # in frames that a failed sync has lost
        self._unsafe: dict[TopicLog, None] = {}  # logs with written batches that are not durable
        self._changed: dict[TopicLog, None] = {}  # logs written since ``find_finished``
        self._finished: dict[TopicLog, None] = {}  # logs with segments that the next checkpoint may remove
        self._deleting: dict[str, TopicLog] = {}  # by topic, not durably deleted
        self._deleted: list[TopicLog] = []  # durably; their directories must be removed
        self._load()

    # Opening

    def _load(self) -> None:
        recovery = Recovery(self._data_path, self._boot_id, self.options.lease_step, self._logger)
        recovery.run(self.options.segment_size)
        self.damaged_count = recovery.damaged_count
        self._is_clean = recovery.is_clean
        self.highest_id = recovery.highest_id
        self._generation = recovery.generation
        self._synced_below = (recovery.generation + 1) << SERIAL_BITS
        for loaded in recovery.logs:
            log = TopicLog(loaded.writer, loaded.state, loaded.held, self.options.lease_step, self._note_pending)
            self.logs[log.topic] = log
            self._note_highest_id(log)
            if os.path.isdir(loaded.writer.directory):
                remove_incomplete(loaded.writer.directory)
            self._changed[log] = None
            if loaded.needs_checkpoint:
                self._recovered[log] = log.given_count
            if loaded.skips_to:
                log.skip_to(loaded.skips_to)
                self._skipping.append(log)
            log.lose(loaded.lost)
        for path in recovery.paths:
            file = self._new_file(path)
            if recovery.is_clean:
                file.cut_to(self.options.commit_size)  # it may have had the frame of a large transaction
                self._free.append(file)
            else:
                self._files.append(file)
        self._damaged_paths = recovery.damaged_files
        self._is_recovering = bool(self._files or self._recovered or self._damaged_paths)
        self._deleted_directories = recovery.deleted_directories
        remove_set_aside(self._data_path)

    def _note_highest_id(self, log: TopicLog) -> None:
        self.highest_id = max(self.highest_id, log.identity.id_number(max(log.state.lease, log.state.end)))

    # Logs

    def create_log(self, topic: str, first_id: int, now_ns: int) -> TopicLog:
        """Create the log of a topic. It survives a crash as soon as a batch of it is durable.

        Its message ids begin at ``first_id``, or after the highest id ever used if that is higher.
        """
        if first_id <= self.highest_id:
            first_id = next_tick(self.highest_id, first_id)
        identity = LogIdentity(topic, secrets.randbits(64), first_id, now_ns, self.options.lease_step)
        directory = log_directory(self._data_path, topic)
        writer = SegmentWriter(directory, identity, LogState(identity.lease), [], self.options.segment_size)
        writer.is_new = True
        log = TopicLog(writer, LogState(identity.lease), [], self.options.lease_step, self._note_pending)
        self.logs[topic] = log
        self._note_highest_id(log)
        if topic in self._deleting:
            # After a crash there must not be two logs of the topic.
            self.join(self._deleting[topic], log)
        return log

    def delete_log(self, log: TopicLog) -> None:
        """Delete a log with the next commit. The next checkpoint after that removes its directory."""
        del self.logs[log.topic]
        self._changed.pop(log, None)
        self._finished.pop(log, None)
        self._note_highest_id(log)
        self._joined = [group - {log} for group in self._joined]
        self._deleting[log.topic] = log
        log.delete()

    def join(self, *logs: TopicLog) -> None:
        """Write all that is pending in these logs in one frame, so that after a crash all of it is there or nothing.

        This has a meaning for a single log too: otherwise a large write goes to its segment batch by batch.
        """
        group = set(logs)
        apart = []
        for other in self._joined:
            if group & other:
                group |= other
            else:
                apart.append(other)
        self._joined = [*apart, group]

    def _note_pending(self, log: TopicLog) -> None:
        self._pending[log] = None

    # Commits

    @property
    def is_recovering(self) -> bool:
        """True until the first checkpoint after a crash: nothing is written, and recovered messages are unseen."""
        return self._is_recovering

    @property
    def has_pending(self) -> bool:
        """True if something waits for a write."""
        return bool(self._pending)

    @property
    def has_unsynced(self) -> bool:
        """True if a synced commit would make something durable."""
        return bool(self._pending or self._unsafe or self._again)

    def begin_commit(self, is_synced: bool) -> CommitJob | None:
        """Return a job that writes all that is pending, or as much as possible; None if there is nothing to do now."""
        if self._commit is not None or self._is_recovering:
            return None
        framed, direct = self._select(self.options.direct_size if is_synced else self.options.unsynced_direct_size)
        if self._again or self._unsynced_size >= self.options.unsynced_size:
            is_synced = True
        if direct and len(self._unsynced_segments) + len(direct) > _MAX_UNSYNCED_SEGMENTS:
            is_synced = True
        for log, _ in framed:
            if log.is_lease_wanted() or log.is_deleted or log.is_segment_unsynced():
                is_synced = True
        for log, _ in direct:
            if log.is_lease_wanted() or log.is_frame_unsafe():
                is_synced = True
        if not (framed or direct or self._again or (is_synced and self._unsafe)):
            return None
        file = self._file_for(framed, direct)
        self.is_full = file is None
        if file is None:
            return self._begin_segment_sync()
        is_first = file.position == _FRAMES_AT
        for log, _ in direct:
            if log not in file.numbers:
                is_synced = True
        job = CommitJob(file, is_synced or is_first, framed, direct)
        if is_first and self._unsynced:
            job.unsynced_file = self._unsynced_file
        self._give(job)
        self._commit = job
        return job

    def _begin_segment_sync(self) -> CommitJob | None:
        """Return a job that needs no room in a commit file. Without it the files may stay full."""
        logs = [log for log in self._unsafe if log.is_segment_unsynced() and self._can_write_segment(log)]
        if self._active is None or not logs:
            return None
        job = CommitJob(self._active, True, [], [])
        self._give(job)
        self._commit = job
        return job

    def _select(self, direct_size: int) -> tuple[list[Taken], list[Taken]]:
        """Return the batches for the frame, and those of logs that write their segment directly.

        These have ``direct_size`` bytes or more to write, or their last direct write is not durable.
        """
        if self._skipping:
            # The next process will assume that no offsets are lost, because the first frame has the new boot id.
            return [(log, log.pending[:1]) for log in self._skipping], []
        framed: list[Taken] = []
        direct: list[Taken] = []
        room = max_size = (self.options.commit_size - _FRAMES_AT) // 2
        groups = self._pending_groups() if self._joined else [(log,) for log in self._pending]
        for group in groups:
            if not isinstance(group, tuple) and self._must_wait(group):
                continue
            taken: list[Taken] = []
            size = 0
            for log in group:
                if log.has_pending():
                    batches = log.pending
                    taken.append((log, batches))
                    size += _frame_size(log, batches)
            log = taken[0][0]
            is_large = log.pending_size >= direct_size or size > max_size
            if (is_large or log.is_segment_unsynced()) and isinstance(group, tuple) and not log.is_deleted:
                if self._can_write_segment(log):
                    direct += taken
            elif size <= room or not framed:
                framed += taken
                room -= size
        return framed, direct

    def _must_wait(self, group: Iterable[TopicLog]) -> bool:
        """True if logs must not write to a commit file, because a direct write cannot be made durable before it."""
        unsynced = [log for log in group if log.is_segment_unsynced() and not log.is_deleted]
        return not all(map(self._can_write_segment, unsynced))

    def _pending_groups(self) -> list[Collection[TopicLog]]:
        """Return the logs with something to write: sets that must be in one frame, and single logs as tuples."""
        groups = [group for group in self._joined if any(log in self._pending for log in group)]
        alone = [(log,) for log in self._pending if not any(log in group for group in groups)]
        return [*groups, *alone]

    def _can_write_segment(self, log: TopicLog) -> bool:
        """True if no other job writes to the directory of a log, and it is not that of a newer log of the topic."""
        if log.is_writing or log in self._deleted:
            return False
        if not self._deleted and not self._deleting:
            return True
        old = (*self._deleted, *self._deleting.values())
        return not _is_any_writing(old, log.topic)

    def _file_for(self, framed: list[Taken], direct: list[Taken]) -> CommitFile | None:
        """Return the file for the next frame, in a new generation if the active file is full; None if all are full."""
        size = _FRAME_OVERHEAD
        for log, batches in framed:
            size += _frame_size(log, batches)
        for log, _ in direct:
            size += log.identity_size
        for log, batch in self._again:
            size += _frame_size(log, [batch])
        file = self._active
        if file is not None and (file.position == _FRAMES_AT or file.position + size <= self.options.commit_size):
            return file
        if self._free:
            file = self._free.pop(0)
        elif len(self._files) < 2 or (file is None and len(self._files) < _MAX_FILES):
            file = self._new_file(self._unused_path())
        else:
            return None
        self._generation += 1
        self._active = file
        self._files.append(file)
        oldest = self._files[0].header.generation if self._files[0].header is not None else self._generation
        file.begin_generation(self._header(oldest, is_clean=False))
        return file

    def _header(self, oldest: int, *, is_clean: bool) -> CommitHeader:
        nonce = secrets.randbits(64)
        below = self._synced_below
        return CommitHeader(self._generation, oldest, below, nonce, self._boot_id, self.highest_id, is_clean)

    def _new_file(self, path: str) -> CommitFile:
        return CommitFile(path, self.options.commit_size // _ZEROS_SHARE)

    def _unused_path(self) -> str:
        used = {file.path for file in (*self._files, *self._free)} | {*self._unused_paths, *self._damaged_paths}
        if self._checkpoint is not None:
            used |= set(self._checkpoint.unremoved_paths)
            used |= {self._checkpoint.spare.path} if self._checkpoint.spare is not None else set()
        paths = (os.path.join(self._data_path, f"{NAME_PREFIX}{number}") for number in count())
        return next(path for path in paths if path not in used)

    def _give(self, job: CommitJob) -> None:
        """Give the batches to the job."""
        entries: list[Entry] = []
        for log, _ in job.framed:
            if log.is_segment_unsynced() and not log.is_deleted and self._can_write_segment(log):
                job.earlier_writes.append(SegmentWrite(log, log.unwritten(log.given_count), True))
                log.is_writing = True
        for log, batch in self._again:
            self._add_entries(entries, job, log, [batch])
        for log, batches in job.framed:
            self._give_log(log, batches)
            self._add_entries(entries, job, log, batches)
        for log, batches in job.direct:
            self._give_log(log, batches)
            self._add_entries(entries, job, log, [])
            job.segment_writes.append(SegmentWrite(log, log.unwritten(log.given_count), job.is_synced))
            log.is_writing = True
        if job.is_synced:
            for log in self._unsafe:
                if log.is_segment_unsynced() and self._can_write_segment(log):
                    job.segment_writes.append(SegmentWrite(log, log.unwritten(log.given_count), True))
                    log.is_writing = True
        if self._joined:
            self._give_joined(job)
        if entries:
            file = job.file
            assert file.header is not None
            job.buffers = encode_frame(file.header, file.next_serial, self._synced_below, self.highest_id, entries)
            job.size = sum(map(len, job.buffers))

    def _give_log(self, log: TopicLog, batches: list[LogBatch]) -> None:
        log.give(batches)
        if not log.has_pending():
            del self._pending[log]

    def _give_joined(self, job: CommitJob) -> None:
        """Note which groups are in the frame, and keep those with something to write."""
        job.joined = [group for group in self._joined if any(log in group for log, _ in job.framed)]
        self._joined = [group for group in self._joined if any(log in self._pending for log in group)]

    def _add_entries(self, entries: list[Entry], job: CommitJob, log: TopicLog, batches: list[LogBatch]) -> None:
        file = job.file
        if log not in file.numbers:
            file.numbers[log] = len(file.numbers) + 1
            job.bound.append(log)
            record = identity_record(log.identity, log.durable_end, log.durable_serial)
            # Twice: if one is damaged, the other still identifies all batches of the log.
            entries += [Entry(file.numbers[log], record, seed_of(0), 0)] * 2
        for batch in batches:
            entries.append(Entry(file.numbers[log], batch, log.commit_seed, log.stable))

    def end_commit(self, job: CommitJob) -> None:
        """Use the result of a job."""
        assert job is self._commit
        self._commit = None
        for write in job.earlier_writes:
            write.log.is_writing = False
        for write in job.segment_writes:
            write.log.is_writing = False
        self.failure = job.error
        if job.error is not None:
            self._take_back(job)
            return
        file = job.file
        if job.buffers:
            file.position += job.size
            file.next_serial += 1
        self._unsynced_file = file
        for log, batches in job.framed:
            log.note_written(batches)
            self._unsafe[log] = None
            if log in self._skipping:
                self._skipping.remove(log)
            if not job.is_synced:
                for batch in batches:
                    self._unsynced.append(_Framed(log, batch))
                    self._unsynced_size += batch.size
        for write in job.segment_writes:
            self.failure = self.failure or write.error
        for log, batches in job.direct:
            self._end_direct(log, batches)
        for taken in (job.framed, job.direct, self._again):
            for log, _ in taken:
                file.last_counts[log] = log.given_count
                if not log.is_deleted:
                    self._changed[log] = None
        if job.is_synced:
            self._note_synced(file)
        if self._tails_size() > self.options.memory_size:
            self._trim_memory()

    def _end_direct(self, log: TopicLog, batches: list[LogBatch]) -> None:
        """Use the result of a direct write. If it failed, some of the batches may be durable nevertheless."""
        failed_count = min(len(batches), log.given_count - log.writer.written_count)
        if failed_count:
            log.take_back(failed_count)
            log.note_written(batches[: len(batches) - failed_count])
        else:
            log.note_written(batches)
        log.direct_count = log.given_count
        self._unsafe[log] = None
        for batch in batches:
            self._unsynced_size += batch.size
        self._unsynced_segments.add(log)

    def _note_synced(self, file: CommitFile) -> None:
        """Note that all frames are durable, and all segments except those in use by a checkpoint."""
        self._synced_below = file.next_serial
        self._unsynced, self._unsynced_size, self._again = [], 0, []
        self._unsynced_segments.clear()
        for log in list(self._unsafe):
            self._settle(log)

    def _settle(self, log: TopicLog) -> None:
        """Note what is durable of a log, all of whose frames are."""
        if not log.is_writing:
            log.note_synced()
        if log.is_segment_unsynced() and not log.is_deleted:
            return
        log.note_safe(log.given_count)
        del self._unsafe[log]
        if log.is_deleted and not log.has_pending():
            self._deleted.append(log)
            if self._deleting.get(log.topic) is log:
                del self._deleting[log.topic]

    def _take_back(self, job: CommitJob) -> None:
        """Make the batches of a failed job pending again."""
        for log, batches in (*job.framed, *job.direct):
            log.take_back(len(batches))
        for log in job.bound:
            del job.file.numbers[log]
        for group in job.joined:
            self.join(*group)
        failed = job.failed_sync
        if failed is None:
            return
        # A second sync would report success, although the data may be lost. Nor does the next process trust its data.
        self._boot_id = NO_BOOT_ID
        self._again += self._unsynced
        self._unsynced, self._unsynced_size = [], 0
        for file in {failed, job.file}:
            file.is_doubtful = True
            file.close()
            if file.position == _FRAMES_AT:
                self._files.remove(file)
                self._unused_paths.append(file.path)
        self._active = None

    # Checkpoints

    @property
    def wants_checkpoint(self) -> bool:
        """True if a checkpoint would make room in the commit files."""
        is_wanted = self._is_recovering or self._needs_spare() or len(self._files) > 1
        return is_wanted or bool(self._unused_paths or self._deleted or self._finished)

    @property
    def has_changed(self) -> bool:
        """True if ``find_finished`` may find something."""
        return bool(self._changed)

    @property
    def changed(self) -> list[TopicLog]:
        """The logs in which ``find_finished`` searches."""
        return list(self._changed)

    def look_at(self, log: TopicLog) -> None:
        """Search a log with the next ``find_finished`` too, because other segments are kept from now on."""
        if not log.is_deleted:
            self._changed[log] = None

    def find_finished(self) -> None:
        """Find the logs with segments that are finished. The next checkpoint removes those that are durably so."""
        changed, self._changed = self._changed, {}
        for log in changed:
            if log.is_writing:
                self._changed[log] = None
            elif log.writer.has_finished(log.state, self.options.idle_size):
                self._finished[log] = None

    def _needs_spare(self) -> bool:
        return self._active is not None and not self._free and len(self._files) < 2

    def begin_checkpoint(self, *, is_complete: bool = False) -> CheckpointJob | None:
        """Return a job that writes the batches of full commit files to segments; None if there is nothing to do now.

        ``is_complete`` includes the active commit file.
        """
        if self._checkpoint is not None:
            return None
        job = CheckpointJob()
        files = [file for file in self._files if is_complete or file is not self._active]
        job.finished = {log: None for log in self._finished if self._can_write_segment(log)}
        job.idle_size = self.options.idle_size
        for last_counts in (self._recovered, *(file.last_counts for file in files)):
            for log, batch_count in last_counts.items():
                if not log.is_in_segments(batch_count) and self._can_write_segment(log):
                    self._write_segment(job, log)
        for log in job.finished:
            del self._finished[log]
            log.writer.removable_end = log.writer.finished_end(log.state, job.idle_size)
            if not log.is_writing:
                self._write_segment(job, log)
        if self._is_recovering:
            job.unsynced_files, job.unsynced_directory = list(self._files), self._data_path
            job.deleted_directories = self._deleted_directories
            job.damaged_paths = self._damaged_paths
        job.unremoved_paths, self._unused_paths = self._unused_paths, []
        job.deleted = [log for log in self._deleted if not log.is_writing]
        if self._needs_spare():
            job.spare, job.spare_size = self._new_file(self._unused_path()), self.options.commit_size
        is_empty = not (job.writes or job.unsynced_files or job.unremoved_paths or job.deleted or job.spare)
        if is_empty and len(self._files) < 2 and not self._is_recovering:
            return None
        self._checkpoint = job
        return job

    def _write_segment(self, job: CheckpointJob, log: TopicLog) -> None:
        log.is_writing = True
        # A direct write may not be durable, but its batches are in no commit file. A new segment must contain them.
        usable_count = log.given_count if self._is_recovering else max(log.safe_count, log.direct_count)
        job.writes.append(SegmentWrite(log, log.unwritten(usable_count), True))

    def end_checkpoint(self, job: CheckpointJob) -> None:
        """Use the result of a job."""
        assert job is self._checkpoint
        self._checkpoint = None
        for write in job.writes:
            write.log.is_writing = False
            write.log.note_synced()
        for log in job.finished:
            log.writer.removable_end = 0
            # Not everything that is finished was durable, or the removal has failed.
            if not log.is_deleted:
                self._changed[log] = None
        self.failure = job.error
        self._unused_paths += job.unremoved_paths
        for log in job.removed:
            log.is_removed = True
            self._deleted.remove(log)
        if job.spare is not None:
            self._free.append(job.spare)
        if job.error is None or not self._is_recovering:
            self._release_files()
        self._trim_memory()

    def _release_files(self) -> None:
        """Release the oldest files, all of whose batches are in segments."""
        if self._is_recovering:
            if not all(log.is_in_segments(batch_count) for log, batch_count in self._recovered.items()):
                return
            self._is_recovering = False
            self._recovered.clear()
            self._damaged_paths = []
        while self._files and self._files[0] is not self._active:
            file = self._files[0]
            if not all(log.is_in_segments(batch_count) for log, batch_count in file.last_counts.items()):
                return
            del self._files[0]
            self.is_full = False
            file.last_counts, file.numbers = {}, {}
            if file.is_doubtful or len(self._free) > 1:
                file.close()
                self._unused_paths.append(file.path)
            else:
                self._free.append(file)

    def _trim_memory(self) -> None:
        """Drop batches from memory that are in segments, from the log with the most first, if there are too many."""
        size = self.memory_size
        if size <= self.options.memory_size:
            return
        for log in sorted(self.logs.values(), key=lambda log: log.tail.size, reverse=True):
            if size <= self.options.memory_size:
                return
            while size > self.options.memory_size and log.is_forgettable:
                size -= log.tail.drop_first()

    @property
    def memory_size(self) -> int:
        """The memory that batches take, about."""
        return self._tails_size()

    def _tails_size(self) -> int:
        size = 0
        for log in self.logs.values():
            size += log.tail.size
        return size

    @property
    def fill_ratio(self) -> float:
        """The part of the current commit file that is in use, from 0 to 1."""
        return min(1.0, self._active.position / self.options.commit_size) if self._active is not None else 0.0

    # Closing

    def close(self) -> None:
        """Make everything durable in segments and close the files. No job may be running. Raises OSError."""
        try:
            self._write_everything()
            if self._files or not self._is_clean:
                active = self._active or self._file_for([], [])
                assert active is not None
                active.save_header(self._header(self._generation, is_clean=True))
        finally:
            for file in (*self._files, *self._free):
                file.close()
            for log in (*self.logs.values(), *self._deleted):
                log.writer.close()

    def _write_everything(self) -> None:
        while self._is_recovering:
            self._run_checkpoint()
        while self.has_unsynced:
            job = self.begin_commit(is_synced=True)
            if job is None:
                self._run_checkpoint()
                job = self.begin_commit(is_synced=True)
                assert job is not None
            job.run()
            self.end_commit(job)
            if self.failure is not None:
                raise self.failure
        self._run_checkpoint(is_complete=True)

    def _run_checkpoint(self, *, is_complete: bool = False) -> None:
        job = self.begin_checkpoint(is_complete=is_complete)
        if job is not None:
            job.run()
            self.end_checkpoint(job)
            if job.error is not None:
                raise job.error


def _is_any_writing(logs: Iterable[TopicLog], topic: str) -> bool:
    """True if a job writes to a log of the topic."""
    return any(log.is_writing and log.topic == topic for log in logs)


def _frame_size(log: TopicLog, batches: list[LogBatch]) -> int:
    """Return the size of batches in a frame, with the identity of their log."""
    size = log.identity_size
    for batch in batches:
        size += batch.size + _ENTRY_OVERHEAD
    return size
