"""The descriptions of the routes for dead letters and cancelled messages. Part of nsqd's OpenAPI document."""

from typing import Annotated

from nsqx.net.openapi import JSON, NAME, Content, Parameter, RouteDoc
from nsqx.nsqd.dead_api import CancelAnswer, DeadAnswer, PurgeAnswer, RedriveAnswer

_TOPIC = Parameter("topic", "The source topic: the one that the messages were published to.", NAME, required=True)
_CHANNEL = Parameter("channel", "Only letters of this channel of the source topic.", NAME)
_OFFSET = Annotated[int, {"minimum": 0}]
_OFFSETS = Parameter("offset", "Only the letter at this offset of the dead-letter topic. Can be repeated.", _OFFSET)
_COUNT = Parameter("count", "At most so many letters, the oldest first.", Annotated[int, {"minimum": 1}])
_ERRORS = (
    "MISSING_ARG_TOPIC, INVALID_ARG_TOPIC, INVALID_ARG_CHANNEL, INVALID_OFFSET, INVALID_COUNT, NOT_A_LOG, "
    "NO_DEAD_LETTERS, EXITING"
)

DEAD_ROUTES = {
    "GET /dead": RouteDoc(
        "deadLetters",
        "dead letters",
        "Return the dead letters of a topic",
        "Nothing is consumed. A page of a log begins at `offset`, one of a classic topic after `skip` letters.",
        query=(
            _TOPIC,
            _CHANNEL,
            Parameter("offset", "Begin at this offset of the dead-letter topic.", _OFFSET),
            Parameter("skip", "Leave out the first letters of a classic topic.", Annotated[int, {"minimum": 0}]),
            Parameter("count", "At most so many letters.", Annotated[int, {"minimum": 1, "maximum": 1000}]),
            Parameter(
                "max_bytes", "At most so many bytes of bodies.", Annotated[int, {"minimum": 1, "maximum": 16 << 20}]
            ),
        ),
        response=Content("The letters.", {JSON: DeadAnswer}),
        errors=f"{_ERRORS}, INVALID_MAX_BYTES, INVALID_SKIP",
    ),
    "POST /dead/redrive": RouteDoc(
        "redriveDeadLetters",
        "dead letters",
        "Deliver dead letters again to the channel that failed",
        "A letter goes to that channel only, with attempts 0, and leaves the channel `dead`. Letters that a consumer "
        "has in flight stay. `channel` is required for letters without an origin. The response is sent when the "
        "letters are durable.",
        query=(_TOPIC, _CHANNEL, _OFFSETS, _COUNT),
        response=Content("The letters are redriven.", {JSON: RedriveAnswer}),
        errors=f"{_ERRORS}, TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND, MISSING_ARG_CHANNEL",
    ),
    "POST /dead/purge": RouteDoc(
        "purgeDeadLetters",
        "dead letters",
        "Discard dead letters",
        "Letters that a consumer has in flight stay, and with `channel` those without an origin.",
        query=(_TOPIC, _CHANNEL, _OFFSETS, _COUNT),
        response=Content("The letters are discarded.", {JSON: PurgeAnswer}),
        errors=_ERRORS,
    ),
    "POST /log/cancel": RouteDoc(
        "cancelDeferred",
        "dead letters",
        "Discard a deferred message of a log topic",
        "Without `channel`, a message that was published with a delay and is not due. With `channel`, a message that "
        "this channel has requeued with a delay. The response is sent when that is durable.",
        query=(
            Parameter("topic", "The topic.", NAME, required=True),
            Parameter("channel", "The channel that has requeued the message.", NAME),
            Parameter("offset", "The offset of the message. Either `offset` or `id` is required.", _OFFSET),
            Parameter("id", "The message id.", Annotated[str, {"pattern": "^[0-9a-f]{16}$"}]),
        ),
        response=Content("The message is discarded.", {JSON: CancelAnswer}),
        errors="MISSING_ARG_TOPIC, INVALID_ARG_TOPIC, INVALID_ARG_CHANNEL, MISSING_ARG_OFFSET, INVALID_OFFSET, "
        "INVALID_ID, NOT_A_LOG, TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND, NOT_DEFERRED, EXITING",
    ),
}

DEAD_ERRORS = {
    400: {
        "INVALID_OFFSET": "the offset is not a number, or there are too many",
        "INVALID_COUNT": "the count is not a number in its limits",
        "INVALID_MAX_BYTES": "max_bytes is not a number in its limits",
        "INVALID_SKIP": "`skip` is not a number up to 1,000,000, or the dead-letter topic has a log",
        "INVALID_ID": "the message id is not 16 hexadecimal digits",
        "MISSING_ARG_OFFSET": "the query has neither offset nor id",
        "NOT_A_LOG": "the topic has the classic store",
    },
    404: {
        "NO_DEAD_LETTERS": "the topic has no dead-letter topic, or it does not exist",
        "NOT_DEFERRED": "no such message is deferred",
    },
}
