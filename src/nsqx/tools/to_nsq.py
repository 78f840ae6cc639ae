"""to_nsq: splits stdin at a delimiter and publishes the parts to one or more nsqds.

Each message goes to every nsqd. Publishing is pipelined; the program ends when all messages are acknowledged. After a
failed publish no more messages are sent, and the program ends with an error.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nsqx.client.producer import Producer
from nsqx.errors import ConnectFailed
from nsqx.flags import INT, STRING, STRINGS, Flag
from nsqx.names import is_valid_name
from nsqx.tools.io_thread import IOThread
from nsqx.tools.progress import ProgressLine
from nsqx.tools.sources import PRODUCER_FLAG, client_options
from nsqx.tools.utility import UtilityFailed, explain, kept_client_log, log_line, read_flags

PROGRAM = "to_nsq"

_READ_SIZE = 256 * 1024
_STOP_TIMEOUT_S = 10.0
# A stream fills the socket buffers, so on a slow link an answer takes longer than that of a single publish.
STREAM_PUBLISH_TIMEOUT_S = 60.0
# After a pause, the messages of this time may be sent at once.
_BURST_S = 1.0

FLAGS: tuple[Flag, ...] = (
    Flag("topic", STRING, "", "NSQ topic to publish to"),
    Flag("delimiter", STRING, "\n", "character to split input from stdin"),
    Flag(
        "nsqd-tcp-address",
        STRINGS,
        [],
        "destination nsqd TCP address (may be given multiple times)",
        config_key="nsqd_tcp_addresses",
    ),
    PRODUCER_FLAG,
    Flag("rate", INT, 0, "Throttle messages to n/second. 0 to disable"),
)


@dataclass(slots=True)
class ToNsqOptions:
    """The options of to_nsq."""

    topic: str
    nsqd_tcp_addresses: list[str]
    delimiter: bytes = b"\n"
    producer_options: list[str] = field(default_factory=list)
    rate: int = 0


def read_options(argv: Sequence[str]) -> ToNsqOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values = read_flags(FLAGS, argv, PROGRAM)
    values["delimiter"] = os.fsencode(values["delimiter"])
    options = ToNsqOptions(**values)
    if not options.topic:
        raise UtilityFailed("--topic required")
    if len(options.delimiter) != 1:
        raise UtilityFailed("--delimiter must be a single byte")
    if not options.nsqd_tcp_addresses:
        raise UtilityFailed("--nsqd-tcp-address required")
    if not is_valid_name(options.topic):
        raise UtilityFailed("--topic is invalid")
    return options


class Splitter:
    """Splits a stream at a delimiter; empty items are skipped."""

    def __init__(self, delimiter: bytes) -> None:
        """If the delimiter is empty, the whole stream is one item."""
        self._delimiter = delimiter
        # The start of an item whose end has not been read yet.
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the items that ``data`` completes."""
        items = data.split(self._delimiter) if self._delimiter else [data]
        self._pieces.append(items[0])
        if len(items) == 1:
            return []
        items[0] = b"".join(self._pieces)
        self._pieces = [items.pop()]
        return [item for item in items if item]

    def end(self) -> list[bytes]:
        """Return the item after the last delimiter, if any."""
        last = b"".join(self._pieces)
        self._pieces = []
        return [last] if last else []


class Throttle:
    """Limits the rate of messages per second; at most the messages of one second are sent at once."""

    def __init__(self, rate: int, now_s: float) -> None:
        self._interval_s = 1.0 / rate
        self._next_s = now_s

    def take(self, now_s: float) -> float:
        """Count one message, and return how long to wait before it is sent."""
        self._next_s = max(self._next_s, now_s - _BURST_S)
        wait_s = max(0.0, self._next_s - now_s)
        self._next_s += self._interval_s
        return wait_s


Read = Callable[[], bytes]
"""Returns the next part of a stream, empty at its end; may block."""

Publish = Callable[[Producer, bytes], asyncio.Future[None]]
"""Publishes one item."""


class Publishing:
    """Publishes items with each of several producers, and counts the acknowledged ones.

    After the first failure later items are dropped. Items that another nsqd has already received cannot be withdrawn.
    """

    def __init__(self, producers: Sequence[Producer], publish: Publish, progress: ProgressLine) -> None:
        self.failure: BaseException | None = None
        self.published_count = 0
        self._producers = producers
        self._publish = publish
        self._progress = progress
        self._is_started = False
        # Outstanding publishes and the number of their item, in order.
        self._under_way: dict[asyncio.Future[None], int] = {}
        self._item_count = 0

    async def publish(self, items: Sequence[bytes]) -> None:
        """Publish ``items`` and wait for all results, so no later item is sent after a rejected one."""
        if items and not self._is_started:
            await self._start()
        last = len(self._producers) - 1
        for item in items:
            if self.failure is not None:
                return
            self._item_count += 1
            for index, producer in enumerate(self._producers):
                outcome = self._publish(producer, item)
                self._under_way[outcome] = self._item_count
                outcome.add_done_callback(self._count if index == last else self._check)
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def close(self, timeout_s: float | None) -> None:
        """Wait for all answers and close the producers."""
        await asyncio.gather(*(producer.close(timeout_s) for producer in self._producers))

    def check(self) -> None:
        """Raise UtilityFailed if a publish failed."""
        if self.failure is not None:
            raise UtilityFailed(f"{explain(self.failure)} ({self.published_count} messages were published)")

    async def _start(self) -> None:
        self._is_started = True
        with kept_client_log():
            try:
                await asyncio.gather(*(producer.start() for producer in self._producers))
            except ConnectFailed as error:
                raise UtilityFailed(explain(error)) from error

    def _check(self, outcome: asyncio.Future[None]) -> bool:
        number = self._under_way.pop(outcome)
        error = asyncio.CancelledError() if outcome.cancelled() else outcome.exception()
        if error is not None and self.failure is None:
            self.failure = error
            for later in [each for each, item in self._under_way.items() if item > number]:
                later.cancel()
        return error is None

    def _count(self, outcome: asyncio.Future[None]) -> None:
        if self._check(outcome):
            self.published_count += 1
            self._progress.add(1)


async def run(options: ToNsqOptions, stopping: asyncio.Event) -> int:
    """Publish stdin until its end; raises UtilityFailed if a publish failed."""
    producer_options: dict[str, Any] = client_options(PROGRAM, options.producer_options)
    addresses = list(dict.fromkeys(options.nsqd_tcp_addresses))
    producer_options["publish_timeout"] = producer_options["start_timeout"] = STREAM_PUBLISH_TIMEOUT_S
    producer_options["require_connection"] = True
    producers = [Producer([address], batching=True, **producer_options) for address in addresses]
    if options.rate >= 1:
        log_line(f"Throttling messages rate to max:{options.rate}/second")
    with ProgressLine("messages published") as progress:
        publishing = Publishing(producers, lambda producer, item: producer.publish(options.topic, item), progress)
        await publish_stdin(publishing, options.delimiter, stopping, rate=options.rate)
    return 0


async def publish_stdin(
    publishing: Publishing, delimiter: bytes, stopping: asyncio.Event, *, rate: int = 0, read: Read | None = None
) -> None:
    """Publish the data of ``read`` until its end, then wait for all answers; raises UtilityFailed if one failed."""
    throttle = Throttle(rate, asyncio.get_running_loop().time()) if rate >= 1 else None
    try:
        await _pump(Splitter(delimiter), publishing, throttle, stopping, read or _read_stdin)
    finally:
        await publishing.close(_STOP_TIMEOUT_S if stopping.is_set() or publishing.failure else None)
    publishing.check()


def _read_stdin() -> bytes:
    try:
        return os.read(sys.stdin.fileno(), _READ_SIZE)
    except OSError as error:
        raise UtilityFailed(f"cannot read stdin - {error.strerror}") from error


async def _pump(
    splitter: Splitter,
    publishing: Publishing,
    throttle: Throttle | None,
    stopping: asyncio.Event,
    read: Read,
) -> None:
    """Read and publish until the end of the data, until a failure, or until ``stopping`` is set."""
    io_thread = IOThread("stdin")
    told_to_stop = asyncio.ensure_future(stopping.wait())
    try:
        data = b"more"
        while data and publishing.failure is None:
            reading = asyncio.ensure_future(io_thread.call(read))
            await asyncio.wait({reading, told_to_stop}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.is_set():
                reading.cancel()
                return
            data = reading.result()
            items = splitter.feed(data) if data else splitter.end()
            sending = asyncio.ensure_future(_send(items, publishing, throttle, stopping))
            await asyncio.wait({sending, told_to_stop}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                sending.cancel()
                return
            sending.result()
    finally:
        told_to_stop.cancel()
        io_thread.close()


async def _send(items: list[bytes], publishing: Publishing, throttle: Throttle | None, stopping: asyncio.Event) -> None:
    if throttle is None:
        await publishing.publish(items)
        return
    clock = asyncio.get_running_loop().time
    for item in items:
        wait_s = throttle.take(clock())
        if wait_s:
            await asyncio.sleep(wait_s)
        if stopping.is_set() or publishing.failure is not None:
            return
        await publishing.publish([item])
