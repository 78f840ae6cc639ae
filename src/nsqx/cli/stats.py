"""nsqx stats: prints depth and counts of topics and channels over all nsqds, once or repeatedly with rates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson

from nsqx.cluster.credentials import Credentials
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.nsqd import NsqdClient
from nsqx.flags import BOOL, DURATION, Flag
from nsqx.tools.cluster_address import LOOKUPD_HTTP_FLAG, NSQD_HTTP_FLAG, find_http, read_words, warn
from nsqx.tools.http_access import HTTP_ACCESS_FLAGS, take_credentials
from nsqx.tools.table import print_table
from nsqx.tools.totals import total
from nsqx.tools.utility import UtilityFailed, write_stdout
from nsqx.units import NS_PER_S

PROGRAM = "nsqx stats"

_COLUMNS = {
    "depth": "depth",
    "memory_depth": "memory",
    "backend_depth": "disk",
    "in_flight_count": "in flight",
    "deferred_count": "deferred",
    "requeue_count": "requeued",
    "timeout_count": "timed out",
    "message_count": "messages",
    "client_count": "clients",
}
# The columns that are left out on a narrow terminal, the least important first.
_OPTIONAL = ("memory", "disk", "timed out", "requeued", "deferred", "messages", "clients", "in flight")

FLAGS: tuple[Flag, ...] = (
    NSQD_HTTP_FLAG,
    LOOKUPD_HTTP_FLAG,
    *HTTP_ACCESS_FLAGS,
    Flag("json", BOOL, False, "print a JSON object per topic and channel, one per line"),
    Flag("interval", DURATION, 0, "repeat at this interval, with rates per second"),
)

Key = tuple[str, str]
"""A topic and a channel; the channel is empty for the counts of the topic itself."""


@dataclass(slots=True)
class StatsOptions:
    """The options of nsqx stats."""

    topic: str = ""
    channel: str = ""
    nsqd_addresses: list[str] = field(default_factory=list)
    lookupd_addresses: list[str] = field(default_factory=list)
    credentials: Credentials = field(default_factory=Credentials)
    json: bool = False
    interval: int = 0
    """In nanoseconds; 0 means once."""


def read_options(argv: Sequence[str]) -> StatsOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} [TOPIC [CHANNEL]]", most=2)
    if values["interval"] < 0:
        raise UtilityFailed("--interval must not be negative")
    topic, channel = [*words, "", ""][:2]
    return StatsOptions(topic, channel, credentials=take_credentials(values), **values)


async def run(options: StatsOptions, stopping: asyncio.Event) -> int:
    """Print the counts and return the exit code; raises UtilityFailed or RequestFailed."""
    interval_s = options.interval / NS_PER_S
    before: dict[Key, dict[str, int]] | None = None
    while True:
        now = await _ask(options)
        if options.json:
            _print_json(now)
        else:
            _print_table(now, before, interval_s)
        before = now
        if not options.interval:
            return 0
        try:
            async with asyncio.timeout(interval_s):
                await stopping.wait()
            return 0
        except TimeoutError:
            pass


async def _ask(options: StatsOptions) -> dict[Key, dict[str, int]]:
    http = HTTPSession(options.credentials)
    addresses = await find_http(options.nsqd_addresses, options.lookupd_addresses, http)
    answers = await ask_all(NsqdClient.at(http, addresses), NsqdClient.stats, options.topic, options.channel)
    warn(answers.require_one().problems)
    parts: dict[Key, list[dict[str, Any]]] = {}
    for entry in chain.from_iterable(answers.values):
        parts.setdefault((entry["topic_name"], ""), []).append(entry)
        for channel in entry["channels"] or []:
            parts.setdefault((entry["topic_name"], channel["channel_name"]), []).append(channel)
    if options.topic and not parts:
        what = f"channel {options.channel} of topic {options.topic}" if options.channel else f"topic {options.topic}"
        raise UtilityFailed(f"no nsqd has {what}")
    return {key: total(parts[key]) for key in sorted(parts)}


def _print_json(now: Mapping[Key, Mapping[str, int]]) -> None:
    for (topic, channel), counts in now.items():
        named = {"topic": topic, "channel": channel} if channel else {"topic": topic}
        write_stdout(orjson.dumps({**named, **counts}, option=orjson.OPT_APPEND_NEWLINE))


def _print_table(
    now: Mapping[Key, Mapping[str, int]], before: Mapping[Key, Mapping[str, int]] | None, interval_s: float
) -> None:
    columns = ["topic", "channel", *_COLUMNS.values()]
    rows = [
        [topic, channel or "-", *(str(counts[name]) for name in _COLUMNS)] for (topic, channel), counts in now.items()
    ]
    if before is not None:
        columns += ["in/s", "out/s"]
        for row, (key, counts) in zip(rows, now.items(), strict=True):
            row += rates(counts, before.get(key, counts), interval_s)
    print_table(columns, rows, text_columns=2, optional=_OPTIONAL)


def rates(now: Mapping[str, int], before: Mapping[str, int], interval_s: float) -> list[str]:
    """Return how many messages per second came in and went out."""
    came = now["message_count"] - before["message_count"]
    went = came - (now["depth"] - before["depth"])
    return [f"{came / interval_s:.0f}", f"{went / interval_s:.0f}"]
