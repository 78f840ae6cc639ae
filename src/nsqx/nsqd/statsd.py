"""The push to statsd: what changed since the last push, packed into UDP packets that are spread over the interval.

``lines`` and ``packets`` are pure; ``StatsdPusher`` owns the clock and the socket. A push that fails is logged and
the next one tried as if nothing had happened: statsd may come and go, and never holds up the broker.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, NamedTuple

from nsqx.errors import ConfigError
from nsqx.names import is_ephemeral
from nsqx.net.address import TCPAddress, parse_address
from nsqx.nsqd.stats import ChannelStats, Snapshot, TopicStats, collect_gradually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.latency import LatencyResult
    from nsqx.nsqd.memory import MemoryMonitor, MemoryStats

# nsqd leaves the last second of each interval free, so that a push has ended before the next begins.
IDLE_TAIL_S = 1.0
# A shorter interval would keep the loop busy with nothing else.
LEAST_INTERVAL_S = 0.01
RESOLVE_TIMEOUT_S = 1.0


class Measured(NamedTuple):
    """What one push reports: counters in it are totals, the push sends their growth."""

    snapshot: Snapshot
    memory: "MemoryStats | None"


NOTHING_MEASURED = Measured(Snapshot(None, None), None)


def lines(previous: Measured, current: Measured, *, exclude_ephemeral: bool) -> "Iterator[str]":
    """Every line of a push, without prefix and newline."""
    earlier = {topic["topic_name"]: topic for topic in previous.snapshot.topics or ()}
    for topic in current.snapshot.topics or ():
        if not (exclude_ephemeral and is_ephemeral(topic["topic_name"])):
            yield from _topic_lines(topic, earlier.get(topic["topic_name"]), exclude_ephemeral)
    if current.memory is not None:
        yield from _memory_lines(current.memory, previous.memory)


def packets(prefixed: "Iterable[str]", packet_size: int) -> list[bytes]:
    """The lines, each ended by a newline, in packets that split no line; too long a line is a packet by itself."""
    done = []
    packet = b""
    for line in prefixed:
        encoded = line.encode() + b"\n"
        if packet and len(packet) + len(encoded) > packet_size:
            done.append(packet)
            packet = b""
        packet += encoded
    if packet:
        done.append(packet)
    return done


def _topic_lines(topic: TopicStats, earlier: TopicStats | None, exclude_ephemeral: bool) -> "Iterator[str]":
    name = f"topic.{topic['topic_name']}"
    messages, size = (earlier["message_count"], earlier["message_bytes"]) if earlier else (0, 0)
    yield f"{name}.message_count:{_growth(topic['message_count'], messages)}|c"
    yield f"{name}.message_bytes:{_growth(topic['message_bytes'], size)}|c"
    yield f"{name}.depth:{topic['depth']}|g"
    yield f"{name}.backend_depth:{topic['backend_depth']}|g"
    yield from _latency_lines(name, topic["e2e_processing_latency"])
    earlier_channels = {channel["channel_name"]: channel for channel in earlier["channels"]} if earlier else {}
    for channel in topic["channels"]:
        if not (exclude_ephemeral and is_ephemeral(channel["channel_name"])):
            yield from _channel_lines(name, channel, earlier_channels.get(channel["channel_name"]))


def _channel_lines(topic: str, channel: ChannelStats, earlier: ChannelStats | None) -> "Iterator[str]":
    name = f"{topic}.channel.{channel['channel_name']}"
    messages = requeues = timeouts = 0
    if earlier is not None:
        messages, requeues, timeouts = earlier["message_count"], earlier["requeue_count"], earlier["timeout_count"]
    yield f"{name}.message_count:{_growth(channel['message_count'], messages)}|c"
    yield f"{name}.depth:{channel['depth']}|g"
    yield f"{name}.backend_depth:{channel['backend_depth']}|g"
    yield f"{name}.in_flight_count:{channel['in_flight_count']}|g"
    yield f"{name}.deferred_count:{channel['deferred_count']}|g"
    yield f"{name}.requeue_count:{_growth(channel['requeue_count'], requeues)}|c"
    yield f"{name}.timeout_count:{_growth(channel['timeout_count'], timeouts)}|c"
    yield f"{name}.clients:{channel['client_count']}|g"
    yield from _latency_lines(name, channel["e2e_processing_latency"])


def _latency_lines(name: str, latency: "LatencyResult") -> "Iterator[str]":
    for percentile in latency["percentiles"] or ():
        yield f"{name}.e2e_processing_latency_{percentile['quantile'] * 100:.0f}:{percentile['value']}|g"


def _memory_lines(memory: "MemoryStats", earlier: "MemoryStats | None") -> "Iterator[str]":
    for name, value in memory.items():
        if name != "gc_total_runs":
            yield f"mem.{name}:{value}|g"
    yield f"mem.gc_runs:{_growth(memory['gc_total_runs'], earlier['gc_total_runs'] if earlier else 0)}|c"


def _growth(total: int, earlier_total: int) -> int:
    """By how much a counter has grown; one that shrank belongs to something deleted and made anew, and began at 0."""
    return total - earlier_total if total >= earlier_total else total


class StatsdPusher:
    """Pushes every statsd-interval, the first time one interval after the start, until told to stop."""

    def __init__(self, broker: "Broker", memory: "MemoryMonitor") -> None:
        self._broker = broker
        self._memory = memory
        self._previous = NOTHING_MEASURED
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Make ``run`` return soon; the packets of a push under way are sent without further pauses."""
        self._stopping.set()

    async def run(self) -> None:
        """Push until stopped."""
        log = self._broker.log
        interval_s = max(LEAST_INTERVAL_S, self._broker.options.statsd_interval / 1e9)
        loop = asyncio.get_running_loop()
        next_push = loop.time() + interval_s
        while not await self._stopped_within(next_push - loop.time()):
            await self._push(max(0.0, interval_s - IDLE_TAIL_S))
            # As a Go ticker does, drop the ticks that a slow push has missed.
            next_push += interval_s * max(1, -((next_push - loop.time()) // interval_s))
        log.info("STATSD: closing")

    async def _measure(self) -> list[bytes]:
        """The packets that the next push sends."""
        options = self._broker.options
        current = Measured(
            await collect_gradually(self._broker, self._broker.clock.wall_ns(), include_clients=False),
            self._memory.stats() if options.statsd_mem_stats else None,
        )
        pushed = lines(self._previous, current, exclude_ephemeral=options.statsd_exclude_ephemeral)
        self._previous = current
        return packets((options.statsd_prefix + line for line in pushed), options.statsd_udp_packet_size)

    async def _push(self, spread_s: float) -> None:
        address = self._broker.options.statsd_address
        log = self._broker.log
        try:
            connection = await _connect_udp(address)
        except (OSError, UnicodeError, ConfigError):
            log.error("failed to create UDP socket to statsd(%s)", address)
            return
        with connection:
            log.info("STATSD: pushing stats to %s", address)
            waiting = await self._measure()
            pause_s = spread_s / max(1, len(waiting))
            for packet in waiting:
                try:
                    connection.send(packet)
                except OSError:
                    # Nobody listens at the moment, or the system has no room: a statsd packet may be lost.
                    pass
                await self._stopped_within(pause_s)

    async def _stopped_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                return await self._stopping.wait()
        except TimeoutError:
            return False


async def _connect_udp(address: str) -> socket.socket:
    """A non-blocking UDP socket to ``host:port``; the name is resolved outside the loop."""
    target = parse_address(address)
    if not isinstance(target, TCPAddress):
        raise ConfigError(f"address {address}: missing port")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(RESOLVE_TIMEOUT_S):
        found = await loop.getaddrinfo(target.host or "localhost", target.port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, socket_address = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        connection.connect(socket_address)
    except BaseException:
        connection.close()
        raise
    return connection
