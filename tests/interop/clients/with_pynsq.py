"""The workload with pynsq on Tornado."""

import asyncio

import nsq
from workload import BATCH, LATER, LATER_MS, MAX_IN_FLIGHT, SINGLES, TOUCHED, Arguments, Tally, wait_for_stdin_end

arguments = Arguments()
TLS_OPTIONS = {"ca": "ca_certs", "cert": "certfile", "key": "keyfile"}
arguments.options["tls_options"] = {TLS_OPTIONS[name]: path for name, path in arguments.tls_files.items()}


class ReadyWriter(nsq.Writer):
    """A writer with an event that is set when it is connected."""

    def __init__(self, *positional, **named):
        self.ready = asyncio.Event()
        super().__init__(*positional, **named)

    def _on_connection_ready(self, conn, **named):
        super()._on_connection_ready(conn, **named)
        self.ready.set()


async def answered(publish, *words):
    answer = asyncio.get_running_loop().create_future()
    publish(arguments.topic, *words, callback=lambda _, data: answer.set_result(data))
    assert await answer == b"OK", answer


async def main():
    writer = ReadyWriter([arguments.address], **arguments.options)
    await writer.ready.wait()
    for body in SINGLES:
        await answered(writer.pub, body)
    await answered(writer.mpub, BATCH)
    await answered(writer.dpub, LATER_MS, LATER)
    await consume()


async def consume():
    tally, done = Tally(), asyncio.Event()

    def handle(message):
        message.enable_async()
        if tally.must_requeue(message.body, message.attempts):
            message.requeue(delay=0, backoff=False)
            return
        if message.body == TOUCHED:
            message.touch()
        message.finish()
        if tally.finish(message.body):
            done.set()

    reader = nsq.Reader(
        arguments.topic,
        arguments.channel,
        message_handler=handle,
        nsqd_tcp_addresses=[arguments.address],
        max_in_flight=MAX_IN_FLIGHT,
        **arguments.options,
    )
    await done.wait()
    tally.report()
    await asyncio.to_thread(wait_for_stdin_end)
    reader.close()


asyncio.run(main())
