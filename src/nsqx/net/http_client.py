"""An HTTP client for requests between daemons: one request, one connection, one deadline.

Daemons send few such requests, so there is no connection pool.
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
_MAX_HEAD_SIZE = 256 * 1024
DEFAULT_MAX_BODY_SIZE = 64 * 1024 * 1024


class HTTPRequestFailed(NSQError):
    """No answer, or an invalid one; the text is the reason."""


@dataclass(slots=True)
class HTTPAnswer:
    """The answer of a server."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class _AnswerReader:
    """Collects one answer from httptools' callbacks; ignores everything after it."""

    def __init__(self, max_body_size: int) -> None:
        self.answer = HTTPAnswer(0)
        self.has_head = False
        self.is_complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._head_room = _MAX_HEAD_SIZE
        self._body_room = max_body_size

    def feed(self, data: bytes) -> None:
        """Add received bytes; raises HTTPRequestFailed or HttpParserError."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, HTTPRequestFailed):
                raise error.__context__ from None
            raise
        except httptools.HttpParserUpgrade:
            if not self.is_complete or self.answer.status == 101:
                raise HTTPRequestFailed("the server switched to another protocol") from None
        except httptools.HttpParserError as error:
            if not self.has_head:
                raise HTTPRequestFailed("the answer is not HTTP") from None
            if not self.is_complete:
                raise HTTPRequestFailed(f"the answer is invalid: {error}") from None
        if not self.has_head:
            self._head_room -= len(data)
            if self._head_room < 0:
                raise HTTPRequestFailed("the head of the answer is too big")

    def end(self) -> None:
        """Handle the end of the stream, which also ends a body without a length; raise HTTPRequestFailed if cut off."""
        headers = self.answer.headers
        if not self.has_head or "content-length" in headers or "transfer-encoding" in headers:
            raise HTTPRequestFailed("the answer was cut off")
        self.on_message_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_complete:
            self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        if status < 200 and status != 101:
            self.answer.headers.clear()  # an informational (1xx) answer: the final one follows
            return
        self.answer.status = status
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        if self.is_complete:
            return
        self._body_room -= len(body)
        if self._body_room < 0:
            raise HTTPRequestFailed("the answer is too big")
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self.has_head and not self.is_complete:
            self.is_complete = True
            self.answer.body = b"".join(self._pieces)


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
    """Send a request and return the whole answer; raises HTTPRequestFailed.

    ``request_timeout_s`` limits the whole request. As in Go, a timeout of 0 means no limit.
    """
    try:
        async with asyncio.timeout(request_timeout_s or None):
            return await _ask(method, url, body, headers or {}, connect_timeout_s, ssl_context, max_body_size)
    except HTTPRequestFailed as error:
        raise HTTPRequestFailed(f"{method} {url}: {error}") from None
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
    async with asyncio.timeout(connect_timeout_s or None):
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
    collected = _AnswerReader(max_body_size)
    while not collected.is_complete:
        data = await reader.read(_READ_SIZE)
        if data:
            collected.feed(data)
        else:
            collected.end()
    return collected.answer
