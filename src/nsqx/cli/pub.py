"""nsqx pub: publishes messages from the arguments, or the lines of stdin."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nsqx.client.producer import PUBLISH_TIMEOUT_S, Producer
from nsqx.flags import DURATION, INT, STRING, Flag
from nsqx.names import is_valid_name
from nsqx.tools.cluster_address import LOOKUPD_HTTP_FLAG, NSQD_TCP_FLAG, find_tcp, read_words
from nsqx.tools.progress import ProgressLine
from nsqx.tools.sources import PRODUCER_FLAG, client_options
from nsqx.tools.to_nsq import STREAM_PUBLISH_TIMEOUT_S, Publishing, publish_stdin
from nsqx.tools.utility import UtilityFailed, log_line
from nsqx.units import NS_PER_S

PROGRAM = "nsqx pub"


FLAGS: tuple[Flag, ...] = (
    NSQD_TCP_FLAG,
    LOOKUPD_HTTP_FLAG,
    Flag("defer", DURATION, 0, "deliver the messages after this time, such as 30s"),
    Flag("delimiter", STRING, "\n", "byte that separates messages on stdin; empty: all of stdin is one message"),
    Flag("rate", INT, 0, "maximum messages per second from stdin; 0 for no limit"),
    Flag("timeout", DURATION, 0, "fail if nsqd has not answered after this time (default 10s, for stdin 60s)"),
    PRODUCER_FLAG,
)


@dataclass(slots=True)
class PubOptions:
    """The options of nsqx pub."""

    topic: str
    messages: list[bytes]
    """Empty to publish stdin."""
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
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} TOPIC [MESSAGE... | -]", least=1)
    values["delimiter"] = os.fsencode(values["delimiter"])
    topic, *messages = words
    if messages == ["-"]:
        messages = []
    options = PubOptions(topic, [os.fsencode(message) for message in messages], **values)
    if not is_valid_name(topic):
        raise UtilityFailed(
            f"invalid topic name {topic!r}: use 1 to 64 of a-z A-Z 0-9 . _ -, optionally with #ephemeral at the end"
        )
    if len(options.delimiter) > 1:
        raise UtilityFailed("--delimiter must be a single byte")
    if options.timeout < 0:
        raise UtilityFailed("--timeout must not be negative")
    if not all(options.messages):
        raise UtilityFailed("a message is empty, which nsqd rejects")
    return options


async def run(options: PubOptions, stopping: asyncio.Event) -> int:
    """Publish and return the exit code; raises UtilityFailed if a publish failed."""
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
                log_line("reading messages from the terminal, one per line; Ctrl-D ends")
            await publish_stdin(publishing, options.delimiter, stopping, rate=options.rate)
    count = publishing.published_count
    log_line(f"published {count} message{'s'[: count != 1]} to {options.topic}")
    return 0
