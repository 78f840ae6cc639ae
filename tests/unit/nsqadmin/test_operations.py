"""What an operation is called and asks for; where it goes is tested with real daemons."""

import pytest

from nsqx.nsqadmin.operations import Operation


@pytest.mark.parametrize(
    ("operation", "paths"),
    [
        (Operation("pause", "t"), ("topic/pause?topic=t",)),
        (Operation("empty", "t#ephemeral", "c"), ("channel/empty?topic=t%23ephemeral&channel=c",)),
        (Operation("create", "t"), ("topic/create?topic=t",)),
        (Operation("create", "t", "c"), ("topic/create?topic=t", "channel/create?topic=t&channel=c")),
        (Operation("delete", "t", "c"), ("channel/delete?topic=t&channel=c",)),
    ],
)
def test_paths(operation: Operation, paths: tuple[str, ...]) -> None:
    assert operation.paths == paths


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (Operation("unpause", "t"), "unpause_topic"),
        (Operation("unpause", "t", "c"), "unpause_channel"),
        (Operation("tombstone", "t", node="n:1"), "tombstone_topic_producer"),
    ],
)
def test_names_are_those_of_nsq(operation: Operation, name: str) -> None:
    assert operation.action.name == name
    assert operation.action.node == operation.node
