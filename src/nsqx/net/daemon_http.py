"""Asking the HTTP APIs of nsqd and nsqlookupd, with a bearer token and a client certificate where they need one.

A daemon that serves a request only over HTTPS answers 403 with its HTTPS port, as Go's nsqd does, and is asked again
there. Tokens come from files or from the environment, never from the command line, and are never shown.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import orjson

from nsqx.errors import ConfigError
from nsqx.net.address import format_host_port
from nsqx.net.http_client import DEFAULT_MAX_BODY_SIZE, HTTPAnswer, request
from nsqx.net.tls import client_context
from nsqx.wire.http_headers import NSQ_MEDIA_TYPE

NSQD = "nsqd"
NSQLOOKUPD = "nsqlookupd"
TOKEN_VARIABLES = {NSQD: "NSQX_NSQD_HTTP_TOKEN", NSQLOOKUPD: "NSQX_LOOKUPD_HTTP_TOKEN"}

_ACCEPT = {"Accept": NSQ_MEDIA_TYPE}


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows to each kind of daemon; an empty token is none."""

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    ssl_context: ssl.SSLContext | None = None

    def headers(self, kind: str) -> dict[str, str]:
        """The header with the token for a kind of daemon, if there is one."""
        token = self.tokens.get(kind, "")
        return {"Authorization": f"Bearer {token}"} if token else {}


def read_tokens(
    files: Mapping[str, str], flag_of: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The token for each kind of daemon: from its file, else from the environment; raises ConfigError.

    ``flag_of`` says what the option with the file is called.
    """
    return {
        kind: _token_in(path, flag_of[kind]) if path else _checked(environment.get(variable, ""), f"${variable}")
        for kind, variable in TOKEN_VARIABLES.items()
        for path in (files.get(kind, ""),)
    }


def _token_in(path: str, flag: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag} {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    if not lines:
        raise ConfigError(f"{flag} {path}: the file holds no token, write it in the first line")
    return _checked(lines[0], f"{flag} {path}")


def _checked(token: str, where: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{where}: a token has only printable ASCII characters and no spaces")
    return token


@dataclass(frozen=True, slots=True)
class HTTPClientTLS:
    """How to speak TLS to a daemon's HTTPS: paths, and whether any certificate is believed."""

    tls_root_ca_file: str = ""
    tls_insecure_skip_verify: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    tls_min_version: str = ""

    def context(self) -> ssl.SSLContext | None:
        """None if nothing is given, which means the system's authorities and no certificate; raises ConfigError."""
        return None if self == HTTPClientTLS() else client_context(self)


async def ask(
    kind: str,
    method: str,
    url: str,
    credentials: Credentials,
    *,
    connect_timeout_s: float = 2.0,
    request_timeout_s: float = 5.0,
    max_body_size: int = DEFAULT_MAX_BODY_SIZE,
) -> HTTPAnswer:
    """Ask an nsqd or nsqlookupd, over HTTPS if it says so; raises HTTPRequestFailed."""
    headers = {**_ACCEPT, **credentials.headers(kind)}

    async def once(address: str) -> HTTPAnswer:
        return await request(
            method,
            address,
            headers=headers,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            ssl_context=credentials.ssl_context,
            max_body_size=max_body_size,
        )

    answer = await once(url)
    secure_url = https_url(url, answer) if answer.status == 403 else None
    return answer if secure_url is None else await once(secure_url)


def https_url(url: str, refusal: HTTPAnswer) -> str | None:
    """Where a daemon that refused a plain request serves HTTPS; None if the refusal does not say so."""
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
