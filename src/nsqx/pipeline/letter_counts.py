"""Counts of dead letters and of rows: other processes leave a note for each write, and the driver adds the notes up
and removes them.

A note is an empty file of the state directory, named after the sink and the count, so that one listing of the
directory is enough. A batch that is repeated writes its letters again, and counts them again.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from nsqx.spark.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqx.spark.storage import Storage

LETTERS, ROWS = "letters-", "written-"


def note_count(location: str, kind: str, sink: str, count: int) -> None:
    """Note a count of a sink; a note that cannot be written must not fail the task."""
    with contextlib.suppress(OSError):
        open_storage(location).write(f"{kind}{sink}-{count}-{uuid.uuid4().hex[:12]}", _fill_nothing)


def _fill_nothing(_: object) -> None:
    """Leave the file empty."""


def take_counts(storage: Storage, kind: str) -> Iterator[tuple[str, int]]:
    """Yield the sink and the count of each note of a kind, and remove it; raises OSError."""
    for name in storage.names():
        if name.startswith(kind):
            sink, count, _ = name.removeprefix(kind).rsplit("-", 2)
            storage.delete(name)
            yield sink, int(count)
