"""The JSON documents of nsqadmin's API, as types.

The schemas in /openapi.json are made from these types. Lists that Go leaves unset are null.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from nsqx.net.openapi import NAME

NameField = Annotated[str, NAME]
WarningField = Annotated[str, "Empty, or `WARNING: ` and the daemons that did not respond or failed."]
SecondsField = Annotated[float, "Seconds since 1970."]


class ResultMessage(TypedDict):
    """The result of a change."""

    message: WarningField


# NSQ's API


class TopicListing(TypedDict):
    """Topic names; for inactive topics also the channels of each."""

    topics: list[str] | dict[str, list[str] | None] | None
    message: WarningField


class LatencyDocument(TypedDict):
    """Time from publish to finish, in quantiles. Values are nanoseconds."""

    count: int
    percentiles: list[dict[str, float]] | None
    topic: str
    channel: str
    host: str


class ClientDocument(TypedDict):
    """A consumer's connection to one nsqd."""

    node: str
    remote_address: str
    version: str
    client_id: str
    hostname: str
    user_agent: str
    connect_ts: Annotated[int, "Seconds since 1970."]
    connected: Annotated[int, "Nanoseconds since the client connected."]
    in_flight_count: int
    ready_count: int
    finish_count: int
    requeue_count: int
    message_count: int
    sample_rate: int
    deflate: bool
    snappy: bool
    authed: bool
    auth_identity: str
    auth_identity_url: str
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool
    topology_zone: NotRequired[str]
    topology_region: NotRequired[str]
    zone_local_msg_count: NotRequired[int]
    region_local_msg_count: NotRequired[int]
    global_msg_count: NotRequired[int]
    node_topology_zone: NotRequired[str]
    node_topology_region: NotRequired[str]


class _Counts(TypedDict):
    node: Annotated[str, "The address of the nsqd, or `*` for the sum over nsqds."]
    hostname: str
    topic_name: str
    depth: int
    memory_depth: int
    backend_depth: int
    message_count: int
    delivery_msg_count: NotRequired[int]
    zone_local_msg_count: NotRequired[int]
    region_local_msg_count: NotRequired[int]
    global_msg_count: NotRequired[int]
    paused: bool
    e2e_processing_latency: LatencyDocument | None
    message: NotRequired[WarningField]


class CursorDocument(TypedDict):
    """The position of a channel in the log of its topic on one nsqd."""

    floor: Annotated[int, "The first unfinished offset."]
    next: Annotated[int, "The first offset that was never delivered."]
    holes: Annotated[int, "Unfinished messages before `next`."]


class ChannelDocument(_Counts):
    """A channel on one nsqd, or summed over nsqds; ``cursor`` is there if it is on one nsqd and its topic has a log."""

    cursor: NotRequired[CursorDocument]
    channel_name: str
    in_flight_count: int
    deferred_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    nodes: "list[ChannelDocument] | None"
    clients: list[ClientDocument] | None


class LogDocument(TypedDict):
    """The log of a topic on one nsqd."""

    store: str
    durability: str
    id: str
    first: int
    stable: int
    end: int
    bytes: int
    segments: int
    deferred_count: int


class TopicDocument(_Counts):
    """A topic on one nsqd, or summed over nsqds; ``log`` is there if it is on one nsqd and has a log."""

    log: NotRequired[LogDocument]
    nodes: "list[TopicDocument] | None"
    channels: list[ChannelDocument] | None


class NodeTopic(TypedDict):
    """A topic of an nsqd."""

    topic: str
    tombstoned: bool


class NodeDocument(TypedDict):
    """An nsqd, as nsqlookupd lists it."""

    remote_addresses: list[str] | None
    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topics: list[NodeTopic] | None
    out_of_date: bool
    topology_zone: NotRequired[str]
    topology_region: NotRequired[str]


class NodeListing(TypedDict):
    """All nsqds."""

    nodes: list[NodeDocument] | None
    message: WarningField


class NodeStats(TypedDict):
    """One nsqd and its topics."""

    node: str
    topics: list[TopicDocument] | None
    total_messages: int
    total_clients: int
    message: WarningField


class ChannelCounter(TypedDict):
    """The message count of a channel on one nsqd."""

    node: str
    topic_name: str
    channel_name: str
    message_count: int


class CounterDocument(TypedDict):
    """Message counts by `topic:channel:node`."""

    stats: dict[str, ChannelCounter]
    message: WarningField


class GraphiteRate(TypedDict):
    """A rate that Graphite returned: a number with two decimals, or `N/A`."""

    rate: str


# The API of the page


class ClusterLinkDocument(TypedDict):
    """A cluster of this nsqadmin."""

    name: str
    path: Annotated[str, "The base path of its pages and its API, with a slash at the end."]


class SettingsDocument(TypedDict):
    """The settings of the page. A caller without a role gets only the required fields."""

    version: Annotated[str, "The NSQ release whose API this is."]
    nsqx_version: str
    base_path: str
    login: Annotated[bool, "True if tokens are in use."]
    role: Literal["nobody", "view", "consume", "operate"]
    may_consume: Annotated[bool, "True if the caller may read the bodies of messages."]
    may_operate: bool
    user: str
    cluster: Annotated[str, "The name of the cluster; empty if there is only one."]
    clusters: Annotated[list[ClusterLinkDocument], "All clusters of this nsqadmin; empty if there is only one."]
    poll_interval_s: NotRequired[float]
    history_window_s: NotRequired[float]
    messages: NotRequired[Annotated[bool, "False if reading and publishing messages are disabled."]]
    tail_max_per_s: NotRequired[float]
    manual_url: NotRequired[Annotated[str, "The URL of the manual without a slash at the end, or empty."]]
    nsqlookupd: NotRequired[list[str]]
    graph_enabled: NotRequired[bool]
    graphite_url: NotRequired[str]
    proxy_graphite: NotRequired[bool]
    statsd_interval_s: NotRequired[float]
    statsd_counter_format: NotRequired[str]
    statsd_gauge_format: NotRequired[str]
    statsd_prefix: NotRequired[str]


class LoginBody(TypedDict):
    """A token to log in with."""

    token: str


class LoginResult(TypedDict):
    """The role that a token gives."""

    role: Literal["view", "consume", "operate"]
    message: str


class TroubledChannel(TypedDict):
    """A channel in trouble, or a topic without channels (``channel`` is empty)."""

    topic: str
    channel: str
    kinds: list[Literal["no_consumer", "growing", "timing_out"]]
    depth: int


class TroubleDocument(TypedDict):
    """How many channels are in trouble, in each kind of trouble, and those with the most messages."""

    count: int
    no_consumer: int
    growing: int
    timing_out: int
    worst: list[TroubledChannel]


class MissingNodeDocument(TypedDict):
    """An nsqd that does not respond or is no longer listed. Fields are null if it never responded."""

    address: str
    last_seen_s: SecondsField | None
    reason: str
    listed: Annotated[bool, "True if an nsqlookupd or a flag still names it."]
    maybe_at: Annotated[str, "The address of a later nsqd on a host of the same name; empty if there is none."]
    stranded: Annotated[int | None, "Messages on it when it last responded."]
    topics: int | None


class AlertDocument(TypedDict):
    """A condition that an operator should look into."""

    rule: str
    title: str
    severity: Literal["critical", "warning", "info"]
    state: Annotated[
        Literal["pending", "firing", "resolved"], "`pending`: the condition holds for less than the rule's time."
    ]
    topic: Annotated[str, "Empty for an alert about an nsqd."]
    channel: Annotated[str, "Empty for an alert about an nsqd or a topic."]
    node: Annotated[str, "The HTTP address of an nsqd; empty for other alerts."]
    unit: Annotated[Literal["messages", "seconds", "share", ""], "The unit of the value and of the threshold."]
    value: Annotated[float, "The last value for which the condition held."]
    threshold: float
    resolve_threshold: Annotated[float, "The threshold while the alert fires."]
    since_s: Annotated[float, "The time since which the condition holds, in seconds since 1970."]
    fired_s: SecondsField | None
    resolved_s: SecondsField | None
    summary: str


class AlertRuleDocument(TypedDict):
    """A rule, as it applies where no table with a glob matches."""

    rule: str
    title: str
    unit: Literal["messages", "seconds", "share", ""]
    threshold: float
    resolve_threshold: Annotated[float, "The threshold while the alert fires."]
    for_s: Annotated[float, "The condition must hold for this time."]
    keep_firing_for_s: Annotated[float, "The alert is resolved when the condition has not held for this time."]
    window_s: Annotated[float, "The time over which the condition is measured; 0: the last value."]
    severity: Literal["critical", "warning", "info"]
    enabled: bool


class AlertWebhookDocument(TypedDict):
    """The webhook that gets the alerts."""

    waiting: Annotated[int, "The number of messages that are not sent yet."]
    problem: Annotated[str, "The reason why the last attempt failed, or empty."]


class AlertsDocument(TypedDict):
    """All alerts of the cluster."""

    counts: Annotated[dict[str, int], "`firing`, `pending`, and the firing ones by severity."]
    alerts: Annotated[list[AlertDocument], "Firing and pending ones, by severity, the longest first; at most 1,000."]
    omitted: Annotated[int, "The number of further alerts."]
    resolved: Annotated[list[AlertDocument], "The latest 200, newest first."]
    rules: list[AlertRuleDocument]
    webhook: AlertWebhookDocument | None
    message: WarningField


class PollHealth(TypedDict):
    """The last poll of the cluster."""

    number: Annotated[int, "Polls are counted from 0. -1 before the first one."]
    time_s: SecondsField | None
    interval_s: float
    nodes: Annotated[int, "The number of nsqds that were polled."]
    totals: dict[str, float]
    trouble: TroubleDocument
    alerts: Annotated[dict[str, int], "The number of alerts: `firing`, `pending`, `critical`, `warning`, `info`."]
    missing: list[MissingNodeDocument]
    message: WarningField


class _BacklogFields(TypedDict):
    rate: Annotated[float, "Messages that came in, per second."]
    rate_out: Annotated[float, "Messages that left the channels, per second; of a topic, the sum over its channels."]
    oldest_at_s: Annotated[
        SecondsField | None,
        "About when the oldest message was published that waits or is in flight; null without one, and if no nsqd "
        "reports it, as Go's nsqd.",
    ]
    drain: Annotated[
        Literal["", "draining", "growing", "steady"],
        "What the backlog does; empty if nothing waits. A topic is as its worst channel.",
    ]
    drain_s: Annotated[float | None, "Seconds until a draining backlog is gone, at the rates of the last half minute."]
    backlog: Annotated[bool, "True if a message has waited for a minute, or if the backlog grows."]
    requeued_per_min: Annotated[int, "Requeues in the last minute."]
    timed_out_per_min: Annotated[int, "Timeouts in the last minute."]


class OverviewRow(_BacklogFields):
    """A topic. Rates are per second."""

    name: str
    channels: int
    channels_depth: int
    channel_message_count: int
    trouble: list[Literal["no_consumer", "growing", "timing_out"]]
    nodes: int
    missing_nodes: int
    stranded: int
    paused: bool
    depth: int
    backend_depth: int
    message_count: int
    in_flight: int
    deferred: int
    requeue_count: int
    requeued: float
    timeout_count: int
    timed_out: float
    clients: int
    sparkline: Annotated[list[float | None], "The rate, oldest first."]


class ListedChannel(_BacklogFields):
    """A channel of the cluster, summed over its nsqds. Rates are per second."""

    topic: str
    name: str
    trouble: list[Literal["no_consumer", "growing", "timing_out"]]
    latency_ns: Annotated[
        dict[str, float], "Time from publish to finish on the slowest nsqd, by percentile; empty if it is not measured."
    ]
    nodes: int
    missing_nodes: int
    stranded: int
    paused: bool
    depth: int
    backend_depth: int
    message_count: int
    in_flight: int
    deferred: int
    requeue_count: int
    requeued: float
    timeout_count: int
    timed_out: float
    clients: int


class _ListHead(TypedDict):
    time_s: SecondsField | None
    total: Annotated[int, "All entries."]
    found: Annotated[int, "The entries that match; the list has the first ones, up to the limit."]


class ChannelList(_ListHead):
    """Channels of all topics, at the last poll."""

    channels: list[ListedChannel]


class ListedConsumer(TypedDict):
    """The connections of one consumer to a channel: those with the same client id, host name and user agent."""

    topic: str
    channel: str
    client_id: str
    hostname: str
    user_agent: str
    connections: int
    nodes: list[str]
    ready_count: int
    in_flight_count: int
    finish_count: int
    requeue_count: int
    message_count: int
    finished_per_s: Annotated[float | None, "Null if the consumers were not read shortly before."]
    connected_at_s: Annotated[int, "When the last of the connections was opened; seconds since 1970."]
    paused: Annotated[bool, "True if the channel is paused on a node."]
    tls: Annotated[bool, "True if every connection uses TLS."]
    remote_addresses: list[str]


class ConsumerListing(_ListHead):
    """Consumers of all channels."""

    consumers: list[ListedConsumer]
    message: WarningField


class ListedNode(TypedDict):
    """The numbers of an nsqd at its last answer. Null is what it does not report."""

    address: str
    implementation: Literal["nsqx", "go"]
    version: Annotated[str, "The NSQ release."]
    nsqx_version: Annotated[str, "The version of nsqx; empty for Go's nsqd."]
    health: str
    start_s: SecondsField | None
    memory_bytes: Annotated[int | None, "Resident memory of nsqx; the heap in use of Go's nsqd."]
    disk_free_bytes: int | None
    disk_size_bytes: int | None
    connections: Annotated[int | None, "Consumers and producers."]
    answered_s: SecondsField
    consumers: Annotated[int, "Connections of consumers to channels."]
    topics: int
    channels: int
    depth: Annotated[int, "Messages waiting in topics and channels."]
    rate: Annotated[float, "Messages published, per second."]
    rate_out: Annotated[float, "Messages that left the channels, per second."]


class NodeNumbersList(TypedDict):
    """All nsqds that have answered and that the cluster lists."""

    nodes: list[ListedNode]


class OverviewDocument(PollHealth):
    """The last poll of the cluster, with all topics."""

    sparkline_s: Annotated[float, "The time that a sparkline covers."]
    topics: list[OverviewRow]


class HistoryEventDocument(TypedDict):
    """A restart."""

    kind: Annotated[
        Literal["nsqd_started", "nsqadmin_stopped"], "`nsqadmin_stopped`: nothing was measured until `until_s`."
    ]
    time_s: SecondsField
    until_s: SecondsField
    node: Annotated[str, "The nsqd; empty for nsqadmin."]


class HistoryDocument(TypedDict):
    """Series of a topic or a channel, each as long as ``times_s``. Gaps are null."""

    topic: str
    channel: NotRequired[str]
    interval_s: float
    step_s: NotRequired[Annotated[float, "The time of the coarsest points; 0 if all are polls. Only with `span`."]]
    times_s: list[SecondsField]
    series: dict[str, list[float | None]]
    events: NotRequired[Annotated[list[HistoryEventDocument], "The restarts, oldest first. Only with `span`."]]


class StrandedTopic(TypedDict):
    """The unfinished messages of a topic on a missing nsqd, when it last responded."""

    topic: str
    stranded: int
    waiting: Annotated[int, "Messages in the topic itself."]
    channels: dict[str, int]


class InventoryNode(TypedDict):
    """A known nsqd."""

    address: str
    is_missing: bool
    hostname: str
    first_seen_s: SecondsField | None
    last_seen_s: SecondsField | None
    reason: str
    stranded_topics: list[StrandedTopic]


class InventoryDocument(TypedDict):
    """All known nsqds, missing ones included."""

    nodes: list[InventoryNode]
    message: str


class AuditRecord(TypedDict):
    """A change, who asked for it, and its outcome."""

    time: str
    action: str
    topic: str
    channel: str
    node: str
    outcome: Literal["done", "partly", "failed", "refused"]
    detail: str
    user: str
    basic_user: str
    role: Literal["nobody", "view", "consume", "operate"]
    remote: str
    user_agent: str
    url: str


class ActivityDocument(TypedDict):
    """Records of the audit log, newest first."""

    activity: list[AuditRecord]
    message: str


class CreateBody(TypedDict):
    """A topic to create, and optionally a channel."""

    topic: NameField
    channel: NotRequired[str]


class ActionBody(TypedDict):
    """An action on a topic or a channel."""

    action: Literal["pause", "unpause", "empty"]


class TombstoneBody(TypedDict):
    """A topic to remove from an nsqd."""

    topic: NameField


class ForgetBody(TypedDict):
    """The action on a missing nsqd."""

    action: Literal["forget"]


class OperationBody(TypedDict):
    """An operation on a topic or a channel, on all nsqds or on one."""

    operation: Literal["pause", "unpause", "empty", "delete", "create", "tombstone"]
    topic: NameField
    channel: NotRequired[str]
    node: NotRequired[Annotated[str, "The HTTP address of one nsqd of the cluster. `tombstone` requires it."]]


class OutcomeDocument(TypedDict):
    """The result on one daemon; ``error`` is empty if the operation succeeded."""

    kind: Literal["nsqd", "nsqlookupd"]
    address: str
    error: str


class OperationDocument(TypedDict):
    """The result on each daemon."""

    outcomes: list[OutcomeDocument]
    message: str


class PublishBody(TypedDict):
    """A message to publish."""

    body: str
    encoding: NotRequired[Literal["text", "base64"]]
    node: NotRequired[Annotated[str, "The HTTP address of an nsqd of the cluster; by default one that has the topic."]]
    defer_ms: NotRequired[Annotated[int, "Milliseconds to hold the message back, at most 24 hours."]]


class PublishResult(TypedDict):
    """The nsqd that accepted the message, and its size in bytes."""

    node: str
    size: int
    message: WarningField
