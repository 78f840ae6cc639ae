"""Nodes in the form of nsqadmin's API, and the nodes of several nsqlookupds merged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nsqx.nsqadmin.reports import NodePlace

if TYPE_CHECKING:
    from nsqx.cluster.node import Node

_SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?"
)

_Version = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]
_NO_VERSION: _Version = (0, 0, 0, True, ())


def parse_version(version: str) -> _Version:
    """Return a sort key for a semantic version; a pre-release sorts before its release, invalid text as 0.0.0."""
    match = _SEMVER.fullmatch(version)
    if match is None:
        return _NO_VERSION
    parts = [
        (not part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in (match.group(4) or "").split(".")
        if part
    ]
    return int(match.group(1)), int(match.group(2)), int(match.group(3)), not parts, tuple(parts)


def place_of(node: Node) -> NodePlace:
    return NodePlace(node.http_address, node.hostname, node.topology_zone, node.topology_region)


def node_document(node: Node) -> dict[str, Any]:
    """Return a node in the form of /api/nodes."""
    topics = [{"topic": name, "tombstoned": tombstoned} for name, tombstoned in node.topics]
    shown: dict[str, Any] = {
        "remote_addresses": node.remote_addresses or None,
        "remote_address": node.remote_address,
        "hostname": node.hostname,
        "broadcast_address": node.broadcast_address,
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": node.version,
        "topics": topics or None,
        "out_of_date": node.is_out_of_date,
    }
    if node.topology_zone:
        shown["topology_zone"] = node.topology_zone
    if node.topology_region:
        shown["topology_region"] = node.topology_region
    return shown


def merge(found: Iterable[tuple[str, list[Node]]]) -> list[Node]:
    """Merge the nodes of several nsqlookupds, sorted by host name; mark the nodes with an old version.

    ``found`` holds pairs of an nsqlookupd's address and its nodes.
    """
    nodes: dict[str, Node] = {}
    for lookupd, known in found:
        for node in known:
            first = nodes.setdefault(node.tcp_address, node)
            first.remote_addresses.append(f"{lookupd}/{node.remote_address or 'N/A'}")
    for node in nodes.values():
        node.topics.sort()
    newest = max((parse_version(node.version) for node in nodes.values()), default=_NO_VERSION)
    for node in nodes.values():
        node.is_out_of_date = parse_version(node.version) < newest
    return sorted(nodes.values(), key=lambda node: node.hostname)
