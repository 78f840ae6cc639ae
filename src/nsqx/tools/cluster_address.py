"""The address of the cluster for the nsqx commands.

The address comes from flags, else from the environment (``NSQX_LOOKUPD``, ``NSQX_NSQD``: addresses separated by
commas), else the cluster is on this machine: the nsqlookupd on its standard port if it answers, else the nsqd. For an
nsqd in ``NSQX_NSQD`` the HTTP port is assumed to be the TCP port plus one, as with the standard ports.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.node import merge_nodes
from nsqx.errors import ConfigError, RequestFailed
from nsqx.flags import STRINGS, Flag
from nsqx.net.address import TCPAddress, format_host_port, parse_address
from nsqx.tools.utility import UtilityFailed, log_line

LOOKUPD_VARIABLE = "NSQX_LOOKUPD"
NSQD_VARIABLE = "NSQX_NSQD"
LOCAL_LOOKUPD = "127.0.0.1:4161"
LOCAL_NSQD = "127.0.0.1:4150"

NSQD_TCP_FLAG = Flag(
    "nsqd-tcp-address",
    STRINGS,
    [],
    f"TCP address of an nsqd (may be repeated); default ${NSQD_VARIABLE}, else {LOCAL_NSQD}",
    config_key="nsqd_addresses",
)
NSQD_HTTP_FLAG = Flag(
    "nsqd-http-address",
    STRINGS,
    [],
    f"HTTP address of an nsqd (may be repeated); default ${NSQD_VARIABLE} with port + 1, else 127.0.0.1:4151",
    config_key="nsqd_addresses",
)
LOOKUPD_HTTP_FLAG = Flag(
    "lookupd-http-address",
    STRINGS,
    [],
    f"HTTP address of an nsqlookupd (may be repeated); default ${LOOKUPD_VARIABLE}, else {LOCAL_LOOKUPD} if it answers",
    config_key="lookupd_addresses",
)

_PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The addresses of nsqlookupds, or else of nsqds."""

    lookupd_addresses: list[str] = field(default_factory=list)
    nsqd_addresses: list[str] = field(default_factory=list)


async def find_tcp(
    nsqd_addresses: Sequence[str],
    lookupd_addresses: Sequence[str],
    environment: Mapping[str, str] = os.environ,
) -> ClusterAddress:
    """Return the addresses for publishing and consuming; raises UtilityFailed."""
    return await _find(nsqd_addresses, lookupd_addresses, environment, "tcp")


async def find_cluster(
    nsqd_addresses: Sequence[str],
    lookupd_addresses: Sequence[str],
    environment: Mapping[str, str] = os.environ,
) -> ClusterAddress:
    """Return the HTTP addresses of the nsqlookupds, or else of the nsqds; raises UtilityFailed."""
    return await _find(nsqd_addresses, lookupd_addresses, environment, "http")


async def find_http(
    nsqd_addresses: Sequence[str],
    lookupd_addresses: Sequence[str],
    http: HTTPSession,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """Return the HTTP addresses of all nsqds; raises UtilityFailed or RequestFailed."""
    place = await _find(nsqd_addresses, lookupd_addresses, environment, "http")
    if not place.lookupd_addresses:
        return place.nsqd_addresses
    answers = await ask_all(LookupdClient.at(http, place.lookupd_addresses), LookupdClient.nodes)
    found = [node.http_address for node in merge_nodes(answers.require_all().values)]
    if not found:
        raise UtilityFailed(f"no nsqd is registered at nsqlookupd {', '.join(place.lookupd_addresses)}")
    return found


async def _find(
    nsqd_addresses: Sequence[str], lookupd_addresses: Sequence[str], environment: Mapping[str, str], kind: str
) -> ClusterAddress:
    if nsqd_addresses or lookupd_addresses:
        if nsqd_addresses and lookupd_addresses:
            raise UtilityFailed(f"use --nsqd-{kind}-address or --lookupd-http-address, not both")
        return ClusterAddress(list(lookupd_addresses), list(nsqd_addresses))
    lookupds = _listed(environment.get(LOOKUPD_VARIABLE, ""))
    if lookupds:
        return ClusterAddress(lookupds)
    nsqds = _listed(environment.get(NSQD_VARIABLE, ""))
    if not nsqds:
        if await _answers(LOCAL_LOOKUPD):
            return ClusterAddress([LOCAL_LOOKUPD])
        if not await _listens(LOCAL_NSQD):
            raise UtilityFailed(
                f"neither nsqlookupd ({LOCAL_LOOKUPD}) nor nsqd ({LOCAL_NSQD}) answers on this machine: start both with"
                f" nsqx up, or set an address with a flag, ${LOOKUPD_VARIABLE} or ${NSQD_VARIABLE}"
            )
        nsqds = [LOCAL_NSQD]
    return ClusterAddress([], nsqds if kind == "tcp" else [http_address(address) for address in nsqds])


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def http_address(tcp_address: str) -> str:
    """Return the HTTP address of an nsqd whose HTTP port is its TCP port plus one; raises UtilityFailed."""
    # Imported here, because most commands do not need the client library.
    from nsqx.client.handshake import check_address

    try:
        address = parse_address(check_address(tcp_address))
    except ConfigError as error:
        raise UtilityFailed(f"{NSQD_VARIABLE}: {error}") from None
    if not isinstance(address, TCPAddress):
        raise UtilityFailed(f"the HTTP address of nsqd {tcp_address} is unknown: use --nsqd-http-address")
    return format_host_port(address.host or "127.0.0.1", address.port + 1)


async def _answers(lookupd_address: str) -> bool:
    """Return True if an nsqlookupd answers /ping, which needs no token."""
    http = HTTPSession(connect_timeout_s=_PROBE_TIMEOUT_S, request_timeout_s=_PROBE_TIMEOUT_S)
    try:
        await LookupdClient(http, lookupd_address).ping()
    except RequestFailed:
        return False
    return True


async def _listens(tcp_address: str) -> bool:
    host, _, port = tcp_address.rpartition(":")
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def warn(problems: Sequence[str]) -> None:
    """Print a warning for each problem."""
    for problem in problems:
        log_line(f"WARNING: {problem}")
