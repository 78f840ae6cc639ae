"""Which records of a disk queue are written, durable or lost, and who waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.errors import DiskQueueError

DurableCallback = Callable[["DiskQueueError | None"], object]


class RecordDurability:
    """The records are numbered as they are put. Each attribute is the number of the last record in that state."""

    __slots__ = ("_checked", "_covered", "_durable", "_loss", "_lost", "_waiting", "written")

    def __init__(self) -> None:
        self.written = 0
        self._covered = 0  # by the running sync
        self._durable = 0
        self._lost = 0  # in a failed sync
        self._loss: DiskQueueError | None = None  # the error of that sync
        self._checked = 0  # written when ``new_loss`` was last called
        self._waiting: deque[tuple[int, DurableCallback]] = deque()  # oldest first

    @property
    def unsynced_count(self) -> int:
        """The number of written records that no completed sync covers."""
        return self.written - self._durable

    @property
    def is_awaited(self) -> bool:
        """True if a callback waits for written records, so that a sync is needed."""
        return len(self._waiting) > 0 and self._waiting[0][0] <= self.written

    def wait_for(self, serial: int, callback: DurableCallback) -> None:
        """Call back with None when the record ``serial`` is durable, or with the error if its sync fails."""
        if serial <= self._durable:
            callback(None)
        else:
            self._waiting.append((serial, callback))

    def is_lost(self, serial: int) -> bool:
        """True if the record may be lost because the sync that covered it failed."""
        return self._durable < serial <= self._lost

    def new_loss(self) -> DiskQueueError | None:
        """Return the error of a sync that lost records written since the last call of ``note_checked``, or None."""
        return self._loss if self._lost > self._checked else None

    def note_checked(self) -> None:
        """Note that callbacks of later syncs report every loss up to here."""
        self._checked = self.written

    # Syncs

    def begin_sync(self) -> None:
        """Begin a sync that covers every written record."""
        self._covered = self.written

    def confirm(self) -> None:
        """End the sync successfully."""
        self._durable = self._covered
        self._answer(self._covered, None)

    def fail(self, failure: DiskQueueError) -> None:
        """End the sync with an error; the records can be synced again."""
        self._answer(self._covered, failure)

    def lose(self, failure: DiskQueueError) -> None:
        """End the sync with an error after which no written record can be trusted."""
        self._lost = self.written
        self._loss = failure
        self._answer(self.written, failure)

    def discard(self, serial: int) -> None:
        """Treat all records up to ``serial`` as durable, because they are not needed any more."""
        self.written = self._durable = serial

    def answer_discarded(self) -> None:
        """Call the callbacks that wait for discarded records."""
        self._answer(self._durable, None)

    def _answer(self, serial: int, failure: DiskQueueError | None) -> None:
        """Call the callbacks that wait for records up to ``serial``."""
        due = []
        while self._waiting and self._waiting[0][0] <= serial:
            due.append(self._waiting.popleft()[1])
        for callback in due:
            callback(failure)
