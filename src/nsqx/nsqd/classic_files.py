"""The files of the classic store: disk queues and due times in the data directory.

Opens them for topics and channels, takes over the data files that an earlier process left, and removes deleted files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqx.errors import DiskQueueError
from nsqx.nsqd.queue_source import QueueSource
from nsqx.queues.backlog import Backlog
from nsqx.queues.diskqueue import DiskQueue
from nsqx.queues.due_time_queue import DueTimeQueue
from nsqx.queues.due_times import DueTime, due_times_path, load_due_times, save_due_times
from nsqx.queues.files import DUE, remove_if_there
from nsqx.queues.positions import data_path, is_discarded
from nsqx.queues.recovery import data_file_numbers, queue_names, remove_leftovers
from nsqx.queues.removal import FileRemover

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqd.group_commit import GroupCommit
    from nsqx.nsqd.options import NsqdOptions
    from nsqx.nsqd.turn import Pump


class ClassicFiles:
    """Opens the files of topics and channels, by the name that they start with."""

    def __init__(self, directory: str, options: NsqdOptions, log: Log, commits: GroupCommit) -> None:
        self.remover = FileRemover(log)
        self._directory = directory
        self._options = options
        self._log = log
        self._commits = commits
        # Data files left by an earlier process, by queue name. Opening the queue takes them.
        self._left: dict[str, list[int]] = {}
        self._queues: set[str] = set()  # queues with any files

    def find_left(self) -> None:
        """Find the files that an earlier process left. Called before the first queue is opened."""
        remove_leftovers(self._directory)
        self._left = data_file_numbers(self._directory)
        self._queues = queue_names(self._directory)

    def has_queue(self, name: str) -> bool:
        """True if an earlier process left files of this queue, which may be empty, and they were not opened."""
        return name in self._queues

    def has_queue_of(self, topic_name: str) -> bool:
        """True if an earlier process left files of this topic or one of its channels."""
        return any(name.partition(":")[0] == topic_name for name in self._queues)

    def open_source(self, name: str) -> QueueSource:
        """Return a queue that is not in use, to move its messages to another store."""
        self.remover.reopen(self._directory, name)
        self._queues.discard(name)
        self._left.pop(name, None)
        return QueueSource(name, self._directory, self._options, self._log)

    def remove_deleted(self) -> None:
        """Remove files of deleted topics and channels that the last process did not remove in time."""
        for name, numbers in list(self._left.items()):
            if is_discarded(self._directory, name, numbers):
                del self._left[name]
                self._queues.discard(name)
                paths = (data_path(self._directory, name, number) for number in numbers)
                self.remover.remove(self._directory, name, paths, is_deleted=True)

    def open_backlog(self, name: str, is_ephemeral: bool, pump: Pump) -> Backlog:
        """Return the backlog of a topic or channel; raises DiskQueueError.

        ``pump`` is pumped after records were written.
        """
        options = self._options
        if is_ephemeral:
            return Backlog(options.mem_queue_size, None, options.mem_queue_bytes)
        self.remover.reopen(self._directory, name)
        try:
            disk = DiskQueue(
                name,
                self._directory,
                options.max_bytes_per_file,
                options.max_msg_size,
                self._log,
                lambda: self._commits.write_later(disk, pump),
                self._left.get(name, []),
                self.remover.remove,
            )
        except OSError as error:
            raise DiskQueueError(f"cannot open the disk queue {name}: {error.strerror or error}") from error
        self._left.pop(name, None)
        self._queues.discard(name)
        return Backlog(options.mem_queue_size, disk, options.mem_queue_bytes)

    def load_due_times(self, name: str) -> dict[bytes, DueTime]:
        """Return the due times of the messages of a channel that were deferred at the last exit."""
        try:
            return load_due_times(self._directory, name, self._options.max_req_timeout)
        except (OSError, ValueError) as error:
            self._log_unreadable(name, error)
            return {}

    def save_due_times(self, name: str, due_times: dict[bytes, DueTime]) -> None:
        """Replace the due times of a channel; raises OSError."""
        save_due_times(self._directory, name, due_times)

    def open_due_times(self, name: str) -> DueTimeQueue:
        """Return the due times of a topic's messages on disk; raises OSError if their file cannot be replaced."""
        try:
            return DueTimeQueue(self._directory, name, self._options.max_req_timeout)
        except (OSError, ValueError) as error:
            self._log_unreadable(name, error)
            remove_if_there(DUE, due_times_path(self._directory, name))
            return DueTimeQueue(self._directory, name, self._options.max_req_timeout)

    def _log_unreadable(self, name: str, error: Exception) -> None:
        self._log.error("DEFERRED(%s): cannot read due times, delivering at once - %s", name, error)
