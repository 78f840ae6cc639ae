"""Publish one message, several at once, and one with a delay."""

import asyncio
import os

from nsqx import Producer, PublishFailed

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")


async def main() -> None:
    async with Producer(NSQD) as producer:
        await producer.publish("orders", b"order 1")
        await producer.publish_many("orders", [b"order 2", b"order 3"])
        await producer.publish_deferred("orders", b"order 4", "100ms")
        try:
            await producer.publish("orders", bytes(2 * 1024 * 1024))
        except PublishFailed as error:
            print(f"refused: {error}")
    print("published 4 orders")


asyncio.run(main())
