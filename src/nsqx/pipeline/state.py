"""What a pipeline keeps between runs, in its state directory:

lock                      held while it runs
status.json               what it did last, for ``nsqx pipeline status``
schema-SOURCE.json        an inferred schema, with the sample it was made of
columns-SINK.json         the columns of a sink and its sources at the last start, to tell what has changed
drift-SOURCE-FIELD        a field seen in messages that the schema does not know
SINK/checkpoint           Spark's
SINK/segments-SOURCE      the data source's
SINK/commit.json          the last batch of a file sink
dead-letters              unless they go elsewhere
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any

import orjson

from nsqx.errors import ConfigError
from nsqx.spark.storage import Lock, Storage, open_storage

STATUS = "status.json"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")


class PipelineState:
    """The state directory of a pipeline."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._storage = open_storage(location)

    def create(self) -> None:
        """Make the directory; raises ConfigError."""
        create(self._storage, "the state directory")

    def lock(self, wait_s: float = 0.0) -> Lock:
        """Keep other runs of the same pipeline out; raises ConfigError."""
        try:
            return self._storage.lock(wait_s)
        except ConfigError as error:
            holder = str(error).partition(" is in use by ")[2].partition(": stop")[0]
            raise ConfigError(
                f"{self.location}: the pipeline is running already ({holder}): stop that one, or use another state"
            ) from None

    def read(self, name: str) -> Any:
        """A JSON file, or None."""
        return read_json(self._storage, name)

    def write(self, name: str, value: Any) -> None:
        """A JSON file, durably."""
        write_json(self._storage, name, value)

    def drift(self, source: str) -> set[str]:
        """Fields of a source's messages that its schema does not have, as far as they were noticed."""
        prefix = f"drift-{source}-"
        return {name.removeprefix(prefix) for name in self._storage.names() if name.startswith(prefix)}


def create(storage: Storage, what: str) -> None:
    """Make a directory; the error names what it is for."""
    try:
        storage.create()
    except ConfigError as error:
        raise ConfigError(f"{what} {str(error).removeprefix('nsq: segmentDir ')}") from None


def read_json(storage: Storage, name: str) -> Any:
    """What a JSON file of a storage has, or None if it is not there or damaged."""
    try:
        with storage.open(name) as stream:
            return orjson.loads(stream.read())
    except (FileNotFoundError, ValueError):
        return None


def write_json(storage: Storage, name: str, value: Any) -> None:
    """Replace a JSON file of a storage."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str)
    storage.write(name, lambda stream: stream.write(text))


_noted: set[tuple[str, str, str]] = set()


@dataclass(frozen=True, slots=True)
class DriftNotes:
    """Notes, from executors, fields that a schema does not know; the driver finds them in the state directory."""

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
