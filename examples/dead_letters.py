"""Keep what cannot be handled: after max_attempts a message goes to another topic instead of being lost."""

import asyncio
import os

from nsqx import Consumer, Message, Producer

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")


def handle(message: Message) -> None:
    raise ValueError(f"{message} is too much for me")


async def main() -> None:
    put_away = asyncio.Event()

    async with Producer(NSQD) as producer:

        async def put_into_dead_letters(message: Message) -> None:
            # If this fails the message is requeued, so it is in one place or the other.
            await producer.publish("orders.dead", message.body)
            print(f"put away after {message.attempts - 1} attempts: {message.body.decode()}")
            put_away.set()

        consumer = Consumer(
            "orders",
            "doomed",
            handle,
            nsqd_tcp_addresses=NSQD,
            on_give_up=put_into_dead_letters,
            max_attempts=3,
            default_requeue_delay="10ms",
            backoff_multiplier="10ms",
        )
        async with consumer:
            await producer.publish("orders", b"impossible order")
            await put_away.wait()


asyncio.run(main())
