"""Find nsqds with nsqlookupd: consume from every nsqd that has the topic, including ones that start later."""

import asyncio
import os

from nsqx import Consumer, Message, Producer

LOOKUPD = os.environ.get("LOOKUPD", "127.0.0.1:4161")


async def main() -> None:
    found = asyncio.Event()

    def handle(message: Message) -> None:
        print(f"{message.body.decode()} from {message.nsqd_address}")
        found.set()

    async with (
        Producer(lookupd_http_addresses=LOOKUPD) as producer,
        Consumer("orders", "billing", handle, lookupd_http_addresses=LOOKUPD, lookupd_poll_interval="1s"),
    ):
        await producer.publish("orders", b"order 1")
        await found.wait()


asyncio.run(main())
