"""The recorder: removes duplicates and makes messages durable.

A message may be finished only after ``store`` has returned. If a step fails, nsqd delivers the messages again, and all
steps are repeated. Belongs to the thread of the event loop. Files are written in a pool thread, one write at a time;
meanwhile the loop receives the next messages. Knows neither connections nor Spark.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsqx.errors import ConfigError
from nsqx.spark.dedup import SeenMessages
from nsqx.spark.intake import Connected, ConnectionLost
from nsqx.spark.rows import Rows

if TYPE_CHECKING:
    from nsqx.spark.identities import Identities
    from nsqx.spark.intake import Arrivals, ConnectionEvent
    from nsqx.spark.segments import SegmentDirectory

_log = logging.getLogger("nsqx.spark")

_WRITE_ATTEMPTS = 6
_WRITE_RETRY_S = 0.5


class Recorder:
    """Writes messages to a segment directory."""

    def __init__(self, directory: SegmentDirectory, *, window_rows: int, max_in_flight: int) -> None:
        # The number of duplicates.
        self.known_count = 0
        self._directory = directory
        self._seen = SeenMessages(window_rows)
        # After a lost connection, this many of the latest messages may be delivered again.
        self._suspect_count = 2 * max_in_flight

    def recover(self) -> None:
        """Load the identities of earlier runs; after an unclean end, pin those that may have been in flight."""
        self._seen.remember(self._directory.known_identities())
        self._seen.remember_pinned(self._directory.identities.pinned())
        state = self._directory.state
        if not state.is_clean:
            suspects = self._seen.every_latest(2 * max(state.max_in_flight, 1))
            self._directory.identities.pin(suspects)
            self._seen.remember_pinned(suspects)

    async def store(self, arrivals: Arrivals) -> int:
        """Make messages and pins durable, with retries, and return the number of rows.

        Raises ConfigError if every attempt fails, and LeaseLost if another process has taken over the directory.
        """
        pins = [pin for event in arrivals.events for pin in self._handle(event)]
        parts = []
        for source, columns in arrivals.messages:
            known = self._seen.admit(columns, source.broker)
            if known:
                self.known_count += len(known)
                pins.extend(self._seen.unpinned(columns, known, source.broker))
            parts.append(Rows(columns, known, source.broker))
        if not parts and not pins:
            return self._directory.next_row
        rows = await self._persist(parts, pins)
        self._seen.remember_pinned(pins)
        return rows

    def _handle(self, event: ConnectionEvent) -> list[Identities]:
        """Note an event; return the messages to pin, because nsqd may deliver them again at any time."""
        if isinstance(event, Connected):
            self._seen.connected(event.topic, event.broker, event.live)
            return []
        if isinstance(event, ConnectionLost):
            return [self._seen.latest(event.topic, event.broker, self._suspect_count)]
        return self._seen.one(event.topic, event.broker, event.message_id)

    async def _persist(self, parts: list[Rows], pins: list[Identities]) -> int:
        loop = asyncio.get_running_loop()
        for attempt in range(1, _WRITE_ATTEMPTS + 1):
            try:
                return await loop.run_in_executor(None, _write, self._directory, parts, pins)
            except OSError as error:
                if attempt == _WRITE_ATTEMPTS:
                    raise ConfigError(
                        f"nsq: cannot write to segmentDir {self._directory.storage.location}: {error}. No message is"
                        " lost: unwritten messages stay in their channel"
                    ) from error
                _log.warning("cannot write a segment, trying again: %s", error)
                await asyncio.sleep(_WRITE_RETRY_S * 2 ** (attempt - 1))
        raise AssertionError("unreachable")


def _write(directory: SegmentDirectory, parts: list[Rows], pins: list[Identities]) -> int:
    """Make everything durable; raises LeaseLost if another process has taken over, so no FIN is sent."""
    directory.identities.pin(pins)
    if any(map(len, parts)):
        return directory.append(parts)
    directory.verify()
    return directory.next_row
