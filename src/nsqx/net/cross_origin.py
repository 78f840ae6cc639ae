"""Rules against requests that a web page of another site makes a browser send.

They cover two attacks. Cross-site request forgery: a page of another site posts to a daemon that the browser can reach.
DNS rebinding: the host name of the page resolves to the address of a daemon, so that the browser treats the daemon as
the page's own site. Clients that are not browsers send no ``Origin`` and no ``Sec-Fetch-Site``; they are not affected.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nsqx.errors import ConfigError
from nsqx.net.access import READ
from nsqx.net.responses import error_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from nsqx.net.http_head import Head
    from nsqx.net.listen import Listening
    from nsqx.net.responses import Response

    HeadCheck: TypeAlias = "Callable[[Head], Response | None]"

ANY_HOST = "*"
CROSS_ORIGIN = "CROSS_ORIGIN"
HOST_NOT_ALLOWED = "HOST_NOT_ALLOWED: the listener does not accept this Host header; add it with --allowed-host"

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_CROSS_ORIGIN_RESPONSE = error_response(
    403, f"{CROSS_ORIGIN}: pages of other sites may not make changes; --http-browser-checks=false allows it"
)
_HOST_RESPONSE = error_response(403, HOST_NOT_ALLOWED)


def check_host_names(names: Iterable[str]) -> None:
    """Raise ConfigError unless every value of --allowed-host is a host name, an address or ``*``."""
    for name in names:
        if name != ANY_HOST and not _HOST_NAME.fullmatch(name) and _address(name) is None:
            raise ConfigError(f"failed to parse --allowed-host ({name}) - a host name without port expected")


class HostRule:
    """The Host headers that a listener accepts.

    A listener on loopback accepts only its own names. Other listeners accept every name, unless --allowed-host is
    given. An IP address is always accepted: it needs no DNS, so it cannot be rebound.
    """

    def __init__(self, listening: Listening, own_names: Iterable[str], allowed_names: Iterable[str]) -> None:
        allowed = [_normalized(name) for name in allowed_names]
        self._names = frozenset(["localhost", *map(_normalized, (socket.gethostname(), *own_names)), *allowed])
        self._is_active = ANY_HOST not in allowed and (bool(allowed) or is_loopback(listening))

    def allows(self, host_header: str) -> bool:
        """True if a request with this Host header is accepted; browsers always send one."""
        if not self._is_active or not host_header:
            return True
        host = _host_of(host_header)
        return host in self._names or host.endswith(".localhost") or _address(host) is not None


def is_loopback(listening: Listening) -> bool:
    """True for a TCP listener that can be reached only from this machine."""
    if listening.path:
        return False
    address = _address(_host_of(listening.address))
    return address is not None and address.is_loopback


def is_cross_origin(site: str | None, origin: str | None, host: str) -> bool:
    """True if Sec-Fetch-Site, or Origin in older browsers, shows that a page of another origin sent the request."""
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and not _is_same_host(origin, host)


def head_check(rule: HostRule, group_of: Callable[[str, str], str]) -> HeadCheck:
    """Return a check for an HTTP server; it returns the 403 for a rejected head, else None.

    ``group_of`` returns the access group of a method and path. Requests of the read group pass: they change nothing,
    and browsers do not let pages of other sites read the answers.
    """

    def check(head: Head) -> Response | None:
        headers = head.headers
        host = headers.get(b"host", b"").decode("latin-1")
        if not rule.allows(host):
            return _HOST_RESPONSE
        if group_of(head.method, head.path) in ("", READ):
            return None
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if is_cross_origin(_text(site), _text(origin), host):
            return _CROSS_ORIGIN_RESPONSE
        return None

    return check


def parse_origin(text: str) -> tuple[str, str, int]:
    """Return scheme, host and port; an invalid origin equals only itself."""
    try:
        parts = urlsplit(text)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return "", text, 0
    return parts.scheme, (parts.hostname or "").lower(), port


def _is_same_host(origin: str, host: str) -> bool:
    """True if ``origin`` belongs to ``host``; the schemes may differ, because a proxy may have terminated TLS."""
    scheme, origin_host, origin_port = parse_origin(origin)
    if scheme not in _DEFAULT_PORTS or not origin_host:
        return False
    _, asked_host, asked_port = parse_origin(f"{scheme}://{host}")
    return (origin_host, origin_port) == (asked_host, asked_port)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _host_of(host_and_port: str) -> str:
    """Return the host of ``host:port``, ``[v6]:port`` or ``host``, normalized for comparison."""
    if host_and_port.startswith("["):
        return host_and_port[1:].partition("]")[0]
    return _normalized(host_and_port.partition(":")[0])


def _normalized(name: str) -> str:
    return name.lower().removesuffix(".")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
