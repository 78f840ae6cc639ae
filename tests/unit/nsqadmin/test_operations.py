"""The names and changes of operations. tests/integration covers their targets with real daemons."""

import pytest

from nsqx.cluster.daemon import Change
from nsqx.nsqadmin.operations import ClusterOperation


@pytest.mark.parametrize(
    ("operation", "changes"),
    [
        (ClusterOperation("pause", "t"), [Change("pause", "t")]),
        (ClusterOperation("empty", "t#ephemeral", "c"), [Change("empty", "t#ephemeral", "c")]),
        (ClusterOperation("create", "t"), [Change("create", "t")]),
        (ClusterOperation("create", "t", "c"), [Change("create", "t"), Change("create", "t", "c")]),
        (ClusterOperation("delete", "t", "c"), [Change("delete", "t", "c")]),
    ],
)
def test_the_changes_of_an_operation(operation: ClusterOperation, changes: list[Change]) -> None:
    assert list(operation.changes) == changes


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (ClusterOperation("unpause", "t"), "unpause_topic"),
        (ClusterOperation("unpause", "t", "c"), "unpause_channel"),
        (ClusterOperation("tombstone", "t", node="n:1"), "tombstone_topic_producer"),
    ],
)
def test_names_are_those_of_nsq(operation: ClusterOperation, name: str) -> None:
    assert operation.action.name == name
    assert operation.action.node == operation.node
