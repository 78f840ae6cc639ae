"""Publish many single messages at full speed: start them all, then wait for the answers."""

import asyncio
import os
import time

from nsqx import Producer

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")
COUNT = 20_000


async def publish_all(producer: Producer) -> None:
    started_s = time.perf_counter()
    for _ in range(0, COUNT, 1000):
        await asyncio.gather(*(producer.publish("clicks", b"click") for _ in range(1000)))
    print(f"{COUNT / (time.perf_counter() - started_s):,.0f} messages a second")


async def main() -> None:
    async with Producer(NSQD) as producer:
        await publish_all(producer)
    # Publishes to one topic in one turn of the event loop are sent as one command.
    async with Producer(NSQD, batching=True) as producer:
        await publish_all(producer)


asyncio.run(main())
