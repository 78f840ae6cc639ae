"""HTTP requests to nsqlookupd and nsqd, with limited concurrency.

Errors have the wording of Go's HTTP client, because nsqadmin passes them on to its users. Does not know the meaning of
the answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from nsqx.errors import NSQError
from nsqx.gotext import quote
from nsqx.net.address import format_host_port
from nsqx.net.daemon_http import NSQD, NSQLOOKUPD, Credentials, HTTPClientTLS, read_tokens
from nsqx.net.http_client import HTTPAnswer, HTTPRequestFailed, request
from nsqx.units import NS_PER_S
from nsqx.wire.http_headers import NSQ_MEDIA_TYPE

if TYPE_CHECKING:
    from nsqx.nsqadmin.options import NsqadminOptions

_HEADERS = {"Accept": NSQ_MEDIA_TYPE}
# A timeout of 0 means no timeout; this is the value used instead.
_NO_LIMIT_S = 3600.0
_CUT_OFF = "the answer was cut off"


class UpstreamFailed(NSQError):
    """A request to an nsqd or nsqlookupd failed; the text says which and why."""


def credentials(options: NsqadminOptions) -> Credentials:
    """Return the credentials for nsqd and nsqlookupd; raises ConfigError."""
    files = {NSQD: options.nsqd_http_token_file, NSQLOOKUPD: options.lookupd_http_token_file}
    flags = {NSQD: "--nsqd-http-token-file", NSQLOOKUPD: "--lookupd-http-token-file"}
    tls = HTTPClientTLS(
        options.http_client_tls_root_ca_file,
        options.http_client_tls_insecure_skip_verify,
        options.http_client_tls_cert,
        options.http_client_tls_key,
    )
    return Credentials(read_tokens(files, flags), tls.context())


class Upstream:
    """Sends at most ``concurrency`` requests at a time."""

    def __init__(self, options: NsqadminOptions, shown: Credentials, concurrency: int) -> None:
        self._credentials = shown
        self._places = asyncio.Semaphore(concurrency)
        self._connect_timeout_s = options.http_client_connect_timeout / NS_PER_S or _NO_LIMIT_S
        self._request_timeout_s = options.http_client_request_timeout / NS_PER_S or _NO_LIMIT_S

    async def get(self, kind: str, url: str) -> Any:
        """Return the JSON document at ``url`` of an nsqd or nsqlookupd; raises UpstreamFailed."""
        return decode(await self.get_bytes(kind, url))

    async def get_bytes(self, kind: str, url: str) -> bytes:
        """Return the body at ``url``, to be decoded later; raises UpstreamFailed."""
        return (await self._ask("GET", url, b"", self._credentials.headers(kind))).body

    async def get_external(self, url: str, headers: dict[str, str]) -> Any:
        """Return the JSON document at ``url`` of another server, without sending our tokens; raises UpstreamFailed."""
        return decode((await self._ask("GET", url, b"", headers)).body)

    async def post(self, kind: str, url: str, body: bytes = b"") -> None:
        """Send a POST; raise UpstreamFailed unless it succeeds."""
        await self._ask("POST", url, body, self._credentials.headers(kind))

    async def fetch(
        self, method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> HTTPAnswer:
        """Return any answer, whatever its status; raise UpstreamFailed if there is none."""
        try:
            async with self._places:
                return await request(
                    method,
                    url,
                    body=body,
                    headers=headers,
                    connect_timeout_s=self._connect_timeout_s,
                    request_timeout_s=self._request_timeout_s,
                    ssl_context=self._credentials.ssl_context,
                )
        except HTTPRequestFailed as error:
            raise UpstreamFailed(f"{method.capitalize()} {quote(url)}: {_reason(url, error)}") from None

    async def _ask(self, method: str, url: str, body: bytes, headers: dict[str, str]) -> HTTPAnswer:
        """Return the answer; raise UpstreamFailed unless the status is 200. Retry with TLS if nsqd demands it."""
        sent = {**_HEADERS, **headers}
        answer = await self.fetch(method, url, body, sent)
        if answer.status == 403 and not url.startswith("https"):
            answer = await self.fetch(method, _https_url(url, answer.body), body, sent)
        if answer.status != 200:
            raise UpstreamFailed(f"got response {answer.status} {_phrase(answer.status)} {quote(answer.body)}")
        return answer


def decode(body: bytes) -> Any:
    """Decode a JSON document; raises UpstreamFailed."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed(_json_reason(body, error)) from None


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _https_url(url: str, refusal: bytes) -> str:
    """Return the HTTPS URL of an nsqd that answers only over TLS."""
    try:
        document = orjson.loads(refusal)
        port = document["https_port"]
        if type(port) is not int:
            raise KeyError("https_port")
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed(_json_reason(refusal, error)) from None
    except (KeyError, TypeError):
        raise UpstreamFailed(f"got response 403 Forbidden {quote(refusal)}") from None
    parts = urlsplit(url)
    return urlunsplit(parts._replace(scheme="https", netloc=format_host_port(parts.hostname or "", port)))


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
