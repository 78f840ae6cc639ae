"""pynsq on Tornado."""

import asyncio

import nsq
import uvloop
from work import BATCH, BATCHES, MAX_IN_FLIGHT, WINDOW, address, body, count, finish, start, task, topic


class ReadyWriter(nsq.Writer):
    """A writer with an event that is set when it is connected."""

    def __init__(self, *positional, **named):
        self.ready = asyncio.Event()
        super().__init__(*positional, **named)

    def _on_connection_ready(self, conn, **named):
        super()._on_connection_ready(conn, **named)
        self.ready.set()


async def publish() -> None:
    writer = ReadyWriter([address])
    await writer.ready.wait()
    done = asyncio.Event()
    begun, answered = 0, 0

    def on_answer(_conn, data):
        nonlocal begun, answered
        assert data == b"OK", data
        answered += 1
        if begun < count:
            begun += 1
            writer.pub(topic, body, callback=on_answer)
        elif answered == count:
            done.set()

    start()
    begun = WINDOW
    for _ in range(WINDOW):
        writer.pub(topic, body, callback=on_answer)
    await done.wait()
    finish()


async def publish_many() -> None:
    writer = ReadyWriter([address])
    await writer.ready.wait()
    batch = [body] * BATCH
    start()
    for _ in range(count // BATCH // BATCHES):
        answers = [asyncio.get_running_loop().create_future() for _ in range(BATCHES)]
        for answer in answers:
            writer.mpub(topic, batch, callback=lambda _conn, data, answer=answer: answer.set_result(data))
        assert await asyncio.gather(*answers) == [b"OK"] * BATCHES
    finish()


async def consume() -> None:
    left = count
    done = asyncio.Event()

    def handle(_message):
        nonlocal left
        left -= 1
        if not left:
            done.set()
        return True

    start()
    reader = nsq.Reader(topic, "ch", message_handler=handle, nsqd_tcp_addresses=[address], max_in_flight=MAX_IN_FLIGHT)
    await done.wait()
    finish()
    reader.close()


uvloop.run({"publish": publish, "publish_many": publish_many, "consume": consume}[task]())
