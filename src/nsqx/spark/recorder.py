"""The recorder: makes received messages durable, and only then finishes them.

The order matters: duplicates are removed, the rows are synced to disk, then FIN is sent. If a step fails, nsqd delivers
the messages again, and all steps are repeated. Runs on an event loop. Files are written in a thread while the next
messages arrive. Knows neither topics nor Spark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from nsqx.errors import ConfigError
from nsqx.spark.rows import Rows

if TYPE_CHECKING:
    from nsqx.spark.bounded_read import BoundedRead
    from nsqx.spark.columns import ColumnReceiver, Columns
    from nsqx.spark.dedup import SeenMessages
    from nsqx.spark.identities import Identities
    from nsqx.spark.segments import SegmentDirectory

_log = logging.getLogger("nsqx.spark")

# How long rows are collected for a segment; shorter if a reader waits, and not at all once there are enough messages.
_LINGER_S = 0.05
_AWAITED_LINGER_S = 0.003
_ENOUGH_MESSAGES = 2000
# The largest segment, far below the 2 GiB limit of an Arrow column.
_SEGMENT_BYTES = 256 * 1024 * 1024
_WRITE_ATTEMPTS = 6
_WRITE_RETRY_S = 0.5


class Recorder:
    """Writes the messages of all connections to a segment directory."""

    def __init__(
        self,
        directory: SegmentDirectory,
        seen: SeenMessages,
        *,
        max_bytes: int,
        is_starved: Callable[[], bool],
        stored: Callable[[int], None],
        drain: BoundedRead | None = None,
    ) -> None:
        """Hold at most about ``max_bytes`` of bodies in memory.

        ``is_starved`` returns True if nsqd sends nothing more until messages are finished. ``stored`` is called with
        the number of rows after each write.
        """
        self.known_count = 0
        # A reader waits for rows: write them soon.
        self.is_awaited = False
        self._directory = directory
        self._seen = seen
        self._max_bytes = max_bytes
        self._is_starved = is_starved
        self._stored = stored
        self._drain = drain
        self._sources: list[ColumnReceiver] = []
        # The brokers by their addresses.
        self._brokers: dict[str, str] = {}
        self._taken: list[tuple[ColumnReceiver, Columns]] = []
        self._write_began_s = 0.0
        self._pins_due: list[Identities] = []
        self._is_stopping = False
        self._wake = asyncio.Event()
        self._enough = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    # Incoming messages

    def attach(self, source: ColumnReceiver, broker: str) -> None:
        """Record messages from this connection too; ``broker`` identifies its nsqd."""
        self._sources = [each for each in self._sources if not each.is_lost]
        live = {self.broker_at(each.node) for each in self._sources}
        self._brokers[source.node] = broker
        self._seen.connected(source.topic, broker, live)
        for each in self._sources:
            if (each.topic, self.broker_at(each.node)) == (source.topic, broker):
                each.suspect()
        self._sources.append(source)

    def broker_at(self, node: str) -> str:
        """Return the broker that is, or was last, at an address."""
        return self._brokers.get(node, node)

    @property
    def pending_count(self) -> int:
        """The number of received messages whose write has not started."""
        return sum(source.pending_count for source in self._sources if not source.is_lost)

    def arrived(self) -> None:
        """Start recording new messages."""
        self._wake.set()
        if self._hold_back() or self.pending_count >= _ENOUGH_MESSAGES or self._is_starved():
            self._enough.set()

    def _hold_back(self) -> bool:
        """Stop reading from nsqd while ``max_bytes`` or more are not stored yet; return True if so."""
        size = sum(columns.size for _, columns in self._taken)
        size += sum(source.pending_bytes for source in self._sources if not source.is_lost)
        is_full = size >= self._max_bytes
        for source in self._sources:
            source.hold(is_full)
        return is_full

    def flush(self) -> None:
        """Write what has been collected without waiting for more."""
        self._enough.set()

    def pin(self, identities: Iterable[Identities]) -> None:
        """Pin messages that nsqd may deliver again at any time."""
        self._pins_due.extend(identities)
        self._wake.set()

    def stop(self) -> None:
        """End after all received messages are stored."""
        self._is_stopping = True
        self._enough.set()
        self._wake.set()

    # Storing

    async def run(self) -> None:
        """Store messages until ``stop`` is called; raises ConfigError if writing fails repeatedly."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.pending_count:
                await self._linger()
                await self._store()
            elif self._pins_due:
                await self._store()
            elif self._is_stopping:
                return
            if self.pending_count or self._is_stopping or self._pins_due:
                self._wake.set()

    async def _linger(self) -> None:
        """Collect messages for a short time, because many small segments are slow to write and to read."""
        if self._is_stopping or self.pending_count >= _ENOUGH_MESSAGES or self._is_starved():
            return
        self._enough.clear()
        try:
            async with asyncio.timeout(_AWAITED_LINGER_S if self.is_awaited else _LINGER_S):
                await self._enough.wait()
        except TimeoutError:
            pass

    async def _store(self) -> None:
        """Make received messages durable, then finish them."""
        parts, pins = self._take()
        self._write_began_s = self._loop.time()
        rows = await self._persist(parts, pins)
        self._seen.remember_pinned(pins)
        for source, columns in self._taken:
            source.finish(columns)
        self._taken = []
        self._hold_back()
        if self._drain is not None:
            self._drain.stored()
        self._stored(rows)

    def _take(self) -> tuple[list[Rows], list[Identities]]:
        pins, self._pins_due = self._pins_due, []
        parts: list[Rows] = []
        size = 0
        for source in self._sources:
            # Messages of a lost connection cannot be finished; nsqd delivers them again.
            while source.pending_count and not source.is_lost and size < _SEGMENT_BYTES:
                columns = source.take()
                size += columns.size
                broker = self.broker_at(source.node)
                known = self._seen.admit(columns, broker)
                if known:
                    self.known_count += len(known)
                    pins.extend(self._seen.unpinned(columns, known, broker))
                parts.append(Rows(columns, known, broker))
                self._taken.append((source, columns))
                if self._drain is not None:
                    self._drain.took(columns)
        return parts, pins

    async def _persist(self, parts: list[Rows], pins: list[Identities]) -> int:
        """Write pins and rows, with retries, and return the number of rows; raises ConfigError in the end."""
        for attempt in range(1, _WRITE_ATTEMPTS + 1):
            try:
                return await self._loop.run_in_executor(None, self._write, parts, pins)
            except OSError as error:
                if attempt == _WRITE_ATTEMPTS:
                    raise ConfigError(
                        f"nsq: cannot write to segmentDir {self._directory.storage.location}: {error}. No message is"
                        " lost: unwritten messages stay in their channel"
                    ) from error
                _log.warning("cannot write a segment, trying again: %s", error)
                await asyncio.sleep(_WRITE_RETRY_S * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _write(self, parts: list[Rows], pins: list[Identities]) -> int:
        """Make everything durable; raises LeaseLost if another process has taken over, so no FIN is sent."""
        self._directory.identities.pin(pins)
        if any(map(len, parts)):
            return self._directory.append(parts)
        self._directory.verify()
        return self._directory.next_row

    async def keep_touching(self, msg_timeout_s: float) -> None:
        """Touch messages during a long write, before their message timeout expires."""
        interval_s = max(0.1, msg_timeout_s / 4)
        while True:
            await asyncio.sleep(interval_s)
            if not self._taken or self._loop.time() - self._write_began_s < interval_s:
                continue
            for source in self._sources:
                source.touch_all([columns for taker, columns in self._taken if taker is source])
