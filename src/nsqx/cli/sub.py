"""nsqx sub: shows the messages of a topic as they arrive."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.cli.cluster import TCP_CLUSTER_FLAGS, TcpClusterAccess, take_tcp_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.did_you_mean import did_you_mean
from nsqx.cli.message_filter import Condition, parse_filter
from nsqx.cli.message_format import Show, json_shower, parse_format, show_base64, show_plainly
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import NSQError
from nsqx.flags import BOOL, INT, STRING, STRINGS, Flag
from nsqx.names import invalid_name, is_ephemeral, is_valid_name
from nsqx.tools import nsq_tail
from nsqx.tools.cluster_address import http_address
from nsqx.tools.safe_tail import TAKE_BACKLOG_FLAG, Rule, TopicMissing
from nsqx.tools.sources import CONSUMER_FLAG, MAX_IN_FLIGHT, MAX_IN_FLIGHT_FLAG, client_credentials
from nsqx.tools.utility import UtilityFailed, log_line

if TYPE_CHECKING:
    from nsqx.client.consumer import Consumer
    from nsqx.tools.cluster_address import ClusterAddress

PROGRAM = "nsqx sub"

# A short interval, because a person waits if the topic does not exist yet. A message with many attempts is shown, and
# not given up, which would finish it unseen.
_CLIENT_OPTIONS = ("lookupd_poll_interval,2s", "max_attempts,0")

FLAGS: tuple[Flag, ...] = (
    Flag("count", INT, 0, "exit after this many messages; 0 for no limit", config_key="total"),
    Flag("n", INT, 0, "the same as --count"),
    Flag(
        "filter",
        STRINGS,
        [],
        "show only messages that meet the `condition`: TEXT that the body contains, /REGEX/, or a field of a JSON body"
        " such as .user.id=7, with = != < <= > >= or ~ (repeated: all of them)",
        config_key="filters",
    ),
    Flag("drop-others", BOOL, False, "with --filter and CHANNEL: finish the messages that are not shown"),
    Flag(
        "format",
        STRING,
        "",
        "print each message by a `template` with {topic} {id} {time} {timestamp} {attempts} {nsqd} {size} {body}"
        " {base64} and {.path} for a field of a JSON body",
        config_key="template",
    ),
    Flag("json", BOOL, False, "show each message as a JSON object with id, time, attempts and body", "is_json"),
    Flag("base64", BOOL, False, "show bodies in base64", config_key="is_base64"),
    MAX_IN_FLIGHT_FLAG,
    TAKE_BACKLOG_FLAG,
    *TCP_CLUSTER_FLAGS,
    Flag(
        "nsqd-http-address",
        STRINGS,
        [],
        "without a channel: HTTP address of an nsqd, to check the channels of the topic, in the order of the TCP"
        " addresses; default the TCP port + 1",
        config_key="nsqd_http_addresses",
    ),
    CONSUMER_FLAG,
)


@dataclass(slots=True)
class SubOptions:
    """The options of nsqx sub."""

    topic: str
    channel: str = ""
    """Empty to use a new ephemeral channel, which takes no messages from other channels."""
    cluster: TcpClusterAccess = field(default_factory=TcpClusterAccess)
    show: Show = show_plainly
    conditions: list[Condition] = field(default_factory=list)
    total: int = 0
    max_in_flight: int = MAX_IN_FLIGHT
    consumer_options: list[str] = field(default_factory=list)
    take_backlog: bool = False
    nsqd_http_addresses: list[str] = field(default_factory=list)

    @property
    def client_options(self) -> list[str]:
        return [*_CLIENT_OPTIONS, *self.cluster.client_options, *self.consumer_options]


def read_options(argv: Sequence[str]) -> SubOptions:
    """Return the options from the command line; raises UsageError, UtilityFailed or ConfigError."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} TOPIC [CHANNEL]", least=1, most=2)
    topic, channel = [*words, "", ""][:2]
    for what, name in (("topic", topic), ("channel", channel)):
        if not is_valid_name(name) and (name or what == "topic"):
            raise UtilityFailed(invalid_name(what, name))
    values["total"] = values["total"] or values["n"]
    if values.pop("n") < 0 or values["total"] < 0:
        raise UtilityFailed("--count must not be negative")
    filters, drops_others = values.pop("filters"), values.pop("drop_others")
    if filters and channel and not is_ephemeral(channel) and not drops_others:
        raise UtilityFailed(
            f"--filter would finish the other messages of channel {channel} unseen: leave out the channel to watch"
            " copies, or add --drop-others"
        )
    values["conditions"] = [parse_filter(each) for each in filters]
    values["show"] = _shower(values.pop("template"), is_json=values.pop("is_json"), is_base64=values.pop("is_base64"))
    options = SubOptions(topic, channel, take_tcp_cluster(values), **values)
    addresses = options.cluster.nsqd_addresses
    if options.nsqd_http_addresses and len(options.nsqd_http_addresses) != len(addresses):
        raise UtilityFailed("one --nsqd-http-address is required for each --nsqd-tcp-address")
    return options


def _shower(template: str, *, is_json: bool, is_base64: bool) -> Show:
    if template and (is_json or is_base64):
        raise UtilityFailed("--format excludes --json and --base64: use the fields {body} and {base64}")
    if template:
        return parse_format(template)
    if is_json:
        return json_shower(is_base64=is_base64)
    return show_base64 if is_base64 else show_plainly


async def run(options: SubOptions, stopping: asyncio.Event) -> int:
    """Show messages until ``total`` is reached or ``stopping`` is set; return the exit code."""
    place = await options.cluster.find()
    tail_options = nsq_tail.NsqTailOptions(
        topics=[options.topic],
        channel=options.channel,
        nsqd_tcp_addresses=place.nsqd_addresses,
        lookupd_http_addresses=place.lookupd_addresses,
        max_in_flight=options.max_in_flight,
        total=options.total,
        consumer_options=options.client_options,
        take_backlog=options.take_backlog,
    )
    rule = Rule(f"Use a channel: {PROGRAM} {options.topic} CHANNEL", is_strict=True)
    http_addresses = options.nsqd_http_addresses or [""] * len(place.nsqd_addresses)
    named = dict(zip(place.nsqd_addresses, http_addresses, strict=True))

    async def tell(consumer: Consumer) -> None:
        if not consumer.connected_addresses:
            similar = await _similar(options, place)
            log_line(f"waiting for topic {options.topic}: no nsqd has it yet{similar}")
        elif sys.stdout.isatty():
            log_line(f"waiting for messages of {options.topic}; Ctrl-C ends")

    try:
        return await nsq_tail.tail(
            "nsqx-sub",
            tail_options,
            options.show,
            stopping,
            rule,
            named,
            is_quiet=True,
            is_wanted=_all(options.conditions),
            on_started=tell,
        )
    except TopicMissing as error:
        similar = await _similar(options, place)
        raise UtilityFailed(f"{error}{similar}") from None


def _all(conditions: Sequence[Condition]) -> Callable[[bytes], bool] | None:
    """Return the condition that all of them are met; None if there are none."""
    if not conditions:
        return None
    return lambda body: all(condition(body) for condition in conditions)


async def _similar(options: SubOptions, place: ClusterAddress) -> str:
    """Return the suggestion of the topic with the most similar name, or ""."""
    try:
        http = HTTPSession(client_credentials(options.client_options))
        if place.lookupd_addresses:
            names = (await ask_all(LookupdClient.at(http, place.lookupd_addresses), LookupdClient.topics)).values
        else:
            addresses = options.nsqd_http_addresses or list(map(http_address, place.nsqd_addresses))
            entries = (await ask_all(NsqdClient.at(http, addresses), NsqdClient.stats)).values
            names = [[entry["topic_name"] for entry in each] for each in entries]
    except NSQError:  # there is only no suggestion
        return ""
    return did_you_mean(options.topic, sorted({name for each in names for name in each}))
