"""Addresses to listen on and to connect to, parsed as in Go: host:port, otherwise the path of a unix socket."""

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
        """The name for bind and connect: the ``@`` of an abstract name is written as a zero byte."""
        return "\0" + self.path[1:] if self.path.startswith("@") else self.path

    def __str__(self) -> str:
        return self.path


Address = TCPAddress | UnixAddress


def parse_address(text: str) -> Address:
    """Parse an address: ``host:port``, ``:port`` or ``[v6]:port`` is TCP, any other text is a socket path.

    The port is a number or a service name. Raises ConfigError.
    """
    match = _BRACKETED.fullmatch(text) or _PLAIN.fullmatch(text)
    if match is not None:
        return TCPAddress(match.group(1), _parse_port(text, match.group(2)))
    if not text or "\0" in text:
        raise ConfigError(f"address {quote(text)}: neither host:port nor the path of a unix socket")
    return UnixAddress(text)


def parse_listen_address(text: str) -> Address:
    """Parse an address to listen on; raise ConfigError with the message of Go's daemons.

    As in Go, an empty text is a unix socket in Linux's abstract namespace, with a name chosen by the kernel.
    """
    if not text:
        return UnixAddress("")
    try:
        return parse_address(text)
    except ConfigError as error:
        raise ConfigError(f"listen ({text}) failed - {error}") from None


def parse_tcp_listen_address(text: str) -> TCPAddress:
    """Parse an address to listen on for a daemon without unix sockets."""
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
    except (OSError, ValueError):  # ValueError: a character that is invalid in a service name
        raise ConfigError(f"address {quote(address)}: unknown port {port}") from None


def format_host_port(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
