"""Pushes to statsd: the changes since the last push, in UDP packets that are spread over the interval.

Lines and packets need no clock and no socket; ``StatsdPusher`` owns these. A failed push is logged, and the next one
runs as usual: statsd may be unavailable at times, and never delays the broker.
"""

import asyncio
import socket
from typing import TYPE_CHECKING

from nsqx.errors import ConfigError
from nsqx.names import is_ephemeral
from nsqx.net.address import TCPAddress, parse_address
from nsqx.net.steps import Steps
from nsqx.nsqd.stats import WITHOUT_CLIENTS, ChannelStats, TopicCollector, TopicStats, each_topic
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.latency import LatencyResult
    from nsqx.nsqd.memory import MemoryMonitor, MemoryStats

# As in nsqd, the last second of each interval is free, so that a push has ended before the next one begins.
IDLE_TAIL_S = 1.0
# A shorter interval would leave the loop no time for other work.
LEAST_INTERVAL_S = 0.01
RESOLVE_TIMEOUT_S = 1.0


Totals = dict[str, tuple[int, ...]]
"""The counters at the last push, by topic, channel or memory. A push sends the differences."""


def line_steps(
    collector: TopicCollector, previous: Totals, current: Totals, *, exclude_ephemeral: bool
) -> "Iterator[str | None]":
    """Yield the lines of a topic, without prefix and newline, and None for other steps; add counters to ``current``."""
    topic = yield from collector.steps()
    if exclude_ephemeral and is_ephemeral(topic["topic_name"]):
        return
    name = f"topic.{topic['topic_name']}"
    yield from _topic_lines(name, topic, previous, current)
    for channel, _ in collector.channels():
        if not (exclude_ephemeral and is_ephemeral(channel["channel_name"])):
            yield from _channel_lines(name, channel, previous, current)


def _topic_lines(name: str, topic: TopicStats, previous: Totals, current: Totals) -> "Iterator[str]":
    totals = current[name] = topic["message_count"], topic["message_bytes"]
    messages, size = _growth(totals, previous.get(name))
    yield f"{name}.message_count:{messages}|c"
    yield f"{name}.message_bytes:{size}|c"
    yield f"{name}.depth:{topic['depth']}|g"
    yield f"{name}.backend_depth:{topic['backend_depth']}|g"
    if "log" in topic:
        log = topic["log"]
        yield f"{name}.log_first_offset:{log['first']}|g"
        yield f"{name}.log_stable_offset:{log['stable']}|g"
        yield f"{name}.log_end_offset:{log['end']}|g"
        yield f"{name}.log_bytes:{log['bytes']}|g"
        yield f"{name}.log_segments:{log['segments']}|g"
        yield f"{name}.log_kept_bytes:{log['kept_bytes']}|g"
        yield f"{name}.deferred_count:{log['deferred_count']}|g"
        yield f"{name}.log_refused_count:{sum(log['refused'].values())}|g"
    yield from _latency_lines(name, topic["e2e_processing_latency"])


def memory_lines(memory: "MemoryStats", previous: Totals, current: Totals) -> "Iterator[str]":
    """Yield the lines of the memory section; adds its counter to ``current``."""
    for name, value in memory.items():
        if name != "gc_total_runs":
            yield f"mem.{name}:{value}|g"
    totals = current["mem"] = (memory["gc_total_runs"],)
    yield f"mem.gc_runs:{_growth(totals, previous.get('mem'))[0]}|c"


class Packets:
    """Packs lines into packets without splitting a line; a line that is too long is a packet by itself."""

    def __init__(self, prefix: str, packet_size: int) -> None:
        self._prefix = prefix
        self._size = packet_size
        self._full: list[bytes] = []
        self._last = b""

    def add(self, line: str) -> None:
        """Add a line without prefix and newline."""
        encoded = f"{self._prefix}{line}\n".encode()
        if self._last and len(self._last) + len(encoded) > self._size:
            self._full.append(self._last)
            self._last = b""
        self._last += encoded

    def all(self) -> list[bytes]:
        """Return all packets; none without lines."""
        return [*self._full, self._last] if self._last else self._full


def _channel_lines(topic: str, channel: ChannelStats, previous: Totals, current: Totals) -> "Iterator[str]":
    name = f"{topic}.channel.{channel['channel_name']}"
    totals = current[name] = channel["message_count"], channel["requeue_count"], channel["timeout_count"]
    messages, requeues, timeouts = _growth(totals, previous.get(name))
    yield f"{name}.message_count:{messages}|c"
    yield f"{name}.depth:{channel['depth']}|g"
    yield f"{name}.backend_depth:{channel['backend_depth']}|g"
    yield f"{name}.in_flight_count:{channel['in_flight_count']}|g"
    yield f"{name}.deferred_count:{channel['deferred_count']}|g"
    yield f"{name}.requeue_count:{requeues}|c"
    yield f"{name}.timeout_count:{timeouts}|c"
    yield f"{name}.clients:{channel['client_count']}|g"
    if "cursor" in channel:
        cursor = channel["cursor"]
        yield f"{name}.floor_offset:{cursor['floor']}|g"
        yield f"{name}.next_offset:{cursor['next']}|g"
        yield f"{name}.holes:{cursor['holes']}|g"
        yield f"{name}.dropped_count:{cursor['dropped']}|g"
        yield f"{name}.expired_count:{cursor['expired']}|g"
    yield from _latency_lines(name, channel["e2e_processing_latency"])


def _latency_lines(name: str, latency: "LatencyResult") -> "Iterator[str]":
    for percentile in latency["percentiles"] or ():
        yield f"{name}.e2e_processing_latency_{percentile['quantile'] * 100:.0f}:{percentile['value']}|g"


def _growth(totals: tuple[int, ...], previous: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the growth of counters. A counter that shrank restarted at 0: its topic or channel was created again."""
    if previous is None:
        return totals
    return tuple(
        total - earlier if total >= earlier else total for total, earlier in zip(totals, previous, strict=True)
    )


class StatsdPusher:
    """Pushes at every statsd-interval, starting one interval after the start, until ``stop``."""

    def __init__(self, broker: "Broker", memory: "MemoryMonitor") -> None:
        self._broker = broker
        self._memory = memory
        self._previous: Totals = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Make ``run`` return soon; the remaining packets of a running push are sent without pauses."""
        self._stopping.set()

    async def run(self) -> None:
        """Push until ``stop``."""
        log = self._broker.log
        interval_s = max(LEAST_INTERVAL_S, self._broker.options.statsd_interval / NS_PER_S)
        loop = asyncio.get_running_loop()
        next_push = loop.time() + interval_s
        while not await self._stopped_within(next_push - loop.time()):
            await self._push(max(0.0, interval_s - IDLE_TAIL_S))
            # Like a Go ticker, skip the ticks that a slow push has missed.
            next_push += interval_s * max(1, -((next_push - loop.time()) // interval_s))
        log.info("STATSD: closing")

    def _packet_steps(self) -> Steps[list[bytes]]:
        """Build the packets of the next push."""
        broker, options = self._broker, self._broker.options
        packets = Packets(options.statsd_prefix, options.statsd_udp_packet_size)
        current: Totals = {}
        exclude_ephemeral = options.statsd_exclude_ephemeral
        for collector in each_topic(broker, broker.clock.wall_ns(), WITHOUT_CLIENTS):
            for line in line_steps(collector, self._previous, current, exclude_ephemeral=exclude_ephemeral):
                if line is not None:
                    packets.add(line)
                yield
        if options.statsd_mem_stats:
            for line in memory_lines(self._memory.stats(), self._previous, current):
                packets.add(line)
        self._previous = current
        return packets.all()

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
            waiting = await self._broker.long_jobs.run(self._packet_steps())
            pause_s = spread_s / max(1, len(waiting))
            for packet in waiting:
                try:
                    connection.send(packet)
                except OSError:
                    # statsd is not running, or the socket buffer is full: a lost statsd packet is acceptable.
                    pass
                await self._stopped_within(pause_s)

    async def _stopped_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                return await self._stopping.wait()
        except TimeoutError:
            return False


async def _connect_udp(address: str) -> socket.socket:
    """Return a non-blocking UDP socket to ``host:port``; the name is resolved outside the loop."""
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
