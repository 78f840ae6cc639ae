"""The peer of a connection: its address, and the detection of a dead peer."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from nsqx.net.address import format_host_port

# Go's values.
_KEEPALIVE_S = 15
_KEEPALIVE_PROBES = 9
_IPV4_IN_IPV6 = "::ffff:"


def peer_address(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """Return ``host:port`` and host as Go writes them: ``@`` and "" for a unix socket, IPv4 even on an IPv6 socket."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "@", ""
    host = plain_host(peer[0])
    return format_host_port(host, peer[1]), host


def host_of(address: str) -> str:
    """Return the host of an address from ``peer_address``."""
    return address.rpartition(":")[0].strip("[]") or address


def plain_host(host: str) -> str:
    """Return an IPv4-mapped IPv6 address as IPv4, any other host unchanged."""
    return host.removeprefix(_IPV4_IN_IPV6) if "." in host else host


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keepalive, which detects a dead peer."""
    connection = transport.get_extra_info("socket")
    if connection is None or not isinstance(transport.get_extra_info("peername"), tuple):
        return
    # The client may already have disconnected.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
