"""A disk queue whose messages are moved to another store. All methods may run in any thread, one at a time.

A message stays in the queue until ``finish``. Until then it is read again after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsqx.errors import DiskQueueError
from nsqx.queues.diskqueue import DiskQueue
from nsqx.queues.due_times import DueTime, load_due_times, save_due_times
from nsqx.queues.positions import data_path
from nsqx.queues.recovery import data_file_numbers
from nsqx.queues.sidecar import remove_data_file

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqd.options import NsqdOptions
    from nsqx.wire.message import QueuedMessage

# How much ``read`` returns at most.
_READ_COUNT = 2000
_READ_BYTES = 4 * 1024 * 1024


class MovedMessages(NamedTuple):
    """Messages with the same timestamp, attempts and due time, in the layout of an MPUB body."""

    items: bytes
    message_count: int
    timestamp: int
    attempts: int
    due_ns: int  # wall-clock time; 0 if they are not deferred


class QueueSource:
    """The messages of a queue, and the due times of those that are deferred."""

    def __init__(self, name: str, directory: str, options: NsqdOptions, log: Log) -> None:
        self.name = name
        self.is_moved = False  # the messages that were read are durable in the other store
        self._directory = directory
        self._options = options
        self._log = log
        self._queue: DiskQueue | None = None
        self._due_times: dict[bytes, DueTime] = {}
        self._records: list[int] = []  # read, and not finished

    @property
    def depth(self) -> int:
        """Messages that were not read."""
        return self._queue.depth if self._queue is not None else 0

    def open_queue(self) -> DiskQueue:
        """Open the files, if they are not open; raises DiskQueueError or OSError."""
        if self._queue is None:
            options = self._options
            try:
                self._due_times = load_due_times(self._directory, self.name, options.max_req_timeout)
            except ValueError as error:
                self._log.error("DEFERRED(%s): cannot read due times, delivering at once - %s", self.name, error)
            self._queue = DiskQueue(
                self.name, self._directory, options.max_bytes_per_file, options.max_msg_size, self._log, _do_nothing
            )
        return self._queue

    def read(self, wall_ns: int) -> list[MovedMessages]:
        """Return the next messages, or none at the end; raises DiskQueueError or OSError."""
        queue = self.open_queue()
        found: list[MovedMessages] = []
        bodies: list[QueuedMessage] = []
        key = (0, 0, 0)
        size = 0
        while len(self._records) < _READ_COUNT and size < _READ_BYTES:
            message = queue.get()
            if message is None:
                break
            self._records.append(message.record)
            size += len(message.body)
            message_key = (message.timestamp, message.attempts, self._due_ns(message.id, wall_ns))
            if message_key != key:
                _add(found, bodies, *key)
                bodies, key = [], message_key
            bodies.append(message)
        _add(found, bodies, *key)
        if not found and queue.has_readable():
            raise DiskQueueError(f"cannot read the disk queue {self.name}")
        return found

    def _due_ns(self, message_id: bytes, wall_ns: int) -> int:
        due_time = self._due_times.get(message_id)
        delay_ns = due_time.delay_ns(wall_ns) if due_time is not None else 0
        return wall_ns + delay_ns if delay_ns else 0

    def finish(self) -> None:
        """Finish the messages that were read and moved, and save that durably; raises DiskQueueError or OSError."""
        queue = self.open_queue()
        for record in self._records:
            queue.finish(record)
        self._records = []
        self.is_moved = False
        if queue.has_unsynced():
            job = queue.begin_sync()
            assert job is not None
            job.run()
            queue.end_sync(job)
            if job.error is not None:
                raise job.error

    def remove(self) -> None:
        """Discard all messages and remove the files; raises DiskQueueError or OSError."""
        queue = self.open_queue()
        queue.empty()
        # Without the meta file, the messages of a data file that could not be removed would count as unread.
        for number in data_file_numbers(self._directory).get(self.name, ()):
            remove_data_file(data_path(self._directory, self.name, number))
        queue.delete()
        self._queue = None
        self._records = []
        save_due_times(self._directory, self.name, {})

    def close(self) -> None:
        """Release the files; raises DiskQueueError."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None


def _add(found: list[MovedMessages], messages: list[QueuedMessage], timestamp: int, attempts: int, due_ns: int) -> None:
    if messages:
        items = b"".join([len(message.body).to_bytes(4, "big") + message.body for message in messages])
        found.append(MovedMessages(items, len(messages), timestamp, attempts, due_ns))


def _do_nothing() -> None:
    pass
