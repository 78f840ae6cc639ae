"""The state directory of a pipeline, which outlives a run:

lock                      held while the pipeline runs
status.json               the figures of the last run, for ``nsqx pipeline status``
schema-SOURCE.json        an inferred schema, with its sample
columns-SINK.json         the columns of a sink at the last start
plan-SINK.json            the parts of a sink's query that its state depends on
drift-SOURCE-FIELD        a field of messages that is not in the schema
letters-SINK-COUNT-ID     dead letters that the driver has not counted yet
written-SINK-COUNT-ID     rows written at a Spark Connect server that this process has not counted yet
server-run.json           the run whose queries at a Spark Connect server may begin batches
start-SINK.json           the rows at which the query of a sink began, after a reset
shared-SINK-SOURCE.json   the row of a shared source at which the query of a sink began
shared-SOURCE/rows        the decoded rows of a shared source
SINK/checkpoint           Spark's checkpoint
SINK/segments-SOURCE      the segment directory of the data source
SINK/commit.json          the last batch of a file sink
dead-letters              the default directory of dead letters
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.errors import ConfigError
from nsqx.pipeline.letter_counts import LETTERS, ROWS, take_counts
from nsqx.spark.lease import DirectoryInUse
from nsqx.spark.storage import Lock, Storage, StorageUnusable, open_storage

if TYPE_CHECKING:
    from nsqx.pipeline.model import Sink

STATUS = "status.json"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")


class PipelineState:
    """The state directory of a pipeline."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._storage = open_storage(location)

    def create(self) -> None:
        """Create the directory; raises ConfigError."""
        create(self._storage, "the state directory")

    def lock(self, wait_s: float = 0.0) -> Lock:
        """Lock the directory against other runs of the pipeline; raises ConfigError."""
        try:
            return self._storage.lock(wait_s)
        except DirectoryInUse as error:
            raise ConfigError(
                f"{self.location}: the pipeline is already running ({error.holder}): stop it, or use another state"
                " directory"
            ) from None

    def read(self, name: str) -> Any:
        """Return the content of a JSON file, or None."""
        return read_json(self._storage, name)

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON file durably."""
        write_json(self._storage, name, value)

    def has(self, folder: str) -> bool:
        """Return True if a folder of the directory has a file."""
        return bool(self._storage.names(folder))

    def delete(self, name: str) -> None:
        """Remove a file; no-op if it does not exist."""
        self._storage.delete(name)

    def drift(self, source: str) -> set[str]:
        """Return the fields of a source's messages that were noticed and are not in its schema."""
        prefix = f"drift-{source}-"
        return {name.removeprefix(prefix) for name in self._storage.names() if name.startswith(prefix)}

    def new_dead_letters(self) -> dict[str, int]:
        """Return the number of dead letters of each sink since the last call; raises OSError."""
        return self._new_counts(LETTERS)

    def new_rows(self) -> dict[str, int]:
        """Return the number of rows that a Spark Connect server wrote for each sink since the last call."""
        return self._new_counts(ROWS)

    def _new_counts(self, kind: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        for sink, count in take_counts(self._storage, kind):
            counts[sink] = counts.get(sink, 0) + count
        return counts


def start_file(sink: Sink) -> str:
    """Return the name of the file with the rows at which the query of a sink began."""
    return f"start-{sink.name}.json"


@contextlib.contextmanager
def hold_state(location: str, wait_s: float) -> Iterator[PipelineState]:
    """Create the state directory and lock it for the block; raises ConfigError."""
    state = PipelineState(location)
    state.create()
    lock = state.lock(wait_s)
    try:
        yield state
    finally:
        lock.release()


def create(storage: Storage, what: str) -> None:
    """Create a directory; ``what`` names it in the error."""
    try:
        storage.create()
    except StorageUnusable as error:
        raise ConfigError(f"{what} {error.problem}") from None


def read_json(storage: Storage, name: str) -> Any:
    """Return the content of a JSON file, or None if it is missing or damaged."""
    try:
        with storage.open(name) as stream:
            return orjson.loads(stream.read())
    except (FileNotFoundError, ValueError):
        return None


def write_json(storage: Storage, name: str, value: Any) -> None:
    """Replace a JSON file durably."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str)
    storage.write(name, lambda stream: stream.write(text))


_noted: set[tuple[str, str, str]] = set()


@dataclass(frozen=True, slots=True)
class DriftNotes:
    """Records unknown fields from executors as files of the state directory, where the driver finds them."""

    location: str
    source: str

    def __call__(self, field: str) -> None:
        key = (self.location, self.source, field)
        if key in _noted or len(_noted) >= 1000:
            return
        _noted.add(key)
        safe = _UNSAFE.sub("_", field)[:100]
        # A note that cannot be written must not fail the task.
        with contextlib.suppress(OSError):
            open_storage(self.location).write(f"drift-{self.source}-{safe}", lambda stream: stream.write(b"{}"))
