"""The /stats of all nsqds of a cluster at one time, as sums for each topic and channel."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.flow import Flow, flow_between
from nsqx.cluster.json_fields import objects
from nsqx.errors import RequestFailed
from nsqx.tools.totals import total

if TYPE_CHECKING:
    from nsqx.cli.cluster import ClusterAccess
    from nsqx.cluster.nsqd import NsqdClient

Key = tuple[str, str]
"""A topic and a channel; the channel is empty for the topic itself."""


@dataclass(slots=True)
class ChannelSum:
    """The counts of a channel, or of a topic, over all nsqds that have it."""

    topic: str
    channel: str
    counts: dict[str, int]
    nsqds: int
    paused: int
    """The number of nsqds on which it is paused."""
    oldest_ns: int
    """The time of publishing of the oldest unfinished message; 0 if unknown: only log topics report it."""

    @property
    def waiting(self) -> int:
        """The messages that can be delivered now."""
        return self.counts["depth"]

    @property
    def document(self) -> dict[str, Any]:
        """The counts for JSON."""
        named = {"topic": self.topic, "channel": self.channel} if self.channel else {"topic": self.topic}
        return {**named, **self.counts, "paused": self.paused > 0, "nsqds": self.nsqds}


@dataclass(slots=True)
class Reading:
    """The answers of all nsqds at one time."""

    at_s: float
    found: list[tuple[str, dict[str, Any]]]
    """The address of each nsqd and its document of /stats."""
    problems: list[str] = field(default_factory=list)

    @property
    def topics(self) -> list[dict[str, Any]]:
        """The entries of all topics of all nsqds."""
        return [entry for _, document in self.found for entry in document["topics"] or []]

    def sums(self) -> dict[Key, ChannelSum]:
        """Return the counts of each topic and of each channel, sorted by name."""
        parts: dict[Key, list[dict[str, Any]]] = {}
        for entry in self.topics:
            parts.setdefault((entry["topic_name"], ""), []).append(entry)
            for channel in entry["channels"] or []:
                parts.setdefault((entry["topic_name"], channel["channel_name"]), []).append(channel)
        return {key: _sum(key, parts[key]) for key in sorted(parts)}

    def clients(self) -> Iterator[dict[str, Any]]:
        """Yield each consumer and producer, with the nsqd, the kind, the topic and the channel."""
        for address, document in self.found:
            for entry in document["topics"] or []:
                for channel in entry["channels"] or []:
                    where = {"nsqd": address, "topic": entry["topic_name"], "channel": channel["channel_name"]}
                    for client in channel.get("clients") or []:
                        yield {"kind": "consumer", **where, **client}
            for client in document.get("producers") or []:
                topics = [count["topic"] for count in client.get("pub_counts") or []]
                yield {"kind": "producer", "nsqd": address, "topics": topics, **client}


def _sum(key: Key, entries: Sequence[Mapping[str, Any]]) -> ChannelSum:
    oldest = [each["cursor"]["oldest"] for each in entries if each.get("cursor", {}).get("oldest")]
    paused = sum(bool(entry.get("paused")) for entry in entries)
    return ChannelSum(*key, total([dict(entry) for entry in entries]), len(entries), paused, min(oldest, default=0))


async def read_cluster(
    cluster: ClusterAccess, topic: str = "", channel: str = "", *, include_clients: bool = False
) -> Reading:
    """Ask every nsqd; raises UtilityFailed, or RequestFailed if none has answered."""
    return await read_nsqds(await cluster.nsqds(), topic, channel, include_clients=include_clients)


async def read_nsqds(
    nsqds: Sequence[NsqdClient], topic: str = "", channel: str = "", *, include_clients: bool = False
) -> Reading:
    """Ask some nsqds; raises RequestFailed if none has answered."""
    answers = await ask_all(nsqds, _stats, topic, channel, include_clients=include_clients)
    found = answers.require_one().found
    return Reading(time.monotonic(), found, answers.plain_problems)


async def _stats(nsqd: NsqdClient, topic: str, channel: str, *, include_clients: bool) -> dict[str, Any]:
    query = {"format": "json", "topic": topic, "channel": channel}
    query["include_clients"] = "true" if include_clients else "false"
    document = await nsqd.get("/stats", **{name: value for name, value in query.items() if value})
    if objects(document, "topics") is None and "topics" not in document:
        raise RequestFailed("the answer is not from nsqd")
    found: dict[str, Any] = document
    return found


def flow_of(before: Mapping[Key, ChannelSum], now: ChannelSum, seconds: float) -> Flow | None:
    """Return the rates of a channel since the reading before; None if they are unknown."""
    earlier = before.get((now.topic, now.channel))
    if earlier is None or earlier.nsqds != now.nsqds:
        return None
    return flow_between(earlier.counts, now.counts, seconds)
