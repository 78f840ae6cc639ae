"""The descriptions of nsqadmin's routes for logs, stored messages and dead letters, for /openapi.json."""

from typing import Annotated, Any, Literal

from nsqx.net.openapi import JSON, Content, ErrorMessage, ErrorTable, Parameter, RouteDoc
from nsqx.nsqadmin import log_types as types
from nsqx.nsqadmin.stored_messages import DEFAULT_COUNT, MAX_COUNT, MAX_STORED_BODY_LIMIT, STATES
from nsqx.nsqadmin.tail import DEFAULT_BODY_LIMIT, MAX_SEARCH_LENGTH

_FIND_ERRORS = "INVALID_TOPIC, TOPIC_NOT_FOUND, UPSTREAM_ERROR"
_BODY_ERRORS = "INVALID_BODY, BODY_TOO_BIG, NODE_NOT_FOUND"
_MOVE_ERRORS = (
    f"INVALID_POSITION, INVALID_NODE, NODE_NOT_FOUND, {_FIND_ERRORS}, EOF, unexpected EOF, invalid character ..., "
    "json: cannot unmarshal ..., BODY_TOO_BIG"
)
_PAGE_ERRORS = (
    "INVALID_CHANNEL, INVALID_POSITION, INVALID_NODE, INVALID_ARG_COUNT, INVALID_ARG_LIMIT, MESSAGES_DISABLED, "
    f"NODE_NOT_FOUND, {_FIND_ERRORS}"
)
_NODE = Parameter("node", "One nsqd that has the topic; by default all of them.")
_PAGE = (
    Parameter(
        "count",
        f"The most messages of each nsqd; {DEFAULT_COUNT} by default.",
        Annotated[int, {"minimum": 1, "maximum": MAX_COUNT}],
    ),
    Parameter(
        "limit",
        f"The most bytes of a body to show; {DEFAULT_BODY_LIMIT} by default.",
        Annotated[int, {"minimum": 1, "maximum": MAX_STORED_BODY_LIMIT}],
    ),
)


def _json(schema: Any, description: str) -> Content:
    return Content(description, {JSON: schema})


def _changed(schema: Any) -> dict[str, Any]:
    return {
        "response": _json(schema, "Done on at least one nsqd, or the effect if `dry_run` is true."),
        "other_responses": {502: _json(schema | ErrorMessage, "The change failed on every nsqd.")},
    }


LOG_ROUTES = {
    "GET /api/log/:topic": RouteDoc(
        "topicLog",
        "logs",
        "Return the log and the settings of a topic on each nsqd",
        response=_json(types.TopicLogDocument, "The logs."),
        errors=_FIND_ERRORS,
    ),
    "PUT /api/config/:topic": RouteDoc(
        "configureTopic",
        "logs",
        "Change settings of a topic",
        body=_json(types.ConfigBody, "The settings."),
        errors=f"INVALID_SETTINGS, {_BODY_ERRORS}, {_FIND_ERRORS}",
        **_changed(types.ConfigDocument),
    ),
    "GET /api/config/:topic/:channel": RouteDoc(
        "channelConfig",
        "logs",
        "Return the settings of a channel on each nsqd",
        response=_json(types.ChannelConfigDocument, "The settings."),
        errors=f"INVALID_CHANNEL, {_FIND_ERRORS}",
    ),
    "PUT /api/config/:topic/:channel": RouteDoc(
        "configureChannel",
        "logs",
        "Change settings of a channel",
        body=_json(types.ConfigBody, "The settings."),
        errors=f"INVALID_CHANNEL, INVALID_SETTINGS, {_BODY_ERRORS}, {_FIND_ERRORS}",
        **_changed(types.ConfigDocument),
    ),
    "POST /api/seek/:topic/:channel": RouteDoc(
        "seek",
        "logs",
        "Move a channel to a position in the log, or show the effect",
        body=_json(types.SeekBody, "The position."),
        errors=f"INVALID_CHANNEL, {_MOVE_ERRORS}",
        **_changed(types.SeekDocument),
    ),
    "POST /api/trim/:topic": RouteDoc(
        "trim",
        "logs",
        "Drop the messages before a position for all channels, or show the effect",
        body=_json(types.TrimBody, "The position."),
        errors=_MOVE_ERRORS,
        **_changed(types.TrimDocument),
    ),
    "GET /api/browse/:topic": RouteDoc(
        "browse",
        "messages",
        "Return stored messages of a topic",
        "Reading changes nothing on the nsqds. At most one of `offset`, `time`, `id`, `last` and `skip` says where to "
        "begin; without one it is the first message. `offset` and `skip` need `node`.",
        query=(
            _NODE,
            Parameter("channel", "Only the unfinished messages of this channel."),
            Parameter("state", "Only messages in this state.", Literal[STATES]),
            Parameter("offset", "The first offset.", int),
            Parameter("time", "RFC 3339, nanoseconds since 1970, or a duration before now such as `-1h`."),
            Parameter("id", "The ID of one message."),
            Parameter("last", "The number of messages at the end of the log.", int),
            Parameter("skip", "For a topic without a log: the number of messages to skip.", int),
            Parameter(
                "contains",
                "Only messages whose body contains this text. Case is ignored.",
                Annotated[str, {"maxLength": MAX_SEARCH_LENGTH}],
            ),
            *_PAGE,
        ),
        response=_json(types.BrowseDocument, "The messages. A node that failed has a code and an error."),
        errors=f"INVALID_ARG_STATE, INVALID_ARG_CONTAINS, {_PAGE_ERRORS}",
    ),
    "GET /api/dead/:topic": RouteDoc(
        "deadLetters",
        "messages",
        "Return the dead letters of a topic",
        query=(
            _NODE,
            Parameter("channel", "Only those that this channel has failed."),
            Parameter("offset", "The first offset in the dead-letter topic. Needs `node`.", int),
            *_PAGE,
        ),
        response=_json(types.DeadLetterDocument, "The letters. A node that failed has a code and an error."),
        errors=_PAGE_ERRORS,
    ),
    "POST /api/dead/:topic": RouteDoc(
        "actOnDeadLetters",
        "operations",
        "Redrive or purge dead letters",
        "A redriven letter goes back to the channel that failed it, with no attempts. A purged letter is deleted.",
        body=_json(types.DeadLetterBody, "The action and the letters."),
        response=_json(types.DeadLetterOutcomes, "Done on at least one nsqd."),
        errors=f"INVALID_ACTION, INVALID_CHANNEL, INVALID_LETTERS, {_BODY_ERRORS}, {_FIND_ERRORS}",
        other_responses={502: _json(types.DeadLetterOutcomes | ErrorMessage, "The action failed on every nsqd.")},
    ),
}

LOG_ERRORS: ErrorTable = {
    400: {
        "INVALID_POSITION": "the position is missing, or there is more than one",
        "INVALID_SETTINGS": "`settings` is not an object of texts, integers and nulls",
        "INVALID_LETTERS": "`letters` is not a list of 1 to 1000 objects with a node and an offset",
        "INVALID_ARG_COUNT": "not a number, or out of range",
        "INVALID_ARG_STATE": "no such state",
    },
}
