"""The content of a pipeline file: sources, tables, steps, sinks, addresses and directories.

Built by ``parser`` from a file, or by ``archive``. Knows neither TOML nor Spark's objects.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.client.http_credentials import http_credentials
from nsqx.client.options import Options, read_option_flags
from nsqx.errors import ConfigError
from nsqx.spark.options import ClusterAddresses, read_sink_options

if TYPE_CHECKING:
    from nsqx.cluster.credentials import Credentials

FILE_SINKS = ("parquet", "orc", "json", "csv")
INFER = "infer"
SHARED = "shared"
"""The type of the internal sinks that decode a source for other sinks."""
FILE_TRIGGER_MS = 10_000
"""The default trigger of file sinks, which would otherwise write several files per second."""
TRANSACTION_INPUT = "64m"
"""The default size of the input of a batch that is published in one transaction, which nsqd holds in memory."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Spark's limit for late rows: a column with the time of a row, and a delay in Spark's notation."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """One or more topics, decoded to rows."""

    name: str
    topics: tuple[str, ...]
    pattern: str
    channel: str
    format: str
    schema: str
    """DDL, an Avro schema, ``infer``, or empty for the formats text and raw."""
    framing: str
    delimiter: str
    require: tuple[str, ...]
    watermark: Watermark | None
    dedup: tuple[str, ...]
    options: Mapping[str, str]
    """Options of the data source."""
    backfill: str = ""
    """The directory of an archive that a new query reads before the topics."""
    share: bool = False
    """Read and decode the topics once for all sinks that start with this setting."""


@dataclass(frozen=True, slots=True)
class Table:
    """Static files, to join with."""

    name: str
    path: str
    format: str
    schema: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """A SQL query over sources, tables and earlier steps, or a Python function for the rows of one of them."""

    name: str
    sql: str
    function: str
    from_: str
    schema: str
    watermark: Watermark | None
    dedup: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """A destination of rows."""

    name: str
    from_: str
    type: str
    mode: str
    trigger_ms: int | None
    path: str = ""
    partition_by: tuple[str, ...] = ()
    compression: str = ""
    topic: str = ""
    exactly_once: bool | None = None
    """Publish each batch once; None to do it if every nsqd has a log for the topic."""
    previous_nsqd: tuple[str, ...] = ()
    """The nsqds that the sink used before, if the list has changed."""
    url: str = ""
    table: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    driver: str = ""
    keys: tuple[str, ...] = ()
    function: str = ""
    rows: int = 20


@dataclass(frozen=True, slots=True)
class DeadLetterPlace:
    """The topic or the directory for records that cannot be processed."""

    topic: str
    directory: str


@dataclass(frozen=True, slots=True)
class Nsq:
    """The addresses of the cluster, and options of the client."""

    lookupd: tuple[str, ...]
    nsqd: tuple[str, ...]
    options: Mapping[str, str]

    def settings(self) -> dict[str, str]:
        """Return the options for the data source."""
        found = {f"nsq.{name}": value for name, value in self.options.items()}
        if self.lookupd:
            found["nsq.lookupd"] = ",".join(self.lookupd)
        if self.nsqd:
            found["nsq.nsqd"] = ",".join(self.nsqd)
        return found

    def credentials(self) -> Credentials:
        """Return the credentials for the HTTP APIs of nsqlookupd and nsqd; raises ConfigError."""
        return http_credentials(
            Options.of(read_option_flags(f"{name},{value}" for name, value in self.options.items()))
        )


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of the Spark session."""

    settings: Mapping[str, str]
    jars: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The content of a pipeline file."""

    file: str
    name: str
    state: str
    nsq: Nsq
    spark: SparkSettings
    sources: Mapping[str, Source]
    tables: Mapping[str, Table]
    steps: Mapping[str, Step]
    sinks: Mapping[str, Sink]
    dead_letters: DeadLetterPlace
    has_channel_by_sink: bool = True
    """Each sink has its own channel. False for an archive, whose only sink uses the channel of the source."""
    metrics_address: str = ""
    """Where a run serves its metrics; empty for nowhere."""

    @property
    def directory(self) -> str:
        """The directory of the file."""
        return os.path.dirname(os.path.abspath(self.file))

    def relations(self) -> list[str]:
        """Return the names that SQL can read: those of sources, tables and steps."""
        return [*self.sources, *self.tables, *self.steps]

    def channel_of(self, source: Source, sink: Sink) -> str:
        """Return the channel through which a sink reads a source; each sink gets every message."""
        return f"{source.channel}.{sink.name}" if self.has_channel_by_sink else source.channel

    def fail(self, key: str, what: str) -> ConfigError:
        """Return an error for a key of the file."""
        return ConfigError(f"{self.file}: {key}: {what}")


def source_options(pipeline: Pipeline, source: Source, sink: Sink) -> dict[str, str]:
    """Return the options of the data source for a source that a sink reads."""
    return {
        **pipeline.nsq.settings(),
        **({"subscribePattern": source.pattern} if source.pattern else {"subscribe": ",".join(source.topics)}),
        "channel": pipeline.channel_of(source, sink),
        "segmentDir": segment_location(pipeline, source, sink),
        **({"maxBytesPerTrigger": TRANSACTION_INPUT} if may_publish_once(pipeline, sink) else {}),
        **source.options,
    }


def segment_location(pipeline: Pipeline, source: Source, sink: Sink) -> str:
    """Return the segment directory of a source that a sink reads."""
    return f"{pipeline.state}/{sink.name}/segments-{source.name}"


def shared_sink_name(source: str) -> str:
    """Return the name of the internal sink that decodes a source; no sink of a file can have it."""
    return f"shared-{source}"


def trigger_of(sink: Sink) -> int:
    """Return the interval between the batches of a sink in milliseconds, or 0 for none."""
    return sink.trigger_ms or (FILE_TRIGGER_MS if sink.path else 0)


def may_publish_once(pipeline: Pipeline, sink: Sink) -> bool:
    """Return True if a sink publishes each batch in one transaction, provided that the topic has logs."""
    if sink.type != "topic" or sink.exactly_once is not None:
        return bool(sink.exactly_once)
    return bool(sink.topic and pipeline.nsq.nsqd and not pipeline.nsq.lookupd)


def cluster_of(pipeline: Pipeline) -> ClusterAddresses:
    """Return the addresses of the cluster with the client's options; raises ConfigError."""
    try:
        return read_sink_options(pipeline.nsq.settings(), has_topic_column=True).cluster
    except ConfigError as error:
        raise pipeline.fail("nsq", str(error).removeprefix("nsq: ")) from None


def located(directory: str, path: str) -> str:
    """Resolve a path of a pipeline file against the file's directory, independent of the working directory.

    Raises ConfigError for a URI with a query: file names are appended to it, and Spark's JVM does not support queries.
    """
    if "://" in path and "?" in path:
        raise ConfigError(
            f"{path}: a URI with ?settings cannot be used here: for S3 set AWS_ENDPOINT_URL, AWS_REGION and credentials"
            " in the environment"
        )
    return path if "://" in path else os.path.normpath(os.path.join(directory, os.path.expanduser(path)))


def read_host_port(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; raises ConfigError. Without a host, all addresses are meant."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"invalid address {address!r}: use host:port, such as 127.0.0.1:9400")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)
