"""A scripted nsqd, for answers that a real nsqd gives rarely, late or never."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from nsqx.wire import byteops, frames
from nsqx.wire.commands import BODY, FINISH, LINE, NEED_DATA, SIZE, CommandReader
from proxy import wait_for_accepted_connections

WITH_BODY = {b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB", b"XPUB"}


class Conversation:
    """One client's connection: commands in, frames out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._commands = CommandReader()
        self.identify: Any = None

    async def command(self) -> tuple[bytes, ...]:
        """Return the words of the next command, and its body if it has one; raise EOFError at the end."""
        words: tuple[bytes, ...] = ()
        while True:
            event = self._commands.next()
            if event == NEED_DATA:
                data = await self._reader.read(65536)
                if not data:
                    raise EOFError
                self._commands.feed(data)
            elif event == FINISH:
                return (b"FIN", byteops.id_text(self._commands.id_number))
            elif event == LINE:
                words = tuple(self._commands.words)
                if words[0] not in WITH_BODY:
                    return words
                self._commands.expect_body()
            elif event == SIZE:
                self._commands.accept_body()
            elif event == BODY:
                return (*words, self._commands.take_body())

    async def greet(self, **terms: Any) -> None:
        """Read the magic and IDENTIFY, and answer with ``terms``."""
        assert await self._reader.readexactly(4) == b"  V2"
        words = await self.command()
        assert words[0] == b"IDENTIFY"
        self.identify = json.loads(words[1])
        self.respond(json.dumps({"max_rdy_count": 2500, "version": "1.3.0", "msg_timeout": 60000, **terms}).encode())

    def respond(self, data: bytes = b"OK") -> None:
        self.send(frames.encode_frame(frames.RESPONSE, data))

    def refuse(self, text: bytes) -> None:
        self.send(frames.encode_frame(frames.ERROR, text))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def reset(self) -> None:
        """Close the connection with a reset."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()


@asynccontextmanager
async def scripted_nsqd(script: Callable[[Conversation], Awaitable[None]]) -> AsyncIterator[str]:
    """Run ``script`` for every connection; yield the address. An exception in the script fails the test."""
    failures: list[BaseException] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(Conversation(reader, writer))
        except (EOFError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await wait_for_accepted_connections()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failures:
        raise failures[0]
