"""The registry: which nsqd has which topics and channels. It is nsqlookupd's only store and is kept in memory.

A registration is a category (client, topic or channel), a key (the topic), a subkey (the channel), and the peers that
have it. It may have no peers: created over HTTP, or left behind by disconnected peers. Registrations refer to their
peers and peers to their registrations. The cost of a peer's command is therefore independent of the number of other
peers, and its disconnection costs time proportional to its own registrations.

No protocol, no HTTP. Decisions use monotonic time; displayed times are wall-clock time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import orjson

from nsqx.names import is_ephemeral

if TYPE_CHECKING:
    from nsqx.wire.lookup import Announcement

# Used instead of a topic name, as in Go's nsqlookupd; it is not a valid topic name.
ANY_TOPIC: Final = "*"

Category = Literal["client", "topic", "channel"]


class Tombstone(NamedTuple):
    """The time at which a producer was marked as about to lose a topic."""

    set_ns: int
    wall_ns: int


class Peer:
    """One connected nsqd."""

    __slots__ = ("announcement", "channels", "described", "id", "last_ping_ns", "last_update_ns", "node", "topics")

    def __init__(self, id: str, announcement: Announcement) -> None:  # noqa: A002
        self.id = id
        """Its end of the connection: ``host:port``."""
        self.announcement = announcement
        self.node = f"{announcement.broadcast_address}:{announcement.http_port}"
        """Its name in tombstones: ``broadcast_address:http_port``."""
        self.described = _describe(id, announcement)
        """Its entry in /lookup: a JSON object, encoded once because it is requested often."""
        self.last_ping_ns = 0
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
    """A topic, a channel, or the list of all peers, with its producers."""

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
        # A topic can have channels but no registration: an ephemeral topic after its last producer sent UNREGISTER.
        self._channels: dict[str, dict[str, Registration]] = {}

    # Called for peers

    def identify(self, peer: Peer) -> Registration:
        """Add a peer after IDENTIFY."""
        self._record_ping(peer)
        self.clients.producers[peer] = None
        return self.clients

    def ping(self, peer: Peer) -> int:
        """Record a ping; return the nanoseconds since the previous ping or IDENTIFY."""
        before_ns = peer.last_ping_ns
        self._record_ping(peer)
        return peer.last_ping_ns - before_ns

    def _record_ping(self, peer: Peer) -> None:
        peer.last_ping_ns = self._now_ns()
        peer.last_update_ns = self._wall_ns()

    def register(self, peer: Peer, topic_name: str, channel_name: str = "") -> list[Registration]:
        """Register a topic, or a channel and its topic, for a peer; return the new registrations."""
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
        """Remove a peer from a channel, or from a topic and all its channels; return the removed registrations.

        An ephemeral channel or topic named here is deleted with its last producer.
        """
        if channel_name:
            named = self._channels.get(topic_name, {}).get(channel_name)
            lost = [named] if named is not None else []
        else:
            named = self._topics.get(topic_name)
            lost = [*self._channels.get(topic_name, {}).values()]
            if named is not None:
                lost.append(named)
        removed = [registration for registration in lost if self._unlink(peer, registration)]
        if named is not None and not named.producers and is_ephemeral(channel_name or topic_name):
            self._forget(named)
        return removed

    def leave(self, peer: Peer) -> list[Registration]:
        """Remove a disconnected peer; return its registrations. They stay, even without producers."""
        had = [*peer.channels, *peer.topics, self.clients]
        return [registration for registration in had if self._unlink(peer, registration)]

    @staticmethod
    def _unlink(peer: Peer, registration: Registration) -> bool:
        """Unlink a peer and a registration; return False if they were not linked."""
        if peer not in registration.producers:
            return False
        del registration.producers[peer]
        peer.topics.pop(registration, None)
        peer.channels.pop(registration, None)
        return True

    # Called for administrators

    def create_topic(self, topic_name: str) -> Registration:
        """Return the topic; create it if necessary."""
        topic = self._topics.get(topic_name)
        if topic is None:
            topic = self._topics[topic_name] = Registration("topic", topic_name)
        return topic

    def create_channel(self, topic_name: str, channel_name: str) -> Registration:
        """Return the channel; create it, but not its topic, if necessary."""
        channels = self._channels.setdefault(topic_name, {})
        channel = channels.get(channel_name)
        if channel is None:
            channel = channels[channel_name] = Registration("channel", topic_name, channel_name)
        return channel

    def delete_topic(self, topic_name: str) -> list[Registration]:
        """Delete a topic and its channels with their producers; return the deleted registrations, channels first."""
        found = [*self.channels(topic_name), *self.topics(topic_name)]
        for registration in found:
            self._forget(registration)
        return found

    def delete_channel(self, topic_name: str, channel_name: str) -> bool:
        """Delete a channel with its producers; return False if there is none."""
        channel = self._channels.get(topic_name, {}).get(channel_name)
        if channel is None:
            return False
        self._forget(channel)
        return True

    def tombstone(self, topic_name: str, node: str) -> None:
        """Hide the producers named ``node`` from lookups of the topic, for a while or until they register again."""
        tombstone = Tombstone(self._now_ns(), self._wall_ns())
        for topic in self.topics(topic_name):
            for peer in topic.producers:
                if peer.node == node:
                    topic.producers[peer] = tombstone

    def _forget(self, registration: Registration) -> None:
        for peer in list(registration.producers):
            self._unlink(peer, registration)
        if registration.category == "topic":
            del self._topics[registration.key]
            return
        channels = self._channels[registration.key]
        del channels[registration.subkey]
        if not channels:
            del self._channels[registration.key]

    # Queries

    def topics(self, topic_name: str = ANY_TOPIC) -> list[Registration]:
        """Return the topic of that name, if it exists, or every topic."""
        if topic_name == ANY_TOPIC:
            return list(self._topics.values())
        topic = self._topics.get(topic_name)
        return [] if topic is None else [topic]

    def channels(self, topic_name: str = ANY_TOPIC) -> list[Registration]:
        """Return the channels of the topic of that name, or of every topic."""
        if topic_name == ANY_TOPIC:
            return [channel for channels in self._channels.values() for channel in channels.values()]
        return list(self._channels.get(topic_name, {}).values())

    def producers(self, topics: list[Registration]) -> list[Peer]:
        """Return the peers to which consumers of ``topics`` should connect: neither silent nor tombstoned."""
        now_ns = self._now_ns()
        oldest_ns = now_ns - self._inactive_timeout_ns
        found: dict[Peer, None] = {}
        for topic in topics:
            for peer, tombstone in topic.producers.items():
                if peer.last_ping_ns >= oldest_ns and not self._is_in_effect(tombstone, now_ns):
                    found[peer] = None
        return list(found)

    def active_peers(self) -> list[Peer]:
        """Return the peers that are not silent."""
        oldest_ns = self._now_ns() - self._inactive_timeout_ns
        return [peer for peer in self.clients.producers if peer.last_ping_ns >= oldest_ns]

    def tombstones(self, peer: Peer) -> list[bool]:
        """Return for each topic of a peer, in order, whether a tombstone hides the peer from consumers."""
        now_ns = self._now_ns()
        return [self._is_in_effect(topic.producers[peer], now_ns) for topic in peer.topics]

    def _is_in_effect(self, tombstone: Tombstone | None, now_ns: int) -> bool:
        return tombstone is not None and now_ns - tombstone.set_ns < self._tombstone_lifetime_ns

    def registrations(self) -> Iterator[Registration]:
        """Yield every registration."""
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
