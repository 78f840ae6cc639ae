"""The options for reading topic logs: where to start and end, how much at once, and what happens if messages are lost.

The names and meanings are those of Spark's Kafka source where it has the same option. Knows nothing of Spark, sockets
or files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsqx.errors import ConfigError
from nsqx.spark.options import (
    LOG_NAMES,
    MAX_TRIGGER_DELAY_S,
    ClusterAddresses,
    check_name,
    either,
    given_options,
    listed,
    read_cluster,
    read_duration_s,
    read_flag,
    read_integer,
    read_size,
)

AUTO, LOG, CHANNEL = MODES = ("auto", "log", "channel")
EARLIEST, LATEST = "earliest", "latest"
# These only say how logs are read, so they do no harm in mode channel.
_HARMLESS = ("maxRecordsPerPartition", "fetchRetries", "fetchRetryInterval", "fetchTimeout", "nodeTimeout")
# What Kafka's source calls them in JSON.
_EARLIEST_NUMBER, _LATEST_NUMBER = -2, -1
FETCH_RETRIES = 120
FETCH_RETRY_INTERVAL_S = 1.0
FETCH_TIMEOUT_S = 30.0
NODE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read starts or ends.

    ``name`` is earliest or latest. For some topics there are offsets by log id or node, or times in milliseconds.
    """

    name: str
    offsets: Mapping[str, Mapping[str, int]] | None = None
    times_ms: Mapping[str, Mapping[str, int]] | None = None
    time_ms: int | None = None

    def offset_of(self, topic: str, log: str, node: str) -> int | str | None:
        """Return the offset or the name for a log; None if nothing is said."""
        found = (self.offsets or {}).get(topic, {})
        number = found.get(log, found.get(node))
        return {_EARLIEST_NUMBER: EARLIEST, _LATEST_NUMBER: LATEST}.get(number, number) if number is not None else None

    def time_ms_of(self, topic: str, log: str, node: str) -> int | None:
        """Return the time for a log, or None."""
        found = (self.times_ms or {}).get(topic, {})
        return found.get(log, found.get(node, self.time_ms))


@dataclass(frozen=True, slots=True)
class LogReadOptions:
    """The checked options of a reader of logs."""

    cluster: ClusterAddresses
    topics: tuple[str, ...]
    topic_pattern: str
    assigned: Mapping[str, tuple[str, ...]]
    channel: str
    starting: Bound
    has_starting: bool
    must_find_time: bool
    ending: Bound
    max_rows: int
    max_bytes: int
    min_rows: int
    max_trigger_delay_s: float
    min_partitions: int
    max_rows_per_partition: int  # 0: see log_offsets.rows_per_task
    fail_on_data_loss: bool
    fetch_retries: int
    fetch_retry_interval_s: float
    fetch_timeout_s: float
    node_timeout_s: float
    has_offset: bool


def read_mode(options: Mapping[str, str]) -> str:
    """Return the mode: auto, log or channel; raises ConfigError."""
    mode = {name.lower(): value for name, value in options.items()}.get("mode", AUTO).lower()
    if mode not in MODES:
        raise ConfigError(f"nsq: invalid mode {mode!r}: use {', '.join(MODES)}")
    return mode


def log_only(options: Mapping[str, str]) -> list[str]:
    """Return the names of the given options that only log mode has."""
    given = {name.lower() for name in options}
    names = [name for name in LOG_NAMES if name.lower() in given and name not in _HARMLESS]
    start = {name.lower(): value for name, value in options.items()}.get("startingoffsets", "")
    return [*names, "startingOffsets with JSON"] if start.lstrip().startswith("{") else names


def check_channel_options(options: Mapping[str, str]) -> None:
    """Raise ConfigError if an option needs log mode."""
    names = log_only(options)
    if names:
        raise ConfigError(
            f"nsq: {', '.join(names)} {'are' if len(names) > 1 else 'is'} only for mode log: every nsqd must have a log"
            " for the topic (nsqd --store=log, or POST /topic/convert?store=log)"
        )


def read_log_options(options: Mapping[str, str], *, is_stream: bool, is_checked: bool = False) -> LogReadOptions:
    """Return the checked options of a reader of logs; raises ConfigError.

    With ``is_checked``, it is not known whether the reader is a stream.
    """
    given = given_options(options)
    cluster = read_cluster(given)
    assigned = _read_assigned(given)
    topics, pattern = _read_topics(given, assigned)
    if pattern and not cluster.lookupd_http_addresses:
        raise ConfigError("nsq: subscribePattern requires nsq.lookupd, which lists the topics")
    channel = given.get("channel", "")
    if channel:
        check_name("channel", channel)
    elif is_stream:
        raise ConfigError(
            "nsq: option channel is required: the position of the query is a channel, which keeps the messages until"
            " they are read. Set it, for example .option('channel', 'spark'), with a different one for each query"
        )
    starting = _read_bound(given, "starting")
    ending = _read_bound(given, "ending")
    if not is_stream and not is_checked and starting.name == LATEST:
        raise ConfigError("nsq: startingOffsets latest is not for batch reads: use earliest, offsets or a time")
    if is_stream and any(name.startswith("ending") for name in given):
        raise ConfigError(
            "nsq: endingOffsets, endingTimestamp and endingOffsetsByTimestamp are only for batch reads: a stream ends"
            " with the trigger availableNow"
        )
    if ending.name == EARLIEST:
        raise ConfigError("nsq: endingOffsets earliest would read nothing: use latest, offsets or a time")
    return LogReadOptions(
        cluster=cluster,
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        channel=channel,
        starting=starting,
        has_starting=any(name.startswith("starting") for name in given),
        must_find_time=_must_find_time(given),
        ending=ending,
        max_rows=read_integer(given, either(given, "maxRowsPerTrigger", "maxOffsetsPerTrigger"), 0, 1),
        max_bytes=read_size(given, "maxBytesPerTrigger", 0),
        min_rows=read_integer(given, either(given, "minRowsPerTrigger", "minOffsetsPerTrigger"), 0, 1),
        max_trigger_delay_s=read_duration_s(given, "maxTriggerDelay", MAX_TRIGGER_DELAY_S),
        min_partitions=read_integer(given, "minPartitions", 1, 1),
        max_rows_per_partition=read_integer(given, "maxRecordsPerPartition", 0, 1),
        fail_on_data_loss=read_flag(given, "failOnDataLoss", True),
        fetch_retries=read_integer(given, "fetchRetries", FETCH_RETRIES, 0),
        fetch_retry_interval_s=read_duration_s(given, "fetchRetryInterval", FETCH_RETRY_INTERVAL_S),
        fetch_timeout_s=read_duration_s(given, "fetchTimeout", FETCH_TIMEOUT_S),
        node_timeout_s=read_duration_s(given, "nodeTimeout", NODE_TIMEOUT_S),
        has_offset=read_flag(given, "includeOffset", False),
    )


def _read_topics(given: Mapping[str, str], assigned: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], str]:
    topics = listed(given.get("subscribe", ""))
    pattern = given.get("subscribepattern", "")
    if sum(map(bool, (topics, pattern, assigned))) != 1:
        raise ConfigError("nsq: set exactly one of subscribe, subscribePattern and assign")
    for topic in (*topics, *assigned):
        check_name("topic", topic)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"nsq: subscribePattern {pattern!r} is not a regular expression: {error}") from None
    return topics or tuple(assigned), pattern


def _read_assigned(given: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    if "assign" not in given:
        return {}
    found = _object("assign", given["assign"])
    for topic, nodes in found.items():
        if not isinstance(nodes, list) or not nodes or not all(isinstance(node, str) for node in nodes):
            raise ConfigError(
                f"nsq: option assign: the value of topic {topic!r} must be a list of TCP addresses of nsqd or of ids"
                ' of logs, such as {"orders": ["10.0.0.1:4150"]}'
            )
    return {topic: tuple(nodes) for topic, nodes in found.items()}


def _read_bound(given: Mapping[str, str], which: str) -> Bound:
    """Return the start or the end of a read. A time by topic comes before a time, and that before offsets."""
    default = EARLIEST if which == "starting" else LATEST
    by_time, time, offsets = (f"{which}offsetsbytimestamp", f"{which}timestamp", f"{which}offsets")
    if by_time in given:
        return Bound(default, times_ms=_numbers(f"{which}OffsetsByTimestamp", given[by_time], least=0))
    if time in given:
        return Bound(default, time_ms=read_integer(given, f"{which}Timestamp", 0, 0))
    text = given.get(offsets, default).strip()
    if text.lower() in (EARLIEST, LATEST):
        return Bound(text.lower())
    if not text.startswith("{"):
        raise ConfigError(
            f"nsq: invalid {which}Offsets {text!r}: use earliest, latest, or JSON with the offsets of each topic by"
            ' nsqd or log id, such as {"orders": {"10.0.0.1:4150": 1000}}'
        )
    return Bound(default, offsets=_numbers(f"{which}Offsets", text, least=_EARLIEST_NUMBER))


def _numbers(name: str, text: str, *, least: int) -> dict[str, dict[str, int]]:
    """Return the numbers by topic and log or node."""
    found = _object(name, text)
    for topic, numbers in found.items():
        if not isinstance(numbers, dict) or not numbers:
            raise ConfigError(f"nsq: option {name}: the value of topic {topic!r} must be an object with numbers")
        for key, number in numbers.items():
            if type(number) is not int or number < least:
                raise ConfigError(f"nsq: option {name}: {number!r} of topic {topic!r} and {key!r} is no valid number")
    return found


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"nsq: option {name}: {text!r} is not JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"nsq: option {name}: {text!r} is not a JSON object with topics")
    return found


def _must_find_time(given: Mapping[str, str]) -> bool:
    text = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if text not in ("error", LATEST):
        raise ConfigError(f"nsq: invalid startingOffsetsByTimestampStrategy {text!r}: use error or latest")
    return text == "error"
