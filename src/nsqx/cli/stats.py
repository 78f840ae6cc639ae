"""nsqx stats: prints depth and counts of topics and channels over all nsqds, once or repeatedly with rates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.nsqd import NsqdClient
from nsqx.flags import BOOL, DURATION, Flag
from nsqx.tools.cluster_address import warn
from nsqx.tools.live_text import LiveText
from nsqx.tools.table import table_text
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
    *CLUSTER_FLAGS,
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
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    json: bool = False
    interval: int = 0
    """In nanoseconds; 0 means once."""


def read_options(argv: Sequence[str]) -> StatsOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} [TOPIC [CHANNEL]]", most=2)
    if values["interval"] < 0:
        raise UtilityFailed("--interval must not be negative")
    topic, channel = [*words, "", ""][:2]
    return StatsOptions(topic, channel, cluster=take_cluster(values), **values)


async def run(options: StatsOptions, stopping: asyncio.Event) -> int:
    """Print the counts and return the exit code; raises UtilityFailed or RequestFailed."""
    interval_s = options.interval / NS_PER_S
    before: dict[Key, dict[str, int]] | None = None
    live = LiveText()
    while True:
        now = await _ask(options)
        if options.json:
            _print_json(now)
        else:
            text = _table(now, before, interval_s)
            if options.interval:
                live.show(text)
            else:
                write_stdout(text.encode())
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
    answers = await ask_all(await options.cluster.nsqds(), NsqdClient.stats, options.topic, options.channel)
    warn(answers.require_one().plain_problems)
    parts: dict[Key, list[dict[str, Any]]] = {}
    for entry in chain.from_iterable(answers.values):
        parts.setdefault((entry["topic_name"], ""), []).append(entry)
        for channel in entry["channels"] or []:
            parts.setdefault((entry["topic_name"], channel["channel_name"]), []).append(channel)
    if options.topic and not parts:
        raise await options.cluster.nothing_has(options.topic, options.channel)
    return {key: total(parts[key]) for key in sorted(parts)}


def _print_json(now: Mapping[Key, Mapping[str, int]]) -> None:
    for (topic, channel), counts in now.items():
        named = {"topic": topic, "channel": channel} if channel else {"topic": topic}
        write_stdout(orjson.dumps({**named, **counts}, option=orjson.OPT_APPEND_NEWLINE))


def _table(
    now: Mapping[Key, Mapping[str, int]], before: Mapping[Key, Mapping[str, int]] | None, interval_s: float
) -> str:
    """Return the counts as a table, with rates if there are counts of before."""
    columns = ["topic", "channel", *_COLUMNS.values()]
    rows = [
        [topic, channel or "-", *(str(counts[name]) for name in _COLUMNS)] for (topic, channel), counts in now.items()
    ]
    if before is not None:
        columns += ["in/s", "out/s"]
        for row, (key, counts) in zip(rows, now.items(), strict=True):
            row += rates(counts, before.get(key, counts), interval_s)
    return table_text(columns, rows, text_columns=2, optional=_OPTIONAL)


def rates(now: Mapping[str, int], before: Mapping[str, int], interval_s: float) -> list[str]:
    """Return how many messages per second came in and went out."""
    came = now["message_count"] - before["message_count"]
    went = came - (now["depth"] - before["depth"])
    return [f"{came / interval_s:.0f}", f"{went / interval_s:.0f}"]
