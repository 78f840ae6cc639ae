"""Messages of a topic log, shown without being consumed: all, or those that a channel has not finished.

The event loop only copies positions. Threads decide which offsets are wanted, read the log and search in it, a small
part in each job. They read segments with jobs of their own, so the blocks of consumers stay in memory. Damage that is
found is not recorded, because a reader changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from nsqx.errors import HTTPError
from nsqx.nsqd.peek import DELAYED, IN_FLIGHT, WAITING, PeekCollector
from nsqx.queues.log.batch import ADDRESSED, DEFERRED, LogBatch, channel_of, origin_of
from nsqx.queues.log.state import LogState
from nsqx.queues.log.stored import join_ranges
from nsqx.wire import byteops
from nsqx.wire.message import NODE_MASK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.log_cursor import CursorSnapshot, LogCursor
    from nsqx.nsqd.log_flow import LogFlow
    from nsqx.nsqd.log_position import LogPositions
    from nsqx.nsqd.peek import PeekRequest
    from nsqx.queues.log.log import ReadJob, TopicLog
    from nsqx.queues.log.stored import OffsetRange

# How much a job reads, and how many batches in memory it looks at.
_READ_BYTES = 256 * 1024
_BATCHES_PER_JOB = 256
# After so many messages a thread lets the event loop run.
_MESSAGES_PER_TURN = 100


class _Unfinished(NamedTuple):
    """An unfinished message of a channel."""

    state: str
    attempts: int
    due_ns: int  # in wall-clock time; 0 if it is not deferred


class LogPeek:
    """One request for messages of a log."""

    def __init__(
        self, broker: Broker, flow: LogFlow, positions: LogPositions, cursor: LogCursor | None, request: PeekRequest
    ) -> None:
        self._positions = positions
        self._flow = flow
        self._log: TopicLog = flow.log
        self._request = request
        self._cursor: CursorSnapshot | None = cursor.snapshot() if cursor is not None else None
        self._deferred = flow.deferred_of_channels() if cursor is not None else list(self._log.state.deferred)
        # The ranges as they are now, for threads.
        self._ranges = LogState(0)
        self._ranges.ranges = self._log.state.ranges.copy()
        self._written = self._log.written
        self._wall_offset_ns = broker.clock.wall_ns() - broker.clock.now_ns()
        self._start = 0
        self._unfinished: dict[int, _Unfinished] = {}
        self._wanted: list[OffsetRange] = []
        self.collector = PeekCollector(request)
        self.next = self._written  # where to continue

    @property
    def end(self) -> int:
        """The end of the log."""
        return self._log.end

    async def run(self) -> None:
        """Collect the messages; raises HTTPError."""
        self._start = await self._find_start()
        await self._positions.run(_Plan(self))
        position = self._start
        while (position := self._next_wanted(position)) < self._written and not self.collector.is_full:
            if self._log.is_deleted:
                raise HTTPError(404, "TOPIC_NOT_FOUND")
            look = await self._positions.run(self._begin_look(position))
            if look.read is not None and look.read.error is not None:
                raise HTTPError(503, "READ_FAILED")
            assert look.next > position or self.collector.is_full
            position = look.next
        self.next = position

    async def _find_start(self) -> int:
        """Return the offset from which on messages are wanted."""
        request, log = self._request, self._log
        if request.offset is not None:
            if request.offset < log.first:
                raise HTTPError(410, "OFFSET_GONE", fields=(("first", log.first),))
            if request.offset > log.end:
                raise HTTPError(416, "OFFSET_BEYOND_END", fields=(("end", log.end),))
            return request.offset
        if request.time_ns is not None:
            offset = await self._positions.find_time(log, request.time_ns)
            return offset if offset >= 0 else self._written
        if request.id_number is not None:
            offset = log.identity.offset(request.id_number)
            is_of_log = (request.id_number ^ log.identity.first_id) & NODE_MASK == 0
            return offset if is_of_log and log.first <= offset < self._written else self._written
        return log.first

    # In threads

    def plan(self) -> None:
        """Decide which offsets are wanted."""
        wanted = join_ranges(self._wanted_ranges())
        if self._request.id_number is not None:
            wanted = [(self._start, self._start + 1)] if _covers(wanted, self._start) else []
        if self._request.last is not None:
            wanted = _last_of(wanted, self._request.last)
        self._wanted = wanted

    def _wanted_ranges(self) -> Iterator[OffsetRange]:
        start, state = self._start, self._request.state
        if state in ("", DELAYED):
            yield from ((offset, offset + 1) for offset in self._deferred if start <= offset < self._written)
        if self._cursor is not None:
            yield from self._wanted_of_channel(self._cursor)
        elif not state:
            yield from self._ranges.present_between(start, self._written)

    def _wanted_of_channel(self, cursor: CursorSnapshot) -> Iterator[OffsetRange]:
        start, wanted_state = self._start, self._request.state
        window = cursor.window
        for offset, attempts, due_ns in window.unfinished():
            state = DELAYED if due_ns else IN_FLIGHT if window.is_in_flight(offset) else WAITING
            self._unfinished[offset] = _Unfinished(state, attempts, due_ns + self._wall_offset_ns if due_ns else 0)
            if offset >= start and wanted_state in ("", state):
                yield offset, offset + 1
        if wanted_state in ("", WAITING):
            first = max(start, window.next)
            yield from self._ranges.messages_between(cursor.number, first, cursor.released)
            # Messages for this channel alone do not wait for the topic.
            for addressed in self._ranges.ranges_from(max(first, cursor.released)):
                if addressed.channel == cursor.number:
                    yield addressed.first, min(addressed.end, self._written)

    def look_at(self, batch: LogBatch) -> int:
        """Look at the wanted messages of a batch; return where to continue."""
        fields = _batch_fields(batch)
        bodies = batch.bodies()
        at = batch.first
        for count, offset in enumerate(self._wanted_in(batch.first, batch.end)):
            _, body = next(islice(bodies, offset - at, None))
            at = offset + 1
            if not self.collector.add(body, self._fields(batch, offset) | fields):
                return offset
            if self.collector.is_full:
                return at
            if count % _MESSAGES_PER_TURN == 0:
                sleep(0)
        return batch.end

    def _wanted_in(self, first: int, end: int) -> Iterator[int]:
        index = max(0, bisect_right(self._wanted, (first,)) - 1)
        while index < len(self._wanted) and self._wanted[index][0] < end:
            yield from range(max(first, self._wanted[index][0]), min(end, self._wanted[index][1]))
            index += 1

    def _fields(self, batch: LogBatch, offset: int) -> dict[str, Any]:
        fields = {
            "offset": offset,
            "id": byteops.id_text(self._log.identity.id_number(offset)).decode(),
            "timestamp": batch.timestamp,
        }
        if batch.kind == DEFERRED:
            due_ns = self._log.state.deferred.get(offset)
            return fields | {"attempts": 0, "state": DELAYED} | ({"due": due_ns} if due_ns is not None else {})
        if self._cursor is None:
            return fields
        attempts = channel_of(batch)[1] if batch.kind == ADDRESSED else 0
        unfinished = self._unfinished.get(offset) or _Unfinished(WAITING, attempts, 0)
        due = {"due": unfinished.due_ns} if unfinished.due_ns else {}
        return fields | {"attempts": unfinished.attempts, "state": unfinished.state} | due

    # Reading

    def _next_wanted(self, position: int) -> int:
        """Return the first wanted offset at or after ``position``, or the end of what is written."""
        index = bisect_right(self._wanted, (position + 1,)) - 1
        if index >= 0 and position < self._wanted[index][1]:
            return position
        return self._wanted[index + 1][0] if index + 1 < len(self._wanted) else self._written

    def _begin_look(self, position: int) -> _Look:
        """Return a job that looks at the messages from ``position`` on, in memory or in a segment."""
        batches: list[LogBatch] = []
        size, at = 0, position
        while len(batches) < _BATCHES_PER_JOB and size < _READ_BYTES and at < self._written:
            batch = self._log.batch_at(at)
            if batch is None or batch.first >= self._written:
                break
            batches.append(batch)
            size += batch.size
            at = self._next_wanted(batch.end)
        if batches:
            return _Look(self, position, batches, None)
        max_bytes = _READ_BYTES if _covers(self._wanted, position + 1) else 1
        return _Look(self, position, [], self._log.begin_read(position, max_bytes))


class _Plan:
    """Decides which offsets are wanted, in a thread."""

    def __init__(self, peek: LogPeek) -> None:
        self._peek = peek

    def run(self) -> None:
        """Decide."""
        self._peek.plan()


class _Look:
    """Looks at some messages, in a thread. ``next`` is where to continue."""

    def __init__(self, peek: LogPeek, position: int, batches: list[LogBatch], read: ReadJob | None) -> None:
        self._peek = peek
        self._batches = batches
        self.read = read
        self.next = position

    def run(self) -> None:
        """Read if needed, and look at the messages until the answer is full."""
        if self.read is not None:
            self.read.run()
            self._batches = self.read.batches
        for batch in self._batches:
            self.next = self._peek.look_at(batch)
            if self._peek.collector.is_full:
                return
        if self.read is not None:
            self.next = self.read.next


def _batch_fields(batch: LogBatch) -> dict[str, Any]:
    """Return what is the same for all messages of a batch: the origin of dead letters."""
    origin = origin_of(batch)
    try:
        return {"origin": orjson.loads(origin)} if origin else {}
    except orjson.JSONDecodeError:
        return {}


def _covers(ranges: list[OffsetRange], offset: int) -> bool:
    index = bisect_right(ranges, (offset + 1,)) - 1
    return index >= 0 and ranges[index][0] <= offset < ranges[index][1]


def _last_of(ranges: list[OffsetRange], count: int) -> list[OffsetRange]:
    """Return the last ``count`` offsets of ranges."""
    left: list[OffsetRange] = []
    for first, end in reversed(ranges):
        if count <= 0:
            break
        first = max(first, end - count)
        left.append((first, end))
        count -= end - first
    return left[::-1]
