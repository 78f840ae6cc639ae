"""/stats: its content, the effect of filters, and its text form."""

import gc
import json
from typing import Any, NamedTuple

import orjson
import pytest
from broker_standin import (
    CURSOR,
    LOG,
    NOW_NS,
    SECOND_NS,
    BrokerStandIn,
    ChannelStandIn,
    ClientStandIn,
    StoreStandIn,
    TopicStandIn,
    log_topic,
)

from nsqx.nsqd import stats
from nsqx.nsqd.latency import LatencySketch
from nsqx.nsqd.memory import MemoryMonitor, percentile

START_NS = NOW_NS - 3_723_500_000_000
NOTHING_FINISHED = {"count": 0, "percentiles": None}
MEMORY = {
    "heap_objects": 1,
    "heap_idle_bytes": 2,
    "heap_in_use_bytes": 3,
    "heap_released_bytes": 4,
    "gc_pause_usec_100": 5,
    "gc_pause_usec_99": 6,
    "gc_pause_usec_95": 7,
    "next_gc_bytes": 8,
    "gc_total_runs": 9,
}
CLIENT_KEYS = (
    "client_id hostname version remote_address state ready_count in_flight_count message_count finish_count"
    " requeue_count connect_ts sample_rate deflate snappy user_agent topology_zone topology_region tls"
    " tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
)


def busy_broker():
    """Topics b (two channels, one consumer) and a (none), one producer, one idle connection."""
    consumer = ClientStandIn(client_id="consumer")
    producer = ClientStandIn(client_id="producer", state=2, pub_counts={"a": 3, "b": 4})
    jobs = ChannelStandIn("jobs", depth=5, backend_depth=1, message_count=9, clients={1: consumer})
    archive = ChannelStandIn("archive", paused=True)
    broker = BrokerStandIn(clients={1: consumer, 2: producer, 3: ClientStandIn(client_id="idle")})
    return broker.add(TopicStandIn("b", message_count=7, message_bytes=70).add(jobs, archive), TopicStandIn("a"))


def sketch_of(*latencies):
    sketch = LatencySketch((0.99, 0.5), 600 * SECOND_NS)
    for latency in latencies:
        sketch.add(latency, NOW_NS)
    return sketch


def body(pieces):
    return b"".join(piece for piece in pieces if piece is not None)


class Collected(NamedTuple):
    topics: list[dict[str, Any]] | None
    producers: list[dict[str, Any]] | None


def collect(broker, now_ns, **selection):
    """Return the topics and the producers of the JSON form."""
    document = json.loads(body(stats.json_pieces(broker, now_ns, stats.StatsFilter(**selection))))
    return Collected(document["topics"], document["producers"])


class TestCollect:
    def test_topics_and_channels_are_sorted_by_name(self):
        topics = collect(busy_broker(), NOW_NS).topics
        assert [topic["topic_name"] for topic in topics] == ["a", "b"]
        assert [channel["channel_name"] for channel in topics[1]["channels"]] == ["archive", "jobs"]

    def test_topic_keys_are_in_order(self):
        topic = collect(busy_broker(), NOW_NS).topics[1]
        assert " ".join(topic) == (
            "topic_name channels depth backend_depth message_count message_bytes paused e2e_processing_latency"
            " oldest_ms"
        )

    def test_channel_keys_are_in_order_and_locality_counts_of_0_are_absent(self):
        channel = collect(busy_broker(), NOW_NS, topic_name="b", channel_name="jobs").topics[0]["channels"][0]
        assert " ".join(channel) == (
            "channel_name depth backend_depth in_flight_count deferred_count message_count requeue_count"
            " timeout_count client_count clients paused e2e_processing_latency oldest_ms"
        )

    def test_locality_counts_follow_the_message_count(self):
        channel = ChannelStandIn("c", zone_local_msg_count=1, region_local_msg_count=2, global_msg_count=3)
        broker = BrokerStandIn().add(TopicStandIn("t").add(channel))
        keys = list(collect(broker, NOW_NS).topics[0]["channels"][0])
        assert keys[5:10] == [
            "message_count",
            "zone_local_msg_count",
            "region_local_msg_count",
            "global_msg_count",
            "requeue_count",
        ]

    def test_log_topics_have_two_more_keys_at_the_end(self):
        topic = collect(BrokerStandIn().add(log_topic()), NOW_NS).topics[0]
        channel = topic["channels"][0]
        assert (list(topic)[-1], topic["log"]) == ("log", LOG)
        assert (list(channel)[-1], channel["cursor"]) == ("cursor", CURSOR)

    @pytest.mark.parametrize(
        ("oldest_ns", "shown"),
        [
            (0, {"oldest_ms": 0}),
            (NOW_NS - 90_000_000_000, {"oldest_ms": 90_000}),
            (NOW_NS + 5, {"oldest_ms": 1}),
            (-1, {}),
        ],
    )
    def test_the_age_of_the_oldest_message_is_absent_if_it_is_unknown(self, oldest_ns, shown):
        channel = ChannelStandIn("c", store=StoreStandIn(oldest_ns=oldest_ns))
        topic = collect(BrokerStandIn().add(TopicStandIn("t", oldest_ns=oldest_ns).add(channel)), NOW_NS).topics[0]
        for found in (topic, topic["channels"][0]):
            assert {key: value for key, value in found.items() if key == "oldest_ms"} == shown

    def test_classic_channels_with_an_attempt_limit_have_one_more_key(self):
        limited = ChannelStandIn("c", max_attempts=5, dead_count=3)
        broker = BrokerStandIn().add(TopicStandIn("t").add(limited).add(ChannelStandIn("d")))
        first, second = collect(broker, NOW_NS).topics[0]["channels"]
        assert (list(first)[-1], first["dead"]) == ("dead", 3)
        assert "dead" not in second

    def test_without_topics_the_list_is_empty(self):
        assert collect(BrokerStandIn(), NOW_NS) == ([], None)

    def test_topics_and_producers_of_an_unknown_topic_are_null(self):
        assert collect(busy_broker(), NOW_NS, topic_name="unknown") == (None, None)

    def test_topics_without_the_selected_channel_are_left_out(self):
        topics = collect(busy_broker(), NOW_NS, channel_name="jobs").topics
        assert [topic["topic_name"] for topic in topics] == ["b"]
        assert [channel["channel_name"] for channel in topics[0]["channels"]] == ["jobs"]

    def test_without_clients_only_their_number_is_shown(self):
        snapshot = collect(busy_broker(), NOW_NS, include_clients=False)
        channel = snapshot.topics[1]["channels"][1]
        assert (channel["clients"], channel["client_count"]) == (None, 1)
        assert snapshot.producers is None

    def test_producers_are_the_clients_that_have_published(self):
        producers = collect(busy_broker(), NOW_NS).producers
        assert [client["client_id"] for client in producers] == ["producer"]
        assert producers[0]["pub_counts"] == [{"topic": "a", "count": 3}, {"topic": "b", "count": 4}]

    def test_a_topic_filter_keeps_all_producers_and_drops_counts_of_other_topics(self):
        broker = busy_broker()
        broker.clients[4] = ClientStandIn(client_id="elsewhere", pub_counts={"b": 1})
        producers = collect(broker, NOW_NS, topic_name="a").producers
        assert [(client["client_id"], client.get("pub_counts")) for client in producers] == [
            ("producer", [{"topic": "a", "count": 3}]),
            ("elsewhere", None),
        ]

    def test_the_latency_of_a_topic_covers_all_channels_even_hidden_ones(self):
        topic = TopicStandIn("t").add(
            ChannelStandIn("one", latency=sketch_of(*[1000] * 9)), ChannelStandIn("two", latency=sketch_of(10**9))
        )
        entry = collect(BrokerStandIn().add(topic), NOW_NS, channel_name="one").topics[0]
        assert entry["channels"][0]["e2e_processing_latency"]["count"] == 9
        assert entry["e2e_processing_latency"]["count"] == 10
        slowest, median = (each["value"] for each in entry["e2e_processing_latency"]["percentiles"])
        assert slowest > 900_000_000
        assert median < 1100

    def test_a_topic_with_one_channel_has_the_latency_of_the_channel(self):
        topic = TopicStandIn("t").add(ChannelStandIn("one", latency=sketch_of(1000)))
        entry = collect(BrokerStandIn().add(topic), NOW_NS).topics[0]
        assert entry["e2e_processing_latency"] == entry["channels"][0]["e2e_processing_latency"]

    def test_latency_without_percentiles_is_null(self):
        assert collect(busy_broker(), NOW_NS).topics[1]["e2e_processing_latency"] == NOTHING_FINISHED


class TestSteps:
    """A report is built in steps, so that a large broker serves its clients in between."""

    JOBS = (stats.json_pieces, stats.text_pieces)

    @pytest.mark.parametrize("job", JOBS)
    def test_each_topic_channel_and_client_takes_a_step(self, job):
        clients = {number: ClientStandIn(pub_counts={"t": 1}) for number in range(30)}
        channels = [ChannelStandIn(f"c{number}", clients=clients) for number in range(20)]
        broker = BrokerStandIn(clients=clients).add(TopicStandIn("t").add(*channels))
        broker.add(*(TopicStandIn(f"t{number}") for number in range(10)))
        assert sum(1 for _ in job(broker, NOW_NS)) >= 20 * 30 + 20 + 11 + 30

    @pytest.mark.parametrize("job", JOBS)
    def test_topics_and_channels_deleted_between_steps_are_left_out(self, job):
        topics = [
            TopicStandIn(f"t{number}").add(*(ChannelStandIn(f"c{each}") for each in range(5))) for number in (1, 2)
        ]
        broker = BrokerStandIn().add(*topics)
        pieces = job(broker, NOW_NS)
        next(pieces)
        del broker.topics["t2"], topics[0].channels["c4"]
        shown = body(pieces).decode()
        assert "t1" in shown
        assert "c3" in shown
        assert "c4" not in shown
        assert "t2" not in shown


class TestClient:
    def test_keys_are_in_order_and_empty_optional_keys_are_absent(self):
        assert " ".join(stats.client_stats(ClientStandIn())) == CLIENT_KEYS

    def test_authentication_and_pub_counts_are_shown_if_there_are_any(self):
        client = ClientStandIn(authed=True, auth_identity="me", auth_identity_url="http://me", pub_counts={"t": 1})
        keys = list(stats.client_stats(client))
        assert keys[15:21] == [
            "authed",
            "auth_identity",
            "auth_identity_url",
            "topology_zone",
            "topology_region",
            "pub_counts",
        ]


class TestJSON:
    def test_document(self):
        broker = BrokerStandIn(start_time_ns=START_NS).add(TopicStandIn("t"))
        assert body(stats.json_pieces(broker, NOW_NS, memory=MEMORY)) == (
            b'{"version":"1.3.0","health":"OK","start_time":1699996276,"topics":[{"topic_name":"t","channels":[],'
            b'"depth":0,"backend_depth":0,"message_count":0,"message_bytes":0,"paused":false,'
            b'"e2e_processing_latency":{"count":0,"percentiles":null},"oldest_ms":0}],"memory":{"heap_objects":1,'
            b'"heap_idle_bytes":2,"heap_in_use_bytes":3,"heap_released_bytes":4,"gc_pause_usec_100":5,'
            b'"gc_pause_usec_99":6,"gc_pause_usec_95":7,"next_gc_bytes":8,"gc_total_runs":9},"producers":null}'
        )

    def test_memory_is_absent_unless_requested(self):
        broker = BrokerStandIn(health="NOK - full")
        document = json.loads(body(stats.json_pieces(broker, NOW_NS, stats.StatsFilter("unknown"))))
        assert list(document) == ["version", "health", "start_time", "topics", "producers"]
        assert document["health"] == "NOK - full"
        assert document["topics"] is None

    @pytest.mark.parametrize("clients", [0, 1, 3])
    def test_the_document_is_that_of_a_whole_encoding(self, clients):
        consumers = {number: ClientStandIn(hostname='","clients":[]') for number in range(clients)}
        channels = [ChannelStandIn(f"c{number}", clients=consumers) for number in range(3)]
        broker = BrokerStandIn({}, {**consumers, 9: ClientStandIn(pub_counts={"t": 1})}, health='NOK - "topics":[]')
        broker.add(TopicStandIn("t").add(*channels))
        encoded = body(stats.json_pieces(broker, NOW_NS, memory=MEMORY))
        document = orjson.loads(encoded)
        assert orjson.dumps(document) == encoded
        shown = document["topics"][0]["channels"]
        assert [(channel["client_count"], len(channel["clients"])) for channel in shown] == [(clients, clients)] * 3


class TestText:
    def text_of(self, broker, memory=None):
        broker.start_time_ns = START_NS
        return body(stats.text_pieces(broker, NOW_NS, memory=memory)).decode()

    def test_idle_broker(self):
        lines = self.text_of(BrokerStandIn()).split("\n")
        assert lines[0].startswith("nsqd v1.3.0 (built w/")
        assert lines[1].startswith("start_time 2023-11-1")
        assert lines[2:] == ["uptime 1h2m3.5s", "", "Health: OK", "", "Topics: None", "", "Producers: None", ""]

    def test_memory(self):
        lines = self.text_of(BrokerStandIn(), MEMORY).split("\n")
        assert lines[5:9] == [
            "",
            "Memory:",
            "   heap_objects             \t1",
            "   heap_idle_bytes          \t2",
        ]
        assert lines[15:17] == ["   gc_total_runs            \t9", ""]

    def test_topics_channels_and_clients(self):
        lines = self.text_of(busy_broker()).split("\n")[6:]
        assert lines == [
            "Topics:",
            "   [a              ] depth: 0     be-depth: 0     msgs: 0        e2e%: ",
            "",
            "   [b              ] depth: 0     be-depth: 0     msgs: 7        e2e%: ",
            "   *P [archive                  ] depth: 0     be-depth: 0     inflt: 0    def: 0    re-q: 0    "
            " timeout: 0     msgs: 0        e2e%: ",
            "      [jobs                     ] depth: 5     be-depth: 1     inflt: 0    def: 0    re-q: 0    "
            " timeout: 0     msgs: 9        e2e%: ",
            "        [V2 worker.example:5000 test/1.0] state: 3 inflt: 2    rdy: 10   fin: 4        re-q: 1       "
            " msgs: 7        connected: 1m5s",
            "",
            "Producers:",
            "   [V2 worker.example:5000 test/1.0] msgs: 7        topics: a=3,b=4 connected: 1m5s",
            "",
        ]

    def test_unknown_topic_has_no_producers(self):
        selection = stats.StatsFilter("unknown")
        text = body(stats.text_pieces(busy_broker(), NOW_NS, selection)).decode()
        assert text.endswith("\n\nTopics: None\n\nProducers: None\n")
        selection = stats.StatsFilter("b", "unknown")
        assert b"\nTopics: None\n\nProducers:\n" in body(stats.text_pieces(busy_broker(), NOW_NS, selection))

    def test_a_log_topic_has_a_line_for_its_log(self):
        assert self.text_of(BrokerStandIn().add(log_topic())).split("\n")[8] == (
            "      log: fsync first: 100      stable: 240      end: 250      def: 3    segments: 2    bytes: 4096"
        )

    def test_paused_topic(self):
        assert "\n*P [t              ] depth" in self.text_of(BrokerStandIn().add(TopicStandIn("t", paused=True)))

    def test_a_client_on_a_unix_socket_has_no_port(self):
        client = ClientStandIn(remote_address="@", hostname="", user_agent="")
        broker = BrokerStandIn().add(TopicStandIn("t").add(ChannelStandIn("c", clients={1: client})))
        assert "        [V2 :                    ] state: 3" in self.text_of(broker)

    @pytest.mark.parametrize(
        ("latency_ns", "text"),
        [
            (0, "0.0ns"),
            (900, "902.0ns"),
            (5_000, "5.0us"),
            (12_300_000, "12.3ms"),
            (75_500_000_000, "75.4s"),
        ],
    )
    def test_latencies_have_one_decimal(self, latency_ns, text):
        topic = TopicStandIn("t").add(ChannelStandIn("c", latency=sketch_of(latency_ns)))
        assert f"e2e%: {text}, {text}\n" in self.text_of(BrokerStandIn().add(topic))


class TestMemory:
    def test_garbage_collections_are_timed_while_started(self):
        monitor = MemoryMonitor()
        monitor._collecting("stop", {})
        assert monitor.stats()["gc_pause_usec_100"] == 0
        monitor._collecting("start", {})
        monitor._collecting("stop", {})
        assert len(monitor._pauses_ns) == 1

    def test_the_monitor_starts_and_stops(self):
        monitor = MemoryMonitor()
        monitor.start()
        gc.collect()
        monitor.stop()
        seen = len(monitor._pauses_ns)
        gc.collect()
        assert seen >= 1
        assert len(monitor._pauses_ns) == seen

    def test_keys_are_in_order(self):
        assert list(MemoryMonitor().stats()) == list(MEMORY)

    def test_the_numbers_are_those_of_this_process(self):
        numbers = MemoryMonitor().stats()
        assert numbers["heap_objects"] > 1000
        assert numbers["heap_in_use_bytes"] > 1_000_000

    @pytest.mark.parametrize(("percent", "value"), [(100, 9), (99, 9), (95, 9), (50, 5), (0, 0)])
    def test_percentile_rounds_to_the_next_index(self, percent, value):
        assert percentile(percent, list(range(10))) == value

    def test_the_percentile_of_an_empty_list_is_0(self):
        assert percentile(99, []) == 0
