"""nsqx on asyncio, with uvloop."""

import asyncio

import uvloop
from work import BATCH, BATCHES, MAX_IN_FLIGHT, WINDOW, address, body, count, finish, start, task, topic, variant

from nsqx import Consumer, Producer


async def publish() -> None:
    async with Producer(address, batching=variant == "batching") as producer:
        start()
        for _ in range(count // WINDOW):
            await asyncio.gather(*[producer.publish(topic, body) for _ in range(WINDOW)])
        finish()


async def publish_many() -> None:
    batch = [body] * BATCH
    async with Producer(address) as producer:
        start()
        for _ in range(count // BATCH // BATCHES):
            await asyncio.gather(*[producer.publish_many(topic, batch) for _ in range(BATCHES)])
        finish()


async def consume() -> None:
    left = count
    done = asyncio.Event()

    def handle(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async def handle_async(_: object) -> None:
        handle(_)

    handlers = {"": handle, "coroutine": handle_async}
    options = {"nsqd_tcp_addresses": address, "max_in_flight": MAX_IN_FLIGHT}
    consumer = Consumer(topic, "ch", handlers.get(variant), **options)
    start()
    if variant == "iterate":
        async for message in consumer:
            message.finish()
            left -= 1
            if not left:
                break
    else:
        await consumer.start()
        await done.wait()
    finish()
    await consumer.stop()


uvloop.run({"publish": publish, "publish_many": publish_many, "consume": consume}[task]())
