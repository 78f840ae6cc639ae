"""The progress of a receiver: values that its thread publishes and the reader's thread reads.

A ``ProgressBoard`` is the only way back from the receiver's thread. It holds the latest ``Progress``, which never
changes: every update replaces it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a receiver at one moment."""

    # The number of rows received since the directory was created.
    rows: int
    # The number of duplicates received.
    known_count: int = 0
    # The number of messages that wait in the channel, or None if unknown.
    depth: int | None = None
    # True while consuming is paused because the buffer is full.
    is_paused: bool = False
    has_started: bool = False
    has_ended: bool = False
    # The error that ended receiving.
    failure: Exception | None = None
    # True if receiving has ended and nsqd confirmed every FIN.
    is_clean: bool = False


class ProgressBoard:
    """The latest progress. Thread-safe."""

    def __init__(self, rows: int) -> None:
        self._latest = Progress(rows)
        self._changed = threading.Condition()

    @property
    def latest(self) -> Progress:
        """The latest progress."""
        return self._latest

    def update(self, **changes: Any) -> None:
        """Change some values and wake the waiting thread."""
        with self._changed:
            self._latest = replace(self._latest, **changes)
            self._changed.notify_all()

    def wait_for(self, is_enough: Callable[[Progress], bool], timeout_s: float) -> None:
        """Wait until ``is_enough`` returns True for the latest progress, or the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: is_enough(self._latest), timeout_s)
