"""Access to a daemon's HTTP API: bearer tokens and client certificates for each group of routes.

NSQ leaves its HTTP endpoints open, and so does a daemon without these options. There are four groups of routes:
publish, read, consume and admin. Routes that show messages are in the group consume; without tokens of its own it needs
those of the admin group, if there are any. A token of the admin group opens all groups. /ping is always open, so that
health checks need no token.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nsqx.errors import ConfigError
from nsqx.net.login_limit import PER_S, LoginLimit
from nsqx.net.peer import host_of
from nsqx.net.responses import JSON, Response
from nsqx.wire.http_headers import NSQ_HEADERS

if TYPE_CHECKING:
    from nsqx.net.requests import Request

PUBLISH, READ, CONSUME, ADMIN = GROUPS = ("publish", "read", "consume", "admin")
_TOO_MANY = Response(
    429, b'{"message":"TOO_MANY_WRONG_TOKENS"}', JSON, (*NSQ_HEADERS, ("Retry-After", str(round(1 / PER_S))))
)
_REFUSAL = Response(401, b'{"message":"UNAUTHORIZED"}', JSON, (*NSQ_HEADERS, ("WWW-Authenticate", "Bearer")))


def tls_required(https_port: int) -> Response:
    """Return the answer of Go's nsqd to a plain request that needs HTTPS; its clients then retry over HTTPS."""
    return Response(403, b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port, JSON, NSQ_HEADERS)


def access_rules(
    token_files: Mapping[str, str], certificate_groups: Sequence[str], group_of: Callable[[str, str], str]
) -> AccessRules | None:
    """Return the rules for an HTTP server, None if nothing is restricted; raises ConfigError.

    ``token_files`` maps a group to the path of its tokens, one per line, or to "". ``group_of`` returns the group of a
    method and path, or "" for an open route.
    """
    tokens = {group: _read_tokens(path) for group, path in token_files.items() if path}
    if ADMIN in tokens:
        tokens.setdefault(CONSUME, [])
    for group in certificate_groups:
        if group not in GROUPS:
            raise ConfigError(f"--http-client-cert-group must be one of {', '.join(GROUPS)}, not {group}")
    if not tokens and not certificate_groups:
        return None
    return AccessRules(tokens, certificate_groups, group_of)


def _read_tokens(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            tokens = [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise ConfigError(f"cannot read the tokens in {path} - {error.strerror}") from None
    if not tokens:
        raise ConfigError(f"no token in {path}: write one token per line")
    return tokens


class AccessRules:
    """The groups that need a token, and those that need a certificate."""

    def __init__(
        self, tokens: dict[str, list[bytes]], certificate_groups: Sequence[str], group_of: Callable[[str, str], str]
    ) -> None:
        self._tokens = tokens
        self._certificate_groups = frozenset(certificate_groups)
        self._group_of = group_of
        self._tls_required = _REFUSAL
        self._limit = LoginLimit()

    def serve_https_on(self, port: int) -> None:
        """Set the HTTPS port to which plain requests that need a certificate are sent."""
        self._tls_required = tls_required(port)

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not allowed, else None."""
        group = self._group_of(request.method, request.path)
        if not group:
            return None
        if group in self._certificate_groups and not _has_certificate(request):
            return _REFUSAL if request.tls is not None else self._tls_required
        return self._token_refusal(request, group) if group in self._tokens else None

    def _token_refusal(self, request: Request, group: str) -> Response | None:
        scheme, _, given = request.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return _REFUSAL
        token, address, now_s = given.strip(), host_of(request.remote), time.monotonic()
        if not self._limit.allows(address, token, now_s):
            return _TOO_MANY
        if _is_among(token, self._tokens[group]) or _is_among(token, self._tokens.get(ADMIN, ())):
            self._limit.right(address, token)
            return None
        # A valid token of another group is not a guess: do not count it.
        if not any(_is_among(token, tokens) for tokens in self._tokens.values()):
            self._limit.wrong(address, now_s)
        return _REFUSAL


def _is_among(given: bytes, tokens: Sequence[bytes]) -> bool:
    """True if ``given`` is one of the tokens. Compares all of them, so that the time reveals nothing."""
    return sum(hmac.compare_digest(given, token) for token in tokens) > 0


def _has_certificate(request: Request) -> bool:
    """True if the client sent a certificate; TLS has already verified it."""
    return request.tls is not None and bool(request.tls.getpeercert())
