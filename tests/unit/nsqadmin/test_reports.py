"""The statistics of several nodes are summed as in Go."""

from typing import Any

import pytest

from nsqx.errors import RequestFailed
from nsqx.nsqadmin.reports import ChannelReport, Latency, NodePlace, TopicReport

A = NodePlace("a:4151", "host-a")
B = NodePlace("b:4151", "host-b", "zone-1", "region-1")
NOW_S = 1000


def client(name: str, **changes: Any) -> dict[str, Any]:
    return {"client_id": name, "hostname": name, "connect_ts": 990, "version": "V2", **changes}


def channel(name: str = "c", **changes: Any) -> dict[str, Any]:
    latency = {"count": 0, "percentiles": None}
    return {"channel_name": name, "depth": 5, "backend_depth": 2, "e2e_processing_latency": latency, **changes}


def topic(*channels: dict[str, Any], **changes: Any) -> dict[str, Any]:
    latency = {"count": 0, "percentiles": None}
    return {"topic_name": "t", "channels": list(channels), "e2e_processing_latency": latency, **changes}


def decode(place: NodePlace, document: dict[str, Any]) -> TopicReport:
    return TopicReport.decode(document, place, NOW_S)


def test_the_report_of_one_node() -> None:
    stats = decode(A, topic(channel(clients=[client("x")], paused=True), depth=7, backend_depth=3)).document()
    assert (stats["node"], stats["hostname"], stats["nodes"]) == ("a:4151", "host-a", None)
    assert (stats["depth"], stats["memory_depth"], stats["backend_depth"]) == (7, 4, 3)
    each = stats["channels"][0]
    assert (each["topic_name"], each["memory_depth"], each["paused"], each["nodes"]) == ("t", 3, True, None)
    assert each["clients"][0]["node"] == "a:4151"
    assert each["clients"][0]["connected"] == 10 * 10**9
    assert each["e2e_processing_latency"] == {"count": 0, "percentiles": None, "topic": "", "channel": "", "host": ""}


def test_nodes_are_added_and_sorted_by_host() -> None:
    total = TopicReport("t")
    total.add(decode(B, topic(depth=3, message_count=2, paused=True)))
    total.add(decode(A, topic(depth=4, message_count=5)))
    shown = total.document()
    assert (shown["node"], shown["depth"], shown["message_count"], shown["paused"]) == ("*", 7, 7, True)
    assert [node["hostname"] for node in shown["nodes"]] == ["host-a", "host-b"]
    assert shown["channels"] is None
    assert shown["e2e_processing_latency"]["host"] == "*"


def test_only_a_node_with_a_log_shows_one() -> None:
    total = TopicReport("t")
    total.add(decode(A, topic(log={"store": "log", "durability": "write", "id": "1f", "end": 9, "bytes": 4096})))
    total.add(decode(B, topic()))
    shown = total.document()
    log, classic = (node.get("log") for node in shown["nodes"])
    assert log is not None
    assert (log["store"], log["durability"], log["id"], log["end"], log["bytes"]) == ("log", "write", "1f", 9, 4096)
    assert (log["first"], log["segments"], classic) == (0, 0, None)
    assert "log" not in shown


def test_only_a_channel_on_one_node_shows_its_cursor() -> None:
    total = ChannelReport("x", "t", "c")
    total.add(ChannelReport.decode(channel(cursor={"floor": 3, "next": 5, "holes": 1, "dead": 2}), "t", A, NOW_S))
    total.add(ChannelReport.decode(channel(), "t", B, NOW_S))
    shown = total.document()
    assert [node.get("cursor") for node in shown["nodes"]] == [{"floor": 3, "next": 5, "holes": 1}, None]
    assert "cursor" not in shown
    topics = TopicReport("t")
    for place in (A, B):
        topics.add(decode(place, topic(channel(cursor={"floor": 3, "next": 5, "holes": 1}))))
    assert "cursor" not in topics.document()["channels"][0]


def test_the_first_nodes_channels_become_the_topics_own() -> None:
    """As in Go, the sum replaces the first node's entry and lists only the nodes after it."""
    total = TopicReport("t")
    total.add(decode(A, topic(channel("c", depth=1), channel("only-a"))))
    total.add(decode(B, topic(channel("c", depth=2), channel("only-b"))))
    shown = total.document()
    assert [each["channel_name"] for each in shown["channels"]] == ["c", "only-a", "only-b"]
    assert (shown["channels"][0]["depth"], shown["channels"][0]["node"]) == (3, "*")
    assert [node["hostname"] for node in shown["channels"][0]["nodes"]] == ["host-b"]
    assert shown["nodes"][0]["channels"][0] == shown["channels"][0]


def test_clients_of_all_nodes_are_listed() -> None:
    total = ChannelReport("x", "t", "c")
    for place, names in ((A, ("z", "m")), (B, ("a",))):
        total.add(ChannelReport.decode(channel(clients=[client(name) for name in names]), "t", place, NOW_S))
    shown = total.document()
    assert [each["hostname"] for each in shown["clients"]] == ["a", "m", "z"]
    assert shown["clients"][0]["node_topology_zone"] == "zone-1"
    assert "node_topology_zone" not in shown["clients"][1]
    assert len(shown["nodes"][0]["clients"]) == 2


def test_empty_lists_are_null() -> None:
    total = ChannelReport("x", "t", "c")
    assert total.document()["clients"] is None
    total.add(ChannelReport.decode(channel(clients=[]), "t", A, NOW_S))
    shown = total.document()
    assert shown["clients"] is None
    assert shown["nodes"][0]["clients"] == []
    assert ChannelReport.decode(channel(clients=None), "t", A, NOW_S).document()["clients"] is None


def test_counts_by_zone_appear_if_nsqd_reports_them() -> None:
    plain = decode(A, topic(channel())).document()
    assert "delivery_msg_count" not in plain
    assert "delivery_msg_count" not in plain["channels"][0]
    counted = decode(A, topic(channel(zone_local_msg_count=3, global_msg_count=4))).document()
    assert counted["channels"][0]["delivery_msg_count"] == 7
    assert counted["channels"][0]["zone_local_msg_count"] == 3
    assert "region_local_msg_count" not in counted["channels"][0]
    assert counted["delivery_msg_count"] == 7


def percentile(quantile: float, value: float) -> dict[str, float]:
    return {"quantile": quantile, "value": value}


def test_the_latency_of_one_node() -> None:
    latency = Latency.decode({"count": 4, "percentiles": [percentile(0.99, 10.0)]})
    assert latency is not None
    assert latency.document()["percentiles"] == [
        {"average": 10, "count": 4, "max": 10, "min": 10, "quantile": 0.99, "value": 10}
    ]
    assert Latency.decode(None) is None


def test_latencies_are_averaged_by_count() -> None:
    total = Latency(topic="t")
    total.add(Latency.decode({"count": 1, "percentiles": [percentile(0.5, 10), percentile(0.99, 20)]}))
    total.add(Latency.decode({"count": 3, "percentiles": [percentile(0.5, 50)]}))
    total.add(Latency.decode({"count": 0, "percentiles": [percentile(0.1, 50)]}))
    total.add(None)
    shown = total.document()
    assert (shown["count"], shown["host"], shown["topic"]) == (4, "*", "t")
    # The minimum is that of the last node, as in Go.
    assert shown["percentiles"] == [
        {"average": 40, "count": 4, "max": 50, "min": 50, "quantile": 0.5},
        {"average": 20, "count": 1, "max": 20, "min": 20, "quantile": 0.99},
        {"average": 0, "count": 0, "max": 50, "min": 50, "quantile": 0.1},
    ]


@pytest.mark.parametrize(
    "document",
    [
        {"topic_name": 5},
        {"topic_name": "t", "depth": "many"},
        {"topic_name": "t", "depth": True},
        {"topic_name": "t", "depth": 1.5},
        {"topic_name": "t", "paused": 1},
        {"topic_name": "t", "channels": {}},
        {"topic_name": "t", "channels": [5]},
        {"topic_name": "t", "e2e_processing_latency": []},
        {"topic_name": "t", "e2e_processing_latency": {"percentiles": [{"value": "x"}]}},
        {"topic_name": "t", "channels": [{"clients": ["x"]}]},
    ],
)
def test_invalid_stats_raise_request_failed(document: dict[str, Any]) -> None:
    with pytest.raises(RequestFailed, match="json: "):
        decode(A, document)
