"""The HTTP server on real sockets, under both event loops."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import stat
import struct
import subprocess
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from event_loops import both_loops
from http_doubles import Answer, RememberingLog, read_answers
from nsqx.net.address import TCPAddress, UnixAddress
from nsqx.net.http_server import HTTPServer
from nsqx.net.listen import bind
from nsqx.net.requests import DEFERRED, DeferredAnswer, Request
from nsqx.net.responses import OK, Response, error_response, plain_response
from nsqx.net.router import BodyLimit, Router

PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
ECHO = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
BIG = b"x" * 500_000


class WatchedServer(HTTPServer):
    """A server that reports closed connections."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.closed_connections: asyncio.Queue[None] = asyncio.Queue()

    def forget(self, connection: Any) -> None:
        super().forget(connection)
        self.closed_connections.put_nowait(None)


class Service:
    """The handlers of these tests and their server."""

    def __init__(self, **options: Any) -> None:
        self.deferred: asyncio.Queue[Request] = asyncio.Queue()
        self.started: asyncio.Queue[None] = asyncio.Queue()
        self.release = asyncio.Event()
        self.ended: list[str] = []
        self.log = RememberingLog()
        self.router = Router()
        self.router.add("GET", "/ping", lambda _request: plain_response(200, "OK"))
        self.router.add("POST", "/echo", self.echo, body_limit=BodyLimit(1024 * 1024, "MSG_TOO_BIG"))
        self.router.add("POST", "/late", self.late)
        self.router.add("GET", "/awaited", self.awaited)
        self.router.add("GET", "/big", lambda _request: Response(200, BIG))
        self.router.add("GET", "/failing", self.failing)
        self.router.add("GET", "/remote", lambda request: Response(200, request.remote.encode()))
        self.server = WatchedServer(self.router, self.log, **options)

    def echo(self, request: Request) -> Response:
        return Response(200, request.body)

    def late(self, request: Request) -> DeferredAnswer:
        self.deferred.put_nowait(request)
        return DEFERRED

    async def awaited(self, _request: Request) -> Response:
        self.started.put_nowait(None)
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        return OK

    def failing(self, _request: Request) -> Response:
        raise ValueError("not for clients")


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Service]:
    service = Service(**options)
    await service.server.serve(await bind(TCPAddress("127.0.0.1", 0)))
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
    async def to(cls, server: HTTPServer, context: ssl.SSLContext | None = None) -> "Client":
        name = "localhost" if context else None
        return cls(*await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname=name))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> Answer:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        (answer,) = read_answers(head + await self.reader.readexactly(length))
        return answer

    async def rest(self) -> list[Answer]:
        """Return the answers until the server closes."""
        return read_answers(await self.reader.read())

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    def reset(self) -> None:
        """Abort the connection: the server gets a reset, not an end of stream."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    """Poll for a condition that has no event."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


@both_loops
async def test_a_connection_serves_several_requests() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        for number in range(3):
            body = b"%d" % number
            client.send(ECHO % (len(body), body))
            assert (await client.answer()).body == body
        assert len(service.server.connections) == 1
        await client.close()
        await service.server.closed_connections.get()
        assert not service.server.connections


@both_loops
async def test_the_address_and_port_are_known() -> None:
    async with serving() as service:
        assert service.server.address == f"127.0.0.1:{service.server.port}"
        assert service.log.infos == [f"HTTP: listening on 127.0.0.1:{service.server.port}"]
        client = await Client.to(service.server)
        client.send(b"GET /remote HTTP/1.1\r\nHost: x\r\n\r\n")
        host, port = client.writer.get_extra_info("sockname")
        assert (await client.answer()).body == f"{host}:{port}".encode()
        await client.close()


@both_loops
async def test_a_port_in_use_is_an_error() -> None:
    async with serving() as service:
        with pytest.raises(OSError):
            await HTTPServer(Router(), RememberingLog()).serve(await bind(TCPAddress("127.0.0.1", service.server.port)))


@both_loops
async def test_pipelined_answers_keep_the_order_with_a_deferred_one() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        late = b"POST /late HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nlate"
        client.send(PING + late + ECHO % (3, b"two"))
        assert (await client.answer()).body == b"OK"
        request = await service.deferred.get()
        request.respond(Response(200, request.body))
        assert (await client.answer()).body == b"late"
        assert (await client.answer()).body == b"two"
        await client.close()


@both_loops
async def test_requests_wait_for_an_awaited_handler() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(b"GET /awaited HTTP/1.1\r\nHost: x\r\n\r\n" + PING)
        await service.started.get()
        client.send(PING)
        service.release.set()
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 200]
        await client.close()


@both_loops
async def test_a_chunked_body_with_100_continue() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.answer()).status == 100
        for piece in (b"3\r\nab", b"c\r\n2;x\r\nde\r\n0\r\nA: b\r\n", b"\r\n"):
            client.send(piece)
            await client.writer.drain()
        assert (await client.answer()).body == b"abcde"
        await client.close()


@both_loops
async def test_a_large_body_is_received() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        body = os.urandom(1024 * 1024)
        client.send(ECHO % (len(body), body))
        assert (await client.answer()).body == body
        await client.close()


@both_loops
async def test_a_client_that_sends_everything_first_gets_its_413() -> None:
    """Python's http.client sends everything before it reads; closing too early would lose the answer."""

    def post() -> Answer:
        with socket.create_connection(("127.0.0.1", service.server.port), 20) as client:
            client.sendall(ECHO % (4_000_000, b"x" * 4_000_000))
            received = b""
            while data := client.recv(65536):
                received += data
        (answer,) = read_answers(received)
        return answer

    async with serving() as service:
        answer = await asyncio.to_thread(post)
        assert (answer.status, answer.body) == (413, b'{"message":"MSG_TOO_BIG"}')
        assert answer.headers["connection"] == "close"


FRAMING = {
    "bare LF": (400, b"GET /ping HTTP/1.1\nHost: x\n\n"),
    "obs-fold": (400, b"GET /ping HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n"),
    "Content-Length twice": (400, ECHO.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n") % (1, b"a")),
    "Content-Length and chunked": (
        400,
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "no Host": (400, b"GET /ping HTTP/1.1\r\n\r\n"),
    "bad chunk": (400, b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"),
    "TLS on the plain port": (400, b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"),
    "HTTP/3.0": (505, b"GET /ping HTTP/3.0\r\nHost: x\r\n\r\n"),
}


@pytest.mark.parametrize("name", FRAMING)
@both_loops
async def test_malformed_framing_is_rejected(name: str) -> None:
    status, data = FRAMING[name]
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(PING + data + PING)
        answers = await client.rest()
        assert [answer.status for answer in answers] == [200, status]
        assert answers[-1].headers["connection"] == "close"
        await client.close()
        await service.server.closed_connections.get()


@both_loops
async def test_a_failing_handler_keeps_the_connection_open() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(b"GET /failing HTTP/1.1\r\nHost: x\r\n\r\n" + PING)
        answer = await client.answer()
        assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')
        assert (await client.answer()).status == 200
        assert len(service.log.errors) == 1
        await client.close()


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"", []),
        (b"GET /ping HT", [408]),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc", [408]),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", [408]),
        (PING, [200]),
        (PING + PING[:-1], [200, 408]),
    ],
)
@both_loops
async def test_incomplete_requests_time_out(sent: bytes, statuses: list[int]) -> None:
    timeouts = {"header_timeout_s": 0.05, "body_timeout_s": 0.05, "idle_timeout_s": 0.05}
    async with serving(**timeouts) as service:
        client = await Client.to(service.server)
        client.send(sent)
        assert [answer.status for answer in await client.rest()] == statuses
        await client.close()
        await service.server.closed_connections.get()


@both_loops
async def test_a_client_that_reads_nothing_is_closed() -> None:
    async with serving(body_timeout_s=0.1) as service:
        client = await Client.to(service.server)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        await service.server.closed_connections.get()  # closed by a deadline, because it read nothing
        served = sum(line.startswith("200 GET /big") for line in service.log.infos)
        assert 0 < served < 100
        client.writer.transport.abort()


@both_loops
async def test_a_slow_reader_gets_everything() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        for _ in range(50):
            assert (await client.answer()).body == BIG
        await client.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /pi",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\nabc",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n" * 100,
    ],
)
@both_loops
async def test_a_reset_connection_is_freed(sent: bytes) -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(PING)
        await client.answer()
        (connection,) = service.server.connections
        seen = weakref.ref(connection)
        del connection
        client.send(sent)
        await client.writer.drain()
        gc.collect()
        gc.disable()
        try:
            client.reset()
            await service.server.closed_connections.get()
            await asyncio.sleep(0)  # the loop drops the transport after the callback
            assert seen() is None
        finally:
            gc.enable()
        assert not service.log.errors


@both_loops
async def test_late_answers_after_a_reset_are_dropped() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(b"POST /late HTTP/1.1\r\nHost: x\r\n\r\n" * 2 + b"GET /awaited HTTP/1.1\r\nHost: x\r\n\r\n")
        requests = [await service.deferred.get() for _ in range(2)]
        await service.started.get()
        client.reset()
        await service.server.closed_connections.get()
        for request in requests:
            request.respond(OK)
        service.release.set()
        await asyncio.gather(*service.server._tasks)
        assert not service.log.errors


@both_loops
async def test_an_answer_while_the_transport_closes_is_dropped() -> None:
    """The answer arrives after the transport starts closing and before connection_lost is called."""
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(b"POST /late HTTP/1.1\r\nHost: x\r\n\r\n")
        request = await service.deferred.get()
        (connection,) = service.server.connections
        connection.abort()
        request.respond(OK)
        await service.server.closed_connections.get()
        await client.close()


@both_loops
async def test_a_half_closed_client_gets_its_answer() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(b"POST /late HTTP/1.1\r\nHost: x\r\n\r\n")
        client.writer.write_eof()
        request = await service.deferred.get()
        (connection,) = service.server.connections
        await until(lambda: connection._eof)
        request.respond(OK)
        assert [answer.status for answer in await client.rest()] == [200]
        await client.close()


@both_loops
async def test_the_number_of_connections_is_limited() -> None:
    async with serving(max_connections=1) as service:
        first = await Client.to(service.server)
        first.send(PING)
        await first.answer()
        second = await Client.to(service.server)
        assert [answer.status for answer in await second.rest()] == [503]
        await second.close()
        await service.server.closed_connections.get()
        await first.close()
        await service.server.closed_connections.get()
        third = await Client.to(service.server)
        third.send(PING)
        assert (await third.answer()).status == 200
        await third.close()


@both_loops
async def test_close_finishes_pending_requests() -> None:
    async with serving() as service:
        server = service.server
        idle, busy = await Client.to(server), await Client.to(server)
        idle.send(PING)
        await idle.answer()
        busy.send(b"POST /late HTTP/1.1\r\nHost: x\r\n\r\n" + PING)
        request = await service.deferred.get()
        closing = asyncio.create_task(server.close(20))
        assert await idle.rest() == []
        with pytest.raises(OSError):
            await Client.to(server)
        request.respond(OK)
        answers = await busy.rest()
        assert [answer.status for answer in answers] == [200, 200]
        assert answers[-1].headers["connection"] == "close"
        await busy.close()
        await closing
        await idle.close()
        assert not server.connections


@both_loops
async def test_close_waits_for_an_incomplete_request() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(ECHO[:-2] % 4 + b"ab")
        await until(lambda: any(connection._reader.phase for connection in service.server.connections))
        closing = asyncio.create_task(service.server.close(20))
        await asyncio.sleep(0)
        client.send(b"cd")
        (answer,) = await client.rest()
        assert (answer.body, answer.headers["connection"]) == (b"abcd", "close")
        await client.close()
        await closing


@both_loops
async def test_close_aborts_after_its_timeout() -> None:
    async with serving() as service:
        client = await Client.to(service.server)
        client.send(b"GET /awaited HTTP/1.1\r\nHost: x\r\n\r\n")
        await service.started.get()
        await service.server.close(0.01)
        assert not service.server.connections
        assert service.ended == ["cancelled"]
        with contextlib.suppress(ConnectionResetError):
            assert await client.reader.read() == b""
        await asyncio.gather(client.close(), return_exceptions=True)


@both_loops
async def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    service = Service()
    path = tmp_path / "http.sock"
    await service.server.serve(await bind(UnixAddress(str(path)), 0o600))
    assert (service.server.port, service.server.address) == (-1, str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    client = Client(*await asyncio.open_unix_connection(str(path)))
    client.send(PING + b"GET /remote HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.answer()).body == b"OK"
    assert (await client.answer()).body == b"@"
    await client.close()
    await service.server.close(1)
    assert not path.exists()


@both_loops
async def test_a_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    service = Service()
    await service.server.serve(await bind(UnixAddress(str(path))))
    client = Client(*await asyncio.open_unix_connection(str(path)))
    client.send(PING)
    assert (await client.answer()).status == 200
    await client.close()
    await service.server.close(1)


@both_loops
async def test_a_unix_socket_in_use_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    service = Service()
    await service.server.serve(await bind(UnixAddress(str(path))))
    with pytest.raises(OSError):
        await Service().server.serve(await bind(UnixAddress(str(path))))
    client = Client(*await asyncio.open_unix_connection(str(path)))
    client.send(PING)
    assert (await client.answer()).status == 200
    await client.close()
    await service.server.close(1)


@both_loops
async def test_a_regular_file_is_not_replaced_by_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(OSError):
        await Service().server.serve(await bind(UnixAddress(str(path))))
    assert path.read_text() == "data"


@both_loops
async def test_the_unix_socket_of_another_server_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    service = Service()
    await service.server.serve(await bind(UnixAddress(str(path))))
    path.rename(tmp_path / "old")
    path.write_text("another's")
    await service.server.close(1)
    assert path.exists()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS contexts for a server, and for a client that trusts it."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl missing: install it to make test certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, ssl.create_default_context(cafile=cert)


@both_loops
async def test_tls_and_a_gate_on_the_plain_port(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """One router behind two servers, as in an nsqd that requires TLS."""
    server_context, client_context = contexts
    service = Service()
    await service.server.serve(await bind(TCPAddress("127.0.0.1", 0)), server_context)
    closed = error_response(403, "TLS_REQUIRED")
    plain = HTTPServer(service.router, service.log, gate=lambda _request: closed)
    await plain.serve(await bind(TCPAddress("127.0.0.1", 0)))

    client = await Client.to(service.server, client_context)
    client.send(PING + ECHO % (len(BIG), BIG))
    assert (await client.answer()).body == b"OK"
    assert (await client.answer()).body == BIG
    client.send(b"nonsense\r\n\r\n")
    assert [answer.status for answer in await client.rest()] == [400]
    await client.close()

    client = await Client.to(plain)
    client.send(PING + ECHO % (3, b"abc"))
    assert [(await client.answer()).status for _ in range(2)] == [403, 403]
    await client.close()
    await asyncio.gather(service.server.close(1), plain.close(1))
