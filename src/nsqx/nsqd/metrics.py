"""/metrics: the broker's state for Prometheus, under the names of nsq_exporter, with true counters beside them.

nsq_exporter shows every number as a gauge with a ``paused`` label; dashboards made for it work unchanged. A counter
must keep its labels for life, so the ``_total`` series, which are new here, leave that one out.

The families of topics and channels are written by hand, because there may be ten thousand of each: prometheus_client
makes several objects per sample and takes many times as long. It writes the numbers of the process.
"""

from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_latest_openmetrics

from nsqx.version import NSQ_VERSION, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsqx.nsqd.latency import LatencyResult
    from nsqx.nsqd.stats import ClientStats, Snapshot, TopicStats

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class _Family(NamedTuple):
    """A metric: what it is called and what it means, and the key of its number in a snapshot's dict."""

    name: str
    help: str
    key: str


_TOPIC_GAUGES = (
    _Family("nsq_topic_depth", "Messages waiting in the topic", "depth"),
    _Family("nsq_topic_backend_depth", "Messages of the topic waiting on disk", "backend_depth"),
    _Family("nsq_topic_message_count", "Messages published to the topic since start", "message_count"),
)
_TOPIC_COUNTERS = (
    _Family("nsq_topic_messages_total", "Messages published to the topic", "message_count"),
    _Family("nsq_topic_message_bytes_total", "Bytes of the messages published", "message_bytes"),
)
_CHANNEL_GAUGES = (
    _Family("nsq_channel_depth", "Messages waiting in the channel", "depth"),
    _Family("nsq_channel_backend_depth", "Messages of the channel waiting on disk", "backend_depth"),
    _Family("nsq_channel_in_flight_count", "Messages sent and not yet finished", "in_flight_count"),
    _Family("nsq_channel_deferred_count", "Messages waiting for their time", "deferred_count"),
    _Family("nsq_channel_message_count", "Messages the channel received since start", "message_count"),
    _Family("nsq_channel_requeue_count", "Messages put back by consumers since start", "requeue_count"),
    _Family("nsq_channel_timeout_count", "Messages that timed out since start", "timeout_count"),
    _Family("nsq_channel_client_count", "Consumers connected to the channel", "client_count"),
)
_CHANNEL_COUNTERS = (
    _Family("nsq_channel_messages_total", "Messages the channel received", "message_count"),
    _Family("nsq_channel_requeues_total", "Messages put back by consumers", "requeue_count"),
    _Family("nsq_channel_timeouts_total", "Messages that timed out", "timeout_count"),
)
_CLIENT_GAUGES = (
    _Family("nsq_client_state", "State of the connection", "state"),
    _Family("nsq_client_ready_count", "RDY of the consumer", "ready_count"),
    _Family("nsq_client_in_flight_count", "Messages sent and not yet finished", "in_flight_count"),
    _Family("nsq_client_message_count", "Messages sent to the consumer", "message_count"),
    _Family("nsq_client_finish_count", "Messages the consumer finished", "finish_count"),
    _Family("nsq_client_requeue_count", "Messages the consumer put back", "requeue_count"),
    _Family("nsq_client_connect_ts", "When the consumer connected, in seconds since 1970", "connect_ts"),
    _Family("nsq_client_sample_rate", "Percentage of messages the consumer asked for", "sample_rate"),
)
# The percentiles that nsq_exporter knows, in nanoseconds, and what it ends their names with for a topic and a channel.
_TOPIC_PERCENTILES = ((0.99, "99_percentile"), (0.95, "95_percentile"))
_CHANNEL_PERCENTILES = ((0.99, "99p"), (0.95, "95p"))

_INFO_HELP = "Version of NSQ whose behaviour this is, and of the package"


def accepts_openmetrics(accept: str) -> bool:
    """True if an Accept header asks for OpenMetrics rather than for Prometheus' older text."""
    return any(kind.split(";")[0].strip() == "application/openmetrics-text" for kind in accept.lower().split(","))


class MetricsPage:
    """Writes the page of a snapshot; owns nothing but the collectors of the process."""

    def __init__(self) -> None:
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def render(self, snapshot: "Snapshot", *, healthy: bool, openmetrics: bool) -> bytes:
        """The whole page; there are series for each client if the snapshot has clients."""
        text = _FamilyWriter(openmetrics)
        text.broker(healthy)
        text.topics(snapshot.topics or [])
        text.channels(snapshot.topics or [])
        text.clients(snapshot.topics or [])
        # Last, because prometheus_client ends its OpenMetrics text with the mark for the end.
        process = generate_latest_openmetrics if openmetrics else generate_latest
        return "".join(text.parts).encode() + process(self._process)


class _Row(NamedTuple):
    """One topic, channel or client: its labels for gauges and for counters, braces included, and its numbers."""

    labels: str
    counter_labels: str
    numbers: "Mapping[str, object]"
    latency: "LatencyResult | None" = None


class _FamilyWriter:
    """Collects the text of the page, family by family, as both formats demand."""

    def __init__(self, openmetrics: bool) -> None:
        self.parts: list[str] = []
        self._openmetrics = openmetrics

    def broker(self, healthy: bool) -> None:
        if self._openmetrics:
            self._head("nsq", "info", _INFO_HELP)
        else:
            self._head("nsq_info", "gauge", _INFO_HELP)
        self.parts.append(f'nsq_info{{version="{NSQ_VERSION}",nsqx_version="{VERSION}"}} 1\n')
        self._head("nsq_healthy", "gauge", "1 if the last disk write succeeded")
        self.parts.append(f"nsq_healthy {int(healthy)}\n")

    def topics(self, topics: "list[TopicStats]") -> None:
        rows = []
        for topic in topics:
            name = f'topic="{topic["topic_name"]}"'
            labels = f'{{{name},paused="{_boolean(topic["paused"])}"}}'
            rows.append(_Row(labels, f"{{{name}}}", topic, topic["e2e_processing_latency"]))
        self._gauges(_TOPIC_GAUGES, rows)
        self._head("nsq_topic_channel_count", "gauge", "Channels of the topic")
        self.parts += [
            f"nsq_topic_channel_count{row.labels} {len(topic['channels'])}\n"
            for row, topic in zip(rows, topics, strict=True)
        ]
        self._counters(_TOPIC_COUNTERS, rows)
        self._latencies("nsq_topic", _TOPIC_PERCENTILES, rows)

    def channels(self, topics: "list[TopicStats]") -> None:
        rows = []
        for topic in topics:
            for channel in topic["channels"]:
                names = f'topic="{topic["topic_name"]}",channel="{channel["channel_name"]}"'
                labels = f'{{{names},paused="{_boolean(channel["paused"])}"}}'
                rows.append(_Row(labels, f"{{{names}}}", channel, channel["e2e_processing_latency"]))
        self._gauges(_CHANNEL_GAUGES, rows)
        self._counters(_CHANNEL_COUNTERS, rows)
        self._latencies("nsq_channel", _CHANNEL_PERCENTILES, rows)

    def clients(self, topics: "list[TopicStats]") -> None:
        rows = []
        for topic in topics:
            for channel in topic["channels"]:
                for client in channel["clients"] or ():
                    labels = _client_labels(topic["topic_name"], channel["channel_name"], client)
                    rows.append(_Row(labels, labels, client))
        if rows:
            self._gauges(_CLIENT_GAUGES, rows)

    def _gauges(self, families: "Iterable[_Family]", rows: list[_Row]) -> None:
        for name, help_text, key in families:
            self._head(name, "gauge", help_text)
            self.parts += [f"{name}{row.labels} {row.numbers[key]}\n" for row in rows]

    def _counters(self, families: "Iterable[_Family]", rows: list[_Row]) -> None:
        for name, help_text, key in families:
            # In OpenMetrics a counter's family is named without the suffix of its samples.
            self._head(name.removesuffix("_total") if self._openmetrics else name, "counter", help_text)
            self.parts += [f"{name}{row.counter_labels} {row.numbers[key]}\n" for row in rows]

    def _latencies(self, prefix: str, exporter_names: "Iterable[tuple[float, str]]", rows: list[_Row]) -> None:
        """The configured percentiles in seconds, and those that nsq_exporter knows as it has them."""
        measured = [(row, row.latency["percentiles"]) for row in rows if row.latency and row.latency["percentiles"]]
        if not measured:
            return
        name = f"{prefix}_e2e_processing_latency_seconds"
        self._head(name, "summary", "Time from publish to finish")
        for row, percentiles in measured:
            self.parts += [
                f'{name}{row.counter_labels[:-1]},quantile="{entry["quantile"]}"}} {entry["value"] / 1e9}\n'
                for entry in percentiles
            ]
        for quantile, ending in exporter_names:
            name = f"{prefix}_e2e_latency_{ending}"
            self._head(name, "gauge", f"Time from publish to finish that {quantile:.0%} kept, in nanoseconds")
            self.parts += [
                f"{name}{row.labels} {entry['value']}\n"
                for row, percentiles in measured
                for entry in percentiles
                if entry["quantile"] == quantile
            ]

    def _head(self, name: str, kind: str, help_text: str) -> None:
        self.parts.append(f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n")


def _client_labels(topic_name: str, channel_name: str, client: "ClientStats") -> str:
    return (
        f'{{topic="{topic_name}",channel="{channel_name}",client_id="{_escaped(client["client_id"])}"'
        f',hostname="{_escaped(client["hostname"])}",remote_address="{_escaped(client["remote_address"])}"'
        f',version="{client["version"]}",deflate="{_boolean(client["deflate"])}"'
        f',snappy="{_boolean(client["snappy"])}",tls="{_boolean(client["tls"])}"}}'
    )


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
