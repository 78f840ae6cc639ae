"""The file sink: every reader (Spark, pyarrow, DuckDB) sees complete files, with each row exactly once.

Spark's own file sink is exactly-once only for readers of its log. Here executors write temporary files, the driver
lists them in a commit file, and only then renames them:

    tasks:   DIR/.nsqx-<sink>/<unique>.tmp    written, fsynced
    driver:  STATE/SINK/commit.json           the list of files of batch 12; the batch is committed from here on
    driver:  DIR/date=…/hour=…/<sink>-<query>-00000012-0.parquet    renamed, one by one

If a committed batch is run again, only the missing renames are done. A batch that was not committed is written again;
the temporary files of the failed attempt are deleted when the query starts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.orc as orc
import pyarrow.parquet as pq

from nsqx.errors import ConfigError
from nsqx.pipeline.state import create, read_json, write_json
from nsqx.spark.s3_urls import for_python
from nsqx.spark.session import default_parallelism
from nsqx.spark.storage import StorageUnusable, open_storage, remote_filesystem

COMMIT = "commit.json"
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_SPECIAL = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_LINE = "__line"
_ROWS_PER_GROUP = 128 * 1024
SUFFIXES = {"parquet": ".parquet", "orc": ".orc", "json": ".json", "csv": ".csv"}
_COLUMNAR = ("parquet", "orc")


def locate(location: str) -> tuple[pafs.FileSystem, str]:
    """Return pyarrow's file system for a location, and the path in it; raises ConfigError."""
    if "://" not in location:
        return pafs.LocalFileSystem(), os.path.abspath(location)
    try:
        return remote_filesystem(for_python(location))
    except StorageUnusable as error:
        raise ConfigError(error.problem) from None


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The location, format and columns of the files."""

    location: str
    format: str
    compression: str
    partition_by: tuple[str, ...]
    columns: tuple[str, ...]
    """The columns without the partition columns."""
    temporary: str
    """The directory for temporary files below the location; only this sink uses it."""


@dataclass(frozen=True, slots=True)
class WriteStage:
    """Writes the rows of one task, which are sorted by partition; returns one row per file."""

    layout: FileLayout

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filesystem, root = locate(self.layout.location)
        written: list[dict[str, Any]] = []
        current: _OpenFile | None = None
        for batch in batches:
            for directory, rows in self._runs(batch):
                if current is None or current.directory != directory:
                    if current is not None:
                        written.append(current.close())
                    current = _OpenFile(filesystem, root, directory, self.layout)
                current.write(rows)
        if current is not None:
            written.append(current.close())
        if written:
            yield pa.RecordBatch.from_pylist(written)

    def _runs(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Divide the batch by partition."""
        if not self.layout.partition_by:
            yield "", batch
            return
        keys = [batch.column(name).cast(pa.string()) for name in self.layout.partition_by]
        starts = {0}
        for key in keys:
            filled = pc.fill_null(key, _NULL_PARTITION)
            changed = pc.not_equal(filled.slice(1), filled.slice(0, len(filled) - 1))
            starts.update(place + 1 for place in pc.indices_nonzero(changed).to_pylist())
        bounds = [*sorted(starts), batch.num_rows]
        rows = batch.drop_columns(list(self.layout.partition_by))
        for first, last in itertools.pairwise(bounds):
            parts = [
                f"{name}={_escaped(key[first].as_py())}"
                for name, key in zip(self.layout.partition_by, keys, strict=True)
            ]
            yield "/".join(parts), rows.slice(first, last - first)


def _escaped(value: str | None) -> str:
    """Return a partition value with special characters escaped like Hive does."""
    if not value:
        return _NULL_PARTITION
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", value)


class _OpenFile:
    """A temporary file that is being written."""

    def __init__(self, filesystem: pafs.FileSystem, root: str, directory: str, layout: FileLayout) -> None:
        self.directory = directory
        self._name = f"{uuid.uuid4().hex}.tmp"
        self._path = f"{root}/{layout.temporary}/{self._name}"
        self._is_local = isinstance(filesystem, pafs.LocalFileSystem)
        self._layout = layout
        self._rows = 0
        self._writer: pq.ParquetWriter | orc.ORCWriter | None = None
        compression = layout.compression if layout.format not in _COLUMNAR and layout.compression != "none" else None
        filesystem.create_dir(f"{root}/{layout.temporary}", recursive=True)
        self._stream = filesystem.open_output_stream(self._path, compression=compression)
        if layout.format == "csv":
            self._stream.write((",".join(map(_csv_name, layout.columns)) + "\n").encode())

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows."""
        self._rows += rows.num_rows
        if self._layout.format == "parquet":
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._stream, rows.schema, compression=self._layout.compression)
            self._writer.write_batch(rows, row_group_size=_ROWS_PER_GROUP)
        elif self._layout.format == "orc":
            if self._writer is None:
                compression = "uncompressed" if self._layout.compression == "none" else self._layout.compression
                self._writer = orc.ORCWriter(self._stream, compression=compression)
            self._writer.write(pa.Table.from_batches([rows]))
        else:
            self._stream.write("".join(f"{line}\n" for line in rows.column(_LINE).to_pylist()).encode())

    def close(self) -> dict[str, Any]:
        """Complete the file, fsync it if it is local, and return its row for the driver."""
        if self._writer is not None:
            self._writer.close()
        self._stream.close()
        if self._is_local:
            _sync(self._path)
        return {"temporary": self._name, "directory": self.directory, "rows": self._rows}


def _csv_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n') else name


WRITE_STAGE_SCHEMA = "temporary STRING, directory STRING, rows BIGINT"


class FileSink:
    """Writes the batches of one query."""

    def __init__(self, layout: FileLayout, sink_name: str, state_location: str) -> None:
        """``state_location`` is the sink's directory in the state directory."""
        self._layout = layout
        self._name = sink_name
        self._state = open_storage(state_location)
        self._filesystem, self._root = locate(layout.location)
        self._parallelism = 0

    def prepare(self) -> None:
        """Create the directories; raises ConfigError."""
        create(self._state, "the state directory")
        try:
            self._filesystem.create_dir(self._root, recursive=True)
        except OSError as error:
            raise ConfigError(f"{self._layout.location} cannot be used: {error}") from None

    def recover(self) -> None:
        """Finish the committed batch of an earlier run, and delete its temporary files."""
        commit = read_json(self._state, COMMIT)
        if commit is not None:
            self._rename(commit["files"])
        self._sweep()

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Write a batch and return the number of its rows; on return its files are durable."""
        commit = read_json(self._state, COMMIT)
        if commit is not None and (commit["query"], commit["batch"]) == (query_id, batch_id):
            self._rename(commit["files"])
            return int(commit["rows"])
        written = self._shaped(rows).mapInArrow(WriteStage(self._layout), WRITE_STAGE_SCHEMA).collect()
        suffix = SUFFIXES[self._layout.format]
        if self._layout.format not in _COLUMNAR and self._layout.compression == "gzip":
            suffix += ".gz"
        files = []
        for number, each in enumerate(sorted(written, key=lambda row: (row.directory, row.temporary))):
            name = f"{self._name}-{query_id[:8]}-{batch_id:08d}-{number}{suffix}"
            files.append([each.temporary, f"{each.directory}/{name}" if each.directory else name])
        count = sum(int(each.rows) for each in written)
        if files:
            commit = {"query": query_id, "batch": batch_id, "rows": count, "files": files, "sink": self._name}
            write_json(self._state, COMMIT, commit)
            self._rename(files)
        return count

    def _shaped(self, rows: Any) -> Any:
        """Reduce the number of tasks, sort rows by partition, and format each row of JSON and CSV as a line."""
        from pyspark.sql import functions as F  # noqa: N812

        keys = list(self._layout.partition_by)
        if not self._parallelism:
            self._parallelism = default_parallelism(rows.sparkSession)
        rows = rows.coalesce(self._parallelism)
        if self._layout.format not in _COLUMNAR:
            struct = F.struct(*(F.col(f"`{name}`") for name in self._layout.columns))
            line = F.to_json(struct) if self._layout.format == "json" else F.to_csv(struct)
            rows = rows.select(*keys, line.alias(_LINE))
        return rows.sortWithinPartitions(*keys) if keys else rows

    def _rename(self, files: Sequence[Sequence[str]]) -> None:
        directories: set[str] = set()
        for temporary, name in files:
            source, target = f"{self._root}/{self._layout.temporary}/{temporary}", f"{self._root}/{name}"
            directory = os.path.dirname(target)
            if directory not in directories:
                self._filesystem.create_dir(directory, recursive=True)
                directories.add(directory)
            try:
                self._filesystem.move(source, target)
            except OSError:
                # A missing source was renamed by a run that was killed afterwards. S3 has no specific error for it.
                if self._filesystem.get_file_info(source).type != pafs.FileType.NotFound:
                    raise
        if isinstance(self._filesystem, pafs.LocalFileSystem):
            for directory in directories:
                self._sync_up(directory)

    def _sync_up(self, directory: str) -> None:
        """Fsync a directory and its parents up to the root of the sink."""
        while True:
            _sync(directory)
            if os.path.samefile(directory, self._root):
                return
            directory = os.path.dirname(directory)

    def _sweep(self) -> None:
        selector = pafs.FileSelector(f"{self._root}/{self._layout.temporary}", allow_not_found=True)
        for info in self._filesystem.get_file_info(selector):
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.delete_file(info.path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
