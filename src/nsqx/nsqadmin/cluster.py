"""The cluster behind nsqadmin: which nsqlookupd and nsqd to query, and which of them carry out an action.

A query goes to every daemon that could answer, and the answers are merged. If some daemons fail, the answer holds the
rest and lists the failures; if all fail, an error is raised. Does not know nsqadmin's own clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nsqx.cluster.credentials import NSQD, NSQLOOKUPD, Credentials, HTTPClientTLS, read_tokens
from nsqx.cluster.daemon import Change, DaemonClient
from nsqx.cluster.fan_out import Answers, ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.json_fields import objects, text
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.node import Node, merge_nodes
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import RequestFailed
from nsqx.nsqadmin.nodes import merge, place_of
from nsqx.nsqadmin.reports import ChannelReport, TopicReport
from nsqx.nsqadmin.tail_check import TopicState
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqadmin.options import NsqadminOptions

_T = TypeVar("_T")


def http_session(options: NsqadminOptions, credentials: Credentials, concurrency: int) -> HTTPSession:
    """Return a session that sends at most ``concurrency`` requests at a time."""
    return HTTPSession(
        credentials,
        options.http_client_connect_timeout / NS_PER_S,
        options.http_client_request_timeout / NS_PER_S,
        limit=asyncio.Semaphore(concurrency),
    )


def http_credentials(options: NsqadminOptions) -> Credentials:
    """Return the credentials for nsqd and nsqlookupd; raises ConfigError."""
    files = {NSQD: options.nsqd_http_token_file, NSQLOOKUPD: options.lookupd_http_token_file}
    flags = {NSQD: "--nsqd-http-token-file", NSQLOOKUPD: "--lookupd-http-token-file"}
    tls = HTTPClientTLS(
        options.http_client_tls_root_ca_file,
        options.http_client_tls_insecure_skip_verify,
        options.http_client_tls_cert,
        options.http_client_tls_key,
    )
    return Credentials(read_tokens(files, flags), tls.context())


class Stats(NamedTuple):
    """The topics of several nsqds: an entry for each node, and the channels summed over nodes."""

    topics: list[TopicReport]
    channels: dict[str, ChannelReport]


class ClusterClient:
    """Queries and changes the cluster that the options name.

    Every method appends partial failures to ``problems``. If all daemons fail, it raises RequestFailed with the reason
    of each.
    """

    def __init__(self, options: NsqadminOptions, http: HTTPSession, log: Log) -> None:
        self._options = options
        self._unlogged = http
        self._http = replace(http, on_query=lambda kind, url: log.info("CI: querying %s %s", kind, url))

    @property
    def lookupds(self) -> list[LookupdClient]:
        """All nsqlookupds; empty if nsqadmin queries the nsqds directly."""
        return LookupdClient.at(self._http, self._options.nsqlookupd_http_addresses)

    @property
    def _given_nsqds(self) -> list[NsqdClient]:
        return NsqdClient.at(self._http, self._options.nsqd_http_addresses)

    def nsqds(self, nodes: Iterable[Node]) -> list[NsqdClient]:
        """Return clients for these nodes."""
        return NsqdClient.at(self._http, (node.http_address for node in nodes))

    # Queries

    async def topics(self, problems: list[str]) -> list[str]:
        """Return the names of all topics, sorted."""
        if self.lookupds:
            found = _found(NSQLOOKUPD, await ask_all(self.lookupds, LookupdClient.topics), problems)
        else:
            found = _found(NSQD, await ask_all(self._given_nsqds, _topic_names), problems)
        return sorted({name for _, names in found for name in names})

    async def topic_channels(self, topic: str, problems: list[str]) -> list[str]:
        """Return the names of a topic's channels according to nsqlookupd, sorted."""
        found = _found(NSQLOOKUPD, await ask_all(self.lookupds, LookupdClient.channels, topic), problems)
        return sorted({name for _, names in found for name in names})

    async def nodes(self, problems: list[str]) -> list[Node]:
        """Return every nsqd."""
        if self.lookupds:
            return merge(_found(NSQLOOKUPD, await ask_all(self.lookupds, LookupdClient.nodes), problems))
        return [node for _, node in _found(NSQD, await ask_all(self._given_nsqds, _describe), problems)]

    async def topic_nodes(self, topic: str, problems: list[str]) -> list[Node]:
        """Return the nsqds that have a topic."""
        if self.lookupds:
            return await self.topic_nodes_by_lookup(topic, problems)
        described = _found(NSQD, await ask_all(self._given_nsqds, _describe_if_has_topic, topic), problems)
        return [node for _, node in described if node is not None]

    async def topic_nodes_by_lookup(self, topic: str, problems: list[str]) -> list[Node]:
        """Return the nsqds that have a topic, according to nsqlookupd."""
        answers = await ask_all(self.lookupds, LookupdClient.lookup, topic, must_exist=True)
        return merge_nodes(nodes for _, nodes in _found(NSQLOOKUPD, answers, problems))

    async def topic_state(self, address: str, topic: str) -> TopicState | None:
        """Return the state of a topic on one nsqd, None without the topic; raises RequestFailed.

        Not logged, because tails call it every two seconds.
        """
        return TopicState.decode(await NsqdClient(self._unlogged, address).stats(topic), topic)

    async def inactive_topics(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the topics that no nsqd has, each with its channels; a topic whose lookup fails counts as inactive."""
        if not self.lookupds:
            return {}
        inactive = await asyncio.gather(*map(self._channels_if_inactive, names))
        return {name: channels for name, channels in zip(names, inactive, strict=True) if channels is not None}

    async def _channels_if_inactive(self, topic: str) -> list[str] | None:
        try:
            if await self.topic_nodes_by_lookup(topic, []):
                return None
        except RequestFailed:
            pass
        try:
            return await self.topic_channels(topic, [])
        except RequestFailed:
            return []

    async def stats(
        self,
        nodes: Sequence[Node],
        problems: list[str],
        *,
        topic: str = "",
        channel: str = "",
        include_clients: bool,
    ) -> Stats:
        """Return the statistics of ``nodes`` for one topic, one channel, or everything."""
        places = {node.http_address: place_of(node) for node in nodes}

        async def ask(nsqd: NsqdClient) -> list[TopicReport]:
            topics = await nsqd.stats(topic, channel, include_clients=include_clients)
            now_s = int(time.time())
            entries = [TopicReport.decode(each, places[nsqd.address], now_s) for each in topics]
            return [entry for entry in entries if not topic or entry.topic_name == topic]

        found = _found(NSQD, await ask_all(self.nsqds(nodes), ask), problems)
        entries = [entry for _, topics in found for entry in topics]
        channels: dict[str, ChannelReport] = {}
        for entry in entries:
            for each in entry.channels or ():
                key = each.channel_name if topic else f"{entry.topic_name}:{each.channel_name}"
                if key not in channels:
                    channels[key] = ChannelReport(each.node, entry.topic_name, each.channel_name)
                channels[key].add(each)
        return Stats(sorted(entries, key=lambda entry: entry.hostname), channels)

    async def counters(self, nodes: Sequence[Node], problems: list[str]) -> dict[str, dict[str, Any]]:
        """Return the message count of each channel on each node."""
        counters: dict[str, dict[str, Any]] = {}

        async def ask(nsqd: NsqdClient) -> None:
            for topic in await nsqd.stats():
                topic_name = text(topic, "topic_name")
                for channel in objects(topic, "channels") or ():
                    channel_name = text(channel, "channel_name")
                    counters[f"{topic_name}:{channel_name}:{nsqd.address}"] = {
                        "node": nsqd.address,
                        "topic_name": topic_name,
                        "channel_name": channel_name,
                        "message_count": channel.get("message_count", 0),
                    }

        _found(NSQD, await ask_all(self.nsqds(nodes), ask), problems)
        return counters

    # Actions

    async def create(self, topic: str, channel: str, problems: list[str]) -> None:
        """Create a topic on nsqlookupd; with ``channel``, also create the channel there and on the topic's nsqds."""
        broadcast = _Broadcast(problems)
        await broadcast.apply(Change("create", topic), self.lookupds)
        if channel:
            change = Change("create", topic, channel)
            await broadcast.apply(change, self.lookupds)
            broadcast.check()
            await broadcast.apply(change, self.nsqds(await self.topic_nodes_by_lookup(topic, problems)))
        broadcast.check()

    async def delete(self, topic: str, channel: str, problems: list[str]) -> None:
        """Remove a topic, or the channel if one is named, from nsqlookupd and from the nsqds that have the topic."""
        # Find the nodes first: afterwards nsqlookupd no longer knows them.
        nodes = await self.topic_nodes(topic, problems)
        change = Change("delete", topic, channel)
        broadcast = _Broadcast(problems)
        await broadcast.apply(change, self.lookupds)
        await broadcast.apply(change, self.nsqds(nodes))
        broadcast.check()

    async def act(self, action: str, topic: str, channel: str, problems: list[str]) -> None:
        """``pause``, ``unpause`` or ``empty`` a topic, or the channel if one is named, on every nsqd that has it."""
        nodes = await self.topic_nodes(topic, problems)
        broadcast = _Broadcast(problems)
        await broadcast.apply(Change(action, topic, channel), self.nsqds(nodes))
        broadcast.check()

    async def tombstone(self, topic: str, node_address: str, problems: list[str]) -> None:
        """Hide one nsqd's topic from consumers, then delete the topic there."""
        broadcast = _Broadcast(problems)
        await broadcast.apply(Change("tombstone", topic, node=node_address), self.lookupds)
        found = _found(NSQD, await ask_all([NsqdClient(self._http, node_address)], _describe), problems)
        await broadcast.apply(Change("delete", topic), self.nsqds(node for _, node in found))
        broadcast.check()


class _Broadcast:
    """One action on several daemons; collects successes and failures."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._refusals: list[str] = []
        self._is_done_somewhere = False

    async def apply(self, change: Change, daemons: Sequence[DaemonClient]) -> None:
        answers = await ask_all(daemons, DaemonClient.apply, change)
        for daemon, error in answers.failures:
            self._problems.append(str(error))
            self._refusals.append(f"{daemon}: {error}")
        self._is_done_somewhere |= bool(answers.found)

    def check(self) -> None:
        """Raise RequestFailed if every daemon failed."""
        if self._refusals and not self._is_done_somewhere:
            raise RequestFailed("; ".join(self._refusals))


def _found(kind: str, answers: Answers[_T], problems: list[str]) -> list[tuple[str, _T]]:
    """Return pairs of address and answer; raise RequestFailed if no daemon answers."""
    if not answers.found:
        raise answers.failure(kind)
    problems.extend(str(error) for _, error in answers.failures)
    return answers.found


async def _topic_names(nsqd: NsqdClient) -> list[str]:
    return _names(await nsqd.stats(include_clients=True))


def _names(topics: Iterable[dict[str, Any]]) -> list[str]:
    return [text(topic, "topic_name") for topic in topics]


async def _describe(nsqd: NsqdClient) -> Node:
    node = await nsqd.info()
    node.topics = [(name, False) for name in _names(await nsqd.stats())]
    return node


async def _describe_if_has_topic(nsqd: NsqdClient, topic: str) -> Node | None:
    names = _names(await nsqd.stats(topic))
    if topic not in names:
        return None
    node = await nsqd.info()
    node.topics = [(name, False) for name in names]
    host, _, port = nsqd.address.rpartition(":")
    if not node.broadcast_address:
        node.broadcast_address, node.http_port = host.strip("[]"), int(port)
    node.hostname = node.hostname or host.strip("[]")
    return node
