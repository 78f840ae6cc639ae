"""nsqx clients: lists the consumers and producers that are connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.durations import age_text
from nsqx.cli.json_lines import JSON_FLAG, print_json
from nsqx.cli.readings import read_cluster
from nsqx.tools.cluster_address import warn
from nsqx.tools.table import print_table
from nsqx.tools.utility import write_stdout

PROGRAM = "nsqx clients"
_COLUMNS = (
    *("client", "host", "topic", "channel", "address", "nsqd"),
    *("connected", "ready", "in flight", "requeued", "messages"),
)
_OPTIONAL = ("requeued", "connected", "nsqd", "host", "ready", "messages", "address")

FLAGS = (JSON_FLAG, *CLUSTER_FLAGS)


@dataclass(slots=True)
class ClientsOptions:
    """The options of nsqx clients."""

    topic: str = ""
    channel: str = ""
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    is_json: bool = False


def read_options(argv: Sequence[str]) -> ClientsOptions:
    """Return the options from the command line; raises UsageError or ConfigError."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} [TOPIC [CHANNEL]]", most=2)
    topic, channel = [*words, "", ""][:2]
    return ClientsOptions(topic, channel, take_cluster(values), **values)


async def run(options: ClientsOptions, _stopping: asyncio.Event) -> int:
    """Print the clients and return the exit code; raises UtilityFailed or RequestFailed."""
    reading = await read_cluster(options.cluster, options.topic, options.channel, include_clients=True)
    warn(reading.problems)
    if options.topic and not any(entry["channels"] or not options.channel for entry in reading.topics):
        raise await options.cluster.nothing_has(options.topic, options.channel)
    clients = [each for each in reading.clients() if _is_wanted(each, options)]
    if options.is_json:
        for each in clients:
            print_json(each)
    elif clients:
        print_table(_COLUMNS, [_row(each) for each in clients], text_columns=6, optional=_OPTIONAL)
    else:
        write_stdout(b"no clients\n")
    return 1 if reading.problems else 0


def _is_wanted(client: dict[str, Any], options: ClientsOptions) -> bool:
    if client["kind"] == "consumer":
        return True
    return not options.channel and (not options.topic or options.topic in client["topics"])


def _topics_text(topics: Sequence[str]) -> str:
    """Return the topics of a producer, or their number if there are several."""
    return f"({len(topics)} topics)" if len(topics) > 1 else "".join(topics) or "-"


def _row(client: dict[str, Any]) -> list[str]:
    is_producer = client["kind"] == "producer"
    topic = _topics_text(client["topics"]) if is_producer else client["topic"]
    messages = client["message_count"]
    if is_producer:
        messages = sum(count["count"] for count in client["pub_counts"] or [])
    return [
        client["client_id"] or client["hostname"] or "-",
        client["hostname"] or "-",
        topic,
        "(publishes)" if is_producer else client["channel"],
        client["remote_address"],
        client["nsqd"],
        age_text(time.time() - client["connect_ts"]),
        *(str(client[name]) for name in ("ready_count", "in_flight_count", "requeue_count")),
        str(messages),
    ]
