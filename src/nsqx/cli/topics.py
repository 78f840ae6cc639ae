"""nsqx topics: lists the topics; only names in a pipe, with channels and counts on a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.json_lines import JSON_FLAG, print_json
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.nsqd import NsqdClient
from nsqx.flags import BOOL, Flag
from nsqx.tools.cluster_address import warn
from nsqx.tools.table import print_table
from nsqx.tools.totals import total
from nsqx.tools.utility import write_stdout

PROGRAM = "nsqx topics"
_TOPIC_COUNTS = ("depth", "backend_depth", "memory_depth", "message_count")

FLAGS: tuple[Flag, ...] = (
    *CLUSTER_FLAGS,
    JSON_FLAG,
    Flag("l", BOOL, False, "show channels and counts in a pipe too", config_key="is_long"),
)


@dataclass(slots=True)
class TopicsOptions:
    """The options of nsqx topics."""

    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    is_json: bool = False
    is_long: bool = False


def read_options(argv: Sequence[str]) -> TopicsOptions:
    """Return the options from the command line; raises UsageError."""
    values, _ = read_words(FLAGS, argv, PROGRAM, most=0)
    return TopicsOptions(take_cluster(values), **values)


async def run(options: TopicsOptions, _stopping: asyncio.Event) -> int:
    """Print the topics and return the exit code; raises UtilityFailed or RequestFailed."""
    answers = await ask_all(await options.cluster.nsqds(), NsqdClient.stats)
    warn(answers.require_one().plain_problems)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for entry in chain.from_iterable(answers.values):
        by_name.setdefault(entry["topic_name"], []).append(entry)
    if options.is_json:
        for name in sorted(by_name):
            print_json(_document(name, by_name[name]))
    elif options.is_long or sys.stdout.isatty():
        print_table(
            ("topic", "channels", "nsqds", "depth", "messages"),
            [_row(name, by_name[name]) for name in sorted(by_name)],
            text_columns=2,
            optional=("nsqds", "messages"),
        )
    else:
        write_stdout("".join(f"{name}\n" for name in sorted(by_name)).encode())
    return 0


def _document(name: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    channels = sorted({channel["channel_name"] for entry in entries for channel in entry["channels"] or []})
    paused = any(entry["paused"] for entry in entries)
    counts = {key: count for key, count in total(entries).items() if key in _TOPIC_COUNTS}
    return {"topic": name, "channels": channels, "nsqds": len(entries), "paused": paused, **counts}


def _row(name: str, entries: list[dict[str, Any]]) -> tuple[str, ...]:
    sums = total(entries)
    channels = {channel["channel_name"] for entry in entries for channel in entry["channels"] or []}
    counts = len(entries), sums["depth"], sums["message_count"]
    return name, " ".join(sorted(channels)) or "-", *map(str, counts)
