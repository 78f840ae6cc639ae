"""Opening a connection to an nsqd: connect, identify, upgrade, authenticate."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.client.connection import NsqdConnection
from nsqx.errors import ConfigError, ConnectFailed, ConnectRefused, InvalidFrame, NSQError
from nsqx.net.address import TCPAddress, parse_address
from nsqx.net.compression import Deflate, make_snappy
from nsqx.net.tls import TLSFailed, TLSLayer, client_context
from nsqx.wire import requests

if TYPE_CHECKING:
    from nsqx.client.options import Options

# The handshake takes a few round trips, and nsqd may query an auth server.
SETUP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings in nsqd's answer to IDENTIFY."""

    version: str = ""
    max_rdy_count: int = 2500
    max_msg_timeout_s: float = 900.0
    msg_timeout_s: float = 60.0
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 6
    snappy: bool = False
    sample_rate: int = 0
    auth_required: bool = False
    # An id that stays the same over restarts and changes of address. Go's nsqd does not send one.
    broker_id: str = ""
    # The command XPUB, if it was asked for. Go's nsqd does not know it.
    xpub: bool = False
    # The port of nsqd's HTTP API; 0 if nsqd was not asked or has none. Go's nsqd does not send it.
    http_port: int = 0


def check_address(text: str) -> str:
    """Return an address of nsqd if it is valid; raises ConfigError."""
    if not isinstance(text, str):
        raise ConfigError(f"address {text!r}: must be a string such as 127.0.0.1:4150")
    if "://" in text:
        raise ConfigError(f"address {text!r}: use host:port without {text.partition('://')[0]}://")
    address = parse_address(text)
    if isinstance(address, TCPAddress) and not address.port:
        raise ConfigError(f"address {text!r}: the port is missing; nsqd's default TCP port is 4150")
    if not isinstance(address, TCPAddress) and "/" not in text and not text.startswith("@"):
        raise ConfigError(f"address {text!r}: the port is missing; nsqd's default TCP port is 4150")
    return text


async def open_connection(
    address: str,
    options: Options,
    *,
    max_frame_size: int = 0,
    needs_xpub: bool = False,
    asks_extras: bool = False,
) -> tuple[NsqdConnection, Terms]:
    """Connect and do the handshake; raises ConnectFailed or ConnectRefused. The connection has no receiver yet.

    With ``needs_xpub``, an nsqd that does not know XPUB is refused. With ``asks_extras``, nsqx's
    nsqd adds to its answers: the terms have the HTTP port, and the answer to SUB has the log of the topic.
    """
    loop = asyncio.get_running_loop()
    # An interval of 0 selects nsqd's default.
    has_heartbeats = options.heartbeat_interval >= 0
    connection = NsqdConnection(
        address,
        loop,
        read_timeout_s=options.read_timeout if has_heartbeats else 0.0,
        write_timeout_s=options.write_timeout,
        max_frame_size=max_frame_size,
    )
    try:
        await _connect(connection, address, options, loop)
        async with asyncio.timeout(SETUP_TIMEOUT_S):
            return connection, await _set_up(connection, options, needs_xpub, asks_extras)
    except TimeoutError:
        connection.fail(ConnectFailed("the handshake timed out"))
        raise ConnectFailed(f"{address}: nsqd did not answer in time") from None
    except (OSError, NSQError) as error:
        connection.fail(error)
        raise connect_error(address, error) from error
    except BaseException:
        connection.fail(ConnectFailed("the handshake was cancelled"))
        raise


def connect_error(address: str, error: Exception) -> ConnectFailed:
    """Return the error of a failed attempt: ConnectRefused if nsqd answered and rejected it."""
    text = str(error)
    text = text if text.startswith(address) else f"{address}: {text}"
    if isinstance(error, ConnectRefused | InvalidFrame | TLSFailed):
        return ConnectRefused(text)
    return ConnectFailed(text)


async def _connect(connection: Any, text: str, options: Options, loop: asyncio.AbstractEventLoop) -> None:
    address = parse_address(text)
    timeout_s = options.dial_timeout
    try:
        async with asyncio.timeout(timeout_s if timeout_s > 0 else None):
            if isinstance(address, TCPAddress):
                await loop.create_connection(
                    lambda: connection,
                    address.host or "127.0.0.1",
                    address.port,
                    local_addr=_local_address(options.local_addr),
                )
            else:
                await loop.create_unix_connection(lambda: connection, address.socket_name)
    except TimeoutError:
        raise ConnectFailed(f"{text}: no connection within {timeout_s:g} s") from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise ConnectFailed(f"{text}: {reason}") from error
    except UnicodeError as error:
        raise ConnectFailed(f"{text}: invalid host name") from error


async def _set_up(connection: NsqdConnection, options: Options, needs_xpub: bool, asks_extras: bool) -> Terms:
    connection.send(requests.MAGIC)
    fields = identify_fields(options)
    if needs_xpub or asks_extras:
        fields["nsqx"] = True
    terms = _read_terms(await connection.request(requests.encode_identify(fields)))
    if needs_xpub and not terms.xpub:
        raise ConnectRefused(
            f"{connection.address}: this nsqd does not know XPUB, which producer_name needs: use the nsqd of nsqx"
        )
    await _upgrade(connection, options, terms)
    if terms.auth_required and not options.auth_secret:
        raise ConnectRefused(f"{connection.address}: nsqd requires authentication: set auth_secret")
    if options.auth_secret and terms.auth_required:
        await connection.request(requests.encode_auth(options.auth_secret))
    return terms


def identify_fields(options: Options) -> dict[str, Any]:
    """Return the fields of IDENTIFY."""
    return {
        "client_id": options.client_id,
        "hostname": options.hostname,
        "user_agent": options.user_agent,
        "feature_negotiation": True,
        "heartbeat_interval": _milliseconds(options.heartbeat_interval),
        "output_buffer_size": options.output_buffer_size,
        "output_buffer_timeout": _milliseconds(options.output_buffer_timeout),
        "tls_v1": options.tls_v1,
        "snappy": options.snappy,
        "deflate": options.deflate,
        "deflate_level": options.deflate_level,
        "sample_rate": options.sample_rate,
        "msg_timeout": _milliseconds(options.msg_timeout),
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
    }


def _milliseconds(seconds: float) -> int:
    return -1 if seconds < 0 else round(seconds * 1000)


def _read_terms(answer: bytes) -> Terms:
    if not answer.startswith(b"{"):
        return Terms()
    try:
        found = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise ConnectRefused("nsqd's answer to IDENTIFY is not JSON") from None
    try:
        for name in ("msg_timeout", "max_msg_timeout"):
            found[f"{name}_s"] = found.pop(name, 0) / 1000
    except TypeError:
        raise ConnectRefused(f"nsqd's answer to IDENTIFY has a {name} that is not a number") from None
    extras = found.get("nsqx")
    extras = extras if isinstance(extras, dict) else {}
    found["xpub"] = extras.get("xpub") is True
    port = extras.get("http_port")
    found["http_port"] = port if type(port) is int and 0 < port < 1 << 16 else 0
    return Terms(**{name: found[name] for name in Terms.__slots__ if name in found})


async def _upgrade(connection: NsqdConnection, options: Options, terms: Terms) -> None:
    """Add TLS, then compression inside it. nsqd confirms each layer with an OK that is sent through it."""
    if options.tls_v1 and not terms.tls_v1:
        raise ConnectRefused(f"{connection.address}: tls_v1 is set, but nsqd does not offer TLS")
    if terms.tls_v1:
        context = options.tls_context or client_context(options)
        connection.add_layer(TLSLayer(context, server_hostname=_host(connection.address)))
        await _confirmed(connection)
    if terms.snappy:
        connection.add_layer(make_snappy())
        await _confirmed(connection)
    if terms.deflate:
        connection.add_layer(Deflate(terms.deflate_level))
        await _confirmed(connection)


async def _confirmed(connection: NsqdConnection) -> None:
    answer = await connection.request(b"")
    if answer != b"OK":
        raise ConnectRefused(f"{connection.address}: expected OK after an upgrade, got {answer!r}")


def _local_address(text: str) -> tuple[str, int] | None:
    """Return the local host and port to connect from; None if the system chooses."""
    address = parse_address(text) if text else None
    return (address.host or "0.0.0.0", address.port) if isinstance(address, TCPAddress) else None


def _host(text: str) -> str:
    address = parse_address(text)
    return address.host if isinstance(address, TCPAddress) else "localhost"
