"""nsqx move: moves the messages that wait in a channel, or in a topic without channels, to another topic.

      nsqx move TOPIC/CHANNEL TARGET
      nsqx move TOPIC TARGET

A message is published to the target first, and finished at the source after nsqd has answered OK. So no message is
lost; a message is in both places if the command is killed between the two.

Exit codes: 0 all were moved; 1 some were not.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, missing, take_cluster, tcp_address_of, tcp_side
from nsqx.cli.command_line import read_words
from nsqx.cli.confirmation import YES_FLAG, require_confirmation
from nsqx.cli.json_lines import print_json
from nsqx.cli.readings import ChannelSum, read_cluster
from nsqx.cluster.daemon import Change
from nsqx.cluster.http import NO_ANSWER
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import NSQError, RequestFailed
from nsqx.flags import BOOL, DURATION, INT, Flag
from nsqx.names import invalid_name, is_valid_name
from nsqx.tools.cluster_address import warn
from nsqx.tools.progress import ProgressLine
from nsqx.tools.sources import CONSUMER_FLAG, client_options
from nsqx.tools.utility import UtilityFailed, counted, plain_words, write_stdout
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.client.consumer import Consumer
    from nsqx.client.producer import Producer
    from nsqx.client.subscription import Message

PROGRAM = "nsqx move"
# The channel through which the messages of a topic without channels are moved.
MOVE_CHANNEL = "nsqx-move"
_IN_FLIGHT = 500
_POLL_S = 0.5
_PUBLISH_TIMEOUT_S = 10.0
# A source whose messages are in flight at other consumers, or requeued by them, may give none for a while.
_DEFAULT_IDLE_NS = 5 * NS_PER_S

FLAGS: tuple[Flag, ...] = (
    Flag("count", INT, 0, "move at most this many messages; default those that wait at the start"),
    Flag("rate", INT, 0, "move at most this many messages per second; 0 for no limit"),
    Flag("idle", DURATION, _DEFAULT_IDLE_NS, "end if the source has given no message for this time"),
    Flag("dry-run", BOOL, False, "only show how many messages would be moved", config_key="is_dry_run"),
    YES_FLAG,
    Flag("json", BOOL, False, "print the outcome as JSON", config_key="is_json"),
    *CLUSTER_FLAGS,
    CONSUMER_FLAG,
)


@dataclass(slots=True)
class MoveOptions:
    """The options of nsqx move."""

    topic: str
    channel: str
    target: str
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    client_options: list[str] = field(default_factory=list)
    count: int = 0
    rate: int = 0
    idle: int = _DEFAULT_IDLE_NS
    """In nanoseconds."""
    is_dry_run: bool = False
    is_confirmed: bool = False
    is_json: bool = False

    @property
    def source(self) -> str:
        return f"{self.topic}/{self.channel}" if self.channel else self.topic


def read_options(argv: Sequence[str]) -> MoveOptions:
    """Return the options from the command line; raises UsageError, UtilityFailed or ConfigError."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} TOPIC[/CHANNEL] TARGET", least=2, most=2)
    source, target = words
    topic, slash, channel = source.partition("/")
    for what, name in (("topic", topic), *([("channel", channel)] if slash else []), ("topic", target)):
        if not is_valid_name(name):
            if "/" in name:
                raise UtilityFailed(f"invalid target {name!r}: use a topic, whose channels all get the messages")
            raise UtilityFailed(invalid_name(what, name))
    if topic == target:
        raise UtilityFailed(f"the target is the source topic {topic}: every channel would get the messages again")
    for name in ("count", "rate"):
        if values[name] < 0:
            raise UtilityFailed(f"--{name} must not be negative")
    if values["idle"] <= 0:
        raise UtilityFailed("--idle must be positive")
    options, cluster = tcp_side(values), take_cluster(values)
    own = values.pop("consumer_options")
    return MoveOptions(topic, channel, target, cluster, [*options, *own], **values)


async def run(options: MoveOptions, stopping: asyncio.Event) -> int:
    """Move the messages and return the exit code; raises UtilityFailed or RequestFailed."""
    reading = await read_cluster(options.cluster, options.topic)
    warn(reading.problems)
    sums = reading.sums()
    own = sums.get((options.topic, options.channel))
    if own is None:
        if (options.topic, "") in sums:
            raise missing(reading.topics, options.topic, options.channel)
        raise await options.cluster.nothing_has(options.topic)
    _refuse_unfit(options, own, [each.channel for each in sums.values() if each.channel])
    waiting = own.waiting
    limit = min(options.count, waiting) if options.count else waiting
    what = f"{counted(limit, 'message')} from {options.source} to {options.target}"
    if options.is_dry_run:
        _print(options, {"moved": 0, "would_move": limit}, f"would move {what}")
        return 0
    if not limit:
        _print(options, {"moved": 0, "left": 0}, f"moved 0 messages: none wait in {options.source}")
        return 0
    if not options.is_confirmed:
        consumers = own.counts["client_count"]
        others = f"; its {consumers} consumers take messages meanwhile" if consumers else ""
        await require_confirmation(f"Move {what}{others}?", "nothing was moved", stopping)
    nsqds = [NsqdClient(options.cluster.http, address) for address, document in reading.found if document["topics"]]
    move = _Move(options, nsqds, limit)
    failure = await move.run(stopping)
    text = f"moved {counted(move.moved, 'message')} from {options.source} to {options.target}"
    try:
        left = await move.left()
    except RequestFailed as error:
        failure = failure or f"cannot count the messages that are left: {error.plain}"
        _print(options, {"moved": move.moved}, f"{text}; how many are left is unknown")
    else:
        where = f" in {options.topic}/{MOVE_CHANNEL}" if move.is_channel_kept else ""
        _print(options, {"moved": move.moved, "left": left}, f"{text}; {left:,} left{where}")
    if failure:
        raise UtilityFailed(failure)
    return 0 if move.moved >= limit and not reading.problems else 1


def _refuse_unfit(options: MoveOptions, own: ChannelSum, channels: list[str]) -> None:
    if own.paused:
        command = f"nsqx unpause {options.topic} {options.channel}".rstrip()
        raise UtilityFailed(f"{options.source} is paused and delivers nothing: run {command} first")
    if options.channel:
        return
    others = [channel for channel in channels if channel != MOVE_CHANNEL]
    if others:
        raise UtilityFailed(
            f"the messages of topic {options.topic} are in its channels: use {options.topic}/{others[0]} as the source"
        )


def _print(options: MoveOptions, numbers: dict[str, int], text: str) -> None:
    if options.is_json:
        named = {"topic": options.topic, **({"channel": options.channel} if options.channel else {})}
        print_json({**named, "target": options.target, **numbers})
    else:
        write_stdout(f"{text}\n".encode())


class _Move:
    """One move: consumes the source and publishes to the target."""

    def __init__(self, options: MoveOptions, nsqds: Sequence[NsqdClient], limit: int) -> None:
        self.moved = 0
        self.is_channel_kept = False
        self._options = options
        self._nsqds = nsqds
        self._limit = limit
        self._taken = 0
        self._channel = options.channel or MOVE_CHANNEL
        self._failure = ""
        self._ended = asyncio.Event()
        self._last_s = time.monotonic()

    async def run(self, stopping: asyncio.Event) -> str:
        """Move until the limit, a failure, a signal or the end of the source; return the failure, "" if none."""
        # Imported here, because the other ways through the command do not need the client library.
        from nsqx.client.consumer import Consumer
        from nsqx.client.producer import Producer

        if not self._options.channel:
            await self._open_channel()
        addresses = [await tcp_address_of(nsqd) for nsqd in self._nsqds]
        client: dict[str, Any] = client_options("nsqx-move", self._options.client_options)
        in_flight = max(1, min(_IN_FLIGHT, self._limit, self._options.rate or _IN_FLIGHT))
        consumer = Consumer(
            self._options.topic,
            self._channel,
            nsqd_tcp_addresses=addresses,
            # A message with many attempts must not be given up, which would finish it.
            **{**client, "max_in_flight": in_flight, "max_attempts": 0},
        )
        producer = Producer(addresses, publish_timeout=_PUBLISH_TIMEOUT_S, **client)
        try:
            await producer.start()
            await consumer.start()
            with ProgressLine("messages moved", but_not=None if self._options.is_json else sys.stdout) as progress:
                await self._until_done(consumer, producer, progress, stopping)
        except NSQError as error:
            self._failure = plain_words(error)
        finally:
            await consumer.stop()
            await producer.close()
            if not self._options.channel:
                await self._close_channels()
        if stopping.is_set() and not self._failure and self.moved < self._limit:
            self._failure = "stopped"
        return self._failure

    async def _until_done(
        self, consumer: Consumer, producer: Producer, progress: ProgressLine, stopping: asyncio.Event
    ) -> None:
        self._last_s = time.monotonic()
        moving = asyncio.create_task(self._move_all(consumer, producer, progress))
        ends = [asyncio.create_task(event.wait()) for event in (stopping, self._ended)]
        try:
            while not moving.done() and not any(end.done() for end in ends):
                await asyncio.wait([moving, *ends], timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                idle_s = time.monotonic() - self._last_s
                if idle_s > self._options.idle / NS_PER_S or (idle_s > _POLL_S and not await self._is_something_left()):
                    break
            # The messages that were taken are answered before the consumer stops.
            await consumer.stop()
            await moving
        finally:
            for task in (moving, *ends):
                task.cancel()
            await asyncio.gather(moving, *ends, return_exceptions=True)

    async def _move_all(self, consumer: Consumer, producer: Producer, progress: ProgressLine) -> None:
        started_s = time.monotonic()
        async for batch in consumer.batches(_IN_FLIGHT, 0.01):
            wanted = batch[: self._limit - self._taken] if not self._failure else []
            self._taken += len(wanted)
            if self._taken >= self._limit:
                consumer.max_in_flight = 0
            for message in batch[len(wanted) :]:
                message.requeue(0, backoff=False)
            await self._move_batch(wanted, producer, progress)
            self._last_s = time.monotonic()
            if self._failure or self._taken >= self._limit:
                self._ended.set()
            elif self._options.rate:
                ahead_s = self.moved / self._options.rate - (time.monotonic() - started_s)
                await asyncio.sleep(max(0.0, min(ahead_s, 1.0)))

    async def _move_batch(self, messages: Sequence[Message], producer: Producer, progress: ProgressLine) -> None:
        outcomes = await asyncio.gather(
            *(producer.publish(self._options.target, message.body) for message in messages), return_exceptions=True
        )
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome is None:
                message.finish()
                self.moved += 1
                progress.add(1)
                continue
            message.requeue(0, backoff=False)
            if not isinstance(outcome, NSQError):
                raise outcome
            self._failure = self._failure or plain_words(outcome)

    async def _open_channel(self) -> None:
        """Create the channel that gets the messages of a topic without channels."""
        for nsqd in self._nsqds:
            await nsqd.apply(Change("create", self._options.topic, self._channel))

    async def _close_channels(self) -> None:
        """Remove the channel where it is empty. A failure is noted, so that the outcome is printed all the same."""
        for nsqd in self._nsqds:
            is_paused = False
            try:
                await nsqd.apply(Change("pause", self._options.topic))
                is_paused = True
                await self._close_channel(nsqd)
            except RequestFailed as error:
                # An nsqd that did not answer may pause the topic later.
                self._note_kept(nsqd, error, "" if is_paused or error.plain != NO_ANSWER else self._remedy)
            finally:
                if is_paused:
                    await self._unpause(nsqd)

    async def _close_channel(self, nsqd: NsqdClient) -> None:
        """Remove the channel if it is empty. The topic is paused, so that the channel gets no more messages."""
        entries = await nsqd.stats(self._options.topic, self._channel)
        channels = [channel for entry in entries for channel in entry["channels"] or []]
        if any(map(_unfinished, channels)):
            self.is_channel_kept = True
        elif channels:
            await nsqd.apply(Change("delete", self._options.topic, self._channel))

    async def _unpause(self, nsqd: NsqdClient) -> None:
        try:
            await nsqd.apply(Change("unpause", self._options.topic))
        except RequestFailed as error:
            self._note_kept(nsqd, error, self._remedy)

    @property
    def _remedy(self) -> str:
        return f"; topic {self._options.topic} may be paused there: run nsqx unpause {self._options.topic}"

    def _note_kept(self, nsqd: NsqdClient, error: RequestFailed, remedy: str) -> None:
        self.is_channel_kept = True
        text = f"{nsqd}: cannot remove channel {self._channel}: {error.plain}{remedy}"
        self._failure = f"{self._failure}; {text}" if self._failure else text

    async def _is_something_left(self) -> bool:
        """Return True if an nsqd has messages that this move can still get: those that wait."""
        for nsqd in self._nsqds:
            for entry in await nsqd.stats(self._options.topic, self._channel):
                if any(channel["depth"] or channel["in_flight_count"] for channel in entry["channels"] or []):
                    return True
        return False

    async def left(self) -> int:
        """Return how many messages of the source are not finished."""
        left = 0
        for nsqd in self._nsqds:
            for entry in await nsqd.stats(self._options.topic, self._options.channel):
                parts = entry["channels"] or [] if self._options.channel else [entry, *(entry["channels"] or [])]
                left += sum(map(_unfinished, parts))
        return left


def _unfinished(counts: dict[str, Any]) -> int:
    return sum(counts.get(name, 0) for name in ("depth", "in_flight_count", "deferred_count"))
