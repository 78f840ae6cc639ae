"""Connections to several nsqds are joined to consumers, with rates between two readings."""

from typing import Any

from nsqx.nsqadmin.consumer_list import ConsumerList


def client(port: int, **changes: Any) -> dict[str, Any]:
    fields = {"client_id": "worker", "hostname": "host-1", "user_agent": "shop/1", "remote_address": f"10.0.0.1:{port}"}
    counts = {"ready_count": 10, "in_flight_count": 1, "finish_count": 5, "requeue_count": 2, "message_count": 8}
    return {**fields, **counts, "connect_ts": 100 + port, "tls": False, **changes}


def topics(*clients: dict[str, Any], channel: str = "c", paused: bool = False) -> list[dict[str, Any]]:
    return [{"topic_name": "t", "channels": [{"channel_name": channel, "paused": paused, "clients": list(clients)}]}]


def test_connections_of_one_consumer_are_joined() -> None:
    reading = ConsumerList(1000.0)
    reading.add("a:1", topics(client(1), client(2, hostname="host-2")))
    reading.add("b:1", topics(client(3, tls=True), paused=True))
    reading.add("b:1", topics(client(4), channel="d"))
    first, other_host, other_channel = reading.rows()
    assert (first["topic"], first["channel"], first["hostname"]) == ("t", "c", "host-1")
    assert (first["connections"], first["nodes"], first["connected_at_s"]) == (2, ["a:1", "b:1"], 103)
    assert (first["ready_count"], first["in_flight_count"], first["finish_count"]) == (20, 2, 10)
    assert (first["paused"], first["tls"], first["finished_per_s"]) == (True, False, None)
    assert (other_host["hostname"], other_channel["channel"]) == ("host-2", "d")


def test_rates_are_those_of_connections_that_both_readings_have() -> None:
    before = ConsumerList(1000.0)
    before.add("a:1", topics(client(1, finish_count=100), client(9, finish_count=50)))
    reading = ConsumerList(1010.0, before)
    reading.add("a:1", topics(client(1, finish_count=150), client(2, finish_count=900)))
    assert [row["finished_per_s"] for row in reading.rows()] == [5]


def test_topics_without_clients() -> None:
    reading = ConsumerList(1000.0)
    reading.add("a:1", [{"topic_name": "t", "channels": [{"channel_name": "c", "clients": None}]}, {"topic_name": "u"}])
    assert reading.rows() == []
