"""The cluster that a command works on: its addresses and its credentials, from the flags that these commands share.

The first of these decides: the addresses in flags, ``--context``, ``$NSQX_CONTEXT``, ``$NSQX_LOOKUPD`` and
``$NSQX_NSQD``, the current context, the standard ports of this machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nsqx.cli.contexts import CONTEXT_FLAG, Context, chosen_context
from nsqx.cli.did_you_mean import did_you_mean
from nsqx.cluster.credentials import NSQD, NSQLOOKUPD, TOKEN_VARIABLES, Credentials, HTTPClientTLS
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import ConfigError, RequestFailed
from nsqx.net.address import format_host_port
from nsqx.tools.cluster_address import (
    LOOKUPD_HTTP_FLAG,
    LOOKUPD_VARIABLE,
    NSQD_HTTP_FLAG,
    NSQD_TCP_FLAG,
    NSQD_VARIABLE,
    ClusterAddress,
    find_cluster,
    find_http,
    find_tcp,
    http_address,
)
from nsqx.tools.http_access import HTTP_ACCESS_FLAGS, take_credentials
from nsqx.tools.utility import UtilityFailed

if TYPE_CHECKING:
    from nsqx.flags import Flag

CLUSTER_FLAGS: tuple[Flag, ...] = (CONTEXT_FLAG, NSQD_HTTP_FLAG, LOOKUPD_HTTP_FLAG, *HTTP_ACCESS_FLAGS)
TCP_CLUSTER_FLAGS: tuple[Flag, ...] = (CONTEXT_FLAG, NSQD_TCP_FLAG, LOOKUPD_HTTP_FLAG)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The addresses of a cluster and the credentials; without addresses the environment names them."""

    nsqd_addresses: list[str] = field(default_factory=list)
    lookupd_addresses: list[str] = field(default_factory=list)
    http: HTTPSession = field(default_factory=HTTPSession)

    async def nsqds(self) -> list[NsqdClient]:
        """Return a client for every nsqd; raises UtilityFailed or RequestFailed."""
        return NsqdClient.at(self.http, await find_http(self.nsqd_addresses, self.lookupd_addresses, self.http))

    async def lookupds(self) -> list[LookupdClient]:
        """Return a client for every nsqlookupd, none if the cluster is given by its nsqds; raises UtilityFailed."""
        place = await find_cluster(self.nsqd_addresses, self.lookupd_addresses)
        return LookupdClient.at(self.http, place.lookupd_addresses)

    async def node(self, name: str) -> NsqdClient:
        """Return the client of one nsqd; raises UtilityFailed or RequestFailed.

        ``name`` is its HTTP address or its host name, or empty if the cluster has only one nsqd. An address is used
        as it is, because an nsqd that drains is not registered with nsqlookupd.
        """
        if ":" in name:
            return NsqdClient(self.http, name)
        nsqds = await self.nsqds()
        if not name:
            if len(nsqds) > 1:
                raise UtilityFailed(f"NODE is required: the cluster has {', '.join(nsqd.address for nsqd in nsqds)}")
            return nsqds[0]
        found = await ask_all(nsqds, NsqdClient.info)
        nodes = [
            address
            for address, node in found.found
            if name in (node.hostname, node.broadcast_address, address.rpartition(":")[0])
        ]
        if not nodes:
            known = ", ".join(nsqd.address for nsqd in nsqds)
            raise UtilityFailed(
                f"no nsqd has the host name {name}: the cluster has {known}. An nsqd that drains is not registered:"
                " use its HTTP address, host:port"
            )
        if len(nodes) > 1:
            raise UtilityFailed(f"{len(nodes)} nsqds have the host name {name}: use one of {', '.join(nodes)}")
        return NsqdClient(self.http, nodes[0])

    async def nothing_has(self, topic: str, channel: str = "") -> UtilityFailed:
        """Return the error that no nsqd has a topic or channel, with the most similar name."""
        entries = [
            entry for entries in (await ask_all(await self.nsqds(), NsqdClient.stats)).values for entry in entries
        ]
        return missing(entries, topic, channel)


def missing(entries: list[dict[str, Any]], topic: str, channel: str = "") -> UtilityFailed:
    """Return the error that no nsqd has a topic or channel. ``entries`` are the topics in /stats of all nsqds."""
    topics = {entry["topic_name"] for entry in entries}
    if topic not in topics:
        return UtilityFailed(f"no nsqd has topic {topic}{did_you_mean(topic, sorted(topics))}")
    channels = {
        each["channel_name"] for entry in entries if entry["topic_name"] == topic for each in entry["channels"] or []
    }
    return UtilityFailed(f"no nsqd has channel {channel} of topic {topic}{did_you_mean(channel, sorted(channels))}")


def take_cluster(values: dict[str, Any], *, request_timeout_s: float = 5.0) -> ClusterAccess:
    """Remove the values of CLUSTER_FLAGS from ``values`` and return the cluster; raises ConfigError."""
    nsqds, lookupds = values.pop("nsqd_addresses"), values.pop("lookupd_addresses")
    if nsqds and lookupds:
        raise ConfigError("use --nsqd-http-address or --lookupd-http-address, not both")
    context = _context(values.pop("context"), has_addresses=bool(nsqds or lookupds))
    credentials = take_credentials(values)
    if context is not None:
        if not nsqds and not lookupds:
            lookupds = context.lookupd_http_addresses
            nsqds = (
                [] if lookupds else context.nsqd_http_addresses or list(map(http_address, context.nsqd_tcp_addresses))
            )
        credentials = _with_context(credentials, context)
    return ClusterAccess(nsqds, lookupds, HTTPSession(credentials, request_timeout_s=request_timeout_s))


def _context(name: str, *, has_addresses: bool) -> Context | None:
    return chosen_context(name, has_addresses=has_addresses, address_variables=(LOOKUPD_VARIABLE, NSQD_VARIABLE))


def _with_context(credentials: Credentials, context: Context) -> Credentials:
    """Return credentials in which those of a context replace what the flags leave open."""
    tokens = {NSQD: context.nsqd_http_token, NSQLOOKUPD: context.lookupd_http_token}
    given = {
        kind: token for kind, token in credentials.tokens.items() if token and not _is_from_environment(kind, token)
    }
    chosen = {**credentials.tokens, **{kind: token for kind, token in tokens.items() if token}, **given}
    files = HTTPClientTLS(context.tls_root_ca_file, context.tls_insecure_skip_verify, context.tls_cert, context.tls_key)
    return replace(credentials, tokens=chosen, ssl_context=credentials.ssl_context or files.context())


def _is_from_environment(kind: str, token: str) -> bool:
    return os.environ.get(TOKEN_VARIABLES[kind]) == token


@dataclass(frozen=True, slots=True)
class TcpClusterAccess:
    """The addresses of a cluster for publishing and consuming, and options of the client."""

    nsqd_addresses: list[str] = field(default_factory=list)
    lookupd_addresses: list[str] = field(default_factory=list)
    nsqd_http_addresses: list[str] = field(default_factory=list)
    client_options: list[str] = field(default_factory=list)
    """As values of ``--consumer-opt``. Those of the command line follow them."""
    http: HTTPSession = field(default_factory=HTTPSession)

    async def find(self) -> ClusterAddress:
        """Return the addresses; raises UtilityFailed or RequestFailed."""
        if self.nsqd_http_addresses:
            answers = await ask_all(NsqdClient.at(self.http, self.nsqd_http_addresses), tcp_address_of)
            return ClusterAddress([], answers.require_all().values)
        return await find_tcp(self.nsqd_addresses, self.lookupd_addresses)


async def tcp_address_of(nsqd: NsqdClient) -> str:
    """Return the TCP address of an nsqd: the host of its HTTP address, and the port that it names."""
    host = nsqd.address.partition("://")[2] or nsqd.address
    port = (await nsqd.info()).tcp_port
    if not port:
        raise RequestFailed("it has no TCP port")
    return format_host_port(host.rpartition(":")[0].strip("[]"), port)


def tcp_side(values: dict[str, Any]) -> list[str]:
    """Return the options of the context for TCP clients, for a command with CLUSTER_FLAGS; raises ConfigError."""
    context = _context(values["context"], has_addresses=bool(values["nsqd_addresses"] or values["lookupd_addresses"]))
    return [] if context is None else context.client_options


def take_tcp_cluster(values: dict[str, Any]) -> TcpClusterAccess:
    """Remove the values of TCP_CLUSTER_FLAGS from ``values`` and return the cluster; raises ConfigError.

    The tokens of a context for HTTP are put into the environment of this process, where the client library reads them.
    """
    return tcp_cluster(values.pop("context"), values.pop("nsqd_addresses"), values.pop("lookupd_addresses"))


def tcp_cluster(context_name: str, nsqds: list[str], lookupds: list[str]) -> TcpClusterAccess:
    """Return the cluster of a context, or of addresses; raises ConfigError."""
    context = _context(context_name, has_addresses=bool(nsqds or lookupds))
    if context is None:
        return TcpClusterAccess(nsqds, lookupds)
    for kind, token in ((NSQD, context.nsqd_http_token), (NSQLOOKUPD, context.lookupd_http_token)):
        if token:
            os.environ[TOKEN_VARIABLES[kind]] = token
    if nsqds or lookupds:
        return TcpClusterAccess(nsqds, lookupds, client_options=context.client_options)
    http = HTTPSession(_with_context(Credentials(), context))
    if context.lookupd_http_addresses:
        return TcpClusterAccess([], context.lookupd_http_addresses, [], context.client_options, http)
    if context.nsqd_tcp_addresses:
        return TcpClusterAccess(context.nsqd_tcp_addresses, [], [], context.client_options, http)
    return TcpClusterAccess([], [], context.nsqd_http_addresses, context.client_options, http)
