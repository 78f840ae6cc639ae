"""/topic/config and /channel/config: the settings of topics and channels over HTTP."""

from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import orjson

from nsqx.errors import ConfigError, HTTPError
from nsqx.net.responses import Response, json_response
from nsqx.nsqd.request_targets import find_topic, find_topic_and_channel
from nsqx.nsqd.topic_settings import settings_document

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from nsqx.net.requests import Request
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.topic import Topic


class TopicConfigAnswer(TypedDict):
    """The settings of a topic."""

    topic: str
    store: Annotated[str, "`classic` or `log`."]
    settings: Annotated[dict[str, Any], "The values in use. A classic topic has only those that apply to it."]
    changed: Annotated[list[str], "The settings that were set over HTTP. Others are those of the configuration."]


class ChannelConfigAnswer(TypedDict):
    """The settings of a channel."""

    topic: str
    channel: str
    settings: Annotated[dict[str, Any], "The values in use."]
    changed: Annotated[list[str], "The settings that the channel has for itself. Others are those of the topic."]


class TopicConfigAPI:
    """Reads and changes settings. A change is answered when it survives a crash."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def get_topic(self, request: "Request") -> Response:
        """Answer with the settings of a topic."""
        return json_response(self._topic_document(find_topic(self._broker, request)))

    def set_topic(self, request: "Request") -> "Awaitable[Response]":
        """Change settings of a topic; answers with all of them."""
        topic = find_topic(self._broker, request)
        self._change(topic, request.body)
        return self._topic_saved(topic)

    def get_channel(self, request: "Request") -> Response:
        """Answer with the settings of a channel."""
        return json_response(self._channel_document(*find_topic_and_channel(self._broker, request)))

    def set_channel(self, request: "Request") -> "Awaitable[Response]":
        """Change settings of a channel; answers with all of them."""
        topic, channel = find_topic_and_channel(self._broker, request)
        self._change(topic, request.body, channel.name)
        return self._channel_saved(topic, channel)

    def _change(self, topic: "Topic", body: bytes, channel_name: str = "") -> None:
        try:
            values = orjson.loads(body)
        except orjson.JSONDecodeError:
            values = None
        if not isinstance(values, dict):
            raise HTTPError(400, "INVALID_BODY")
        try:
            self._broker.configs.change(topic, values, channel_name)
        except KeyError:
            raise HTTPError(400, "INVALID_OPTION") from None
        except ConfigError:
            raise HTTPError(400, "INVALID_VALUE") from None

    async def _topic_saved(self, topic: "Topic") -> Response:
        await self._broker.saved(topic)
        return json_response(self._topic_document(topic))

    async def _channel_saved(self, topic: "Topic", channel: "Channel") -> Response:
        await self._broker.saved(topic)
        return json_response(self._channel_document(topic, channel))

    def _topic_document(self, topic: "Topic") -> TopicConfigAnswer:
        return {
            "topic": topic.name,
            "store": topic.settings.store,
            "settings": settings_document(topic.settings),
            "changed": self._broker.configs.changed_names(topic.name),
        }

    def _channel_document(self, topic: "Topic", channel: "Channel") -> ChannelConfigAnswer:
        return {
            "topic": topic.name,
            "channel": channel.name,
            "settings": {"max_attempts": channel.max_attempts, "dead_letter": channel.dead_letter},
            "changed": self._broker.configs.changed_names(topic.name, channel.name),
        }
