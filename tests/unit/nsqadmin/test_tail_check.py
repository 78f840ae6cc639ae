"""Following a topic must not take messages from a consumer."""

import pytest

from nsqx.errors import RequestFailed
from nsqx.nsqadmin.tail_check import EPHEMERAL_ONLY, NO_CHANNEL, NO_TOPIC, ChannelCounts, TopicState, refusal

OWN = "nsqadmin-tail-1#ephemeral"


def topic_with(*channels: str) -> TopicState:
    return TopicState(False, {name: ChannelCounts(0, 0) for name in channels})


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (None, NO_TOPIC),
        (topic_with(), NO_CHANNEL),
        (topic_with(OWN), NO_CHANNEL),
        (topic_with("c#ephemeral"), EPHEMERAL_ONLY),
        (topic_with(OWN, "nsqadmin-tail-2#ephemeral"), EPHEMERAL_ONLY),
        (topic_with("c"), ""),
        (topic_with(OWN, "c"), ""),
    ],
)
def test_following_needs_another_channel_that_is_not_ephemeral(state: TopicState | None, reason: str) -> None:
    assert refusal(state, OWN) == reason


def test_the_state_of_a_topic_is_decoded() -> None:
    channel = {
        "channel_name": "c",
        "message_count": 9,
        "depth": 3,
        "in_flight_count": 2,
        "deferred_count": 1,
    }
    topics = [{"topic_name": "u"}, {"topic_name": "t", "paused": True, "channels": [channel]}]
    assert TopicState.decode(topics, "t") == TopicState(True, {"c": ChannelCounts(9, 6)})
    assert TopicState.decode(topics, "u") == TopicState(False, {})
    assert TopicState.decode(topics, "v") is None
    with pytest.raises(RequestFailed):
        TopicState.decode([{"topic_name": "t", "channels": 5}], "t")
