"""Dead letters: after max_attempts a message is published to another topic instead of being lost."""

import asyncio
import os

from nsqx import Consumer, Message, Producer

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")


def handle(message: Message) -> None:
    raise ValueError(f"no customer for {message.body.decode()}")


async def main() -> None:
    is_stored = asyncio.Event()

    async with Producer(NSQD) as producer:

        async def publish_dead_letter(message: Message) -> None:
            # If this raises, the message is requeued, so it is never lost.
            await producer.publish("orders.dead", message.body)
            print(f"dead letter after {message.attempts} attempts: {message.body.decode()}: {message.error}")
            is_stored.set()

        consumer = Consumer(
            "orders",
            "shipping",
            handle,
            nsqd_tcp_addresses=NSQD,
            on_give_up=publish_dead_letter,
            max_attempts=3,
            default_requeue_delay="10ms",
            backoff_multiplier="10ms",
        )
        async with consumer:
            await producer.publish("orders", b"impossible order")
            await is_stored.wait()


asyncio.run(main())
