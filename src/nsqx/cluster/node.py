"""An nsqd, as described by nsqlookupd or by its own /info."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nsqx.cluster.json_fields import integer, items, strings, text
from nsqx.net.address import format_host_port


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
    """After a merge: for each nsqlookupd its address, a slash, and the address of the node as nsqlookupd sees it."""
    is_out_of_date: bool = False
    """After a merge: the node has an older version than another node."""

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Node:
        """Decode an entry of nsqlookupd's answer or of nsqd's /info; raises RequestFailed."""
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


def merge_nodes(answers: Iterable[list[Node]]) -> list[Node]:
    """Return the nodes in several answers, each once."""
    found: dict[str, Node] = {}
    for nodes in answers:
        for node in nodes:
            found.setdefault(node.http_address, node)
    return list(found.values())
