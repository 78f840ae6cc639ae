"""What /stats shows: one snapshot of the broker, as JSON and as text.

A snapshot is plain dicts whose keys, order and absences are those of nsqd's JSON; the text form, statsd and the
Prometheus page read the same dicts. This module reads the broker and never changes it, and knows nothing of HTTP.
"""

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

import orjson

from nsqx.gotext import format_duration
from nsqx.nsqd.latency import LatencyResult, merged_result
from nsqx.version import NSQ_VERSION, version_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.memory import MemoryStats
    from nsqx.nsqd.topic import Topic

SECOND_NS = 1_000_000_000
# A broker may have ten thousand topics; looking at all of them at once would hold up its clients.
TOPICS_PER_TURN = 200


class PubCount(TypedDict):
    """How many messages a client has published to one topic."""

    topic: str
    count: int


class ClientStats(TypedDict):
    """A connection, seen as a consumer of a channel or as a producer."""

    client_id: str
    hostname: str
    version: str
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    user_agent: str
    authed: NotRequired[bool]
    auth_identity: NotRequired[str]
    auth_identity_url: NotRequired[str]
    topology_zone: str
    topology_region: str
    pub_counts: NotRequired[list[PubCount]]
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool


class ChannelStats(TypedDict):
    """A channel; ``clients`` is None when clients were not asked for."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    zone_local_msg_count: NotRequired[int]
    region_local_msg_count: NotRequired[int]
    global_msg_count: NotRequired[int]
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[ClientStats] | None
    paused: bool
    e2e_processing_latency: LatencyResult


class TopicStats(TypedDict):
    """A topic and those of its channels that were asked for."""

    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: LatencyResult


class Snapshot(NamedTuple):
    """The broker at a moment. None stands where nsqd writes null: topic unknown, clients not asked for, no producer."""

    topics: list[TopicStats] | None
    producers: list[ClientStats] | None


def collect(
    broker: "Broker", now_ns: int, *, topic_name: str = "", channel_name: str = "", include_clients: bool = True
) -> Snapshot:
    """A snapshot, sorted by name; an empty name stands for every topic or channel."""
    if topic_name and topic_name not in broker.topics:
        return Snapshot(None, None)
    topics = list(_topics(broker, now_ns, topic_name, channel_name, include_clients))
    return Snapshot(topics, _producers(broker, topic_name) if include_clients else None)


async def collect_gradually(
    broker: "Broker", now_ns: int, *, topic_name: str = "", channel_name: str = "", include_clients: bool = True
) -> Snapshot:
    """As ``collect``, but lets the loop turn now and then: each topic is as it was at one moment, the whole is not."""
    if topic_name and topic_name not in broker.topics:
        return Snapshot(None, None)
    topics = []
    for topic in _topics(broker, now_ns, topic_name, channel_name, include_clients):
        topics.append(topic)
        if len(topics) % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
    return Snapshot(topics, _producers(broker, topic_name) if include_clients else None)


def _topics(
    broker: "Broker", now_ns: int, topic_name: str, channel_name: str, include_clients: bool
) -> "Iterator[TopicStats]":
    for name in [topic_name] if topic_name else sorted(broker.topics):
        topic = broker.topics.get(name)
        if topic is not None and (not channel_name or channel_name in topic.channels):
            yield _topic_stats(topic, now_ns, topic_name, channel_name, include_clients)


def _producers(broker: "Broker", topic_name: str) -> list[ClientStats] | None:
    """Every client that has published, to whatever topic."""
    return [client_stats(client, topic_name) for client in broker.clients.values() if client.pub_counts] or None


def _topic_stats(
    topic: "Topic", now_ns: int, topic_filter: str, channel_name: str, include_clients: bool
) -> TopicStats:
    names = [channel_name] if channel_name else sorted(topic.channels)
    channels = [_channel_stats(topic.channels[name], now_ns, topic_filter, include_clients) for name in names]
    return {
        "topic_name": topic.name,
        "channels": channels,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _topic_latency(topic, channels, now_ns),
    }


def _topic_latency(topic: "Topic", shown: list[ChannelStats], now_ns: int) -> LatencyResult:
    """The latency over all channels, shown or not; merging is saved where there is but one."""
    if len(topic.channels) == len(shown) == 1:
        return shown[0]["e2e_processing_latency"]
    sketches = (channel.latency for channel in topic.channels.values() if channel.latency is not None)
    return merged_result(sketches, now_ns)


def _channel_stats(channel: "Channel", now_ns: int, topic_filter: str, include_clients: bool) -> ChannelStats:
    clients = None
    if include_clients:
        clients = [client_stats(client, topic_filter) for client in channel.clients.values()]
    latency: LatencyResult = {"count": 0, "percentiles": None}
    if channel.latency is not None:
        latency = channel.latency.result(now_ns)
    stats: ChannelStats = {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "zone_local_msg_count": channel.zone_local_msg_count,
        "region_local_msg_count": channel.region_local_msg_count,
        "global_msg_count": channel.global_msg_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.clients),
        "clients": clients,
        "paused": channel.paused,
        "e2e_processing_latency": latency,
    }
    if not stats["zone_local_msg_count"]:
        del stats["zone_local_msg_count"]
    if not stats["region_local_msg_count"]:
        del stats["region_local_msg_count"]
    if not stats["global_msg_count"]:
        del stats["global_msg_count"]
    return stats


def client_stats(client: "Client", topic_filter: str = "") -> ClientStats:
    """One connection; with a topic filter, what it has published to other topics is left out.

    nsqd lists only one topic in pub_counts however many the client has published to; all are listed here.
    """
    pub_counts: list[PubCount] = [
        {"topic": topic, "count": count}
        for topic, count in client.pub_counts.items()
        if not topic_filter or topic == topic_filter
    ]
    stats: ClientStats = {
        "client_id": client.client_id,
        "hostname": client.hostname,
        "version": client.version,
        "remote_address": client.remote_address,
        "state": client.state,
        "ready_count": client.ready_count,
        "in_flight_count": client.in_flight_count,
        "message_count": client.message_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "connect_ts": client.connected_at_s,
        "sample_rate": client.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": client.user_agent,
        "authed": client.authed,
        "auth_identity": client.auth_identity,
        "auth_identity_url": client.auth_identity_url,
        "topology_zone": client.topology_zone,
        "topology_region": client.topology_region,
        "pub_counts": pub_counts,
        "tls": client.tls,
        "tls_cipher_suite": client.tls_cipher_suite,
        "tls_version": client.tls_version,
        "tls_negotiated_protocol": client.tls_negotiated_protocol,
        "tls_negotiated_protocol_is_mutual": client.tls_negotiated_protocol_is_mutual,
    }
    if not client.authed:
        del stats["authed"]
    if not client.auth_identity:
        del stats["auth_identity"]
    if not client.auth_identity_url:
        del stats["auth_identity_url"]
    if not pub_counts:
        del stats["pub_counts"]
    return stats


def json_form(snapshot: Snapshot, health: str, start_time_ns: int, memory: "MemoryStats | None") -> bytes:
    """nsqd's /stats?format=json; without ``memory`` that key is absent."""
    document: dict[str, object] = {
        "version": NSQ_VERSION,
        "health": health,
        "start_time": start_time_ns // SECOND_NS,
        "topics": snapshot.topics,
    }
    if memory is not None:
        document["memory"] = memory
    document["producers"] = snapshot.producers
    return orjson.dumps(document)


def text_form(snapshot: Snapshot, health: str, start_time_ns: int, now_ns: int, memory: "MemoryStats | None") -> str:
    """nsqd's /stats for people."""
    started = datetime.fromtimestamp(start_time_ns // SECOND_NS).astimezone().isoformat().replace("+00:00", "Z")
    lines = [
        version_line("nsqd"),
        f"start_time {started}",
        f"uptime {format_duration(now_ns - start_time_ns)}",
        "",
        f"Health: {health}",
    ]
    if memory is not None:
        lines += ["", "Memory:", *(f"   {name:<25}\t{value}" for name, value in memory.items())]
    lines += ["", "Topics:" if snapshot.topics else "Topics: None"]
    for number, topic in enumerate(snapshot.topics or ()):
        if number:
            lines.append("")
        lines += _topic_lines(topic, now_ns)
    lines += ["", "Producers:" if snapshot.producers else "Producers: None"]
    lines += (f"   {_client_line(client, now_ns)}" for client in snapshot.producers or ())
    return "\n".join(lines) + "\n"


def _topic_lines(topic: TopicStats, now_ns: int) -> "Iterator[str]":
    yield (
        f"{'*P ' if topic['paused'] else '   '}[{topic['topic_name']:<15}]"
        f" depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8}"
        f" e2e%: {_latencies(topic['e2e_processing_latency'])}"
    )
    for channel in topic["channels"]:
        yield (
            f"{'   *P ' if channel['paused'] else '      '}[{channel['channel_name']:<25}]"
            f" depth: {channel['depth']:<5} be-depth: {channel['backend_depth']:<5}"
            f" inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4}"
            f" re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5}"
            f" msgs: {channel['message_count']:<8} e2e%: {_latencies(channel['e2e_processing_latency'])}"
        )
        yield from (f"        {_client_line(client, now_ns)}" for client in channel["clients"] or ())


def _client_line(client: ClientStats, now_ns: int) -> str:
    connected_s = now_ns // SECOND_NS - client["connect_ts"]
    connected = format_duration(connected_s * SECOND_NS)
    # The address of a client on a unix socket has no port.
    port = client["remote_address"].rpartition(":")[2] if ":" in client["remote_address"] else ""
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    if pub_counts := client.get("pub_counts"):
        return _producer_line(client["version"], name, pub_counts, connected)
    return (
        f"[{client['version']} {name:<21}] state: {client['state']} inflt: {client['in_flight_count']:<4}"
        f" rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8}"
        f" msgs: {client['message_count']:<8} connected: {connected}"
    )


def _producer_line(version: str, name: str, pub_counts: "Iterable[PubCount]", connected: str) -> str:
    total = sum(entry["count"] for entry in pub_counts)
    topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in pub_counts)
    return f"[{version} {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"


def _latencies(latency: LatencyResult) -> str:
    return ", ".join(_rounded_duration(percentile["value"]) for percentile in latency["percentiles"] or ())


def _rounded_duration(value_ns: int) -> str:
    """A latency as the text form has it: one decimal, in the largest unit it exceeds."""
    for unit_ns, unit in ((SECOND_NS, "s"), (1_000_000, "ms"), (1000, "us")):
        if value_ns > unit_ns:
            return f"{value_ns / unit_ns:.1f}{unit}"
    return f"{value_ns:.1f}ns"
