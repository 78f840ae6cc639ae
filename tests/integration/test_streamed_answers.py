"""Streamed answers on real sockets, under both event loops: their form, pace, order and ends."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from certificates import self_signed
from event_loops import both_loops
from http_doubles import RememberingLog
from nsqx.net.address import TCPAddress
from nsqx.net.http_server import HTTPServer
from nsqx.net.listen import bind
from nsqx.net.requests import DEFERRED, DeferredAnswer, Request
from nsqx.net.responses import StreamedResponse, plain_response
from nsqx.net.router import Router

PIECE = b"0123456789abcdef" * 4096
# More pieces than the buffers of two sockets hold.
MANY = 800


class Service:
    """A server of one streamed body, which records its production."""

    def __init__(self, pieces: int, *, length: int | None = None, fails: bool = False, **options: Any) -> None:
        self._pieces = pieces
        self._length = length
        self._fails = fails
        self.produced = 0
        self.closed = asyncio.Event()
        self.deferred: asyncio.Queue[Request] = asyncio.Queue()
        self.log = RememberingLog()
        router = Router()
        router.add("GET", "/ping", lambda _request: plain_response(200, "OK"))
        router.add("GET", "/late", self.late)
        for method in ("GET", "HEAD"):
            router.add(method, "/stream", self.stream)
        self.server = HTTPServer(router, self.log, **options)

    def stream(self, _request: Request) -> StreamedResponse:
        return StreamedResponse(200, self._body(), "text/plain", length=self._length)

    def late(self, request: Request) -> DeferredAnswer:
        self.deferred.put_nowait(request)
        return DEFERRED

    async def _body(self) -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(self._pieces):
                self.produced += 1
                yield PIECE
                yield b""
            if self._fails:
                raise OSError("disk error")
        finally:
            self.closed.set()


@contextlib.asynccontextmanager
async def serving(pieces: int, *, context: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[Service]:
    service = Service(pieces, **options)
    await service.server.serve(await bind(TCPAddress("127.0.0.1", 0)), context)
    try:
        yield service
    finally:
        await service.server.close(0)


class Client:
    """A client that sends and receives raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, service: Service, context: ssl.SSLContext | None = None) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", service.server.port, ssl=context, limit=2 * len(PIECE)))

    def ask(self, path: str = "/stream", method: str = "GET", version: str = "1.1", *headers: str) -> None:
        self.writer.write("\r\n".join([f"{method} {path} HTTP/{version}", "Host: x", *headers, "", ""]).encode())

    async def head(self) -> dict[str, str]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        return {name.lower(): value for name, value in (line.split(": ") for line in lines)}

    async def chunks(self) -> list[bytes]:
        """Read a chunked body to its last chunk."""
        found = []
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            found.append(await self.reader.readexactly(size))
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"
        return found

    async def ping(self) -> None:
        self.ask("/ping")
        assert (await self.head())["content-length"] == "2"
        assert await self.reader.readexactly(2) == b"OK"

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def reset(self) -> None:
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def settled(service: Service) -> int:
    """Wait until no more is produced, because the client does not read; return the number of pieces."""
    produced = -1
    while produced != service.produced:
        produced = service.produced
        await asyncio.sleep(0.05)
    return produced


@both_loops
async def test_the_body_is_chunked_and_the_connection_stays_open() -> None:
    async with serving(20) as service:
        client = await Client.to(service)
        client.ask()
        head = await client.head()
        assert head.pop("date")
        assert head == {"content-type": "text/plain", "transfer-encoding": "chunked"}
        assert await client.chunks() == [PIECE] * 20
        assert service.closed.is_set()
        await client.ping()
        assert [line.split(" (")[0] for line in service.log.infos[1:]] == ["200 GET /stream", "200 GET /ping"]
        await client.close()


@both_loops
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(20) as service:
        client = await Client.to(service)
        client.ask("/late")
        client.ask()
        client.ask()
        client.ask("/ping")
        request = await service.deferred.get()
        assert service.produced == 0  # an earlier request has no answer yet
        request.respond(plain_response(200, "OK"))
        assert (await client.head())["content-length"] == "2"
        assert await client.reader.readexactly(2) == b"OK"
        for _ in range(2):
            await client.head()
            assert await client.chunks() == [PIECE] * 20
        assert (await client.head())["content-length"] == "2"
        await client.close()


@both_loops
async def test_a_known_length_is_sent() -> None:
    async with serving(3, length=3 * len(PIECE)) as service:
        client = await Client.to(service)
        client.ask()
        head = await client.head()
        assert (head["content-length"], head.get("transfer-encoding")) == (str(3 * len(PIECE)), None)
        assert await client.reader.readexactly(3 * len(PIECE)) == PIECE * 3
        client.ask("/stream", "GET", "1.0", "Connection: keep-alive")
        assert (await client.head())["connection"] == "keep-alive"
        await client.reader.readexactly(3 * len(PIECE))
        await client.close()


@pytest.mark.parametrize("headers", [(), ("Connection: keep-alive",)])
@both_loops
async def test_the_body_for_http_1_0_ends_with_the_connection(headers: tuple[str, ...]) -> None:
    async with serving(20) as service:
        client = await Client.to(service)
        client.ask("/stream", "GET", "1.0", *headers)
        assert set(await client.head()) == {"content-type", "date"}
        assert await client.reader.read() == PIECE * 20
        await client.close()


@both_loops
async def test_no_answer_follows_a_body_that_ends_with_the_connection() -> None:
    async with serving(20) as service:
        client = await Client.to(service)
        for path in ("/late", "/stream", "/late"):
            client.ask(path, "GET", "1.0", "Connection: keep-alive")
        first, second = [await service.deferred.get() for _ in range(2)]
        second.respond(plain_response(200, "dropped"))
        first.respond(plain_response(200, "OK"))
        await client.head()
        assert await client.reader.readexactly(2) == b"OK"
        await client.head()
        assert await client.reader.read() == PIECE * 20
        await client.close()


@both_loops
async def test_a_connection_that_the_client_wants_closed_ends_after_the_body() -> None:
    async with serving(20) as service:
        client = await Client.to(service)
        client.ask("/stream", "GET", "1.1", "Connection: close")
        assert (await client.head())["connection"] == "close"
        assert await client.chunks() == [PIECE] * 20
        assert await client.reader.read() == b""
        await client.close()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@both_loops
async def test_head_starts_no_body(version: str) -> None:
    async with serving(20) as service:
        client = await Client.to(service)
        client.ask("/stream", "HEAD", version, "Connection: keep-alive")
        assert ("transfer-encoding" in await client.head()) == (version == "1.1")
        await client.ping()
        assert service.produced == 0
        await client.close()


@both_loops
async def test_a_slow_reader_bounds_the_production_and_delays_no_one() -> None:
    async with serving(MANY) as service:
        slow, other = await Client.to(service), await Client.to(service)
        slow.ask()
        await slow.head()
        assert await settled(service) < MANY / 4  # the buffers of the sockets, and a few pieces
        await other.ping()
        assert await slow.chunks() == [PIECE] * MANY
        await slow.ping()
        await asyncio.gather(slow.close(), other.close())


@both_loops
async def test_other_requests_are_served_while_a_fast_reader_reads() -> None:
    async with serving(MANY) as service:
        fast, other = await Client.to(service), await Client.to(service)
        fast.ask()
        await fast.head()
        reading = asyncio.ensure_future(fast.chunks())
        await other.ping()
        assert service.produced < MANY
        assert len(await reading) == MANY
        await asyncio.gather(fast.close(), other.close())


@pytest.mark.parametrize("is_reset", [False, True])
@both_loops
async def test_the_body_is_closed_if_the_client_disconnects(is_reset: bool) -> None:
    async with serving(MANY) as service:
        client = await Client.to(service)
        client.ask()
        await client.head()
        await settled(service)
        if is_reset:
            client.reset()
        else:
            await client.close()
        await service.closed.wait()
        assert service.produced < MANY
        assert not service.log.errors


@both_loops
async def test_a_client_that_does_not_read_is_closed() -> None:
    async with serving(MANY, body_timeout_s=0.2) as service:
        client = await Client.to(service)
        client.ask()
        await client.head()
        await service.closed.wait()
        assert service.produced < MANY
        client.reset()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fails": True}, "OSError: disk error"),
        ({"length": 3 * len(PIECE)}, f"ValueError: the body has fewer than {3 * len(PIECE)} bytes"),
        ({"length": len(PIECE)}, f"ValueError: the body has more than {len(PIECE)} bytes"),
    ],
)
@both_loops
async def test_a_failed_body_has_no_end(options: dict[str, Any], reason: str) -> None:
    async with serving(2, **options) as service:
        client = await Client.to(service)
        client.ask()
        client.ask("/ping")
        rest = b""
        with contextlib.suppress(ConnectionResetError):
            await client.head()
            rest = await client.reader.read()
        assert not rest.endswith(b"0\r\n\r\n")
        assert b"HTTP/1.1" not in rest
        assert service.closed.is_set()
        (line,) = service.log.errors
        assert line.startswith("panic in HTTP handler - GET '/stream': ")
        assert reason in line
        await client.close()


@both_loops
async def test_a_server_that_closes_finishes_the_body() -> None:
    async with serving(MANY) as service:
        client = await Client.to(service)
        client.ask()
        await client.head()
        closing = asyncio.ensure_future(service.server.close(30))
        await asyncio.sleep(0)
        assert await client.chunks() == [PIECE] * MANY
        assert await client.reader.read() == b""
        await closing
        await client.close()


@both_loops
async def test_a_server_that_cannot_wait_closes_the_body() -> None:
    async with serving(MANY) as service:
        client = await Client.to(service)
        client.ask()
        await client.head()
        await settled(service)
        await service.server.close(0)
        assert service.closed.is_set()
        client.reset()


@both_loops
async def test_the_pace_follows_the_client_under_tls(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    trusting = ssl.create_default_context(cafile=certificate.cert)
    async with serving(MANY, context=context) as service:
        client = await Client.to(service, trusting)
        client.ask()
        await client.head()
        assert await settled(service) < MANY / 2
        assert await client.chunks() == [PIECE] * MANY
        await client.close()
