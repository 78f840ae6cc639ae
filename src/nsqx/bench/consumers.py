"""Workers that consume, and one that only holds connections open."""

from __future__ import annotations

import select
import socket
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.bench.failure import BenchFailed
from nsqx.bench.protocols import ConsumeDialect, greeted
from nsqx.bench.worker_processes import Outcome

if TYPE_CHECKING:
    from nsqx.bench.shared_counters import Board

_RECEIVE_SIZE = 262144
# How often a consumer that gets nothing looks at the board.
_LOOK_S = 0.02


@dataclass
class Consumer:
    """Takes and finishes messages on several connections until the board says that all is done."""

    address: str
    dialects: Sequence[ConsumeDialect]
    """One for each connection."""
    seconds: float
    board: Board
    slot: int
    _links: dict[int, socket.socket] = field(default_factory=dict)

    def prepare(self) -> None:
        """Connect and subscribe."""
        self._links = {link.fileno(): link for link in greeted(self.address, self.dialects)}

    def run(self) -> Outcome:
        """Consume."""
        dialects = dict(zip(self._links, self.dialects, strict=True))
        poll = select.epoll()
        for number, dialect in dialects.items():
            self._links[number].sendall(dialect.begin())
            poll.register(number, select.EPOLLIN)
        ended_ns = time.monotonic_ns()
        deadline_ns = ended_ns + int(self.seconds * 1e9)
        seen = dict.fromkeys(dialects, 0)
        received = 0
        while not self.board.is_over() and time.monotonic_ns() < deadline_ns:
            for number, _ in poll.poll(_LOOK_S):
                data = self._links[number].recv(_RECEIVE_SIZE)
                if not data:
                    raise BenchFailed("the broker closed the connection")
                dialect = dialects[number]
                now_ns = time.monotonic_ns()
                answers = dialect.take(data, now_ns)
                if answers:
                    self._links[number].sendall(answers)
                if dialect.count != seen[number]:
                    received += dialect.count - seen[number]
                    seen[number] = dialect.count
                    ended_ns = now_ns
            self.board.note_received(self.slot, received)
        poll.close()
        for link in self._links.values():
            link.close()
        samples = array("q")
        for dialect in self.dialects:
            samples += dialect.lateness_ns
        return Outcome(received, ended_ns, samples)


@dataclass
class Subscriber:
    """Subscribed connections that do nothing, for as long as it is told."""

    address: str
    dialects: Sequence[ConsumeDialect]
    seconds: float
    _links: list[socket.socket] = field(default_factory=list)

    def prepare(self) -> None:
        """Connect and subscribe."""
        self._links = greeted(self.address, self.dialects)

    def run(self) -> Outcome:
        """Hold them."""
        time.sleep(self.seconds)
        for link in self._links:
            link.close()
        return Outcome(len(self._links), time.monotonic_ns())
