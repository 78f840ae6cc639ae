"""The names and request paths of operations. tests/integration covers their targets with real daemons."""

import pytest

from nsqx.nsqadmin.operations import ClusterOperation


@pytest.mark.parametrize(
    ("operation", "paths"),
    [
        (ClusterOperation("pause", "t"), ("topic/pause?topic=t",)),
        (ClusterOperation("empty", "t#ephemeral", "c"), ("channel/empty?topic=t%23ephemeral&channel=c",)),
        (ClusterOperation("create", "t"), ("topic/create?topic=t",)),
        (ClusterOperation("create", "t", "c"), ("topic/create?topic=t", "channel/create?topic=t&channel=c")),
        (ClusterOperation("delete", "t", "c"), ("channel/delete?topic=t&channel=c",)),
    ],
)
def test_the_request_paths_of_an_operation(operation: ClusterOperation, paths: tuple[str, ...]) -> None:
    assert operation.paths == paths


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
