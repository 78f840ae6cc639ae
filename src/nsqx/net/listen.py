"""Listening sockets, bound before serving starts."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from typing import cast

from nsqx.errors import ConfigError
from nsqx.net.address import Address, UnixAddress, format_host_port, parse_listen_address

BACKLOG = 4096


@dataclass(slots=True)
class Listening:
    """A bound socket. For a unix socket ``port`` is -1, and ``path`` and ``inode`` identify its file."""

    socket: socket.socket
    address: str
    port: int = -1
    path: str = ""
    inode: tuple[int, int] = (0, 0)

    def close(self) -> None:
        """Stop listening; remove the file of a unix socket unless it has been replaced."""
        if self.path and not self.path.startswith("@"):
            try:
                if _inode(self.path) == self.inode:
                    os.unlink(self.path)
            except FileNotFoundError:
                pass
        self.socket.close()


async def bind(address: Address, mode: int | None = None) -> Listening:
    """Bind an address, preferably its IPv4 address if a host name has several; raises OSError.

    A unix socket left behind by a dead server is replaced, one in use is not. ``mode`` sets the file's permissions;
    without it the umask applies.
    """
    if isinstance(address, UnixAddress):
        listening = _bind_unix(address, mode)
        if not address.path:
            name = "@" + listening.getsockname()[1:].decode()
            return Listening(listening, name, path=name)
        inode = (0, 0) if address.path.startswith("@") else _inode(address.path)
        return Listening(listening, address.path, path=address.path, inode=inode)
    listening = await _bind_tcp(address.host, address.port)
    host, port = listening.getsockname()[:2]
    return Listening(listening, format_host_port(host, port), port)


async def listen_on(text: str) -> Listening:
    """Bind the address of a flag; raise ConfigError in Go's wording."""
    address = parse_listen_address(text)
    try:
        return await bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be encoded
        reason = str(error)
        if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno is not None:
            reason = os.strerror(error.errno)
            reason = f"bind: {reason[:1].lower()}{reason[1:]}"
        network = "unix" if isinstance(address, UnixAddress) else "tcp"
        raise ConfigError(f"listen ({text}) failed - listen {network} {text}: {reason}") from None


async def _bind_tcp(host: str, port: int) -> socket.socket:
    """Bind a TCP address. As in Go, no host, ``0.0.0.0`` and ``::`` all mean every interface, IPv4 and IPv6."""
    if not host or _is_unspecified(host):
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
        host = host or "0.0.0.0"
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return socket.create_server(cast("tuple[str, int]", address[:2]), family=family, backlog=BACKLOG)


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _inode(path: str) -> tuple[int, int]:
    there = os.stat(path)
    return there.st_dev, there.st_ino


def _bind_unix(address: UnixAddress, mode: int | None) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listening.bind(address.socket_name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_dead_socket(address.path):
                raise
            os.unlink(address.path)
            listening.bind(address.socket_name)
        if mode is not None and not address.path.startswith("@"):
            os.chmod(address.path, mode)  # before it listens, so that no client can connect earlier
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _is_dead_socket(path: str) -> bool:
    """True if ``path`` is a socket without a listener."""
    if path.startswith("@") or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
