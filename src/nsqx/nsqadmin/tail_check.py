"""Decides whether a topic on one nsqd can be followed without taking a message from a consumer.

A topic without channels keeps its messages for the first channel created. A tail's ephemeral channel would be that
first channel: it would take the messages and disappear with them. If another channel exists, every channel gets a copy,
so a tail takes nothing. Decodes nsqd's /stats; no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nsqx.cluster.json_fields import integer, objects, switch, text
from nsqx.names import is_ephemeral

NO_TOPIC = "Not followed, because this nsqd does not have the topic."
NO_CHANNEL = (
    "Not followed, because the topic has no channel on this nsqd: its messages wait for the first channel, and"
    " following would take them. Create a channel first."
)
EPHEMERAL_ONLY = (
    "Not followed, because the topic has only ephemeral channels on this nsqd: once they go away messages wait for the"
    " next channel, and following would take them. Create a channel that is not ephemeral first."
)


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """The number of messages that a channel received, and of those it still has: waiting, in flight or deferred."""

    message_count: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """The channels of a topic on one nsqd."""

    is_paused: bool
    channels: dict[str, ChannelCounts]

    @classmethod
    def decode(cls, topics: list[dict[str, Any]], topic: str) -> TopicState | None:
        """Decode the topic from the topics in /stats; None if it is absent; raises RequestFailed."""
        for each in topics:
            if text(each, "topic_name") == topic:
                channels = {
                    text(channel, "channel_name"): _counts(channel) for channel in objects(each, "channels") or ()
                }
                return cls(switch(each, "paused"), channels)
        return None


def _counts(channel: dict[str, Any]) -> ChannelCounts:
    unfinished = sum(integer(channel, key) for key in ("depth", "in_flight_count", "deferred_count"))
    return ChannelCounts(integer(channel, "message_count"), unfinished)


def refusal(state: TopicState | None, own_channel: str) -> str:
    """Return the reason why a tail must not subscribe, or must leave; empty if it takes nothing from a consumer."""
    if state is None:
        return NO_TOPIC
    others = [name for name in state.channels if name != own_channel]
    if any(not is_ephemeral(name) for name in others):
        return ""
    return EPHEMERAL_ONLY if others else NO_CHANNEL
