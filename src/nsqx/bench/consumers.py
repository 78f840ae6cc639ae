"""Workers that consume, and a worker that only keeps connections open."""

from __future__ import annotations

import select
import socket
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.bench.failure import BenchFailed
from nsqx.bench.protocols import ConsumeProtocol, greeted
from nsqx.bench.worker_processes import WorkerResult
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.bench.shared_counters import SharedCounters

_RECEIVE_SIZE = 262144
# How often a consumer without messages reads the shared counters.
_LOOK_S = 0.02


@dataclass
class BenchConsumer:
    """Receives and finishes messages on several connections until the shared counters show that all are received."""

    address: str
    protocols: Sequence[ConsumeProtocol]
    """One for each connection."""
    seconds: float
    counters: SharedCounters
    slot: int
    _links: dict[int, socket.socket] = field(default_factory=dict)

    def prepare(self) -> None:
        """Connect and subscribe."""
        self._links = {link.fileno(): link for link in greeted(self.address, self.protocols)}

    def run(self) -> WorkerResult:
        """Consume; return the number of messages and, if timed, how late each was."""
        protocols = dict(zip(self._links, self.protocols, strict=True))
        poll = select.epoll()
        for number, protocol in protocols.items():
            self._links[number].sendall(protocol.begin())
            poll.register(number, select.EPOLLIN)
        ended_ns = time.monotonic_ns()
        deadline_ns = ended_ns + int(self.seconds * NS_PER_S)
        seen = dict.fromkeys(protocols, 0)
        received = 0
        while not self.counters.is_over() and time.monotonic_ns() < deadline_ns:
            for number, _ in poll.poll(_LOOK_S):
                data = self._links[number].recv(_RECEIVE_SIZE)
                if not data:
                    raise BenchFailed("the broker closed the connection")
                protocol = protocols[number]
                now_ns = time.monotonic_ns()
                answers = protocol.take(data, now_ns)
                if answers:
                    self._links[number].sendall(answers)
                if protocol.count != seen[number]:
                    received += protocol.count - seen[number]
                    seen[number] = protocol.count
                    ended_ns = now_ns
            self.counters.note_received(self.slot, received)
        poll.close()
        for link in self._links.values():
            link.close()
        samples = array("q")
        for protocol in self.protocols:
            samples += protocol.lateness_ns
        return WorkerResult(received, ended_ns, samples)


@dataclass
class Subscriber:
    """Keeps idle subscribed connections open for a given time."""

    address: str
    protocols: Sequence[ConsumeProtocol]
    seconds: float
    _links: list[socket.socket] = field(default_factory=list)

    def prepare(self) -> None:
        """Connect and subscribe."""
        self._links = greeted(self.address, self.protocols)

    def run(self) -> WorkerResult:
        """Keep the connections open."""
        time.sleep(self.seconds)
        for link in self._links:
            link.close()
        return WorkerResult(len(self._links), time.monotonic_ns())
