"""A TCP proxy whose connections can be cut, for tests of clients on a failing network."""

import asyncio
import random
from types import TracebackType
from typing import Self


async def wait_for_accepted_connections() -> None:
    """After a server was closed, wait for the handlers of connections that it had accepted."""
    for _ in range(10):
        await asyncio.sleep(0)


class Proxy:
    """Forwards bytes to ``target`` and counts the connections."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.connection_count = 0
        self.refuses = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.refuses = True
        await wait_for_accepted_connections()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()
        await asyncio.sleep(0)

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset every connection."""
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()

    async def keep_cutting(self, rng: random.Random, longest_s: float) -> None:
        """Cut repeatedly, at random intervals."""
        while True:
            await asyncio.sleep(rng.random() * longest_s)
            self.cut()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        self.connection_count += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.append(far_writer)
        if writer.transport.is_closing():  # cut while connecting
            far_writer.transport.abort()
            return
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer), return_exceptions=True)

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
