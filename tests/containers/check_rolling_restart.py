"""Three nsqds in containers are drained and replaced one after the other, under load: nothing is lost.

The producer has the addresses of all three, the consumer finds them with nsqlookupd, and neither gets a notice
of a restart.
"""

import asyncio
import contextlib
import json
from collections import Counter

import pytest

from containers import WAIT_S, Container, new_host, new_volume, nsqd, nsqlookupd, removed, require_podman
from daemons import wait_until
from nsqx import Consumer, Message, Producer

pytestmark = pytest.mark.timeout(600)

TOPIC, CHANNEL = "orders", "billing"
PUBLISHERS = 8
DRAIN = ("nsqx", "drain", "--wait", "--timeout=60s")


class Load:
    """Publishers that publish without a pause, and a consumer that finishes everything."""

    def __init__(self, nsqds: list[Container], lookupd: Container) -> None:
        self.published: set[int] = set()
        self.consumed: Counter[int] = Counter()
        self.from_node: Counter[str] = Counter()
        self._next = 0
        self._arrived = asyncio.Event()
        self._stopping = False
        self._producer = Producer([each.tcp_address for each in nsqds], publish_timeout=60)
        self._consumer = Consumer(
            TOPIC,
            CHANNEL,
            lookupd_http_addresses=lookupd.http_address,
            lookupd_poll_interval=1,
            max_in_flight=300,
        )

    async def run(self, restarts: asyncio.Task[None]) -> None:
        """Run until all restarts are done and every message has arrived."""
        async with self._producer, self._consumer:
            tasks = [asyncio.create_task(self._publish()) for _ in range(PUBLISHERS)]
            consuming = asyncio.create_task(self._consume())
            try:
                await restarts
                self._stopping = True
                await asyncio.gather(*tasks)
                async with asyncio.timeout(60):
                    while self.published - self.consumed.keys():
                        self._arrived.clear()
                        await self._arrived.wait()
            finally:
                for task in (*tasks, consuming):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    async def _publish(self) -> None:
        while not self._stopping:
            number = self._next
            self._next += 1
            await self._producer.publish(TOPIC, b"%d" % number)
            self.published.add(number)
            await asyncio.sleep(0.001)

    async def _consume(self) -> None:
        async for message in self._consumer:
            self._take(message)

    def _take(self, message: Message) -> None:
        self.consumed[int(message.body)] += 1
        message.finish()
        self._arrived.set()


async def replace(container: Container) -> None:
    """Drain an nsqd, stop it, and start a new container on its volume."""
    address = f"--nsqd-http-address={container.http_address}"
    await asyncio.to_thread(container.execute, *DRAIN, address)
    assert await asyncio.to_thread(container.stop) == 0
    await asyncio.to_thread(container.remove)
    await asyncio.to_thread(container.run)


async def restart_all(nsqds: list[Container], load: Load) -> None:
    """Replace all nsqds one after the other; between two, wait until consumption has gone on."""
    for container in nsqds:
        await until_consumed(load, 500)
        await replace(container)
        assert container.get("/ready")[0] == 200
        await until_topic_flows(container)
    await until_consumed(load, 500)


async def until_consumed(load: Load, count: int) -> None:
    """Wait until ``count`` more messages were consumed."""
    goal = len(load.consumed) + count
    await asyncio.to_thread(wait_until, lambda: len(load.consumed) >= goal, "messages are consumed", WAIT_S)


async def until_topic_flows(container: Container) -> None:
    """Wait until the consumer has found the new nsqd: it has a client and no backlog."""
    target = f"/stats?format=json&include_clients=false&topic={TOPIC}"

    def is_consumed() -> bool:
        topics = json.loads(container.get(target)[1] or b"{}").get("topics") or ()
        return any(channel["client_count"] for topic in topics for channel in topic["channels"])

    await asyncio.to_thread(wait_until, is_consumed, "the consumer has found the new nsqd", WAIT_S)


@pytest.mark.parametrize("store", ["classic", "log"])
async def test_a_rolling_restart_under_load_loses_nothing(store: str) -> None:
    require_podman()
    lookupd = nsqlookupd(new_host())
    with contextlib.ExitStack() as stack:
        nsqds = []
        for _ in range(3):
            volume = stack.enter_context(new_volume())
            flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
            nsqds.append(nsqd(new_host(), f"--store={store}", flag, volume=volume))
        stack.enter_context(removed(lookupd, *nsqds))
        for container in (lookupd, *nsqds):
            container.run()
            if container is not lookupd:
                container.get(f"/topic/create?topic={TOPIC}", "POST")
                container.get(f"/channel/create?topic={TOPIC}&channel={CHANNEL}", "POST")
        load = Load(nsqds, lookupd)
        await load.run(asyncio.create_task(restart_all(nsqds, load)))
    lost = load.published - load.consumed.keys()
    repeated = sum(load.consumed.values()) - len(load.consumed)
    print(f"\n{store}: {len(load.published):,} published, {len(lost)} lost, {repeated} delivered twice")
    assert not lost
