"""/stats: a snapshot of the broker, as JSON and as text.

A snapshot is plain dicts with the keys, order and optional keys of nsqd's JSON. The text form, statsd and the
Prometheus page use the same dicts. This module reads the broker, never changes it, and is independent of HTTP.

A broker can have ten thousand topics, a topic as many channels, and a channel as many clients. So every function here
works in steps (see ``nsqx.net.steps``), one for each of them.
"""

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, NotRequired, Protocol, TypedDict, TypeVar, cast

import orjson

from nsqx.gotext import format_duration
from nsqx.net.steps import Steps, finish
from nsqx.nsqd.latency import LatencyResult, merged_result
from nsqx.units import NS_PER_S
from nsqx.version import NSQ_VERSION, version_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.memory import MemoryStats
    from nsqx.nsqd.topic import Topic


class PubCount(TypedDict):
    """The number of messages a client has published to one topic."""

    topic: str
    count: int


class ClientStats(TypedDict):
    """A connection, as a consumer of a channel or as a producer."""

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
    """A channel; ``clients`` is null if clients were not requested."""

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
    """A topic and the requested channels."""

    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: LatencyResult


class Snapshot(NamedTuple):
    """The state of the broker. None is nsqd's null: unknown topic, clients not requested, or no producer."""

    topics: list[TopicStats] | None
    producers: list[ClientStats] | None


class StatsFilter(NamedTuple):
    """The requested part of the state; an empty name selects every topic or channel."""

    topic_name: str = ""
    channel_name: str = ""
    include_clients: bool = True


EVERYTHING = StatsFilter()
WITHOUT_CLIENTS = StatsFilter(include_clients=False)


Kind = TypeVar("Kind")


class StatsEncoder(Protocol):
    """Converts each client, channel and topic as soon as it is collected."""

    def __call__(self, stats: Kind) -> Kind: ...


def _unchanged(stats: Kind) -> Kind:
    return stats


def _as_json(stats: Kind) -> Kind:
    """Encode as JSON that orjson inserts unchanged: it needs little memory, and the garbage collector ignores it."""
    return cast("Kind", orjson.Fragment(orjson.dumps(stats)))


def collect(
    broker: "Broker", now_ns: int, *, topic_name: str = "", channel_name: str = "", include_clients: bool = True
) -> Snapshot:
    """Return a snapshot, sorted by name; an empty name selects every topic or channel."""
    return finish(snapshot_steps(broker, now_ns, StatsFilter(topic_name, channel_name, include_clients)))


def snapshot_steps(
    broker: "Broker", now_ns: int, selection: StatsFilter = EVERYTHING, encode: "StatsEncoder" = _unchanged
) -> Steps[Snapshot]:
    """Collect a snapshot, sorted by name. Each channel and client is consistent by itself; the whole is not."""
    if selection.topic_name and selection.topic_name not in broker.topics:
        return Snapshot(None, None)
    topics = []
    for steps in each_topic(broker, now_ns, selection, encode):
        topic = yield from steps
        topics.append(encode(topic))
    return Snapshot(topics, (yield from _producer_steps(broker, selection, encode)))


def each_topic(
    broker: "Broker", now_ns: int, selection: StatsFilter = EVERYTHING, encode: "StatsEncoder" = _unchanged
) -> "Iterator[Steps[TopicStats]]":
    """Yield, for each selected topic sorted by name, the job that collects it; deleted topics are skipped."""
    for name in [selection.topic_name] if selection.topic_name else sorted(broker.topics):
        topic = broker.topics.get(name)
        if topic is not None and (not selection.channel_name or selection.channel_name in topic.channels):
            yield _topic_steps(topic, now_ns, selection, encode)


def _producer_steps(
    broker: "Broker", selection: StatsFilter, encode: "StatsEncoder"
) -> Steps[list[ClientStats] | None]:
    """Collect the clients that have published to any topic; None if there are none or clients are not requested."""
    producers = []
    if selection.include_clients:
        for client in list(broker.clients.values()):
            if client.pub_counts:
                producers.append(encode(client_stats(client, selection.topic_name)))
            yield
    return producers or None


def _topic_steps(topic: "Topic", now_ns: int, selection: StatsFilter, encode: "StatsEncoder") -> Steps[TopicStats]:
    channels = []
    latency: LatencyResult | None = None
    for name in [selection.channel_name] if selection.channel_name else sorted(topic.channels):
        channel = topic.channels.get(name)
        if channel is not None:
            stats = yield from _channel_steps(channel, now_ns, selection, encode)
            latency = stats["e2e_processing_latency"]
            channels.append(encode(stats))
        yield
    # The latency over all channels, shown or not. With a single channel there is nothing to merge.
    if latency is None or not len(topic.channels) == len(channels) == 1:
        latency = yield from _merge_steps(topic, now_ns)
    yield
    return {
        "topic_name": topic.name,
        "channels": channels,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": latency,
    }


def _merge_steps(topic: "Topic", now_ns: int) -> Steps[LatencyResult]:
    sketches = []
    for channel in list(topic.channels.values()):
        if channel.latency is not None:
            sketches.append(channel.latency)
            yield
    return merged_result(sketches, now_ns)


def _channel_steps(
    channel: "Channel", now_ns: int, selection: StatsFilter, encode: "StatsEncoder"
) -> Steps[ChannelStats]:
    clients: list[ClientStats] | None = None
    if selection.include_clients:
        clients = []
        for client in list(channel.clients.values()):
            clients.append(encode(client_stats(client, selection.topic_name)))
            yield
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
    """Return the statistics of one connection; a topic filter leaves out its publishes to other topics.

    Go nsqd lists only one topic in pub_counts, even if the client has published to several; here all are listed.
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


def json_steps(
    broker: "Broker", now_ns: int, selection: StatsFilter = EVERYTHING, memory: "MemoryStats | None" = None
) -> Steps[bytes]:
    """Build the answer to /stats?format=json; without ``memory`` that key is absent."""
    snapshot = yield from snapshot_steps(broker, now_ns, selection, _as_json)
    document: dict[str, object] = {
        "version": NSQ_VERSION,
        "health": broker.health,
        "start_time": broker.start_time_ns // NS_PER_S,
        "topics": snapshot.topics,
    }
    if memory is not None:
        document["memory"] = memory
    document["producers"] = snapshot.producers
    return orjson.dumps(document)


def text_steps(
    broker: "Broker", now_ns: int, selection: StatsFilter = EVERYTHING, memory: "MemoryStats | None" = None
) -> Steps[str]:
    """Build the text form of /stats."""
    start_time_ns = broker.start_time_ns
    started = datetime.fromtimestamp(start_time_ns // NS_PER_S).astimezone().isoformat().replace("+00:00", "Z")
    lines = [
        version_line("nsqd"),
        f"start_time {started}",
        f"uptime {format_duration(now_ns - start_time_ns)}",
        "",
        f"Health: {broker.health}",
    ]
    if memory is not None:
        lines += ["", "Memory:", *(f"   {name:<25}\t{value}" for name, value in memory.items())]
    lines += ["", "Topics: None"]
    has_topics = False
    is_known = not selection.topic_name or selection.topic_name in broker.topics
    for steps in each_topic(broker, now_ns, selection):
        topic = yield from steps
        if has_topics:
            lines.append("")
        else:
            lines[-1] = "Topics:"
            has_topics = True
        for line in _topic_lines(topic, now_ns):
            lines.append(line)
            yield
    producers = (yield from _producer_steps(broker, selection, _unchanged)) if is_known else None
    lines += ["", "Producers:" if producers else "Producers: None"]
    for client in producers or ():
        lines.append(f"   {_client_line(client, now_ns)}")
        yield
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
    connected_s = now_ns // NS_PER_S - client["connect_ts"]
    connected = format_duration(connected_s * NS_PER_S)
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
    """Format a latency for the text form: one decimal, in the largest unit that it exceeds."""
    for unit_ns, unit in ((NS_PER_S, "s"), (1_000_000, "ms"), (1000, "us")):
        if value_ns > unit_ns:
            return f"{value_ns / unit_ns:.1f}{unit}"
    return f"{value_ns:.1f}ns"
