"""Consume with a handler: a message is finished when it returns and requeued when it raises.

SIGTERM and Ctrl-C stop the consumer after the handlers have finished.
"""

import asyncio
import os

from nsqx import Consumer, Message

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")


async def handle(message: Message) -> None:
    print(f"attempt {message.attempts}: {message.body.decode()}", flush=True)
    if message.body == b"order 2" and message.attempts == 1:
        raise ValueError("order 2 is not ready yet")


async def main() -> None:
    consumer = Consumer(
        "orders",
        "billing",
        handle,
        nsqd_tcp_addresses=NSQD,
        max_in_flight=50,
        default_requeue_delay="50ms",
        backoff_multiplier="50ms",
    )
    await consumer.run()
    print(consumer.stats)


asyncio.run(main())
