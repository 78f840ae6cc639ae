"""What has come is made durable, and only then finished.

Order is everything here: messages are told known or new, their rows are on disk, then FIN is sent. Whatever fails in
between, nsqd hands the messages out again, and they are known or new once more. Runs on an event loop; writing is done
in a thread, while the next messages come. Knows neither topics nor Spark.
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

# How long rows are gathered for a segment: shortly if somebody waits for them, and not at all if there are enough.
_LINGER_S = 0.05
_HURRIED_LINGER_S = 0.003
_ENOUGH_MESSAGES = 2000
# As far as Arrow's columns of values are long before they are too long.
_SEGMENT_BYTES = 256 * 1024 * 1024
_WRITE_ATTEMPTS = 6
_WRITE_RETRY_S = 0.5


class Recorder:
    """Writes what the connections bring into a segment directory."""

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

        ``is_starved``: nothing more will come before something is finished. ``stored`` gets the count of rows.
        """
        self.known_count = 0
        # Somebody waits for rows: gather no longer than need be.
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

    # What comes

    def attach(self, source: ColumnReceiver, broker: str) -> None:
        """Take messages from there too; ``broker`` says which nsqd it is."""
        self._sources = [each for each in self._sources if not each.is_lost]
        live = {self.broker_at(each.node) for each in self._sources}
        self._brokers[source.node] = broker
        self._seen.connected(source.topic, broker, live)
        for each in self._sources:
            if (each.topic, self.broker_at(each.node)) == (source.topic, broker):
                each.suspect()
        self._sources.append(source)

    def broker_at(self, node: str) -> str:
        """Which nsqd is, or was last, at an address."""
        return self._brokers.get(node, node)

    @property
    def pending_count(self) -> int:
        """How many messages have come that are not being written yet."""
        return sum(source.pending_count for source in self._sources if not source.is_lost)

    def arrived(self) -> None:
        """There are new messages."""
        self._wake.set()
        if self._hold_back() or self.pending_count >= _ENOUGH_MESSAGES or self._is_starved():
            self._enough.set()

    def _hold_back(self) -> bool:
        """Stop reading from nsqd while as many bytes as allowed are not stored yet, and go on afterwards."""
        size = sum(columns.size for _, columns in self._taken)
        size += sum(source.pending_bytes for source in self._sources if not source.is_lost)
        is_full = size >= self._max_bytes
        for source in self._sources:
            source.hold(is_full)
        return is_full

    def hurry(self) -> None:
        """Gather no longer."""
        self._enough.set()

    def pin(self, identities: Iterable[Identities]) -> None:
        """These may come again at any time: remember them for good."""
        self._pins_due.extend(identities)
        self._wake.set()

    def stop(self) -> None:
        """End when everything that has come is stored."""
        self._is_stopping = True
        self._enough.set()
        self._wake.set()

    # Storing

    async def run(self) -> None:
        """Store what comes until told to stop; raises ConfigError if the storage fails for good."""
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
        """Gather a little: many small files are slow for everybody."""
        if self._is_stopping or self.pending_count >= _ENOUGH_MESSAGES or self._is_starved():
            return
        self._enough.clear()
        try:
            async with asyncio.timeout(_HURRIED_LINGER_S if self.is_awaited else _LINGER_S):
                await self._enough.wait()
        except TimeoutError:
            pass

    async def _store(self) -> None:
        """Make what has come durable, then finish it."""
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
            # Of a connection that is lost nothing can be finished: it all comes again.
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
        """Write pins and rows; tries again for a while if the storage fails. How many rows there are then."""
        for attempt in range(1, _WRITE_ATTEMPTS + 1):
            try:
                return await self._loop.run_in_executor(None, self._write, parts, pins)
            except OSError as error:
                if attempt == _WRITE_ATTEMPTS:
                    raise ConfigError(
                        f"nsq: segmentDir {self._directory.storage.location} cannot be written: {error}. Nothing is"
                        " lost: the messages are still in their channel"
                    ) from error
                _log.warning("cannot write a segment, trying again: %s", error)
                await asyncio.sleep(_WRITE_RETRY_S * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _write(self, parts: list[Rows], pins: list[Identities]) -> int:
        """Make everything durable; raises LeaseLost, so that nothing is finished, if another process has taken over."""
        self._directory.identities.pin(pins)
        if any(map(len, parts)):
            return self._directory.append(parts)
        self._directory.verify()
        return self._directory.next_row

    async def keep_touching(self, msg_timeout_s: float) -> None:
        """A write that takes long must not make nsqd think that nobody cares."""
        interval_s = max(0.1, msg_timeout_s / 4)
        while True:
            await asyncio.sleep(interval_s)
            if not self._taken or self._loop.time() - self._write_began_s < interval_s:
                continue
            for source in self._sources:
                source.touch_all([columns for taker, columns in self._taken if taker is source])
