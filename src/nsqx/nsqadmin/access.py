"""Access rules: the origin of a request, the role of its token, and whether its user is an administrator.

The origin check rejects requests that a page of another site makes a browser send. A token gives the role ``VIEW``,
``CONSUME`` or ``OPERATE``. The user's name comes from a header that a trusted proxy sets. This module reads headers and
addresses; it does not know the routes.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from base64 import b64decode
from binascii import Error as Base64Error
from collections import OrderedDict
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from nsqx.errors import HTTPError
from nsqx.net.address import format_host_port
from nsqx.net.cross_origin import CROSS_ORIGIN, HOST_NOT_ALLOWED, HostRule, is_cross_origin, parse_origin
from nsqx.net.login_limit import LoginLimit
from nsqx.nsqadmin.options import Network, NsqadminOptions, config_network, trusted_networks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from nsqx.log import Log
    from nsqx.net.listen import Listening

COOKIE = "nsqadmin_session"
SESSION_S = 12 * 3600.0
_MAX_SESSIONS = 1000
_MAX_WARNED = 100
# Characters that Go leaves unescaped in the path of a URL.
_UNESCAPED = "/$&+,:;=@"


class Role(IntEnum):
    """The rights of a caller; each role includes the roles before it."""

    NOBODY = 0
    VIEW = 1
    CONSUME = 2
    """Also read the bodies of messages."""
    OPERATE = 3


class Caller(NamedTuple):
    """The author of a request."""

    remote: str
    """``host:port`` of the connection, as Go writes it."""
    user: str
    """The user from the proxy's header; empty if the proxy is not trusted."""
    basic_user: str
    """The user from basic authentication. nsqadmin does not check the password."""
    role: Role
    user_agent: str
    url: str

    @property
    def shown_user(self) -> str:
        return self.user or self.basic_user


class Access:
    """The access rules of one nsqadmin."""

    def __init__(self, options: NsqadminOptions, log: Log) -> None:
        """Raises ConfigError."""
        self._options = options
        # The browser sends the cookie of "/" to all clusters, so each has a name of its own.
        self._cookie = f"{COOKIE}-{options.cluster_name}" if options.cluster_name else COOKIE
        self._log = log
        self._trusted = trusted_networks(options)
        self._config_network = config_network(options)
        self._origins = frozenset(map(parse_origin, options.allowed_origins))
        self._host_rule: HostRule | None = None
        self._tokens = [
            (token.encode(), role)
            for token, role in (
                (options.auth_token, Role.OPERATE),
                (options.operate_token, Role.OPERATE),
                (options.consume_token, Role.CONSUME),
                (options.view_token, Role.VIEW),
            )
            if token
        ]
        # Without an auth token or a view token, viewing needs no token.
        must_log_in = bool(options.auth_token or options.view_token)
        self._role_without_token = Role.NOBODY if must_log_in else Role.VIEW if self._tokens else Role.OPERATE
        self._sessions: OrderedDict[str, tuple[float, Role]] = OrderedDict()
        self._warned: set[str] = set()
        self._limit = LoginLimit()

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    def caller(self, request: Request, now_s: float) -> Caller:
        """Identify the author of a request; ``now_s`` is monotonic time."""
        host, port = request.client or ("", 0)
        headers = request.headers
        is_https = self._is_https(request, host)
        path = quote(request.scope["path"], safe=_UNESCAPED)
        url = f"{'https' if is_https else 'http'}://{headers.get('host', '')}{path}"
        query = request.scope["query_string"].decode("latin-1")
        if query:
            url += f"?{query}"
        return Caller(
            format_host_port(host, port) if host else "@",
            self._user(request, host),
            _basic_user(headers.get("authorization", "")),
            self._role(request, now_s),
            headers.get("user-agent", ""),
            url,
        )

    # Host and origin

    def serve_on(self, listening: Listening) -> None:
        """Set the listener; a listener on loopback accepts only its own names in the Host header."""
        proxied = [host for _, host, _ in self._origins]
        self._host_rule = HostRule(listening, proxied, self._options.allowed_hosts)

    def check_host(self, request: Request) -> None:
        """Raise HTTPError if the Host is not allowed (protects against DNS rebinding)."""
        if self._host_rule is not None and not self._host_rule.allows(request.headers.get("host", "")):
            raise HTTPError(403, HOST_NOT_ALLOWED)

    def check_origin(self, request: Request) -> None:
        """Raise HTTPError for a request that a page of another site made a browser send.

        Clients that are not browsers send neither header and pass.
        """
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        if origin is not None and parse_origin(origin) in self._origins:
            return
        if is_cross_origin(site, origin, request.headers.get("host", "")):
            raise HTTPError(403, CROSS_ORIGIN)

    # Roles

    def require(self, caller: Caller, role: Role) -> None:
        """Raise HTTPError unless the caller has the role; ``--admin-user`` limits messages and changes to its users."""
        if caller.role < role:
            raise HTTPError(401, "UNAUTHORIZED") if caller.role == Role.NOBODY else HTTPError(403, "FORBIDDEN")
        if (role == Role.OPERATE and not self.may_operate(caller)) or (
            role == Role.CONSUME and not self.may_consume(caller)
        ):
            raise HTTPError(403, "FORBIDDEN")

    def may_operate(self, caller: Caller) -> bool:
        """True if the caller may make changes."""
        return caller.role == Role.OPERATE and self.is_admin(caller)

    def may_consume(self, caller: Caller) -> bool:
        """True if the caller may read the bodies of messages."""
        return caller.role == Role.CONSUME or self.may_operate(caller)

    def is_admin(self, caller: Caller) -> bool:
        """True if ``--admin-user`` allows this caller to make changes."""
        users = self._options.admin_users
        return not users or caller.user in users

    def check_config(self, request: Request) -> None:
        """Raise HTTPError unless the client's address may use /config."""
        if self._config_network is None:
            return
        address = _address(request.client.host if request.client else "")
        if address is None:
            raise HTTPError(400, "INVALID_REMOTE_ADDR")
        if not _is_in(address, (self._config_network,)):
            raise HTTPError(403, "FORBIDDEN")

    def role_of_token(self, request: Request, token: str, now_s: float) -> Role:
        """Return the role of a token; raise HTTPError 429 after too many wrong tokens from the same address."""
        given, address = token.encode("utf-8", "replace"), self._address_of(request)
        if not self._limit.allows(address, given, now_s):
            raise HTTPError(429, "TOO_MANY_WRONG_TOKENS")
        found = Role.NOBODY
        for known, role in self._tokens:
            if hmac.compare_digest(known, given):
                found = max(found, role)
        if found == Role.NOBODY:
            self._limit.wrong(address, now_s)
        else:
            self._limit.right(address, given)
        return found

    def _role(self, request: Request, now_s: float) -> Role:
        role = self._role_without_token
        if not self._tokens:
            return role
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            role = max(role, self.role_of_token(request, token.strip(), now_s))
        session = self._sessions.get(request.cookies.get(self._cookie, ""))
        if session is not None and session[0] > now_s:
            role = max(role, session[1])
        return role

    # Sessions

    def open_session(self, role: Role, now_s: float) -> str:
        """Store a role for a browser and return the secret of the session."""
        for key in [key for key, (until_s, _) in self._sessions.items() if until_s <= now_s]:
            del self._sessions[key]
        while len(self._sessions) >= _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        key = secrets.token_urlsafe(32)
        self._sessions[key] = now_s + SESSION_S, role
        return key

    def close_session(self, request: Request) -> None:
        self._sessions.pop(request.cookies.get(self._cookie, ""), None)

    def cookie(self, request: Request, key: str) -> str:
        """Return the Set-Cookie header for a session; an empty ``key`` deletes the cookie."""
        host = request.client.host if request.client else ""
        age_s = int(SESSION_S) if key else 0
        parts = [
            f"{self._cookie}={key}",
            f"Path={self._options.base_path}",
            f"Max-Age={age_s}",
            "HttpOnly",
            "SameSite=Strict",
        ]
        if self._is_https(request, host):
            parts.append("Secure")
        return "; ".join(parts)

    # Proxies

    def _is_https(self, request: Request, host: str) -> bool:
        """True if the browser uses TLS, to nsqadmin or to a proxy."""
        headers = request.headers
        if request.scope["scheme"] == "https" or headers.get("x-scheme") == "https":
            return True
        return headers.get("x-forwarded-proto") == "https" and self._is_trusted(host)

    def _address_of(self, request: Request) -> str:
        """Return the address for the login limit: the client named by a trusted proxy, else the peer."""
        host = request.client.host if request.client else ""
        forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        return forwarded if forwarded and self._is_trusted(host) else host

    def _is_trusted(self, host: str) -> bool:
        address = _address(host)
        return address is not None and _is_in(address, self._trusted)

    def _user(self, request: Request, host: str) -> str:
        name = self._options.acl_http_header
        user = request.headers.get(name, "")
        if not user or self._is_trusted(host):
            return user
        if self._options.admin_users and host not in self._warned and len(self._warned) < _MAX_WARNED:
            self._warned.add(host)
            self._log.warn("ignoring %s from %s: the address is not a --trusted-proxy", name, host)
        return ""


def _basic_user(authorization: str) -> str:
    scheme, _, credentials = authorization.partition(" ")
    if scheme != "Basic":
        return ""
    try:
        user, colon, _ = b64decode(credentials, validate=True).decode("utf-8", "replace").partition(":")
    except (Base64Error, ValueError):
        return ""
    return user if colon else ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _is_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
