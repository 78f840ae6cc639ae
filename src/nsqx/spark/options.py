"""The options of the data source: their names, defaults and ranges, and the errors for wrong values.

The names are those of Spark's Kafka source where it has the same option. Spark passes all values as text and all names
in lower case. Knows nothing of Spark, sockets or files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nsqx.client.options import Options, read_option_flags
from nsqx.errors import ConfigError
from nsqx.gotext import parse_duration_ns
from nsqx.names import is_valid_name, is_valid_producer
from nsqx.units import NS_PER_S

_CLIENT_PREFIX = "nsq."
_SIZE = re.compile(r"(\d+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

_SOURCE_NAMES = (
    "subscribe",
    "subscribePattern",
    "channel",
    "segmentDir",
    "segmentDirIsShared",
    "maxRowsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxInFlight",
    "maxInFlightBytes",
    "maxBufferedRows",
    "maxBufferedBytes",
    "dedupWindow",
    "drainIdle",
    "failOnDataLoss",
    "startingOffsets",
    "readId",
    "readTTL",
    "mode",
)
# Only for reading logs (see ``log_options``).
LOG_NAMES = (
    "assign",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxRecordsPerPartition",
    "fetchRetries",
    "fetchRetryInterval",
    "fetchTimeout",
    "nodeTimeout",
    "includeOffset",
)
_SINK_NAMES = ("topic", "publishAttempts")
# Only for the exactly-once sink.
_ONCE_NAMES = ("exactlyOnce", "previousNsqd", "commitTimeout", "maxRequestBytes", "txnAppId", "txnVersion")
_NAMES = {name.lower(): name for name in (*_SOURCE_NAMES, *LOG_NAMES, *_SINK_NAMES, *_ONCE_NAMES)}
# Options that Spark adds for tables, paths and checkpoints.
_SPARK_NAMES = frozenset(
    {"path", "checkpointlocation", "provider", "owner", "location", "external", "is_managed_location", "queryname"}
    | {"serialization.format", "comment", "header", "outputmode"}
)
# Spark repeats every option of a table with this prefix.
_TABLE_PREFIX = "option."

MAX_IN_FLIGHT = 10_000
# The receiver uses about three times as much memory, because growing buffers are copied.
MAX_IN_FLIGHT_BYTES = 128 * 1024**2
DEDUP_WINDOW = 500_000
DRAIN_IDLE_S = 2.0
MAX_BUFFERED_ROWS = 5_000_000
MAX_BUFFERED_BYTES = 2 * 1024**3
READ_TTL_S = 7 * 86400.0
MAX_TRIGGER_DELAY_S = 15 * 60.0
# How long the exactly-once sink waits for the nsqd of a batch.
COMMIT_TIMEOUT_S = 600.0
# Below nsqd's default of --max-body-size.
REQUEST_BYTES = 4 * 1024**2
# The receiver requests this message timeout from nsqd, so it knows when to touch a message.
MSG_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ClusterAddresses:
    """The addresses of the cluster, and the client's options for connecting to it."""

    nsqd_tcp_addresses: tuple[str, ...]
    lookupd_http_addresses: tuple[str, ...]
    client_options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of a reader."""

    cluster: ClusterAddresses
    topics: tuple[str, ...]
    topic_pattern: str
    channel: str
    segment_dir: str
    segment_dir_is_shared: bool
    max_rows: int
    max_bytes: int
    min_rows: int
    max_trigger_delay_s: float
    min_partitions: int
    max_in_flight: int
    max_in_flight_bytes: int
    max_buffered_rows: int
    max_buffered_bytes: int
    dedup_window: int
    drain_idle_s: float
    fail_on_data_loss: bool
    starts_at_latest: bool
    read_id: str
    read_ttl_s: float


@dataclass(frozen=True, slots=True)
class OnceOptions:
    """The checked options of a writer that stores each batch once.

    ``app_id`` and ``version`` name the batch of a batch write; empty and 0 for a new name.
    """

    cluster: ClusterAddresses
    topic: str
    previous_nodes: tuple[str, ...]
    commit_timeout_s: float
    request_bytes: int
    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of a writer."""

    cluster: ClusterAddresses
    topic: str
    publish_attempts: int


def check_names(options: Mapping[str, str]) -> None:
    """Raise ConfigError if an option is unknown."""
    for name in options:
        lowered = name.lower().removeprefix(_TABLE_PREFIX)
        if lowered in _NAMES or lowered in _SPARK_NAMES or lowered.startswith(_CLIENT_PREFIX):
            continue
        close = difflib.get_close_matches(lowered, [*_NAMES, "nsq.lookupd", "nsq.nsqd"], 1)
        hint = f"did you mean {_NAMES.get(close[0], close[0])}?" if close else f"use one of {', '.join(_known())}"
        raise ConfigError(f"nsq: unknown option {name}: {hint}")


def _known() -> Iterable[str]:
    return (
        "nsq.lookupd",
        "nsq.nsqd",
        *_SOURCE_NAMES,
        *LOG_NAMES,
        *_SINK_NAMES,
        *_ONCE_NAMES,
        "or nsq.NAME for an option of the client",
    )


def read_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the checked options of a reader; raises ConfigError."""
    given = given_options(options)
    topics, pattern = _topics(given)
    cluster = read_cluster(given)
    if pattern and not cluster.lookupd_http_addresses:
        raise ConfigError("nsq: subscribePattern requires nsq.lookupd, which lists the topics")
    max_in_flight = read_integer(given, "maxInFlight", MAX_IN_FLIGHT, 1)
    return SourceOptions(
        cluster=cluster,
        topics=topics,
        topic_pattern=pattern,
        channel=_channel(given),
        segment_dir=_segment_dir(given),
        segment_dir_is_shared=read_flag(given, "segmentDirIsShared", False),
        max_rows=read_integer(given, either(given, "maxRowsPerTrigger", "maxOffsetsPerTrigger"), 0, 1),
        max_bytes=read_size(given, "maxBytesPerTrigger", 0),
        min_rows=read_integer(given, either(given, "minRowsPerTrigger", "minOffsetsPerTrigger"), 0, 1),
        max_trigger_delay_s=read_duration_s(given, "maxTriggerDelay", MAX_TRIGGER_DELAY_S),
        min_partitions=read_integer(given, "minPartitions", 1, 1),
        max_in_flight=max_in_flight,
        max_in_flight_bytes=read_size(given, "maxInFlightBytes", MAX_IN_FLIGHT_BYTES),
        max_buffered_rows=read_integer(given, "maxBufferedRows", MAX_BUFFERED_ROWS, 1),
        max_buffered_bytes=read_size(given, "maxBufferedBytes", MAX_BUFFERED_BYTES),
        # Any message in flight may be delivered again, so the window must be much larger than maxInFlight.
        dedup_window=max(read_integer(given, "dedupWindow", DEDUP_WINDOW, 1), 10 * max_in_flight),
        drain_idle_s=read_duration_s(given, "drainIdle", DRAIN_IDLE_S),
        fail_on_data_loss=read_flag(given, "failOnDataLoss", True),
        starts_at_latest=_starts_at_latest(given),
        read_id=_read_id(given),
        read_ttl_s=read_duration_s(given, "readTTL", READ_TTL_S),
    )


def read_sink_options(options: Mapping[str, str], *, has_topic_column: bool) -> SinkOptions:
    """Return the checked options of a writer; raises ConfigError."""
    given = given_options(options)
    topic = _sink_topic(given, has_topic_column=has_topic_column)
    cluster = read_cluster(given)
    return SinkOptions(cluster, topic, read_integer(given, "publishAttempts", 10, 1))


def is_exactly_once(options: Mapping[str, str]) -> bool:
    """True if a writer must store each batch once; raises ConfigError."""
    given = given_options(options)
    is_once = read_flag(given, "exactlyOnce", False)
    wrong = [name for name in _ONCE_NAMES[1:] if name.lower() in given and not is_once]
    wrong += [name for name in _SINK_NAMES[1:] if name.lower() in given and is_once]
    if wrong:
        raise ConfigError(
            f"nsq: option {wrong[0]} is only for a sink {'without' if is_once else 'with'} exactlyOnce=true"
        )
    return is_once


def read_once_options(options: Mapping[str, str], *, has_topic_column: bool, is_stream: bool) -> OnceOptions:
    """Return the checked options of a writer that stores each batch once; raises ConfigError."""
    given = given_options(options)
    cluster = read_cluster(given)
    if not cluster.nsqd_tcp_addresses or cluster.lookupd_http_addresses:
        raise ConfigError(
            "nsq: exactlyOnce requires nsq.nsqd, and no nsq.lookupd: batches go to the nsqds of this list in turn, so"
            " the list must not change by itself"
        )
    app_id, version = given.get("txnappid", ""), given.get("txnversion", "")
    if is_stream and (app_id or version):
        raise ConfigError("nsq: txnAppId and txnVersion are only for batch writes: a stream has an id and batches")
    if bool(app_id) != bool(version):
        raise ConfigError("nsq: set both txnAppId and txnVersion, or neither: together they name a batch")
    if app_id and not is_valid_producer(app_id):
        raise ConfigError(f"nsq: invalid txnAppId {app_id!r}: use 1 to 64 of a-z A-Z 0-9 . _ -")
    return OnceOptions(
        cluster,
        _sink_topic(given, has_topic_column=has_topic_column),
        listed(given.get("previousnsqd", "")),
        read_duration_s(given, "commitTimeout", COMMIT_TIMEOUT_S),
        read_size(given, "maxRequestBytes", REQUEST_BYTES),
        app_id,
        read_integer(given, "txnVersion", 0, 0),
    )


def _sink_topic(given: Mapping[str, str], *, has_topic_column: bool) -> str:
    topic = given.get("topic", "")
    if topic:
        check_name("topic", topic)
    elif not has_topic_column:
        raise ConfigError("nsq: no topic to publish to: set the option topic, or add a column topic to the DataFrame")
    return topic


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    check_names(options)
    return {name.lower(): value for name, value in options.items() if not name.lower().startswith(_TABLE_PREFIX)}


def read_cluster(given: Mapping[str, str]) -> ClusterAddresses:
    nsqds = listed(given.get("nsq.nsqd", ""))
    lookupds = listed(given.get("nsq.lookupd", ""))
    if not nsqds and not lookupds:
        raise ConfigError(
            "nsq: option nsq.lookupd or nsq.nsqd is required: set nsq.lookupd to HTTP addresses of nsqlookupd"
            " (127.0.0.1:4161), or nsq.nsqd to TCP addresses of nsqd (127.0.0.1:4150)"
        )
    flags = [
        f"{name.removeprefix(_CLIENT_PREFIX)},{value}"
        for name, value in given.items()
        if name.startswith(_CLIENT_PREFIX) and name not in ("nsq.nsqd", "nsq.lookupd")
    ]
    try:
        client_options = read_option_flags(flags)
        if "max_in_flight" in client_options:
            raise ConfigError("invalid option max_in_flight: set maxInFlight instead")
        if "max_attempts" in client_options:
            raise ConfigError("invalid option max_attempts: the source drops no message, filter by the column attempts")
        Options.of(client_options)
    except ConfigError as error:
        raise ConfigError(f"nsq: client options nsq.*: {error}") from None
    return ClusterAddresses(nsqds, lookupds, tuple(sorted(client_options.items())))


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    topics = listed(given.get("subscribe", ""))
    pattern = given.get("subscribepattern", "")
    if bool(topics) == bool(pattern):
        raise ConfigError(
            f"nsq: {'both of' if topics else 'neither of'} subscribe and subscribePattern given: set either subscribe"
            " to a list of topics, or subscribePattern to a regular expression"
        )
    for topic in topics:
        check_name("topic", topic)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"nsq: subscribePattern {pattern!r} is not a regular expression: {error}") from None
    return topics, pattern


def _channel(given: Mapping[str, str]) -> str:
    channel = given.get("channel", "")
    if not channel:
        raise ConfigError(
            "nsq: option channel is required: set it to the channel to consume, for example"
            " .option('channel', 'spark'), with a different one for each query"
        )
    check_name("channel", channel)
    return channel


def _segment_dir(given: Mapping[str, str]) -> str:
    directory = given.get("segmentdir", "")
    if not directory:
        raise ConfigError(
            "nsq: option segmentDir is required: set it to a directory that only this query uses. Messages are stored"
            " there until Spark has processed them; choose a directory beside the checkpoint"
        )
    return directory


def _starts_at_latest(given: Mapping[str, str]) -> bool:
    text = given.get("startingoffsets", "earliest")
    if text not in ("earliest", "latest"):
        raise ConfigError(
            f"nsq: invalid startingOffsets {text!r}: use earliest (all rows that are not confirmed) or latest (confirm"
            " the batch read before and start after it)"
        )
    return text == "latest"


def _read_id(given: Mapping[str, str]) -> str:
    read_id = given.get("readid", "")
    if read_id and not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", read_id):
        raise ConfigError(f"nsq: invalid readId {read_id!r}: use 1 to 100 of a-z A-Z 0-9 _ . -")
    return read_id


def check_name(kind: str, name: str) -> None:
    if not is_valid_name(name):
        raise ConfigError(f"nsq: invalid {kind} name {name!r}: use 1 to 64 of a-z A-Z 0-9 . _ -")


def listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def either(given: Mapping[str, str], name: str, alias: str) -> str:
    """Return the one of two names that was given."""
    if name.lower() in given and alias.lower() in given:
        raise ConfigError(f"nsq: options {name} and {alias} have the same meaning: set only one of them")
    return alias if alias.lower() in given else name


def read_integer(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"nsq: option {name}: {text!r} is not an integer") from None
    if value < least:
        raise ConfigError(f"nsq: option {name}: {value} is too small, use at least {least}")
    return value


def read_size(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"nsq: option {name}: {text!r} is not a size such as 500000, 64m or 1g")
    return int(match[1]) * _SIZE_UNITS[match[2].lower()]


def read_duration_s(given: Mapping[str, str], name: str, default_s: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default_s
    try:
        seconds = parse_duration_ns(text.strip()) / NS_PER_S
    except ValueError:
        seconds = -1.0
    if seconds <= 0:
        raise ConfigError(f"nsq: option {name}: {text!r} is not a duration such as 500ms, 30s or 1h")
    return seconds


def read_flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"nsq: option {name}: {text!r} is neither true nor false")
    return text.lower() == "true"
