"""Counts of dead letters: executors leave a note for each write, and the driver adds the notes up and removes them.

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

_PREFIX = "letters-"


def note_letters(location: str, sink: str, count: int) -> None:
    """Note ``count`` dead letters of a sink; a note that cannot be written must not fail the task."""
    with contextlib.suppress(OSError):
        open_storage(location).write(f"{_PREFIX}{sink}-{count}-{uuid.uuid4().hex[:12]}", _fill_nothing)


def _fill_nothing(_: object) -> None:
    """Leave the file empty."""


def take_letter_counts(storage: Storage) -> Iterator[tuple[str, int]]:
    """Yield the sink and the count of each note, and remove it; raises OSError."""
    for name in storage.names():
        if name.startswith(_PREFIX):
            sink, count, _ = name.removeprefix(_PREFIX).rsplit("-", 2)
            storage.delete(name)
            yield sink, int(count)
