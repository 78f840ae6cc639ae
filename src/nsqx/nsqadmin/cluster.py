"""The cluster behind nsqadmin: which nsqlookupd and nsqd to query, and which of them carry out an action.

A query goes to every daemon that could answer, and the answers are merged. If some daemons fail, the answer holds the
rest and lists the failures; if all fail, an error is raised. Does not know nsqadmin's own clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote_plus

from nsqx.net.daemon_http import NSQD, NSQLOOKUPD
from nsqx.nsqadmin.json_fields import objects, strings, text
from nsqx.nsqadmin.nodes import Node, merge
from nsqx.nsqadmin.reports import ChannelReport, TopicReport
from nsqx.nsqadmin.tail_check import TopicState
from nsqx.nsqadmin.upstream import Upstream, UpstreamFailed

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqadmin.options import NsqadminOptions

_T = TypeVar("_T")


class Stats(NamedTuple):
    """The topics of several nsqds: an entry for each node, and the channels summed over nodes."""

    topics: list[TopicReport]
    channels: dict[str, ChannelReport]


class ClusterClient:
    """Queries and changes the cluster that the options name.

    Every method appends partial failures to ``problems``. If all daemons fail, it raises UpstreamFailed with the reason
    of each.
    """

    def __init__(self, options: NsqadminOptions, upstream: Upstream, log: Log) -> None:
        self._options = options
        self._upstream = upstream
        self._log = log

    @property
    def lookupds(self) -> list[str]:
        """The addresses of all nsqlookupds; empty if nsqadmin queries the nsqds directly."""
        return self._options.nsqlookupd_http_addresses

    @property
    def _nsqds(self) -> list[str]:
        return self._options.nsqd_http_addresses

    # Queries

    async def topics(self, problems: list[str]) -> list[str]:
        """Return the names of all topics, sorted."""
        if self.lookupds:
            found = await self._ask_lookupds("topics", problems, lambda document: strings(document, "topics"))
        else:
            found = await self._ask_nsqds("stats?format=json", problems, _topic_names)
        return sorted({name for _, names in found for name in names})

    async def topic_channels(self, topic: str, problems: list[str]) -> list[str]:
        """Return the names of a topic's channels according to nsqlookupd, sorted."""
        path = f"channels?topic={quote_plus(topic)}"
        found = await self._ask_lookupds(path, problems, lambda document: strings(document, "channels"))
        return sorted({name for _, names in found for name in names})

    async def nodes(self, problems: list[str]) -> list[Node]:
        """Return every nsqd."""
        if self.lookupds:
            return merge(await self._ask_lookupds("nodes", problems, _producers))
        return await self.nodes_at(self._nsqds, problems)

    async def nodes_at(self, addresses: Sequence[str], problems: list[str]) -> list[Node]:
        """Return the nsqds at these addresses."""
        found = await self._gather("nsqd", addresses, self._describe, problems)
        return [node for _, node in found]

    async def topic_nodes(self, topic: str, problems: list[str]) -> list[Node]:
        """Return the nsqds that have a topic."""
        if not self.lookupds:
            described = await self._gather(
                "nsqd", self._nsqds, lambda address: self._describe_if_has_topic(address, topic), problems
            )
            return [node for _, node in described if node is not None]
        return await self.topic_nodes_by_lookup(topic, problems)

    async def topic_nodes_by_lookup(self, topic: str, problems: list[str]) -> list[Node]:
        """Return the nsqds that have a topic, according to nsqlookupd."""
        found = await self._ask_lookupds(f"lookup?topic={quote_plus(topic)}", problems, _producers)
        by_address: dict[str, Node] = {}
        for _, nodes in found:
            for node in nodes:
                by_address.setdefault(node.http_address, node)
        return list(by_address.values())

    async def topic_state(self, address: str, topic: str) -> TopicState | None:
        """Return the state of a topic on one nsqd, None without the topic; raises UpstreamFailed.

        Not logged, because tails call it every two seconds.
        """
        url = f"http://{address}/{_stats_path(topic, '', False)}"
        return TopicState.decode(await self._upstream.get(NSQD, url), topic)

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
        except UpstreamFailed:
            pass
        try:
            return await self.topic_channels(topic, [])
        except UpstreamFailed:
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
        places = {node.http_address: node.place for node in nodes}
        path = _stats_path(topic, channel, include_clients)

        async def ask(address: str) -> list[TopicReport]:
            document = await self._get("nsqd", address, path)
            now_s = int(time.time())
            entries = [TopicReport.decode(each, places[address], now_s) for each in objects(document, "topics") or ()]
            return [entry for entry in entries if not topic or entry.topic_name == topic]

        found = await self._gather("nsqd", [node.http_address for node in nodes], ask, problems)
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

        async def ask(address: str) -> None:
            document = await self._get("nsqd", address, _stats_path("", "", include_clients=False))
            for topic in objects(document, "topics") or ():
                topic_name = text(topic, "topic_name")
                for channel in objects(topic, "channels") or ():
                    channel_name = text(channel, "channel_name")
                    counters[f"{topic_name}:{channel_name}:{address}"] = {
                        "node": address,
                        "topic_name": topic_name,
                        "channel_name": channel_name,
                        "message_count": channel.get("message_count", 0),
                    }

        await self._gather("nsqd", [node.http_address for node in nodes], ask, problems)
        return counters

    # Actions

    async def create_topic(self, topic: str, channel: str, problems: list[str]) -> None:
        """Create a topic on nsqlookupd; with ``channel``, also create the channel there and on the topic's nsqds."""
        query = f"topic={quote_plus(topic)}"
        broadcast = _Broadcast(self, problems)
        await broadcast.post(NSQLOOKUPD, self.lookupds, f"topic/create?{query}")
        if channel:
            path = f"channel/create?{query}&channel={quote_plus(channel)}"
            await broadcast.post(NSQLOOKUPD, self.lookupds, path)
            broadcast.check()
            await broadcast.post_to_nodes(await self.topic_nodes_by_lookup(topic, problems), path)
        broadcast.check()

    async def delete_topic(self, topic: str, problems: list[str]) -> None:
        """Remove a topic from nsqlookupd and from the nsqds that have it."""
        await self._delete(topic, f"topic/delete?topic={quote_plus(topic)}", problems)

    async def delete_channel(self, topic: str, channel: str, problems: list[str]) -> None:
        """Remove a channel from nsqlookupd and from the nsqds that have its topic."""
        path = f"channel/delete?topic={quote_plus(topic)}&channel={quote_plus(channel)}"
        await self._delete(topic, path, problems)

    async def _delete(self, topic: str, path: str, problems: list[str]) -> None:
        # Find the nodes first: afterwards nsqlookupd no longer knows them.
        nodes = await self.topic_nodes(topic, problems)
        broadcast = _Broadcast(self, problems)
        await broadcast.post(NSQLOOKUPD, self.lookupds, path)
        await broadcast.post_to_nodes(nodes, path)
        broadcast.check()

    async def act(self, action: str, topic: str, channel: str, problems: list[str]) -> None:
        """``pause``, ``unpause`` or ``empty`` a topic, or the channel if one is named, on every nsqd that has it."""
        path = f"topic/{action}?topic={quote_plus(topic)}"
        if channel:
            path = f"channel/{action}?topic={quote_plus(topic)}&channel={quote_plus(channel)}"
        broadcast = _Broadcast(self, problems)
        await broadcast.post_to_nodes(await self.topic_nodes(topic, problems), path)
        broadcast.check()

    async def tombstone(self, topic: str, node_address: str, problems: list[str]) -> None:
        """Hide one nsqd's topic from consumers, then delete the topic there."""
        query = f"topic={quote_plus(topic)}"
        path = f"topic/tombstone?{query}&node={quote_plus(node_address)}"
        broadcast = _Broadcast(self, problems)
        await broadcast.post(NSQLOOKUPD, self.lookupds, path)
        nodes = await self.nodes_at([node_address], problems)
        await broadcast.post_to_nodes(nodes, f"topic/delete?{query}")
        broadcast.check()

    async def publish(self, node: Node, topic: str, body: bytes, defer_ms: int) -> None:
        """Publish a message on one nsqd; raises UpstreamFailed."""
        path = f"pub?topic={quote_plus(topic)}" + (f"&defer={defer_ms}" if defer_ms else "")
        self._log.info("CI: querying nsqd http://%s/%s", node.http_address, path)
        await self._upstream.post(NSQD, f"http://{node.http_address}/{path}", body)

    async def post(self, kind: str, address: str, path: str) -> None:
        """Send a POST to one daemon; raises UpstreamFailed."""
        url = f"http://{address}/{path}"
        self._log.info("CI: querying %s %s", kind, url)
        await self._upstream.post(kind, url)

    # Requests

    async def _get(self, kind: str, address: str, path: str) -> Any:
        url = f"http://{address}/{path}"
        self._log.info("CI: querying %s %s", kind, url)
        return await self._upstream.get(kind, url)

    async def _ask_lookupds(self, path: str, problems: list[str], read: Callable[[Any], _T]) -> list[tuple[str, _T]]:
        async def ask(address: str) -> _T:
            return read(await self._get("nsqlookupd", address, path))

        return await self._gather("nsqlookupd", self.lookupds, ask, problems)

    async def _ask_nsqds(self, path: str, problems: list[str], read: Callable[[Any], _T]) -> list[tuple[str, _T]]:
        async def ask(address: str) -> _T:
            return read(await self._get("nsqd", address, path))

        return await self._gather("nsqd", self._nsqds, ask, problems)

    async def _gather(
        self, kind: str, addresses: Sequence[str], ask: Callable[[str], Awaitable[_T]], problems: list[str]
    ) -> list[tuple[str, _T]]:
        """Return pairs of address and answer; raise UpstreamFailed if no daemon answers."""
        outcomes = await asyncio.gather(*map(ask, addresses), return_exceptions=True)
        found: list[tuple[str, _T]] = []
        failures: list[str] = []
        for address, outcome in zip(addresses, outcomes, strict=True):
            if isinstance(outcome, UpstreamFailed):
                failures.append(str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                found.append((address, outcome))
        if not found:
            raise UpstreamFailed(f"failed to query any {kind}: " + "\n".join(failures))
        problems.extend(failures)
        return found

    async def _describe(self, address: str) -> Node:
        info = await self._get("nsqd", address, "info")
        stats = await self._get("nsqd", address, "stats?format=json&include_clients=false")
        return _node_of(info, stats)

    async def _describe_if_has_topic(self, address: str, topic: str) -> Node | None:
        path = f"stats?format=json&topic={quote_plus(topic)}&include_clients=false"
        stats = await self._get("nsqd", address, path)
        if topic not in _topic_names(stats):
            return None
        node = _node_of(await self._get("nsqd", address, "info"), stats)
        host, _, port = address.rpartition(":")
        if not node.broadcast_address:
            node.broadcast_address, node.http_port = host.strip("[]"), int(port)
        node.hostname = node.hostname or host.strip("[]")
        return node


class _Broadcast:
    """One action on several daemons; collects successes and failures."""

    def __init__(self, cluster: ClusterClient, problems: list[str]) -> None:
        self._cluster = cluster
        self._problems = problems
        self._refusals: list[str] = []
        self._is_done_somewhere = False

    async def post_to_nodes(self, nodes: Sequence[Node], path: str) -> None:
        await self.post(NSQD, [node.http_address for node in nodes], path)

    async def post(self, kind: str, addresses: Sequence[str], path: str) -> None:
        requests = (self._cluster.post(kind, address, path) for address in addresses)
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        for address, outcome in zip(addresses, outcomes, strict=True):
            if isinstance(outcome, UpstreamFailed):
                self._problems.append(str(outcome))
                self._refusals.append(f"{kind} {address}: {outcome}")
            elif outcome is not None:
                raise outcome
            else:
                self._is_done_somewhere = True

    def check(self) -> None:
        """Raise UpstreamFailed if every daemon failed."""
        if self._refusals and not self._is_done_somewhere:
            raise UpstreamFailed("; ".join(self._refusals))


def _stats_path(topic: str, channel: str, include_clients: bool) -> str:
    path = "stats?format=json"
    if topic:
        path += f"&topic={quote_plus(topic)}"
        if channel:
            path += f"&channel={quote_plus(channel)}"
    return path if include_clients else path + "&include_clients=false"


def _topic_names(document: Any) -> list[str]:
    return [text(topic, "topic_name") for topic in objects(document, "topics") or ()]


def _producers(document: Any) -> list[Node]:
    return [Node.decode(each) for each in objects(document, "producers") or ()]


def _node_of(info: Any, stats: Any) -> Node:
    if not isinstance(info, dict):
        raise UpstreamFailed("json: not an object")
    node = Node.decode({key: value for key, value in info.items() if key != "topics"})
    node.topics = [(name, False) for name in _topic_names(stats)]
    return node
