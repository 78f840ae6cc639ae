"""Spark's checkpoint of a query, as files: its id, its last completed batch, and the offsets after that batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow.fs as pafs

from nsqx.pipeline.file_sink import locate


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """What the checkpoint of a query records."""

    query: str
    begun: int
    """The last batch that was begun; -1 before the first one."""
    batch: int
    """The last batch that was completed; -1 before the first one."""
    ends: tuple[dict[str, Any], ...]
    """The offsets of all sources after ``batch``."""


def read_checkpoint(location: str, completed: tuple[str, int] | None = None) -> QueryCheckpoint | None:
    """Return the content of a checkpoint, or None if there is none.

    ``completed`` are the query and the number of a batch whose result is complete, although Spark may not have recorded
    it.
    """
    files = _CheckpointFiles(location)
    query = read_query_id(location)
    if not query:
        return None
    begun, done = files.newest("offsets"), files.newest("commits")
    if completed == (query, begun):
        done = begun
    # Below the version and the metadata, an offset file has a line for each source.
    lines = files.lines(f"offsets/{done}")[2:] if done >= 0 else []
    return QueryCheckpoint(query, begun, done, tuple(orjson.loads(line) for line in lines if line.startswith("{")))


def read_query_id(location: str) -> str:
    """Return the id of the query of a checkpoint, which stays the same in every run; empty without a checkpoint."""
    metadata = _CheckpointFiles(location).lines("metadata")
    return str(orjson.loads(metadata[0])["id"]) if metadata else ""


class _CheckpointFiles:
    def __init__(self, location: str) -> None:
        self._filesystem, self._root = locate(location)

    def newest(self, folder: str) -> int:
        selector = pafs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        names = (info.base_name for info in self._filesystem.get_file_info(selector))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def lines(self, name: str) -> list[str]:
        try:
            with self._filesystem.open_input_stream(f"{self._root}/{name}") as stream:
                return str(stream.read().decode()).splitlines()
        except FileNotFoundError:
            return []
