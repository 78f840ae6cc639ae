"""The descriptions of the routes for logs: seek, offsets, peek, trim. Part of nsqd's OpenAPI document."""

from typing import Annotated, Literal

from nsqx.net.openapi import BINARY, JSON, NAME, Content, Parameter, RouteDoc
from nsqx.nsqd.log_api import OffsetsAnswer, SeekAnswer, TimeAnswer
from nsqx.nsqd.log_read_api import DEFAULT_READ_BYTES, MAX_READ_BYTES, CommitAnswer, CreateAnswer
from nsqx.nsqd.peek import MAX_BYTES, MAX_COUNT, MAX_SKIP, PeekAnswer
from nsqx.nsqd.retention_api import TrimAnswer

_TOPIC = Parameter("topic", "The topic.", NAME, required=True)
_CHANNEL = Parameter("channel", "The channel.", NAME, required=True)
_TIMES = "RFC 3339, nanoseconds since 1970 (16 digits or more), or a duration before now such as `-1h`"
_POSITIONS = f"`beginning`, `end`, an offset, or a time: {_TIMES}. A time after the last message is the end."
_TOPIC_ERRORS = "MISSING_ARG_TOPIC, TOPIC_NOT_FOUND"
_CHANNEL_ERRORS = (
    "MISSING_ARG_TOPIC, INVALID_ARG_TOPIC, MISSING_ARG_CHANNEL, INVALID_ARG_CHANNEL, TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND"
)

_OFFSET = Annotated[int, {"minimum": 0}]
_LOG_ID = Parameter(
    "log",
    "The id of the log, from `/log/offsets`: another log of the topic is refused.",
    Annotated[str, {"pattern": "^[0-9a-f]{16}$"}],
    required=True,
)
_LOG_ERRORS = "NOT_A_LOG, MISSING_ARG_LOG, INVALID_LOG, LOG_CHANGED"

START = Parameter("start", f"Where a new channel of a log topic begins: {_POSITIONS}")
START_ERRORS = "INVALID_START, NOT_A_LOG, OFFSET_GONE, OFFSET_BEYOND_END, READ_FAILED"

LOG_ROUTES = {
    "POST /channel/seek": RouteDoc(
        "seekChannel",
        "logs",
        "Move a channel of a log topic to a position",
        "Messages in flight, requeued messages and those that the channel has deferred are forgotten. The response is "
        "sent when the new position is durable. A dry run changes nothing.",
        query=(
            _TOPIC,
            _CHANNEL,
            Parameter("to", f"The new position: {_POSITIONS}", required=True),
            Parameter("dry_run", "`true` or `1`: only return what the request would do.", Literal["true", "false"]),
        ),
        response=Content("The positions and the numbers of messages before and after.", {JSON: SeekAnswer}),
        errors=f"{_CHANNEL_ERRORS}, MISSING_ARG_TO, INVALID_POSITION, INVALID_DRY_RUN, NOT_A_LOG, CONVERTING, "
        "OFFSET_GONE, OFFSET_BEYOND_END, READ_FAILED, EXITING",
    ),
    "GET /log/offsets": RouteDoc(
        "logOffsets",
        "logs",
        "Return the offsets of topic logs and of their channels",
        query=(
            Parameter("topic", "Only this topic; may be repeated. Without it, all log topics.", NAME),
            Parameter(
                "wait",
                "At most how long to wait until the offset `stable` of one of the topics is greater than `from`, such "
                "as `5s`; at most 5 minutes.",
            ),
            Parameter("from", "With `wait`: an offset, or one for each topic in the order of the topics.", _OFFSET),
            Parameter(
                "sync",
                "`true` or `1`: make durable what is written, which matters for topics with `durability=write`.",
                Literal["true", "false"],
            ),
        ),
        response=Content("The offsets.", {JSON: OffsetsAnswer}),
        errors=f"{_TOPIC_ERRORS}, NOT_A_LOG, INVALID_WAIT, INVALID_FROM, INVALID_SYNC, READ_FAILED",
    ),
    "GET /log/at": RouteDoc(
        "logOffsetAt",
        "logs",
        "Find the first message at or after a time",
        query=(_TOPIC, Parameter("time", f"The time: {_TIMES}.", required=True)),
        response=Content("The offset and the time of the message.", {JSON: TimeAnswer}),
        errors=f"{_TOPIC_ERRORS}, MISSING_ARG_TIME, INVALID_TIME, NOT_A_LOG, NO_SUCH_TIME, READ_FAILED",
    ),
}

LOG_ROUTES["GET /log/read"] = RouteDoc(
    "readLog",
    "logs",
    "Return the messages of a range of offsets as raw batches",
    "The body has whole batches as they are on disk, from the one that contains `from` on. It may also have batches "
    "and other bytes before and after the range, which the reader ignores. The header `X-Nsq-Next` says where to "
    "continue. A large range is sent in several answers.",
    query=(
        _TOPIC,
        _LOG_ID,
        Parameter("from", "The first offset.", _OFFSET, required=True),
        Parameter("to", "The offset after the last one; not above `stable`.", _OFFSET, required=True),
        Parameter(
            "max_bytes",
            f"The approximate size of the answer; {DEFAULT_READ_BYTES} by default.",
            Annotated[int, {"minimum": 1, "maximum": MAX_READ_BYTES}],
        ),
        Parameter("channel", "The header `X-Nsq-Channel` has the number of this channel.", NAME),
    ),
    response=Content(
        "Batches. `X-Nsq-Log` and `X-Nsq-First-Id` are the ids of the log and of the message at offset 0. The heads "
        "of the batches are checked with the seed of the segment that begins at `X-Nsq-Segment`. `X-Nsq-First` is the "
        "first offset in the body, `X-Nsq-Next` the first one that is not in the answer, and `X-Nsq-Last` the end of "
        "the last message before it.",
        {BINARY: Annotated[str, {"format": "binary"}]},
    ),
    errors=f"{_CHANNEL_ERRORS}, {_LOG_ERRORS}, MISSING_ARG_FROM, MISSING_ARG_TO, INVALID_FROM, INVALID_TO, "
    "INVALID_MAX_BYTES, OFFSET_GONE, OFFSET_BEYOND_END, READ_FAILED",
)

LOG_ROUTES["POST /channel/commit"] = RouteDoc(
    "commitChannel",
    "logs",
    "Finish every message before an offset for a channel",
    "For readers that keep their own position and use `/log/read`. The position never goes back: a lower offset "
    "changes nothing. The response is sent when the position is durable.",
    query=(_TOPIC, _CHANNEL, _LOG_ID, Parameter("offset", "The first unfinished offset.", _OFFSET, required=True)),
    response=Content("The positions before and after.", {JSON: CommitAnswer}),
    errors=f"{_CHANNEL_ERRORS}, {_LOG_ERRORS}, MISSING_ARG_OFFSET, INVALID_OFFSET, OFFSET_BEYOND_END, CONVERTING, "
    "EXITING",
)

CREATE_ANSWER = CreateAnswer

LOG_ROUTES["POST /log/trim"] = RouteDoc(
    "trimLog",
    "logs",
    "Drop the oldest messages of a log topic",
    "Messages before the position are dropped for all channels, finished or not. The response is sent when that is "
    "durable. The next checkpoint removes the segments that have no other messages. A dry run changes nothing.",
    query=(
        _TOPIC,
        Parameter("before", f"The first message that stays: {_POSITIONS}", required=True),
        Parameter("dry_run", "`true` or `1`: only return what the request would do.", Literal["true", "false"]),
    ),
    response=Content("What was dropped.", {JSON: TrimAnswer}),
    errors=f"{_TOPIC_ERRORS}, MISSING_ARG_BEFORE, INVALID_POSITION, INVALID_DRY_RUN, NOT_A_LOG, OFFSET_GONE, "
    "OFFSET_BEYOND_END, READ_FAILED, EXITING",
)

_PLACES = (
    Parameter("offset", "Log topics: the messages from this offset on.", Annotated[int, {"minimum": 0}]),
    Parameter("time", f"Log topics: the messages from this time on: {_TIMES}."),
    Parameter("id", "The message with this id: 16 hexadecimal digits."),
    Parameter("last", "Log topics: the last messages, at most this many.", Annotated[int, {"minimum": 1}]),
    Parameter(
        "skip",
        "Classic topics: leave out this many messages.",
        Annotated[int, {"minimum": 0, "maximum": MAX_SKIP}],
    ),
)

LOG_ROUTES["GET /peek"] = RouteDoc(
    "peek",
    "logs",
    "Show messages without consuming them",
    "Without `channel`, the messages of the log, or those that wait in a classic topic. With `channel`, the messages "
    "that the channel has not finished. At most one of `offset`, `time`, `id`, `last` and `skip` can be given. A "
    "request looks at up to 100,000 messages or 64 MiB; `complete` is then false, and the next request continues at "
    "`next`. No request changes what consumers get.",
    query=(
        _TOPIC,
        Parameter("channel", "Only the messages that this channel has not finished.", NAME),
        *_PLACES,
        Parameter("count", "At most this many messages.", Annotated[int, {"minimum": 1, "maximum": MAX_COUNT}]),
        Parameter(
            "max_bytes",
            "The size of all bodies in the answer; a larger body is cut.",
            Annotated[int, {"minimum": 1, "maximum": MAX_BYTES}],
        ),
        Parameter("contains", "Only messages whose body contains this text. Ignores case and decodes JSON escapes."),
        Parameter("state", "Only messages in this state.", Literal["waiting", "in_flight", "deferred"]),
    ),
    response=Content("The messages.", {JSON: PeekAnswer}),
    errors=f"{_CHANNEL_ERRORS}, NOT_A_LOG, CONFLICTING_ARGS, INVALID_OFFSET, INVALID_TIME, INVALID_ID, INVALID_LAST, "
    "INVALID_SKIP, INVALID_COUNT, INVALID_MAX_BYTES, INVALID_STATE, OFFSET_GONE, OFFSET_BEYOND_END, READ_FAILED",
)

LOG_ERRORS: dict[int, dict[str, str]] = {
    400: {
        "NOT_A_LOG": "the topic has the classic store",
        "MISSING_ARG_TO": "the query has no position, or no end of the range",
        "MISSING_ARG_BEFORE": "the query has no position",
        "MISSING_ARG_TIME": "the query has no time",
        "INVALID_POSITION": "`to` is not `beginning`, `end`, an offset or a time",
        "INVALID_START": "`start` is not `beginning`, `end`, an offset or a time",
        "INVALID_DRY_RUN": "`dry_run` is not `true`, `1`, `false` or `0`",
        "INVALID_TIME": "the time has none of the accepted forms",
        "INVALID_WAIT": "`wait` is not a duration between 0 and 5 minutes",
        "INVALID_OFFSET": "`offset` is not a number of at most 18 digits",
        "INVALID_ID": "the id is not 16 hexadecimal digits",
        "INVALID_LAST": "`last` is not a positive number",
        "INVALID_SKIP": "`skip` is not a number up to 1,000,000, or the topic has a log",
        "INVALID_COUNT": "`count` is not a number between 1 and 1,000",
        "INVALID_MAX_BYTES": "`max_bytes` is not a number between 1 and 16,777,216 (`/log/read`: 67,108,864)",
        "INVALID_STATE": "`state` is not `waiting`, `in_flight` or `deferred`",
        "CONFLICTING_ARGS": "more than one of `offset`, `time`, `id`, `last` and `skip` is given",
        "INVALID_FROM": "`from` is missing or is not an offset, or there is not one for each topic",
        "INVALID_SYNC": "`sync` is not `true`, `1`, `false` or `0`",
        "MISSING_ARG_LOG": "the query has no id of a log",
        "INVALID_LOG": "the id of the log is not 16 hexadecimal digits",
        "MISSING_ARG_FROM": "the query has no first offset",
        "INVALID_TO": "`to` is not an offset after `from`",
        "MISSING_ARG_OFFSET": "the query has no offset",
    },
    404: {"NO_SUCH_TIME": "the log has no message at or after the time"},
    409: {"LOG_CHANGED": "the topic has another log: it was deleted and created again"},
    410: {"OFFSET_GONE": "the messages before the offset `first` were removed"},
    416: {"OFFSET_BEYOND_END": "the log ends at the offset `end`, or what is durable at the offset `stable`"},
    503: {"READ_FAILED": "the files of the log could not be read; nsqd's log has the reason"},
}
