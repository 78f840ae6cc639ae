"""nsqx topics: lists the topics; only names in a pipe, with channels and counts on a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from nsqx.cluster.credentials import Credentials
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.nsqd import NsqdClient
from nsqx.flags import BOOL, Flag
from nsqx.tools.cluster_address import LOOKUPD_HTTP_FLAG, NSQD_HTTP_FLAG, find_http, read_words, warn
from nsqx.tools.http_access import HTTP_ACCESS_FLAGS, take_credentials
from nsqx.tools.table import print_table
from nsqx.tools.totals import total
from nsqx.tools.utility import write_stdout

PROGRAM = "nsqx topics"

FLAGS: tuple[Flag, ...] = (
    NSQD_HTTP_FLAG,
    LOOKUPD_HTTP_FLAG,
    *HTTP_ACCESS_FLAGS,
    Flag("l", BOOL, False, "show channels and counts in a pipe too", config_key="is_long"),
)


@dataclass(slots=True)
class TopicsOptions:
    """The options of nsqx topics."""

    nsqd_addresses: list[str] = field(default_factory=list)
    lookupd_addresses: list[str] = field(default_factory=list)
    credentials: Credentials = field(default_factory=Credentials)
    is_long: bool = False


def read_options(argv: Sequence[str]) -> TopicsOptions:
    """Return the options from the command line; raises UsageError."""
    values, _ = read_words(FLAGS, argv, PROGRAM, most=0)
    return TopicsOptions(credentials=take_credentials(values), **values)


async def run(options: TopicsOptions, _stopping: asyncio.Event) -> int:
    """Print the topics and return the exit code; raises UtilityFailed or RequestFailed."""
    http = HTTPSession(options.credentials)
    addresses = await find_http(options.nsqd_addresses, options.lookupd_addresses, http)
    answers = await ask_all(NsqdClient.at(http, addresses), NsqdClient.stats)
    warn(answers.require_one().problems)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for entry in chain.from_iterable(answers.values):
        by_name.setdefault(entry["topic_name"], []).append(entry)
    if options.is_long or sys.stdout.isatty():
        print_table(
            ("topic", "channels", "nsqds", "depth", "messages"),
            [_row(name, by_name[name]) for name in sorted(by_name)],
            text_columns=2,
            optional=("nsqds", "messages"),
        )
    else:
        write_stdout("".join(f"{name}\n" for name in sorted(by_name)).encode())
    return 0


def _row(name: str, entries: list[dict[str, Any]]) -> tuple[str, ...]:
    sums = total(entries)
    channels = {channel["channel_name"] for entry in entries for channel in entry["channels"] or []}
    counts = len(entries), sums["depth"], sums["message_count"]
    return name, " ".join(sorted(channels)) or "-", *map(str, counts)
