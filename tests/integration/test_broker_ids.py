"""The broker id identifies an nsqd independently of its address."""

from __future__ import annotations

import json

from rawclient import RawClient, identify


def broker_ids(daemon):
    """Return the broker ids in the response to IDENTIFY and in /info."""
    with RawClient(daemon.tcp_address) as client:
        client.send(identify(feature_negotiation=True))
        granted = json.loads(client.read_frame().data)
    return granted["broker_id"], daemon.request("GET", "/info").json()["broker_id"]


def test_the_broker_id_survives_a_crash_and_a_new_address(fleet, tmp_path):
    first = fleet.nsqd("nsqx", data_path=tmp_path)
    over_tcp, over_http = broker_ids(first)
    assert over_tcp == over_http
    first.kill()
    second = fleet.nsqd("nsqx", data_path=tmp_path)
    assert second.tcp_address != first.tcp_address
    assert broker_ids(second) == (over_tcp, over_tcp)


def test_brokers_with_the_same_node_id_have_different_broker_ids(fleet):
    pair = [fleet.nsqd("nsqx", "--node-id=7") for _ in range(2)]
    assert broker_ids(pair[0]) != broker_ids(pair[1])
