"""Fairness: how long the PUBs of one polite client take while a flood of other connections sends without waiting.

The polite client publishes one message at a time and waits for each OK. The flood pipelines commands on several
connections and reads the answers, so only the broker limits its rate.
"""

from __future__ import annotations

import select
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsqx.bench.failure import BenchFailed
from nsqx.bench.figures import MILLISECONDS, PER_SECOND, Figure, percentile
from nsqx.bench.loads import CHANNEL, GRACE_S, Limits, make_channel, new_topic
from nsqx.bench.protocols import connect, encode_publish, introduce, receive_frame
from nsqx.bench.publishers import ClosedLoop
from nsqx.bench.shared_counters import SharedCounters
from nsqx.bench.worker_processes import Worker, WorkerResult, run_together
from nsqx.units import NS_PER_S
from nsqx.wire.encode import append_sized
from nsqx.wire.requests import encode_subscribe, publish_deferred_line

if TYPE_CHECKING:
    from nsqx.bench.brokers import Target

_CONNECTIONS: Final = 5
_SECONDS: Final = 3.0
# The flood starts before the polite client and ends after it.
_LEAD_S: Final = 0.3
_BURST_BYTES: Final = 256 * 1024
_RECEIVE_BYTES: Final = 1024 * 1024
_POLL_S: Final = 0.05
_DEFER_MS: Final = 600_000
_BODY_BYTES: Final = 20
_LINES: Final = 2_500_000


@dataclass
class Flood:
    """Connections that repeat a prepared command without waiting, until the polite client is done.

    The connections send as much as the broker's sockets accept; the answers are read and dropped.
    """

    address: str
    openings: Sequence[bytes]
    """Commands that are sent once; each is answered by one frame."""
    command: bytes
    connections: int
    seconds: float
    counters: SharedCounters
    is_http: bool = False
    _links: list[socket.socket] = field(default_factory=list)

    def prepare(self) -> None:
        """Connect and send the opening."""
        for _ in range(self.connections):
            link = connect(self.address)
            if not self.is_http:
                introduce(link, heartbeat_ms=60_000)
            for opening in self.openings:
                link.sendall(opening)
                receive_frame(link)
            link.setblocking(False)
            self._links.append(link)

    def run(self) -> WorkerResult:
        """Send; the result counts the commands that were written to the sockets."""
        burst = self.command * max(_BURST_BYTES // len(self.command), 1)
        links = {link.fileno(): link for link in self._links}
        rests = {number: memoryview(burst) for number in links}
        poll = select.epoll()
        for number in links:
            poll.register(number, select.EPOLLIN | select.EPOLLOUT)
        sent_bytes = 0
        deadline_ns = time.monotonic_ns() + int(self.seconds * NS_PER_S)
        while not self.counters.is_published() and time.monotonic_ns() < deadline_ns:
            for number, event in poll.poll(_POLL_S):
                if event & select.EPOLLIN and not links[number].recv(_RECEIVE_BYTES):
                    raise BenchFailed("the broker closed a connection of the flood")
                if event & select.EPOLLOUT:
                    try:
                        count = links[number].send(rests[number])
                    except BlockingIOError:
                        continue
                    sent_bytes += count
                    rests[number] = rests[number][count:] or memoryview(burst)
        poll.close()
        for link in self._links:
            link.close()
        return WorkerResult(sent_bytes // len(self.command), time.monotonic_ns())


@dataclass
class Polite(ClosedLoop):
    """A timed closed loop that starts after the flood."""

    def run(self) -> WorkerResult:
        """Publish one message at a time, and measure each round trip."""
        time.sleep(_LEAD_S)
        return super().run()


def _beside(
    name: str, target: Target, limits: Limits, address: str, openings: Sequence[bytes], command: bytes, connections: int
) -> list[Figure]:
    """Return the p99 and worst round trip of the polite client, and the commands per second of the flood."""
    topic = new_topic(name)
    make_channel(target, topic)
    seconds = min(limits.seconds, _SECONDS)
    counters = SharedCounters(1, 1)
    polite = Polite(
        target.tcp_address,
        [target.protocol.publisher(topic, [b"x" * (limits.size or 200)])],
        1,
        limits.counted(10_000_000),
        seconds,
        counters=counters,
        is_timed=True,
    )
    is_http = address == target.http_address
    # The flood continues while the polite client waits for its last answer.
    flood = Flood(address, openings, command, connections, seconds + GRACE_S / 2, counters, is_http)
    workers: list[Worker] = [polite, flood]
    result = run_together(workers, seconds + GRACE_S)
    samples = array("q", sorted(result.outcomes[0].samples_ns))
    if not samples:
        raise BenchFailed("the polite client received no answer")
    return [
        Figure(f"{name} p99", percentile(samples, 0.99) / 1e6, MILLISECONDS),
        Figure(f"{name} worst", samples[-1] / 1e6, MILLISECONDS),
        Figure(f"{name} flood", result.outcomes[1].count / result.elapsed_s(), PER_SECOND),
    ]


def _tcp_flood(
    name: str, command: Callable[[str], bytes], openings: Callable[[str], Sequence[bytes]] = lambda _: ()
) -> Callable[[Target, Limits], list[Figure]]:
    """Return a workload whose flood pipelines a command; the command and its openings use the flood's own topic."""

    def run(target: Target, limits: Limits) -> list[Figure]:
        topic = new_topic(f"{name}-flood")
        make_channel(target, topic)
        return _beside(name, target, limits, target.tcp_address, openings(topic), command(topic), _CONNECTIONS)

    return run


def _http_flood(
    name: str, request: Callable[[str, str, Limits], bytes], connections: int
) -> Callable[[Target, Limits], list[Figure]]:
    """Return a workload whose flood pipelines an HTTP request to the flood's own topic."""

    def run(target: Target, limits: Limits) -> list[Figure]:
        if not target.http_address:
            raise BenchFailed(f"{name} requires --nsqd-http-address")
        topic = new_topic(f"{name}-flood")
        make_channel(target, topic)
        address = target.http_address
        return _beside(name, target, limits, address, (), request(address, topic, limits), connections)

    return run


def _deferred(topic: str) -> bytes:
    request = bytearray()
    append_sized(request, publish_deferred_line(topic, _DEFER_MS), b"x" * _BODY_BYTES)
    return bytes(request)


def _subscribe(topic: str) -> Sequence[bytes]:
    return (encode_subscribe(topic, CHANNEL),)


def _subscribe_and_close(topic: str) -> Sequence[bytes]:
    return (encode_subscribe(topic, CHANNEL), b"CLS\n")


def _ping(host: str, _topic: str, _limits: Limits) -> bytes:
    return f"GET /ping HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def _tiny_lines(host: str, topic: str, limits: Limits) -> bytes:
    body = b"x\n" * limits.counted(_LINES)
    head = f"POST /mpub?topic={topic} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


beside_publishes: Final = _tcp_flood("fair-pub", lambda topic: encode_publish(topic, b"x" * _BODY_BYTES))
beside_deferred: Final = _tcp_flood("fair-dpub", _deferred)
beside_bad_finishes: Final = _tcp_flood("fair-fin", lambda _: b"FIN 0123456789abcdef\n", _subscribe)
beside_late_ready: Final = _tcp_flood("fair-rdy", lambda _: b"RDY 1\n", _subscribe_and_close)
beside_pings: Final = _http_flood("fair-ping", _ping, _CONNECTIONS)
beside_tiny_lines: Final = _http_flood("fair-mpub", _tiny_lines, 1)
