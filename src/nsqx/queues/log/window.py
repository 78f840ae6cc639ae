"""The unfinished messages of one channel of a topic log, by offset: in flight, waiting to be delivered again, deferred.

No bodies and no message objects are kept here. A message that is delivered again is read from the log again.

Offsets below ``next`` have been delivered at least once. A ring of slots describes the offsets from ``_base`` to
``next``: the client that has the message, when it was delivered, when it times out, its timestamp and its attempts.
Slots are columns of integers, so a delivery or a finish writes a few numbers and creates no object. The ring doubles
when the distance between the oldest message in flight and ``next`` exceeds it. Beyond MAX_SLOTS the oldest messages in
flight move to ``_strays``, a dict.

A message that was requeued or has timed out is in ``_waiting``, with its attempts. It is also in ``_again``, the queue
of messages that can be delivered now, in ``_due``, a heap by due time, or in ``_aside``. ``_again`` and ``_due`` may
contain messages that were taken out; these are not in ``_waiting``.

A message in ``_aside`` has failed its last allowed attempt. It is not delivered, and stays unfinished until the caller
has made a dead letter of it. Its last attempt is not counted until then, so a crash repeats that attempt.

``take_changes`` returns the changes since its last call: runs of finished offsets, and requeued messages. A finished
message is marked in its slot, and the runs are made of these marks, in order of offsets. Several consumers finish
messages in any order, but together they leave few runs. Deliveries are not changes: after a crash a message in flight
is delivered again.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Container, Iterable
from heapq import heapify, heappop, heappush

MIN_SLOTS = 64
MAX_SLOTS = 65536
_MAX_SLOTS = MAX_SLOTS  # typed in the .pxd, where MAX_SLOTS must stay visible to Python

# Later than any deadline.
NEVER_NS = 0x7FFFFFFFFFFFFFFF
_NEVER_NS = NEVER_NS

# Results of ``finish``, ``requeue`` and ``touch``.
DONE = 0
NOT_IN_FLIGHT = 1
NOT_OWNER = 2
_DONE = DONE
_NOT_IN_FLIGHT = NOT_IN_FLIGHT
_NOT_OWNER = NOT_OWNER

# Values of a slot's client that are no client id. _UNREPORTED is finished, and the next changes contain it.
_FINISHED = 0
_IS_WAITING = -1
_UNREPORTED = -2


class Stray:
    """A message in flight that has no slot in the ring."""

    __slots__ = ("attempts", "client_id", "deadline_ns", "delivered_ns", "timestamp")

    def __init__(self, client_id: int, delivered_ns: int, deadline_ns: int, timestamp: int, attempts: int) -> None:
        self.client_id = client_id
        self.delivered_ns = delivered_ns
        self.deadline_ns = deadline_ns
        self.timestamp = timestamp
        self.attempts = attempts


class Window:
    """The unfinished messages of one channel. Client ids are positive; times are monotonic nanoseconds."""

    __slots__ = (
        "_again",
        "_aside",
        "_attempts",
        "_base",
        "_clients",
        "_deadlines",
        "_delivered",
        "_due",
        "_due_at",
        "_earliest_ns",
        "_failed",
        "_gave_again",
        "_lowest_unreported",
        "_mask",
        "_requeued",
        "_run_end",
        "_run_start",
        "_runs",
        "_strays",
        "_timestamps",
        "_unreported_count",
        "_waiting",
        "again_count",
        "in_flight_count",
        "next",
        "timestamp",
    )

    def __init__(self, next_offset: int, holes: Iterable[tuple[int, int, int]] = ()) -> None:
        """Start at ``next_offset``. ``holes`` are older unfinished messages: offset, attempts, due time or 0."""
        self.next = next_offset
        self.in_flight_count = 0
        self.again_count = 0  # messages that were delivered before and can be delivered again now
        self.timestamp = 0  # of the message that ``finish`` finished last
        self._base = next_offset
        self._mask = MIN_SLOTS - 1
        self._clients = _column(MIN_SLOTS)
        self._delivered = _column(MIN_SLOTS)
        self._deadlines = _column(MIN_SLOTS)
        self._timestamps = _column(MIN_SLOTS)
        self._attempts = _column(MIN_SLOTS)
        self._strays: dict[int, Stray] = {}
        self._waiting: dict[int, int] = {}
        self._again: deque[int] = deque()
        self._due: list[tuple[int, int]] = []
        self._due_at: dict[int, int] = {}  # due times by offset
        self._aside: set[int] = set()
        self._failed: list[tuple[int, int, int]] = []
        self._gave_again = False
        self._earliest_ns = _NEVER_NS  # no message in flight times out before
        self._runs: list[tuple[int, int]] = []
        self._run_start = self._run_end = -1
        self._unreported_count = 0  # marked slots, none of them below ``_lowest_unreported``
        self._lowest_unreported = next_offset
        self._requeued: dict[int, tuple[int, int]] = {}
        for offset, attempts, due_ns in sorted(holes):
            self._waiting[offset] = attempts
            self._queue(offset, due_ns)

    # Counts

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their due time."""
        return len(self._due_at)

    @property
    def aside_count(self) -> int:
        """Messages that have failed their last attempt and are not finished."""
        return len(self._aside)

    def floor(self) -> int:
        """Return the oldest unfinished offset, or ``next`` if all offsets below it are finished."""
        self._advance()
        oldest = self._base
        for offsets in (self._waiting, self._strays):
            if offsets:
                oldest = min(oldest, min(offsets))
        return oldest

    def oldest_due(self) -> int:
        """Return as ``floor``, without the deferred messages."""
        self._advance()
        due = (offset for offset in self._waiting if offset not in self._due_at)
        return min(self._base, min(self._strays, default=self._base), min(due, default=self._base))

    # Delivery

    def choose(self, end: int) -> int:
        """Return the offset to deliver next, or -1; ``end`` is the first offset that must not be delivered.

        New messages and messages that are delivered again take turns, so that neither delays the other.
        """
        if self.again_count > 0 and (self.next >= end or not self._gave_again):
            while self._again[0] not in self._waiting:
                self._again.popleft()  # it was taken out
            return self._again[0]
        return self.next if self.next < end else -1

    def deliver(self, offset: int, client_id: int, now_ns: int, timeout_ns: int, timestamp: int) -> int:
        """Put the chosen message in flight and return its attempts; the first delivery is attempt 1."""
        deadline_ns = now_ns + timeout_ns
        if deadline_ns < self._earliest_ns:
            self._earliest_ns = deadline_ns
        self.in_flight_count += 1
        if offset != self.next:
            return self._deliver_again(offset, client_id, now_ns, deadline_ns, timestamp)
        if offset - self._base > self._mask:
            self._make_room()
        self.next = offset + 1
        self._gave_again = False
        self._fill(offset & self._mask, client_id, now_ns, deadline_ns, timestamp, 1)
        return 1

    def _deliver_again(self, offset: int, client_id: int, now_ns: int, deadline_ns: int, timestamp: int) -> int:
        self._again.popleft()
        self.again_count -= 1
        self._gave_again = True
        attempts = (self._waiting.pop(offset) + 1) & 0xFFFF
        if offset >= self._base:
            self._fill(offset & self._mask, client_id, now_ns, deadline_ns, timestamp, attempts)
        else:
            self._strays[offset] = Stray(client_id, now_ns, deadline_ns, timestamp, attempts)
        return attempts

    def _fill(self, index: int, client_id: int, now_ns: int, deadline_ns: int, timestamp: int, attempts: int) -> None:
        self._clients[index] = client_id
        self._delivered[index] = now_ns
        self._deadlines[index] = deadline_ns
        self._timestamps[index] = timestamp
        self._attempts[index] = attempts

    def hold(self, attempts: int, due_ns: int) -> None:
        """Make the message at ``next`` wait as if it was delivered ``attempts`` times, until ``due_ns`` if not 0."""
        offset = self.next
        if offset - self._base > self._mask:
            self._make_room()
        self.next = offset + 1
        self._clients[offset & self._mask] = _IS_WAITING
        self._waiting[offset] = attempts
        self._requeued[offset] = (attempts, due_ns)
        self._queue(offset, due_ns)

    def discard(self, offset: int) -> None:
        """Finish the chosen message without a delivery."""
        if offset == self.next:
            self.skip_to(offset + 1)
        else:
            self._again.popleft()
            self.again_count -= 1
            del self._waiting[offset]
            if offset >= self._base:
                self._clients[offset & self._mask] = _FINISHED
            self._note_finished(offset)

    def skip_to(self, offset: int) -> None:
        """Finish all offsets from ``next`` to ``offset`` without a delivery: they are not for this channel."""
        if offset <= self.next:
            return
        self._note_run(self.next, offset)
        while self.next < offset and self.next - self._base <= self._mask:
            self._clients[self.next & self._mask] = _FINISHED
            self.next += 1
        if self.next < offset:
            while self._base < self.next:
                self._move_oldest()
            self._base = self.next = offset

    # The ring

    def _advance(self) -> None:
        """Leave out finished and waiting messages at the start of the ring."""
        while self._base < self.next and self._clients[self._base & self._mask] <= 0:
            if self._clients[self._base & self._mask] == _UNREPORTED:
                self._unreported_count -= 1
                self._note_run(self._base, self._base + 1)
            self._base += 1

    def _make_room(self) -> None:
        """Free at least one slot."""
        self._advance()
        if self.next - self._base <= self._mask:
            return
        if self._mask + 1 < _MAX_SLOTS:
            self._double()
        else:
            self._move_oldest()

    def _move_oldest(self) -> None:
        """Move the first slot to ``_strays`` if its message is in flight."""
        self._advance()
        index = self._base & self._mask
        if self._base < self.next:
            self._strays[self._base] = Stray(
                self._clients[index],
                self._delivered[index],
                self._deadlines[index],
                self._timestamps[index],
                self._attempts[index],
            )
            self._base += 1

    def _double(self) -> None:
        mask = self._mask
        size = 2 * (mask + 1)
        self._clients = self._spread(self._clients, size)
        self._delivered = self._spread(self._delivered, size)
        self._deadlines = self._spread(self._deadlines, size)
        self._timestamps = self._spread(self._timestamps, size)
        self._attempts = self._spread(self._attempts, size)
        self._mask = size - 1

    def _spread(self, column: array[int], size: int) -> array[int]:
        """Return a column of ``size`` with the values of ``column`` at their new places."""
        wider = _column(size)
        for offset in range(self._base, self.next):
            wider[offset & (size - 1)] = column[offset & self._mask]
        return wider

    # Commands of clients

    def finish(self, offset: int, client_id: int) -> int:
        """Finish a message in flight; DONE, NOT_IN_FLIGHT or NOT_OWNER. ``timestamp`` is then that of the message."""
        if offset < self._base or offset >= self.next:
            return self._finish_stray(offset, client_id)
        index = offset & self._mask
        owner = self._clients[index]
        if owner != client_id:
            return _NOT_OWNER if owner > 0 else _NOT_IN_FLIGHT
        self._clients[index] = _UNREPORTED
        if not self._unreported_count or offset < self._lowest_unreported:
            self._lowest_unreported = offset
        self._unreported_count += 1
        if self._requeued:
            self._requeued.pop(offset, None)
        self.timestamp = self._timestamps[index]
        self.in_flight_count -= 1
        return _DONE

    def _finish_stray(self, offset: int, client_id: int) -> int:
        stray = self._strays.get(offset)
        if stray is None:
            return _NOT_IN_FLIGHT
        if stray.client_id != client_id:
            return _NOT_OWNER
        del self._strays[offset]
        self.timestamp = stray.timestamp
        self.in_flight_count -= 1
        self._note_finished(offset)
        return _DONE

    def requeue(self, offset: int, client_id: int, due_ns: int, max_attempts: int = 0) -> int:
        """Deliver a message in flight again, now or at ``due_ns`` if not 0; DONE, NOT_IN_FLIGHT or NOT_OWNER.

        If it was its last attempt, ``take_failed`` returns it instead.
        """
        owner = self._owner(offset)
        if owner <= 0:
            return _NOT_IN_FLIGHT
        if owner != client_id:
            return _NOT_OWNER
        self._put_back(offset, due_ns, max_attempts)
        return _DONE

    def touch(self, offset: int, client_id: int, now_ns: int, timeout_ns: int, max_timeout_ns: int) -> int:
        """Restart the timeout of a message in flight, up to ``max_timeout_ns`` after its delivery.

        Returns DONE, NOT_IN_FLIGHT or NOT_OWNER.
        """
        owner = self._owner(offset)
        if owner <= 0:
            return _NOT_IN_FLIGHT
        if owner != client_id:
            return _NOT_OWNER
        deadline_ns = now_ns + timeout_ns
        if offset >= self._base:
            index = offset & self._mask
            deadline_ns = min(deadline_ns, self._delivered[index] + max_timeout_ns)
            self._deadlines[index] = deadline_ns
        else:
            stray = self._strays[offset]
            deadline_ns = stray.deadline_ns = min(deadline_ns, stray.delivered_ns + max_timeout_ns)
        self._earliest_ns = min(self._earliest_ns, deadline_ns)
        return _DONE

    def _owner(self, offset: int) -> int:
        """Return the client that has the message, or a number below 1 if it is not in flight."""
        if self._base <= offset < self.next:
            return self._clients[offset & self._mask]
        stray = self._strays.get(offset)
        return _FINISHED if stray is None else stray.client_id

    def _put_back(self, offset: int, due_ns: int, max_attempts: int) -> None:
        """Make a message in flight wait, or set it aside if it has reached ``max_attempts``, unless that is 0."""
        if offset >= self._base:
            index = offset & self._mask
            client_id = self._clients[index]
            self._clients[index] = _IS_WAITING
            attempts = self._attempts[index]
        else:
            stray = self._strays.pop(offset)
            client_id, attempts = stray.client_id, stray.attempts
        self.in_flight_count -= 1
        if 0 < max_attempts <= attempts:
            self._waiting[offset] = attempts - 1
            self._aside.add(offset)
            self._failed.append((offset, attempts, client_id))
            return
        self._waiting[offset] = attempts
        self._requeued[offset] = (attempts, due_ns)
        self._queue(offset, due_ns)

    def _queue(self, offset: int, due_ns: int) -> None:
        if due_ns > 0:
            heappush(self._due, (due_ns, offset))
            self._due_at[offset] = due_ns
        else:
            self._again.append(offset)
            self.again_count += 1

    # Deadlines

    def next_deadline(self) -> int:
        """Return a time before which no message times out or becomes due."""
        return min(self._earliest_ns, self._due[0][0]) if self._due else self._earliest_ns

    def expire(self, now_ns: int, limit: int, max_attempts: int = 0) -> list[int]:
        """Put back at most ``limit`` messages that have timed out; return the clients that had them.

        ``take_failed`` returns those that have had their last attempt.
        """
        clients: list[int] = []
        if now_ns < self._earliest_ns:
            return clients
        earliest_ns = _NEVER_NS
        for offset in [offset for offset, stray in self._strays.items() if stray.deadline_ns <= now_ns][:limit]:
            clients.append(self._strays[offset].client_id)
            self._put_back(offset, 0, max_attempts)
        for stray in self._strays.values():
            earliest_ns = min(earliest_ns, stray.deadline_ns)
        offset = self._base
        while offset < self.next:
            index = offset & self._mask
            if self._clients[index] > 0:
                if self._deadlines[index] <= now_ns and len(clients) < limit:
                    clients.append(self._clients[index])
                    self._put_back(offset, 0, max_attempts)
                elif self._deadlines[index] < earliest_ns:
                    earliest_ns = self._deadlines[index]
            offset += 1
        self._earliest_ns = earliest_ns
        return clients

    def release_due(self, now_ns: int, limit: int) -> int:
        """Let at most ``limit`` messages whose due time has come be delivered; return how many."""
        count = 0
        while self._due and self._due[0][0] <= now_ns and count < limit:
            offset = heappop(self._due)[1]
            if self._due_at.pop(offset, 0) > 0:  # otherwise it was taken out
                self._again.append(offset)
                self.again_count += 1
                count += 1
        return count

    # Messages out of order

    def take_failed(self) -> list[tuple[int, int, int]]:
        """Return and forget the messages set aside since the last call: offset, attempts, and the client that had it.

        They stay unfinished until ``take_out``.
        """
        failed, self._failed = self._failed, []
        return failed

    def is_aside(self, offset: int) -> bool:
        """True if a message has failed its last attempt and is not finished."""
        return offset in self._aside

    def is_waiting(self, offset: int) -> bool:
        """True if a message below ``next`` waits: to be delivered again, for its due time, or set aside."""
        return offset in self._waiting

    def is_in_flight(self, offset: int) -> bool:
        """True if a message is in flight."""
        return self._owner(offset) > 0

    def due_ns(self, offset: int) -> int:
        """Return when a message is due that waits for its due time; 0 if it does not."""
        return self._due_at.get(offset, 0)

    def take_out(self, offset: int) -> bool:
        """Finish a message that waits, wherever it is in the queue; False if ``is_waiting`` is."""
        if self._waiting.pop(offset, -1) < 0:
            return False
        if offset in self._aside:
            self._aside.remove(offset)
        elif self._due_at.pop(offset, 0) == 0:
            self.again_count -= 1
            if self.again_count == 0:
                self._again.clear()
        if not self._due_at:
            self._due.clear()
        if offset >= self._base:
            self._clients[offset & self._mask] = _FINISHED
        self._note_finished(offset)
        return True

    # Administration

    def seek(self, offset: int) -> None:
        """Forget every unfinished message and continue at ``offset``. The caller records the new position."""
        self.next = self._base = offset
        self.in_flight_count = self.again_count = 0
        self._strays.clear()
        self._waiting.clear()
        self._again.clear()
        self._due.clear()
        self._due_at.clear()
        self._aside.clear()
        self._failed.clear()
        self._earliest_ns = _NEVER_NS
        self._unreported_count = 0
        self.take_changes()

    def count_below(self, first: int) -> int:
        """Return how many unfinished messages below ``next`` are below ``first``."""
        count = sum([offset < first for offset in self._waiting]) + sum([offset < first for offset in self._strays])
        for offset in range(self._base, min(self.next, first)):
            if self._clients[offset & self._mask] > 0:
                count += 1
        return count

    def trim(self, first: int) -> list[int]:
        """Forget every message below ``first``; return the client of each of them that was in flight.

        The caller records this. ``take_changes`` does not contain these messages afterwards.
        """
        clients = []
        for offset in [offset for offset in self._strays if offset < first]:
            clients.append(self._strays.pop(offset).client_id)
        for offset in range(self._base, min(self.next, first)):
            index = offset & self._mask
            if self._clients[index] > 0:
                clients.append(self._clients[index])
            elif self._clients[index] == _UNREPORTED:
                self._unreported_count -= 1
            self._clients[index] = _FINISHED
        self.in_flight_count -= len(clients)
        self.forget([offset for offset in self._waiting if offset < first])
        self._requeued = {offset: entry for offset, entry in self._requeued.items() if offset >= first}
        if first > self.next:
            self.next = self._base = first
        self._advance()
        return clients

    def forget(self, offsets: Iterable[int]) -> None:
        """Forget messages that wait. The caller records that they are finished."""
        forgotten = set(offsets)
        if not forgotten:
            return
        for offset in forgotten:
            del self._waiting[offset]
            self._requeued.pop(offset, None)
            self._due_at.pop(offset, None)
            self._aside.discard(offset)
        self._again = deque([offset for offset in self._again if offset in self._waiting])
        self.again_count = len(self._again)
        self._due = [entry for entry in self._due if entry[1] in self._due_at]
        heapify(self._due)

    def oldest_in_flight(self) -> int:
        """Return the lowest offset in flight, or ``next`` if no message is."""
        self._advance()
        return min(self._base, min(self._strays, default=self._base))

    def waiting_below(self, end: int) -> list[int]:
        """Return the offsets below ``end`` of the messages that wait to be delivered again, or are not due."""
        return [offset for offset in self._waiting if offset < end and offset not in self._aside]

    def waiting_among(self, offsets: Container[int]) -> dict[int, tuple[int, int]]:
        """Return attempts and due time, or 0, of those of the given messages that wait and are not set aside."""
        return {
            offset: (attempts, self._due_at.get(offset, 0))
            for offset, attempts in self._waiting.items()
            if offset in offsets and offset not in self._aside
        }

    def unfinished(self) -> list[tuple[int, int, int]]:
        """Return every unfinished message below ``next``: offset, attempts, due time or 0; in order of offsets.

        The attempts of a message in flight include the delivery in progress, those of one set aside not the last one.
        """
        found = [(offset, attempts, self._due_at.get(offset, 0)) for offset, attempts in self._waiting.items()]
        found += [(offset, stray.attempts, 0) for offset, stray in self._strays.items()]
        for offset in range(self._base, self.next):
            index = offset & self._mask
            if self._clients[index] > 0:
                found.append((offset, self._attempts[index], 0))
        return sorted(found)

    def copy(self) -> Window:
        """Return a copy whose ``unfinished`` and ``is_in_flight`` a thread can call while this one is in use."""
        copy = Window(self.next)
        copy._base = self._base
        copy._mask = self._mask
        copy._clients = self._spread(self._clients, self._mask + 1)
        copy._attempts = self._spread(self._attempts, self._mask + 1)
        copy._strays = self._strays.copy()
        copy._waiting = self._waiting.copy()
        copy._due_at = self._due_at.copy()
        return copy

    # Changes

    def has_changes(self) -> bool:
        """True if ``take_changes`` would return any."""
        return self._unreported_count > 0 or self._run_end >= 0 or len(self._runs) > 0 or len(self._requeued) > 0

    def take_changes(self) -> tuple[list[tuple[int, int]], dict[int, tuple[int, int]]]:
        """Return and forget the finished runs, start and end each, and the requeued messages: attempts and due time.

        The runs are in order and do not touch. A requeued message is in no run of the same changes, so they can be
        applied in any order.
        """
        self._report()
        self._close_run()
        runs, self._runs = self._runs, []
        requeued, self._requeued = self._requeued, {}
        return _merged(runs), requeued

    def _report(self) -> None:
        """Make runs of the marked slots."""
        offset = max(self._lowest_unreported, self._base)
        while self._unreported_count > 0:
            index = offset & self._mask
            if self._clients[index] == _UNREPORTED:
                self._clients[index] = _FINISHED
                self._unreported_count -= 1
                self._note_run(offset, offset + 1)
            offset += 1

    def _note_finished(self, offset: int) -> None:
        if self._requeued:
            self._requeued.pop(offset, None)
        self._note_run(offset, offset + 1)

    def _note_run(self, start: int, end: int) -> None:
        if start != self._run_end:
            self._close_run()
            self._run_start = start
        self._run_end = end

    def _close_run(self) -> None:
        if self._run_end >= 0:
            self._runs.append((self._run_start, self._run_end))
            self._run_start = self._run_end = -1


def _merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same offsets as ``runs``, in order, with one run in place of those that touch."""
    if len(runs) < 2:
        return runs
    runs.sort()
    merged: list[tuple[int, int]] = []
    first, last = runs[0]
    for start, end in runs:
        if start > last:
            merged.append((first, last))
            first = start
        last = end
    merged.append((first, last))
    return merged


def _column(size: int) -> array[int]:
    return array("q", bytes(8 * size))
