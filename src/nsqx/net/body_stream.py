"""The body of a streamed response on its way to one client.

Owns the pace and the end of the body. The next piece is produced only after the client has read enough of the earlier
ones, and after the loop has handled its other events. A connection therefore holds a few pieces, whatever the size of
the body. The connection owns the deadline of a client that does not read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from nsqx.net.request_log import failure_line
from nsqx.net.responses import LAST_CHUNK, chunk

if TYPE_CHECKING:
    from nsqx.net.request_log import RequestLog
    from nsqx.net.requests import Request
    from nsqx.net.responses import StreamedResponse


class BodyWriter(Protocol):
    """The connection of a client."""

    def write(self, data: bytes) -> bool:
        """Send a part of the body; return False if the client must read before the next one."""

    def body_ended(self) -> None:
        """Continue with the next request."""

    def abort(self) -> None:
        """Close the connection at once, so that the client notices the missing end."""


class BodyStream:
    """Sends one body. ``run`` is the coroutine of ``task``."""

    __slots__ = ("_connection", "_log", "_request", "_response", "_resumed", "task")

    task: asyncio.Task[None]

    def __init__(self, connection: BodyWriter, request: Request, response: StreamedResponse, log: RequestLog) -> None:
        self._connection = connection
        self._request = request
        self._response = response
        self._log = log
        self._resumed: asyncio.Future[None] | None = None  # while the client must read

    async def run(self) -> None:
        """Send all pieces and the end of the body, and close the pieces in every case."""
        try:
            await self._send_pieces()
        except Exception as error:
            self._log.error(failure_line(self._request, error))
            self._connection.abort()
        else:
            self._connection.body_ended()
        finally:
            await self._response.pieces.aclose()

    def resume(self) -> None:
        """Continue: the client has read enough."""
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)

    def cancel(self) -> None:
        """Stop: the client has disconnected."""
        self.task.cancel()

    async def _send_pieces(self) -> None:
        length = self._response.length
        is_chunked = length is None and not self._request.head.http10
        sent = 0
        async for piece in self._response.pieces:
            sent += len(piece)
            if length is not None and sent > length:
                break
            await self._send(chunk(piece) if is_chunked else bytes(piece))
        if length is not None and sent != length:
            raise ValueError(f"the body has {'more' if sent > length else 'fewer'} than {length} bytes")
        if is_chunked:
            self._connection.write(LAST_CHUNK)

    async def _send(self, data: bytes) -> None:
        if self._connection.write(data):
            await asyncio.sleep(0)
        else:
            self._resumed = asyncio.get_running_loop().create_future()
            await self._resumed
            self._resumed = None
