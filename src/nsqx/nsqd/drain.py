"""Draining: nsqd accepts no more publishes, and its consumers finish the messages that it has.

A drain begins and ends over HTTP (see ``drain_api``), and a restart ends it. While it lasts:

- Publishes get the error "draining", so that producers go to another nsqd. Nothing else is refused: consumers connect,
  requeued and deferred messages are delivered when they are due, and failed ones still go to dead-letter topics.
- nsqd is not registered with nsqlookupd, unless the operator wants that. Connected consumers stay.
- Once a second the messages are counted. When none is left, nsqd can be removed, and the log says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.net.steps import Steps
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.topic import Topic

_CHECK_S = 1.0


class Remainder(NamedTuple):
    """The messages that a topic, or a channel of it, still has."""

    topic: str
    channel: str  # empty: no channel has them
    depth: int
    in_flight: int
    deferred: int
    consumers: int

    @property
    def total(self) -> int:
        """All messages of this entry."""
        return self.depth + self.in_flight + self.deferred


class BrokerDrain:
    """Whether this nsqd is draining, and since when."""

    def __init__(self, broker: Broker) -> None:
        self.is_active = False
        self.keeps_registered = False
        self.start_s = 0  # seconds since 1970; 0 if not draining
        self._broker = broker
        self._watch: asyncio.Task[None] | None = None

    def begin(self, *, keeps_registered: bool) -> None:
        """Refuse publishes from now on. If nsqd drains already, only note whether it stays registered."""
        broker = self._broker
        if not self.is_active:
            self.is_active = True
            self.start_s = broker.clock.wall_ns() // NS_PER_S
            broker.log.info("DRAIN: publishes are refused from now on")
            for topic in broker.topics.values():
                topic.refuse_publishes(True)
            self._watch = asyncio.get_running_loop().create_task(self._watch_messages())
        self.keeps_registered = keeps_registered
        broker.update_registrations()

    def end(self) -> None:
        """Accept publishes again, and register with nsqlookupd; no-op if nsqd is not draining."""
        if not self.is_active:
            return
        self.stop()
        self.is_active = self.keeps_registered = False
        self.start_s = 0
        self._broker.log.info("DRAIN: cancelled, publishes are accepted")
        for topic in self._broker.topics.values():
            topic.refuse_publishes(False)
        self._broker.update_registrations()

    def stop(self) -> None:
        """Stop counting, at exit."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def remainders(self) -> list[Remainder]:
        """Return the entries with messages, in steps that do not hold up clients."""
        return await self._broker.long_jobs.run(self._remainder_steps())

    def _remainder_steps(self) -> Steps[list[Remainder]]:
        found = []
        for topic in list(self._broker.topics.values()):
            for remainder in _remainders_of(topic):
                if remainder.total:
                    found.append(remainder)
                yield
            yield
        return found

    async def _watch_messages(self) -> None:
        while True:
            if not await self.remainders():
                break
            await asyncio.sleep(_CHECK_S)
        self._broker.log.info("DRAIN: no messages are left, this nsqd can be removed")


def _remainders_of(topic: Topic) -> list[Remainder]:
    unclaimed = Remainder(topic.name, "", topic.depth, 0, 0, 0)
    return [
        unclaimed,
        *(
            Remainder(
                topic.name,
                channel.name,
                channel.depth,
                channel.in_flight_count,
                channel.deferred_count,
                len(channel.clients),
            )
            for channel in topic.channels.values()
        ),
    ]
