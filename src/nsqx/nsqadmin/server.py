"""The HTTP server: uvicorn without its signal handlers, with its errors in our log and limits on request heads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nsqx.net.peer import plain_host

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from nsqx.log import Log
    from nsqx.net.listen import Listening

HEAD_TIMEOUT_S = 30.0
MAX_HEAD_SIZE = 256 * 1024
_IDLE_S = 75
_STOP_S = 2


class BoundedProtocol(HttpToolsProtocol):
    """A connection with a timeout for its first request and a limit on the size of heads."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_size = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.client is not None:
            self.client = (plain_host(self.client[0]), self.client[1])
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, transport.close)

    def data_received(self, data: bytes) -> None:
        self._head_size += len(data)
        super().data_received(data)
        if self._head_size > MAX_HEAD_SIZE and not self.transport.is_closing():
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._head_arrived()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_size = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def _head_arrived(self) -> None:
        self._head_size = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _ToOurLog(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.warn("%s", " ".join(record.getMessage().split()))


class Server:
    """Serves an application on a bound socket."""

    def __init__(self, app: ASGIApp, log: Log) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        self._log = log
        self._uvicorn = _Uvicorn(config)
        self._handler = _ToOurLog(log)
        self._listening: Listening | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port of the listener; valid once started."""
        return self._listening.port if self._listening is not None else 0

    async def start(self, listening: Listening) -> None:
        """Start serving."""
        self._listening = listening
        logger = logging.getLogger("uvicorn.error")
        logger.addHandler(self._handler)
        logger.propagate = False
        self._task = asyncio.create_task(self._uvicorn.serve(sockets=[listening.socket]))
        while not self._uvicorn.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server did not start")
            await asyncio.sleep(0.001)
        self._log.info("HTTP: listening on %s", listening.address)

    async def stop(self) -> None:
        """Stop serving; pending answers have two seconds to finish."""
        self._uvicorn.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
            self._log.info("HTTP: closing %s", self._listening.address)
        logging.getLogger("uvicorn.error").removeHandler(self._handler)
