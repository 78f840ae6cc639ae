"""Who is asking, and whether they may.

Three questions, each with its own rule: does the request come from our own page or from no page at all (origin), which
role does its token give (view or operate), and is its user an administrator (the header of a proxy that is trusted).
Knows headers and addresses, not what is being asked for.
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
# What Go leaves as it is in the path of a URL that it writes.
_UNESCAPED = "/$&+,:;=@"


class Role(IntEnum):
    """What a caller may do; each role includes those before it."""

    NOBODY = 0
    VIEW = 1
    OPERATE = 2


class Caller(NamedTuple):
    """Who made a request."""

    remote: str
    """``host:port`` of the connection, as Go writes it."""
    user: str
    """From the proxy's header if that is trusted, else empty."""
    basic_user: str
    """From basic authentication, which a proxy has checked or nobody has."""
    role: Role
    user_agent: str
    url: str

    @property
    def shown_user(self) -> str:
        return self.user or self.basic_user


class Access:
    """The rules that the options set."""

    def __init__(self, options: NsqadminOptions, log: Log) -> None:
        """Raises ConfigError."""
        self._options = options
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
                (options.view_token, Role.VIEW),
            )
            if token
        ]
        # Anybody may look if the only token is one for changing things.
        must_log_in = bool(options.auth_token or options.view_token)
        self._role_without_token = Role.NOBODY if must_log_in else Role.VIEW if self._tokens else Role.OPERATE
        self._sessions: OrderedDict[str, tuple[float, Role]] = OrderedDict()
        self._warned: set[str] = set()
        self._limit = LoginLimit()

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    def caller(self, request: Request, now_s: float) -> Caller:
        """Who made a request; ``now_s`` is of a clock that only goes forward."""
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
        """Note where requests come in: a listener on loopback serves only names that are its own."""
        proxied = [host for _, host, _ in self._origins]
        self._host_rule = HostRule(listening, proxied, self._options.allowed_hosts)

    def check_host(self, request: Request) -> None:
        """Refuse a Host that is not ours, to which a page of another site may have rebound its name."""
        if self._host_rule is not None and not self._host_rule.allows(request.headers.get("host", "")):
            raise HTTPError(403, HOST_NOT_ALLOWED)

    def check_origin(self, request: Request) -> None:
        """Refuse what a page of another site makes a browser send; raises HTTPError.

        Programs that are no browsers send neither header and pass.
        """
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        if origin is not None and parse_origin(origin) in self._origins:
            return
        if is_cross_origin(site, origin, request.headers.get("host", "")):
            raise HTTPError(403, CROSS_ORIGIN)

    # Roles

    def require(self, caller: Caller, role: Role) -> None:
        """Raise HTTPError unless the caller has the role, and for changes is an administrator too."""
        if caller.role < role:
            raise HTTPError(401, "UNAUTHORIZED") if caller.role == Role.NOBODY else HTTPError(403, "FORBIDDEN")
        if role == Role.OPERATE and not self.is_admin(caller):
            raise HTTPError(403, "FORBIDDEN")

    def is_admin(self, caller: Caller) -> bool:
        """True if the caller may change things, as far as users are concerned."""
        users = self._options.admin_users
        return not users or caller.user in users

    def check_config(self, request: Request) -> None:
        """Raise HTTPError unless the options may be seen and changed from where the request comes."""
        if self._config_network is None:
            return
        address = _address(request.client.host if request.client else "")
        if address is None:
            raise HTTPError(400, "INVALID_REMOTE_ADDR")
        if not _is_in(address, (self._config_network,)):
            raise HTTPError(403, "FORBIDDEN")

    def role_of_token(self, request: Request, token: str, now_s: float) -> Role:
        """What a token allows; raises HTTPError if too many wrong ones came from the same address."""
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
        session = self._sessions.get(request.cookies.get(COOKIE, ""))
        if session is not None and session[0] > now_s:
            role = max(role, session[1])
        return role

    # Sessions

    def open_session(self, role: Role, now_s: float) -> str:
        """Remember a role for a browser; the secret that it shows from now on."""
        for key in [key for key, (until_s, _) in self._sessions.items() if until_s <= now_s]:
            del self._sessions[key]
        while len(self._sessions) >= _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        key = secrets.token_urlsafe(32)
        self._sessions[key] = now_s + SESSION_S, role
        return key

    def close_session(self, request: Request) -> None:
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    def cookie(self, request: Request, key: str) -> str:
        """The Set-Cookie that gives a browser its secret; an empty one takes it away."""
        host = request.client.host if request.client else ""
        age_s = int(SESSION_S) if key else 0
        parts = [
            f"{COOKIE}={key}",
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
        """True if the browser speaks TLS, to us or to a proxy."""
        headers = request.headers
        if request.scope["scheme"] == "https" or headers.get("x-scheme") == "https":
            return True
        return headers.get("x-forwarded-proto") == "https" and self._is_trusted(host)

    def _address_of(self, request: Request) -> str:
        """Whose logins are counted together: the client that a trusted proxy names, else the peer."""
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
            self._log.warn("%s from %s is not believed: it is no --trusted-proxy", name, host)
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
