"""The archive: a pipeline with one source and one sink that writes topics to Parquet files by date and hour.

    DIR/date=2026-11-15/hour=11/archive-1f0c2d3e-00000012-0.parquet

The columns are those of the data source. The default state directory is ``DIR/.nsqx``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nsqx.errors import ConfigError
from nsqx.names import invalid_name, is_valid_name
from nsqx.pipeline.model import (
    DeadLetterPlace,
    Nsq,
    Pipeline,
    Sink,
    Source,
    SparkSettings,
    Step,
    located,
    source_options,
)
from nsqx.spark.options import read_source_options

STATE = ".nsqx"
_SQL = """
SELECT value, _topic AS topic, _id AS id, _timestamp AS timestamp, _attempts AS attempts, _node AS node,
       $more date_format(_timestamp, 'yyyy-MM-dd') AS date, date_format(_timestamp, 'HH') AS hour
FROM messages
"""


@dataclass(frozen=True, slots=True)
class ArchiveSpec:
    """Which topics to archive, where, and how."""

    topics: Sequence[str]
    pattern: str
    to: str
    channel: str = "archive"
    state: str = ""
    trigger_ms: int = 60_000
    compression: str = "zstd"
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the data source."""
    has_offsets: bool = False
    """The topics have logs, and the archive gets the columns offset and log."""


def archive_pipeline(archive: ArchiveSpec, nsq: Nsq, settings: Mapping[str, str] | None = None) -> Pipeline:
    """Return the pipeline that writes the archive; raises ConfigError."""
    for topic in archive.topics:
        if not is_valid_name(topic):
            raise ConfigError(invalid_name("topic", topic))
    path = located(".", archive.to)
    state = located(".", archive.state) if archive.state else f"{path}/{STATE}"
    source = Source(
        name="messages",
        topics=tuple(archive.topics),
        pattern=archive.pattern,
        channel=archive.channel,
        format="raw",
        schema="",
        framing="none",
        delimiter=",",
        require=(),
        watermark=None,
        dedup=(),
        options={**archive.options, **({"includeOffset": "true"} if archive.has_offsets else {})},
    )
    sql = _SQL.replace("$more", "_offset AS offset, _log AS log," if archive.has_offsets else "")
    sink = Sink(
        name="archive",
        from_="rows",
        type="parquet",
        mode="append",
        trigger_ms=archive.trigger_ms,
        path=path,
        partition_by=("date", "hour"),
        compression=archive.compression,
    )
    pipeline = Pipeline(
        file="nsqx archive",
        name="archive",
        state=state,
        nsq=nsq,
        spark=SparkSettings(settings or {}, (), ()),
        sources={"messages": source},
        tables={},
        steps={"rows": Step("rows", sql, "", "", "", None, ())},
        sinks={"archive": sink},
        dead_letters=DeadLetterPlace("", f"{state}/dead-letters"),
        has_channel_by_sink=False,
    )
    options = source_options(pipeline, source, sink)
    try:
        read_source_options({name: value for name, value in options.items() if name != "includeOffset"})
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("nsq: ")) from None
    return pipeline
