"""Addresses to listen on and to connect to, read as Go reads them: host:port, or else the path of a unix socket."""

import re
import socket
from dataclasses import dataclass

from nsqx.errors import ConfigError
from nsqx.gotext import quote

MAX_PORT = 65535

_BRACKETED = re.compile(r"\[([^\[\]]*)\]:([^:\[\]]*)")
_PLAIN = re.compile(r"([^:\[\]]*):([^:\[\]]*)")
_PORT_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class TCPAddress:
    """A host, empty for every interface, and a port, 0 for any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return format_host_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A unix socket: a path in the file system, or ``@name`` in Linux's abstract namespace."""

    path: str

    @property
    def socket_name(self) -> str:
        """What bind and connect take: the ``@`` of an abstract name stands for a zero byte."""
        return "\0" + self.path[1:] if self.path.startswith("@") else self.path

    def __str__(self) -> str:
        return self.path


Address = TCPAddress | UnixAddress


def parse_address(text: str) -> Address:
    """TCP if it reads ``host:port``, ``:port`` or ``[v6]:port``, the port a number or a service; else a socket path."""
    match = _BRACKETED.fullmatch(text) or _PLAIN.fullmatch(text)
    if match is not None:
        return TCPAddress(match.group(1), _parse_port(text, match.group(2)))
    if not text or "\0" in text:
        raise ConfigError(f"address {quote(text)}: neither host:port nor the path of a unix socket")
    return UnixAddress(text)


def parse_listen_address(text: str) -> Address:
    """An address to listen on; the text of the ConfigError says so, as Go's daemons do.

    As in Go the empty text is a unix socket in Linux's abstract namespace, whose name the system chooses.
    """
    if not text:
        return UnixAddress("")
    try:
        return parse_address(text)
    except ConfigError as error:
        raise ConfigError(f"listen ({text}) failed - {error}") from None


def parse_tcp_listen_address(text: str) -> TCPAddress:
    """The same for daemons that have no unix sockets."""
    address = parse_listen_address(text)
    if not isinstance(address, TCPAddress):
        raise ConfigError(f"listen ({text}) failed - listen tcp: address {text}: missing port in address")
    return address


def _parse_port(address: str, port: str) -> int:
    if not port:
        return 0
    if _PORT_NUMBER.fullmatch(port):
        number = int(port)
        if not 0 <= number <= MAX_PORT:
            raise ConfigError(f"address {quote(address)}: invalid port {port}")
        return number
    try:
        return socket.getservbyname(port.lower(), "tcp")
    except (OSError, ValueError):  # ValueError: characters that no service name has
        raise ConfigError(f"address {quote(address)}: unknown port {port}") from None


def format_host_port(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
