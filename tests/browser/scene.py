"""A busy cluster: real daemons, with publishers and consumers in a separate thread.

The browser tests and the screenshots use it. Does not know browsers.
"""

import asyncio
import contextlib
import itertools
import json
import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from daemons import Daemon, Fleet, wait_until
from nsqx import Consumer
from rawclient import RawClient

TICK_S = 0.1

Body = Callable[[int], bytes]


def order(number: int) -> bytes:
    """Return a JSON message, an order of a shop."""
    customer = f"c-{number * 7919 % 5000:04d}"
    items = [{"sku": f"SKU-{(number + step) % 97:03d}", "quantity": 1 + (number + step) % 4} for step in range(2)]
    document = {"order": 9007199254740993 + number, "customer": customer, "paid": number % 3 > 0, "items": items}
    return json.dumps(document).encode()


def reading(number: int) -> bytes:
    """Return a binary message."""
    return bytes((number * step * 37) % 256 for step in range(1, 41)) + b"\xff\x00"


def fail(nsqd: Daemon, topic: str, channel: str, count: int) -> None:
    """Requeue messages of a channel with an attempt limit of 2 until ``count`` more of them are dead letters."""

    def letters() -> int:
        stats = nsqd.channel_stats(f"{topic}.dead", "dead")
        return stats["depth"] if stats else 0

    before = letters()
    with RawClient(nsqd.tcp_address) as consumer:
        consumer.sub(topic, channel)
        for _ in range(2 * count):
            consumer.rdy(1)
            message_id = consumer.read_message().id
            consumer.rdy(0)
            consumer.req(message_id, 0)
    wait_until(lambda: letters() == before + count, "the messages are dead letters")


class Traffic:
    """Publishers and consumers that run until the context is left."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def publish(self, topic: str, per_s: float, body: Body = order, wave_s: float = 0.0) -> None:
        """Publish to the running nsqds in turn; with ``wave_s`` the rate rises and falls with that period."""
        self._start(self._publish(topic, per_s, body, wave_s))

    def consume(self, topic: str, channel: str, per_s: float = math.inf, **options: Any) -> None:
        """Consume at most ``per_s`` messages per second."""
        self._start(self._consume(topic, channel, per_s, options))

    def _start(self, work: Any) -> None:
        async def start() -> None:
            self._tasks.append(asyncio.get_running_loop().create_task(work))

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)

    async def _publish(self, topic: str, per_s: float, body: Body, wave_s: float) -> None:
        owed = 0.0
        numbers = itertools.count()
        for tick in itertools.count():
            swing = 1 + 0.6 * math.sin(2 * math.pi * tick * TICK_S / wave_s) if wave_s else 1.0
            owed += per_s * TICK_S * swing
            bodies = [body(next(numbers)) for _ in range(int(owed))]
            owed -= len(bodies)
            nsqds = [each for each in self._cluster.nsqds if each.running]
            if bodies and nsqds:
                packed = len(bodies).to_bytes(4, "big") + b"".join(
                    len(each).to_bytes(4, "big") + each for each in bodies
                )
                target = f"/mpub?binary=true&topic={topic}"
                with contextlib.suppress(OSError):  # the nsqd may be stopping
                    await asyncio.to_thread(nsqds[tick % len(nsqds)].request, "POST", target, packed)
            await asyncio.sleep(TICK_S)

    async def _consume(self, topic: str, channel: str, per_s: float, options: dict[str, Any]) -> None:
        lookupds = [self._cluster.lookupd.http_address]
        wanted = {"lookupd_poll_interval": 0.5, "max_in_flight": 20, **options}
        async with Consumer(topic, channel, lookupd_http_addresses=lookupds, **wanted) as consumer:
            async for message in consumer:
                try:
                    await asyncio.sleep(0 if per_s == math.inf else 1 / per_s)
                finally:  # a stopping consumer waits for its messages
                    message.finish()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Cluster:
    """One nsqlookupd, several nsqds, and nsqadmins on request."""

    def __init__(self, fleet: Fleet, nsqd_count: int = 2, nsqd_flags: tuple[str, ...] = ()) -> None:
        self._fleet = fleet
        self.lookupd = fleet.nsqlookupd("nsqx")
        self.nsqds = [self.start_nsqd(*nsqd_flags) for _ in range(nsqd_count)]

    def start_nsqd(self, *flags: str, **options: Any) -> Daemon:
        lookup = f"--lookupd-tcp-address={self.lookupd.tcp_address}"
        latency = "--e2e-processing-latency-percentile=0.99,0.95,0.5"
        return self._fleet.nsqd("nsqx", lookup, latency, *flags, **options)

    def admin(self, *flags: str) -> Daemon:
        where = f"--lookupd-http-address={self.lookupd.http_address}"
        return self._fleet.nsqadmin("nsqx", where, "--poll-interval=250ms", "--history-window=5m", *flags)

    def make_topic(self, topic: str, *channels: str, messages: int = 0) -> None:
        """Create a topic on all nodes with ``messages`` messages on each; wait until nsqlookupd knows it."""
        for nsqd in self.nsqds:
            nsqd.post("/topic/create", topic=topic)
            for channel in channels:
                nsqd.post("/channel/create", topic=topic, channel=channel)
            if messages:
                nsqd.post("/mpub", b"\n".join(order(number) for number in range(messages)), topic=topic)
        wait_until(lambda: len(self._producers(topic)) == len(self.nsqds), "nsqlookupd knows every node")

    def _producers(self, topic: str) -> list[Any]:
        producers: list[Any] = self.lookupd.request("GET", f"/lookup?topic={topic}").json().get("producers", [])
        return producers
