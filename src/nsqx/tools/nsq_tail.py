"""nsq_tail: prints the messages of topics to stdout, one per line.

A message is finished after it was written. Messages that arrive after the last one to be shown are requeued.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.client.subscription import Message
from nsqx.cluster.http import HTTPSession
from nsqx.flags import BOOL, INT, STRING, STRINGS, Flag
from nsqx.tools.io_thread import IOThread
from nsqx.tools.progress import ProgressLine
from nsqx.tools.safe_tail import TAKE_BACKLOG_FLAG, Rule, SafeTail, SafeTailConsumer
from nsqx.tools.sources import (
    CONSUMER_FLAG,
    LOOKUPD_FLAG,
    MAX_IN_FLIGHT,
    MAX_IN_FLIGHT_FLAG,
    NSQD_FLAG,
    check_sources,
    client_credentials,
    client_options,
    make_consumer,
    start_consumer,
    stop_consumers,
)
from nsqx.tools.utility import UtilityFailed, log_line, read_flags, write_stdout

if TYPE_CHECKING:
    from nsqx.client.consumer import Consumer

PROGRAM = "nsq_tail"

FLAGS: tuple[Flag, ...] = (
    Flag("version", BOOL, False, "print version string", in_config=False),
    Flag("channel", STRING, "", "NSQ channel"),
    MAX_IN_FLIGHT_FLAG,
    Flag("n", INT, 0, "total messages to show (will wait if starved)", config_key="total"),
    Flag("print-topic", BOOL, False, "print topic name where message was received"),
    NSQD_FLAG,
    LOOKUPD_FLAG,
    Flag("topic", STRINGS, [], "NSQ topic (may be given multiple times)", config_key="topics"),
    CONSUMER_FLAG,
    TAKE_BACKLOG_FLAG,
)

_RULE = Rule("Use --channel to consume them, or --take-backlog", is_strict=False)


@dataclass(slots=True)
class NsqTailOptions:
    """The options of nsq_tail."""

    topics: list[str]
    channel: str = ""
    nsqd_tcp_addresses: list[str] = field(default_factory=list)
    lookupd_http_addresses: list[str] = field(default_factory=list)
    max_in_flight: int = MAX_IN_FLIGHT
    total: int = 0
    """How many messages to show over all topics; 0 means no limit."""
    print_topic: bool = False
    consumer_options: list[str] = field(default_factory=list)
    take_backlog: bool = False


def passing_channel(prefix: str) -> str:
    """Return a random name for an ephemeral channel."""
    return f"{prefix}{random.randrange(1_000_000):06d}#ephemeral"


def read_options(argv: Sequence[str]) -> NsqTailOptions:
    """Return the options from the command line; raises UsageError, VersionRequested or UtilityFailed."""
    options = NsqTailOptions(**read_flags(FLAGS, argv, PROGRAM))
    check_sources(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    if not options.topics:
        raise UtilityFailed("--topic required")
    return options


Show = Callable[[str, Message], bytes]
"""Formats a message of a topic."""


def show_plainly(_topic: str, message: Message) -> bytes:
    """Return the body and a newline."""
    return message.body + b"\n"


def show_with_topic(topic: str, message: Message) -> bytes:
    """Return the topic, the body and a newline."""
    return b"%s | %s\n" % (topic.encode(), message.body)


async def run(options: NsqTailOptions, stopping: asyncio.Event) -> int:
    """Print messages until ``total`` is reached or ``stopping`` is set; return the exit code."""
    show = show_with_topic if options.print_topic else show_plainly
    named = dict.fromkeys(options.nsqd_tcp_addresses, "")
    return await tail(PROGRAM, options, show, stopping, _RULE, named)


async def tail(
    program: str,
    options: NsqTailOptions,
    show: Show,
    stopping: asyncio.Event,
    rule: Rule,
    named: dict[str, str],
    *,
    is_quiet: bool = False,
    is_wanted: Callable[[bytes], bool] | None = None,
    on_started: Callable[[Consumer], Awaitable[None]] | None = None,
) -> int:
    """Print messages, formatted by ``show``; raises UtilityFailed, or BrokenPipeError if stdout is closed.

    If no channel is given, ``rule`` decides which topics may be read. ``named`` are the HTTP addresses of the given
    nsqds by TCP address, empty if unknown. Messages whose bodies are not wanted are finished without being printed.
    """
    max_in_flight = min(options.max_in_flight, options.total) if options.total > 0 else options.max_in_flight
    channel = options.channel or passing_channel("tail")
    client = client_options(program, options.consumer_options, max_in_flight=max_in_flight)
    consumers: list[Consumer] = []
    try:
        for topic in dict.fromkeys(options.topics):
            if not is_quiet:
                log_line(f"Adding consumer for topic: {topic}")
            sources = options.nsqd_tcp_addresses, options.lookupd_http_addresses
            if options.channel or options.take_backlog:
                consumer = make_consumer(topic, channel, *sources, client)
            else:
                http = HTTPSession(client_credentials(options.consumer_options))
                safe_tail = SafeTail(topic, rule, named, options.lookupd_http_addresses, http)
                consumer = make_consumer(topic, channel, *sources, client, kind=SafeTailConsumer, safe_tail=safe_tail)
                await safe_tail.check()
            consumers.append(consumer)
            await start_consumer(consumer, options.nsqd_tcp_addresses, is_quiet=is_quiet)
            if on_started is not None:
                await on_started(consumer)
        with ProgressLine("messages", but_not=sys.stdout) as progress:
            output = _Output(show, options.total, progress, is_wanted)
            await _until_done(output, consumers, stopping)
    finally:
        await stop_consumers(consumers)
    return 0


async def _until_done(output: _Output, consumers: list[Consumer], stopping: asyncio.Event) -> None:
    showing = [asyncio.create_task(output.show_all(consumer)) for consumer in consumers]
    ends = [asyncio.create_task(event.wait()) for event in (stopping, output.is_complete)]
    try:
        await asyncio.wait([*showing, *ends], return_when=asyncio.FIRST_COMPLETED)
        await stop_consumers(consumers)
        await asyncio.gather(*showing)
        if output.failure is not None:
            raise output.failure
    finally:
        for task in (*ends, *showing):
            task.cancel()
        await asyncio.gather(*ends, *showing, return_exceptions=True)


class _Output:
    """Writes messages to stdout, up to a limit or until a write fails."""

    def __init__(
        self, show: Show, total: int, progress: ProgressLine, is_wanted: Callable[[bytes], bool] | None
    ) -> None:
        self.is_complete = asyncio.Event()
        self.failure: Exception | None = None
        self._show = show
        self._is_wanted = is_wanted
        self._left = total if total > 0 else None
        self._progress = progress
        self._io_thread = IOThread("stdout")

    async def show_all(self, consumer: Consumer) -> None:
        """Show the messages of ``consumer`` until it is stopped."""
        async for batch in consumer.batches(max(1, consumer.max_in_flight), 0):
            wanted = self._take(self._filtered(batch))
            if self._left == 0:
                # This must precede the FINs, or nsqd would send more messages.
                consumer.max_in_flight = 0
            if wanted and await self._has_written(b"".join([self._show(consumer.topic, each) for each in wanted])):
                for message in wanted:
                    message.finish()
                self._progress.add(len(wanted))
            for message in batch:
                if not message.is_answered:
                    message.requeue(0, backoff=False)
            if self._left == 0:
                self.is_complete.set()

    def _filtered(self, batch: list[Message]) -> list[Message]:
        """Return the messages of ``batch`` that are wanted; finish the others, unless the output has failed."""
        if self._is_wanted is None or self.failure is not None or self._left == 0:
            return batch
        wanted = [message for message in batch if self._is_wanted(message.body)]
        for message in set(batch).difference(wanted):
            message.finish()
        return wanted

    def _take(self, batch: list[Message]) -> list[Message]:
        """Return the messages of ``batch`` to show."""
        if self.failure is not None:
            return []
        if self._left is None:
            return batch
        wanted = batch[: self._left]
        self._left -= len(wanted)
        return wanted

    async def _has_written(self, data: bytes) -> bool:
        try:
            await self._io_thread.call(write_stdout, data)
        except (BrokenPipeError, UtilityFailed) as error:
            self.failure = error
            self.is_complete.set()
        return self.failure is None
