"""ansq on asyncio, with uvloop."""

import asyncio

import ansq
import uvloop
from work import BATCH, BATCHES, MAX_IN_FLIGHT, WINDOW, address, body, count, finish, start, task, topic


async def publish() -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[address])
    start()
    for _ in range(count // WINDOW):
        await asyncio.gather(*[writer.pub(topic, body) for _ in range(WINDOW)])
    finish()
    await writer.close()


async def publish_many() -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[address])
    batch = [body] * BATCH
    start()
    for _ in range(count // BATCH // BATCHES):
        await asyncio.gather(*[writer.mpub(topic, *batch) for _ in range(BATCHES)])
    finish()
    await writer.close()


async def consume() -> None:
    left = count
    start()
    reader = await ansq.create_reader(topic, "ch", nsqd_tcp_addresses=[address])
    for connection in reader.connections:  # ansq has no option for RDY, which would be 1
        await connection.rdy(MAX_IN_FLIGHT)
    async for message in reader.messages():
        await message.fin()
        left -= 1
        if not left:
            break
    finish()
    await reader.close()


uvloop.run({"publish": publish, "publish_many": publish_many, "consume": consume}[task]())
