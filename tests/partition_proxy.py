"""A TCP proxy for tests of network partitions: it can cut, blackhole, delay or corrupt connections, and heal.

Owns a listener, its connections and the thread that forwards their bytes. It does not read the bytes.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

_CHUNK_SIZE = 65536
_T = TypeVar("_T")


class Proxy:
    """Listens on ``listen`` (``host:port``, port 0 for any) and forwards bytes to and from ``target``.

    Each mode applies to open and future connections until another mode is set.
    """

    def __init__(self, target: str, listen: str = "127.0.0.1:0") -> None:
        self._target = _split(target)
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._delay_s = 0.0
        self._corruption: Callable[[bytes], bytes] | None = None
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.address = self._do(self._listen(*_split(listen)))
        except BaseException:
            self._stop_thread()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def connection_count(self) -> int:
        """The number of open connections of clients."""
        return len(self._connections)

    def cut(self) -> None:
        """Close every connection and refuse new ones."""
        self._do(self._cut())

    def blackhole(self) -> None:
        """Keep and accept connections, and forward nothing; the bytes arrive after ``heal``."""
        self._do(self._set(flowing=False))

    def delay(self, delay_s: float) -> None:
        """Delay every piece in both directions."""
        self._do(self._set(delay_s=delay_s))

    def corrupt(self, corruption: Callable[[bytes], bytes]) -> None:
        """Apply ``corruption`` to each piece from the target to the client."""
        self._do(self._set(corruption=corruption))

    def heal(self) -> None:
        """Forward normally again, on the same address."""
        self._do(self._heal())

    def close(self) -> None:
        """Close the listener and every connection."""
        self._do(self._cut())
        self._stop_thread()

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, host: str, port: int) -> str:
        self._server = await asyncio.start_server(self._carry, host, port)
        return "{}:{}".format(*self._server.sockets[0].getsockname()[:2])

    async def _set(
        self, *, flowing: bool = True, delay_s: float = 0.0, corruption: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._delay_s, self._corruption = delay_s, corruption
        (self._flowing.set if flowing else self._flowing.clear)()

    async def _cut(self) -> None:
        await self._set()
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _heal(self) -> None:
        await self._set()
        if self._server is None:
            await self._listen(*_split(self.address))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = [writer]
        try:
            await self._flowing.wait()
            target_reader, target_writer = await asyncio.open_connection(*self._target)
            writers.append(target_writer)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pump(reader, target_writer, is_answer=False))
                directions.create_task(self._pump(target_reader, writer, is_answer=True))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.close()
            self._connections.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        while True:
            data = await reader.read(_CHUNK_SIZE)
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._flowing.wait()
            if not data:
                break
            writer.write(self._corruption(data) if is_answer and self._corruption is not None else data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
