"""/metrics: valid in both formats, with the names of nsq_exporter and the numbers of /stats."""

import pytest
from broker_standin import (
    NOW_NS,
    SECOND_NS,
    BrokerStandIn,
    ChannelStandIn,
    ClientStandIn,
    StoreStandIn,
    TopicStandIn,
    log_topic,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nsqx.nsqd.histogram import Histogram
from nsqx.nsqd.latency import LatencySketch
from nsqx.nsqd.log_stats import DURATIONS_NS, MESSAGE_COUNTS, CommitStats
from nsqx.nsqd.metrics import NsqdMetricsPage, accepts_openmetrics
from nsqx.nsqd.stats import StatsFilter, each_topic
from nsqx.version import VERSION

TOPIC = {"topic": "orders", "paused": "false"}
CHANNEL = {"topic": "orders", "channel": "billing", "paused": "true"}


def sketch_of(*latencies, percentiles=(0.99, 0.5)):
    sketch = LatencySketch(percentiles, 600 * SECOND_NS)
    for latency in latencies:
        sketch.add(latency, NOW_NS)
    return sketch


def busy_broker(**channel):
    topic = TopicStandIn("orders", depth=1, backend_depth=2, message_count=3, message_bytes=40)
    billing = ChannelStandIn(
        "billing",
        depth=5,
        backend_depth=6,
        in_flight_count=7,
        deferred_count=8,
        message_count=9,
        requeue_count=10,
        timeout_count=11,
        paused=True,
        clients={1: ClientStandIn(client_id='a"b\\c\nd')},
        **channel,
    )
    return BrokerStandIn().add(topic.add(billing), TopicStandIn("empty"))


def page_of(broker, *, openmetrics=False, include_clients=False, healthy=True, commits=None, node=None):
    topics = each_topic(broker, NOW_NS, StatsFilter(include_clients=include_clients))
    pieces = NsqdMetricsPage().pieces(topics, healthy=healthy, openmetrics=openmetrics, commits=commits, node=node)
    return b"".join(piece for piece in pieces if piece is not None).decode()


@pytest.fixture(params=[False, True], ids=["text", "openmetrics"])
def samples(request):
    """A parser of a broker's page; returns the value of a sample by name and labels."""

    def parse(broker, **arguments):
        page = page_of(broker, openmetrics=request.param, **arguments)
        families = (parse_openmetrics if request.param else parse_text)(page)
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    return parse


def test_topic_series(samples):
    found = samples(busy_broker())

    def value(name, labels):
        return found[f"nsq_topic_{name}", frozenset(labels.items())]

    assert value("depth", TOPIC) == 1
    assert value("backend_depth", TOPIC) == 2
    assert value("message_count", TOPIC) == 3
    assert value("channel_count", TOPIC) == 1
    assert value("messages_total", {"topic": "orders"}) == 3
    assert value("message_bytes_total", {"topic": "orders"}) == 40
    assert value("channel_count", {"topic": "empty", "paused": "false"}) == 0


def test_channel_series(samples):
    found = samples(busy_broker())

    def value(name, labels):
        return found[f"nsq_channel_{name}", frozenset(labels.items())]

    gauges = {
        "depth": 5,
        "backend_depth": 6,
        "in_flight_count": 7,
        "deferred_count": 8,
        "message_count": 9,
        "requeue_count": 10,
        "timeout_count": 11,
        "client_count": 1,
    }
    assert {name: value(name, CHANNEL) for name in gauges} == gauges
    names = {"topic": "orders", "channel": "billing"}
    assert value("messages_total", names) == 9
    assert value("requeues_total", names) == 10
    assert value("timeouts_total", names) == 11


def test_only_log_topics_have_log_series(samples):
    found = samples(busy_broker().add(log_topic()))
    topic, channel = frozenset({("topic", "events")}), frozenset({("topic", "events"), ("channel", "audit")})
    logs = {
        (name, labels): value
        for (name, labels), value in found.items()
        if name.startswith("nsq_topic_log_")
        or name.endswith(("_offset", "_holes", "topic_deferred_count", "refused_total", "duplicates_total"))
        or "topic_producers" in name
        or name in ("nsq_channel_dropped_total", "nsq_channel_expired_total")
    }
    assert logs == {
        ("nsq_topic_log_first_offset", topic): 100,
        ("nsq_topic_log_stable_offset", topic): 240,
        ("nsq_topic_log_end_offset", topic): 250,
        ("nsq_topic_log_bytes", topic): 4096,
        ("nsq_topic_log_segments", topic): 2,
        ("nsq_topic_deferred_count", topic): 3,
        ("nsq_topic_producers", topic): 9,
        ("nsq_topic_producers_forgotten_total", topic): 8,
        ("nsq_topic_duplicates_total", topic): 6,
        ("nsq_topic_refused_total", topic | {("reason", "no_space")}): 7,
        ("nsq_topic_refused_total", topic | {("reason", "write_failed")}): 0,
        ("nsq_topic_refused_total", topic | {("reason", "log_full")}): 2,
        ("nsq_topic_log_kept_bytes", topic): 1024,
        ("nsq_channel_floor_offset", channel): 120,
        ("nsq_channel_next_offset", channel): 230,
        ("nsq_channel_holes", channel): 4,
        ("nsq_channel_dropped_total", channel): 5,
        ("nsq_channel_expired_total", channel): 6,
    }
    classic = page_of(busy_broker())
    assert "_log_" not in classic
    assert "_commit_" not in classic
    assert "_offset" not in classic


def test_dead_messages_are_counted_for_logs_and_for_channels_with_a_limit(samples):
    limited = ChannelStandIn("c", max_attempts=5, dead_count=3)
    found = samples(busy_broker().add(log_topic()).add(TopicStandIn("t").add(limited)))
    dead = {labels: value for (name, labels), value in found.items() if name == "nsq_channel_dead_total"}
    assert dead == {
        frozenset({("topic", "events"), ("channel", "audit")}): 6,
        frozenset({("topic", "t"), ("channel", "c")}): 3,
    }
    assert "dead" not in page_of(busy_broker())


def test_the_age_of_the_oldest_message_has_a_series_where_it_is_known(samples):
    unknown = TopicStandIn("t").add(ChannelStandIn("c", store=StoreStandIn(oldest_ns=-1)))
    found = samples(busy_broker().add(log_topic(), unknown))
    ages = {labels: value for (name, labels), value in found.items() if name == "nsq_channel_oldest_seconds"}
    assert ages == {
        frozenset({("topic", "events"), ("channel", "audit")}): 90,
        frozenset({("topic", "orders"), ("channel", "billing")}): 0,
    }


def test_series_of_the_node(samples):
    node = {"nsqx_version": "1", "memory_bytes": 5, "disk_free_bytes": 6, "disk_size_bytes": 7, "connections": 8}
    found = samples(BrokerStandIn(), node=node)
    names = ("nsq_disk_free_bytes", "nsq_disk_size_bytes", "nsq_connections")
    assert [found[name, frozenset()] for name in names] == [6, 7, 8]
    unmeasured = samples(BrokerStandIn(), node={**node, "disk_free_bytes": None, "disk_size_bytes": None})
    assert ("nsq_disk_free_bytes", frozenset()) not in unmeasured


def test_commit_series(samples):
    commits, messages = Histogram(DURATIONS_NS), Histogram(MESSAGE_COUNTS)
    for count in (0, 1, 200):
        messages.add(count)
    for duration_ns in (100_000, 100_001, 3_000_000_000):
        commits.add(duration_ns)
    found = samples(BrokerStandIn(), commits=CommitStats(commits, messages, Histogram(DURATIONS_NS), 5, 0.25, 6, 7, 8))
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name == "nsq_commit_seconds_bucket"
    }
    assert [buckets[bound] for bound in (0.0001, 0.00025, 2.5, float("inf"))] == [1, 2, 2, 3]
    values = {
        "nsq_commit_seconds_count": 3,
        "nsq_commit_seconds_sum": 3.000200001,
        "nsq_checkpoint_seconds_count": 0,
        "nsq_commit_held_clients": 5,
        "nsq_commit_fill_ratio": 0.25,
        "nsq_log_damaged_messages_total": 6,
        "nsq_log_memory_bytes": 7,
        "nsq_log_cold_reads_total": 8,
        "nsq_commit_messages_count": 3,
        "nsq_commit_messages_sum": 201,
    }
    assert {name: found[name, frozenset()] for name in values} == values


def test_broker_series(samples):
    found = samples(BrokerStandIn(), healthy=False)
    assert found["nsq_healthy", frozenset()] == 0
    assert found["nsq_info", frozenset({"version": "1.3.0", "nsqx_version": VERSION}.items())] == 1
    assert samples(BrokerStandIn())["nsq_healthy", frozenset()] == 1


def test_process_series(samples):
    names = {name for name, _ in samples(BrokerStandIn())}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "python_info"} <= names


def test_client_series_exist_only_if_clients_were_collected(samples):
    assert not any(name.startswith("nsq_client_") for name, _ in samples(busy_broker()))
    found = samples(busy_broker(), include_clients=True)
    labels = {
        "topic": "orders",
        "channel": "billing",
        "client_id": 'a"b\\c\nd',
        "hostname": "worker.example",
        "remote_address": "127.0.0.1:5000",
        "version": "V2",
        "deflate": "false",
        "snappy": "false",
        "tls": "false",
    }
    gauges = {
        "state": 3,
        "ready_count": 10,
        "in_flight_count": 2,
        "message_count": 7,
        "finish_count": 4,
        "requeue_count": 1,
        "connect_ts": NOW_NS // SECOND_NS - 65,
        "sample_rate": 0,
    }
    assert {name: found[f"nsq_client_{name}", frozenset(labels.items())] for name in gauges} == gauges


def test_every_percentile_is_exported_in_seconds(samples):
    found = samples(busy_broker(latency=sketch_of(2_000_000_000)))
    for prefix, names in (("topic", {"topic": "orders"}), ("channel", {"topic": "orders", "channel": "billing"})):
        for quantile in ("0.99", "0.5"):
            labels = frozenset({**names, "quantile": quantile}.items())
            assert found[f"nsq_{prefix}_e2e_processing_latency_seconds", labels] == pytest.approx(2, rel=0.005)


def test_the_percentiles_of_nsq_exporter_keep_its_names(samples):
    found = samples(busy_broker(latency=sketch_of(2_000_000_000)))
    topic = found["nsq_topic_e2e_latency_99_percentile", frozenset(TOPIC.items())]
    channel = found["nsq_channel_e2e_latency_99p", frozenset(CHANNEL.items())]
    assert topic == channel == pytest.approx(2_000_000_000, rel=0.005)
    assert not any(name.endswith(("_95_percentile", "_95p")) for name, _ in found)


def test_no_latency_series_without_percentiles():
    assert "latency" not in page_of(busy_broker())


def test_counters_have_the_type_line_of_each_format():
    assert "# TYPE nsq_topic_messages_total counter\n" in page_of(busy_broker())
    openmetrics = page_of(busy_broker(), openmetrics=True)
    assert "# TYPE nsq_topic_messages counter\n" in openmetrics
    assert openmetrics.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", True),
        ("text/plain;q=0.5, Application/OpenMetrics-Text; version=1.0.0", True),
        ("application/openmetrics-textual", False),
    ],
)
def test_the_accept_header_selects_the_format(accept, wanted):
    assert accepts_openmetrics(accept) is wanted


def test_very_many_samples_of_a_family_stay_together():
    names = [f"t{number:04}" for number in range(1200)]
    page = page_of(BrokerStandIn().add(*(TopicStandIn(name) for name in names)))
    depths = [line for line in page.splitlines() if line.startswith("nsq_topic_depth{")]
    assert depths == [f'nsq_topic_depth{{topic="{name}",paused="false"}} 0' for name in names]
    assert "\n".join(depths) in page


def test_each_topic_channel_and_client_takes_a_step():
    clients = {number: ClientStandIn() for number in range(30)}
    channels = [ChannelStandIn(f"c{number}", clients=clients) for number in range(20)]
    topics = each_topic(BrokerStandIn().add(TopicStandIn("t").add(*channels), TopicStandIn("u")), NOW_NS)
    assert sum(1 for _ in NsqdMetricsPage().pieces(topics, healthy=True, openmetrics=False)) >= 20 * 30 + 20 + 2
