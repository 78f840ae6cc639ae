"""nsqx sub: show the messages of a topic as they come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from nsqx.cli.utility import run_utility
from nsqx.flags import BOOL, INT, Flag
from nsqx.tools import nsq_tail
from nsqx.tools.daily import LOOKUPD_HTTP_FLAG, NSQD_TCP_FLAG, find_tcp, read_words
from nsqx.tools.sources import CONSUMER_FLAG, MAX_IN_FLIGHT, MAX_IN_FLIGHT_FLAG

if TYPE_CHECKING:
    from nsqx.client.subscription import Message

PROGRAM = "nsqx sub"

# A topic that nobody has published to yet is looked for at a pace that a person can wait for.
_LOOKUPD_POLL = "lookupd_poll_interval,2s"

FLAGS: tuple[Flag, ...] = (
    NSQD_TCP_FLAG,
    LOOKUPD_HTTP_FLAG,
    Flag("n", INT, 0, "end after so many messages; 0 for never", config_key="total"),
    Flag("json", BOOL, False, "show each message as a JSON object with its id, time, attempts and body"),
    MAX_IN_FLIGHT_FLAG,
    CONSUMER_FLAG,
)


@dataclass(slots=True)
class Options:
    """What to show."""

    topic: str
    channel: str = ""
    """Empty for one that goes away with this consumer."""
    nsqd_addresses: list[str] = field(default_factory=list)
    lookupd_addresses: list[str] = field(default_factory=list)
    total: int = 0
    json: bool = False
    max_in_flight: int = MAX_IN_FLIGHT
    consumer_options: list[str] = field(default_factory=list)


def read_options(argv: Sequence[str]) -> Options:
    """Options from the command line; raises UsageError."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} TOPIC [CHANNEL]", least=1, most=2)
    topic, channel = [*words, "", ""][:2]
    return Options(topic, channel, **values)


def show_as_json(topic: str, message: Message) -> bytes:
    """All that is known of a message."""
    known = {
        "topic": topic,
        "id": message.id.decode("ascii", "replace"),
        "timestamp": message.timestamp,
        "attempts": message.attempts,
        "nsqd": message.nsqd_address,
        "body": message.body.decode("utf-8", "replace"),
    }
    return orjson.dumps(known, option=orjson.OPT_APPEND_NEWLINE)


async def run(options: Options, stopping: asyncio.Event) -> int:
    """Show messages until there were enough of them, or until told to stop."""
    place = await find_tcp(options.nsqd_addresses, options.lookupd_addresses)
    tail_options = nsq_tail.Options(
        topics=[options.topic],
        channel=options.channel or nsq_tail.passing_channel("sub"),
        nsqd_tcp_addresses=place.nsqd_addresses,
        lookupd_http_addresses=place.lookupd_addresses,
        max_in_flight=options.max_in_flight,
        total=options.total,
        consumer_options=[_LOOKUPD_POLL, *options.consumer_options],
    )
    show = show_as_json if options.json else nsq_tail.show_plainly
    return await nsq_tail.tail("nsqx-sub", tail_options, show, stopping, is_quiet=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Show messages; the exit code."""
    return run_utility(PROGRAM, argv, read_options, run)


if __name__ == "__main__":
    sys.exit(main())
