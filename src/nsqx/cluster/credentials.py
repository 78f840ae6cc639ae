"""The credentials for the HTTP APIs of nsqd and nsqlookupd: bearer tokens and client certificates.

Tokens come from files or from the environment, never from the command line, and are never printed.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from nsqx.errors import ConfigError
from nsqx.net.tls import client_context

NSQD = "nsqd"
NSQLOOKUPD = "nsqlookupd"
TOKEN_VARIABLES = {NSQD: "NSQX_NSQD_HTTP_TOKEN", NSQLOOKUPD: "NSQX_LOOKUPD_HTTP_TOKEN"}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The tokens and TLS settings for each kind of daemon; an empty token means none."""

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    ssl_context: ssl.SSLContext | None = None

    def headers(self, kind: str) -> dict[str, str]:
        """Return the authorization header for a kind of daemon; empty without a token."""
        token = self.tokens.get(kind, "")
        return {"Authorization": f"Bearer {token}"} if token else {}


def read_tokens(
    files: Mapping[str, str], flag_of: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the token for each kind of daemon, from its file or else from the environment; raises ConfigError.

    ``flag_of`` maps a kind to the name of its flag, for error messages.
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
        raise ConfigError(f"{flag} {path}: no token in the file; write it in the first line")
    return _checked(lines[0], f"{flag} {path}")


def _checked(token: str, where: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{where}: a token must consist of printable ASCII characters without spaces")
    return token


@dataclass(frozen=True, slots=True)
class HTTPClientTLS:
    """TLS settings of a client for HTTPS: file paths, and whether any server certificate is accepted."""

    tls_root_ca_file: str = ""
    tls_insecure_skip_verify: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    tls_min_version: str = ""

    def context(self) -> ssl.SSLContext | None:
        """Return the SSL context, None for the defaults (system authorities, no certificate); raises ConfigError."""
        return None if self == HTTPClientTLS() else client_context(self)
