"""The nouns of a pipeline file: sources, tables, steps, sinks, and where things are.

Made by ``parser`` from a file, or by ``archive``. Knows neither TOML nor Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.client.discovery import http_credentials
from nsqx.client.options import Options, read_option_flags
from nsqx.errors import ConfigError

if TYPE_CHECKING:
    from nsqx.net.daemon_http import Credentials

FILE_SINKS = ("parquet", "json", "csv")
INFER = "infer"


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late rows may come: a column with their time, and a delay as Spark reads it."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """A topic, or several, as rows."""

    name: str
    topics: tuple[str, ...]
    pattern: str
    channel: str
    format: str
    schema: str
    """DDL, an Avro schema, ``infer``, or nothing for text and raw."""
    framing: str
    delimiter: str
    require: tuple[str, ...]
    watermark: Watermark | None
    dedup: tuple[str, ...]
    options: Mapping[str, str]
    """Options of the data source."""


@dataclass(frozen=True, slots=True)
class Table:
    """Files to join with."""

    name: str
    path: str
    format: str
    schema: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """A query over sources, tables and steps before it; or a Python function on the rows of one of them."""

    name: str
    sql: str
    function: str
    from_: str
    schema: str
    watermark: Watermark | None
    dedup: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go."""

    name: str
    from_: str
    type: str
    mode: str
    trigger_ms: int | None
    path: str = ""
    partition_by: tuple[str, ...] = ()
    compression: str = ""
    topic: str = ""
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
    """Where records go that cannot be processed: a topic, or else a directory."""

    topic: str
    directory: str


@dataclass(frozen=True, slots=True)
class Nsq:
    """Where the cluster is."""

    lookupd: tuple[str, ...]
    nsqd: tuple[str, ...]
    options: Mapping[str, str]

    def settings(self) -> dict[str, str]:
        """As options of the data source."""
        found = {f"nsq.{name}": value for name, value in self.options.items()}
        if self.lookupd:
            found["nsq.lookupd"] = ",".join(self.lookupd)
        if self.nsqd:
            found["nsq.nsqd"] = ",".join(self.nsqd)
        return found

    def credentials(self) -> Credentials:
        """What is shown to the HTTP APIs of nsqlookupd and nsqd; raises ConfigError."""
        return http_credentials(
            Options.of(read_option_flags(f"{name},{value}" for name, value in self.options.items()))
        )


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What the session is made with."""

    settings: Mapping[str, str]
    jars: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole file."""

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
    """Otherwise there is one sink only, and the channel is just that of the source."""

    @property
    def directory(self) -> str:
        """Where the file is."""
        return os.path.dirname(os.path.abspath(self.file))

    def channel_of(self, source: Source, sink: Sink) -> str:
        """The channel by which a sink reads a source: every sink sees every message."""
        return f"{source.channel}.{sink.name}" if self.has_channel_by_sink else source.channel

    def fail(self, key: str, what: str) -> ConfigError:
        """An error at a key of the file."""
        return ConfigError(f"{self.file}: {key}: {what}")


def source_options(pipeline: Pipeline, source: Source, sink: Sink) -> dict[str, str]:
    """The options of the data source for one source on its way to one sink."""
    return {
        **pipeline.nsq.settings(),
        **({"subscribePattern": source.pattern} if source.pattern else {"subscribe": ",".join(source.topics)}),
        "channel": pipeline.channel_of(source, sink),
        "segmentDir": f"{pipeline.state}/{sink.name}/segments-{source.name}",
        **source.options,
    }


def located(directory: str, path: str) -> str:
    """A path of the file is relative to the file, so that it means the same wherever the command is given.

    Raises ConfigError for a URI with a query: names are appended to it, and Spark's JVM knows no queries.
    """
    if "://" in path and "?" in path:
        raise ConfigError(
            f"{path}: an address with ?settings cannot be used here: for S3 set AWS_ENDPOINT_URL, AWS_REGION and"
            " credentials in the environment"
        )
    return path if "://" in path else os.path.normpath(os.path.join(directory, os.path.expanduser(path)))
