"""The topic and the channel that an HTTP request names. A request that names none that exists gets an HTTPError."""

from typing import TYPE_CHECKING

from nsqx.errors import HTTPError
from nsqx.names import is_valid_name

if TYPE_CHECKING:
    from nsqx.net.requests import Request
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.topic import Topic


def find_topic(broker: "Broker", request: "Request") -> "Topic":
    """Return the topic; raises HTTPError if the request names none, or it does not exist."""
    name = request.query.get("topic")
    if name is None:
        raise HTTPError(400, "MISSING_ARG_TOPIC")
    topic = broker.find_topic(name)
    if topic is None:
        raise HTTPError(404, "TOPIC_NOT_FOUND")
    return topic


def find_topic_and_channel_name(broker: "Broker", request: "Request") -> "tuple[Topic, str]":
    """Return the topic, and the valid name of a channel that may not exist; raises HTTPError."""
    query = request.query
    for argument, ending in (("topic", "ARG_TOPIC"), ("channel", "ARG_CHANNEL")):
        name = query.get(argument)
        if name is None:
            raise HTTPError(400, f"MISSING_{ending}")
        if not is_valid_name(name):
            raise HTTPError(400, f"INVALID_{ending}")
    return find_topic(broker, request), query["channel"]


def find_topic_and_channel(broker: "Broker", request: "Request") -> "tuple[Topic, Channel]":
    """Return the topic and the channel; raises HTTPError if one does not exist."""
    topic, channel_name = find_topic_and_channel_name(broker, request)
    channel = topic.find_channel(channel_name)
    if channel is None:
        raise HTTPError(404, "CHANNEL_NOT_FOUND")
    return topic, channel
