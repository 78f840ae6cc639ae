"""The head of an HTTP request: request line, headers, and the framing of its body.

Owns every rule by which a head is accepted or rejected, and Go's rules for paths and queries. llhttp checks the
grammar. This module rejects what llhttp accepts but two servers could interpret differently. No sockets, no routes, no
bodies.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import httptools

from nsqx.errors import HTTPError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqx.net.router import Route

MAX_HEADERS = 256

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_HOST = re.compile(rb"[A-Za-z0-9\-._~!$&'()*+,;=:@%\[\]]*")
_OTHER_VERSION = re.compile(rb"[A-Z]+ [^\s]+ HTTP/(?!1\.[01]\r)[0-9]\.[0-9]\r\n")
_AUTHORITY_TARGET = re.compile(rb"[^/?#*@]+:[0-9]+")
_ABSOLUTE_TARGET = re.compile(rb"https?://[^/?#]+([^?]*)(?:\?(.*))?", re.IGNORECASE | re.DOTALL)


def refusal(status: int, code: str, reason: str) -> HTTPError:
    """Return an error with a note for the log; the client sees only the code."""
    error = HTTPError(status, code)
    error.add_note(reason)
    return error


class Head:
    """One accepted head. Equal requests share it, so it must not change once it is in use."""

    __slots__ = (
        "_query",
        "chunked",
        "content_length",
        "expects_continue",
        "headers",
        "http10",
        "keep_alive",
        "method",
        "ordinary",
        "params",
        "path",
        "raw_query",
        "route",
        "target",
    )

    method: str
    target: bytes
    path: str  # unescaped; invalid UTF-8 is replaced by U+FFFD
    raw_query: bytes
    headers: Mapping[bytes, bytes]  # lower-case names; the first value of a repeated header
    content_length: int  # 0 without a body or with a chunked one
    chunked: bool
    keep_alive: bool
    http10: bool
    expects_continue: bool
    ordinary: bool  # HTTP/1.1, kept alive, with a body: the answer needs no special handling
    route: Route | None  # set by the server
    params: Mapping[str, str]

    def __init__(self, method: str, target: bytes, headers: Mapping[bytes, bytes]) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.path, self.raw_query = split_target(target)
        self.content_length = 0
        self.chunked = False
        self.keep_alive = True
        self.http10 = False
        self.expects_continue = False
        self.ordinary = True
        self.route = None
        self.params = {}
        self._query: dict[str, str] | None = None

    def query(self) -> dict[str, str]:
        """The first value of each query parameter; raises HTTPError 400 INVALID_REQUEST if the query is malformed."""
        query = self._query
        if query is None:
            query = self._query = parse_query(self.raw_query)
        return query


class _HeadReader:
    """Collects one head from llhttp's callbacks."""

    __slots__ = ("complete", "fault", "headers", "keep_alive", "parser", "target")

    def __init__(self) -> None:
        self.parser: httptools.HttpRequestParser | None = None
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.fault: HTTPError | None = None
        self.complete = False
        self.keep_alive = False

    def on_url(self, target: bytes) -> None:
        self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        headers = self.headers
        if key not in headers:
            headers[key] = value.rstrip(b" \t")
            if len(headers) > MAX_HEADERS:
                raise refusal(431, "HEADER_TOO_BIG", "too many headers")
        elif key == b"host":
            self.fault = refusal(400, "BAD_REQUEST", "more than one Host")

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        self.complete = True
        self.keep_alive = self.parser.should_keep_alive()  # llhttp resets it when the message is complete


def parse_head(raw: bytes) -> Head:
    """Parse the head in ``raw``, which ends with its empty line; raise HTTPError if it is rejected."""
    reader = _HeadReader()
    parser = reader.parser = httptools.HttpRequestParser(reader)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # nsqx never switches protocols: a body or the next request follows, as the head says
    except httptools.HttpParserError as error:
        if isinstance(error.__context__, HTTPError):
            raise error.__context__ from None
        if _OTHER_VERSION.match(raw) is not None:
            raise refusal(505, "HTTP_VERSION_NOT_SUPPORTED", str(error)) from None
        raise refusal(400, "BAD_REQUEST", str(error)) from None
    finally:
        reader.parser = None  # they refer to each other: break the cycle
    if reader.fault is not None:
        raise reader.fault
    if not reader.complete:
        raise refusal(400, "BAD_REQUEST", "head ends too early")

    method = parser.get_method()
    version = parser.get_http_version()
    # llhttp also accepts several spaces, leading empty lines, and the protocol names RTSP and ICE.
    if not raw.startswith(b"%b %b HTTP/%b\r\n" % (method, reader.target, version.encode())):
        raise refusal(400, "BAD_REQUEST", "request line is malformed")
    if version not in ("1.0", "1.1"):
        raise refusal(505, "HTTP_VERSION_NOT_SUPPORTED", "neither HTTP/1.0 nor HTTP/1.1")
    head = Head(method.decode(), reader.target, reader.headers)
    head.http10 = version == "1.0"
    # Any protocol can follow CONNECT: do not parse it as a request.
    head.keep_alive = reader.keep_alive and method != b"CONNECT"
    _check_headers(head)
    head.ordinary = head.keep_alive and not head.http10 and head.method != "HEAD"
    return head


def _check_headers(head: Head) -> None:
    headers = head.headers
    host = headers.get(b"host")
    if host is None:
        if not head.http10:
            raise refusal(400, "BAD_REQUEST", "no Host")
    elif _HOST.fullmatch(host) is None:
        raise refusal(400, "BAD_REQUEST", "Host is malformed")

    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if head.http10:
            raise refusal(400, "BAD_REQUEST", "Transfer-Encoding in HTTP/1.0")
        if coding.lower() != b"chunked":
            raise refusal(501, "NOT_IMPLEMENTED", "transfer coding other than chunked")
        head.chunked = True
    length = headers.get(b"content-length")
    if length is not None:
        if not length.isdigit() or head.chunked:
            raise refusal(400, "BAD_REQUEST", "Content-Length is malformed")
        head.content_length = int(length)

    expectation = headers.get(b"expect")
    if expectation is not None and not head.http10:
        if expectation.lower() != b"100-continue":
            raise refusal(417, "EXPECTATION_FAILED", "unknown expectation")
        head.expects_continue = head.chunked or head.content_length > 0


def split_target(target: bytes) -> tuple[str, bytes]:
    """Return the unescaped path and the raw query of a request target.

    As in Go, ``#`` is an ordinary character: ``?topic=t#ephemeral`` names the ephemeral topic.
    """
    if target.startswith(b"/"):
        path, _, query = target.partition(b"?")
    elif target == b"*":
        return "*", b""
    elif _AUTHORITY_TARGET.fullmatch(target) is not None:
        return "", b""  # the target of CONNECT
    else:
        absolute = _ABSOLUTE_TARGET.fullmatch(target)
        if absolute is None:
            raise refusal(400, "BAD_REQUEST", "request target is malformed")
        path, query = absolute[1] or b"/", absolute[2] or b""
    if b"%" in path:
        if _BAD_ESCAPE.search(path) is not None:
            raise refusal(400, "BAD_REQUEST", "bad escape in the path")
        path = unquote_to_bytes(path)
    return path.decode("utf-8", "replace"), query


def parse_query(raw: bytes) -> dict[str, str]:
    """Return the first value of each parameter, by the rules of Go's url.ParseQuery."""
    values: dict[str, str] = {}
    if not raw:
        return values
    if b";" in raw or (b"%" in raw and _BAD_ESCAPE.search(raw) is not None):
        raise HTTPError(400, "INVALID_REQUEST")
    for pair in raw.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            values.setdefault(_unescape(name), _unescape(value))
    return values


def _unescape(text: bytes) -> str:
    if b"+" in text:
        text = text.replace(b"+", b" ")
    if b"%" in text:
        text = unquote_to_bytes(text)
    return text.decode("utf-8", "replace")
