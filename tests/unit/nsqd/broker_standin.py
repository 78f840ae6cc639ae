"""Plain objects with the attributes that statistics read from a broker, its topics, channels and clients."""

from dataclasses import dataclass, field

from nsqx.nsqd.latency import LatencySketch
from nsqx.nsqd.log_stats import ConversionStats, CursorStats, LogStats

SECOND_NS = 1_000_000_000
NOW_NS = 1_700_000_000 * SECOND_NS


@dataclass
class ClientStandIn:
    remote_address: str = "127.0.0.1:5000"
    client_id: str = "worker"
    hostname: str = "worker.example"
    user_agent: str = "test/1.0"
    version: str = "V2"
    state: int = 3
    ready_count: int = 10
    in_flight_count: int = 2
    message_count: int = 7
    finish_count: int = 4
    requeue_count: int = 1
    connected_at_s: int = NOW_NS // SECOND_NS - 65
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    pub_counts: dict[str, int] = field(default_factory=dict)


@dataclass
class StoreStandIn:
    cursor: CursorStats | None = None
    oldest_ns: int = 0

    def oldest_time_ns(self) -> int:
        return self.oldest_ns

    def cursor_stats(self) -> CursorStats | None:
        return self.cursor


@dataclass
class ChannelStandIn:
    name: str
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    dead_count: int = 0
    max_attempts: int = 0
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    clients: dict[int, ClientStandIn] = field(default_factory=dict)
    paused: bool = False
    latency: LatencySketch | None = None
    store: StoreStandIn = field(default_factory=StoreStandIn)


@dataclass
class TopicStandIn:
    name: str
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    paused: bool = False
    channels: dict[str, ChannelStandIn] = field(default_factory=dict)
    log: LogStats | None = None
    converting: ConversionStats | None = None
    oldest_ns: int = 0

    def oldest_time_ns(self) -> int:
        return self.oldest_ns

    def log_stats(self) -> LogStats | None:
        return self.log

    def conversion_stats(self) -> ConversionStats | None:
        return self.converting

    def add(self, *channels: ChannelStandIn) -> "TopicStandIn":
        self.channels.update((channel.name, channel) for channel in channels)
        return self


LOG: LogStats = {
    "store": "log",
    "durability": "fsync",
    "id": "6f1c2a9e40d34b7c",
    "first": 100,
    "stable": 240,
    "end": 250,
    "bytes": 4096,
    "segments": 2,
    "deferred_count": 3,
    "refused": {"no_space": 7, "write_failed": 0, "log_full": 2},
    "producers": 9,
    "producers_forgotten": 8,
    "duplicates": 6,
    "kept_bytes": 1024,
    "dropped": 5,
    "expired": 6,
}
CURSOR: CursorStats = {
    "floor": 120,
    "next": 230,
    "holes": 4,
    "dead": 6,
    "dropped": 5,
    "expired": 6,
    "oldest": NOW_NS - 90 * SECOND_NS,
}


def log_topic(**fields: int) -> TopicStandIn:
    """Return the topic ``events``, which has a log, with the channel ``audit``."""
    return TopicStandIn("events", log=LOG, **fields).add(
        ChannelStandIn("audit", store=StoreStandIn(CURSOR, CURSOR["oldest"]))
    )


@dataclass
class BrokerStandIn:
    topics: dict[str, TopicStandIn] = field(default_factory=dict)
    clients: dict[int, ClientStandIn] = field(default_factory=dict)
    health: str = "OK"
    start_time_ns: int = NOW_NS

    def add(self, *topics: TopicStandIn) -> "BrokerStandIn":
        self.topics.update((topic.name, topic) for topic in topics)
        return self
