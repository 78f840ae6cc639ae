"""The batch read: the messages that are in the channel now, as a DataFrame.

Spark does not report to a reader whether its batch job has succeeded. A read therefore removes no rows: they are on
disk and finished at nsqd, and the next read returns them again, together with newer rows. Three things change that:

    startingOffsets latest     confirms the read before: its rows are removed, and this read starts after them
    confirm_reads(...)         confirms the read before without reading
    readId                     a named read has rows of its own: it returns the same rows each time the name is used,
                               until readTTL has passed, and no other read returns them
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nsqx.spark.probe import check_place
from nsqx.spark.receiver import Receiver
from nsqx.spark.segments import SegmentDirectory
from nsqx.spark.session import tasks_run_here
from nsqx.spark.slices import DataLost
from nsqx.spark.source import LOCK_WAIT_S, SlicePartition, open_directory, plan_partitions, read_partition
from nsqx.spark.worker_gc import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqx.spark.options import SourceOptions

_READS_NAME = "reads.json"
_MAX_READS = 1000
# The name of an unnamed read once it is confirmed. A readId cannot contain parentheses.
_CONFIRMED = "(confirmed)"
_PAUSE_S = 1.0


def confirm_reads(segment_dir: str, channel: str) -> None:
    """Confirm that the jobs of the unnamed reads of this directory have succeeded, and remove their rows."""
    directory = SegmentDirectory.open(
        segment_dir, channel=channel, max_in_flight=0, window_rows=2**62, lock_wait_s=LOCK_WAIT_S
    )
    try:
        reads = Reads(directory)
        reads.confirm()
        reads.release(reads.next_start(), ttl_s=float("inf"))
    finally:
        directory.close(is_clean=directory.state.is_clean)


class BatchReader(DataSourceReader):
    """Receives the channel's messages when Spark plans the job."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Receive messages and return the tasks that read them; a known readId receives nothing."""
        options = self._options
        check_place(options, tasks_run_here(), can_probe=False)
        directory = open_directory(options)
        is_clean = directory.state.is_clean
        try:
            reads = Reads(directory)
            read = reads.named(options.read_id)
            if read is None:
                if options.starts_at_latest:
                    reads.confirm()
                start = reads.next_start()
                reads.release(start, ttl_s=options.read_ttl_s)
                end, is_clean = self._receive(directory, start)
                read = reads.add(options.read_id, start, end)
            return self._partitions(directory, read)
        finally:
            directory.close(is_clean=is_clean)

    def _receive(self, directory: SegmentDirectory, start: int) -> tuple[int, bool]:
        """Return the end of the read, and whether nsqd confirmed that it read every FIN."""
        options = self._options
        receiver = Receiver(options, directory)
        try:
            receiver.start(bound_ns=time.time_ns())
            while True:
                rows = receiver.wait_for_rows(receiver.rows, _PAUSE_S)
                end = directory.end_within(start, rows, options.max_rows, options.max_bytes)
                if end < rows or receiver.is_drained or receiver.is_paused:
                    return end, receiver.stop()
        finally:
            receiver.stop()

    def _partitions(self, directory: SegmentDirectory, read: Read) -> list[InputPartition]:
        return plan_partitions(directory, self._options, read.start, read.end) if read.end > read.start else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition."""
        # Spark passes a partition of its own if there are no rows.
        if isinstance(partition, SlicePartition):
            spare_collections()
            yield from read_partition(partition)


@dataclass(frozen=True, slots=True)
class Read:
    """The range of rows that a job got; ``name`` is its readId, or empty."""

    name: str
    start: int
    end: int
    made_s: float


class Reads:
    """The reads of a segment directory that can be repeated: all named ones, and the last unnamed one."""

    def __init__(self, directory: SegmentDirectory) -> None:
        self._directory = directory
        self._reads = [Read(**each) for each in directory.read_note(_READS_NAME) or []]

    def named(self, name: str) -> Read | None:
        """Return the earlier read of this name, or None; raises DataLost if its rows were removed."""
        for read in self._reads:
            if name and read.name == name:
                if read.start < self._directory.first_row:
                    raise DataLost(
                        f"nsq: the rows of readId {name} were removed after readTTL: read them under a new readId"
                    )
                return read
        return None

    def next_start(self) -> int:
        """Return the first row that belongs to no named read."""
        return max([self._directory.state.committed, *(read.end for read in self._reads if read.name)])

    def confirm(self) -> None:
        """Mark the unnamed read as confirmed: no later read returns its rows."""
        self._reads = [read if read.name else replace(read, name=_CONFIRMED, made_s=0.0) for read in self._reads]

    def release(self, start: int, *, ttl_s: float) -> None:
        """Remove rows before ``start``, except those of named reads younger than ``ttl_s``."""
        oldest_s = time.time() - ttl_s
        kept = [read for read in self._reads if read.name and read.made_s >= max(oldest_s, 1.0)]
        self._save()
        self._directory.commit(min([start, *(read.start for read in kept)]))

    def add(self, name: str, start: int, end: int) -> Read:
        """Record a read durably."""
        read = Read(name, start, end, time.time())
        self._reads = [*(each for each in self._reads if each.name), read]
        self._save()
        return read

    def _save(self) -> None:
        # Names are kept after their rows are removed: a readId that is used too late is an error, not an empty read.
        self._reads = self._reads[-_MAX_READS:]
        self._directory.write_note(_READS_NAME, [asdict(read) for read in self._reads])
