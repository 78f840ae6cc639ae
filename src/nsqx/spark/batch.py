"""The batch read: what is in the channel now, as a DataFrame.

Spark never tells a reader that a batch job has succeeded. So every read is noted, its rows stay on disk, and executors
note when they have read a part to its end. A read that was not read to the end is taken back by the next one; one that
was stays until the read after the next. A read with a name (``readId``) gives the same rows whenever that name is used.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nsqx.spark.receiver import Receiver
from nsqx.spark.segments import DataLost, SegmentDirectory, read_slices
from nsqx.spark.source import SlicePartition, open_directory, partition_count
from nsqx.spark.storage import open_storage

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqx.spark.options import SourceOptions

_READS_NAME = "reads.json"
_DONE_PREFIX = "done-"
_PAUSE_S = 1.0


class BatchReader(DataSourceReader):
    """Drains the channel when the job is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Receive, and say what to read."""
        directory = open_directory(self._options)
        receiver: Receiver | None = None
        is_clean = False
        try:
            reads = Reads(directory, self._options)
            read = reads.named()
            if read is None:
                start = reads.begin()
                receiver = Receiver(self._options, directory)
                receiver.start(bound_ns=time.time_ns())
                end = self._receive(receiver, directory, start)
                is_clean = receiver.stop()
                read = reads.add(start, end)
            return self._partitions(directory, read)
        finally:
            if receiver is not None:
                receiver.stop()
            directory.close(is_clean=is_clean)

    def _receive(self, receiver: Receiver, directory: SegmentDirectory, start: int) -> int:
        options = self._options
        while True:
            rows = receiver.wait_for_rows(receiver.rows, _PAUSE_S)
            end = directory.end_within(start, rows, options.max_rows, options.max_bytes)
            if end < rows or receiver.is_drained or receiver.is_paused:
                return end

    def _partitions(self, directory: SegmentDirectory, read: dict[str, Any]) -> list[InputPartition]:
        rows = read["end"] - read["start"]
        parts = directory.slices(read["start"], read["end"], partition_count(self._options, rows)) if rows else []
        location, identity = directory.storage.location, directory.state.identity
        return [
            SlicePartition(location, identity, part, f"{_DONE_PREFIX}{read['token']}-{number}-of-{len(parts)}")
            for number, part in enumerate(parts)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, noted when the last of them has been taken."""
        if not isinstance(partition, SlicePartition):
            # Spark's own partition, when there are no rows.
            return
        yield from read_slices(partition.location, partition.identity, partition.slices)
        open_storage(partition.location).write(partition.done_name, lambda stream: stream.write(b"done"))


class Reads:
    """The reads of a segment directory that may still be asked for."""

    def __init__(self, directory: SegmentDirectory, options: SourceOptions) -> None:
        self._directory = directory
        self._options = options
        self._reads: list[dict[str, Any]] = directory.read_note(_READS_NAME) or []

    def named(self) -> dict[str, Any] | None:
        """The read of this name, if it was made before."""
        name = self._options.read_id
        for read in self._reads:
            if name and read["name"] == name:
                if read["start"] < self._directory.first_row:
                    raise DataLost(f"nsq: the rows of readId {name} are gone: they are kept for readTTL")
                return read
        return None

    def begin(self) -> int:
        """The first row of a new read, after letting go of what is not kept any longer."""
        reads = self._reads
        start = self._directory.state.committed
        if reads:
            last = reads[-1]
            if last["name"] or self._is_done(last):
                start = last["end"]
            else:
                start = last["start"]
                reads.pop()
        oldest_s = time.time() - self._options.read_ttl_s
        latest = [read for read in reads if not read["name"]][-1:]
        kept = [read for read in reads if (read["name"] or read in latest) and read["made_s"] >= oldest_s]
        self._directory.commit(min([start, *(read["start"] for read in kept)]))
        self._remove_notes({read["token"] for read in kept})
        # The last is kept in any case: it says where the next begins.
        self._reads = kept if not reads or reads[-1] in kept else [*kept, reads[-1]]
        return start

    def add(self, start: int, end: int) -> dict[str, Any]:
        """Note a read, durably."""
        read = {
            "token": uuid.uuid4().hex[:12],
            "name": self._options.read_id,
            "start": start,
            "end": end,
            "made_s": time.time(),
        }
        self._reads.append(read)
        self._directory.write_note(_READS_NAME, self._reads)
        return read

    def _is_done(self, read: dict[str, Any]) -> bool:
        if read["start"] == read["end"]:
            return True
        prefix = f"{_DONE_PREFIX}{read['token']}-"
        notes = [name for name in self._directory.storage.names() if name.startswith(prefix)]
        return bool(notes) and len(notes) == int(notes[0].rpartition("-")[2])

    def _remove_notes(self, kept_tokens: set[str]) -> None:
        for name in self._directory.storage.names():
            if name.startswith(_DONE_PREFIX) and name.split("-")[1] not in kept_tokens:
                self._directory.storage.delete(name)
