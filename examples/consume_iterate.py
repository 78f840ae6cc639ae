"""Consume by iterating: take messages one by one and finish each."""

import asyncio
import os

from nsqx import Consumer

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")
COUNT = int(os.environ.get("COUNT", "3"))


async def main() -> None:
    count = 0
    async with Consumer("orders", "audit", nsqd_tcp_addresses=NSQD, max_in_flight=10) as consumer:
        async for message in consumer:
            print(message.body.decode(), flush=True)
            message.finish()
            count += 1
            if count == COUNT:
                break


asyncio.run(main())
