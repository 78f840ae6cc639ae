"""nsqx pub: publish messages given as words, or the lines of stdin."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nsqx.cli.run_tool import run_utility
from nsqx.client.producer import PUBLISH_TIMEOUT_S, Producer
from nsqx.flags import DURATION, INT, STRING, Flag
from nsqx.names import is_valid_name
from nsqx.tools.cluster_address import LOOKUPD_HTTP_FLAG, NSQD_TCP_FLAG, find_tcp, read_words
from nsqx.tools.progress import ProgressLine
from nsqx.tools.sources import PRODUCER_FLAG, client_options
from nsqx.tools.to_nsq import STREAM_PUBLISH_TIMEOUT_S, Publishing, publish_stdin
from nsqx.tools.utility import UtilityFailed, say
from nsqx.units import NS_PER_S

PROGRAM = "nsqx pub"


FLAGS: tuple[Flag, ...] = (
    NSQD_TCP_FLAG,
    LOOKUPD_HTTP_FLAG,
    Flag("defer", DURATION, 0, "hand the messages out after this time, such as 30s"),
    Flag("delimiter", STRING, "\n", "byte that ends each message of stdin; empty to make one message of it"),
    Flag("rate", INT, 0, "messages per second of stdin; 0 for as fast as possible"),
    Flag("timeout", DURATION, 0, "fail if nsqd has not answered after this time (default 10s; of stdin 60s)"),
    PRODUCER_FLAG,
)


@dataclass(slots=True)
class PubOptions:
    """What to publish where."""

    topic: str
    messages: list[bytes]
    """Empty for those of stdin."""
    nsqd_addresses: list[str] = field(default_factory=list)
    lookupd_addresses: list[str] = field(default_factory=list)
    defer: int = 0
    """In nanoseconds."""
    delimiter: bytes = b"\n"
    rate: int = 0
    timeout: int = 0
    """In nanoseconds; 0 for the default."""
    producer_options: list[str] = field(default_factory=list)


def read_options(argv: Sequence[str]) -> PubOptions:
    """Options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} TOPIC [MESSAGE... | -]", least=1)
    values["delimiter"] = os.fsencode(values["delimiter"])
    topic, *messages = words
    if messages == ["-"]:
        messages = []
    options = PubOptions(topic, [os.fsencode(message) for message in messages], **values)
    if not is_valid_name(topic):
        raise UtilityFailed(f"{topic!r} cannot name a topic: 1 to 64 of . _ - a-z A-Z 0-9, perhaps with #ephemeral")
    if len(options.delimiter) > 1:
        raise UtilityFailed("--delimiter must be a single byte")
    if options.timeout < 0:
        raise UtilityFailed("--timeout must not be negative")
    if not all(options.messages):
        raise UtilityFailed("nsqd takes no empty messages")
    return options


async def run(options: PubOptions, stopping: asyncio.Event) -> int:
    """Publish; raises UtilityFailed if anything was not published."""
    place = await find_tcp(options.nsqd_addresses, options.lookupd_addresses)
    client: dict[str, Any] = client_options("nsqx-pub", options.producer_options)
    default_s = PUBLISH_TIMEOUT_S if options.messages else STREAM_PUBLISH_TIMEOUT_S
    producer = Producer(
        place.nsqd_addresses,
        lookupd_http_addresses=place.lookupd_addresses,
        batching=not options.defer,
        publish_timeout=options.timeout / NS_PER_S or default_s,
        **client,
    )

    def publish(producer: Producer, body: bytes) -> asyncio.Future[None]:
        if options.defer:
            return producer.publish_deferred(options.topic, body, options.defer / NS_PER_S)
        return producer.publish(options.topic, body)

    with ProgressLine("messages published") as progress:
        publishing = Publishing([producer], publish, progress)
        if options.messages:
            try:
                await publishing.publish(options.messages)
            finally:
                await publishing.close(None)
            publishing.check()
        else:
            if sys.stdin.isatty():
                say("reading messages from the terminal, a line each; Ctrl-D ends")
            await publish_stdin(publishing, options.delimiter, stopping, rate=options.rate)
    count = publishing.published_count
    say(f"published {count} message{'s'[: count != 1]} to {options.topic}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Publish; the exit code."""
    return run_utility(PROGRAM, argv, read_options, run)


if __name__ == "__main__":
    sys.exit(main())
