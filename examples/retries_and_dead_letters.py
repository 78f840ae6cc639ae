"""Retries and dead letters: short failures are tried again here, longer ones by nsqd, hopeless ones go to a topic.

`python retries_and_dead_letters.py redrive` publishes the dead letters to their topic again.
"""

import asyncio
import os
import sys
from dataclasses import dataclass

from nsqx import App, Consumer, GiveUp, Message, Producer
from nsqx.middlewares import limit_time, retry

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")
KNOWN = set(os.environ.get("CUSTOMERS", "ada").split(","))

app = App(NSQD, default_requeue_delay=os.environ.get("DELAY", "30s"), max_attempts=3, middlewares=[limit_time("10s")])


class Unavailable(Exception):
    pass


@dataclass
class Order:
    customer: str
    fails: int = 0  # how often the shop is unavailable, for this example


@app.subscriber(
    "orders",
    "shipping",
    concurrency=10,
    dead_letter_topic="orders.dead",
    middlewares=[retry(2, "10ms", on=Unavailable)],
)
async def ship(order: Order, message: Message) -> None:
    print(f"{order.customer}: attempt {message.attempts}", flush=True)
    if order.customer not in KNOWN:
        # Another attempt would fail too.
        raise GiveUp(f"no customer {order.customer}")
    if message.attempts <= order.fails:
        raise Unavailable("the shop does not answer")
    print(f"{order.customer}: shipped", flush=True)


async def redrive() -> None:
    count = 0
    async with (
        Producer(NSQD) as producer,
        Consumer("orders.dead", "redrive", nsqd_tcp_addresses=NSQD, max_in_flight=100) as letters,
    ):
        while letters.is_connected:
            try:
                async with asyncio.timeout(1):
                    letter = await anext(letters)
            except TimeoutError:
                break
            await producer.publish("orders", letter.body)
            letter.finish()
            count += 1
    print(f"redrove {count}")


asyncio.run(redrive() if "redrive" in sys.argv else app.run())
