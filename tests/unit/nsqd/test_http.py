"""HTTP handlers where a real daemon is hard to bring: a broker that exits, a disk that fails, health that is lost."""

from types import SimpleNamespace

import pytest

from broker_bench import Bench
from loop_turns import Progress
from nsqx.errors import BrokerExiting, ConfigError, DiskQueueError, HTTPError
from nsqx.log import INFO, WARN, Log
from nsqx.net.requests import DEFERRED
from nsqx.nsqd.http import NsqdAdminAPI, PublishAPI, ReportAPI, refuse_without_tls
from nsqx.nsqd.memory import MemoryMonitor
from nsqx.nsqd.options import NsqdOptions


class RequestStandIn:
    def __init__(self, body=b"", params=None, **query):
        self.body = body
        self.query = query
        self.params = params or {}
        self.answer = None

    def respond(self, response):
        assert self.answer is None
        self.answer = (response.status, response.body)


class TurnStandIn:
    """Keeps the callbacks until ``write``."""

    def __init__(self):
        self.ended = 0
        self._waiting = []

    def when_written(self, callback, topic):
        self._waiting.append(callback)

    def end(self):
        self.ended += 1

    def write(self, failure=None):
        for callback in self._waiting:
            callback(failure)


class BrokerStandIn:
    def __init__(self, *, exiting=False):
        self.options = NsqdOptions(max_msg_size=10, max_body_size=100)
        self.log = Log("", INFO)
        self.turn = TurnStandIn()
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
    def test_answers_only_when_written(self):
        broker = BrokerStandIn()
        request = RequestStandIn(b"body", topic="t")
        assert PublishAPI(broker).publish(request) is DEFERRED
        assert (request.answer, broker.turn.ended) == (None, 1)
        broker.turn.write()
        assert request.answer == (200, b"OK")
        assert broker.published == [("t", b"body", 0)]

    @pytest.mark.parametrize("handler", ["publish", "publish_many"])
    def test_disk_failure_is_answered_as_exiting(self, handler):
        broker = BrokerStandIn()
        request = RequestStandIn(b"body", topic="t")
        getattr(PublishAPI(broker), handler)(request)
        broker.turn.write(DiskQueueError("no space left on device"))
        assert request.answer == (503, b'{"message":"EXITING"}')

    @pytest.mark.parametrize("handler", ["publish", "publish_many"])
    def test_exiting_broker_makes_no_topic(self, handler):
        broker = BrokerStandIn(exiting=True)
        handler = getattr(PublishAPI(broker), handler)
        assert refused(handler, RequestStandIn(b"body", topic="t")) == (503, "EXITING")

    @pytest.mark.parametrize("handler", ["publish", "publish_many"])
    def test_exiting_broker_takes_nothing(self, handler):
        broker = BrokerStandIn()
        broker.topic("t")
        broker.exiting = True
        handler = getattr(PublishAPI(broker), handler)
        assert refused(handler, RequestStandIn(b"body", topic="t")) == (503, "EXITING")

    @pytest.mark.parametrize(
        "defer", ["", "x", "-1", " 5", "1_0", "1.5", "\u0665", "3600001", "9223372036854775808", "9" * 5000]
    )
    def test_bad_deferral_is_refused_but_the_topic_made(self, defer):
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
    def test_deferral_is_in_milliseconds(self, defer, defer_ns):
        broker = BrokerStandIn()
        PublishAPI(broker).publish(RequestStandIn(b"body", topic="t", defer=defer))
        assert broker.published == [("t", b"body", defer_ns)]

    def test_lines_become_messages(self):
        broker = BrokerStandIn()
        PublishAPI(broker).publish_many(RequestStandIn(b"\n\na\r\n\nbc", topic="t"))
        assert broker.published == [("t", b"\0\0\0\2a\r\0\0\0\2bc", 2)]

    def test_no_line_is_nothing_published(self):
        broker = BrokerStandIn()
        response = PublishAPI(broker).publish_many(RequestStandIn(b"\n\n", topic="t"))
        assert (response.status, response.body) == (200, b"OK")
        assert broker.published == []

    def test_long_line_refuses_them_all(self):
        broker = BrokerStandIn()
        request = RequestStandIn(b"a\n" + b"b" * 11, topic="t")
        assert refused(PublishAPI(broker).publish_many, request) == (413, "MSG_TOO_BIG")
        assert broker.published == []

    def test_binary_batch_ends_where_its_count_says(self):
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
    def test_broken_binary_batch(self, body, code):
        request = RequestStandIn(body, topic="t", binary="1")
        assert refused(PublishAPI(BrokerStandIn()).publish_many, request) == (413, code)

    def test_unknown_binary_value_counts_as_true_and_is_remarked_on(self, capsys):
        broker = BrokerStandIn()
        PublishAPI(broker).publish_many(RequestStandIn(b"\0\0\0\1\0\0\0\1a", topic="t", binary="maybe"))
        assert broker.published == [("t", b"\0\0\0\1a", 1)]
        assert "WARNING: deprecated value 'maybe' used for /mpub binary param" in capsys.readouterr().err


class TestAdministration:
    def test_channel_is_not_made_while_exiting(self):
        def refuse(_name):
            raise BrokerExiting

        broker = BrokerStandIn()
        broker.topic("t").channel = refuse
        request = RequestStandIn(topic="t", channel="c")
        assert refused(NsqdAdminAPI(broker).create_channel, request) == (503, "EXITING")

    def test_addresses_that_the_broker_refuses(self):
        request = RequestStandIn(b'["bad"]', {"option": "nsqlookupd_tcp_addresses"})
        assert refused(NsqdAdminAPI(BrokerStandIn()).set_option, request) == (400, "INVALID_VALUE")

    def test_null_stands_for_no_address(self):
        broker = BrokerStandIn()
        broker.options.nsqlookupd_tcp_addresses = ["a:1"]
        response = NsqdAdminAPI(broker).set_option(RequestStandIn(b"null", {"option": "nsqlookupd_tcp_addresses"}))
        assert (response.body, broker.options.nsqlookupd_tcp_addresses) == (b"[]", [])

    def test_log_level_is_changed_in_options_and_log(self):
        broker = BrokerStandIn()
        response = NsqdAdminAPI(broker).set_option(RequestStandIn(b"Warn", {"option": "log_level"}))
        assert response.body == b"3"
        assert (broker.options.log_level, broker.log.level) == (WARN, WARN)

    def test_log_level_that_is_no_text(self):
        request = RequestStandIn(b"\xff", {"option": "log_level"})
        assert refused(NsqdAdminAPI(BrokerStandIn()).set_option, request) == (400, "INVALID_VALUE")


class TestPing:
    def test_ill_health_is_500_and_says_why(self):
        broker = BrokerStandIn()
        broker.is_healthy = False
        broker.health = "NOK - no space left on device"
        response = ReportAPI(broker, MemoryMonitor()).ping(RequestStandIn())
        assert (response.status, response.body) == (500, b"NOK - no space left on device")


def test_plain_requests_are_sent_to_https():
    response = refuse_without_tls(4152)(RequestStandIn())
    assert response.status == 403
    assert response.body == b'{"message": "TLS_REQUIRED", "https_port": 4152}'


async def test_topic_with_many_channels_is_deleted_a_few_each_turn(tmp_path):
    broker = Bench(tmp_path).broker
    topic = broker.topic("t")
    for number in range(100):
        topic.channel(f"c{number}")
    progress = Progress(lambda: 100 - len(topic.channels))
    await progress.watch(NsqdAdminAPI(broker).delete_topic(RequestStandIn(topic="t")))
    assert (broker.topics, topic.channels) == ({}, {})
    assert progress.longest <= 20
