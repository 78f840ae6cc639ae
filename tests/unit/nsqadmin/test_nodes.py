"""The nsqds that several nsqlookupds list."""

import random
from typing import Any

import pytest

from nsqx.cluster.node import Node
from nsqx.errors import RequestFailed
from nsqx.nsqadmin.nodes import merge, node_document, parse_version


def node(name: str, **changes: Any) -> Node:
    fields = {"hostname": name, "broadcast_address": name, "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
    return Node.decode({**fields, "remote_address": f"{name}:9", **changes})


def test_a_node_at_two_nsqlookupds_is_merged() -> None:
    merged = merge([("l1:4161", [node("b"), node("a")]), ("l2:4161", [node("a", remote_address="")])])
    assert [each.hostname for each in merged] == ["a", "b"]
    assert merged[0].remote_addresses == ["l1:4161/a:9", "l2:4161/N/A"]
    assert merged[1].remote_addresses == ["l1:4161/b:9"]


def test_old_versions_are_marked() -> None:
    versions = {"a": "1.3.0", "b": "1.2.1", "c": "1.3.0-alpha", "d": "what", "e": "1.3.0+build"}
    merged = merge([("l", [node(name, version=version) for name, version in versions.items()])])
    assert {each.hostname for each in merged if each.is_out_of_date} == {"b", "c", "d"}


def test_versions_are_compared_as_semantic_versions() -> None:
    order = [
        "nonsense",
        "0.0.1",
        "1.2.9",
        "1.2.10-alpha",
        "1.2.10-alpha.1",
        "1.2.10-beta.2",
        "1.2.10-beta.11",
        "1.2.10",
    ]
    assert sorted(random.Random(1).sample(order, len(order)), key=parse_version) == order
    assert parse_version("1.2") == parse_version("0.0.0") == parse_version("01.2.3")


def test_a_node_in_the_form_of_the_answer() -> None:
    shown = node_document(node("a", topics=["z", "b"], tombstones=[True, False], topology_zone="z1"))
    assert shown["topics"] == [{"topic": "z", "tombstoned": True}, {"topic": "b", "tombstoned": False}]
    assert shown["remote_addresses"] is None
    assert shown["topology_zone"] == "z1"
    assert "topology_region" not in shown
    assert node_document(node("a"))["topics"] is None


def test_tombstones_may_be_absent() -> None:
    assert node("a", topics=["x", "y"], tombstones=[True]).topics == [("x", True), ("y", False)]


def test_addresses_of_a_node() -> None:
    six = node("a", broadcast_address="fd00::1")
    assert (six.http_address, six.tcp_address) == ("[fd00::1]:4151", "[fd00::1]:4150")


@pytest.mark.parametrize("changes", [{"tcp_port": "x"}, {"topics": [1]}, {"hostname": []}, {"topics": "abc"}])
def test_an_invalid_node_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestFailed):
        node("a", **changes)
