"""nsqd's HTTP API: publishing, administration, stats, config, metrics, debug reports and statsd.

The interop tests compare its responses with those of Go's nsqd.
"""

import http.client
import json
import re
import socket

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from daemons import Daemon, Fleet, start_nsqd, wait_until, write_metadata
from rawclient import OK, ConnectionEnded, RawClient, mpub_body

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
TOPICS = tuple(f"t{number:04}" for number in range(5000))


@pytest.fixture(scope="module")
def nsqd():
    """One daemon for all tests that need no flags. Each test has its own topic."""
    with start_nsqd("nsqx") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def debug_nsqd():
    with start_nsqd("nsqx", "--enable-debug-endpoints", "--metrics-per-client") as daemon:
        yield daemon


@pytest.fixture(scope="class")
def large_nsqd(tmp_path_factory):
    """A daemon with the topics in TOPICS, each with one channel."""
    directory = tmp_path_factory.mktemp("large")
    write_metadata(directory, dict.fromkeys(TOPICS, ["ch"]))
    with start_nsqd("nsqx", data_path=directory) as daemon:
        yield daemon


def consumer(daemon: Daemon, topic: str, channel: str = "ch", ready: int = 100) -> RawClient:
    client = RawClient(daemon.tcp_address)
    assert client.sub(topic, channel) == OK
    client.rdy(ready)
    return client


class TestPublish:
    def test_a_published_message_is_delivered(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            assert nsqd.post("/pub", b"\x00binary\nbody\xff", topic=topic).body == b"OK"
            assert client.read_message().body == b"\x00binary\nbody\xff"

    def test_mpub_publishes_each_line_as_a_message(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/mpub", b"\none\r\n\ntwo\nthree", topic=topic)
            assert [client.read_message().body for _ in range(3)] == [b"one\r", b"two", b"three"]

    def test_binary_mpub_publishes_each_message(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/mpub", mpub_body([b"a\n", b"b"]) + b"ignored", topic=topic, binary="true")
            assert [client.read_message().body for _ in range(2)] == [b"a\n", b"b"]
        assert nsqd.topic_stats(topic)["message_bytes"] == 3

    @pytest.mark.parametrize("mem_queue_size", [10_000, 1_000_000])
    def test_a_large_mpub_is_published_completely_or_not_at_all(self, fleet, topic, mem_queue_size):
        """nsqd publishes the messages in slices. If one message is too large, it publishes none."""
        daemon = fleet.nsqd("nsqx", f"--mem-queue-size={mem_queue_size}", "--max-msg-size=20")
        lines = [b"%d" % number for number in range(100_000)]
        answer = daemon.request("POST", f"/mpub?topic={topic}", b"\n".join([*lines, b"x" * 21]))
        assert (answer.status, answer.json()) == (413, {"message": "MSG_TOO_BIG"})
        assert daemon.topic_stats(topic)["message_count"] == 0
        assert daemon.post("/mpub", b"\n\n".join(lines), topic=topic).body == b"OK"
        assert daemon.post("/mpub", mpub_body(lines), topic=topic, binary="true").body == b"OK"
        entry = daemon.topic_stats(topic)
        assert (entry["message_count"], entry["depth"]) == (200_000, 200_000)
        assert entry["message_bytes"] == 2 * sum(map(len, lines))

    def test_a_deferred_message_is_not_delivered_at_once(self, nsqd, topic):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="ch")
        nsqd.post("/pub", b"later", topic=topic, defer="3600000")
        wait_until(lambda: nsqd.channel_stats(topic, "ch")["deferred_count"] == 1, "the message is deferred")
        assert nsqd.channel_stats(topic, "ch")["depth"] == 0

    def test_messages_that_are_written_to_disk_are_acknowledged(self, fleet, topic):
        daemon = fleet.nsqd("nsqx", "--mem-queue-size=0")
        connection = http.client.HTTPConnection(daemon.http_address)
        for number in range(20):
            connection.request("POST", f"/pub?topic={topic}", b"message %d" % number)
            assert connection.getresponse().read() == b"OK"
        connection.close()
        assert daemon.topic_stats(topic)["backend_depth"] == 20

    def test_too_large_messages_and_bodies_are_refused(self, fleet):
        daemon = fleet.nsqd("nsqx", "--max-msg-size=10", "--max-body-size=25")
        assert daemon.request("POST", "/pub?topic=t", b"x" * 10).status == 200
        answer = daemon.request("POST", "/pub?topic=t", b"x" * 11)
        assert (answer.status, answer.json()) == (413, {"message": "MSG_TOO_BIG"})
        assert daemon.request("POST", "/mpub?topic=t", b"x" * 10 + b"\n" + b"y" * 10).status == 200
        answer = daemon.request("POST", "/mpub?topic=t", b"x\n" * 13)
        assert (answer.status, answer.json()) == (413, {"message": "BODY_TOO_BIG"})
        assert daemon.topic_stats("t")["message_count"] == 3


class TestAdministration:
    def test_a_paused_topic_gives_no_messages_to_its_channels(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/topic/pause", topic=topic)
            nsqd.post("/pub", b"held", topic=topic)
            entry = nsqd.topic_stats(topic)
            assert (entry["depth"], entry["paused"], entry["channels"][0]["message_count"]) == (1, True, 0)
            nsqd.post("/topic/unpause", topic=topic)
            assert client.read_message().body == b"held"

    def test_a_paused_channel_delivers_no_messages(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/channel/pause", topic=topic, channel="ch")
            nsqd.post("/pub", b"held", topic=topic)
            entry = nsqd.channel_stats(topic, "ch")
            assert (entry["depth"], entry["paused"], entry["in_flight_count"]) == (1, True, 0)
            nsqd.post("/channel/unpause", topic=topic, channel="ch")
            assert client.read_message().body == b"held"

    @pytest.mark.parametrize("what", ["topic", "channel"])
    def test_a_pause_is_saved_before_the_response(self, fleet, tmp_path, what):
        daemon = fleet.nsqd("nsqx", data_path=tmp_path)
        daemon.post("/topic/create", topic="t")
        daemon.post("/channel/create", topic="t", channel="c")
        query = {"topic": "t"} if what == "topic" else {"topic": "t", "channel": "c"}
        for verb, paused in (("pause", True), ("unpause", False)):
            daemon.post(f"/{what}/{verb}", **query)
            (saved,) = json.loads((tmp_path / "nsqd.dat").read_bytes())["topics"]
            assert (saved if what == "topic" else saved["channels"][0])["paused"] is paused

    def test_emptying_a_topic_keeps_the_messages_of_its_channels(self, nsqd, topic):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="ch")
        nsqd.post("/pub", b"in the channel", topic=topic)
        wait_until(lambda: nsqd.channel_stats(topic, "ch")["depth"] == 1, "the channel has the message")
        nsqd.post("/topic/pause", topic=topic)
        nsqd.post("/pub", b"in the topic", topic=topic)
        nsqd.post("/topic/empty", topic=topic)
        assert nsqd.topic_stats(topic)["depth"] == 0
        assert nsqd.channel_stats(topic, "ch")["depth"] == 1

    def test_emptying_a_channel_discards_messages_in_flight(self, nsqd, topic):
        with consumer(nsqd, topic, ready=1) as client:
            nsqd.post("/mpub", b"one\ntwo", topic=topic)
            client.read_message()
            nsqd.post("/channel/empty", topic=topic, channel="ch")
            entry = nsqd.channel_stats(topic, "ch")
            assert (entry["depth"], entry["in_flight_count"], entry["clients"][0]["in_flight_count"]) == (0, 0, 0)
            nsqd.post("/pub", b"three", topic=topic)
            assert client.read_message().body == b"three"

    def test_deleting_a_channel_disconnects_its_consumers(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/channel/delete", topic=topic, channel="ch")
            with pytest.raises(ConnectionEnded):
                client.read_frame()
        assert nsqd.topic_stats(topic)["channels"] == []

    def test_deleting_a_topic_disconnects_its_consumers(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/topic/delete", topic=topic)
            with pytest.raises(ConnectionEnded):
                client.read_frame()
        assert nsqd.stats(topic=topic)["topics"] is None


class TestStats:
    def test_a_producer_is_listed_with_every_topic_it_published_to(self, nsqd, topic):
        with RawClient(nsqd.tcp_address) as client:
            assert client.pub(topic, b"x") == OK
            assert client.pub(topic, b"x") == OK
            assert client.pub(f"{topic}_other", b"x") == OK
            producers = nsqd.stats()["producers"]
            (producer,) = (entry for entry in producers if entry["remote_address"] == client.local_address)
        assert producer["pub_counts"] == [{"topic": topic, "count": 2}, {"topic": f"{topic}_other", "count": 1}]

    def test_memory_of_the_daemon_is_reported(self, nsqd):
        memory = nsqd.stats()["memory"]
        assert memory["heap_in_use_bytes"] > 1_000_000
        assert memory["gc_total_runs"] > 0
        assert "memory" not in nsqd.stats(include_mem="false")

    def test_latency_is_measured_from_publish_to_finish(self, fleet, topic):
        daemon = fleet.nsqd("nsqx", "--e2e-processing-latency-percentile=1.0,0.5")
        with consumer(daemon, topic) as client:
            daemon.post("/pub", b"x", topic=topic)
            client.fin(client.read_message().id)
            wait_until(
                lambda: daemon.channel_stats(topic, "ch")["e2e_processing_latency"]["count"] == 1,
                "the message is finished",
            )
            latency = daemon.topic_stats(topic)["e2e_processing_latency"]
        assert [entry["quantile"] for entry in latency["percentiles"]] == [1, 0.5]
        assert all(0 < entry["value"] < 60_000_000_000 for entry in latency["percentiles"])


class TestLargeBroker:
    """Answers of more than 64 KiB are streamed; their content is that of the short ones."""

    def test_stats_as_json(self, large_nsqd):
        answer = large_nsqd.request("GET", "/stats?format=json")
        assert (answer.headers["transfer-encoding"], answer.headers["content-type"]) == ("chunked", JSON)
        assert json.dumps(answer.json(), separators=(",", ":")).encode() == answer.body
        assert [topic["topic_name"] for topic in answer.json()["topics"]] == list(TOPICS)
        one = large_nsqd.request("GET", "/stats?format=json&topic=t2500")
        assert one.headers["content-length"] == str(len(one.body))
        assert one.json()["topics"] == answer.json()["topics"][2500:2501]

    def test_stats_as_text(self, large_nsqd):
        answer = large_nsqd.request("GET", "/stats")
        assert (answer.headers["transfer-encoding"], answer.headers["content-type"]) == ("chunked", TEXT)
        one = large_nsqd.request("GET", "/stats?topic=t2500").body.decode()
        shown = one.partition("\nTopics:\n")[2].partition("\n\n")[0]
        topics = [shown.replace("t2500", name) for name in TOPICS]
        assert answer.body.decode().partition("\nTopics:\n")[2] == "\n\n".join([*topics, "Producers: None\n"])

    def test_metrics(self, large_nsqd):
        answer = large_nsqd.request("GET", "/metrics")
        assert answer.headers["transfer-encoding"] == "chunked"
        depths = [line for line in answer.body.decode().splitlines() if line.startswith("nsq_channel_depth{")]
        assert depths == [f'nsq_channel_depth{{topic="{name}",channel="ch",paused="false"}} 0' for name in TOPICS]

    def test_nsqd_serves_others_while_a_client_does_not_read(self, large_nsqd):
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", large_nsqd.http_port))
            slow.sendall(b"GET /stats?format=json HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert slow.recv(8) == b"HTTP/1.1"
            assert large_nsqd.request("GET", "/ping").body == b"OK"
            received = slow.makefile("rb").read()
        assert received.endswith(b"0\r\n\r\n")
        assert b'"topic_name":"t4999"' in received


class TestConfig:
    def test_the_log_level_can_be_changed(self, fleet):
        daemon = fleet.nsqd("nsqx")
        assert daemon.request("PUT", "/config/log_level", b"error").body == b"4"
        daemon.request("GET", "/ping?quiet")
        assert daemon.request("PUT", "/config/log_level", b"info").body == b"2"
        daemon.request("GET", "/ping?heard")
        daemon.wait_for_log(r"200 GET /ping\?heard")
        assert "/ping?quiet" not in daemon.log

    def test_lookupd_addresses_are_replaced(self, fleet):
        daemon = fleet.nsqd("nsqx")
        path = "/config/nsqlookupd_tcp_addresses"
        assert daemon.request("GET", path).json() == []
        assert daemon.request("PUT", path, b'["127.0.0.1:1"]').json() == ["127.0.0.1:1"]
        assert daemon.request("GET", path).json() == ["127.0.0.1:1"]
        assert daemon.request("PUT", path, b"[1]").json() == {"message": "INVALID_VALUE"}
        assert daemon.request("GET", path).json() == ["127.0.0.1:1"]
        assert daemon.request("PUT", path, b"[]").json() == []

    def test_the_statsd_prefix_contains_the_address(self, nsqd):
        answer = nsqd.request("GET", "/config/statsd_prefix")
        assert answer.headers["content-type"] == TEXT
        assert answer.body.decode() == f"nsq.127_0_0_1_{nsqd.http_port}."


class TestMetrics:
    def test_metrics_are_served_as_prometheus_text(self, nsqd, topic):
        nsqd.post("/mpub", b"one\ntwo", topic=topic)
        answer = nsqd.request("GET", "/metrics")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        samples = samples_of(parse_text(answer.body.decode()))
        assert samples["nsq_topic_depth", topic] == 2
        assert samples["nsq_topic_messages_total", topic] == 2
        assert samples["nsq_topic_message_bytes_total", topic] == 6
        assert samples["nsq_healthy", None] == 1

    def test_metrics_are_served_as_openmetrics(self, nsqd, topic):
        nsqd.post("/pub", b"one", topic=topic)
        accept = "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"
        answer = nsqd.request("GET", "/metrics", headers={"Accept": accept})
        assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert samples_of(parse_openmetrics(answer.body.decode()))["nsq_topic_messages_total", topic] == 1

    def test_clients_have_series_only_with_metrics_per_client(self, nsqd, debug_nsqd, topic):
        for daemon, expected in ((nsqd, False), (debug_nsqd, True)):
            with consumer(daemon, topic, ready=7):
                wait_until(
                    lambda d=daemon: d.channel_stats(topic, "ch")["clients"][0]["ready_count"] == 7,
                    "nsqd has received RDY 7",
                )
                samples = samples_of(parse_text(daemon.request("GET", "/metrics").body.decode()))
            assert (("nsq_client_ready_count", topic) in samples) is expected
            if expected:
                assert samples["nsq_client_ready_count", topic] == 7


def samples_of(families):
    return {(sample.name, sample.labels.get("topic")): sample.value for family in families for sample in family.samples}


class TestDebug:
    @pytest.mark.parametrize("report", ["", "cmdline", "goroutine", "heap", "profile", "threadcreate"])
    def test_debug_reports_exist_only_with_enable_debug_endpoints(self, nsqd, debug_nsqd, report):
        refused = nsqd.request("GET", f"/debug/pprof/{report}")
        assert (refused.status, refused.json()) == (404, {"message": "NOT_FOUND"})
        assert debug_nsqd.request("GET", f"/debug/pprof/{report}?seconds=0.05").status == 200

    def test_the_index_links_to_existing_reports(self, debug_nsqd):
        page = debug_nsqd.request("GET", "/debug/pprof/").body.decode()
        links = re.findall(r'href="(\w+)"', page)
        assert len(links) == 5
        for link in links:
            assert debug_nsqd.request("GET", f"/debug/pprof/{link}?seconds=0.05").status == 200

    def test_cmdline_has_the_flags(self, debug_nsqd):
        words = debug_nsqd.request("GET", "/debug/pprof/cmdline").body.split(b"\0")
        assert b"--enable-debug-endpoints" in words

    def test_a_profile_has_collapsed_stacks(self, debug_nsqd):
        profile = debug_nsqd.request("GET", "/debug/pprof/profile?seconds=0.2").body.decode()
        lines = profile.splitlines()
        assert lines
        assert all(re.fullmatch(r"\S.* \d+", line) for line in lines)
        assert any("nsqx.cli.commands" in line for line in lines)

    def test_a_running_profile_refuses_another_and_does_not_delay_shutdown(self, fleet):
        daemon = fleet.nsqd("nsqx", "--enable-debug-endpoints")
        connection = http.client.HTTPConnection(daemon.http_address)
        connection.request("GET", "/debug/pprof/profile?seconds=60")
        wait_until(
            lambda: b"sample_stacks" in daemon.request("GET", "/debug/pprof/threadcreate").body,
            "the profile has started",
        )
        assert daemon.request("GET", "/debug/pprof/profile?seconds=60").status == 500
        assert daemon.stop() == 0
        connection.close()

    def test_tasks_threads_and_objects_are_listed(self, debug_nsqd):
        assert re.match(
            r"\d+ tasks\n\nStack for <Task", debug_nsqd.request("GET", "/debug/pprof/goroutine").body.decode()
        )
        assert b"MainThread" in debug_nsqd.request("GET", "/debug/pprof/threadcreate").body
        assert re.match(
            rb"\d+ objects, \d+ more frozen, \d+ blocks\n", debug_nsqd.request("GET", "/debug/pprof/heap").body
        )

    def test_heap_is_listed_by_line_if_allocations_are_traced(self, fleet):
        daemon = fleet.nsqd("nsqx", "--enable-debug-endpoints", env={"PYTHONTRACEMALLOC": "1"})
        first_line = daemon.request("GET", "/debug/pprof/heap").body.split(b"\n")[0]
        assert re.search(rb"size=.* count=\d+, average=", first_line)

    def test_freememory_returns_200(self, nsqd):
        answer = nsqd.request("POST", "/debug/freememory")
        assert (answer.status, answer.body) == (200, b"")

    @pytest.mark.parametrize(
        ("target", "body", "status", "text"),
        [
            ("?rate=1", None, 200, ""),
            ("?rate=-1", None, 200, ""),
            ("", b"rate=1", 200, ""),
            ("?rate=x", None, 400, 'invalid block rate : strconv.Atoi: parsing "x": invalid syntax'),
            ("", None, 400, 'invalid block rate : strconv.Atoi: parsing "": invalid syntax'),
            (
                "?rate=9223372036854775808",
                None,
                400,
                'invalid block rate : strconv.Atoi: parsing "9223372036854775808": value out of range',
            ),
        ],
    )
    def test_setblockrate_checks_the_rate(self, nsqd, target, body, status, text):
        answer = nsqd.request("PUT", f"/debug/setblockrate{target}", body)
        assert (answer.status, answer.body.decode()) == (status, text)
        assert "x-nsq-content-type" not in answer.headers


class TestStatsd:
    @pytest.fixture
    def statsd(self):
        """A UDP socket in the place of statsd."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.settimeout(15)
            yield listener

    def flags(self, statsd, *more):
        return (f"--statsd-address=127.0.0.1:{statsd.getsockname()[1]}", *more)

    def pushes(self, statsd, last_line="mem.gc_runs"):
        """Yield the packets of each push. A push ends with the packet that contains ``last_line``."""
        packets = []
        while True:
            packets.append(statsd.recv(65536).decode())
            if last_line in packets[-1]:
                yield packets
                packets = []

    def test_counters_are_pushed_once_in_short_intervals(self, fleet, statsd, topic):
        daemon = fleet.nsqd("nsqx", *self.flags(statsd, "--statsd-interval=50ms", "--statsd-prefix=test.%s"))
        pushes = self.pushes(statsd)
        prefix = f"test.127_0_0_1_{daemon.http_port}."
        next(pushes)
        daemon.post("/mpub", b"one\ntwo", topic=topic)
        counts = []
        while sum(counts) < 2 or counts[-1] != 0:
            lines = "".join(next(pushes)).splitlines()
            assert all(re.fullmatch(rf"{re.escape(prefix)}[\w.]+:\d+\|[cg]", line) for line in lines)
            name = f"{prefix}topic.{topic}.message_count:"
            counts += [int(line.removeprefix(name)[:-2]) for line in lines if line.startswith(name)]
        assert sum(counts) == 2

    def test_packets_are_not_larger_than_the_limit(self, fleet, statsd):
        daemon = fleet.nsqd(
            "nsqx", *self.flags(statsd, "--statsd-interval=50ms", "--statsd-udp-packet-size=200", "--statsd-prefix=")
        )
        for number in range(10):
            daemon.post("/topic/create", topic=f"topic_{number}")
        pushes = self.pushes(statsd)
        packets = next(packets for packets in pushes if "topic_9.depth" in "".join(packets))
        assert len(packets) > 3
        assert all(len(packet) <= 200 and packet.endswith("\n") for packet in packets)

    def test_memory_stats_can_be_disabled(self, fleet, statsd):
        daemon = fleet.nsqd("nsqx", *self.flags(statsd, "--statsd-interval=50ms", "--statsd-mem-stats=false"))
        daemon.post("/topic/create", topic="t")
        packets = next(self.pushes(statsd, last_line="topic.t.backend_depth"))
        assert "mem." not in "".join(packets)

    @pytest.mark.parametrize("address", ["statsd.invalid:8125", "127.0.0.1", "127.0.0.1:nonsense"])
    def test_an_invalid_statsd_address_is_only_logged(self, fleet: Fleet, address):
        daemon = fleet.nsqd("nsqx", f"--statsd-address={address}", "--statsd-interval=50ms")
        daemon.wait_for_log(rf"ERROR: failed to create UDP socket to statsd\({re.escape(address)}\)")
        assert daemon.request("GET", "/ping").status == 200
        assert daemon.stop() == 0
        assert "STATSD: closing" in daemon.log

    def test_shutdown_does_not_wait_for_the_statsd_interval(self, fleet, statsd):
        daemon = fleet.nsqd("nsqx", *self.flags(statsd, "--statsd-interval=1h"))
        assert daemon.stop(timeout_s=15) == 0
        assert "STATSD: closing" in daemon.log
