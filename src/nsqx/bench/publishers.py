"""Workers that publish: as fast as answers arrive, at a constant rate, or deferred.

The closed loop waits for the answer to each request on each of its connections, as Go's bench_writer does. The open
loop follows its schedule regardless of the broker, and stamps each message with its scheduled time. The latency of
every message that waited for a stalled broker is therefore measured (no coordinated omission).
"""

from __future__ import annotations

import ctypes
import select
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.bench.failure import BenchFailed
from nsqx.bench.protocols import (
    PublishProtocol,
    connect,
    encode_publish,
    encode_publish_many,
    greeted,
    introduce,
    receive,
)
from nsqx.bench.worker_processes import WorkerResult
from nsqx.units import NS_PER_MS, NS_PER_S
from nsqx.wire.encode import append_sized
from nsqx.wire.frames import OK
from nsqx.wire.requests import publish_deferred_line

if TYPE_CHECKING:
    from nsqx.bench.shared_counters import SharedCounters

_RECEIVE_SIZE = 65536
_WINDOW_PAUSE_S = 0.0002
_PR_SET_TIMERSLACK = 29
# The most messages in one MPUB, which must not exceed max-body-size even if the publisher is late.
_MOST_AT_ONCE = 1_000


@dataclass
class ClosedLoop:
    """Sends requests on several connections, each after the answer to the request before it on that connection."""

    address: str
    protocols: Sequence[PublishProtocol]
    """One for each connection."""
    per_request: int
    """Messages per request."""
    count: int
    """The maximum number of messages."""
    seconds: float
    counters: SharedCounters | None = None
    slot: int = 0
    window: int = 0
    """The maximum number of messages that are published and not received; 0 means no limit."""
    is_timed: bool = False
    """Measure the duration of each request."""
    _links: list[socket.socket] = field(default_factory=list)

    def prepare(self) -> None:
        """Connect, and do the handshake on each connection."""
        self._links = greeted(self.address, self.protocols)

    def run(self) -> WorkerResult:
        """Publish until the count or the time is reached."""
        deadline_ns = time.monotonic_ns() + int(self.seconds * NS_PER_S)
        try:
            if len(self._links) == 1:
                return self._run_alone(self._links[0], self.protocols[0], deadline_ns)
            return self._run_many(deadline_ns)
        finally:
            if self.counters is not None:
                self.counters.note_done(self.slot)
            for link in self._links:
                link.close()

    def _run_alone(self, link: socket.socket, protocol: PublishProtocol, deadline_ns: int) -> WorkerResult:
        link.settimeout(self.seconds + 30)
        samples = array("q")
        published = 0
        now_ns = time.monotonic_ns()
        while published < self.count and now_ns < deadline_ns:
            sent_ns = now_ns
            link.sendall(protocol.request())
            reply = bytearray(link.recv(_RECEIVE_SIZE))
            while not protocol.is_answered(reply):
                reply += _more(link)
            published += self.per_request
            now_ns = time.monotonic_ns()
            if self.is_timed:
                samples.append(now_ns - sent_ns)
            if self.counters is not None:
                self._report_published(published, deadline_ns)
        return WorkerResult(published, now_ns, samples)

    def _report_published(self, published: int, deadline_ns: int) -> None:
        """Update the shared counter, and wait while more than ``window`` messages are outstanding."""
        assert self.counters is not None
        self.counters.note_published(self.slot, published)
        while self.window and self.counters.outstanding() > self.window and time.monotonic_ns() < deadline_ns:
            time.sleep(_WINDOW_PAUSE_S)

    def _run_many(self, deadline_ns: int) -> WorkerResult:
        links = {link.fileno(): link for link in self._links}
        protocols = {link.fileno(): protocol for link, protocol in zip(self._links, self.protocols, strict=True)}
        replies = {number: bytearray() for number in links}
        poll = select.epoll()
        owed = asked = 0
        for number, link in links.items():
            poll.register(number, select.EPOLLIN)
            if asked < self.count:
                link.sendall(protocols[number].request())
                asked += self.per_request
                owed += 1
        now_ns = time.monotonic_ns()
        while owed:
            events = poll.poll(self.seconds + 30)
            if not events:
                raise BenchFailed(f"the broker did not answer within {self.seconds + 30:.0f} s")
            is_late = now_ns >= deadline_ns
            for number, _ in events:
                reply = replies[number]
                reply += _more(links[number])
                if not protocols[number].is_answered(reply):
                    continue
                reply.clear()
                owed -= 1
                if asked < self.count and not is_late:
                    links[number].sendall(protocols[number].request())
                    asked += self.per_request
                    owed += 1
            now_ns = time.monotonic_ns()
        poll.close()
        return WorkerResult(asked, now_ns)


def _more(link: socket.socket) -> bytes:
    piece = link.recv(_RECEIVE_SIZE)
    if not piece:
        raise BenchFailed("the broker closed the connection")
    return piece


@dataclass
class OpenLoop:
    """Publishes at a constant rate; messages that are due at the same time are sent as one MPUB."""

    address: str
    topic: str
    size: int
    rate: int
    """Messages per second."""
    count: int
    counters: SharedCounters
    slot: int = 0
    _link: socket.socket | None = None

    def prepare(self) -> None:
        """Connect."""
        self._link = connect(self.address)
        introduce(self._link, heartbeat_ms=-1)

    def run(self) -> WorkerResult:
        """Publish until the end of the schedule."""
        _sleep_exactly()
        link = self._link
        assert link is not None
        link.setblocking(False)
        try:
            return self._publish(link)
        finally:
            self.counters.note_done(self.slot)
            link.close()

    def _publish(self, link: socket.socket) -> WorkerResult:
        step_ns = NS_PER_S // self.rate
        padding = b"x" * (self.size - 8)
        begin_ns = time.monotonic_ns() + step_ns
        published = requests = answered = 0
        while published < self.count:
            due = (
                min((time.monotonic_ns() - begin_ns) // step_ns + 1, self.count, published + _MOST_AT_ONCE) - published
            )
            if due <= 0:
                wait_ns = begin_ns + published * step_ns - time.monotonic_ns()
                if wait_ns > 0:
                    time.sleep(wait_ns / NS_PER_S)
                continue
            stamps = range(begin_ns + published * step_ns, begin_ns + (published + due) * step_ns, step_ns)
            _send(link, self._request([stamp.to_bytes(8, "big") + padding for stamp in stamps]))
            published += due
            requests += 1
            self.counters.note_published(self.slot, published)
            answered += _take_answers(link)
        link.setblocking(True)
        link.settimeout(30)
        receive(link, len(OK) * requests - answered)
        return WorkerResult(published, time.monotonic_ns())

    def _request(self, bodies: list[bytes]) -> bytes:
        return encode_publish(self.topic, bodies[0]) if len(bodies) == 1 else encode_publish_many(self.topic, bodies)


def _sleep_exactly() -> None:
    """Set the timer slack of this process to 1 ns on Linux, so sleeps are not rounded up."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def _send(link: socket.socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[link.send(rest) :]
        except BlockingIOError:
            select.select([], [link], [], 1.0)


def _take_answers(link: socket.socket) -> int:
    """Read available answers without waiting; return the number of bytes."""
    try:
        data = link.recv(_RECEIVE_SIZE)
    except BlockingIOError:
        return 0
    if not data:
        raise BenchFailed("the broker closed the connection")
    if data[4:8] == b"\x00\x00\x00\x01":
        raise BenchFailed(f"the broker answered {data[8:].decode(errors='replace')}")
    return len(data)


@dataclass
class DeferredPublisher:
    """Publishes with DPUB, up to 50 commands at a time; each message contains its due time."""

    address: str
    topics: Sequence[str]
    size: int
    count: int
    earliest_ms: int
    latest_ms: int
    counters: SharedCounters
    slot: int = 0
    _link: socket.socket | None = None

    def prepare(self) -> None:
        """Connect."""
        self._link = connect(self.address)
        introduce(self._link, heartbeat_ms=-1)

    def run(self) -> WorkerResult:
        """Publish to the topics in turn, with due times evenly distributed between the earliest and the latest."""
        link = self._link
        assert link is not None
        link.settimeout(60)
        begin_ns = time.monotonic_ns()
        padding = b"x" * (self.size - 8)
        published = 0
        while published < self.count:
            burst = bytearray()
            last = min(published + 50, self.count)
            for index in range(published, last):
                due_ms = self.earliest_ms + (self.latest_ms - self.earliest_ms) * index // self.count
                now_ns = time.monotonic_ns()
                delay_ms = max(due_ms - (now_ns - begin_ns) // NS_PER_MS, 1)
                body = (now_ns + delay_ms * NS_PER_MS).to_bytes(8, "big") + padding
                append_sized(burst, publish_deferred_line(self.topics[index % len(self.topics)], delay_ms), body)
            link.sendall(burst)
            receive(link, len(OK) * (last - published))
            published = last
            self.counters.note_published(self.slot, published)
        self.counters.note_done(self.slot)
        link.close()
        return WorkerResult(published, time.monotonic_ns())


def split_evenly(total: int, parts: int) -> list[int]:
    """Divide ``total`` into ``parts`` integers that differ by at most one."""
    return [total // parts + (1 if index < total % parts else 0) for index in range(parts)]


def closed_loops(
    address: str,
    make_protocol: Callable[[int], PublishProtocol],
    connections: int,
    processes: int,
    per_request: int,
    count: int,
    seconds: float,
) -> list[ClosedLoop]:
    """Return workers with ``connections`` in total, in at most ``processes`` processes."""
    processes = min(processes, connections)
    workers = []
    first = 0
    for share, part in zip(split_evenly(connections, processes), split_evenly(count, processes), strict=True):
        protocols = [make_protocol(index) for index in range(first, first + share)]
        workers.append(ClosedLoop(address, protocols, per_request, part, seconds))
        first += share
    return workers
