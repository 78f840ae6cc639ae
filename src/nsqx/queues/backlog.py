"""The waiting messages of a topic or a channel: a bounded memory queue that overflows to a disk queue.

It replaces NSQ's memoryMsgChan and backend. The older of the first message in memory and the first on disk comes out
first, so neither starves the other. Without a disk queue (ephemeral topics and channels) the overflow is dropped.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nsqx.wire import byteops
from nsqx.wire.message import Batch, QueuedMessage

if TYPE_CHECKING:
    from nsqx.queues.diskqueue import DiskQueue


class Backlog:
    """Waiting messages. Records on disk can be read only after ``disk.write_pending``."""

    __slots__ = ("_byte_limit", "_head", "_memory", "_memory_bytes", "_memory_count", "_memory_limit", "disk")

    def __init__(self, memory_limit: int, disk: DiskQueue | None, byte_limit: int = 0) -> None:
        """Limit the memory queue to ``memory_limit`` messages and, if not 0, ``byte_limit`` bytes of bodies."""
        self.disk = disk
        self._byte_limit = byte_limit
        self._memory_bytes = 0  # counted only with a byte limit
        self._memory: deque[Batch | QueuedMessage] = deque()
        self._memory_count = 0
        self._memory_limit = memory_limit
        self._head: Batch | None = None

    @property
    def depth(self) -> int:
        """The number of waiting messages."""
        return self._memory_count + (self.disk.depth if self.disk is not None else 0)

    @property
    def disk_depth(self) -> int:
        """The number of messages that wait on disk."""
        return self.disk.depth if self.disk is not None else 0

    def has_messages(self) -> bool:
        """True if ``get`` may return a message now."""
        return self._memory_count > 0 or (self.disk is not None and self.disk.has_readable())

    def holds_memory(self) -> bool:
        """True if messages can wait in memory."""
        return self._memory_limit > 0

    def put_batch(self, batch: Batch) -> None:
        """Append a batch. The backlog takes it over."""
        room = self._memory_limit - self._memory_count
        if self._byte_limit:
            room = self._take_room(batch, room)
        if room >= batch.count:
            self._memory.append(batch)
            self._memory_count += batch.count
            return
        if room > 0:
            self._memory.append(batch.split(room))
            self._memory_count += room
        if self.disk is not None:
            self.disk.put_batch(batch)

    def _take_room(self, batch: Batch, room: int) -> int:
        """Return how many of the first ``room`` messages of a batch fit into the byte limit, and count their bytes."""
        position, fitting = batch.position, 0
        while fitting < batch.count and fitting < room:
            size = byteops.int32_at(batch.data, position)
            if self._memory_bytes + size > self._byte_limit:
                break
            self._memory_bytes += size
            position += 4 + size
            fitting += 1
        return fitting

    def put_message(self, message: QueuedMessage) -> None:
        """Append one message."""
        fits = self._memory_count < self._memory_limit
        if fits and self._byte_limit:
            fits = self._memory_bytes + len(message.body) <= self._byte_limit
            if fits:
                self._memory_bytes += len(message.body)
        if fits:
            self._memory.append(message)
            self._memory_count += 1
        elif self.disk is not None:
            self.disk.put_message(message)

    def put_back(self, message: QueuedMessage) -> None:
        """Append a message that was taken out. A message with a record on disk waits in memory, whatever the limit."""
        if message.record:
            self._memory.append(message)
            self._memory_count += 1
            if self._byte_limit:
                self._memory_bytes += len(message.body)
        else:
            self.put_message(message)

    def finish(self, message: QueuedMessage) -> bool:
        """Finish a message that was taken out; True if the disk queue must be synced for it now."""
        return message.record > 0 and self.disk is not None and self.disk.finish(message.record)

    def must_refuse(self, count: int) -> bool:
        """True if ``count`` more messages do not fit into memory and the disk cannot be written."""
        return (
            self.disk is not None and self.disk.failure is not None and self._memory_count + count > self._memory_limit
        )

    def get(self) -> QueuedMessage | None:
        """Remove and return the oldest message; None if there is none or the disk cannot be read now."""
        if self._memory_count == 0:
            return self.disk.get() if self.disk is not None else None
        if self.disk is not None and self.disk.has_readable():
            timestamp = self.disk.peek_timestamp()
            if 0 <= timestamp < self._head_timestamp():
                return self.disk.get()
        message = self._get_from_memory()
        if self._byte_limit:
            self._memory_bytes -= len(message.body)
        return message

    def _get_from_memory(self) -> QueuedMessage:
        self._memory_count -= 1
        head = self._head
        if head is None:
            item = self._memory.popleft()
            if isinstance(item, QueuedMessage):
                return item
            head = item
        message = head.take()
        self._head = head if head.count else None
        return message

    def _head_timestamp(self) -> int:
        if self._head is not None:
            return self._head.timestamp
        return self._memory[0].timestamp

    def oldest_time_ns(self) -> int:
        """Return when the first message in memory or on disk was published; 0 if there is none, -1 if it is unknown.

        Messages that were put back are behind others, so an older one may wait.
        """
        on_disk = self.disk.oldest_time_ns() if self.disk is not None else 0
        if self._memory_count == 0:
            return on_disk
        in_memory = self._head_timestamp()
        return min(on_disk, in_memory) if on_disk > 0 else in_memory

    def get_batch(self) -> Batch | QueuedMessage | None:
        """Remove and return the oldest item in memory, a message or a whole batch; None if there is none."""
        if self._memory_count == 0:
            return None
        item: Batch | QueuedMessage
        if self._head is not None:
            item, self._head = self._head, None
        else:
            item = self._memory.popleft()
        self._memory_count -= item.count if isinstance(item, Batch) else 1
        if self._byte_limit:
            self._memory_bytes -= item.size() if isinstance(item, Batch) else len(item.body)
        return item

    def memory_items(self, most: int) -> list[Batch | QueuedMessage]:
        """Return the oldest items in memory without removing them: at least ``most`` messages, or all."""
        found: list[Batch | QueuedMessage] = []
        count = 0
        for item in self._memory if self._head is None else [self._head, *self._memory]:
            if count >= most:
                break
            found.append(item.copy() if isinstance(item, Batch) else item)
            count += item.count if isinstance(item, Batch) else 1
        return found

    def drain_memory(self) -> list[Batch | QueuedMessage]:
        """Remove and return everything that waits in memory."""
        items = list(self._memory) if self._head is None else [self._head, *self._memory]
        self._memory.clear()
        self._head = None
        self._memory_count = self._memory_bytes = 0
        return items

    def empty(self) -> None:
        """Discard all messages."""
        self.drain_memory()
        if self.disk is not None:
            self.disk.empty()

    def delete(self) -> None:
        """Discard all messages and remove the files."""
        self.drain_memory()
        if self.disk is not None:
            self.disk.delete()
