"""nsqx sub: shows the messages of a topic as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from nsqx.flags import BOOL, INT, STRINGS, Flag
from nsqx.tools import nsq_tail
from nsqx.tools.cluster_address import LOOKUPD_HTTP_FLAG, NSQD_TCP_FLAG, find_tcp, read_words
from nsqx.tools.safe_tail import TAKE_BACKLOG_FLAG, Rule
from nsqx.tools.sources import CONSUMER_FLAG, MAX_IN_FLIGHT, MAX_IN_FLIGHT_FLAG
from nsqx.tools.utility import UtilityFailed

if TYPE_CHECKING:
    from nsqx.client.subscription import Message

PROGRAM = "nsqx sub"

# A short interval, because a person waits if the topic does not exist yet.
_LOOKUPD_POLL = "lookupd_poll_interval,2s"

FLAGS: tuple[Flag, ...] = (
    NSQD_TCP_FLAG,
    LOOKUPD_HTTP_FLAG,
    Flag("n", INT, 0, "exit after this many messages; 0 for no limit", config_key="total"),
    Flag("json", BOOL, False, "show each message as a JSON object with id, time, attempts and body"),
    MAX_IN_FLIGHT_FLAG,
    CONSUMER_FLAG,
    TAKE_BACKLOG_FLAG,
    Flag(
        "nsqd-http-address",
        STRINGS,
        [],
        "without a channel: HTTP address of an nsqd, to check the channels of the topic, in the order of the TCP"
        " addresses; default the TCP port + 1",
        config_key="nsqd_http_addresses",
    ),
)


@dataclass(slots=True)
class SubOptions:
    """The options of nsqx sub."""

    topic: str
    channel: str = ""
    """Empty to use a new ephemeral channel, which takes no messages from other channels."""
    nsqd_addresses: list[str] = field(default_factory=list)
    lookupd_addresses: list[str] = field(default_factory=list)
    total: int = 0
    json: bool = False
    max_in_flight: int = MAX_IN_FLIGHT
    consumer_options: list[str] = field(default_factory=list)
    take_backlog: bool = False
    nsqd_http_addresses: list[str] = field(default_factory=list)


def read_options(argv: Sequence[str]) -> SubOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} TOPIC [CHANNEL]", least=1, most=2)
    topic, channel = [*words, "", ""][:2]
    options = SubOptions(topic, channel, **values)
    if options.nsqd_http_addresses and len(options.nsqd_http_addresses) != len(options.nsqd_addresses):
        raise UtilityFailed("one --nsqd-http-address is required for each --nsqd-tcp-address")
    return options


def show_as_json(topic: str, message: Message) -> bytes:
    """Return a message as a JSON object."""
    known = {
        "topic": topic,
        "id": message.id.decode("ascii", "replace"),
        "timestamp": message.timestamp,
        "attempts": message.attempts,
        "nsqd": message.nsqd_address,
        "body": message.body.decode("utf-8", "replace"),
    }
    return orjson.dumps(known, option=orjson.OPT_APPEND_NEWLINE)


async def run(options: SubOptions, stopping: asyncio.Event) -> int:
    """Show messages until ``total`` is reached or ``stopping`` is set; return the exit code."""
    place = await find_tcp(options.nsqd_addresses, options.lookupd_addresses)
    tail_options = nsq_tail.NsqTailOptions(
        topics=[options.topic],
        channel=options.channel,
        nsqd_tcp_addresses=place.nsqd_addresses,
        lookupd_http_addresses=place.lookupd_addresses,
        max_in_flight=options.max_in_flight,
        total=options.total,
        consumer_options=[_LOOKUPD_POLL, *options.consumer_options],
        take_backlog=options.take_backlog,
    )
    rule = Rule(f"Use a channel: {PROGRAM} {options.topic} CHANNEL", is_strict=True)
    http_addresses = options.nsqd_http_addresses or [""] * len(place.nsqd_addresses)
    named = dict(zip(place.nsqd_addresses, http_addresses, strict=True))
    show = show_as_json if options.json else nsq_tail.show_plainly
    return await nsq_tail.tail("nsqx-sub", tail_options, show, stopping, rule, named, is_quiet=True)
