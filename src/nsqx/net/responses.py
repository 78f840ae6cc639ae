"""HTTP responses and their encoding.

Owns the headers of each kind of response, as Go's nsqd sends them. A response has its whole body, or produces the body
piece by piece while it is sent. A response that is sent again within the same second, such as ``OK`` or an error,
reuses its bytes. No routes, no sockets.
"""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache
from html import escape
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, final

import orjson

from nsqx.wire.http_headers import NSQ_HEADERS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
HTML = "text/html; charset=utf-8"

# Newer Python versions name it "Content Too Large".
_PHRASES = {413: "Request Entity Too Large"}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Ends a chunked body.
LAST_CHUNK = b"0\r\n\r\n"


class _DateLine:
    """The Date header of the current second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def at(self, second: int) -> bytes:
        if second != self._second:
            self._line = b"Date: " + formatdate(second, usegmt=True).encode() + b"\r\n"
            self._second = second
        return self._line


_date_line = _DateLine()


@lru_cache(maxsize=256)
def _start_of(status: int, content_type: str | None, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Encode the part of a head that does not depend on date and body, without the protocol version."""
    phrase = _PHRASES.get(status) or HTTPStatus(status).phrase
    lines = [f" {status} {phrase}"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name}: {value}" for name, value in headers]
    text = "\r\n".join(lines) + "\r\n"
    if text.count("\n") != len(lines) or text.count("\r") != len(lines):
        raise ValueError("line break in a response header")
    return text.encode("latin-1")


def _open_head(start: bytes, http10: bool, keep_alive: bool) -> bytes:
    """Return a head without the lines that describe the body, and without its end."""
    if keep_alive:
        connection = b"Connection: keep-alive\r\n" if http10 else b""
    else:
        connection = b"" if http10 else b"Connection: close\r\n"
    return b"HTTP/%b%b%b%b" % (b"1.0" if http10 else b"1.1", start, _date_line.at(int(time())), connection)


class Response:
    """An immutable response; any number of requests can share it."""

    __slots__ = ("_second", "_start", "_wire", "body", "content_type", "headers", "status")

    status: int
    body: bytes
    content_type: str | None
    headers: tuple[tuple[str, str], ...]

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self._start = _start_of(status, content_type, headers)
        self._second = -1
        self._wire = b""

    def wire(self) -> bytes:
        """Encode for an HTTP/1.1 client whose connection stays open."""
        second = int(time())
        if second != self._second:
            self._wire = b"HTTP/1.1%b%bContent-Length: %d\r\n\r\n%b" % (
                self._start,
                _date_line.at(second),
                len(self.body),
                self.body,
            )
            self._second = second
        return self._wire

    def wire_for(self, *, http10: bool, keep_alive: bool, with_body: bool) -> bytes:
        """Encode for any other client."""
        head = _open_head(self._start, http10, keep_alive)
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(self.body), self.body if with_body else b"")


@final
class StreamedResponse:
    """A response whose body is produced while it is sent, only as fast as the client reads.

    ``pieces`` is read once, so a response answers one request. It is closed early if the client disconnects, and never
    started if the client asked for the head only: it must open files at its first piece. If it raises an error, the
    connection is closed without the end of the body. ``length`` is the size of the body, if it is known.
    """

    __slots__ = ("_start", "length", "pieces", "status")

    status: int
    pieces: AsyncGenerator[bytes, None]
    length: int | None

    def __init__(
        self,
        status: int,
        pieces: AsyncGenerator[bytes, None],
        content_type: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        length: int | None = None,
    ) -> None:
        self.status = status
        self.pieces = pieces
        self.length = length
        self._start = _start_of(status, content_type, headers)

    def needs_close(self, *, http10: bool) -> bool:
        """True if only the end of the connection can end the body: HTTP/1.0 has no chunks."""
        return http10 and self.length is None

    def head_for(self, *, http10: bool, keep_alive: bool) -> bytes:
        """Encode the head."""
        head = _open_head(self._start, http10, keep_alive)
        if self.length is not None:
            return b"%bContent-Length: %d\r\n\r\n" % (head, self.length)
        return head + (b"\r\n" if http10 else b"Transfer-Encoding: chunked\r\n\r\n")


def chunk(piece: bytes) -> bytes:
    """Encode a piece of a chunked body; an empty piece has no encoding, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


OK = Response(200, b"OK", TEXT, NSQ_HEADERS)
EMPTY = Response(200, b"", None, NSQ_HEADERS)


def text_response(text: str) -> Response:
    """Return 200 with text and NSQ's header; without a Content-Type if empty, as in Go."""
    return Response(200, text.encode(), TEXT, NSQ_HEADERS) if text else EMPTY


def json_response(value: object, status: int = 200) -> Response:
    """Return ``value`` as JSON."""
    return Response(status, orjson.dumps(value), JSON, NSQ_HEADERS)


def plain_response(status: int, text: str) -> Response:
    """Return text without NSQ's header, as in the answer to /ping."""
    return Response(status, text.encode(), TEXT)


@lru_cache(maxsize=128)
def error_response(
    status: int, code: str, headers: tuple[tuple[str, str], ...] = (), fields: tuple[tuple[str, int | str], ...] = ()
) -> Response:
    """Return NSQ's error: ``{"message":"CODE"}``, with additional headers and members."""
    return Response(status, orjson.dumps({"message": code, **dict(fields)}), JSON, NSQ_HEADERS + headers)


@lru_cache(maxsize=32)
def refusal_response(status: int, code: str) -> Response:
    """Return the answer to an invalid request: NSQ's error in the body, but not NSQ's header."""
    return Response(status, orjson.dumps({"message": code}), JSON)


def method_not_allowed(allow: str) -> Response:
    """Return 405 with the methods that the path supports."""
    body = orjson.dumps({"message": "METHOD_NOT_ALLOWED"})
    return Response(405, body, JSON, (("Allow", allow), *NSQ_HEADERS))


def options_response(allow: str) -> Response:
    """Return the answer to OPTIONS on an existing path; ``allow`` is empty for the server as a whole."""
    return Response(200, b"", None, (("Allow", allow),) if allow else ())


def redirect_response(method: str, location: str) -> Response:
    """Redirect to the correct path: 301 for GET, 307 for other methods, so that the client repeats method and body."""
    headers = (("Location", location),)
    if method != "GET":
        return Response(307, b"", None, headers)
    body = f'<a href="{escape(location)}">Moved Permanently</a>.\n\n'
    return Response(301, body.encode(), HTML, headers)
