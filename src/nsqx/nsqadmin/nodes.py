"""The nsqds of a cluster, as described by nsqlookupd or by their own /info."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nsqx.net.address import format_host_port
from nsqx.nsqadmin.json_fields import integer, items, strings, text
from nsqx.nsqadmin.reports import NodePlace

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


@dataclass(slots=True)
class Node:
    """One nsqd."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    remote_address: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    topics: list[tuple[str, bool]] = field(default_factory=list)
    """Pairs of the name and whether a tombstone hides the topic on this node from consumers."""
    remote_addresses: list[str] = field(default_factory=list)
    """For each nsqlookupd its address, a slash, and the address of the node as that nsqlookupd sees it."""
    is_out_of_date: bool = False

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Node:
        """Decode an entry of nsqlookupd's answer or of nsqd's /info; raises UpstreamFailed."""
        tombstones = items(document, "tombstones") or []
        names = strings(document, "topics")
        flags = [*map(bool, tombstones), *[False] * len(names)]
        return cls(
            text(document, "hostname"),
            text(document, "broadcast_address"),
            integer(document, "tcp_port"),
            integer(document, "http_port"),
            text(document, "version"),
            text(document, "remote_address"),
            text(document, "topology_zone"),
            text(document, "topology_region"),
            list(zip(names, flags, strict=False)),
        )

    @property
    def http_address(self) -> str:
        return format_host_port(self.broadcast_address, self.http_port)

    @property
    def tcp_address(self) -> str:
        return format_host_port(self.broadcast_address, self.tcp_port)

    @property
    def place(self) -> NodePlace:
        return NodePlace(self.http_address, self.hostname, self.topology_zone, self.topology_region)

    def document(self) -> dict[str, Any]:
        """Return the node in the form of /api/nodes."""
        topics = [{"topic": name, "tombstoned": tombstoned} for name, tombstoned in self.topics]
        shown: dict[str, Any] = {
            "remote_addresses": self.remote_addresses or None,
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
            "topics": topics or None,
            "out_of_date": self.is_out_of_date,
        }
        if self.topology_zone:
            shown["topology_zone"] = self.topology_zone
        if self.topology_region:
            shown["topology_region"] = self.topology_region
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
