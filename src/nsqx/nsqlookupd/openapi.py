"""The descriptions of nsqlookupd's routes, from which /openapi.json is generated."""

from typing import Any, TypedDict

from nsqx.net.openapi import (
    BEARER_TOKEN,
    DAEMON_DESCRIPTION,
    JSON,
    METRICS_PAGE,
    NAME,
    OPENAPI_ROUTE,
    PONG,
    APIDoc,
    Content,
    Parameter,
    RouteDoc,
    build_document,
    daemon_refusals,
)
from nsqx.net.router import Router
from nsqx.nsqlookupd.http import route_group


class VersionInfo(TypedDict):
    """The response of /info."""

    version: str


class TopicNames(TypedDict):
    """The response of /topics."""

    topics: list[str]


class ChannelNames(TypedDict):
    """The response of /channels."""

    channels: list[str]


class LookupProducer(TypedDict):
    """An nsqd, as it registered itself."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str
    topology_region: str


class LookupResult(TypedDict):
    """The response of /lookup."""

    channels: list[str]
    producers: list[LookupProducer]


class LookupNode(LookupProducer):
    """An nsqd with its topics. ``tombstones`` has one entry for each entry of ``topics``."""

    tombstones: list[bool]
    topics: list[str]


class LookupNodes(TypedDict):
    """The response of /nodes."""

    producers: list[LookupNode]


class RegisteredProducer(TypedDict):
    """An nsqd that has registered a topic or a channel. Times are nanoseconds since 1970."""

    broadcast_address: str
    hostname: str
    http_port: int
    id: str
    last_update: int
    tcp_port: int
    tombstoned: bool
    tombstoned_at: int
    topology_region: str
    topology_zone: str
    version: str


_NEW_TOPIC = Parameter("topic", "The topic.", NAME, required=True)
_NEW_CHANNEL = Parameter("channel", "The channel.", NAME, required=True)
_TOPIC = Parameter("topic", "The topic.", required=True)
_NODE = Parameter("node", "The broadcast address and HTTP port of the nsqd: host:port.", required=True)

_ROUTES = {
    "GET /lookup": RouteDoc(
        "lookup",
        "discovery",
        "Find the nsqds that have a topic, and its channels",
        query=(_TOPIC,),
        response=Content(
            "Producers that are inactive or have a tombstone for the topic are left out.", {JSON: LookupResult}
        ),
        errors="MISSING_ARG_TOPIC, TOPIC_NOT_FOUND",
    ),
    "GET /topics": RouteDoc(
        "topics", "discovery", "List all topics", response=Content("All topics.", {JSON: TopicNames})
    ),
    "GET /channels": RouteDoc(
        "channels",
        "discovery",
        "List the channels of a topic",
        query=(_TOPIC,),
        response=Content("The channels; none if the topic is unknown.", {JSON: ChannelNames}),
        errors="MISSING_ARG_TOPIC",
    ),
    "GET /nodes": RouteDoc(
        "nodes", "discovery", "List all active nsqds", response=Content("Active nsqds.", {JSON: LookupNodes})
    ),
    "POST /topic/create": RouteDoc(
        "createTopic",
        "administration",
        "Create a topic before an nsqd has it",
        query=(_NEW_TOPIC,),
        errors="MISSING_ARG_TOPIC, INVALID_ARG_TOPIC",
    ),
    "POST /topic/delete": RouteDoc(
        "deleteTopic",
        "administration",
        "Remove a topic and its channels",
        "An unknown topic is not an error. An nsqd that still has the topic registers it again when it reconnects. "
        "The name `*` removes all topics, as in NSQ.",
        query=(_TOPIC,),
        errors="MISSING_ARG_TOPIC",
    ),
    "POST /topic/tombstone": RouteDoc(
        "tombstone",
        "administration",
        "Hide one nsqd from consumers of a topic",
        "The tombstone lasts for --tombstone-lifetime.",
        query=(_TOPIC, _NODE),
        errors="MISSING_ARG_TOPIC, MISSING_ARG_NODE",
    ),
    "POST /channel/create": RouteDoc(
        "createChannel",
        "administration",
        "Create a channel, and its topic if that is new",
        query=(_NEW_TOPIC, _NEW_CHANNEL),
        errors="MISSING_ARG_TOPIC, INVALID_ARG_TOPIC, MISSING_ARG_CHANNEL, INVALID_ARG_CHANNEL",
    ),
    "POST /channel/delete": RouteDoc(
        "deleteChannel",
        "administration",
        "Remove a channel",
        query=(_NEW_TOPIC, _NEW_CHANNEL),
        errors="MISSING_ARG_TOPIC, INVALID_ARG_TOPIC, MISSING_ARG_CHANNEL, INVALID_ARG_CHANNEL, CHANNEL_NOT_FOUND",
    ),
    "GET /ping": RouteDoc("ping", "health", "Check that nsqlookupd is running", response=PONG),
    "GET /info": RouteDoc(
        "info", "health", "Return the version", response=Content("The version.", {JSON: VersionInfo})
    ),
    "GET /debug": RouteDoc(
        "debug",
        "health",
        "List all registrations",
        response=Content("Producers by `category:topic:channel`.", {JSON: dict[str, list[RegisteredProducer]]}),
    ),
    "GET /metrics": RouteDoc("metrics", "health", "Return the metrics for Prometheus", response=METRICS_PAGE),
    **OPENAPI_ROUTE,
}

API = APIDoc(
    title="nsqlookupd HTTP API",
    summary="Discovery of topics, channels and nsqds.",
    description="The default port is 4161. API responses have the header `X-NSQ-Content-Type: nsq; version=1.0`. "
    + DAEMON_DESCRIPTION,
    tags={
        "discovery": "Queries of consumers and of nsqadmin.",
        "administration": "Changes to the registered topics and channels.",
        "health": "The state of nsqlookupd.",
    },
    routes=_ROUTES,
    errors={
        400: {
            "MISSING_ARG_TOPIC": "the query has no topic",
            "INVALID_ARG_TOPIC": "the topic is not a valid name",
            "MISSING_ARG_CHANNEL": "the query has no channel",
            "INVALID_ARG_CHANNEL": "the channel is not a valid name",
            "MISSING_ARG_NODE": "the query has no node",
        },
        404: {
            "TOPIC_NOT_FOUND": "the topic is not registered",
            "CHANNEL_NOT_FOUND": "the channel is not registered",
        },
    },
    security={"token": BEARER_TOKEN},
)


def describe(router: Router) -> dict[str, Any]:
    """Return the OpenAPI document for the routes of ``router``."""
    return build_document(API, router.routes(), daemon_refusals(route_group))
