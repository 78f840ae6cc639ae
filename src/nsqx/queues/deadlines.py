"""Messages that wait for a point in time: in flight, and deferred. Times are monotonic nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.wire.message import QueuedMessage

# Later than any deadline.
NEVER_NS = 0x7FFFFFFFFFFFFFFF
_NEVER_NS = NEVER_NS  # typed in the .pxd, where NEVER_NS must stay visible to Python


class Deferred:
    """Deferred messages, earliest due time first."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, QueuedMessage]] = []
        self._serial = 0

    def push(self, message: QueuedMessage, due_ns: int) -> None:
        """Defer ``message`` until ``due_ns``."""
        message.deadline_ns = due_ns
        self._serial += 1
        heappush(self._heap, (due_ns, self._serial, message))

    def next_deadline(self) -> int:
        """Return the earliest due time, or NEVER_NS."""
        return self._heap[0][0] if self._heap else _NEVER_NS

    def pop_due(self, now_ns: int, limit: int) -> list[QueuedMessage]:
        """Remove and return due messages, at most ``limit``."""
        due: list[QueuedMessage] = []
        while self._heap and self._heap[0][0] <= now_ns and len(due) < limit:
            due.append(heappop(self._heap)[2])
        return due

    def messages(self) -> list[QueuedMessage]:
        """Return all messages, unsorted."""
        return [entry[2] for entry in self._heap]

    def take_entries(self) -> list[tuple[int, int, QueuedMessage]]:
        """Remove and return all heap entries, unsorted."""
        entries, self._heap = self._heap, []
        return entries

    def clear(self) -> list[QueuedMessage]:
        """Remove and return all messages, earliest due time first."""
        messages = [entry[2] for entry in sorted(self._heap)]
        self._heap.clear()
        return messages

    def __len__(self) -> int:
        return len(self._heap)


class InFlight:
    """Messages in flight, by id, each with the time at which it times out.

    Messages of clients with the same message timeout are in one group, an insertion-ordered dict. Its deadlines are in
    order, because each is "now" plus the same timeout. So delivering, finishing and touching a message cost one dict
    operation, and no heap is needed. A touch that max-msg-timeout cuts short breaks that order. Such messages are in
    ``_capped``. Its heap may have outdated entries, which are skipped.
    """

    __slots__ = ("_capped", "_capped_heap", "_group", "_group_timeout_ns", "_groups")

    def __init__(self) -> None:
        self._group: dict[bytes, QueuedMessage] = {}
        self._group_timeout_ns = -1
        self._groups: dict[int, dict[bytes, QueuedMessage]] = {}
        self._capped: dict[bytes, QueuedMessage] = {}
        self._capped_heap: list[tuple[int, bytes]] = []

    def _use_group(self, timeout_ns: int) -> None:
        self._group_timeout_ns = timeout_ns
        group = self._groups.get(timeout_ns)
        if group is None:
            group = self._groups[timeout_ns] = {}
        self._group = group

    def add(self, message: QueuedMessage, now_ns: int, timeout_ns: int) -> bool:
        """Put a message in flight; False, without a change, if a message with its id is in flight."""
        if timeout_ns != self._group_timeout_ns:
            self._use_group(timeout_ns)
        if (len(self._groups) > 1 or self._capped) and self._find_elsewhere(message.id) is not None:
            return False
        if self._group.setdefault(message.id, message) is not message:
            return False
        message.delivered_ns = now_ns
        message.deadline_ns = now_ns + timeout_ns
        return True

    def find(self, message_id: bytes, timeout_ns: int) -> QueuedMessage | None:
        """Return the message with this id or None; the group of ``timeout_ns`` is searched first."""
        if timeout_ns != self._group_timeout_ns:
            self._use_group(timeout_ns)
        message = self._group.get(message_id)
        if message is not None:
            return message
        return self._find_elsewhere(message_id)

    def oldest_time_ns(self) -> int:
        """Return about when the message was published that has been in flight longest; 0 if there is none."""
        heads = (next(iter(group.values())) for group in (*self._groups.values(), self._capped) if group)
        return min((message.timestamp for message in heads), default=0)

    def take(self, message_id: bytes, timeout_ns: int, client_id: int) -> QueuedMessage | None:
        """Remove and return a message of this client from the group of its timeout; None if it is not there."""
        if timeout_ns != self._group_timeout_ns:
            self._use_group(timeout_ns)
        message = self._group.get(message_id)
        if message is None or message.client_id != client_id:
            return None
        del self._group[message.id]  # the key object of the dict itself, which is found without a comparison
        return message

    def _find_elsewhere(self, message_id: bytes) -> QueuedMessage | None:
        message = self._capped.get(message_id)
        if message is not None:
            return message
        for group in self._groups.values():
            message = group.get(message_id)
            if message is not None:
                return message
        return None

    def remove(self, message: QueuedMessage, timeout_ns: int) -> None:
        """Remove a message that ``find`` returned; ``timeout_ns`` is that of the client that has it."""
        if timeout_ns != self._group_timeout_ns:
            self._use_group(timeout_ns)
        if self._group.get(message.id) is message:
            del self._group[message.id]
        elif self._capped.get(message.id) is message:
            del self._capped[message.id]
        else:
            for group in self._groups.values():
                if group.get(message.id) is message:
                    del group[message.id]

    def touch(self, message: QueuedMessage, now_ns: int, timeout_ns: int, max_timeout_ns: int) -> None:
        """Set a new deadline for a message that ``find`` returned, at most ``max_timeout_ns`` after its delivery."""
        self.remove(message, timeout_ns)
        limit_ns = message.delivered_ns + max_timeout_ns
        if now_ns + timeout_ns <= limit_ns:
            message.deadline_ns = now_ns + timeout_ns
            self._group[message.id] = message
        else:
            message.deadline_ns = limit_ns
            self._capped[message.id] = message
            heappush(self._capped_heap, (limit_ns, message.id))

    def next_deadline(self) -> int:
        """Return the time of the next timeout, or NEVER_NS."""
        earliest_ns = _NEVER_NS
        for group in self._groups.values():
            for message in group.values():
                if message.deadline_ns < earliest_ns:
                    earliest_ns = message.deadline_ns
                break
        self._drop_stale()
        if self._capped_heap and self._capped_heap[0][0] < earliest_ns:
            earliest_ns = self._capped_heap[0][0]
        return earliest_ns

    def _drop_stale(self) -> None:
        heap = self._capped_heap
        while heap:
            deadline_ns, message_id = heap[0]
            message = self._capped.get(message_id)
            if message is not None and message.deadline_ns == deadline_ns:
                return
            heappop(heap)

    def pop_due(self, now_ns: int, limit: int) -> list[QueuedMessage]:
        """Remove and return messages that have timed out, at most ``limit``."""
        due: list[QueuedMessage] = []
        for group in self._groups.values():
            late: list[QueuedMessage] = []
            for message in group.values():
                if message.deadline_ns > now_ns or len(due) + len(late) >= limit:
                    break
                late.append(message)
            for message in late:
                del group[message.id]
            due += late
        self._drop_stale()
        while self._capped_heap and self._capped_heap[0][0] <= now_ns and len(due) < limit:
            due.append(self._capped.pop(heappop(self._capped_heap)[1]))
            self._drop_stale()
        return due

    def clear(self) -> list[QueuedMessage]:
        """Remove and return all messages."""
        messages = list(self)
        for group in self._groups.values():
            group.clear()
        self._capped.clear()
        self._capped_heap.clear()
        return messages

    def __iter__(self) -> Iterator[QueuedMessage]:
        for group in self._groups.values():
            yield from group.values()
        yield from self._capped.values()

    def __len__(self) -> int:
        count = len(self._capped)
        for group in self._groups.values():
            count += len(group)
        return count
