"""Queries to nsqlookupd for the addresses of nsqds."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import orjson

from nsqx.errors import ConfigError, LookupFailed
from nsqx.net.address import format_host_port
from nsqx.net.daemon_http import NSQD, NSQLOOKUPD, Credentials, HTTPClientTLS, ask, read_tokens
from nsqx.net.http_client import HTTPRequestFailed

if TYPE_CHECKING:
    from nsqx.client.options import Options

_MAX_TRIES = 3


def lookupd_url(text: str, path: str, **query: str) -> str:
    """Return the URL of a query; raises ConfigError.

    ``text`` is host:port or an http(s) URL. A path in the URL replaces ``path``.
    """
    if not isinstance(text, str):
        raise ConfigError(f"nsqlookupd address {text!r}: must be a string such as 127.0.0.1:4161")
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"nsqlookupd address {text!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"nsqlookupd address {text!r}: use host:port or an http or https URL")
    if not port:
        raise ConfigError(f"nsqlookupd address {text!r}: the port is missing; nsqlookupd's default HTTP port is 4161")
    asked = urlencode([*parse_qsl(parts.query, keep_blank_values=True), *query.items()])
    return urlunsplit(parts._replace(path=path if parts.path in ("", "/") else parts.path, query=asked))


def http_credentials(options: Options) -> Credentials:
    """Return the tokens and certificates for the HTTP APIs of the daemons; raises ConfigError.

    Without a token for nsqlookupd the auth secret is used, as in go-nsq, unless ``lookupd_authorization`` is off.
    """
    tokens = read_tokens(
        {NSQD: options.nsqd_http_token_file, NSQLOOKUPD: options.lookupd_http_token_file},
        {NSQD: "option nsqd_http_token_file", NSQLOOKUPD: "option lookupd_http_token_file"},
    )
    if options.lookupd_authorization:
        tokens[NSQLOOKUPD] = tokens[NSQLOOKUPD] or options.auth_secret
    files = HTTPClientTLS(options.tls_root_ca_file, options.tls_insecure_skip_verify, options.tls_cert, options.tls_key)
    return Credentials(tokens, options.tls_context or files.context())


class Discovery:
    """Queries the nsqlookupds in turn. If one fails, the next one is tried, up to three."""

    def __init__(self, addresses: Iterable[str], options: Options) -> None:
        self.addresses = list(dict.fromkeys(addresses))
        for address in self.addresses:
            lookupd_url(address, "/lookup")
        self._options = options
        self._next = random.randrange(len(self.addresses)) if self.addresses else 0
        self._credentials = http_credentials(options) if self.addresses else Credentials()

    async def producers_of(self, topic: str) -> list[str]:
        """Return the TCP addresses of the nsqds that have ``topic``; raises LookupFailed."""
        return _addresses(await self._ask("/lookup", topic=topic))

    async def nodes(self) -> list[str]:
        """Return the TCP addresses of all nsqds; raises LookupFailed."""
        return _addresses(await self._ask("/nodes"))

    async def _ask(self, path: str, **query: str) -> Any:
        failures: list[str] = []
        for _ in range(min(_MAX_TRIES, len(self.addresses))):
            address = self.addresses[self._next]
            self._next = (self._next + 1) % len(self.addresses)
            try:
                return await self._ask_one(lookupd_url(address, path, **query))
            except (HTTPRequestFailed, LookupFailed) as error:
                failures.append(f"nsqlookupd {address}: {error}")
        raise LookupFailed("; ".join(failures))

    async def _ask_one(self, url: str) -> Any:
        timeout_s = self._options.lookupd_poll_timeout
        answer = await ask(
            NSQLOOKUPD, "GET", url, self._credentials, connect_timeout_s=timeout_s, request_timeout_s=timeout_s
        )
        if answer.status == 404 and b"TOPIC_NOT_FOUND" in answer.body:
            return {"producers": []}
        if answer.status != 200:
            raise LookupFailed(f"status {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
        try:
            return orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            raise LookupFailed("the answer is not JSON") from None


def _addresses(answer: Any) -> list[str]:
    try:
        # Before NSQ 1.0 the answer was wrapped in "data".
        found = answer.get("data", answer)["producers"] or []
        return [format_host_port(each["broadcast_address"], int(each["tcp_port"])) for each in found]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise LookupFailed("the answer is not from nsqlookupd") from None
