"""HTTP requests to nsqd and nsqlookupd: credentials, timeouts, a repetition over HTTPS, and the text of each failure.

A daemon that requires HTTPS answers 403 with its HTTPS port, as Go's nsqd does; the request is then repeated there.
Failures have the wording of Go's HTTP client, and the same in plain words. Does not know the meaning of the answers.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from nsqx.cluster.credentials import Credentials
from nsqx.errors import RequestFailed
from nsqx.gotext import quote
from nsqx.net.address import format_host_port
from nsqx.net.http_client import DEFAULT_MAX_BODY_SIZE, HTTPAnswer, HTTPRequestFailed, request
from nsqx.wire.http_headers import NSQ_MEDIA_TYPE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_ACCEPT = {"Accept": NSQ_MEDIA_TYPE}
# The text of ``RequestFailed.plain`` for a request that timed out: it may be carried out later.
NO_ANSWER = "no answer in time"
_CUT_OFF = "the answer was cut off"
# The most bytes of an answer that an error quotes.
_MAX_QUOTED = 1000


@dataclass(frozen=True, slots=True)
class HTTPSession:
    """The settings of requests. A timeout of 0 means no limit."""

    credentials: Credentials = field(default_factory=Credentials)
    connect_timeout_s: float = 2.0
    request_timeout_s: float = 5.0
    max_body_size: int = DEFAULT_MAX_BODY_SIZE
    limit: asyncio.Semaphore | nullcontext[None] = field(default_factory=nullcontext)
    """Limits the number of concurrent requests."""
    on_query: Callable[[str, str], None] | None = None
    """Called before a request to a daemon, with the kind of daemon and the URL."""

    async def ask(self, kind: str, method: str, url: str, body: bytes = b"") -> bytes:
        """Return the body of a daemon's answer; raises RequestFailed unless the status is 200."""
        if self.on_query is not None:
            self.on_query(kind, url)
        headers = {**_ACCEPT, **self.credentials.headers(kind)}
        answer = await self.fetch(method, url, body, headers)
        secure_url = https_url(url, answer) if answer.status == 403 else None
        if secure_url is not None:
            answer = await self.fetch(method, secure_url, body, headers)
        return body_of(answer)

    async def fetch(
        self, method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> HTTPAnswer:
        """Return the answer of any server, whatever its status, without sending tokens; raises RequestFailed."""
        try:
            async with self.limit:
                return await request(
                    method,
                    url,
                    body=body,
                    headers=headers,
                    connect_timeout_s=self.connect_timeout_s,
                    request_timeout_s=self.request_timeout_s,
                    ssl_context=self.credentials.ssl_context,
                    max_body_size=self.max_body_size,
                )
        except HTTPRequestFailed as error:
            of = f"{method.capitalize()} {quote(url)}"
            raise RequestFailed(_reason(url, error), of=of, plain=_plain_reason(url, error)) from None


def https_url(url: str, refusal: HTTPAnswer) -> str | None:
    """Return the HTTPS URL from a daemon's refusal of a plain request; None if the refusal has no port."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return None
    try:
        port = orjson.loads(refusal.body)["https_port"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if type(port) is not int or not 0 < port < 1 << 16:
        return None
    return urlunsplit(parts._replace(scheme="https", netloc=format_host_port(parts.hostname or "", port)))


def body_of(answer: HTTPAnswer) -> bytes:
    """Return the body of an answer; raises RequestFailed unless the status is 200."""
    if answer.status == 200:
        return answer.body
    text = f"got response {answer.status} {_phrase(answer.status)} {quote(answer.body[:_MAX_QUOTED])}"
    code, numbers = _refusal(answer.body)
    plain = f"the answer is {answer.status} {_phrase(answer.status)}".rstrip() + (f", {code}" if code else "")
    raise RequestFailed(text, plain=plain, status=answer.status, code=code, numbers=numbers)


def _refusal(body: bytes) -> tuple[str, dict[str, int]]:
    """Return NSQ's error code in the body of an answer, and the numbers in it; an empty code if there is none."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", {}
    if not isinstance(document, dict) or not isinstance(document.get("message"), str):
        return "", {}
    return document["message"], {name: value for name, value in document.items() if type(value) is int}


def _phrase(status: int) -> str:
    from http import HTTPStatus  # imported here because clients that never fail do not need it

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def decode(body: bytes) -> Any:
    """Decode the JSON document of an answer; raises RequestFailed."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestFailed(_json_reason(body, error)) from None
    # Before NSQ 1.0 the answer was wrapped in "data".
    return document["data"] if isinstance(document, dict) and "data" in document else document


def _json_reason(body: bytes, error: orjson.JSONDecodeError) -> str:
    if not body.strip():
        return "unexpected end of JSON input"
    first = body.lstrip()[:1].decode("latin-1")
    if first not in '{["-0123456789tfn':
        return f"invalid character {first!r} looking for beginning of value"
    return f"invalid JSON: {error}"


def _reason(url: str, failure: HTTPRequestFailed) -> str:
    """Return the reason of a failure in Go's wording."""
    cause = failure.__context__
    address = url.partition("//")[2].partition("/")[0].rpartition("@")[2]  # also for invalid addresses
    if isinstance(cause, TimeoutError) and cause.errno is None:
        return "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    if isinstance(cause, socket.gaierror):
        return f"dial tcp: lookup {urlsplit(url).hostname}: no such host"
    if isinstance(cause, ssl.SSLError):
        return f"tls: {getattr(cause, 'verify_message', '') or getattr(cause, 'reason', '') or cause}"
    if isinstance(cause, ConnectionResetError | BrokenPipeError):
        return f"read tcp {address}: read: connection reset by peer"
    if isinstance(cause, OSError) and cause.errno:
        text = os.strerror(cause.errno)
        return f"dial tcp {address}: connect: {text[:1].lower()}{text[1:]}"
    if str(failure).endswith(_CUT_OFF):
        return "EOF"
    return str(failure).rpartition(f"{url}: ")[2]


def _plain_reason(url: str, failure: HTTPRequestFailed) -> str:
    """Return the reason of a failure in plain words, without the address."""
    cause = failure.__context__
    if isinstance(cause, TimeoutError) and cause.errno is None:
        return NO_ANSWER
    if isinstance(cause, socket.gaierror):
        return f"unknown host {urlsplit(url).hostname}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {getattr(cause, 'verify_message', '') or getattr(cause, 'reason', '') or cause}"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno).lower()
    if str(failure).endswith(_CUT_OFF):
        return "the connection was closed before the end of the answer"
    return str(failure).rpartition(f"{url}: ")[2]
