"""Selection of one of several hosts for a request: failed hosts are left out for a while, fast hosts may get more.

Contains no I/O; the clock and the random generator are parameters.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

FIRST_RETRY_S = 30.0
MAX_RETRY_S = 900.0

EPSILON = 0.3
EPSILON_DECAY = 0.9
MIN_EPSILON = 0.01
HISTORY_S = 300.0
BUCKETS = 120
_BUCKET_S = HISTORY_S / BUCKETS


class Host:
    """The state of one host."""

    __slots__ = ("address", "is_dead", "retry_at_s", "retry_delay_s", "times")

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_dead = False
        self.retry_delay_s = FIRST_RETRY_S
        self.retry_at_s = 0.0
        self.times = ResponseTimes()

    def may_be_tried(self, now_s: float) -> bool:
        """Return True if the host is alive, or its retry delay is over."""
        return not self.is_dead or self.retry_at_s < now_s

    def tried(self, now_s: float) -> None:
        """Note a request to the host; if it is dead, double its retry delay."""
        if self.is_dead:
            self.retry_delay_s = min(self.retry_delay_s * 2, MAX_RETRY_S)
            self.retry_at_s = now_s + self.retry_delay_s

    def failed(self, now_s: float) -> None:
        """Mark the host as dead after a failed request."""
        if not self.is_dead:
            self.is_dead = True
            self.retry_delay_s = FIRST_RETRY_S
            self.retry_at_s = now_s + self.retry_delay_s


class ResponseTimes:
    """The response times of a host in the last five minutes; recent ones have a higher weight."""

    __slots__ = ("_bucket", "_counts", "_sums_ms")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self._sums_ms = [0.0] * BUCKETS
        self._bucket = 0

    def add(self, duration_s: float, now_s: float) -> None:
        """Add the duration of a request."""
        self._advance(now_s)
        index = self._bucket % BUCKETS
        self._counts[index] += 1
        self._sums_ms[index] += duration_s * 1000

    def weighted_ms(self, now_s: float) -> float:
        """Return the weighted sum over the history; 0 if there are no requests."""
        self._advance(now_s)
        value = last_ms = 0.0
        for age in range(1, BUCKETS + 1):
            index = (self._bucket + age) % BUCKETS
            if self._counts[index]:
                last_ms = self._sums_ms[index] / self._counts[index]
            value += last_ms * age / BUCKETS
        return value

    def _advance(self, now_s: float) -> None:
        """Remove durations that are too old."""
        bucket = int(now_s / _BUCKET_S)
        for number in range(max(self._bucket + 1, bucket - BUCKETS + 1), bucket + 1):
            self._counts[number % BUCKETS] = 0
            self._sums_ms[number % BUCKETS] = 0.0
        self._bucket = max(self._bucket, bucket)


class HostPool:
    """Selects hosts in turn and skips dead ones; if all are dead, all are marked alive again."""

    def __init__(self, addresses: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._hosts = [Host(address) for address in addresses]
        self._clock = clock
        self._next = 0

    def choose(self) -> Choice:
        """Select the host for the next request."""
        return Choice(self._in_turn(), self._clock)

    def _in_turn(self) -> Host:
        now_s = self._clock()
        count = len(self._hosts)
        for step in range(count):
            index = (self._next + step) % count
            host = self._hosts[index]
            if host.may_be_tried(now_s):
                host.tried(now_s)
                self._next = index + 1
                return host
        for host in self._hosts:
            host.is_dead = False
        self._next = 1
        return self._hosts[0]


class EpsilonGreedyPool(HostPool):
    """Selects mostly fast hosts, and sometimes any host, to measure it."""

    def __init__(
        self,
        addresses: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(addresses, clock)
        self._rng = rng or random.Random()
        self._epsilon = EPSILON

    def choose(self) -> Choice:
        """Select the host for the next request."""
        if self._rng.random() < self._epsilon:
            self._epsilon = max(self._epsilon * EPSILON_DECAY, MIN_EPSILON)
            return Choice(self._in_turn(), self._clock)
        now_s = self._clock()
        known = [host for host in self._hosts if host.may_be_tried(now_s) and host.times.weighted_ms(now_s) > 0]
        if not known:
            return Choice(self._in_turn(), self._clock)
        host = self._rng.choices(known, [1 / host.times.weighted_ms(now_s) for host in known])[0]
        host.tried(now_s)
        return Choice(host, self._clock)


class Choice:
    """A selected host; the caller must report the result of the request."""

    __slots__ = ("_clock", "_host", "_started_s", "address")

    def __init__(self, host: Host, clock: Callable[[], float]) -> None:
        self.address = host.address
        self._host = host
        self._clock = clock
        self._started_s = clock()

    def succeeded(self) -> None:
        """Report a successful request."""
        now_s = self._clock()
        self._host.is_dead = False
        self._host.times.add(now_s - self._started_s, now_s)

    def failed(self) -> None:
        """Report a failed request."""
        self._host.failed(self._clock())


class RoundRobinHosts:
    """Selects hosts in turn, also dead ones. Starts with the second host, like the Go utilities."""

    def __init__(self, addresses: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._hosts = [Host(address) for address in addresses]
        self._clock = clock
        self._count = 0

    def choose(self) -> Choice:
        """Select the host for the next request."""
        self._count += 1
        return Choice(self._hosts[self._count % len(self._hosts)], self._clock)


Pool = HostPool | RoundRobinHosts


def make_pool(mode: str, addresses: Sequence[str]) -> Pool:
    """Return the pool for ``mode``; unknown modes mean round-robin."""
    if mode == "hostpool":
        return HostPool(addresses)
    return EpsilonGreedyPool(addresses) if mode == "epsilon-greedy" else RoundRobinHosts(addresses)
