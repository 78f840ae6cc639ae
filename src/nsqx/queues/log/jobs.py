"""Jobs of a LogStore: the writes and syncs, which any thread can run while the store is in use.

The store prepares a job, a thread calls ``run``, and the store uses the result. ``run`` never raises OSError. It
changes nothing of the store, except for the writer of a log whose ``is_writing`` is set.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

from nsqx.queues.files import COMMIT, SEGMENT, Buffer, remove_directory, remove_if_there, rename, sync_directory
from nsqx.queues.log.commit_file import BAD_SUFFIX
from nsqx.queues.log.identity import load_identity
from nsqx.queues.log.segment import DELETED_SUFFIX

if TYPE_CHECKING:
    from nsqx.queues.log.batch import LogBatch
    from nsqx.queues.log.commit_file import CommitFile
    from nsqx.queues.log.log import TopicLog

    # A log, and the batches of it that a job writes for the first time.
    Taken = tuple[TopicLog, list[LogBatch]]

# A checkpoint of this many logs or more uses threads.
_MANY_LOGS = 16
_THREADS = 8


class SegmentWrite:
    """Appends batches to the segment of one log."""

    __slots__ = ("_batches", "_is_synced", "error", "log", "size")

    def __init__(self, log: TopicLog, batches: list[LogBatch], is_synced: bool) -> None:
        self.log = log
        self.size = 0
        for batch in batches:
            self.size += batch.size
        self.error: OSError | None = None
        self._batches = batches
        self._is_synced = is_synced

    def run(self) -> None:
        """Write, and sync if the caller wants it. The file stays open only as long as a sync is missing."""
        writer = self.log.writer
        try:
            writer.write(self._batches)
            if self._is_synced:
                writer.sync()
                writer.close()
        except OSError as error:
            self.error = error


class CommitJob:
    """Writes frames to a commit file, then large batches directly to segments.

    ``earlier_writes`` make the direct writes of logs durable before a frame has later batches of them.
    """

    __slots__ = (
        "bound",
        "buffers",
        "direct",
        "earlier_writes",
        "error",
        "failed_sync",
        "file",
        "framed",
        "is_synced",
        "joined",
        "segment_writes",
        "size",
        "unsynced_file",
    )

    def __init__(self, file: CommitFile, is_synced: bool, framed: list[Taken], direct: list[Taken]) -> None:
        self.file = file
        self.is_synced = is_synced
        self.unsynced_file: CommitFile | None = None  # the file before, if it must be synced first
        self.buffers: list[Buffer] = []
        self.size = 0  # of the buffers
        self.bound: list[TopicLog] = []  # logs that get their number with this frame
        self.joined: list[set[TopicLog]] = []
        self.framed = framed
        self.direct = direct
        self.earlier_writes: list[SegmentWrite] = []
        self.segment_writes: list[SegmentWrite] = []
        self.error: OSError | None = None
        self.failed_sync: CommitFile | None = None

    def is_brief(self, max_size: int) -> bool:
        """True if the job only copies up to ``max_size`` bytes to files that are open, without a sync."""
        if self.is_synced:
            return False
        size = self.size
        for write in self.segment_writes:
            size += write.size
            if not write.log.writer.has_room(write.size):
                return False
        return size <= max_size

    def run(self) -> None:
        """Write and sync. Segments are written only if the commit file was."""
        file = self.file
        for write in self.earlier_writes:
            write.run()
            if write.error is not None:
                self.error = write.error
                return
        try:
            if self.unsynced_file is not None:
                self.failed_sync = self.unsynced_file
                self.unsynced_file.sync()
            self.failed_sync = None
            if self.buffers:
                file.write(self.buffers)
            if self.is_synced:
                self.failed_sync = file
                file.sync()
            self.failed_sync = None
        except OSError as error:
            self.error = error
            return
        for write in self.segment_writes:
            write.run()


class CheckpointJob:
    """Writes the batches of commit files to the segments of their logs, so that the files can be used again."""

    def __init__(self) -> None:
        self.writes: list[SegmentWrite] = []
        self.finished: dict[TopicLog, None] = {}  # logs whose finished segments are removed after the write
        self.idle_size = 0  # of the newest segment, which is replaced if it is larger and all messages are finished
        self.unsynced_files: list[CommitFile] = []  # of an earlier process
        self.unsynced_directory = ""  # in which an earlier process may have created directories of logs
        self.unremoved_paths: list[str] = []  # of files that are not needed any more
        self.deleted_directories: list[tuple[str, int]] = []  # of logs that an earlier process has deleted
        self.damaged_paths: list[str] = []  # of commit files that are kept, but not used any more
        self.deleted: list[TopicLog] = []  # logs whose directories are not needed any more
        self.removed: list[TopicLog] = []
        self.spare: CommitFile | None = None
        self.spare_size = 0
        self.error: OSError | None = None

    def run(self) -> None:
        """Write and sync all segments. Those of several logs can fail and succeed independently."""
        try:
            for file in self.unsynced_files:
                file.sync()
            if self.unsynced_directory:
                sync_directory(self.unsynced_directory)
        except OSError as error:
            self.error = error
            return
        try:
            self._remove_deleted()
        except OSError as error:
            self.error = error
        self._write()
        try:
            if self.error is None:
                self._set_damaged_aside()
            while self.unremoved_paths:
                remove_if_there(COMMIT, self.unremoved_paths[len(self.unremoved_paths) - 1])
                self.unremoved_paths.pop()
            if self.spare is not None:
                self.spare.allocate(self.spare_size)
        except OSError as error:
            self.error = self.error or error

    def _set_damaged_aside(self) -> None:
        """Rename damaged commit files, after everything intact in them is durable in segments."""
        for path in self.damaged_paths:
            targets = (f"{path}{BAD_SUFFIX}" + (f".{number}" if number else "") for number in count())
            if os.path.exists(path):
                rename(COMMIT, path, next(target for target in targets if not os.path.exists(target)))
                sync_directory(os.path.dirname(path))

    def _write(self) -> None:
        if len(self.writes) < _MANY_LOGS:
            for write in self.writes:
                self._write_log(write)
        else:
            # Each log needs several syncs, which the file system joins if they happen at the same time.
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="checkpoint") as executor:
                list(executor.map(self._write_log, self.writes))
        self.error = next((write.error for write in self.writes if write.error is not None), self.error)

    def _write_log(self, write: SegmentWrite) -> None:
        write.run()
        if write.error is None and write.log in self.finished:
            try:
                self._remove_finished(write.log)
            except OSError as error:
                write.error = error

    def _remove_finished(self, log: TopicLog) -> None:
        log.writer.remove_finished(self.idle_size)

    def _remove_deleted(self) -> None:
        for directory, log_id in self.deleted_directories:
            _remove(directory, log_id)
        for log in self.deleted:
            log.writer.close()
            _remove(log.writer.directory, log.identity.log_id)
            self.removed.append(log)


def _remove(directory: str, log_id: int) -> None:
    """Remove the directory of a log whose deletion is durable, unless it is that of a newer log of the topic."""
    try:
        if load_identity(directory).log_id == log_id:
            rename(SEGMENT, directory, f"{directory}.{log_id:x}{DELETED_SUFFIX}")
            sync_directory(os.path.dirname(directory))
    except (FileNotFoundError, ValueError):
        pass
    remove_set_aside(os.path.dirname(directory))


def remove_set_aside(data_path: str) -> None:
    """Remove the directories of deleted logs that were renamed. Raises OSError."""
    for name in os.listdir(data_path):
        if name.endswith(DELETED_SUFFIX):
            directory = os.path.join(data_path, name)
            for file in os.listdir(directory):
                remove_if_there(SEGMENT, os.path.join(directory, file))
            remove_directory(directory)
