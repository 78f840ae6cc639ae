"""HTTP handlers in states that are hard to reach with a real daemon: exiting, failing disk, unhealthy."""

import json
from types import SimpleNamespace

import pytest

from broker_bench import Bench
from loop_turns import Progress
from nsqx.errors import BrokerExiting, ConfigError, DiskQueueError, HTTPError
from nsqx.log import INFO, WARN, Log
from nsqx.net.requests import DEFERRED
from nsqx.net.responses import StreamedResponse
from nsqx.net.steps import STEPS_PER_TURN
from nsqx.nsqd.http import NsqdAdminAPI, PublishAPI, ReportAPI, refuse_without_tls
from nsqx.nsqd.memory import MemoryMonitor
from nsqx.nsqd.options import NsqdOptions
from nsqx.nsqd.publish_options import NO_OFFSET, PublishOutcome


class RequestStandIn:
    def __init__(self, body=b"", params=None, **query):
        self.body = body
        self.query = query
        self.params = params or {}
        self.headers = {}
        self.answer = None

    def respond(self, response):
        assert self.answer is None
        self.answer = (response.status, response.body)
        self.answer_headers = response.headers


class CommitsStandIn:
    """Collects callbacks until ``write``."""

    def __init__(self):
        self._waiting = []

    def when_written(self, callback, topic):
        self._waiting.append(callback)

    def write(self, failure=None):
        for callback in self._waiting:
            callback(failure)


class BrokerStandIn:
    def __init__(self, *, exiting=False):
        self.options = NsqdOptions(max_msg_size=10, max_body_size=100)
        self.log = Log("", INFO)
        self.commits = CommitsStandIn()
        self.topics = {}
        self.published = []
        self.exiting = exiting
        self.is_healthy = True
        self.health = "OK"
        self.lookupd_addresses = None

    def find_topic(self, name):
        return self.topics.get(name)

    def topic(self, name):
        if self.exiting:
            raise BrokerExiting
        self.topics[name] = SimpleNamespace(name=name)
        return self.topics[name]

    def publish(self, topic, body, defer_ns=0):
        if self.exiting:
            raise BrokerExiting
        self.published.append((topic.name, body, defer_ns))

    def publish_many(self, topic, items, count):
        self.publish(topic, items, count)

    def publish_with(self, topic, items, count, options):
        self.publish(topic, items[4:], options.defer_ns)
        return PublishOutcome(NO_OFFSET, count)

    def channels_fetch(self, topic):
        return None

    def set_lookupd_addresses(self, addresses):
        if "bad" in addresses:
            raise ConfigError("bad address")
        self.options.nsqlookupd_tcp_addresses = addresses


def refused(handler, request):
    with pytest.raises(HTTPError) as refusal:
        handler(request)
    return refusal.value.status, refusal.value.code


class TestPublish:
    def test_a_publish_is_answered_only_when_written(self):
        broker = BrokerStandIn()
        request = RequestStandIn(b"body", topic="t")
        assert PublishAPI(broker).publish(request) is DEFERRED
        assert request.answer is None
        broker.commits.write()
        assert request.answer == (200, b"OK")
        assert broker.published == [("t", b"body", 0)]

    @pytest.mark.parametrize("handler", ["publish", "publish_many"])
    def test_a_disk_failure_is_answered_with_exiting(self, handler):
        broker = BrokerStandIn()
        request = RequestStandIn(b"body", topic="t")
        getattr(PublishAPI(broker), handler)(request)
        broker.commits.write(DiskQueueError("no space left on device"))
        assert request.answer == (503, b'{"message":"EXITING"}')
        assert ("X-Nsq-Reason", "no space left on device") in request.answer_headers

    @pytest.mark.parametrize("handler", ["publish", "publish_many"])
    def test_an_exiting_broker_creates_no_topic(self, handler):
        broker = BrokerStandIn(exiting=True)
        handler = getattr(PublishAPI(broker), handler)
        assert refused(handler, RequestStandIn(b"body", topic="t")) == (503, "EXITING")

    @pytest.mark.parametrize("handler", ["publish", "publish_many"])
    def test_an_exiting_broker_refuses_publishes(self, handler):
        broker = BrokerStandIn()
        broker.topic("t")
        broker.exiting = True
        handler = getattr(PublishAPI(broker), handler)
        assert refused(handler, RequestStandIn(b"body", topic="t")) == (503, "EXITING")

    @pytest.mark.parametrize(
        "defer", ["", "x", "-1", " 5", "1_0", "1.5", "\u0665", "3600001", "9223372036854775808", "9" * 5000]
    )
    def test_an_invalid_deferral_is_refused_after_the_topic_is_created(self, defer):
        broker = BrokerStandIn()
        assert refused(PublishAPI(broker).publish, RequestStandIn(b"body", topic="t", defer=defer)) == (
            400,
            "INVALID_DEFER",
        )
        assert list(broker.topics) == ["t"]
        assert broker.published == []

    @pytest.mark.parametrize(
        ("defer", "defer_ns"),
        [("0", 0), ("+5", 5_000_000), ("3600000", 3_600_000_000_000), ("18446744073710", 448_384)],
    )
    def test_a_deferral_is_in_milliseconds(self, defer, defer_ns):
        broker = BrokerStandIn()
        PublishAPI(broker).publish(RequestStandIn(b"body", topic="t", defer=defer))
        assert broker.published == [("t", b"body", defer_ns)]

    def test_each_line_becomes_a_message(self):
        broker = BrokerStandIn()
        PublishAPI(broker).publish_many(RequestStandIn(b"\n\na\r\n\nbc", topic="t"))
        assert broker.published == [("t", b"\0\0\0\2a\r\0\0\0\2bc", 2)]

    def test_a_body_without_lines_publishes_nothing(self):
        broker = BrokerStandIn()
        response = PublishAPI(broker).publish_many(RequestStandIn(b"\n\n", topic="t"))
        assert (response.status, response.body) == (200, b"OK")
        assert broker.published == []

    def test_one_long_line_refuses_the_whole_batch(self):
        broker = BrokerStandIn()
        request = RequestStandIn(b"a\n" + b"b" * 11, topic="t")
        assert refused(PublishAPI(broker).publish_many, request) == (413, "MSG_TOO_BIG")
        assert broker.published == []

    def test_the_count_of_a_binary_batch_decides_where_it_ends(self):
        broker = BrokerStandIn()
        request = RequestStandIn(b"\0\0\0\1\0\0\0\1atrailing", topic="t", binary="true")
        PublishAPI(broker).publish_many(request)
        assert broker.published == [("t", b"\0\0\0\1a", 1)]

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"", "BAD_BODY"),
            (b"\0\0\0", "BAD_BODY"),
            (b"\0\0\0\0", "BAD_BODY"),
            (b"\xff\xff\xff\xff", "BAD_BODY"),
            (b"\0\0\0\x14", "BAD_BODY"),
            (b"\0\0\0\1", "BAD_MESSAGE"),
            (b"\0\0\0\1\0\0\0\0", "BAD_MESSAGE"),
            (b"\0\0\0\1\0\0\0\2a", "BAD_MESSAGE"),
            (b"\0\0\0\1\0\0\0\x0b" + b"a" * 11, "BAD_MESSAGE"),
        ],
    )
    def test_an_invalid_binary_batch_is_refused(self, body, code):
        request = RequestStandIn(body, topic="t", binary="1")
        assert refused(PublishAPI(BrokerStandIn()).publish_many, request) == (413, code)

    def test_an_unknown_binary_value_counts_as_true_and_is_logged(self, capsys):
        broker = BrokerStandIn()
        PublishAPI(broker).publish_many(RequestStandIn(b"\0\0\0\1\0\0\0\1a", topic="t", binary="maybe"))
        assert broker.published == [("t", b"\0\0\0\1a", 1)]
        assert "WARNING: deprecated value 'maybe' used for /mpub binary param" in capsys.readouterr().err


class TestAdministration:
    def test_an_exiting_broker_creates_no_channel(self):
        def refuse(_name, _start):
            raise BrokerExiting

        broker = BrokerStandIn()
        broker.topic("t").channel = refuse
        request = RequestStandIn(topic="t", channel="c")
        assert refused(NsqdAdminAPI(broker).create_channel, request) == (503, "EXITING")

    def test_invalid_addresses_are_refused(self):
        request = RequestStandIn(b'["bad"]', {"option": "nsqlookupd_tcp_addresses"})
        assert refused(NsqdAdminAPI(BrokerStandIn()).set_option, request) == (400, "INVALID_VALUE")

    def test_null_removes_all_addresses(self):
        broker = BrokerStandIn()
        broker.options.nsqlookupd_tcp_addresses = ["a:1"]
        response = NsqdAdminAPI(broker).set_option(RequestStandIn(b"null", {"option": "nsqlookupd_tcp_addresses"}))
        assert (response.body, broker.options.nsqlookupd_tcp_addresses) == (b"[]", [])

    def test_log_level_is_changed_in_options_and_log(self):
        broker = BrokerStandIn()
        response = NsqdAdminAPI(broker).set_option(RequestStandIn(b"Warn", {"option": "log_level"}))
        assert response.body == b"3"
        assert (broker.options.log_level, broker.log.level) == (WARN, WARN)

    def test_a_log_level_that_is_not_text_is_refused(self):
        request = RequestStandIn(b"\xff", {"option": "log_level"})
        assert refused(NsqdAdminAPI(BrokerStandIn()).set_option, request) == (400, "INVALID_VALUE")


class TestPing:
    def test_ping_of_an_unhealthy_broker_is_500_with_the_reason(self):
        broker = BrokerStandIn()
        broker.is_healthy = False
        broker.health = "NOK - no space left on device"
        response = ReportAPI(broker, MemoryMonitor()).ping(RequestStandIn())
        assert (response.status, response.body) == (500, b"NOK - no space left on device")


class CountingDict(dict):
    """Counts the calls of ``get``."""

    count = 0

    def get(self, key, default=None):
        self.count += 1
        return super().get(key, default)


@pytest.mark.parametrize("report", ["/stats?format=json", "/stats", "/metrics"])
async def test_a_report_of_very_many_topics_is_streamed_without_blocking_the_loop(tmp_path, report):
    broker = Bench(tmp_path).broker
    for number in range(600):
        broker.topic(f"t{number:04}").channel("c")
    topics = broker.topics = CountingDict(broker.topics)
    api = ReportAPI(broker, MemoryMonitor())
    query = {"format": "json"} if "json" in report else {}

    async def read():
        response = await (api.metrics if report == "/metrics" else api.stats)(RequestStandIn(**query))
        assert isinstance(response, StreamedResponse)
        return b"".join([chunk async for chunk in response.pieces])

    progress = Progress(lambda: topics.count)
    body = (await progress.watch(read())).decode()
    assert topics.count == 600
    assert progress.longest <= STEPS_PER_TURN
    if report == "/stats?format=json":
        assert [topic["topic_name"] for topic in json.loads(body)["topics"]] == list(topics)
    assert all(name in body for name in topics)


def test_plain_requests_are_refused_with_the_https_port():
    response = refuse_without_tls(4152)(RequestStandIn())
    assert response.status == 403
    assert response.body == b'{"message": "TLS_REQUIRED", "https_port": 4152}'


async def test_the_channels_of_a_topic_are_deleted_a_few_each_turn(tmp_path):
    broker = Bench(tmp_path).broker
    topic = broker.topic("t")
    for number in range(100):
        topic.channel(f"c{number}")
    progress = Progress(lambda: 100 - len(topic.channels))
    await progress.watch(NsqdAdminAPI(broker).delete_topic(RequestStandIn(topic="t")))
    assert (broker.topics, topic.channels) == ({}, {})
    assert progress.longest <= 20
