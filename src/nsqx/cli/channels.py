"""nsqx channels: lists the channels of all topics, the longest backlog first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, missing, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.durations import age_text
from nsqx.cli.json_lines import JSON_FLAG, print_json
from nsqx.cli.readings import ChannelSum, read_cluster
from nsqx.flags import STRING, Flag
from nsqx.tools.cluster_address import warn
from nsqx.tools.colours import RED, YELLOW, paint
from nsqx.tools.table import print_table
from nsqx.tools.utility import UtilityFailed, write_stdout
from nsqx.units import NS_PER_S

PROGRAM = "nsqx channels"
SORTS = ("depth", "name", "clients", "messages")
_COLUMNS = ("topic", "channel", "state", "depth", "oldest", "in flight", "deferred", "requeued", "clients", "messages")
_OPTIONAL = ("messages", "requeued", "deferred", "in flight", "oldest")

FLAGS: tuple[Flag, ...] = (
    Flag("sort", STRING, "depth", f"`key` to sort by: {', '.join(SORTS)}"),
    JSON_FLAG,
    *CLUSTER_FLAGS,
)


@dataclass(slots=True)
class ChannelsOptions:
    """The options of nsqx channels."""

    topic: str = ""
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    sort: str = "depth"
    is_json: bool = False


def read_options(argv: Sequence[str]) -> ChannelsOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} [TOPIC]", most=1)
    if values["sort"] not in SORTS:
        raise UtilityFailed(f'invalid --sort "{values["sort"]}": use {", ".join(SORTS)}')
    return ChannelsOptions(words[0] if words else "", take_cluster(values), **values)


async def run(options: ChannelsOptions, _stopping: asyncio.Event) -> int:
    """Print the channels and return the exit code; raises UtilityFailed or RequestFailed."""
    reading = await read_cluster(options.cluster, options.topic)
    warn(reading.problems)
    sums = reading.sums()
    if options.topic and not sums:
        raise (
            missing(reading.topics, options.topic)
            if reading.topics
            else await options.cluster.nothing_has(options.topic)
        )
    rows = sorted((each for each in sums.values() if each.channel), key=lambda each: _order(options.sort, each))
    if options.is_json:
        for each in rows:
            print_json(each.document)
    elif rows:
        print_table(_COLUMNS, [_row(each) for each in rows], text_columns=3, optional=_OPTIONAL)
    else:
        write_stdout(b"no channels\n")
    return 1 if reading.problems else 0


def _order(sort: str, each: ChannelSum) -> tuple[object, ...]:
    counts = {"depth": each.waiting, "clients": each.counts["client_count"], "messages": each.counts["message_count"]}
    return (-counts.get(sort, 0), each.topic, each.channel)


def state_of(each: ChannelSum) -> str:
    """Return what keeps a channel from being consumed, in its colour; ``-`` if nothing does."""
    if each.paused:
        return paint("paused" if each.paused == each.nsqds else f"paused {each.paused}/{each.nsqds}", YELLOW)
    if each.waiting and not each.counts["client_count"]:
        return paint("no consumer", RED)
    return "-"


def _row(each: ChannelSum) -> list[str]:
    counts = each.counts
    oldest = age_text((time.time_ns() - each.oldest_ns) / NS_PER_S) if each.oldest_ns and each.waiting else "-"
    names = ("in_flight_count", "deferred_count", "requeue_count", "client_count", "message_count")
    return [each.topic, each.channel, state_of(each), str(each.waiting), oldest, *(str(counts[name]) for name in names)]
