"""/metrics: the broker's state for Prometheus, with the metric names of nsq_exporter and additional counters.

nsq_exporter exports every number as a gauge with a ``paused`` label; dashboards made for it work unchanged. The labels
of a counter must never change, so the additional ``_total`` series have no ``paused`` label.

The families of topics and channels are formatted here, because there can be ten thousand of each: prometheus_client
creates several objects per sample and takes many times as long. It formats the numbers of the process. The page is
built in pieces (see ``nsqx.net.pieces``). First the numbers of all topics, channels and clients are collected, so that
all series of a channel are of one moment; then they are formatted family by family.
"""

from itertools import accumulate, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_latest_openmetrics

from nsqx.nsqd.latency import NO_LATENCY
from nsqx.units import NS_PER_S
from nsqx.version import NSQ_VERSION, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nsqx.net.pieces import Pieces
    from nsqx.net.steps import Steps
    from nsqx.nsqd.histogram import Histogram
    from nsqx.nsqd.latency import LatencyResult
    from nsqx.nsqd.log_stats import CommitStats
    from nsqx.nsqd.node_stats import NodeNumbers
    from nsqx.nsqd.stats import ClientStats, TopicCollector
    from nsqx.nsqd.transaction_stats import TransactionStats

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class _Family(NamedTuple):
    """A metric: its name, its help text, and the key of its number in the dict of a topic, channel or client."""

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

_CHANNEL_COUNT = _Family("nsq_topic_channel_count", "Channels of the topic", "channel_count")

_LOG_GAUGES = (
    _Family("nsq_topic_log_first_offset", "First offset that the log still has", "first"),
    _Family("nsq_topic_log_stable_offset", "Messages before this offset are durable", "stable"),
    _Family("nsq_topic_log_end_offset", "Offset of the next message", "end"),
    _Family("nsq_topic_log_bytes", "Size of the log", "bytes"),
    _Family("nsq_topic_log_segments", "Segments of the log", "segments"),
    _Family("nsq_topic_deferred_count", "Messages of the log waiting for their time", "deferred_count"),
    _Family("nsq_topic_log_kept_bytes", "Size of finished segments that are kept for replay", "kept_bytes"),
    _Family("nsq_topic_producers", "Producers whose last publish is known", "producers"),
)
_LOG_COUNTERS = (
    _Family("nsq_topic_duplicates_total", "Publishes not stored because they were stored before", "duplicates"),
    _Family("nsq_topic_producers_forgotten_total", "Producers whose last publish was forgotten", "producers_forgotten"),
)
_REFUSED = _Family("nsq_topic_refused_total", "Publishes refused because the log could not be written", "refused")
_DEAD = _Family("nsq_channel_dead_total", "Messages finished at the attempt limit of the channel", "dead")
_CURSOR_GAUGES = (
    _Family("nsq_channel_floor_offset", "First unfinished offset", "floor"),
    _Family("nsq_channel_next_offset", "First offset that was never delivered", "next"),
    _Family("nsq_channel_holes", "Unfinished messages before the next offset", "holes"),
)
_OLDEST = _Family("nsq_channel_oldest_seconds", "Approximate age of the oldest waiting message", "oldest_seconds")
_CURSOR_COUNTERS = (
    _Family("nsq_channel_dropped_total", "Unfinished messages dropped by a limit of the log or a trim", "dropped"),
    _Family("nsq_channel_expired_total", "Messages finished because of their time to live", "expired"),
)

# The numbers of a row, in order.
_TOPIC_KEYS = ("depth", "backend_depth", "message_count", "message_bytes")
_CHANNEL_KEYS = tuple(family.key for family in _CHANNEL_GAUGES)
_CLIENT_KEYS = tuple(family.key for family in _CLIENT_GAUGES)
_LOG_KEYS = tuple(family.key for family in (*_LOG_GAUGES, *_LOG_COUNTERS))
_CURSOR_KEYS = tuple(family.key for family in (*_CURSOR_GAUGES, *_CURSOR_COUNTERS))
_TOPIC_NUMBERS = itemgetter(*_TOPIC_KEYS)
_CHANNEL_NUMBERS = itemgetter(*_CHANNEL_KEYS)
_CLIENT_NUMBERS = itemgetter(*_CLIENT_KEYS)
_LOG_NUMBERS = itemgetter(*_LOG_KEYS)
_CURSOR_NUMBERS = itemgetter(*_CURSOR_KEYS)

_MS_PER_S = 1000
# Rows that are formatted in one step.
_ROWS_PER_STEP = 50


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

    def pieces(
        self,
        topics: "Iterable[TopicCollector]",
        *,
        healthy: bool,
        openmetrics: bool,
        commits: "CommitStats | None" = None,
        node: "NodeNumbers | None" = None,
        transactions: "TransactionStats | None" = None,
    ) -> "Pieces":
        """Yield the page, with series for each client if the topics include clients."""
        rows = _Rows()
        for collector in topics:
            yield from rows.add_steps(collector)
        yield _broker_text(healthy, openmetrics).encode()
        if node is not None:
            yield _node_text(node).encode()
        if commits is not None:
            yield _commit_text(commits, openmetrics).encode()
        if transactions is not None:
            yield _transaction_text(transactions, openmetrics).encode()
        for family in _topic_families(openmetrics, rows.have_latency):
            yield from family.pieces(rows.topics)
        for family in _channel_families(openmetrics, rows.have_latency):
            yield from family.pieces(rows.channels)
        if rows.oldest:
            yield from _gauge(_OLDEST, (_OLDEST.key,)).pieces(rows.oldest)
        for gauges, keys, log_rows in (
            (_LOG_GAUGES, _LOG_KEYS, rows.logs),
            (_CURSOR_GAUGES, _CURSOR_KEYS, rows.cursors),
        ):
            if log_rows:
                for family in map(_gauge, gauges, repeat(keys)):
                    yield from family.pieces(log_rows)
        if rows.cursors:
            for counter in _CURSOR_COUNTERS:
                yield from _counter(counter, _CURSOR_KEYS, openmetrics).pieces(rows.cursors)
        if rows.logs:
            for family in map(_counter, _LOG_COUNTERS, repeat(_LOG_KEYS), repeat(openmetrics)):
                yield from family.pieces(rows.logs)
            yield from _counter(_REFUSED, (_REFUSED.key,), openmetrics).pieces(rows.refusals)
        if rows.dead:
            yield from _counter(_DEAD, (_DEAD.key,), openmetrics).pieces(rows.dead)
        if rows.clients:
            for family in map(_gauge, _CLIENT_GAUGES, repeat(_CLIENT_KEYS)):
                yield from family.pieces(rows.clients)
        # Last, because prometheus_client ends its OpenMetrics text with an end marker.
        process = generate_latest_openmetrics if openmetrics else generate_latest
        yield process(self._process)


class _Row(NamedTuple):
    """One topic, channel or client: its labels, without braces, and its numbers."""

    labels: str
    numbers: tuple[object, ...]
    paused: str = ""  # the label that counters do not have
    latency: "LatencyResult" = NO_LATENCY


class _Rows:
    """The numbers of the whole page, because each family needs all topics, all channels or all clients."""

    def __init__(self) -> None:
        self.topics: list[_Row] = []
        self.channels: list[_Row] = []
        self.clients: list[_Row] = []
        self.logs: list[_Row] = []
        self.refusals: list[_Row] = []
        self.cursors: list[_Row] = []
        self.dead: list[_Row] = []
        self.oldest: list[_Row] = []
        self.have_latency = False

    def add_steps(self, collector: "TopicCollector") -> "Steps[None]":
        """Add a topic, its channels and its clients."""
        topic = yield from collector.steps()
        topic_label = f'topic="{topic["topic_name"]}"'
        channel_count = 0
        for channel, clients in collector.channels():
            channel_count += 1
            labels = f'{topic_label},channel="{channel["channel_name"]}"'
            latency = channel["e2e_processing_latency"]
            self.channels.append(_Row(labels, _CHANNEL_NUMBERS(channel), _PAUSED[channel["paused"]], latency))
            if "oldest_ms" in channel:
                self.oldest.append(_Row(labels, (channel["oldest_ms"] / _MS_PER_S,)))
            if "cursor" in channel:
                cursor = channel["cursor"]
                self.cursors.append(_Row(labels, _CURSOR_NUMBERS(cursor)))
                self.dead.append(_Row(labels, (cursor["dead"],)))
            elif "dead" in channel:
                self.dead.append(_Row(labels, (channel["dead"],)))
            yield
            for client in clients:
                self.clients.append(_Row(f"{labels},{_client_labels(client)}", _CLIENT_NUMBERS(client)))
                yield
        latency = topic["e2e_processing_latency"]
        self.have_latency |= bool(latency["percentiles"])
        numbers = (*_TOPIC_NUMBERS(topic), channel_count)
        self.topics.append(_Row(topic_label, numbers, _PAUSED[topic["paused"]], latency))
        if "log" in topic:
            self.logs.append(_Row(topic_label, _LOG_NUMBERS(topic["log"])))
            for reason, count in topic["log"]["refused"].items():
                self.refusals.append(_Row(f'{topic_label},reason="{reason}"', (count,)))
        yield


class _Samples(NamedTuple):
    """A family: its head, and the function that returns the sample lines of a row."""

    head: str
    lines: "Callable[[_Row], str]"

    def pieces(self, rows: "Sequence[_Row]") -> "Pieces":
        """Yield the head and the samples, a few rows at a time."""
        yield self.head.encode()
        for first in range(0, len(rows), _ROWS_PER_STEP):
            yield "".join(map(self.lines, rows[first : first + _ROWS_PER_STEP])).encode()


def _head(name: str, help_text: str, kind: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


def _broker_text(healthy: bool, openmetrics: bool) -> str:
    """Return the families of the broker itself."""
    help_text = "Versions of the implemented NSQ and of the package"
    return "".join(
        [
            _head("nsq", help_text, "info") if openmetrics else _head("nsq_info", help_text, "gauge"),
            f'nsq_info{{version="{NSQ_VERSION}",nsqx_version="{VERSION}"}} 1\n',
            _head("nsq_healthy", "1 if the last disk write succeeded", "gauge"),
            f"nsq_healthy {int(healthy)}\n",
        ]
    )


def _node_text(node: "NodeNumbers") -> str:
    """Return the families of the disk and of the connections; the collectors of the process have its memory."""
    numbers = (
        ("nsq_disk_free_bytes", "Free space on the disk of the data path", node["disk_free_bytes"]),
        ("nsq_disk_size_bytes", "Size of the disk of the data path", node["disk_size_bytes"]),
        ("nsq_connections", "Open connections of consumers and producers", node["connections"]),
    )
    return "".join(
        f"{_head(name, help_text, 'gauge')}{name} {value}\n" for name, help_text, value in numbers if value is not None
    )


def _commit_text(stats: "CommitStats", openmetrics: bool) -> str:
    """Return the families of the commits of all logs."""
    damaged, cold_reads = "nsq_log_damaged_messages_total", "nsq_log_cold_reads_total"
    return "".join(
        [
            _histogram("nsq_commit_seconds", "Duration of the commits of topic logs", stats.commits, NS_PER_S),
            _histogram("nsq_commit_messages", "Messages in a commit of topic logs", stats.messages),
            _histogram("nsq_checkpoint_seconds", "Duration of checkpoints of topic logs", stats.checkpoints, NS_PER_S),
            _head("nsq_commit_held_clients", "Clients whose answers wait for the disk", "gauge"),
            f"nsq_commit_held_clients {stats.held_clients}\n",
            _head("nsq_commit_fill_ratio", "Part of the current commit file that is in use", "gauge"),
            f"nsq_commit_fill_ratio {stats.fill_ratio}\n",
            _counter_head(damaged, "Messages of topic logs that could not be read", openmetrics),
            f"{damaged} {stats.damaged_count}\n",
            _counter_head(cold_reads, "Reads of topic logs from disk", openmetrics),
            f"{cold_reads} {stats.cold_read_count}\n",
            _head("nsq_log_memory_bytes", "Memory that the messages of topic logs take", "gauge"),
            f"nsq_log_memory_bytes {stats.memory_size}\n",
        ]
    )


_TRANSACTION_GAUGES = (
    ("nsq_staged_parts", "Parts of transactions that are not committed or not removed yet", "staged_parts"),
    ("nsq_staged_bytes", "Size of these parts", "staged_bytes"),
    ("nsq_ledger_queries", "Queries whose last committed batch is known", "queries"),
)
_TRANSACTION_COUNTERS = (
    ("nsq_transactions_total", "Batches of queries that were committed", "committed"),
    ("nsq_transaction_messages_total", "Messages of these batches", "messages"),
    ("nsq_transaction_duplicates_total", "Commits of batches that were committed before", "duplicates"),
    ("nsq_ledger_queries_forgotten_total", "Queries that were forgotten", "queries_forgotten"),
)


def _transaction_text(stats: "TransactionStats", openmetrics: bool) -> str:
    """Return the families of the transactions."""
    numbers: dict[str, object] = {**stats}
    lines = [f"{_head(name, text, 'gauge')}{name} {numbers[key]}\n" for name, text, key in _TRANSACTION_GAUGES] + [
        f"{_counter_head(name, text, openmetrics)}{name} {numbers[key]}\n" for name, text, key in _TRANSACTION_COUNTERS
    ]
    return "".join(lines)


def _histogram(name: str, help_text: str, histogram: "Histogram", unit: int = 1) -> str:
    """Return a histogram, in multiples of ``unit``."""
    lines = [_head(name, help_text, "histogram")]
    counts = list(accumulate(histogram.counts))
    for bound, count in zip(histogram.bounds, counts, strict=False):
        lines.append(f'{name}_bucket{{le="{bound / unit}"}} {count}\n')
    lines.append(f'{name}_bucket{{le="+Inf"}} {counts[-1]}\n')
    lines.append(f"{name}_count {counts[-1]}\n{name}_sum {histogram.sum / unit}\n")
    return "".join(lines)


def _topic_families(openmetrics: bool, with_latency: bool) -> "Iterator[_Samples]":
    keys = (*_TOPIC_KEYS, _CHANNEL_COUNT.key)
    for family in (*_TOPIC_GAUGES, _CHANNEL_COUNT):
        yield _gauge(family, keys)
    for family in _TOPIC_COUNTERS:
        yield _counter(family, keys, openmetrics)
    if with_latency:
        yield _latency_seconds("nsq_topic")
        for quantile, ending in _TOPIC_PERCENTILES:
            yield _latency_percentile("nsq_topic", quantile, ending)


def _channel_families(openmetrics: bool, with_latency: bool) -> "Iterator[_Samples]":
    for family in _CHANNEL_GAUGES:
        yield _gauge(family, _CHANNEL_KEYS)
    for family in _CHANNEL_COUNTERS:
        yield _counter(family, _CHANNEL_KEYS, openmetrics)
    if with_latency:
        yield _latency_seconds("nsq_channel")
        for quantile, ending in _CHANNEL_PERCENTILES:
            yield _latency_percentile("nsq_channel", quantile, ending)


def _gauge(family: _Family, keys: tuple[str, ...]) -> _Samples:
    name, help_text, key = family
    column = keys.index(key)
    return _Samples(
        _head(name, help_text, "gauge"), lambda row: f"{name}{{{row.labels}{row.paused}}} {row.numbers[column]}\n"
    )


def _counter(family: _Family, keys: tuple[str, ...], openmetrics: bool) -> _Samples:
    name, help_text, key = family
    column = keys.index(key)
    head = _counter_head(name, help_text, openmetrics)
    return _Samples(head, lambda row: f"{name}{{{row.labels}}} {row.numbers[column]}\n")


def _counter_head(name: str, help_text: str, openmetrics: bool) -> str:
    # In OpenMetrics the family name of a counter has no _total suffix.
    return _head(name.removesuffix("_total") if openmetrics else name, help_text, "counter")


def _latency_seconds(prefix: str) -> _Samples:
    """Return the configured percentiles in seconds."""
    name = f"{prefix}_e2e_processing_latency_seconds"
    return _Samples(
        _head(name, "Time from publish to finish", "summary"),
        lambda row: "".join(
            f'{name}{{{row.labels},quantile="{entry["quantile"]}"}} {entry["value"] / NS_PER_S}\n'
            for entry in row.latency["percentiles"] or ()
        ),
    )


def _latency_percentile(prefix: str, quantile: float, ending: str) -> _Samples:
    """Return a percentile of nsq_exporter, in nanoseconds; without samples if it is not configured."""
    name = f"{prefix}_e2e_latency_{ending}"
    help_text = f"{quantile * 100:.0f}th percentile of the time from publish to finish, in nanoseconds"
    return _Samples(
        _head(name, help_text, "gauge"),
        lambda row: "".join(
            f"{name}{{{row.labels}{row.paused}}} {entry['value']}\n"
            for entry in row.latency["percentiles"] or ()
            if entry["quantile"] == quantile
        ),
    )


def _client_labels(client: "ClientStats") -> str:
    return (
        f'client_id="{_escaped(client["client_id"])}"'
        f',hostname="{_escaped(client["hostname"])}",remote_address="{_escaped(client["remote_address"])}"'
        f',version="{client["version"]}",deflate="{_boolean(client["deflate"])}"'
        f',snappy="{_boolean(client["snappy"])}",tls="{_boolean(client["tls"])}"'
    )


def _boolean(value: bool) -> str:
    return "true" if value else "false"


_PAUSED = {value: f',paused="{_boolean(value)}"' for value in (False, True)}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
