"""Which nsqd has which topics and channels: nsqlookupd's memory, which is its only store.

A registration is a category (client, topic or channel), a key (the topic) and a subkey (the channel), and the peers
that have it. It can be without peers: made over HTTP, or left behind by peers that went. Registrations know their
peers and peers their registrations, so that everything a peer does costs the same however many others there are, and
its leaving costs what it had registered.

Knows neither protocol nor HTTP. Time is asked of two clocks: what decides is monotonic, what is shown is the wall's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import orjson

from nsqx.names import is_ephemeral

if TYPE_CHECKING:
    from nsqx.wire.lookup import Announcement

# In place of a topic's name, as in Go nsqlookupd; no topic can be called that.
ANY_TOPIC: Final = "*"

Category = Literal["client", "topic", "channel"]


class Tombstone(NamedTuple):
    """When a producer was marked as about to leave a topic."""

    set_ns: int
    wall_ns: int


class Peer:
    """One connected nsqd."""

    __slots__ = ("announcement", "channels", "described", "heard_ns", "id", "last_update_ns", "node", "topics")

    def __init__(self, id: str, announcement: Announcement) -> None:  # noqa: A002
        self.id = id
        """Its end of the connection, ``host:port``."""
        self.announcement = announcement
        self.node = f"{announcement.broadcast_address}:{announcement.http_port}"
        """What a tombstone calls it."""
        self.described = _describe(id, announcement)
        """What /lookup says of it: a JSON object, made once because it is asked for often."""
        self.heard_ns = 0
        self.last_update_ns = 0
        self.topics: dict[Registration, None] = {}
        self.channels: dict[Registration, None] = {}


def _describe(remote_address: str, announcement: Announcement) -> bytes:
    return orjson.dumps(
        {
            "remote_address": remote_address,
            "hostname": announcement.hostname,
            "broadcast_address": announcement.broadcast_address,
            "tcp_port": announcement.tcp_port,
            "http_port": announcement.http_port,
            "version": announcement.version,
            "topology_zone": announcement.topology_zone,
            "topology_region": announcement.topology_region,
        }
    )


class Registration:
    """A topic, a channel, or the list of all peers, and who has registered it."""

    __slots__ = ("category", "key", "producers", "subkey")

    def __init__(self, category: Category, key: str = "", subkey: str = "") -> None:
        self.category: Category = category
        self.key = key
        self.subkey = subkey
        self.producers: dict[Peer, Tombstone | None] = {}

    def __str__(self) -> str:
        return f"category:{self.category} key:{self.key} subkey:{self.subkey}"


class Registry:
    """All registrations."""

    def __init__(
        self,
        inactive_producer_timeout_ns: int,
        tombstone_lifetime_ns: int,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._inactive_timeout_ns = inactive_producer_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        self._now_ns = now_ns
        self._wall_ns = wall_ns
        self.clients = Registration("client")
        self._topics: dict[str, Registration] = {}
        # A topic may have channels and no registration: an ephemeral one whose last producer took itself off.
        self._channels: dict[str, dict[str, Registration]] = {}

    # What peers do

    def identify(self, peer: Peer) -> Registration:
        """A peer has said who it is."""
        self._heard(peer)
        self.clients.producers[peer] = None
        return self.clients

    def ping(self, peer: Peer) -> int:
        """A peer is alive; the nanoseconds since it last said so."""
        before_ns = peer.heard_ns
        self._heard(peer)
        return peer.heard_ns - before_ns

    def _heard(self, peer: Peer) -> None:
        peer.heard_ns = self._now_ns()
        peer.last_update_ns = self._wall_ns()

    def register(self, peer: Peer, topic_name: str, channel_name: str = "") -> list[Registration]:
        """A peer has this topic, or this channel and so its topic; what it did not have before."""
        added = []
        if channel_name:
            channel = self.create_channel(topic_name, channel_name)
            if peer not in channel.producers:
                channel.producers[peer] = None
                peer.channels[channel] = None
                added.append(channel)
        topic = self.create_topic(topic_name)
        if peer not in topic.producers:
            topic.producers[peer] = None
            peer.topics[topic] = None
            added.append(topic)
        return added

    def unregister(self, peer: Peer, topic_name: str, channel_name: str = "") -> list[Registration]:
        """A peer no longer has this channel, or this topic with all its channels; what it had of them.

        An ephemeral channel or topic that is named here is forgotten with its last producer.
        """
        if channel_name:
            named = self._channels.get(topic_name, {}).get(channel_name)
            lost = [named] if named is not None else []
        else:
            named = self._topics.get(topic_name)
            lost = [*self._channels.get(topic_name, {}).values()]
            if named is not None:
                lost.append(named)
        removed = [registration for registration in lost if self._part(peer, registration)]
        if named is not None and not named.producers and is_ephemeral(channel_name or topic_name):
            self._forget(named)
        return removed

    def leave(self, peer: Peer) -> list[Registration]:
        """A peer has gone; what it had. Registrations stay, even if nobody has them any more."""
        had = [*peer.channels, *peer.topics, self.clients]
        return [registration for registration in had if self._part(peer, registration)]

    @staticmethod
    def _part(peer: Peer, registration: Registration) -> bool:
        """Undo the tie between a peer and a registration; False if there was none."""
        if peer not in registration.producers:
            return False
        del registration.producers[peer]
        peer.topics.pop(registration, None)
        peer.channels.pop(registration, None)
        return True

    # What administrators do

    def create_topic(self, topic_name: str) -> Registration:
        """The topic, made if need be."""
        topic = self._topics.get(topic_name)
        if topic is None:
            topic = self._topics[topic_name] = Registration("topic", topic_name)
        return topic

    def create_channel(self, topic_name: str, channel_name: str) -> Registration:
        """The channel, made if need be; its topic is not."""
        channels = self._channels.setdefault(topic_name, {})
        channel = channels.get(channel_name)
        if channel is None:
            channel = channels[channel_name] = Registration("channel", topic_name, channel_name)
        return channel

    def delete_topic(self, topic_name: str) -> list[Registration]:
        """Forget a topic and its channels, with their producers; what there was, channels first."""
        found = [*self.channels(topic_name), *self.topics(topic_name)]
        for registration in found:
            self._forget(registration)
        return found

    def delete_channel(self, topic_name: str, channel_name: str) -> bool:
        """Forget a channel, with its producers; False if there is none."""
        channel = self._channels.get(topic_name, {}).get(channel_name)
        if channel is None:
            return False
        self._forget(channel)
        return True

    def tombstone(self, topic_name: str, node: str) -> None:
        """Leave the producers called ``node`` out of the topic's lookup, for a while or until they register anew."""
        tombstone = Tombstone(self._now_ns(), self._wall_ns())
        for topic in self.topics(topic_name):
            for peer in topic.producers:
                if peer.node == node:
                    topic.producers[peer] = tombstone

    def _forget(self, registration: Registration) -> None:
        for peer in list(registration.producers):
            self._part(peer, registration)
        if registration.category == "topic":
            del self._topics[registration.key]
            return
        channels = self._channels[registration.key]
        del channels[registration.subkey]
        if not channels:
            del self._channels[registration.key]

    # What can be asked

    def topics(self, topic_name: str = ANY_TOPIC) -> list[Registration]:
        """The topic of that name, if there is one, or every topic."""
        if topic_name == ANY_TOPIC:
            return list(self._topics.values())
        topic = self._topics.get(topic_name)
        return [] if topic is None else [topic]

    def channels(self, topic_name: str = ANY_TOPIC) -> list[Registration]:
        """The channels of the topic of that name, or of every topic."""
        if topic_name == ANY_TOPIC:
            return [channel for channels in self._channels.values() for channel in channels.values()]
        return list(self._channels.get(topic_name, {}).values())

    def producers(self, topics: list[Registration]) -> list[Peer]:
        """The peers that consumers of ``topics`` should connect to: neither silent nor marked by a tombstone."""
        now_ns = self._now_ns()
        oldest_ns = now_ns - self._inactive_timeout_ns
        found: dict[Peer, None] = {}
        for topic in topics:
            for peer, tombstone in topic.producers.items():
                if peer.heard_ns >= oldest_ns and not self._holds(tombstone, now_ns):
                    found[peer] = None
        return list(found)

    def active_peers(self) -> list[Peer]:
        """The peers that are not silent."""
        oldest_ns = self._now_ns() - self._inactive_timeout_ns
        return [peer for peer in self.clients.producers if peer.heard_ns >= oldest_ns]

    def tombstones(self, peer: Peer) -> list[bool]:
        """For each topic of a peer, in order, whether a tombstone keeps the peer from its consumers."""
        now_ns = self._now_ns()
        return [self._holds(topic.producers[peer], now_ns) for topic in peer.topics]

    def _holds(self, tombstone: Tombstone | None, now_ns: int) -> bool:
        return tombstone is not None and now_ns - tombstone.set_ns < self._tombstone_lifetime_ns

    def registrations(self) -> Iterator[Registration]:
        """Every registration there is."""
        yield self.clients
        yield from self._topics.values()
        for channels in self._channels.values():
            yield from channels.values()

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    @property
    def channel_count(self) -> int:
        return sum(map(len, self._channels.values()))
