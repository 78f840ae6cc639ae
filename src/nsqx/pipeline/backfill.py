# ruff: noqa: N802  (the names are Spark's)

"""Backfill: a source that reads an archive first and then the logs, without a gap and without a double.

The archive must have been written from logs: its rows then have the id of their log and their offset in it. Before the
first start of a query a ``BackfillPlan`` is stored. It lists the files, and for each log the offset after the last one
in the files. The channels of the query are created there, so nsqd keeps what comes after.

An offset of Spark is that of the logs and the number of rows of the archive: ``{"#archive": 1000, "orders": {…}}``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nsqx.errors import ConfigError
from nsqx.pipeline.file_sink import locate
from nsqx.pipeline.state import PipelineState
from nsqx.spark.log_fetch import LogRange, read_range
from nsqx.spark.log_options import read_log_options
from nsqx.spark.log_source import LogStreamReader
from nsqx.spark.rows import SPARK_SCHEMA
from nsqx.spark.source import NSQDataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "nsq_backfill"
PLAN_OPTION = "backfillPlan"
ARCHIVE_OPTION = "backfillArchive"
ARCHIVE = "#archive"
ROWS_PER_BATCH = 2_000_000
"""The number of rows of the archive in a batch, if the source sets no limit."""
_FILE = re.compile(r"(?P<query>.+-[0-9a-f]{8})-(?P<batch>\d{8})-\d+\.parquet")


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """The files to read, with the number of rows of each, and where the logs go on: by topic and log."""

    files: tuple[tuple[str, int], ...]
    starts: Mapping[str, Mapping[str, int]]

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(rows for _, rows in self.files)

    def end_within(self, start: int, max_rows: int) -> int:
        """Return the number of rows after the next files with up to ``max_rows`` rows; at least one file is read."""
        end = start
        for first, last, _ in self._spans():
            if first >= start and (end == start or last - start <= max_rows):
                end = last
        return end

    def between(self, start: int, end: int) -> list[str]:
        """Return the files between two numbers of rows."""
        return [path for first, last, path in self._spans() if start <= first and last <= end]

    def after(self, rows: int, positions: Mapping[str, int]) -> BackfillPlan:
        """Return the plan without the files of the first ``rows`` rows, for logs that go on at ``positions``."""
        left = [(path, last - first) for first, last, path in self._spans() if first >= rows]
        starts = {
            topic: {log: max(next_, positions.get(f"{topic}/{log}", 0)) for log, next_ in logs.items()}
            for topic, logs in self.starts.items()
        }
        return BackfillPlan(tuple(left), starts)

    def _spans(self) -> Iterator[tuple[int, int, str]]:
        ends = list(itertools.accumulate((rows for _, rows in self.files), initial=0))
        return zip(ends, ends[1:], (path for path, _ in self.files), strict=False)

    def as_json(self) -> dict[str, Any]:
        """Return the plan for its file."""
        return {"files": self.files, "starts": self.starts}


def plan_file_name(sink: str, source: str) -> str:
    """Return the name of the file of a plan in the state directory."""
    return f"backfill-{sink}-{source}.json"


def read_plan(state: PipelineState, name: str) -> BackfillPlan | None:
    """Return a stored plan, or None."""
    found = state.read(name)
    return BackfillPlan(tuple((path, rows) for path, rows in found["files"]), found["starts"]) if found else None


def plan_backfill(archive: str, topics: tuple[str, ...]) -> BackfillPlan:
    """Return the plan for an archive; raises ConfigError.

    Files of the newest batch of a query are left out, because the archive may still be adding files of that batch. Its
    messages are read from the logs.
    """
    filesystem, root = locate(archive)
    infos = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    named = []
    for info in infos:
        match = _FILE.fullmatch(info.base_name)
        if match is not None and "/.nsqx" not in info.path.removeprefix(root):
            named.append((info.path, match["query"], int(match["batch"])))
    if not named:
        raise ConfigError(f"{archive} has no files of an archive: write it with nsqx archive")
    newest: dict[str, int] = {}
    for _, query, batch in named:
        newest[query] = max(batch, newest.get(query, -1))
    files: list[tuple[str, int]] = []
    starts: dict[str, dict[str, int]] = {topic: {} for topic in topics}
    for path, query, batch in sorted(named, key=lambda each: (each[0].rpartition("/")[0], each[2], each[0])):
        if batch < newest[query]:
            rows = _scan(filesystem, path, starts)
            if rows:
                files.append((path, rows))
    return BackfillPlan(tuple(files), starts)


def _scan(filesystem: pafs.FileSystem, path: str, starts: dict[str, dict[str, int]]) -> int:
    """Add the ends of the logs in a file to ``starts``, and return the number of rows of their topics."""
    with pq.ParquetFile(filesystem.open_input_file(path)) as file:
        if not {"offset", "log"} <= set(file.schema_arrow.names):
            raise ConfigError(
                f"{path} has no columns offset and log: only an archive that was written from topics with a log can be"
                " followed by live messages"
            )
        count = 0
        for batch in file.iter_batches(columns=["topic", "log", "offset"]):
            groups = pa.Table.from_batches([batch]).group_by(["topic", "log"])
            for row in groups.aggregate([("offset", "max"), ([], "count_all")]).to_pylist():
                if row["topic"] in starts:
                    if row["offset_max"] is None:
                        raise ConfigError(f"{path} has rows without an offset: they were not written from a log")
                    logs = starts[row["topic"]]
                    logs[row["log"]] = max(logs.get(row["log"], 0), row["offset_max"] + 1)
                    count += row["count_all"]
        return count


def check_reach(plan: BackfillPlan, firsts: Mapping[str, int]) -> None:
    """Raise ConfigError if a log no longer has the messages after the end of the archive."""
    for topic, logs in plan.starts.items():
        for log, wanted in logs.items():
            if (first := firsts.get(f"{topic}/{log}", wanted)) > wanted:
                raise ConfigError(
                    f"the archive ends at offset {wanted} of topic {topic} (log {log}) and the log begins at {first}:"
                    " the messages between them would be missing. The newest batch of an archive is left out: run the"
                    " archive again, so that its last batch counts"
                )


def check_starts(plan: BackfillPlan, positions: Mapping[str, int], channel: str) -> None:
    """Raise ConfigError if the channels of a new query do not begin where the archive ends."""
    for topic, logs in plan.starts.items():
        for log, wanted in logs.items():
            found = positions.get(f"{topic}/{log}")
            if found is None:
                # The log is gone; the archive has what there was of it.
                continue
            if found > wanted:
                raise ConfigError(
                    f"the archive ends at offset {wanted} of topic {topic} (log {log}) and channel {channel} begins at"
                    f" {found}: the messages between them would be missing. If the log still has them, move the channel"
                    f" with nsqx seek {topic} {channel}, else write the archive further"
                )
            if found < wanted:
                raise ConfigError(
                    f"the archive ends at offset {wanted} of topic {topic} (log {log}) and channel {channel} exists at"
                    f" {found}: messages would be read twice. Delete the channel, then start again"
                )


@dataclass
class ArchiveFile(InputPartition):
    """One file, with the topics of the source."""

    path: str
    archive: str
    topics: tuple[str, ...]


def read_archive_file(part: ArchiveFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of the data source, in an executor."""
    filesystem, _ = locate(part.archive)
    with pq.ParquetFile(filesystem.open_input_file(part.path)) as file:
        for batch in file.iter_batches(columns=SPARK_SCHEMA.names):
            wanted = batch.filter(pc.is_in(batch.column("topic"), pa.array(part.topics)))
            if wanted.num_rows:
                table = pa.Table.from_batches([wanted]).select(SPARK_SCHEMA.names).cast(SPARK_SCHEMA)
                yield from table.to_batches()


class BackfillSource(DataSource):
    """The data source of a query with a backfill; its options are those of the format nsq and the place of the plan."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns."""
        return NSQDataSource(self._log_options()).schema()

    def streamReader(self, schema: StructType) -> BackfillReader:
        """Return the reader."""
        del schema
        return BackfillReader(self._log_options(), self.options[PLAN_OPTION], self.options[ARCHIVE_OPTION])

    def _log_options(self) -> dict[str, str]:
        ours = (PLAN_OPTION.lower(), ARCHIVE_OPTION.lower())
        return {name: value for name, value in self.options.items() if name.lower() not in ours}


class BackfillReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the files of the plan, and then the logs."""

    def __init__(self, given: Mapping[str, str], place: str, archive: str) -> None:
        self._archive = archive
        location, _, name = place.rpartition("/")
        self._place = location, name
        self._plan: BackfillPlan | None = None
        options = read_log_options(given, is_stream=True)
        self._live = LogStreamReader(options)
        self._max_rows = options.max_rows or ROWS_PER_BATCH

    def initialOffset(self) -> dict[str, Any]:
        """Return the beginning of the archive, and the positions of the channels, which the pipeline has created."""
        return {ARCHIVE: 0, **self._live.initialOffset()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the read bounded."""
        self._live.prepareForTriggerAvailableNow()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the logs."""
        return self._live.getDefaultReadLimit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next files, or after the last one the end in the logs."""
        done, plan = start[ARCHIVE], self._opened()
        if done < plan.rows:
            max_rows = min(limit.max_rows, self._max_rows) if isinstance(limit, ReadMaxRows) else self._max_rows
            return {**start, ARCHIVE: plan.end_within(done, max_rows)}
        return {ARCHIVE: done, **self._live.latestOffset(_of_logs(start), limit)}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the archive and the logs are."""
        latest = self._live.reportLatestOffset()
        return {ARCHIVE: self._opened().rows, **latest} if latest is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks that read the rows between two offsets."""
        topics = tuple(self._opened().starts)
        paths = self._opened().between(start[ARCHIVE], end[ARCHIVE])
        files: list[InputPartition] = [ArchiveFile(path, self._archive, topics) for path in paths]
        first, last = _of_logs(start), _of_logs(end)
        return files if first == last else [*files, *self._live.partitions(first, last)]

    def commit(self, end: dict[str, Any]) -> None:
        """Set the positions of the channels."""
        self._live.commit(_of_logs(end))

    def stop(self) -> None:
        """Stop reading."""
        self._live.stop()

    def read(self, partition: LogRange | ArchiveFile) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Return the rows of one partition."""
        return read_range(partition) if isinstance(partition, LogRange) else read_archive_file(partition)

    def _opened(self) -> BackfillPlan:
        if self._plan is None:
            location, name = self._place
            self._plan = read_plan(PipelineState(location), name)
            if self._plan is None:
                raise ConfigError(f"{location}/{name} is missing: reset the sink, which then reads the archive again")
        return self._plan


def _of_logs(offset: Mapping[str, Any]) -> dict[str, Any]:
    return {topic: logs for topic, logs in offset.items() if topic != ARCHIVE}
