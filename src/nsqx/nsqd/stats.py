"""/stats: the state of the broker, as JSON and as text.

A topic, a channel and a client are plain dicts with the keys, order and optional keys of nsqd's JSON. The text form,
statsd and the Prometheus page use the same dicts. This module reads the broker, never changes it, and is independent of
HTTP.

A broker can have ten thousand topics, a topic as many channels, and a channel as many clients. So they are collected
one by one, each in a step (see ``nsqx.net.steps``), and a report never holds more than one of each. Each channel and
client is consistent by itself; the whole is not, because the broker works between the steps.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple, NotRequired, TypedDict

import orjson

from nsqx.gotext import format_duration
from nsqx.net.steps import Steps
from nsqx.nsqd.latency import NO_LATENCY, LatencyResult, MergedLatency
from nsqx.nsqd.log_stats import CommitStats, ConversionStats, CursorStats, LogStats
from nsqx.units import NS_PER_MS, NS_PER_S
from nsqx.version import NSQ_VERSION, version_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsqx.net.pieces import Pieces
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.memory import MemoryStats
    from nsqx.nsqd.node_stats import NodeNumbers
    from nsqx.nsqd.topic import Topic
    from nsqx.nsqd.transaction_stats import TransactionStats


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


OldestMs = Annotated[
    int,
    "The approximate age of the oldest message that waits or is in flight, in milliseconds; 0 if there is none. "
    "Deferred messages do not count until they are due. Absent if it is unknown.",
]


class ChannelStats(TypedDict):
    """A channel; ``clients`` is null if clients were not requested, and ``cursor`` is there if its topic has a log.

    ``dead`` is there if its topic has no log and it has an attempt limit; otherwise it is in ``cursor``.
    """

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
    oldest_ms: NotRequired[OldestMs]
    cursor: NotRequired[CursorStats]
    dead: NotRequired[Annotated[int, "Messages finished at the attempt limit since the start."]]


class TopicStats(TypedDict):
    """A topic and the requested channels.

    ``log`` is there if the topic has a log, and ``converting`` while messages are moved from another store.
    """

    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: LatencyResult
    oldest_ms: NotRequired[
        Annotated[int, "The age of the oldest message that no channel has, in milliseconds; absent if it is unknown."]
    ]
    log: NotRequired[LogStats]
    converting: NotRequired[ConversionStats]


class StatsFilter(NamedTuple):
    """The requested part of the state; an empty name selects every topic or channel."""

    topic_name: str = ""
    channel_name: str = ""
    include_clients: bool = True


EVERYTHING = StatsFilter()
WITHOUT_CLIENTS = StatsFilter(include_clients=False)


class TopicCollector:
    """Collects one topic: ``steps`` returns the topic itself, then ``channels`` yields its channels one by one."""

    __slots__ = ("_latency", "_only_channel", "_selection", "_topic", "now_ns")

    def __init__(self, topic: "Topic", now_ns: int, selection: StatsFilter) -> None:
        self._topic = topic
        self.now_ns = now_ns
        self._selection = selection
        self._only_channel: Channel | None = None
        self._latency = NO_LATENCY

    def steps(self) -> Steps[TopicStats]:
        """Collect the topic, with an empty list of channels."""
        topic = self._topic
        channels = list(topic.channels.values())
        if len(channels) == 1:
            self._only_channel = channels[0]
        self._latency = yield from _latency_steps(channels, self.now_ns)
        stats: TopicStats = {
            "topic_name": topic.name,
            "channels": [],
            "depth": topic.depth,
            "backend_depth": topic.backend_depth,
            "message_count": topic.message_count,
            "message_bytes": topic.message_bytes,
            "paused": topic.paused,
            "e2e_processing_latency": self._latency,
        }
        oldest_ns = topic.oldest_time_ns()
        if oldest_ns >= 0:
            stats["oldest_ms"] = _age_ms(oldest_ns, self.now_ns)
        log = topic.log_stats()
        if log is not None:
            stats["log"] = log
        converting = topic.conversion_stats()
        if converting is not None:
            stats["converting"] = converting
        return stats

    def channels(self) -> "Iterator[tuple[ChannelStats, Iterator[ClientStats]]]":
        """Yield the selected channels, sorted by name, each with an empty list of clients, and the clients themselves.

        Channels that are deleted in between are left out. There are no clients if they are not requested.
        """
        topic, selection = self._topic, self._selection
        for name in [selection.channel_name] if selection.channel_name else sorted(topic.channels):
            channel = topic.channels.get(name)
            if channel is not None:
                clients = list(channel.clients.values()) if selection.include_clients else []
                yield self._channel_stats(channel), (client_stats(client, selection.topic_name) for client in clients)

    def _channel_stats(self, channel: "Channel") -> ChannelStats:
        if channel is self._only_channel:
            latency = self._latency  # a single channel has the latency of its topic
        else:
            latency = NO_LATENCY if channel.latency is None else channel.latency.result(self.now_ns)
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
            "clients": [] if self._selection.include_clients else None,
            "paused": channel.paused,
            "e2e_processing_latency": latency,
        }
        if not stats["zone_local_msg_count"]:
            del stats["zone_local_msg_count"]
        if not stats["region_local_msg_count"]:
            del stats["region_local_msg_count"]
        if not stats["global_msg_count"]:
            del stats["global_msg_count"]
        oldest_ns = channel.store.oldest_time_ns()
        if oldest_ns >= 0:
            stats["oldest_ms"] = _age_ms(oldest_ns, self.now_ns)
        cursor = channel.store.cursor_stats()
        if cursor is not None:
            stats["cursor"] = cursor
        elif channel.max_attempts:
            stats["dead"] = channel.dead_count
        return stats


def _age_ms(time_ns: int, now_ns: int) -> int:
    """Return the age of a message; 0 without one, and at least 1 with one."""
    return max(1, (now_ns - time_ns) // NS_PER_MS) if time_ns else 0


def each_topic(broker: "Broker", now_ns: int, selection: StatsFilter = EVERYTHING) -> "Iterator[TopicCollector]":
    """Yield the selected topics, sorted by name; topics that are deleted in between are left out."""
    for name in [selection.topic_name] if selection.topic_name else sorted(broker.topics):
        topic = broker.topics.get(name)
        if topic is not None and (not selection.channel_name or selection.channel_name in topic.channels):
            yield TopicCollector(topic, now_ns, selection)


def _latency_steps(channels: "Iterable[Channel]", now_ns: int) -> Steps[LatencyResult]:
    """Merge the latencies of all channels of a topic, shown or not."""
    merged = MergedLatency()
    for channel in channels:
        if channel.latency is not None:
            merged.add(channel.latency, now_ns)
        yield
    return merged.result()


def _each_producer(broker: "Broker", selection: StatsFilter) -> "Iterator[ClientStats | None]":
    """Yield the clients that have published to any topic, and None for the others: each takes a step."""
    if selection.include_clients and _is_known(broker, selection):
        for client in list(broker.clients.values()):
            yield client_stats(client, selection.topic_name) if client.pub_counts else None


def _is_known(broker: "Broker", selection: StatsFilter) -> bool:
    return not selection.topic_name or selection.topic_name in broker.topics


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


def commit_stats(broker: "Broker") -> CommitStats | None:
    """Return the numbers of the commits of all logs; None if no topic has a log."""
    logs = broker.logs
    if not logs.has_logs:
        return None
    held_clients = sum(client.output.is_held for client in broker.clients.values())
    return CommitStats(
        logs.commits,
        logs.messages,
        logs.checkpoints,
        held_clients,
        logs.fill_ratio,
        logs.damaged_count,
        logs.memory_size,
        logs.cold_read_count,
    )


def json_pieces(
    broker: "Broker",
    now_ns: int,
    selection: StatsFilter = EVERYTHING,
    memory: "MemoryStats | None" = None,
    node: "NodeNumbers | None" = None,
    transactions: "TransactionStats | None" = None,
) -> "Pieces":
    """Yield the answer to /stats?format=json; a key of None is absent."""
    start = {"version": NSQ_VERSION, "health": broker.health, "start_time": broker.start_time_ns // NS_PER_S}
    yield orjson.dumps(start)[:-1] + b',"topics":'
    if _is_known(broker, selection):
        yield b"["
        separator = b""
        for collector in each_topic(broker, now_ns, selection):
            yield from _topic_json(separator, collector)
            separator = b","
        yield b"]"
    else:
        yield b"null"
    if memory is not None:
        yield b',"memory":' + orjson.dumps(memory)
    if node is not None:
        yield b',"node":' + orjson.dumps(node)
    if transactions is not None:
        yield b',"transactions":' + orjson.dumps(transactions)
    yield b',"producers":'
    separator = b"["
    for producer in _each_producer(broker, selection):
        if producer is None:
            yield None
        else:
            yield separator + orjson.dumps(producer)
            separator = b","
    yield b"null}" if separator == b"[" else b"]}"


def _topic_json(separator: bytes, collector: TopicCollector) -> "Pieces":
    head, tail = _json_around(b'"channels":[]', (yield from collector.steps()))
    yield separator + head
    separator = b""
    for channel, clients in collector.channels():
        yield from _channel_json(separator, channel, clients)
        separator = b","
    yield tail


def _channel_json(separator: bytes, channel: ChannelStats, clients: "Iterable[ClientStats]") -> "Pieces":
    if not channel["client_count"] or channel["clients"] is None:
        yield separator + orjson.dumps(channel)
        return
    head, tail = _json_around(b'"clients":[]', channel)
    yield separator + head
    separator = b""
    for client in clients:
        yield separator + orjson.dumps(client)
        separator = b","
    yield tail


def _json_around(empty_list: bytes, document: object) -> tuple[bytes, bytes]:
    """Return the JSON of ``document`` before and after the items of its empty list; no string can contain the list."""
    head, _, tail = orjson.dumps(document).partition(empty_list)
    return head + empty_list[:-1], b"]" + tail


def text_pieces(
    broker: "Broker",
    now_ns: int,
    selection: StatsFilter = EVERYTHING,
    memory: "MemoryStats | None" = None,
    transactions: "TransactionStats | None" = None,
) -> "Pieces":
    """Yield the text form of /stats, line by line."""
    for step in _text_lines(broker, now_ns, selection, memory, transactions):
        yield None if step is None else b"%b\n" % step.encode()


def _text_lines(
    broker: "Broker",
    now_ns: int,
    selection: StatsFilter,
    memory: "MemoryStats | None",
    transactions: "TransactionStats | None",
) -> "Iterator[str | None]":
    """Yield each line, and None after other steps."""
    start_time_ns = broker.start_time_ns
    started = datetime.fromtimestamp(start_time_ns // NS_PER_S).astimezone().isoformat().replace("+00:00", "Z")
    yield version_line("nsqd")
    yield f"start_time {started}"
    yield f"uptime {format_duration(now_ns - start_time_ns)}"
    yield ""
    yield f"Health: {broker.health}"
    if memory is not None:
        yield ""
        yield "Memory:"
        yield from (f"   {name:<25}\t{value}" for name, value in memory.items())
    if transactions is not None:
        yield ""
        yield "Transactions:"
        yield from (f"   {name:<25}\t{value}" for name, value in transactions.items())
    has_topics = False
    for collector in each_topic(broker, now_ns, selection):
        topic = yield from collector.steps()
        yield "" if has_topics else "\nTopics:"
        has_topics = True
        yield _topic_line(topic)
        if "log" in topic:
            yield _log_line(topic["log"])
        if "converting" in topic:
            yield _converting_line(topic["converting"])
        for channel, clients in collector.channels():
            yield _channel_line(channel)
            yield from (f"        {_client_line(client, now_ns)}" for client in clients)
    if not has_topics:
        yield "\nTopics: None"
    has_producers = False
    for producer in _each_producer(broker, selection):
        if producer is None:
            yield None
            continue
        if not has_producers:
            yield "\nProducers:"
            has_producers = True
        yield f"   {_client_line(producer, now_ns)}"
    if not has_producers:
        yield "\nProducers: None"


def _topic_line(topic: TopicStats) -> str:
    return (
        f"{'*P ' if topic['paused'] else '   '}[{topic['topic_name']:<15}]"
        f" depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8}"
        f" e2e%: {_latencies(topic['e2e_processing_latency'])}"
    )


def _log_line(log: LogStats) -> str:
    return (
        f"      log: {log['durability']:<5} first: {log['first']:<8} stable: {log['stable']:<8} end: {log['end']:<8}"
        f" def: {log['deferred_count']:<4} segments: {log['segments']:<4} bytes: {log['bytes']}"
    )


def _converting_line(converting: ConversionStats) -> str:
    return (
        f"      converting: {converting['from']} to {converting['to']} moved: {converting['moved']:<8}"
        f" left: {converting['left']}"
    )


def _channel_line(channel: ChannelStats) -> str:
    return (
        f"{'   *P ' if channel['paused'] else '      '}[{channel['channel_name']:<25}]"
        f" depth: {channel['depth']:<5} be-depth: {channel['backend_depth']:<5}"
        f" inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4}"
        f" re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5}"
        f" msgs: {channel['message_count']:<8} e2e%: {_latencies(channel['e2e_processing_latency'])}"
    )


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
