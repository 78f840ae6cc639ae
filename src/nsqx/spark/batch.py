"""The batch read: what is in the channel now, as a DataFrame.

Spark never tells a reader whether a batch job has succeeded. So a read lets go of nothing by itself: its rows are on
disk, finished at nsqd, and the next read gives them again, with what has come since. They go when somebody says so:

    startingOffsets latest     this read begins after the one before, whose job has succeeded
    confirm_reads(...)         the same, said without reading
    readId                     a read with a name has its own rows: the same whenever that name is used, until
                               readTTL is over, and no read with another name or without one has them
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
# What became of a read without a name; no readId can be like this.
_CONFIRMED = "(confirmed)"
_PAUSE_S = 1.0


def confirm_reads(segment_dir: str, channel: str) -> None:
    """The jobs on what was read from this directory without a name have succeeded: let go of those rows."""
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
    """Drains the channel when the job is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Receive, and say what to read."""
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
        """The end of the read, and whether nsqd has heard of everything."""
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
        """The rows of one partition."""
        # Without rows Spark makes a partition of its own.
        if isinstance(partition, SlicePartition):
            spare_collections()
            yield from read_partition(partition)


@dataclass(frozen=True, slots=True)
class Read:
    """Rows that were given to a job; the name may be empty."""

    name: str
    start: int
    end: int
    made_s: float


class Reads:
    """The reads of a segment directory that may be asked for again: those with names, and the last without."""

    def __init__(self, directory: SegmentDirectory) -> None:
        self._directory = directory
        self._reads = [Read(**each) for each in directory.read_note(_READS_NAME) or []]

    def named(self, name: str) -> Read | None:
        """The read of this name, if it was made before."""
        for read in self._reads:
            if name and read.name == name:
                if read.start < self._directory.first_row:
                    raise DataLost(f"nsq: the rows of readId {name} are gone: they are kept for readTTL")
                return read
        return None

    def next_start(self) -> int:
        """The first row that no read has to itself."""
        return max([self._directory.state.committed, *(read.end for read in self._reads if read.name)])

    def confirm(self) -> None:
        """The read without a name is done with: nobody gets its rows again."""
        self._reads = [read if read.name else replace(read, name=_CONFIRMED, made_s=0.0) for read in self._reads]

    def release(self, start: int, *, ttl_s: float) -> None:
        """Let go of rows before ``start`` that belong to no named read whose time is not over."""
        oldest_s = time.time() - ttl_s
        kept = [read for read in self._reads if read.name and read.made_s >= max(oldest_s, 1.0)]
        self._save()
        self._directory.commit(min([start, *(read.start for read in kept)]))

    def add(self, name: str, start: int, end: int) -> Read:
        """Note a read, durably."""
        read = Read(name, start, end, time.time())
        self._reads = [*(each for each in self._reads if each.name), read]
        self._save()
        return read

    def _save(self) -> None:
        # Names outlive their rows, so that using one again too late is told.
        self._reads = self._reads[-_MAX_READS:]
        self._directory.write_note(_READS_NAME, [asdict(read) for read in self._reads])
