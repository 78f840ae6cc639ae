"""An HTTP client for many requests whose callers need only the status; connections are reused."""

from __future__ import annotations

import asyncio
import base64
import ssl
import string
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

import httptools

from nsqx.errors import ConfigError, NSQError

_READ_SIZE: Final = 64 * 1024
_MAX_IDLE: Final = 100
_MAX_IDLE_S: Final = 90.0
_MAX_REDIRECTS: Final = 10
_PERMANENT_WITH_BODY: Final = (307, 308)
_REDIRECTS: Final = (301, 302, 303, *_PERMANENT_WITH_BODY)
_PRIVATE_HEADERS: Final = ("authorization", "cookie")


class SendFailed(NSQError):
    """No valid answer arrived; the text is the reason."""


def check_url(text: str) -> str:
    """Return ``text`` if it is an http or https URL; raises ConfigError."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"address {text!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or set(text) & set(string.whitespace):
        raise ConfigError(f"invalid address {text!r}: use http://host:port/path")
    return text


class _Answer:
    """Collects the status of one answer from httptools' callbacks."""

    def __init__(self) -> None:
        self.status = 0
        self.location = ""
        self.has_begun = False
        self.is_complete = False
        self.may_go_on = False
        self._ends_with_connection = True
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse received bytes; raises HttpParserError."""
        self.has_begun = True
        self._parser.feed_data(data)

    def end(self) -> None:
        """Handle the end of the connection; raises SendFailed if the answer is incomplete."""
        if not self.status or not self._ends_with_connection:
            raise SendFailed("the connection was closed before the end of the answer")
        self.is_complete = True

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"location":
            self.location = value.decode("latin-1")
        elif lower in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status

    def on_message_complete(self) -> None:
        if self.status:
            self.is_complete = True
            self.may_go_on = bool(self._parser.should_keep_alive())


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since_s: float = 0.0


class HTTPSender:
    """Sends requests, each with a timeout. A timeout of 0 means no limit, as in Go."""

    def __init__(self, connect_timeout_s: float, request_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._idle: dict[tuple[str, str], list[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> int:
        """Send a request and return the status after the whole answer has arrived; raises SendFailed.

        Follows redirects, except those that turn a POST into a GET, because the body would be lost.
        """
        try:
            async with asyncio.timeout(self._request_timeout_s or None):
                return await self._send(method, url, dict(headers), body)
        except TimeoutError:
            raise SendFailed(f"{method} {url}: no answer within {self._request_timeout_s:g} s") from None
        except SendFailed as error:
            raise SendFailed(f"{method} {url}: {error}") from None
        except OSError as error:
            raise SendFailed(f"{method} {url}: {error.strerror or error}") from error
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            raise SendFailed(f"{method} {url}: the answer is not HTTP: {error}") from error

    async def close(self) -> None:
        """Close all idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.writer.close()
        self._idle.clear()

    async def _send(self, method: str, url: str, headers: dict[str, str], body: bytes) -> int:
        for _ in range(_MAX_REDIRECTS + 1):
            parts = urlsplit(url)
            answer = await self._ask(parts, encode_request(method, parts, headers, body))
            followed = _REDIRECTS if method == "GET" else _PERMANENT_WITH_BODY
            if answer.status not in followed or not answer.location:
                return answer.status
            url = check_url(urljoin(url, answer.location))
            if urlsplit(url).netloc != parts.netloc:
                headers = {name: value for name, value in headers.items() if name.lower() not in _PRIVATE_HEADERS}
        raise SendFailed(f"stopped after {_MAX_REDIRECTS} redirects")

    async def _ask(self, parts: SplitResult, data: bytes) -> _Answer:
        """Send on an idle connection if there is one; if the server has closed it, send again on a new one."""
        key = (parts.scheme, parts.netloc)
        kept = self._take_idle(key)
        if kept is not None:
            answer = _Answer()
            try:
                await self._exchange(key, kept, data, answer)
                return answer
            except (OSError, SendFailed):
                if answer.has_begun:
                    raise
        answer = _Answer()
        await self._exchange(key, await self._connect(parts), data, answer)
        return answer

    async def _exchange(self, key: tuple[str, str], connection: _Connection, data: bytes, answer: _Answer) -> None:
        is_done = False
        try:
            connection.writer.write(data)
            while not answer.is_complete:
                received = await connection.reader.read(_READ_SIZE)
                if received:
                    answer.feed(received)
                else:
                    answer.end()
            is_done = answer.may_go_on
        finally:
            if is_done:
                self._keep(key, connection)
            else:
                connection.writer.close()

    def _take_idle(self, key: tuple[str, str]) -> _Connection | None:
        connections = self._idle.get(key, [])
        while connections:
            connection = connections.pop()
            is_fresh = time.monotonic() - connection.idle_since_s < _MAX_IDLE_S
            if is_fresh and not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection
            connection.writer.close()
        return None

    def _keep(self, key: tuple[str, str], connection: _Connection) -> None:
        connections = self._idle.setdefault(key, [])
        if len(connections) >= _MAX_IDLE:
            connection.writer.close()
            return
        connection.idle_since_s = time.monotonic()
        connections.append(connection)

    async def _connect(self, parts: SplitResult) -> _Connection:
        is_tls = parts.scheme == "https"
        if is_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        host = parts.hostname or ""
        port = parts.port or (443 if is_tls else 80)
        try:
            async with asyncio.timeout(self._connect_timeout_s or None):
                streams = await asyncio.open_connection(host, port, ssl=self._tls if is_tls else None)
        except TimeoutError:
            raise SendFailed(f"no connection within {self._connect_timeout_s:g} s") from None
        return _Connection(*streams)


def encode_request(method: str, parts: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes of a request; user and password in the address become an Authorization header."""
    target = quote(parts.path or "/", safe=string.punctuation)
    if parts.query:
        target += "?" + quote(parts.query, safe=string.punctuation)
    fields = {"host": ("Host", parts.netloc.rpartition("@")[2])}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        fields["authorization"] = ("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    if method == "POST":
        fields["content-length"] = ("Content-Length", str(len(body)))
    fields["accept-encoding"] = ("Accept-Encoding", "gzip")
    for name, value in headers.items():
        fields[name.lower()] = (name, value)
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.values()), "", ""]
    return "\r\n".join(lines).encode() + body
