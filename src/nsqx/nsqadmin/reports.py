"""Topics, channels and clients from nsqd's /stats, summed over nodes in the form of nsqadmin's API.

Owns the arithmetic and the shape of the JSON, including Go's peculiarities: an empty list is null, and a topic's
channels are the entries of its first node, to which those of the other nodes are added. No I/O.

Counts of deliveries by zone and region appear only if nsqd reports them, as in NSQ after 1.3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nsqx.cluster.json_fields import integer, objects, switch, text
from nsqx.errors import RequestFailed
from nsqx.units import NS_PER_S

_ALL_NODES = "*"

_T = TypeVar("_T")


def _each(found: list[_T] | None, show: Callable[[_T], Any]) -> list[Any] | None:
    return None if found is None else [show(each) for each in found]


def _number(value: float) -> float:
    """Return an integer if there is no fraction, as in Go's JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(slots=True)
class Latency:
    """Quantiles of the time from publishing to finishing."""

    count: int = 0
    percentiles: list[dict[str, float]] | None = None
    topic: str = ""
    channel: str = ""
    host: str = ""

    @classmethod
    def decode(cls, document: Any) -> Latency | None:
        """Decode the latency of one node; None if it reports none."""
        if document is None:
            return None
        if not isinstance(document, dict):
            raise RequestFailed("json: e2e_processing_latency is not an object")
        latency = cls(
            integer(document, "count"),
            objects(document, "percentiles"),
            text(document, "topic"),
            text(document, "channel"),
            text(document, "host"),
        )
        for percentile in latency.percentiles or ():
            if not all(isinstance(value, int | float) for value in percentile.values()):
                raise RequestFailed("json: percentiles are not numbers")
            value = percentile.get("value", 0)
            percentile.update(min=value, max=value, average=value, count=latency.count)
        return latency

    def add(self, other: Latency | None) -> None:
        """Merge the quantiles of another node: the maximum, and the average weighted by count."""
        if other is None:
            return
        self.host = _ALL_NODES
        self.count += other.count
        for theirs in other.percentiles or ():
            ours = self._percentile(theirs.get("quantile", 0))
            ours["max"] = max(theirs.get("max", 0), ours.get("max", 0))
            # Go computes the minimum of the two maximums.
            ours["min"] = min(theirs.get("max", 0), ours["max"])
            ours["count"] = ours.get("count", 0) + theirs.get("count", 0)
            if not ours["count"]:
                ours["average"] = 0
                continue
            average = ours.get("average", 0)
            difference = theirs.get("average", 0) - average
            ours["average"] = average + difference * theirs.get("count", 0) / ours["count"]

    def _percentile(self, quantile: float) -> dict[str, float]:
        if self.percentiles is None:
            self.percentiles = []
        for percentile in self.percentiles:
            if percentile.get("quantile", 0) == quantile:
                return percentile
        made = {"quantile": quantile}
        self.percentiles.append(made)
        return made

    def document(self) -> dict[str, Any]:
        percentiles = _each(self.percentiles, lambda each: {key: _number(each[key]) for key in sorted(each)})
        return {
            "count": self.count,
            "percentiles": percentiles,
            "topic": self.topic,
            "channel": self.channel,
            "host": self.host,
        }


@dataclass(slots=True)
class Deliveries:
    """Numbers of messages delivered within their zone, within their region, or further."""

    zone: int = 0
    region: int = 0
    everywhere: int = 0

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Deliveries:
        return cls(
            integer(document, "zone_local_msg_count"),
            integer(document, "region_local_msg_count"),
            integer(document, "global_msg_count"),
        )

    def add(self, other: Deliveries) -> None:
        self.zone += other.zone
        self.region += other.region
        self.everywhere += other.everywhere

    def document(self) -> dict[str, int]:
        """Return the sum and the counts that are not 0."""
        counts = {
            "delivery_msg_count": self.zone + self.region + self.everywhere,
            "zone_local_msg_count": self.zone,
            "region_local_msg_count": self.region,
            "global_msg_count": self.everywhere,
        }
        return {key: count for key, count in counts.items() if count}


# The fields of a client in the order of the answer, each with its decoder.
_CLIENT_FIELDS: tuple[tuple[str, Callable[[dict[str, Any], str], Any]], ...] = (
    ("in_flight_count", integer),
    ("ready_count", integer),
    ("finish_count", integer),
    ("requeue_count", integer),
    ("message_count", integer),
    ("sample_rate", integer),
    ("deflate", switch),
    ("snappy", switch),
    ("authed", switch),
    ("auth_identity", text),
    ("auth_identity_url", text),
    ("tls", switch),
    ("tls_cipher_suite", text),
    ("tls_version", text),
    ("tls_negotiated_protocol", text),
    ("tls_negotiated_protocol_is_mutual", switch),
)
# Omitted when empty.
_CLIENT_EXTRAS: tuple[tuple[str, Callable[[dict[str, Any], str], Any]], ...] = (
    ("topology_zone", text),
    ("topology_region", text),
    ("zone_local_msg_count", integer),
    ("region_local_msg_count", integer),
    ("global_msg_count", integer),
)


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node and its topology."""

    address: str
    hostname: str
    zone: str = ""
    region: str = ""


@dataclass(slots=True)
class ClientReport:
    """The connection of a consumer, in the form of the answer."""

    hostname: str
    fields: dict[str, Any]

    @classmethod
    def decode(cls, document: dict[str, Any], place: NodePlace, now_s: int) -> ClientReport:
        connect_ts = integer(document, "connect_ts")
        hostname = text(document, "hostname")
        shown: dict[str, Any] = {
            "node": place.address,
            "remote_address": text(document, "remote_address"),
            "version": text(document, "version"),
            "client_id": text(document, "client_id"),
            "hostname": hostname,
            "user_agent": text(document, "user_agent"),
            "connect_ts": connect_ts,
            "connected": (now_s - connect_ts) * NS_PER_S,
        }
        for key, read in _CLIENT_FIELDS:
            shown[key] = read(document, key)
        for key, read in _CLIENT_EXTRAS:
            value = read(document, key)
            if value:
                shown[key] = value
        if place.zone:
            shown["node_topology_zone"] = place.zone
        if place.region:
            shown["node_topology_region"] = place.region
        return cls(hostname, shown)

    def document(self) -> dict[str, Any]:
        return self.fields


_CHANNEL_COUNTS = (
    "depth",
    "memory_depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)
_TOPIC_COUNTS = ("depth", "memory_depth", "backend_depth", "message_count")
_LOG_TEXTS = ("store", "durability", "id")
_CURSOR_COUNTS = ("floor", "next", "holes")
_LOG_COUNTS = ("first", "stable", "end", "bytes", "segments", "deferred_count")


def _counts(document: dict[str, Any], keys: Iterable[str]) -> dict[str, int]:
    counts = {key: integer(document, key) for key in keys}
    counts["memory_depth"] = counts["depth"] - counts["backend_depth"]
    return counts


def _add_counts(counts: dict[str, int], more: dict[str, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count


@dataclass(slots=True)
class ChannelReport:
    """A channel on one node, or the sum over nodes."""

    node: str
    topic_name: str
    channel_name: str
    hostname: str = ""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_CHANNEL_COUNTS, 0))
    deliveries: Deliveries = field(default_factory=Deliveries)
    nodes: list[ChannelReport] | None = None
    clients: list[ClientReport] | None = None
    paused: bool = False
    latency: Latency | None = None
    cursor: dict[str, int] | None = None
    """The position in the log of the topic; only on one node."""

    @classmethod
    def decode(cls, document: dict[str, Any], topic_name: str, place: NodePlace, now_s: int) -> ChannelReport:
        clients = _each(objects(document, "clients"), lambda client: ClientReport.decode(client, place, now_s))
        return cls(
            place.address,
            topic_name,
            text(document, "channel_name"),
            place.hostname,
            _counts(document, _CHANNEL_COUNTS),
            Deliveries.decode(document),
            clients=clients,
            paused=switch(document, "paused"),
            latency=Latency.decode(document.get("e2e_processing_latency")),
            cursor=_cursor(document.get("cursor")),
        )

    def add(self, other: ChannelReport) -> None:
        """Add the counts of another node."""
        self.node = _ALL_NODES
        self.cursor = None
        _add_counts(self.counts, other.counts)
        self.deliveries.add(other.deliveries)
        self.paused = self.paused or other.paused
        self.nodes = sorted([*(self.nodes or ()), other], key=lambda each: each.hostname)
        if self.latency is None:
            self.latency = Latency(topic=self.topic_name, channel=self.channel_name, host=self.node)
        self.latency.add(other.latency)
        clients = [*(self.clients or ()), *(other.clients or ())]
        if clients or self.clients is not None:
            self.clients = sorted(clients, key=lambda client: client.hostname)

    def document(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "hostname": self.hostname,
            "topic_name": self.topic_name,
            "channel_name": self.channel_name,
            **self.counts,
            **self.deliveries.document(),
            "nodes": _each(self.nodes, ChannelReport.document),
            "clients": _each(self.clients, ClientReport.document),
            "paused": self.paused,
            "e2e_processing_latency": None if self.latency is None else self.latency.document(),
            **({} if self.cursor is None else {"cursor": self.cursor}),
        }


def _cursor(document: Any) -> dict[str, int] | None:
    """Return the position of a channel in a log; None if the topic has no log."""
    return {key: integer(document, key) for key in _CURSOR_COUNTS} if isinstance(document, dict) else None


def _log(document: Any) -> dict[str, str | int] | None:
    """Return the numbers of a topic's log; None if the topic has no log."""
    if not isinstance(document, dict):
        return None
    return {key: text(document, key) for key in _LOG_TEXTS} | {key: integer(document, key) for key in _LOG_COUNTS}


@dataclass(slots=True)
class TopicReport:
    """A topic on one node, or the sum over nodes. Only that of one node can have a log."""

    topic_name: str
    node: str = ""
    hostname: str = ""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TOPIC_COUNTS, 0))
    nodes: list[TopicReport] | None = None
    channels: list[ChannelReport] | None = None
    paused: bool = False
    latency: Latency | None = None
    log: dict[str, str | int] | None = None

    @classmethod
    def decode(cls, document: dict[str, Any], place: NodePlace, now_s: int) -> TopicReport:
        name = text(document, "topic_name")
        return cls(
            name,
            place.address,
            place.hostname,
            _counts(document, _TOPIC_COUNTS),
            channels=_each(
                objects(document, "channels"), lambda channel: ChannelReport.decode(channel, name, place, now_s)
            ),
            paused=switch(document, "paused"),
            latency=Latency.decode(document.get("e2e_processing_latency")),
            log=_log(document.get("log")),
        )

    def add(self, other: TopicReport) -> None:
        """Add the counts of another node. The channels of the first node become the channels of the sum."""
        self.node = _ALL_NODES
        _add_counts(self.counts, other.counts)
        self.paused = self.paused or other.paused
        known = {channel.channel_name: channel for channel in self.channels or ()}
        for theirs in other.channels or ():
            if theirs.channel_name in known:
                known[theirs.channel_name].add(theirs)
            else:
                self.channels = [*(self.channels or ()), theirs]
        self.nodes = sorted([*(self.nodes or ()), other], key=lambda each: each.hostname)
        if self.latency is None:
            self.latency = Latency(topic=self.topic_name, host=self.node)
        self.latency.add(other.latency)

    def document(self) -> dict[str, Any]:
        deliveries = Deliveries()
        for channel in self.channels or ():
            deliveries.add(channel.deliveries)
        return {
            "node": self.node,
            "hostname": self.hostname,
            "topic_name": self.topic_name,
            **self.counts,
            **deliveries.document(),
            "nodes": _each(self.nodes, TopicReport.document),
            "channels": _each(self.channels, ChannelReport.document),
            "paused": self.paused,
            "e2e_processing_latency": None if self.latency is None else self.latency.document(),
            **({} if self.log is None else {"log": self.log}),
        }
