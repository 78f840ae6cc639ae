"""Consume with a handler: finished when it returns, requeued when it raises. Stops gracefully on SIGTERM and Ctrl-C."""

import asyncio
import os
import signal

from nsqx import Consumer, Message

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")


async def handle(message: Message) -> None:
    print(f"attempt {message.attempts}: {message.body.decode()}", flush=True)
    if message.body == b"order 2" and message.attempts == 1:
        raise ValueError("cannot do that one yet")


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
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(consumer.stop()))
    await consumer.run()
    print(consumer.stats)


asyncio.run(main())
