"""nsqd over HTTP, seen from outside: what its calls do to messages, and what it reports to people and machines.

Whether every answer is worded as Go's nsqd words it is for the interop tests to say.
"""

import http.client
import json
import re
import socket

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from daemons import Daemon, Fleet, start_nsqd, wait_until
from rawclient import OK, ConnectionEnded, RawClient, mpub_body

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


@pytest.fixture(scope="module")
def nsqd():
    """One daemon for the tests of this file that need no flags; each test has its own topic."""
    with start_nsqd("nsqx") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def debugged():
    with start_nsqd("nsqx", "--enable-debug-endpoints", "--metrics-per-client") as daemon:
        yield daemon


def consumer(daemon: Daemon, topic: str, channel: str = "ch", ready: int = 100) -> RawClient:
    client = RawClient(daemon.tcp_address)
    assert client.sub(topic, channel) == OK
    client.rdy(ready)
    return client


class TestPublish:
    def test_message_reaches_a_consumer(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            assert nsqd.post("/pub", b"\x00binary\nbody\xff", topic=topic).body == b"OK"
            assert client.read_message().body == b"\x00binary\nbody\xff"

    def test_each_line_is_a_message(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/mpub", b"\none\r\n\ntwo\nthree", topic=topic)
            assert [client.read_message().body for _ in range(3)] == [b"one\r", b"two", b"three"]

    def test_binary_batch(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/mpub", mpub_body([b"a\n", b"b"]) + b"ignored", topic=topic, binary="true")
            assert [client.read_message().body for _ in range(2)] == [b"a\n", b"b"]
        assert nsqd.topic_stats(topic)["message_bytes"] == 3

    @pytest.mark.parametrize("mem_queue_size", [10_000, 1_000_000])
    def test_very_many_lines(self, fleet, topic, mem_queue_size):
        """They are published in slices: all of them, or with one that is too long none."""
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

    def test_deferred_message_waits(self, nsqd, topic):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="ch")
        nsqd.post("/pub", b"later", topic=topic, defer="3600000")
        wait_until(lambda: nsqd.channel_stats(topic, "ch")["deferred_count"] == 1, "the message is deferred")
        assert nsqd.channel_stats(topic, "ch")["depth"] == 0

    def test_messages_that_go_to_disk_are_answered(self, fleet, topic):
        daemon = fleet.nsqd("nsqx", "--mem-queue-size=0")
        connection = http.client.HTTPConnection(daemon.http_address)
        for number in range(20):
            connection.request("POST", f"/pub?topic={topic}", b"message %d" % number)
            assert connection.getresponse().read() == b"OK"
        connection.close()
        assert daemon.topic_stats(topic)["backend_depth"] == 20

    def test_size_limits(self, fleet):
        daemon = fleet.nsqd("nsqx", "--max-msg-size=10", "--max-body-size=25")
        assert daemon.request("POST", "/pub?topic=t", b"x" * 10).status == 200
        answer = daemon.request("POST", "/pub?topic=t", b"x" * 11)
        assert (answer.status, answer.json()) == (413, {"message": "MSG_TOO_BIG"})
        assert daemon.request("POST", "/mpub?topic=t", b"x" * 10 + b"\n" + b"y" * 10).status == 200
        answer = daemon.request("POST", "/mpub?topic=t", b"x\n" * 13)
        assert (answer.status, answer.json()) == (413, {"message": "BODY_TOO_BIG"})
        assert daemon.topic_stats("t")["message_count"] == 3


class TestAdministration:
    def test_paused_topic_keeps_messages_from_its_channels(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/topic/pause", topic=topic)
            nsqd.post("/pub", b"held", topic=topic)
            entry = nsqd.topic_stats(topic)
            assert (entry["depth"], entry["paused"], entry["channels"][0]["message_count"]) == (1, True, 0)
            nsqd.post("/topic/unpause", topic=topic)
            assert client.read_message().body == b"held"

    def test_paused_channel_keeps_messages_from_its_clients(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/channel/pause", topic=topic, channel="ch")
            nsqd.post("/pub", b"held", topic=topic)
            entry = nsqd.channel_stats(topic, "ch")
            assert (entry["depth"], entry["paused"], entry["in_flight_count"]) == (1, True, 0)
            nsqd.post("/channel/unpause", topic=topic, channel="ch")
            assert client.read_message().body == b"held"

    @pytest.mark.parametrize("what", ["topic", "channel"])
    def test_pause_is_saved_before_it_is_answered(self, fleet, tmp_path, what):
        daemon = fleet.nsqd("nsqx", data_path=tmp_path)
        daemon.post("/topic/create", topic="t")
        daemon.post("/channel/create", topic="t", channel="c")
        query = {"topic": "t"} if what == "topic" else {"topic": "t", "channel": "c"}
        for verb, paused in (("pause", True), ("unpause", False)):
            daemon.post(f"/{what}/{verb}", **query)
            (saved,) = json.loads((tmp_path / "nsqd.dat").read_bytes())["topics"]
            assert (saved if what == "topic" else saved["channels"][0])["paused"] is paused

    def test_emptied_topic_keeps_its_channels_messages(self, nsqd, topic):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="ch")
        nsqd.post("/pub", b"in the channel", topic=topic)
        wait_until(lambda: nsqd.channel_stats(topic, "ch")["depth"] == 1, "the channel has it")
        nsqd.post("/topic/pause", topic=topic)
        nsqd.post("/pub", b"in the topic", topic=topic)
        nsqd.post("/topic/empty", topic=topic)
        assert nsqd.topic_stats(topic)["depth"] == 0
        assert nsqd.channel_stats(topic, "ch")["depth"] == 1

    def test_emptied_channel_forgets_messages_in_flight_too(self, nsqd, topic):
        with consumer(nsqd, topic, ready=1) as client:
            nsqd.post("/mpub", b"one\ntwo", topic=topic)
            client.read_message()
            nsqd.post("/channel/empty", topic=topic, channel="ch")
            entry = nsqd.channel_stats(topic, "ch")
            assert (entry["depth"], entry["in_flight_count"], entry["clients"][0]["in_flight_count"]) == (0, 0, 0)
            nsqd.post("/pub", b"three", topic=topic)
            assert client.read_message().body == b"three"

    def test_deleted_channel_sends_its_consumers_away(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/channel/delete", topic=topic, channel="ch")
            with pytest.raises(ConnectionEnded):
                client.read_frame()
        assert nsqd.topic_stats(topic)["channels"] == []

    def test_deleted_topic_is_gone(self, nsqd, topic):
        with consumer(nsqd, topic) as client:
            nsqd.post("/topic/delete", topic=topic)
            with pytest.raises(ConnectionEnded):
                client.read_frame()
        assert nsqd.stats(topic=topic)["topics"] is None


class TestStats:
    def test_producer_is_listed_with_every_topic_it_published_to(self, nsqd, topic):
        with RawClient(nsqd.tcp_address) as client:
            assert client.pub(topic, b"x") == OK
            assert client.pub(topic, b"x") == OK
            assert client.pub(f"{topic}_other", b"x") == OK
            producers = nsqd.stats()["producers"]
            (producer,) = (entry for entry in producers if entry["remote_address"] == client.local_address)
        assert producer["pub_counts"] == [{"topic": topic, "count": 2}, {"topic": f"{topic}_other", "count": 1}]

    def test_memory_is_of_the_daemon(self, nsqd):
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
                lambda: daemon.channel_stats(topic, "ch")["e2e_processing_latency"]["count"] == 1, "it is finished"
            )
            latency = daemon.topic_stats(topic)["e2e_processing_latency"]
        assert [entry["quantile"] for entry in latency["percentiles"]] == [1, 0.5]
        assert all(0 < entry["value"] < 60_000_000_000 for entry in latency["percentiles"])


class TestConfig:
    def test_log_level_changes_what_is_logged(self, fleet):
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

    def test_statsd_prefix_is_shown_with_this_address(self, nsqd):
        answer = nsqd.request("GET", "/config/statsd_prefix")
        assert answer.headers["content-type"] == TEXT
        assert answer.body.decode() == f"nsq.127_0_0_1_{nsqd.http_port}."


class TestMetrics:
    def test_prometheus_text(self, nsqd, topic):
        nsqd.post("/mpub", b"one\ntwo", topic=topic)
        answer = nsqd.request("GET", "/metrics")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        samples = samples_of(parse_text(answer.body.decode()))
        assert samples["nsq_topic_depth", topic] == 2
        assert samples["nsq_topic_messages_total", topic] == 2
        assert samples["nsq_topic_message_bytes_total", topic] == 6
        assert samples["nsq_healthy", None] == 1

    def test_openmetrics(self, nsqd, topic):
        nsqd.post("/pub", b"one", topic=topic)
        accept = "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"
        answer = nsqd.request("GET", "/metrics", headers={"Accept": accept})
        assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert samples_of(parse_openmetrics(answer.body.decode()))["nsq_topic_messages_total", topic] == 1

    def test_clients_have_series_only_if_asked_for(self, nsqd, debugged, topic):
        for daemon, expected in ((nsqd, False), (debugged, True)):
            with consumer(daemon, topic, ready=7):
                wait_until(lambda d=daemon: d.channel_stats(topic, "ch")["clients"][0]["ready_count"] == 7, "RDY 7")
                samples = samples_of(parse_text(daemon.request("GET", "/metrics").body.decode()))
            assert (("nsq_client_ready_count", topic) in samples) is expected
            if expected:
                assert samples["nsq_client_ready_count", topic] == 7


def samples_of(families):
    return {(sample.name, sample.labels.get("topic")): sample.value for family in families for sample in family.samples}


class TestDebug:
    @pytest.mark.parametrize("report", ["", "cmdline", "goroutine", "heap", "profile", "threadcreate"])
    def test_reports_exist_only_if_asked_for(self, nsqd, debugged, report):
        refused = nsqd.request("GET", f"/debug/pprof/{report}")
        assert (refused.status, refused.json()) == (404, {"message": "NOT_FOUND"})
        assert debugged.request("GET", f"/debug/pprof/{report}?seconds=0.05").status == 200

    def test_index_links_to_reports_that_exist(self, debugged):
        page = debugged.request("GET", "/debug/pprof/").body.decode()
        links = re.findall(r'href="(\w+)"', page)
        assert len(links) == 5
        for link in links:
            assert debugged.request("GET", f"/debug/pprof/{link}?seconds=0.05").status == 200

    def test_command_line(self, debugged):
        words = debugged.request("GET", "/debug/pprof/cmdline").body.split(b"\0")
        assert b"--enable-debug-endpoints" in words

    def test_profile_is_collapsed_stacks(self, debugged):
        profile = debugged.request("GET", "/debug/pprof/profile?seconds=0.2").body.decode()
        lines = profile.splitlines()
        assert lines
        assert all(re.fullmatch(r"\S.* \d+", line) for line in lines)
        assert any("nsqx.cli.nsqd" in line or "__main__.main" in line for line in lines)

    def test_profile_under_way_lets_no_other_begin_and_does_not_delay_the_end(self, fleet):
        daemon = fleet.nsqd("nsqx", "--enable-debug-endpoints")
        connection = http.client.HTTPConnection(daemon.http_address)
        connection.request("GET", "/debug/pprof/profile?seconds=60")
        wait_until(
            lambda: b"sample_stacks" in daemon.request("GET", "/debug/pprof/threadcreate").body, "the profile has begun"
        )
        assert daemon.request("GET", "/debug/pprof/profile?seconds=60").status == 500
        assert daemon.stop() == 0
        connection.close()

    def test_tasks_threads_and_objects(self, debugged):
        assert re.match(
            r"\d+ tasks\n\nStack for <Task", debugged.request("GET", "/debug/pprof/goroutine").body.decode()
        )
        assert b"MainThread" in debugged.request("GET", "/debug/pprof/threadcreate").body
        assert re.match(
            rb"\d+ objects, \d+ more frozen, \d+ blocks\n", debugged.request("GET", "/debug/pprof/heap").body
        )

    def test_heap_by_line_when_allocations_are_traced(self, fleet):
        daemon = fleet.nsqd("nsqx", "--enable-debug-endpoints", env={"PYTHONTRACEMALLOC": "1"})
        first_line = daemon.request("GET", "/debug/pprof/heap").body.split(b"\n")[0]
        assert re.search(rb"size=.* count=\d+, average=", first_line)

    def test_free_memory(self, nsqd):
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
    def test_block_rate(self, nsqd, target, body, status, text):
        answer = nsqd.request("PUT", f"/debug/setblockrate{target}", body)
        assert (answer.status, answer.body.decode()) == (status, text)
        assert "x-nsq-content-type" not in answer.headers


class TestStatsd:
    @pytest.fixture
    def statsd(self):
        """A UDP socket that plays statsd, and its address as a flag."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.settimeout(15)
            yield listener

    def flags(self, statsd, *more):
        return (f"--statsd-address=127.0.0.1:{statsd.getsockname()[1]}", *more)

    def pushes(self, statsd, last_line="mem.gc_runs"):
        """Push after push, each the list of its packets: a push ends with the packet that has ``last_line``."""
        packets = []
        while True:
            packets.append(statsd.recv(65536).decode())
            if last_line in packets[-1]:
                yield packets
                packets = []

    def test_pushes_go_on_even_in_short_intervals(self, fleet, statsd, topic):
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

    def test_packets_are_as_large_as_allowed(self, fleet, statsd):
        daemon = fleet.nsqd(
            "nsqx", *self.flags(statsd, "--statsd-interval=50ms", "--statsd-udp-packet-size=200", "--statsd-prefix=")
        )
        for number in range(10):
            daemon.post("/topic/create", topic=f"topic_{number}")
        pushes = self.pushes(statsd)
        packets = next(packets for packets in pushes if "topic_9.depth" in "".join(packets))
        assert len(packets) > 3
        assert all(len(packet) <= 200 and packet.endswith("\n") for packet in packets)

    def test_memory_can_be_left_out(self, fleet, statsd):
        daemon = fleet.nsqd("nsqx", *self.flags(statsd, "--statsd-interval=50ms", "--statsd-mem-stats=false"))
        daemon.post("/topic/create", topic="t")
        packets = next(self.pushes(statsd, last_line="topic.t.backend_depth"))
        assert "mem." not in "".join(packets)

    @pytest.mark.parametrize("address", ["statsd.invalid:8125", "127.0.0.1", "127.0.0.1:nonsense"])
    def test_address_that_leads_nowhere_is_logged_and_no_more(self, fleet: Fleet, address):
        daemon = fleet.nsqd("nsqx", f"--statsd-address={address}", "--statsd-interval=50ms")
        daemon.wait_for_log(rf"ERROR: failed to create UDP socket to statsd\({re.escape(address)}\)")
        assert daemon.request("GET", "/ping").status == 200
        assert daemon.stop() == 0
        assert "STATSD: closing" in daemon.log

    def test_shutdown_does_not_wait_for_the_interval(self, fleet, statsd):
        daemon = fleet.nsqd("nsqx", *self.flags(statsd, "--statsd-interval=1h"))
        assert daemon.stop(timeout_s=15) == 0
        assert "STATSD: closing" in daemon.log
