"""The intake: the queue between the connections and the receiver loop, and the limit of its size.

Connections report what happens to them and call nothing else of the receiver. The loop takes what has arrived, and
finishes messages when they are stored. Belongs to the thread of the event loop. Knows neither segments nor Spark.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.spark.columns import ColumnReceiver, Columns

# With this many messages there is no reason to wait for more.
_ENOUGH_MESSAGES = 2000
# The largest segment, far below the 2 GiB limit of an Arrow column.
_SEGMENT_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Connected:
    """A new connection; ``live`` are the brokers that were connected at that moment."""

    topic: str
    broker: str
    live: frozenset[str]


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A connection ended unexpectedly; its latest FINs may not have reached nsqd."""

    topic: str
    broker: str


@dataclass(frozen=True, slots=True)
class FinishFailed:
    """nsqd rejected a FIN that came too late, and will deliver the message again."""

    topic: str
    broker: str
    message_id: bytes


ConnectionEvent = Connected | ConnectionLost | FinishFailed


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Events of connections, in order, and messages that arrived after them."""

    events: list[ConnectionEvent]
    messages: list[tuple[ColumnReceiver, Columns]]


class Intake:
    """The messages that have arrived and are not stored yet."""

    def __init__(self, max_bytes: int) -> None:
        """Hold at most about ``max_bytes`` of bodies in memory."""
        self._max_bytes = max_bytes
        self._sources: list[ColumnReceiver] = []
        self._events: list[ConnectionEvent] = []
        # The messages that were taken and not finished, and when they were taken.
        self._taken: list[tuple[ColumnReceiver, Columns]] = []
        self._taken_at_s = 0.0
        self._is_closed = False
        self._wake = asyncio.Event()
        self._enough = asyncio.Event()

    # Called by the connections

    def connected(self, source: ColumnReceiver) -> None:
        """Take messages from this connection too."""
        self._sources = [each for each in self._sources if not each.is_lost]
        live = frozenset(each.broker for each in self._sources)
        for each in self._sources:
            if (each.topic, each.broker) == (source.topic, source.broker):
                each.suspect()
        self._sources.append(source)
        self.report(Connected(source.topic, source.broker, live))

    def arrived(self, *, is_starved: bool) -> bool:
        """Note new messages; return True if the connection must not read more until messages are stored.

        ``is_starved`` is True if nsqd sends nothing more until messages are finished.
        """
        self._wake.set()
        is_full = self._is_full
        if is_full or is_starved or self.pending_count >= _ENOUGH_MESSAGES:
            self._enough.set()
        return is_full

    def report(self, event: ConnectionEvent) -> None:
        """Note an event."""
        self._events.append(event)
        self._wake.set()

    # Called by the receiver loop

    @property
    def pending_count(self) -> int:
        """The number of messages that have arrived and were not taken."""
        return sum([source.pending_count for source in self._sources if not source.is_lost])

    @property
    def _is_full(self) -> bool:
        size = sum([columns.size for _, columns in self._taken])
        return size + sum([each.pending_bytes for each in self._sources if not each.is_lost]) >= self._max_bytes

    async def wait(self) -> bool:
        """Wait until something can be taken; return False if the intake is closed and empty."""
        while not self.pending_count and not self._events:
            if self._is_closed:
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    async def gather(self, linger_s: float) -> None:
        """Wait for more messages until there are enough, until ``flush`` is called, or for ``linger_s``."""
        if self.pending_count >= _ENOUGH_MESSAGES:
            return
        self._enough.clear()
        try:
            async with asyncio.timeout(linger_s):
                await self._enough.wait()
        except TimeoutError:
            pass

    def flush(self) -> None:
        """End ``gather``."""
        self._enough.set()

    def take(self) -> Arrivals:
        """Return what has arrived, up to the size of a segment; the caller must pass it to ``finish``."""
        events, self._events = self._events, []
        self._taken_at_s = asyncio.get_running_loop().time()
        size = 0
        for source in self._sources:
            # Messages of a lost connection cannot be finished; nsqd delivers them again.
            while source.pending_count and not source.is_lost and size < _SEGMENT_BYTES:
                columns = source.take()
                size += columns.size
                self._taken.append((source, columns))
        return Arrivals(events, self._taken)

    def finish(self) -> None:
        """Send FIN for the messages that were taken, and resume reading if there is room."""
        taken, self._taken = self._taken, []
        for source, columns in taken:
            source.finish(columns)
        if not self._is_full:
            for source in self._sources:
                source.hold(False)

    async def keep_touching(self, msg_timeout_s: float) -> None:
        """Touch messages during a long write, before their message timeout expires."""
        interval_s = max(0.1, msg_timeout_s / 4)
        while True:
            await asyncio.sleep(interval_s)
            if not self._taken or asyncio.get_running_loop().time() - self._taken_at_s < interval_s:
                continue
            for source in self._sources:
                source.touch_all([columns for taker, columns in self._taken if taker is source])

    def close(self) -> None:
        """Make ``wait`` return False after the last message."""
        self._is_closed = True
        self._wake.set()
