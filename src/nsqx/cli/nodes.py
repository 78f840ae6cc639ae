"""nsqx nodes: lists the nsqds of the cluster with their versions, health and counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.durations import age_text
from nsqx.cli.json_lines import JSON_FLAG, print_json
from nsqx.cluster.fan_out import ask_all
from nsqx.errors import RequestFailed
from nsqx.tools.colours import GREEN, RED, paint
from nsqx.tools.table import print_table

if TYPE_CHECKING:
    from nsqx.cluster.nsqd import NsqdClient

PROGRAM = "nsqx nodes"
_COLUMNS = (
    "nsqd",
    "product",
    "health",
    "host",
    "version",
    "uptime",
    "memory",
    "topics",
    "channels",
    "clients",
    "depth",
)
_OPTIONAL = ("host", "channels", "memory", "topics", "clients", "version", "uptime")
_MIB = 1024 * 1024

FLAGS = (JSON_FLAG, *CLUSTER_FLAGS)


@dataclass(slots=True)
class NodesOptions:
    """The options of nsqx nodes."""

    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    is_json: bool = False


def read_options(argv: Sequence[str]) -> NodesOptions:
    """Return the options from the command line; raises UsageError or ConfigError."""
    values, _ = read_words(FLAGS, argv, PROGRAM, most=0)
    return NodesOptions(take_cluster(values), **values)


async def run(options: NodesOptions, _stopping: asyncio.Event) -> int:
    """Print the nsqds and return the exit code: 1 if one does not answer; raises UtilityFailed or RequestFailed."""
    answers = await ask_all(await options.cluster.nsqds(), _ask)
    found = dict(answers.found)
    nodes = [{"nsqd": address, **document} for address, document in found.items()]
    nodes += [{"nsqd": nsqd.address, "health": error.plain} for nsqd, error in answers.failures]
    if options.is_json:
        for node in nodes:
            print_json(node)
    else:
        print_table(_COLUMNS, [_row(node) for node in nodes], text_columns=4, optional=_OPTIONAL)
    return 1 if answers.failures else 0


async def _ask(nsqd: NsqdClient) -> dict[str, Any]:
    """Return what is shown of one nsqd; raises RequestFailed."""
    info, stats = await asyncio.gather(
        nsqd.ask_object("GET", "/info", {}),
        nsqd.ask_object("GET", "/stats", {"format": "json", "include_clients": "false"}),
    )
    topics = stats.get("topics")
    if "topics" not in stats or not isinstance(topics, list | None):
        raise RequestFailed("the answer is not from nsqd")
    channels = [channel for topic in topics or [] for channel in topic["channels"] or []]
    return {
        # Only nsqx's nsqd has a persistent id.
        "product": "nsqx" if "broker_id" in info else "nsq",
        "health": stats["health"],
        "host": info.get("hostname", ""),
        "version": info.get("nsqx_version") or stats["version"],
        "start_time": stats["start_time"],
        "memory_bytes": (stats.get("memory") or {}).get("heap_in_use_bytes", 0),
        "topics": len(topics or []),
        "channels": len(channels),
        "clients": sum(channel.get("client_count", 0) for channel in channels) + len(stats.get("producers") or []),
        "depth": sum(each["depth"] for each in (*(topics or []), *channels)),
    }


def _row(node: dict[str, Any]) -> list[str]:
    if "product" not in node:
        return [node["nsqd"], "-", paint(node["health"], RED), *["-"] * (len(_COLUMNS) - 3)]
    is_well = node["health"] == "OK"
    return [
        node["nsqd"],
        node["product"],
        paint(node["health"], GREEN if is_well else RED),
        node["host"],
        node["version"],
        age_text(time.time() - node["start_time"]),
        f"{node['memory_bytes'] // _MIB} MiB",
        *(str(node[name]) for name in ("topics", "channels", "clients", "depth")),
    ]
