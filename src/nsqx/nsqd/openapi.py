"""The descriptions of nsqd's routes, from which /openapi.json is generated."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from nsqx.net.openapi import (
    BEARER_TOKEN,
    BINARY,
    DAEMON_DESCRIPTION,
    HTML,
    JSON,
    METRICS_PAGE,
    NAME,
    OPENAPI_ROUTE,
    PONG,
    TEXT,
    APIDoc,
    Content,
    Parameter,
    RouteDoc,
    build_document,
    daemon_refusals,
)
from nsqx.net.router import Router
from nsqx.nsqd.dead_openapi import DEAD_ERRORS, DEAD_ROUTES
from nsqx.nsqd.debug import DEFAULT_PROFILE_S, MAX_PROFILE_S
from nsqx.nsqd.drain_openapi import DRAIN_ROUTES
from nsqx.nsqd.http import route_group
from nsqx.nsqd.log_openapi import CREATE_ANSWER, LOG_ERRORS, LOG_ROUTES, START, START_ERRORS
from nsqx.nsqd.memory import MemoryStats
from nsqx.nsqd.node_stats import NodeNumbers
from nsqx.nsqd.stats import ClientStats, TopicStats
from nsqx.nsqd.topic_config_api import ChannelConfigAnswer, TopicConfigAnswer
from nsqx.nsqd.transaction_openapi import TRANSACTION_ERRORS, TRANSACTION_ROUTES
from nsqx.nsqd.transaction_stats import TransactionStats


class NsqdStats(TypedDict):
    """The response of /stats with format=json. Lists that Go leaves unset are null."""

    version: str
    health: Annotated[str, "`OK`, or `NOK - ` and the reason."]
    start_time: Annotated[int, "Seconds since 1970."]
    topics: list[TopicStats] | None
    memory: NotRequired[MemoryStats]
    node: NodeNumbers
    transactions: NotRequired[TransactionStats]
    producers: list[ClientStats] | None


class NsqdInfo(TypedDict):
    """The response of /info. Durations are nanoseconds."""

    version: str
    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    start_time: Annotated[int, "Seconds since 1970."]
    max_heartbeat_interval: int
    max_output_buffer_size: int
    max_output_buffer_timeout: int
    max_deflate_level: int
    topology_zone: str
    topology_region: str
    broker_id: Annotated[str, "The identity of this nsqd, kept across restarts and address changes; empty if unset."]
    nsqx_version: Annotated[str, "The version of nsqx; `version` is the version of NSQ that it is compatible with."]


class ConvertAnswer(TypedDict):
    """The store of a topic."""

    topic: str
    store: Annotated[str, "`classic` or `log`."]


_TOPIC = Parameter("topic", "The topic.", NAME, required=True)
_CHANNEL = Parameter("channel", "The channel.", NAME, required=True)
_DEFER = Parameter(
    "defer",
    "Milliseconds to hold the message back in every channel, at most --max-req-timeout (1 hour by default).",
    Annotated[int, {"minimum": 0}],
)
_OPTION = Parameter(
    "option", "The name with underscores, as in a configuration file.", Annotated[str, {"minLength": 1}]
)
_SETTABLE_OPTION = Parameter(
    "option",
    "`nsqlookupd_tcp_addresses` (a JSON list of host:port) or `log_level` (debug, info, warn, error or fatal).",
    Literal["log_level", "nsqlookupd_tcp_addresses"],
)
_BYTES = {"type": "string", "format": "binary"}
_OPTION_VALUE = {TEXT: str, JSON: Any}
_TOPIC_ERRORS = "MISSING_ARG_TOPIC, TOPIC_NOT_FOUND"
_NAME_ERRORS = "MISSING_ARG_TOPIC, INVALID_ARG_TOPIC, MISSING_ARG_CHANNEL, INVALID_ARG_CHANNEL, TOPIC_NOT_FOUND"
_CHANNEL_ERRORS = f"{_NAME_ERRORS}, CHANNEL_NOT_FOUND"
_REPORT = Content("The report.", {TEXT: str})
_WITH_PPROF = "Served only with --enable-debug-endpoints."
_SAVED = "The response is sent when the new state is on disk."


_PRODUCER = (
    Parameter(
        "producer",
        "The name of a producer that numbers its publishes, with `seq`: 1 to 64 of a-z A-Z 0-9 . _ -. Log topics only.",
    ),
    Parameter(
        "seq",
        "The number of this publish. If the topic has a publish of the producer with this number or a higher one, the "
        "messages are not stored again.",
        int,
    ),
)
_TTL = Parameter("ttl", "Do not deliver the message any more after this time, such as `30s`. Log topics only.")
_PRODUCER_ERRORS = "INVALID_PRODUCER, INVALID_SEQ, INVALID_TTL, NOT_A_LOG"
_RESULT_HEADERS = (
    "With `producer` or `defer`, the answer of a log topic has the header `X-Nsq-Offset`, the offset of the first "
    "message. `X-Nsq-Duplicate: true` says that the messages were stored before."
)


_PUBLISHING = {
    "POST /pub": RouteDoc(
        "publish",
        "publishing",
        "Publish a message",
        query=(_TOPIC, _DEFER, *_PRODUCER, _TTL),
        body=Content("The message, at least one byte.", {BINARY: _BYTES}),
        response=Content(
            "The message is in memory, or on disk as --sync-every demands. A log topic answers when the message is "
            f"durable. {_RESULT_HEADERS}",
            {TEXT: Literal["OK"]},
        ),
        errors=f"MSG_EMPTY, MISSING_ARG_TOPIC, INVALID_TOPIC, INVALID_DEFER, {_PRODUCER_ERRORS}, EXITING",
    ),
    "POST /mpub": RouteDoc(
        "publishMany",
        "publishing",
        "Publish several messages at once",
        query=(
            _TOPIC,
            Parameter("binary", "`false`, `0` or absent: one message per line. Any other value: binary form."),
            *_PRODUCER,
            _TTL,
        ),
        body=Content(
            "One message per line; empty lines are ignored. In binary form, the body of an MPUB command: an int32 "
            "count, then an int32 size and the bytes of each message, all big-endian.",
            {BINARY: _BYTES},
        ),
        response=Content(f"All messages are accepted. {_RESULT_HEADERS}", {TEXT: Literal["OK"]}),
        errors=f"MISSING_ARG_TOPIC, INVALID_TOPIC, MSG_TOO_BIG, BAD_BODY, BAD_MESSAGE, {_PRODUCER_ERRORS}, "
        "TOO_MANY_MESSAGES, EXITING",
    ),
}

_HEALTH = {
    "GET /ping": RouteDoc(
        "ping",
        "health",
        "Check the health of nsqd",
        response=PONG,
        other_responses={
            500: Content("`NOK - ` and the reason, for example a disk that cannot be written.", {TEXT: str})
        },
    ),
    "GET /ready": RouteDoc(
        "ready",
        "health",
        "Check whether publishers can be sent to nsqd",
        response=PONG,
        other_responses={503: Content("`NOK - draining`, or the answer of `/ping` if nsqd is unhealthy.", {TEXT: str})},
    ),
    "GET /info": RouteDoc(
        "info",
        "health",
        "Return addresses, version and limits",
        response=Content("Addresses, version and limits.", {JSON: NsqdInfo}),
    ),
    "GET /stats": RouteDoc(
        "stats",
        "health",
        "Return statistics of topics, channels and clients",
        query=(
            Parameter("format", "`json` for JSON, any other value for text."),
            Parameter("topic", "Only this topic."),
            Parameter("channel", "Only this channel."),
            Parameter("include_clients", "`false` or `0` leaves out the clients."),
            Parameter("include_mem", "`false` or `0` leaves out the memory statistics."),
        ),
        response=Content("JSON with format=json, otherwise text.", {JSON: NsqdStats, TEXT: str}),
    ),
    "GET /metrics": RouteDoc("metrics", "health", "Return the metrics for Prometheus", response=METRICS_PAGE),
    **OPENAPI_ROUTE,
}

_TOPICS = {
    "POST /topic/create": RouteDoc(
        "createTopic",
        "topics",
        "Create a topic",
        "An existing topic is not an error. For a new topic, the response is sent when the channels that nsqlookupd "
        "lists for it exist.",
        query=(_TOPIC,),
        errors="MISSING_ARG_TOPIC, INVALID_TOPIC, EXITING",
    ),
    "POST /topic/delete": RouteDoc(
        "deleteTopic",
        "topics",
        "Delete a topic with its channels and messages",
        query=(_TOPIC,),
        errors=_TOPIC_ERRORS,
    ),
    "POST /topic/empty": RouteDoc(
        "emptyTopic",
        "topics",
        "Drop the messages in the topic's own queue",
        "Messages in its channels stay.",
        query=(_TOPIC,),
        errors=f"{_TOPIC_ERRORS}, INVALID_TOPIC",
    ),
    "POST /topic/convert": RouteDoc(
        "convertTopic",
        "topics",
        "Convert a topic to another store",
        "Its consumers are disconnected. Publishes go to the new store from now on, and the messages of the old store "
        "are moved in the background. /stats shows `converting` until the end. The chosen store wins over the "
        "configuration, also after a restart.",
        query=(_TOPIC, Parameter("store", "The new store.", Literal["classic", "log"], required=True)),
        response=Content("The topic has this store already. It is kept after a restart.", {JSON: ConvertAnswer}),
        other_responses={202: Content("The conversion has begun.", {JSON: ConvertAnswer})},
        errors=f"{_TOPIC_ERRORS}, MISSING_ARG_STORE, INVALID_STORE, EPHEMERAL_TOPIC, CONVERTING, EXITING",
    ),
    "POST /topic/pause": RouteDoc(
        "pauseTopic",
        "topics",
        "Pause a topic",
        f"New messages stay in the topic and do not reach its channels. {_SAVED}",
        query=(_TOPIC,),
        errors=_TOPIC_ERRORS,
    ),
    "POST /topic/unpause": RouteDoc(
        "unpauseTopic",
        "topics",
        "Unpause a topic",
        f"Messages reach its channels again. {_SAVED}",
        query=(_TOPIC,),
        errors=_TOPIC_ERRORS,
    ),
}

_CHANNELS = {
    "POST /channel/create": RouteDoc(
        "createChannel",
        "channels",
        "Create a channel",
        "An existing channel is not an error, and stays where it is. The topic must exist. The response has a body "
        "only with `start`.",
        query=(_TOPIC, _CHANNEL, START),
        response=Content("The position of the channel, new or not.", {JSON: CREATE_ANSWER}),
        errors=f"{_NAME_ERRORS}, {START_ERRORS}, EXITING",
    ),
    "POST /channel/delete": RouteDoc(
        "deleteChannel",
        "channels",
        "Delete a channel with its messages",
        "Its clients are disconnected.",
        query=(_TOPIC, _CHANNEL),
        errors=_CHANNEL_ERRORS,
    ),
    "POST /channel/empty": RouteDoc(
        "emptyChannel",
        "channels",
        "Drop all messages of a channel",
        "Messages in flight and deferred messages are dropped too.",
        query=(_TOPIC, _CHANNEL),
        errors=_CHANNEL_ERRORS,
    ),
    "POST /channel/pause": RouteDoc(
        "pauseChannel",
        "channels",
        "Pause a channel",
        f"Its clients receive no messages. {_SAVED}",
        query=(_TOPIC, _CHANNEL),
        errors=_CHANNEL_ERRORS,
    ),
    "POST /channel/unpause": RouteDoc(
        "unpauseChannel",
        "channels",
        "Unpause a channel",
        f"Its clients receive messages again. {_SAVED}",
        query=(_TOPIC, _CHANNEL),
        errors=_CHANNEL_ERRORS,
    ),
}

_SETTINGS_BODY = Content(
    "The settings to change, as a JSON object. null restores the value of the configuration.", {JSON: dict[str, Any]}
)
_SETTINGS_ERRORS = "INVALID_BODY, INVALID_OPTION, INVALID_VALUE"

_CONFIGURATION = {
    "GET /topic/config": RouteDoc(
        "getTopicConfig",
        "configuration",
        "Return the settings of a topic",
        query=(_TOPIC,),
        response=Content("The settings. Durations are text such as `72h0m0s`.", {JSON: TopicConfigAnswer}),
        errors=_TOPIC_ERRORS,
    ),
    "PUT /topic/config": RouteDoc(
        "setTopicConfig",
        "configuration",
        "Change settings of a topic",
        f"They win over the configuration, also after a restart. {_SAVED}",
        query=(_TOPIC,),
        body=_SETTINGS_BODY,
        response=Content("All settings.", {JSON: TopicConfigAnswer}),
        errors=f"{_TOPIC_ERRORS}, {_SETTINGS_ERRORS}",
    ),
    "GET /channel/config": RouteDoc(
        "getChannelConfig",
        "configuration",
        "Return the settings of a channel",
        query=(_TOPIC, _CHANNEL),
        response=Content("The settings.", {JSON: ChannelConfigAnswer}),
        errors=_CHANNEL_ERRORS,
    ),
    "PUT /channel/config": RouteDoc(
        "setChannelConfig",
        "configuration",
        "Change settings of a channel",
        f"The settings are `max_attempts` and `dead_letter`. They win over those of the topic. {_SAVED}",
        query=(_TOPIC, _CHANNEL),
        body=_SETTINGS_BODY,
        response=Content("All settings.", {JSON: ChannelConfigAnswer}),
        errors=f"{_CHANNEL_ERRORS}, {_SETTINGS_ERRORS}",
    ),
    "GET /config/:option": RouteDoc(
        "getOption",
        "configuration",
        "Return the value of an option",
        response=Content("A string as text, any other value as JSON. Durations are nanoseconds.", _OPTION_VALUE),
        errors="INVALID_OPTION",
    ),
    "PUT /config/:option": RouteDoc(
        "setOption",
        "configuration",
        "Change an option while nsqd runs",
        body=Content("The new value.", {TEXT: str}),
        response=Content("The new value, in the form of GET.", _OPTION_VALUE),
        errors="INVALID_OPTION, INVALID_VALUE",
    ),
}

_DEBUG = {
    "POST /debug/freememory": RouteDoc("freeMemory", "debug", "Run a garbage collection"),
    "PUT /debug/setblockrate": RouteDoc(
        "setBlockRate",
        "debug",
        "Accept the block profile rate of Go's nsqd",
        "The rate has no effect.",
        query=(Parameter("rate", "An integer. The body may hold it as a form field instead.", int),),
        other_responses={400: Content("The rate is not an integer.", {TEXT: str})},
    ),
    "GET /debug/pprof/": RouteDoc(
        "pprofIndex", "debug", "List the reports", _WITH_PPROF, response=Content("Links to the reports.", {HTML: str})
    ),
    "GET /debug/pprof/cmdline": RouteDoc(
        "pprofCmdline", "debug", "Return the command line", _WITH_PPROF, response=_REPORT
    ),
    "GET /debug/pprof/goroutine": RouteDoc(
        "pprofGoroutine", "debug", "List the asyncio tasks and where each waits", _WITH_PPROF, response=_REPORT
    ),
    "GET /debug/pprof/heap": RouteDoc("pprofHeap", "debug", "Report the use of memory", _WITH_PPROF, response=_REPORT),
    "GET /debug/pprof/profile": RouteDoc(
        "pprofProfile",
        "debug",
        "Sample the stacks of all threads",
        f"The response has the collapsed form that flame graph tools read. {_WITH_PPROF}",
        query=(
            Parameter("seconds", f"The duration: {DEFAULT_PROFILE_S:g} by default, at most {MAX_PROFILE_S:g}.", float),
        ),
        response=_REPORT,
        other_responses={500: Content("Another profile is being taken.", {TEXT: str})},
    ),
    "GET /debug/pprof/threadcreate": RouteDoc(
        "pprofThreadcreate", "debug", "List the threads and their stacks", _WITH_PPROF, response=_REPORT
    ),
}


API = APIDoc(
    title="nsqd HTTP API",
    summary="Publishing, administration and statistics of nsqd.",
    description="The default port is 4151. API responses have the header `X-NSQ-Content-Type: nsq; version=1.0`. "
    + DAEMON_DESCRIPTION,
    tags={
        "publishing": "Publishing of messages.",
        "health": "The state of nsqd.",
        "topics": "Administration of topics.",
        "channels": "Administration of channels.",
        "logs": "Positions in topic logs, and the messages of topics and channels.",
        "dead letters": "Messages that reached the attempt limit, and deferred messages.",
        "transactions": "Batches of messages that are stored together, and once.",
        "draining": "Removing an nsqd without losing its messages.",
        "configuration": "Options of a running nsqd.",
        "debug": "Reports for debugging.",
    },
    routes={
        **_PUBLISHING,
        **_HEALTH,
        **_TOPICS,
        **_CHANNELS,
        **LOG_ROUTES,
        **DEAD_ROUTES,
        **DRAIN_ROUTES,
        **TRANSACTION_ROUTES,
        **_CONFIGURATION,
        **_DEBUG,
    },
    errors={
        400: {
            "MSG_EMPTY": "the body is empty",
            "MISSING_ARG_TOPIC": "the query has no topic",
            "INVALID_TOPIC": "the topic is not a valid name",
            "INVALID_ARG_TOPIC": "the topic is not a valid name",
            "MISSING_ARG_CHANNEL": "the query has no channel",
            "INVALID_ARG_CHANNEL": "the channel is not a valid name",
            "MISSING_ARG_STORE": "the query has no store",
            "INVALID_STORE": "the store is not `classic` or `log`",
            "EPHEMERAL_TOPIC": "ephemeral topics always have the classic store",
            "INVALID_PRODUCER": "the producer is missing or not a valid name",
            "INVALID_SEQ": "the number is missing, or is not an integer from 1 to 2^62 - 1",
            "INVALID_TTL": "the time to live is not a positive duration, such as `30s`",
            "NOT_A_LOG": "the topic is classic, and the request needs a log topic",
            "INVALID_DEFER": "the delay is not an integer, negative or longer than --max-req-timeout",
            "INVALID_STAY_REGISTERED": "the value is not true or false",
            "INVALID_BODY": "the body is not a JSON object",
            "INVALID_OPTION": "no such option or setting, or it cannot be changed",
            "INVALID_VALUE": "the option or setting does not accept this value",
            **LOG_ERRORS[400],
            **DEAD_ERRORS[400],
            **TRANSACTION_ERRORS[400],
        },
        404: {
            "TOPIC_NOT_FOUND": "the topic does not exist",
            "CHANNEL_NOT_FOUND": "the channel does not exist",
            **LOG_ERRORS[404],
            **DEAD_ERRORS[404],
            **TRANSACTION_ERRORS[404],
        },
        409: {
            "CONVERTING": "messages of the topic are being moved to another store already",
            **LOG_ERRORS[409],
            **TRANSACTION_ERRORS[409],
        },
        410: LOG_ERRORS[410],
        413: {
            "MSG_TOO_BIG": "a message is larger than --max-msg-size",
            "TOO_MANY_MESSAGES": "a publish with a producer has more than 20000 messages",
            "BAD_BODY": "the message count of a binary body is missing or invalid",
            "BAD_MESSAGE": "a message of a binary body is empty, cut off or larger than --max-msg-size",
            "INVALID_VALUE": "the value is empty",
            **TRANSACTION_ERRORS[413],
        },
        416: LOG_ERRORS[416],
        503: {"EXITING": "nsqd is stopping or draining, or the data could not be written to disk", **LOG_ERRORS[503]},
    },
    path_parameters={"option": _OPTION, "PUT /config/:option": _SETTABLE_OPTION},
    security={"token": BEARER_TOKEN},
)


def describe(router: Router) -> dict[str, Any]:
    """Return the OpenAPI document for the routes of ``router``."""
    return build_document(API, router.routes(), daemon_refusals(route_group))
