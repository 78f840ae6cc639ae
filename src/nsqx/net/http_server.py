"""An HTTP server: listens, tracks its connections, and closes them on deadlines and at shutdown.

Owns the listening sockets and the set of connections. ``http_connection`` handles one connection, ``router`` selects
the handler.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from nsqx.errors import HTTPError
from nsqx.net.body_stream import BodyStream
from nsqx.net.http_connection import HTTPConnection
from nsqx.net.http_head import parse_head, refusal
from nsqx.net.listen import BACKLOG
from nsqx.net.request_log import failure_line
from nsqx.net.responses import error_response
from nsqx.net.round_robin import RoundRobin
from nsqx.net.router import fixed_route
from nsqx.net.tls_protocol import TLSProtocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Coroutine

    from nsqx.net.cross_origin import HeadCheck
    from nsqx.net.http_head import Head
    from nsqx.net.listen import Listening
    from nsqx.net.request_log import RequestLog
    from nsqx.net.requests import AnyResponse, Request
    from nsqx.net.responses import Response, StreamedResponse
    from nsqx.net.router import Router

_MAX_SWEEP_S = 1.0
# Limits of the cache of parsed heads: clients on persistent connections repeat the same head.
_MAX_HEADS = 1024
_MAX_REMEMBERED_HEAD = 1024
# Time for aborted connections to close.
_ABORT_S = 5.0


class HTTPServer:
    """Serves a router on one listening socket.

    ``gate`` is called for every request, before its body is read and its handler is called, and may answer instead. A
    deadline fires at most two sweeps late and never early; a sweep is a quarter of the shortest timeout, at most one
    second.
    """

    def __init__(
        self,
        router: Router,
        log: RequestLog,
        *,
        name: str = "HTTP",
        gate: Callable[[Request], Response | None] | None = None,
        header_timeout_s: float = 10.0,
        body_timeout_s: float = 60.0,
        idle_timeout_s: float = 120.0,
        max_header_bytes: int = 1024 * 1024,
        max_connections: int = 0,
    ) -> None:
        self.log = log
        self.gate = gate
        self.connections: set[HTTPConnection] = set()
        self.round_robin = RoundRobin()
        self.heads: dict[bytes, Head] = {}
        self.max_header_bytes = max_header_bytes
        self.closing = False
        self.now = 0.0  # the loop's time at the last sweep
        self._sweep_s = min(header_timeout_s, body_timeout_s, idle_timeout_s, _MAX_SWEEP_S * 4) / 4
        # Connections compute deadlines from the time of the last sweep, which can be this old.
        self.header_timeout_s = header_timeout_s + self._sweep_s
        self.body_timeout_s = body_timeout_s + self._sweep_s
        self.idle_timeout_s = idle_timeout_s + self._sweep_s
        self._router = router
        self._check: HeadCheck | None = None
        self._name = name
        self._max_connections = max_connections
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ssl_context: ssl.SSLContext | None = None
        self._handshaking: set[TLSProtocol] = set()
        self._listener: asyncio.Server | None = None
        self._listening: Listening | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty: asyncio.Event | None = None  # while closing: set when the last connection is closed

    @property
    def port(self) -> int:
        """The TCP port that the server listens on; -1 before ``serve`` and for a unix socket."""
        return self._listening.port if self._listening is not None else -1

    @property
    def address(self) -> str:
        """The ``host:port`` or socket path that the server listens on; empty before ``serve``."""
        return self._listening.address if self._listening is not None else ""

    async def serve(
        self, listening: Listening, ssl_context: ssl.SSLContext | None = None, check: HeadCheck | None = None
    ) -> None:
        """Serve on a bound socket and take ownership of it.

        ``check`` is called for every head before its use (once for equal heads) and may answer instead of the handler.
        """
        self._check = check
        loop = asyncio.get_running_loop()
        self._listening = listening
        self._ssl_context = ssl_context
        create = loop.create_unix_server if listening.path else loop.create_server
        make = self._make_connection if ssl_context is None else self._make_tls_connection
        self._listener = await create(make, sock=listening.socket, backlog=BACKLOG)
        self._router.freeze()
        self._loop = loop
        self.now = loop.time()
        self.log.info(f"{self._name}: listening on {listening.address}")

    def _make_connection(self) -> asyncio.Protocol:
        return cast("asyncio.Protocol", HTTPConnection(self))

    def _make_tls_connection(self) -> asyncio.Protocol:
        assert self._ssl_context is not None
        return TLSProtocol(self._ssl_context, self._make_connection, self.log, self.header_timeout_s, self._handshaking)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stop listening, let pending requests finish for up to ``timeout_s``, and close the remaining connections."""
        if self._listener is None or self.closing:
            return
        assert self._listening is not None
        self.log.info(f"{self._name}: closing {self._listening.address}")
        self.closing = True
        self._listener.close()
        self._listening.close()
        for handshaking in tuple(self._handshaking):
            handshaking.abort()
        self._empty = asyncio.Event()
        for connection in tuple(self.connections):
            connection.close_if_idle()
        if not await self._emptied_within(timeout_s):
            for connection in tuple(self.connections):
                connection.abort()
            await self._emptied_within(_ABORT_S)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.wait_closed()

    async def _emptied_within(self, timeout_s: float) -> bool:
        assert self._empty is not None
        if self.connections:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
            except TimeoutError:
                return False
        return True

    def admit(self, connection: HTTPConnection) -> bool:
        """Track a new connection; return False if the limit is reached."""
        if 0 < self._max_connections <= len(self.connections):
            return False
        self.connections.add(connection)
        if self._sweeper is None and self._loop is not None:
            self.now = self._loop.time()
            self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)
        return True

    def forget(self, connection: HTTPConnection) -> None:
        """Stop tracking a closed connection."""
        self.connections.discard(connection)
        if self._empty is not None and not self.connections:
            self._empty.set()

    def _sweep(self) -> None:
        self._sweeper = None
        if not self.connections or self._loop is None:
            return
        now = self.now = self._loop.time()
        self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)
        for connection in tuple(self.connections):
            connection.expire(now)

    def read_head(self, raw: bytes) -> Head:
        """Return the parsed head in ``raw`` with its route, cached; raise HTTPError if it is rejected."""
        if len(raw) > self.max_header_bytes:
            raise refusal(431, "HEADER_TOO_BIG", "head is too long")
        head = parse_head(raw)
        self._router.resolve(head)
        refused = self._check(head) if self._check is not None else None
        if refused is not None:
            head.route = fixed_route(refused, logged=True)
        if len(raw) <= _MAX_REMEMBERED_HEAD:
            if len(self.heads) >= _MAX_HEADS:
                self.heads.clear()
            self.heads[raw] = head
        return head

    def run(self, connection: HTTPConnection, request: Request, answer: Awaitable[AnyResponse]) -> None:
        """Wait for a handler's awaitable in a task; ``connection`` may be closed before the task ends."""
        self._start(self._finish(connection, request, answer))

    def stream(self, connection: HTTPConnection, request: Request, response: StreamedResponse) -> BodyStream:
        """Send the body of ``response`` in a task."""
        body = BodyStream(connection, request, response, self.log)
        body.task = self._start(body.run())
        return body

    def _start(self, job: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _finish(self, connection: HTTPConnection, request: Request, answer: Awaitable[AnyResponse]) -> None:
        try:
            response = await answer
        except Exception as error:
            response = self.failed(request, error)
        connection.finish_awaited(request, response)

    def ask_gate(self, request: Request) -> Response | None:
        """Return the gate's answer, None if the handler shall answer."""
        assert self.gate is not None
        try:
            return self.gate(request)
        except Exception as error:
            return self.failed(request, error)

    def failed(self, request: Request, error: Exception) -> Response:
        """Return the answer to a request whose handler raised ``error``; log the error unless it is an HTTPError."""
        if isinstance(error, HTTPError):
            return error_response(error.status, error.code, error.headers, error.fields)
        self.log.error(failure_line(request, error))
        return error_response(500, "INTERNAL_ERROR")
