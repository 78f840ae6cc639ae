"""The options of the data source: their names, defaults and ranges, and what is said when one is wrong.

Names follow Spark's Kafka source where it has the option. Spark hands options over as text under lower-case names.
Knows nothing of Spark, sockets or files.
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
from nsqx.names import is_valid_name
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
)
_SINK_NAMES = ("topic", "publishAttempts")
_NAMES = {name.lower(): name for name in (*_SOURCE_NAMES, *_SINK_NAMES)}
# What Spark adds by itself: for tables, paths and checkpoints.
_SPARK_NAMES = frozenset(
    {"path", "checkpointlocation", "provider", "owner", "location", "external", "is_managed_location", "queryname"}
    | {"serialization.format", "comment", "header", "outputmode"}
)
# Of a table Spark repeats every option under this prefix.
_TABLE_PREFIX = "option."

MAX_IN_FLIGHT = 10_000
# The receiver uses about three times as much memory: buffers that grow are copied.
MAX_IN_FLIGHT_BYTES = 128 * 1024**2
DEDUP_WINDOW = 500_000
DRAIN_IDLE_S = 2.0
MAX_BUFFERED_ROWS = 5_000_000
MAX_BUFFERED_BYTES = 2 * 1024**3
READ_TTL_S = 7 * 86400.0
MAX_TRIGGER_DELAY_S = 15 * 60.0
# Asked of nsqd, so that it is known when a message must be touched.
MSG_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ClusterAddresses:
    """Where the nsqds are, and how to speak to them."""

    nsqd_tcp_addresses: tuple[str, ...]
    lookupd_http_addresses: tuple[str, ...]
    client_options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader was asked for."""

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
class SinkOptions:
    """What a writer was asked for."""

    cluster: ClusterAddresses
    topic: str
    publish_attempts: int


def check_names(options: Mapping[str, str]) -> None:
    """Raise ConfigError if there is an option that nobody knows."""
    for name in options:
        lowered = name.lower().removeprefix(_TABLE_PREFIX)
        if lowered in _NAMES or lowered in _SPARK_NAMES or lowered.startswith(_CLIENT_PREFIX):
            continue
        close = difflib.get_close_matches(lowered, [*_NAMES, "nsq.lookupd", "nsq.nsqd"], 1)
        hint = f": did you mean {_NAMES.get(close[0], close[0])}?" if close else f", known are {', '.join(_known())}"
        raise ConfigError(f"nsq: unknown option {name}{hint}")


def _known() -> Iterable[str]:
    return ("nsq.lookupd", "nsq.nsqd", *_SOURCE_NAMES, *_SINK_NAMES, "and nsq.* for the client")


def read_source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a reader; raises ConfigError with a line that says what to do."""
    given = _given(options)
    topics, pattern = _topics(given)
    cluster = _cluster(given)
    if pattern and not cluster.lookupd_http_addresses:
        raise ConfigError("nsq: subscribePattern needs nsq.lookupd: the topics are looked up there")
    max_in_flight = _integer(given, "maxInFlight", MAX_IN_FLIGHT, 1)
    return SourceOptions(
        cluster=cluster,
        topics=topics,
        topic_pattern=pattern,
        channel=_channel(given),
        segment_dir=_segment_dir(given),
        segment_dir_is_shared=_flag(given, "segmentDirIsShared", False),
        max_rows=_integer(given, _either(given, "maxRowsPerTrigger", "maxOffsetsPerTrigger"), 0, 1),
        max_bytes=_size(given, "maxBytesPerTrigger", 0),
        min_rows=_integer(given, _either(given, "minRowsPerTrigger", "minOffsetsPerTrigger"), 0, 1),
        max_trigger_delay_s=_duration_s(given, "maxTriggerDelay", MAX_TRIGGER_DELAY_S),
        min_partitions=_integer(given, "minPartitions", 1, 1),
        max_in_flight=max_in_flight,
        max_in_flight_bytes=_size(given, "maxInFlightBytes", MAX_IN_FLIGHT_BYTES),
        max_buffered_rows=_integer(given, "maxBufferedRows", MAX_BUFFERED_ROWS, 1),
        max_buffered_bytes=_size(given, "maxBufferedBytes", MAX_BUFFERED_BYTES),
        # A message may come again as long as it can be in flight: the window must be far longer than that.
        dedup_window=max(_integer(given, "dedupWindow", DEDUP_WINDOW, 1), 10 * max_in_flight),
        drain_idle_s=_duration_s(given, "drainIdle", DRAIN_IDLE_S),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        starts_at_latest=_starts_at_latest(given),
        read_id=_read_id(given),
        read_ttl_s=_duration_s(given, "readTTL", READ_TTL_S),
    )


def read_sink_options(options: Mapping[str, str], *, has_topic_column: bool) -> SinkOptions:
    """The options of a writer; raises ConfigError with a line that says what to do."""
    given = _given(options)
    topic = given.get("topic", "")
    if topic:
        _check_name("topic", topic)
    elif not has_topic_column:
        raise ConfigError("nsq: where to publish? Set the option topic, or give the DataFrame a column topic")
    cluster = _cluster(given)
    return SinkOptions(cluster, topic, _integer(given, "publishAttempts", 10, 1))


def _given(options: Mapping[str, str]) -> dict[str, str]:
    check_names(options)
    return {name.lower(): value for name, value in options.items() if not name.lower().startswith(_TABLE_PREFIX)}


def _cluster(given: Mapping[str, str]) -> ClusterAddresses:
    nsqds = _listed(given.get("nsq.nsqd", ""))
    lookupds = _listed(given.get("nsq.lookupd", ""))
    if not nsqds and not lookupds:
        raise ConfigError(
            "nsq: where is NSQ? Set nsq.lookupd to nsqlookupd HTTP addresses (127.0.0.1:4161)"
            " or nsq.nsqd to nsqd TCP addresses (127.0.0.1:4150)"
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
            raise ConfigError("invalid option max_attempts: no message is given up here, filter by the column attempts")
        Options.of(client_options)
    except ConfigError as error:
        raise ConfigError(f"nsq: in the options nsq.*: {error}") from None
    return ClusterAddresses(nsqds, lookupds, tuple(sorted(client_options.items())))


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    topics = _listed(given.get("subscribe", ""))
    pattern = given.get("subscribepattern", "")
    if bool(topics) == bool(pattern):
        raise ConfigError(
            "nsq: which topics? Set subscribe to a list of topics, or subscribePattern to a regular expression,"
            f" {'not both' if topics else 'one of them'}"
        )
    for topic in topics:
        _check_name("topic", topic)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"nsq: subscribePattern {pattern!r} is no regular expression: {error}") from None
    return topics, pattern


def _channel(given: Mapping[str, str]) -> str:
    channel = given.get("channel", "")
    if not channel:
        raise ConfigError(
            "nsq: option channel is missing: name the channel to consume, one for each query,"
            " for example .option('channel', 'spark')"
        )
    _check_name("channel", channel)
    return channel


def _segment_dir(given: Mapping[str, str]) -> str:
    directory = given.get("segmentdir", "")
    if not directory:
        raise ConfigError(
            "nsq: option segmentDir is missing: name a directory for this query alone, where messages are kept until"
            " Spark has processed them; beside the checkpoint is a good place"
        )
    return directory


def _starts_at_latest(given: Mapping[str, str]) -> bool:
    text = given.get("startingoffsets", "earliest")
    if text not in ("earliest", "latest"):
        raise ConfigError(
            f"nsq: startingOffsets {text!r}: earliest (whatever no job is known to be done with) or latest (only what"
            " the batch read before did not have) expected; a channel has no other offsets"
        )
    return text == "latest"


def _read_id(given: Mapping[str, str]) -> str:
    read_id = given.get("readid", "")
    if read_id and not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", read_id):
        raise ConfigError(f"nsq: readId {read_id!r}: letters, digits and _ . - expected, at most 100")
    return read_id


def _check_name(kind: str, name: str) -> None:
    if not is_valid_name(name):
        raise ConfigError(f"nsq: {kind} {name!r} is no name that NSQ allows: 1 to 64 of letters, digits and . _ -")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _either(given: Mapping[str, str], name: str, alias: str) -> str:
    """The one of two names that was used."""
    if name.lower() in given and alias.lower() in given:
        raise ConfigError(f"nsq: options {name} and {alias} mean the same: set one of them")
    return alias if alias.lower() in given else name


def _integer(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"nsq: option {name}: {text!r} is no integer") from None
    if value < least:
        raise ConfigError(f"nsq: option {name}: {value} is too small, at least {least} expected")
    return value


def _size(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"nsq: option {name}: {text!r} is no size such as 500000, 64m or 1g")
    return int(match[1]) * _SIZE_UNITS[match[2].lower()]


def _duration_s(given: Mapping[str, str], name: str, default_s: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default_s
    try:
        seconds = parse_duration_ns(text.strip()) / NS_PER_S
    except ValueError:
        seconds = -1.0
    if seconds <= 0:
        raise ConfigError(f"nsq: option {name}: {text!r} is no duration such as 500ms, 30s or 1h")
    return seconds


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"nsq: option {name}: {text!r} is neither true nor false")
    return text.lower() == "true"
