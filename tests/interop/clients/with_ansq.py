"""The workload with ansq on asyncio."""

import asyncio

import ansq
from workload import BATCH, LATER, LATER_MS, SINGLES, TOUCHED, Arguments, Tally, wait_for_stdin_end

arguments = Arguments()
OPTIONS = ansq.ConnectionOptions(features=ansq.ConnectionFeatures(**arguments.options))


async def publish():
    writer = await ansq.create_writer(nsqd_tcp_addresses=[arguments.address], connection_options=OPTIONS)
    for body in SINGLES:
        assert (await writer.pub(arguments.topic, body)).is_ok
    assert (await writer.mpub(arguments.topic, *BATCH)).is_ok
    assert (await writer.dpub(arguments.topic, LATER, LATER_MS)).is_ok
    await writer.close()


async def consume():
    tally = Tally()
    reader = await ansq.create_reader(
        arguments.topic, arguments.channel, nsqd_tcp_addresses=[arguments.address], connection_options=OPTIONS
    )
    async for message in reader.messages():
        if tally.must_requeue(message.body, message.attempts):
            await message.req(0)
            continue
        if message.body == TOUCHED:
            await message.touch()
        await message.fin()
        if tally.finish(message.body):
            break
    tally.report()
    await asyncio.to_thread(wait_for_stdin_end)
    await reader.close()


async def main():
    await publish()
    await consume()


asyncio.run(main())
