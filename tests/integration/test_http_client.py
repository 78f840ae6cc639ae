"""The HTTP client against scripted servers, under both event loops."""

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nsqx.net.http_client import HTTPAnswer, HTTPRequestFailed, request

Exchange = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
PATIENCE_S = 10.0


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@asynccontextmanager
async def serving(exchange: Exchange, **options: Any) -> AsyncIterator[str]:
    """Run a server that calls ``exchange`` for every connection; return its base URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            await exchange(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    try:
        yield f"://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def saying(answer: bytes, heads: list[bytes] | None = None) -> Exchange:
    """Read a request, send ``answer``, the first part byte by byte, and close."""

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        for position in range(min(20, len(answer))):
            writer.write(answer[position : position + 1])
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(answer[20:])
        await writer.drain()

    return exchange


async def ask(exchange: Exchange, **options: Any) -> HTTPAnswer:
    async with serving(exchange) as base:
        return await request("GET", f"http{base}/x", request_timeout_s=PATIENCE_S, **options)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Two: a, b\r\n\r\nhi", (200, b"hi")),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", (404, b"")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n3;x=y\r\n!!!\r\n0\r\n\r\n", (200, b"hi!!!")),
        (b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nuntil the end", (200, b"until the end")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        (b"HTTP/1.1 500 \r\nContent-Length: 1\r\n\r\n!", (500, b"!")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nhi", (200, b"hi")),
    ],
    ids=["length", "empty", "chunked", "to the end", "no content", "no reason", "offers an upgrade"],
)
def test_valid_answers_are_read(run: Any, answer: bytes, expected: tuple[int, bytes]) -> None:
    found = run(ask(saying(answer)))
    assert (found.status, found.body) == expected


def test_headers_have_lower_case_names(run: Any) -> None:
    found = run(ask(saying(b"HTTP/1.1 200 OK\r\nX-NSQ-Content-Type: nsq; version=1.0\r\nContent-Length: 0\r\n\r\n")))
    assert found.headers == {"x-nsq-content-type": "nsq; version=1.0", "content-length": "0"}


def test_the_request_has_the_expected_form(run: Any) -> None:
    async def scenario() -> None:
        received: list[bytes] = []

        async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(4) if head.startswith(b"POST") else b""
            received.append(head + body)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        async with serving(exchange) as base:
            await request("GET", f"http{base}/channels?topic=a%23ephemeral", headers={"Accept": "all"})
            await request("POST", f"http{base}/pub?topic=t", body=b"body")
            await request("GET", f"http{base}")
        host = base.removeprefix("://").encode()
        common = b"Host: %b\r\nConnection: close\r\n" % host
        assert received == [
            b"GET /channels?topic=a%%23ephemeral HTTP/1.1\r\n%bAccept: all\r\n\r\n" % common,
            b"POST /pub?topic=t HTTP/1.1\r\n%bContent-Length: 4\r\n\r\nbody" % common,
            b"GET / HTTP/1.1\r\n%b\r\n" % common,
        ]

    run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Type: y\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
        b"\x00\x01\x02\x03 garbage",
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"HTTP/1.1 99999 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=[
        "nothing",
        "cut in the head",
        "cut after some headers",
        "cut in the body",
        "cut between chunks",
        "garbage",
        "another protocol",
        "impossible status",
        "negative length",
        "overflowing length",
        "length and chunks",
        "negative chunk",
        "another protocol from here on",
    ],
)
def test_invalid_answers_are_errors(run: Any, answer: bytes) -> None:
    with pytest.raises(HTTPRequestFailed):
        run(ask(saying(answer)))


def test_only_the_first_answer_counts(run: Any) -> None:
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(first + b"HTTP/1.1 500 Oops\r\nX-More: 1\r\nContent-Length: 0\r\n\r\n")

    assert run(ask(exchange)) == HTTPAnswer(200, {"content-length": "2"}, b"hi")


def test_informational_answers_are_skipped(run: Any) -> None:
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    found = run(ask(saying(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + final)))
    assert found == HTTPAnswer(200, {"content-length": "2"}, b"hi")


def test_a_large_body_is_read(run: Any) -> None:
    body = bytes(range(256)) * 4096
    found = run(ask(saying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))))
    assert found.body == body


@pytest.mark.parametrize("head", [b"Content-Length: 1000001", b"Server: endless"])
def test_a_body_over_the_limit_is_an_error(run: Any, head: bytes) -> None:
    """A body over the limit is rejected by its announced length or while reading; no more than the limit is read."""
    answer = b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (head, b"x" * 1_000_001)
    with pytest.raises(HTTPRequestFailed, match="too big"):
        run(ask(saying(answer), max_body_size=1_000_000))
    assert len(run(ask(saying(answer), max_body_size=1_000_001)).body) == 1_000_001


@pytest.mark.parametrize("line", [b"X-%d: more\r\n", b"%d and so on "], ids=["many headers", "one long header"])
def test_an_endless_head_is_an_error(run: Any, line: bytes) -> None:
    """A head without end is rejected long before the deadline, in bounded memory."""

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-First: ")
        for number in range(200_000):
            writer.write(line % number)
            await writer.drain()
        await reader.read()

    with pytest.raises(HTTPRequestFailed, match="too big"):
        run(ask(exchange))


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def test_a_silent_server_times_out(run: Any) -> None:
    async def scenario() -> None:
        async with serving(silent) as base:
            with pytest.raises(HTTPRequestFailed, match="no answer in time"):
                await request("GET", f"http{base}/", connect_timeout_s=PATIENCE_S, request_timeout_s=0.05)

    run(scenario())


def test_a_slow_server_times_out(run: Any) -> None:
    """The bytes arrive steadily, but the answer is never complete."""

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not reader.at_eof():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        async with serving(exchange) as base:
            with pytest.raises(HTTPRequestFailed, match="no answer in time"):
                await request("GET", f"http{base}/", request_timeout_s=0.2)

    run(scenario())


def test_connecting_has_its_own_timeout(run: Any) -> None:
    """A server that never completes the TLS handshake counts as not connected."""

    async def scenario() -> None:
        async with serving(silent) as base:
            with pytest.raises(HTTPRequestFailed, match="no answer in time"):
                await request("GET", f"https{base}/", connect_timeout_s=0.05, request_timeout_s=PATIENCE_S)

    run(scenario())


def test_the_connection_is_always_closed(run: Any) -> None:
    async def scenario() -> None:
        beginnings: asyncio.Queue[str] = asyncio.Queue()
        ends: asyncio.Queue[str] = asyncio.Queue()

        async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            target = (await reader.readuntil(b"\r\n\r\n")).split()[1]
            await beginnings.put(target.decode())
            writer.write({b"/good": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"/bad": b"?"}.get(target, b""))
            await reader.read()
            await ends.put(target.decode())

        async with serving(exchange) as base:
            await request("GET", f"http{base}/good")
            assert await ends.get() == "/good"
            with pytest.raises(HTTPRequestFailed):
                await request("GET", f"http{base}/bad")
            assert await ends.get() == "/bad"
            with pytest.raises(HTTPRequestFailed):
                await request("GET", f"http{base}/late", request_timeout_s=0.05)
            assert await ends.get() == "/late"
            asking = asyncio.create_task(request("GET", f"http{base}/given-up", request_timeout_s=PATIENCE_S))
            while await beginnings.get() != "/given-up":
                pass
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await ends.get() == "/given-up"

    run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "ftp://127.0.0.1/",
        "127.0.0.1:4161/channels",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:-1/",
        "http://127.0.0.1:http/",
        "http://[::1/",
        "http://a\0b/",
        "http://" + "a" * 300 + "/",
        "http://127.0.0.1:1/",
    ],
)
def test_unusable_addresses_are_errors(run: Any, url: str) -> None:
    with pytest.raises(HTTPRequestFailed, match="^GET "):
        run(request("GET", url))


def test_a_request_over_https(run: Any, tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl missing: install it to make test certificates")
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(cert, key)

    async def scenario() -> None:
        async with serving(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), ssl=server_context) as base:
            trusting = ssl.create_default_context(cafile=cert)
            assert (await request("GET", f"https{base}/", ssl_context=trusting)).body == b"hi"
            with pytest.raises(HTTPRequestFailed, match="certificate"):
                await request("GET", f"https{base}/")

    run(scenario())
