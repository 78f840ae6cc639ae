"""The descriptions of nsqadmin's routes, from which /openapi.json is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast
from urllib.parse import quote

from nsqx.net.json_schema import component
from nsqx.net.openapi import (
    ANY_TYPE,
    API_DESCRIPTION,
    BEARER_TOKEN,
    HTML,
    JSON,
    OPENAPI_ROUTE,
    PONG,
    TEXT,
    APIDoc,
    Content,
    ErrorMessage,
    ErrorTable,
    Parameter,
    RouteDoc,
    build_document,
    select_errors,
)
from nsqx.nsqadmin import api_types as types
from nsqx.nsqadmin import lists_api
from nsqx.nsqadmin.access import COOKIE, Role
from nsqx.nsqadmin.log_routes import LOG_ERRORS, LOG_ROUTES
from nsqx.nsqadmin.tail import DEFAULT_BODY_LIMIT, MAX_BODY_LIMIT, MAX_PER_S, MAX_SEARCH_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqx.net.router import Route, Router
    from nsqx.nsqadmin.app import Endpoint

_NOT_EMPTY = Annotated[str, {"minLength": 1}]
_EVENTS = "text/event-stream"
_PAGE = Content("The same document for every page.", {HTML: str})
_FILE = Content("The file.", {ANY_TYPE: Any})
_NO_FILE = {404: Content("`NOT_FOUND`", {TEXT: str})}
_DONE = Content("Done on at least one daemon.", {JSON: types.ResultMessage})
_OPTION_VALUE = {TEXT: str, JSON: Any}
_INVALID_JSON = "EOF, unexpected EOF, invalid character ..., json: cannot unmarshal ..., BODY_TOO_BIG"
_SINCE = Parameter("since", "Only points after this time, in seconds since 1970.", float)
_SPAN = Parameter("span", "The seconds until now; without it, the polls of the last hour.", float)


def _page(name: str) -> RouteDoc:
    return RouteDoc(f"page{name}", "page", "Return the page", response=_PAGE)


def _file(name: str) -> RouteDoc:
    return RouteDoc(name, "page", "Return a file of the page", response=_FILE, other_responses=_NO_FILE)


def _json(schema: Any, description: str) -> Content:
    return Content(description, {JSON: schema})


_LIST_ERRORS = "INVALID_ARG_FILTER, INVALID_ARG_SORT, INVALID_ARG_LIMIT"


def _list_parameters(keys: Iterable[str], filters: Iterable[str], default: str) -> tuple[Parameter, ...]:
    return (
        Parameter("q", "Words that the names must contain.", str),
        Parameter("filter", f"One of: {', '.join(each for each in filters if each)}.", str),
        Parameter("sort", f"One of: {', '.join(keys)}; with a minus in descending order. {default} without it.", str),
        Parameter("limit", f"At most so many; {lists_api.DEFAULT_ROWS} without it, at most {lists_api.MAX_ROWS}.", int),
    )


_PAGES = {
    "GET /": _page("Index"),
    "GET /channels": _page("Channels"),
    "GET /consumers": _page("Consumers"),
    "GET /topics": _page("Topics"),
    "GET /topics/:topic": _page("Topic"),
    "GET /topics/:topic/:channel": _page("Channel"),
    "GET /alerts": _page("Alerts"),
    "GET /nodes": _page("Nodes"),
    "GET /nodes/:node": _page("Node"),
    "GET /counter": _page("Counter"),
    "GET /lookup": _page("Lookup"),
    "GET /activity": _page("Activity"),
    "GET /static/:asset": _file("staticFile"),
    "GET /fonts/:asset": _file("fontFile"),
    "GET /assets/:asset": _file("hashedFile"),
}

_NSQ_ROUTES = {
    "GET /ping": RouteDoc("ping", "health", "Check that nsqadmin is running", response=PONG),
    "GET /render": RouteDoc(
        "render",
        "graphite",
        "Forward a request to Graphite",
        "Served only with --proxy-graphite. The status is Graphite's.",
        response=Content("Graphite's response.", {ANY_TYPE: Any}),
        other_responses={502: Content("Graphite could not be reached. The response has no body.")},
    ),
    "GET /api/topics": RouteDoc(
        "topics",
        "topics",
        "List all topics",
        query=(Parameter("inactive", "`true`: only topics that no nsqd has, with their channels."),),
        response=_json(types.TopicListing, "The topics."),
        errors="invalid semicolon separator in query, invalid URL escape ..., UPSTREAM_ERROR",
    ),
    "POST /api/topics": RouteDoc(
        "createTopic",
        "topics",
        "Create a topic, and optionally a channel",
        body=_json(types.CreateBody, "The names."),
        response=_DONE,
        errors=f"INVALID_TOPIC, INVALID_CHANNEL, {_INVALID_JSON}, UPSTREAM_ERROR",
    ),
    "GET /api/topics/:topic": RouteDoc(
        "topic",
        "topics",
        "Return a topic, summed over all nsqds and on each",
        response=_json(types.TopicDocument, "The topic."),
        errors="UPSTREAM_ERROR",
    ),
    "POST /api/topics/:topic": RouteDoc(
        "actOnTopic",
        "topics",
        "Pause, unpause or empty a topic on all nsqds",
        body=_json(types.ActionBody, "The action."),
        response=_DONE,
        errors=f"INVALID_ACTION, {_INVALID_JSON}, UPSTREAM_ERROR",
    ),
    "DELETE /api/topics/:topic": RouteDoc(
        "deleteTopic", "topics", "Delete a topic on all daemons", response=_DONE, errors="UPSTREAM_ERROR"
    ),
    "GET /api/topics/:topic/:channel": RouteDoc(
        "channel",
        "channels",
        "Return a channel and its clients, summed over all nsqds and on each",
        response=_json(
            {"anyOf": [component("ChannelDocument"), {**component("ResultMessage"), "unevaluatedProperties": False}]},
            "The channel; only `message` if no nsqd has it.",
        ),
        errors="UPSTREAM_ERROR",
    ),
    "POST /api/topics/:topic/:channel": RouteDoc(
        "actOnChannel",
        "channels",
        "Pause, unpause or empty a channel on all nsqds",
        body=_json(types.ActionBody, "The action."),
        response=_DONE,
        errors=f"INVALID_ACTION, {_INVALID_JSON}, UPSTREAM_ERROR",
    ),
    "DELETE /api/topics/:topic/:channel": RouteDoc(
        "deleteChannel", "channels", "Delete a channel on all daemons", response=_DONE, errors="UPSTREAM_ERROR"
    ),
    "GET /api/nodes": RouteDoc(
        "nodes",
        "nodes",
        "List all nsqds",
        response=_json(types.NodeListing, "The nsqds."),
        errors="UPSTREAM_ERROR",
    ),
    "GET /api/nodes/:node": RouteDoc(
        "node",
        "nodes",
        "Return one nsqd and its topics",
        response=_json(types.NodeStats, "The nsqd and its topics."),
        errors="NODE_NOT_FOUND, UPSTREAM_ERROR",
    ),
    "DELETE /api/nodes/:node": RouteDoc(
        "tombstoneTopic",
        "nodes",
        "Remove a topic from one nsqd",
        "Every nsqlookupd sets a tombstone for the topic on that nsqd. Then the topic is deleted there.",
        body=_json(types.TombstoneBody, "The topic."),
        response=_DONE,
        errors="INVALID_BODY, INVALID_TOPIC, BODY_TOO_BIG, UPSTREAM_ERROR",
    ),
    "GET /api/counter": RouteDoc(
        "counter",
        "nodes",
        "Return the message count of every channel on every nsqd",
        response=_json(types.CounterDocument, "The counts."),
        errors="UPSTREAM_ERROR",
    ),
    "GET /api/graphite": RouteDoc(
        "graphiteRate",
        "graphite",
        "Return a rate from Graphite",
        query=(
            Parameter("metric", "Always `rate`.", Literal["rate"], required=True),
            Parameter("target", "The series.", required=True),
        ),
        response=_json(types.GraphiteRate, "The rate."),
        errors="INVALID_ARG_METRIC, INVALID_ARG_TARGET, INTERNAL_ERROR",
    ),
    "GET /config/:option": RouteDoc(
        "getOption",
        "configuration",
        "Return the value of an option",
        response=Content("A string as text, any other value as JSON.", _OPTION_VALUE),
        errors="INVALID_OPTION, INVALID_REMOTE_ADDR, FORBIDDEN",
    ),
    "PUT /config/:option": RouteDoc(
        "setOption",
        "configuration",
        "Change an option while nsqadmin runs",
        body=Content("The new value.", {TEXT: str}),
        response=Content("The new value, in the form of GET.", _OPTION_VALUE),
        errors="INVALID_OPTION, INVALID_VALUE, INVALID_REMOTE_ADDR, FORBIDDEN",
    ),
}

_PAGE_ROUTES = {
    "GET /api/settings": RouteDoc(
        "settings",
        "session",
        "Return the settings that the page needs first",
        response=_json(types.SettingsDocument, "The settings."),
    ),
    "POST /api/login": RouteDoc(
        "login",
        "session",
        "Exchange a token for a session cookie",
        body=_json(types.LoginBody, "The token."),
        response=_json(types.LoginResult, "The role. The header Set-Cookie holds the session."),
        errors=f"UNAUTHORIZED, {_INVALID_JSON}",
    ),
    "POST /api/logout": RouteDoc("logout", "session", "End the session", response=_json(types.ResultMessage, "Done.")),
    "GET /api/overview": RouteDoc(
        "overview",
        "live",
        "Return all topics with their recent rates",
        response=_json(types.OverviewDocument, "The overview."),
        errors="HISTORY_DISABLED",
    ),
    "GET /api/overview/channels": RouteDoc(
        "listChannels",
        "live",
        "Return the channels of all topics",
        query=_list_parameters(lists_api.CHANNEL_KEYS, lists_api.CHANNEL_FILTERS, "-matters"),
        response=_json(types.ChannelList, "The channels."),
        errors=f"HISTORY_DISABLED, {_LIST_ERRORS}",
    ),
    "GET /api/overview/consumers": RouteDoc(
        "listConsumers",
        "live",
        "Return the consumers of all channels",
        "Every nsqd is asked for its clients, at most once in a poll interval.",
        query=_list_parameters(lists_api.CONSUMER_KEYS, lists_api.CONSUMER_FILTERS, "topic"),
        response=_json(types.ConsumerListing, "The consumers."),
        errors=f"{_LIST_ERRORS}, UPSTREAM_ERROR",
    ),
    "GET /api/overview/nodes": RouteDoc(
        "listNodes",
        "live",
        "Return the numbers of every nsqd",
        response=_json(types.NodeNumbersList, "The nsqds."),
        errors="HISTORY_DISABLED",
    ),
    "GET /api/health": RouteDoc(
        "health",
        "live",
        "Return the result of the last poll of the cluster",
        response=_json(types.PollHealth, "The last poll."),
        errors="HISTORY_DISABLED",
    ),
    "GET /api/history/topics/:topic": RouteDoc(
        "topicHistory",
        "live",
        "Return the history of a topic",
        query=(_SINCE, _SPAN),
        response=_json(types.HistoryDocument, "The series."),
        errors="INVALID_ARG_SINCE, INVALID_ARG_SPAN, HISTORY_DISABLED, TOPIC_NOT_FOUND",
    ),
    "GET /api/history/topics/:topic/:channel": RouteDoc(
        "channelHistory",
        "live",
        "Return the history of a channel",
        query=(_SINCE, _SPAN),
        response=_json(types.HistoryDocument, "The series."),
        errors="INVALID_ARG_SINCE, INVALID_ARG_SPAN, HISTORY_DISABLED, TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND",
    ),
    "GET /api/stream": RouteDoc(
        "stream",
        "live",
        "Stream changes as server-sent events",
        query=(
            Parameter("topics", "`all` (the default), or the name of one topic."),
            Parameter("channel", "One channel of that topic."),
        ),
        response=Content("The events `snapshot`, `delta` and `detail`, until the client disconnects.", {_EVENTS: str}),
        errors="INVALID_TOPIC, INVALID_CHANNEL, HISTORY_DISABLED, TOO_MANY_VIEWERS",
    ),
    "GET /api/activity": RouteDoc(
        "activity",
        "live",
        "List the changes made through this nsqadmin",
        response=_json(types.ActivityDocument, "The newest 200 records, newest first."),
    ),
    "GET /api/tail/:topic": RouteDoc(
        "tail",
        "messages",
        "Stream the messages of a topic as server-sent events",
        query=(
            Parameter(
                "rate",
                f"The most messages to show per second; {MAX_PER_S} by default.",
                Annotated[int, {"minimum": 1, "maximum": MAX_PER_S}],
            ),
            Parameter(
                "limit",
                f"The most bytes of a body to show; {DEFAULT_BODY_LIMIT} by default.",
                Annotated[int, {"minimum": 1, "maximum": MAX_BODY_LIMIT}],
            ),
            Parameter(
                "sample",
                "The percentage of messages that nsqd sends; 100 by default.",
                Annotated[int, {"minimum": 2, "maximum": 100}],
            ),
            Parameter(
                "contains",
                "Only messages whose body contains this text or whose id is this text. Case is ignored. JSON escapes "
                "are decoded first.",
                Annotated[str, {"maxLength": MAX_SEARCH_LENGTH}],
            ),
        ),
        response=Content("The events `status` and `message`, until the client disconnects.", {_EVENTS: str}),
        errors="INVALID_TOPIC, INVALID_ARG_RATE, INVALID_ARG_LIMIT, INVALID_ARG_SAMPLE, INVALID_ARG_CONTAINS, "
        "MESSAGES_DISABLED, TOO_MANY_VIEWERS",
    ),
    "POST /api/publish/:topic": RouteDoc(
        "publish",
        "messages",
        "Publish a message",
        body=_json(types.PublishBody, "The message."),
        response=_json(types.PublishResult, "The nsqd that accepted the message."),
        errors=f"INVALID_TOPIC, MSG_EMPTY, INVALID_BODY, INVALID_ENCODING, INVALID_DEFER, {_INVALID_JSON}, "
        "MESSAGES_DISABLED, NODE_NOT_FOUND, UPSTREAM_ERROR",
    ),
    "POST /api/operations": RouteDoc(
        "operate",
        "operations",
        "Run an operation on all daemons or on one nsqd, and return each result",
        body=_json(types.OperationBody, "The operation."),
        response=_json(types.OperationDocument, "Done on at least one daemon."),
        errors=f"INVALID_OPERATION, INVALID_TOPIC, INVALID_CHANNEL, INVALID_NODE, {_INVALID_JSON}, TOPIC_NOT_FOUND, "
        "NODE_NOT_FOUND, UPSTREAM_ERROR",
        other_responses={
            502: _json(types.OperationDocument | ErrorMessage, "The operation failed on every daemon."),
        },
    ),
    "GET /api/alerts": RouteDoc(
        "alerts",
        "live",
        "List the alerts and their rules",
        response=_json(types.AlertsDocument, "The alerts."),
        errors="HISTORY_DISABLED",
    ),
    "GET /api/inventory": RouteDoc(
        "inventory",
        "nodes",
        "List all known nsqds, missing ones included",
        response=_json(types.InventoryDocument, "The nsqds."),
        errors="HISTORY_DISABLED",
    ),
    "POST /api/nodes/:node": RouteDoc(
        "forgetNode",
        "nodes",
        "Forget a missing nsqd",
        "An nsqd that an nsqlookupd lists or a flag names cannot be forgotten.",
        body=_json(types.ForgetBody, "The action."),
        response=_json(types.ResultMessage, "Done."),
        errors=f"INVALID_ACTION, {_INVALID_JSON}, NODE_NOT_FOUND, HISTORY_DISABLED, NODE_IS_LISTED",
    ),
    **OPENAPI_ROUTE,
}

_ERRORS: ErrorTable = {
    400: {
        "INVALID_REQUEST": "the query is malformed",
        "INVALID_TOPIC": "the topic is not a valid name",
        "INVALID_CHANNEL": "the channel is not a valid name, or the operation takes none",
        "INVALID_ACTION": "no such action",
        "INVALID_OPERATION": "no such operation",
        "INVALID_NODE": "the operation or the position needs a node",
        "INVALID_BODY": "the body does not have the expected form",
        "INVALID_ENCODING": "the encoding is neither text nor base64",
        "INVALID_DEFER": "the delay is negative or longer than 24 hours",
        "MSG_EMPTY": "the message is empty",
        "INVALID_ARG_METRIC": "the metric is not `rate`",
        "INVALID_ARG_TARGET": "the query has no target",
        "INVALID_ARG_SINCE": "not a number",
        "INVALID_ARG_FILTER": "the filter is unknown",
        "INVALID_ARG_SORT": "the order is unknown",
        "INVALID_ARG_SPAN": "not a number above 0",
        "INVALID_ARG_RATE": "not a number, or out of range",
        "INVALID_ARG_LIMIT": "not a number, or out of range",
        "INVALID_ARG_SAMPLE": "not a number, or out of range",
        "INVALID_ARG_CONTAINS": "the text is too long",
        "INVALID_OPTION": "no such option, or the option cannot be changed while nsqadmin runs",
        "INVALID_VALUE": "the option does not accept this value",
        "INVALID_REMOTE_ADDR": "the client has no IP address",
        **LOG_ERRORS[400],
        "invalid semicolon separator in query": "the query is malformed",
        "invalid URL escape ...": "the query is malformed",
        "EOF": "the body is empty",
        "unexpected EOF": "the body ends inside the JSON",
        "invalid character ...": "the body is not JSON",
        "json: cannot unmarshal ...": "the body is not an object, or a field has the wrong type",
    },
    401: {"UNAUTHORIZED": "tokens are in use, and the token or session is missing or wrong"},
    403: {
        "FORBIDDEN": "the caller's role, user or address does not permit the request",
        "CROSS_ORIGIN": "a page of another site made a browser send the request",
        "HOST_NOT_ALLOWED": "the listener does not serve this Host",
        "MESSAGES_DISABLED": "nsqadmin runs with --messages=false",
    },
    404: {
        "TOPIC_NOT_FOUND": "no such topic",
        "CHANNEL_NOT_FOUND": "no such channel",
        "NODE_NOT_FOUND": "no such nsqd",
        "HISTORY_DISABLED": "nsqadmin runs with --poll-interval=0",
    },
    409: {"NODE_IS_LISTED": "an nsqlookupd or a flag still names the nsqd"},
    413: {
        "BODY_TOO_BIG": "the body is larger than 2 MiB",
        "INVALID_VALUE": "the value is empty or larger than 1 MiB",
    },
    429: {"TOO_MANY_WRONG_TOKENS": "many wrong tokens came from the same address"},
    500: {"INTERNAL_ERROR": "Graphite did not return the rate"},
    502: {"UPSTREAM_ERROR": "every daemon failed or did not respond"},
    503: {"TOO_MANY_VIEWERS": "the limit of streams is reached"},
}

API = APIDoc(
    title="nsqadmin HTTP API",
    summary="Inspection and administration of a cluster.",
    description="The default port is 4171. API responses have the header `X-NSQ-Content-Type: nsq; version=1.0`. "
    f"{API_DESCRIPTION} A request that is not valid HTTP gets 400.",
    tags={
        "page": "The files of the page.",
        "topics": "NSQ's API: topics.",
        "channels": "NSQ's API: channels.",
        "nodes": "The nsqds of the cluster.",
        "graphite": "NSQ's API: Graphite.",
        "configuration": "Options of a running nsqadmin.",
        "session": "Tokens and cookies.",
        "live": "History and live numbers.",
        "messages": "Tails, stored messages and publishing.",
        "logs": "The logs and the settings of topics.",
        "operations": "Changes with a result for each daemon.",
        "health": "The state of nsqadmin.",
    },
    routes={**_PAGES, **_NSQ_ROUTES, **_PAGE_ROUTES, **LOG_ROUTES},
    errors=_ERRORS,
    path_parameters={
        "topic": Parameter("topic", "The topic.", _NOT_EMPTY),
        "channel": Parameter("channel", "The channel.", _NOT_EMPTY),
        "node": Parameter("node", "The broadcast address and HTTP port of an nsqd: host:port.", _NOT_EMPTY),
        "asset": Parameter("asset", "The file name.", _NOT_EMPTY),
        "option": Parameter("option", "The name with underscores.", _NOT_EMPTY),
        "PUT /config/:option": Parameter(
            "option",
            "`nsqlookupd_http_addresses` (a JSON list of host:port) or `log_level` (debug to fatal).",
            Literal["log_level", "nsqlookupd_http_addresses"],
        ),
    },
    security={
        "token": BEARER_TOKEN,
        "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "Set by POST /api/login."},
    },
)


def describe(router: Router, base_path: str) -> dict[str, Any]:
    """Return the OpenAPI document for the routes of ``router``, whose paths all begin with ``base_path``."""
    base = base_path.rstrip("/")
    routes = ((method, path.removeprefix(base) or "/", route) for method, path, route in router.routes())
    return build_document(API, routes, _refusals, quote(base) or "/")


def _refusals(_method: str, _path: str, route: Route) -> ErrorTable:
    endpoint = cast("Endpoint", route.handler)
    codes = "INVALID_REQUEST, HOST_NOT_ALLOWED, TOO_MANY_WRONG_TOKENS"
    if endpoint.role > Role.NOBODY:
        codes += ", UNAUTHORIZED"
    if endpoint.role > Role.VIEW:
        codes += ", FORBIDDEN"
    if endpoint.is_guarded:
        codes += ", CROSS_ORIGIN"
    return select_errors(_ERRORS, codes)
