"""/metrics: the broker's state for Prometheus, with the metric names of nsq_exporter and additional counters.

nsq_exporter exports every number as a gauge with a ``paused`` label; dashboards made for it work unchanged. The labels
of a counter must never change, so the additional ``_total`` series have no ``paused`` label.

The families of topics and channels are formatted here, because there can be ten thousand of each: prometheus_client
creates several objects per sample and takes many times as long. It formats the numbers of the process. The page is
built in steps (see ``nsqx.net.steps``), one for each topic, channel and client.
"""

from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_latest_openmetrics

from nsqx.units import NS_PER_S
from nsqx.version import NSQ_VERSION, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nsqx.net.steps import Steps
    from nsqx.nsqd.latency import LatencyResult
    from nsqx.nsqd.stats import ChannelStats, ClientStats, TopicStats

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class _Family(NamedTuple):
    """A metric: its name, its help text, and the key of its number in a snapshot's dict."""

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
# The percentiles of nsq_exporter, in nanoseconds, with their name suffix for a topic and for a channel.
_TOPIC_PERCENTILES = ((0.99, "99_percentile"), (0.95, "95_percentile"))
_CHANNEL_PERCENTILES = ((0.99, "99p"), (0.95, "95p"))

_INFO = _Family("nsq_info", "Versions of the implemented NSQ and of the package", "")
_HEALTHY = _Family("nsq_healthy", "1 if the last disk write succeeded", "")
_CHANNEL_COUNT = _Family("nsq_topic_channel_count", "Channels of the topic", "")
# How many lines are joined and encoded at a time.
_LINES_PER_CHUNK = 500


def accepts_openmetrics(accept: str) -> bool:
    """True if an Accept header requests OpenMetrics, not Prometheus' older text format."""
    return any(kind.split(";")[0].strip() == "application/openmetrics-text" for kind in accept.lower().split(","))


class NsqdMetricsPage:
    """Builds the page of a broker; owns the collectors of the process."""

    def __init__(self) -> None:
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def steps(self, topics: "Iterable[Steps[TopicStats]]", *, healthy: bool, openmetrics: bool) -> "Steps[bytes]":
        """Build the whole page, with series for each client if the topics include clients."""
        families = _Families(openmetrics)
        for steps in topics:
            topic = yield from steps
            _add(families.topics, _topic_row(topic))
            for channel in topic["channels"]:
                _add(families.channels, _channel_row(topic["topic_name"], channel))
                yield
                for client in channel["clients"] or ():
                    _add(families.clients, _client_row(topic["topic_name"], channel["channel_name"], client))
                    yield
        # Last, because prometheus_client ends its OpenMetrics text with an end marker.
        process = generate_latest_openmetrics if openmetrics else generate_latest
        return b"".join([*families.chunks(healthy), process(self._process)])


class _Row(NamedTuple):
    """One topic, channel or client: its labels for gauges and for counters, with braces, and its numbers."""

    labels: str
    counter_labels: str
    numbers: "Mapping[str, object]"
    latency: "LatencyResult | None" = None
    channel_count: int = 0


def _topic_row(topic: "TopicStats") -> _Row:
    name = f'topic="{topic["topic_name"]}"'
    labels = f'{{{name},paused="{_boolean(topic["paused"])}"}}'
    return _Row(labels, f"{{{name}}}", topic, topic["e2e_processing_latency"], len(topic["channels"]))


def _channel_row(topic_name: str, channel: "ChannelStats") -> _Row:
    names = f'topic="{topic_name}",channel="{channel["channel_name"]}"'
    labels = f'{{{names},paused="{_boolean(channel["paused"])}"}}'
    return _Row(labels, f"{{{names}}}", channel, channel["e2e_processing_latency"])


def _client_row(topic_name: str, channel_name: str, client: "ClientStats") -> _Row:
    labels = _client_labels(topic_name, channel_name, client)
    return _Row(labels, labels, client)


class _Samples:
    """The text of one family. Samples are added one by one, because the rows of all families are built together."""

    def __init__(self, family: _Family, kind: str = "gauge", *, head_name: str = "", is_shown: bool = True) -> None:
        """Start the family; one with ``is_shown=False`` is hidden until its first row."""
        self.name, help_text, self.key = family
        head_name = head_name or self.name
        self._chunks = [f"# HELP {head_name} {help_text}\n# TYPE {head_name} {kind}\n".encode()]
        self._lines: list[str] = []
        self._is_shown = is_shown

    def add_row(self, row: _Row) -> None:
        """Add the sample of ``row``."""
        self.add(f"{self.name}{row.labels} {row.numbers[self.key]}\n")

    def add(self, line: str) -> None:
        """Add a sample line, with its newline."""
        self._is_shown = True
        self._lines.append(line)
        if len(self._lines) == _LINES_PER_CHUNK:
            self._encode()

    def show(self) -> None:
        """Show the family even without samples."""
        self._is_shown = True

    def _encode(self) -> None:
        self._chunks.append("".join(self._lines).encode())
        self._lines.clear()

    def chunks(self) -> list[bytes]:
        """Return the head and all samples, or nothing if the family is hidden."""
        self._encode()
        return self._chunks if self._is_shown else []


class _Counter(_Samples):
    def __init__(self, family: _Family, openmetrics: bool) -> None:
        # In OpenMetrics the family name of a counter has no _total suffix.
        super().__init__(family, "counter", head_name=family.name.removesuffix("_total") if openmetrics else "")

    def add_row(self, row: _Row) -> None:
        self.add(f"{self.name}{row.counter_labels} {row.numbers[self.key]}\n")


class _ChannelCount(_Samples):
    def add_row(self, row: _Row) -> None:
        self.add(f"{self.name}{row.labels} {row.channel_count}\n")


class _LatencySeconds(_Samples):
    """The configured percentiles in seconds."""

    def __init__(self, prefix: str) -> None:
        family = _Family(f"{prefix}_e2e_processing_latency_seconds", "Time from publish to finish", "")
        super().__init__(family, "summary", is_shown=False)

    def add_row(self, row: _Row) -> None:
        for entry in (row.latency and row.latency["percentiles"]) or ():
            labels = f'{row.counter_labels[:-1]},quantile="{entry["quantile"]}"}}'
            self.add(f"{self.name}{labels} {entry['value'] / NS_PER_S}\n")


class _LatencyPercentile(_Samples):
    """A percentile of nsq_exporter, in nanoseconds."""

    def __init__(self, prefix: str, quantile: float, ending: str) -> None:
        help_text = f"{quantile * 100:.0f}th percentile of the time from publish to finish, in nanoseconds"
        super().__init__(_Family(f"{prefix}_e2e_latency_{ending}", help_text, ""), is_shown=False)
        self._quantile = quantile

    def add_row(self, row: _Row) -> None:
        for entry in (row.latency and row.latency["percentiles"]) or ():
            self.show()
            if entry["quantile"] == self._quantile:
                self.add(f"{self.name}{row.labels} {entry['value']}\n")


class _Families:
    """All families of the page, in order."""

    def __init__(self, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self.topics: list[_Samples] = [
            *map(_Samples, _TOPIC_GAUGES),
            _ChannelCount(_CHANNEL_COUNT),
            *(_Counter(family, openmetrics) for family in _TOPIC_COUNTERS),
            _LatencySeconds("nsq_topic"),
            *(_LatencyPercentile("nsq_topic", *percentile) for percentile in _TOPIC_PERCENTILES),
        ]
        self.channels: list[_Samples] = [
            *map(_Samples, _CHANNEL_GAUGES),
            *(_Counter(family, openmetrics) for family in _CHANNEL_COUNTERS),
            _LatencySeconds("nsq_channel"),
            *(_LatencyPercentile("nsq_channel", *percentile) for percentile in _CHANNEL_PERCENTILES),
        ]
        self.clients = [_Samples(family, is_shown=False) for family in _CLIENT_GAUGES]

    def chunks(self, healthy: bool) -> "Iterator[bytes]":
        """Yield the families of the broker itself, then those of topics, channels and clients."""
        info = _Samples(_INFO, "info", head_name="nsq") if self._openmetrics else _Samples(_INFO)
        info.add(f'nsq_info{{version="{NSQ_VERSION}",nsqx_version="{VERSION}"}} 1\n')
        health = _Samples(_HEALTHY)
        health.add(f"nsq_healthy {int(healthy)}\n")
        for family in (info, health, *self.topics, *self.channels, *self.clients):
            yield from family.chunks()


def _add(families: list[_Samples], row: _Row) -> None:
    for family in families:
        family.add_row(row)


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
