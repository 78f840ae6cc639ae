"""HTTP handlers with fake requests: the large answers, changes while they are encoded, and /metrics."""

import asyncio
import io
import json

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nsqx.errors import HTTPError
from nsqx.log import INFO, Log
from nsqx.net import steps
from nsqx.nsqlookupd.http import LookupdAdminAPI, LookupdQueryAPI
from nsqx.nsqlookupd.lookupd import Lookupd
from nsqx.nsqlookupd.options import NsqlookupdOptions
from nsqx.nsqlookupd.registry import Peer
from nsqx.wire.lookup import Announcement

NEVER = -6795364578871345152


class RequestStandIn:
    def __init__(self, headers=None, **query):
        self.query = query
        self.headers = headers or {}


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def lookupd(stream):
    return Lookupd(NsqlookupdOptions(), Log("", INFO, stream))


@pytest.fixture
def api(lookupd):
    return LookupdQueryAPI(lookupd)


def join(lookupd, number, *names):
    peer = Peer(f"127.0.0.1:{number}", Announcement(f"host{number}", 4150, 4151, "1.3.0", "name", "zone", "region"))
    lookupd.registry.identify(peer)
    for name in names:
        lookupd.registry.register(peer, *name.split("/"))
    return peer


def content(response):
    assert response.status == 200
    assert response.content_type == "application/json; charset=utf-8"
    return json.loads(response.body)


class TestLookup:
    def test_lookup_lists_producers_and_channels(self, lookupd, api):
        join(lookupd, 1, "t/ch")
        assert content(api.lookup(RequestStandIn(topic="t"))) == {
            "channels": ["ch"],
            "producers": [
                {
                    "remote_address": "127.0.0.1:1",
                    "hostname": "name",
                    "broadcast_address": "host1",
                    "tcp_port": 4150,
                    "http_port": 4151,
                    "version": "1.3.0",
                    "topology_zone": "zone",
                    "topology_region": "region",
                }
            ],
        }

    def test_lookup_of_a_topic_without_producers(self, lookupd, api):
        lookupd.registry.create_topic("t")
        assert api.lookup(RequestStandIn(topic="t")).body == b'{"channels":[],"producers":[]}'

    @pytest.mark.parametrize(
        ("query", "status", "code"), [({}, 400, "MISSING_ARG_TOPIC"), ({"topic": "x"}, 404, "TOPIC_NOT_FOUND")]
    )
    def test_an_invalid_lookup_is_rejected(self, api, query, status, code):
        with pytest.raises(HTTPError) as refusal:
            api.lookup(RequestStandIn(**query))
        assert (refusal.value.status, refusal.value.code) == (status, code)


class TestNodes:
    async def test_nodes_lists_topics_and_tombstones(self, lookupd, api):
        join(lookupd, 1, "a", "b/ch")
        join(lookupd, 2)
        lookupd.registry.tombstone("b", "host1:4151")
        one, two = content(await api.nodes(RequestStandIn()))["producers"]
        assert (one["topics"], one["tombstones"]) == (["a", "b"], [False, True])
        assert (two["topics"], two["tombstones"]) == ([], [])
        assert list(one)[-3:] == ["topology_region", "tombstones", "topics"]

    async def test_a_peer_that_disconnects_meanwhile_is_omitted(self, lookupd, api, monkeypatch):
        """The answer is encoded in slices; a peer that disconnects in between is omitted."""
        monkeypatch.setattr(steps, "TURN_NS", 0)
        peers = [join(lookupd, number, "t") for number in range(4)]
        writing = asyncio.ensure_future(api.nodes(RequestStandIn()))
        for _ in range(3):  # a turn of the scheduler takes two of the loop
            await asyncio.sleep(0)
        lookupd.registry.leave(peers[0])
        lookupd.registry.leave(peers[2])
        join(lookupd, 9, "t")
        nodes = content(await writing)["producers"]
        assert [node["broadcast_address"] for node in nodes] == ["host0", "host1", "host3"]


class TestDebug:
    async def test_debug_lists_registrations_with_producers(self, lookupd, api):
        peer = join(lookupd, 1, "t/ch")
        lookupd.registry.create_topic("empty")
        lookupd.registry.tombstone("t", "host1:4151")
        entries = content(await api.debug(RequestStandIn()))
        assert list(entries) == ["channel:t:ch", "client::", "topic:t:"]
        (client,), (topic,) = entries["client::"], entries["topic:t:"]
        assert (client["tombstoned"], client["tombstoned_at"]) == (False, NEVER)
        assert topic["tombstoned"] is True
        assert topic["tombstoned_at"] > 0
        assert client["last_update"] == peer.last_update_ns
        assert list(client) == sorted(client)

    async def test_debug_of_an_empty_registry(self, api):
        assert (await api.debug(RequestStandIn())).body == b"{}"

    async def test_debug_survives_changes_meanwhile(self, lookupd, api, monkeypatch):
        monkeypatch.setattr(steps, "TURN_NS", 0)
        peer = join(lookupd, 1, "a", "b", "c")
        writing = asyncio.ensure_future(api.debug(RequestStandIn()))
        await asyncio.sleep(0)
        lookupd.registry.leave(peer)
        lookupd.registry.delete_topic("*")
        assert content(await writing) == {}


def test_a_forged_tombstone_is_quoted_in_the_log(lookupd, stream):
    LookupdAdminAPI(lookupd).tombstone(RequestStandIn(topic="t\nforged", node="n\x1b"))
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith('producer@"n\\x1b" of topic("t\\nforged")\n')


@pytest.mark.parametrize("openmetrics", [False, True])
def test_metrics_report_the_state(lookupd, api, openmetrics):
    peer = join(lookupd, 1, "a/c1", "a/c2", "b")
    join(lookupd, 2)
    peer.last_ping_ns -= 10**15
    lookupd.counts.registrations = 7
    api.lookup(RequestStandIn(topic="a"))
    accept = b"application/openmetrics-text; version=1.0.0" if openmetrics else b"*/*"
    page = api.metrics(RequestStandIn({b"accept": accept}))
    assert page.content_type.startswith("application/openmetrics-text" if openmetrics else "text/plain")
    families = (parse_openmetrics if openmetrics else parse_text)(page.body.decode())
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    ours = {name: value for name, value in samples.items() if name.startswith("nsqlookupd_")}
    assert ours == {
        "nsqlookupd_info": 1,
        "nsqlookupd_topics": 2,
        "nsqlookupd_channels": 2,
        "nsqlookupd_producers": 2,
        "nsqlookupd_inactive_producers": 1,
        "nsqlookupd_connected_peers": 0,
        "nsqlookupd_connections_total": 0,
        "nsqlookupd_registrations_total": 7,
        "nsqlookupd_unregistrations_total": 0,
        "nsqlookupd_pings_total": 0,
        "nsqlookupd_lookups_total": 1,
    }
    assert "process_resident_memory_bytes" in samples
