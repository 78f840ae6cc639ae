"""nsqx pub: publishes messages from the arguments, or the lines of stdin."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nsqx.cli.cluster import TCP_CLUSTER_FLAGS, TcpClusterAccess, take_tcp_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.json_lines import print_json
from nsqx.client.producer import PUBLISH_TIMEOUT_S, Producer
from nsqx.flags import BOOL, DURATION, INT, STRING, Flag
from nsqx.names import invalid_name, is_valid_name
from nsqx.tools.progress import ProgressLine
from nsqx.tools.sources import PRODUCER_FLAG, client_options
from nsqx.tools.to_nsq import STREAM_PUBLISH_TIMEOUT_S, Publishing, publish_stdin
from nsqx.tools.utility import UtilityFailed, counted, log_line
from nsqx.units import NS_PER_S

PROGRAM = "nsqx pub"


FLAGS: tuple[Flag, ...] = (
    *TCP_CLUSTER_FLAGS,
    Flag("defer", DURATION, 0, "deliver the messages after this time, such as 30s"),
    Flag("delimiter", STRING, "\n", "byte that separates messages on stdin; empty: all of stdin is one message"),
    Flag("rate", INT, 0, "maximum messages per second from stdin; 0 for no limit"),
    Flag("timeout", DURATION, 0, "fail if nsqd has not answered after this time (default 10s, for stdin 60s)"),
    Flag("json", BOOL, False, "print the outcome as JSON", config_key="is_json"),
    PRODUCER_FLAG,
)


@dataclass(slots=True)
class PubOptions:
    """The options of nsqx pub."""

    topic: str
    messages: list[bytes]
    """Empty to publish stdin."""
    cluster: TcpClusterAccess = field(default_factory=TcpClusterAccess)
    defer: int = 0
    """In nanoseconds."""
    delimiter: bytes = b"\n"
    rate: int = 0
    timeout: int = 0
    """In nanoseconds; 0 for the default."""
    is_json: bool = False
    producer_options: list[str] = field(default_factory=list)


def read_options(argv: Sequence[str]) -> PubOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} TOPIC [MESSAGE... | -]", least=1)
    values["delimiter"] = os.fsencode(values["delimiter"])
    topic, *messages = words
    if messages == ["-"]:
        messages = []
    options = PubOptions(topic, [os.fsencode(message) for message in messages], take_tcp_cluster(values), **values)
    if not is_valid_name(topic):
        raise UtilityFailed(invalid_name("topic", topic))
    if len(options.delimiter) > 1:
        raise UtilityFailed("--delimiter must be a single byte")
    if options.timeout < 0:
        raise UtilityFailed("--timeout must not be negative")
    if not all(options.messages):
        raise UtilityFailed("a message is empty, which nsqd rejects")
    return options


async def run(options: PubOptions, stopping: asyncio.Event) -> int:
    """Publish and return the exit code; raises UtilityFailed if a publish failed."""
    place = await options.cluster.find()
    client: dict[str, Any] = client_options("nsqx-pub", [*options.cluster.client_options, *options.producer_options])
    default_s = PUBLISH_TIMEOUT_S if options.messages else STREAM_PUBLISH_TIMEOUT_S
    producer = Producer(
        place.nsqd_addresses,
        lookupd_http_addresses=place.lookupd_addresses,
        batching=not options.defer,
        publish_timeout=options.timeout / NS_PER_S or default_s,
        start_timeout=options.timeout / NS_PER_S or default_s,
        require_connection=True,
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
    if options.is_json:
        print_json({"topic": options.topic, "published": count})
        return 0
    log_line(f"published {counted(count, 'message')} to {options.topic}")
    return 0
