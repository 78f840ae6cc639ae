"""An HTTP client for asking other daemons: one request, one connection, one deadline.

For the few requests that daemons make of each other; nothing here is pooled or hot.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from nsqx.errors import NSQError
from nsqx.net.address import format_host_port

_READ_SIZE = 64 * 1024
DEFAULT_MAX_BODY_SIZE = 64 * 1024 * 1024


class HTTPRequestFailed(NSQError):
    """No answer came, or none that is HTTP; the text says why."""


@dataclass(slots=True)
class HTTPAnswer:
    """What a server answered."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class _AnswerReader:
    """Callbacks of httptools' response parser."""

    def __init__(self, max_body_size: int) -> None:
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.is_complete = False
        self._room = max_body_size

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._room -= len(body)
        if self._room < 0:
            raise HTTPRequestFailed("the answer is too big")
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


async def request(
    method: str,
    url: str,
    *,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    connect_timeout_s: float = 2.0,
    request_timeout_s: float = 5.0,
    ssl_context: ssl.SSLContext | None = None,
    max_body_size: int = DEFAULT_MAX_BODY_SIZE,
) -> HTTPAnswer:
    """Ask, and wait for the whole answer; raises HTTPRequestFailed. ``request_timeout_s`` bounds everything."""
    try:
        async with asyncio.timeout(request_timeout_s):
            return await _ask(method, url, body, headers or {}, connect_timeout_s, ssl_context, max_body_size)
    except TimeoutError:
        raise HTTPRequestFailed(f"{method} {url}: no answer in time") from None
    except (OSError, httptools.HttpParserError, ValueError) as error:
        raise HTTPRequestFailed(f"{method} {url}: {error}") from None


async def _ask(
    method: str,
    url: str,
    body: bytes,
    headers: dict[str, str],
    connect_timeout_s: float,
    ssl_context: ssl.SSLContext | None,
    max_body_size: int,
) -> HTTPAnswer:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http address")
    port = parts.port or (443 if is_tls else 80)
    context = (ssl_context or ssl.create_default_context()) if is_tls else None
    async with asyncio.timeout(connect_timeout_s):
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {format_host_port(parts.hostname, port)}", "Connection: close"]
        if body or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        return await _read_answer(reader, max_body_size)
    finally:
        writer.close()


async def _read_answer(reader: asyncio.StreamReader, max_body_size: int) -> HTTPAnswer:
    answer = _AnswerReader(max_body_size)
    parser = httptools.HttpResponseParser(answer)
    while not answer.is_complete:
        data = await reader.read(_READ_SIZE)
        if not data:
            if not answer.headers or "content-length" in answer.headers or "transfer-encoding" in answer.headers:
                raise HTTPRequestFailed("the answer was cut off")
            break  # a body without a length ends with the connection
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, HTTPRequestFailed):
                raise error.__context__ from None
            raise
    return HTTPAnswer(parser.get_status_code(), answer.headers, b"".join(answer.pieces))
