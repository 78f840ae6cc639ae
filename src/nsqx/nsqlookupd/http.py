"""nsqlookupd's HTTP API: its routes and answers.

Handlers read the request, query the registry and build the answer; a rejected request raises HTTPError. Lists are in
the order of registration, which is not guaranteed. Answers that grow with the registry are built in pieces, so that
other requests are served in between.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import orjson

from nsqx.errors import HTTPError
from nsqx.names import is_valid_name
from nsqx.net.access import ADMIN, READ
from nsqx.net.pieces import answer_in_pieces
from nsqx.net.responses import EMPTY, JSON, Response, json_response, plain_response
from nsqx.net.router import Router
from nsqx.net.steps import StepScheduler
from nsqx.nsqlookupd.lookupd import on_one_line
from nsqx.nsqlookupd.metrics import LookupdMetricsPage
from nsqx.version import NSQ_VERSION
from nsqx.wire.http_headers import NSQ_HEADERS

if TYPE_CHECKING:
    from nsqx.net.pieces import Pieces
    from nsqx.net.requests import AnyResponse, Handler, Request
    from nsqx.nsqlookupd.lookupd import Lookupd
    from nsqx.nsqlookupd.openapi import RegisteredProducer
    from nsqx.nsqlookupd.registry import Peer, Registration, Tombstone

# Go's zero time in nanoseconds since 1970, wrapped to 64 bits.
_NEVER_NS: Final = -6795364578871345152


def route_group(method: str, path: str) -> str:
    """Return the group of routes of a request, for access control; "" for an open route."""
    if path == "/ping":
        return ""
    return READ if method == "GET" else ADMIN


def build_router(lookupd: Lookupd) -> Router:
    """Return the router with every path of the API."""
    answers = LookupdQueryAPI(lookupd)
    administration = LookupdAdminAPI(lookupd)
    router = Router()
    router.add("GET", "/ping", answers.ping)
    router.add("GET", "/info", answers.info)
    router.add("GET", "/debug", answers.debug)
    router.add("GET", "/lookup", answers.lookup)
    router.add("GET", "/topics", answers.topics)
    router.add("GET", "/channels", answers.channels)
    router.add("GET", "/nodes", answers.nodes)
    router.add("GET", "/metrics", answers.metrics)
    router.add("GET", "/openapi.json", _openapi(router))
    router.add("POST", "/topic/create", administration.create_topic)
    router.add("POST", "/topic/delete", administration.delete_topic)
    router.add("POST", "/topic/tombstone", administration.tombstone)
    router.add("POST", "/channel/create", administration.create_channel)
    router.add("POST", "/channel/delete", administration.delete_channel)
    return router


def _openapi(router: Router) -> Handler:
    """Return a handler that builds the OpenAPI document at the first request."""

    @cache
    def document() -> Response:
        from nsqx.nsqlookupd.openapi import describe  # not needed before

        return json_response(describe(router))

    return lambda _request: document()


class LookupdQueryAPI:
    """The routes that read."""

    def __init__(self, lookupd: Lookupd) -> None:
        self._lookupd = lookupd
        self._registry = lookupd.registry
        self._metrics_page = LookupdMetricsPage(lookupd)
        self._long_jobs = StepScheduler()

    def ping(self, _request: Request) -> Response:
        return plain_response(200, "OK")

    def info(self, _request: Request) -> Response:
        return json_response({"version": NSQ_VERSION})

    def topics(self, _request: Request) -> Response:
        return json_response({"topics": [topic.key for topic in self._registry.topics()]})

    def channels(self, request: Request) -> Response:
        found = self._registry.channels(_argument(request, "topic"))
        return json_response({"channels": [channel.subkey for channel in found]})

    def lookup(self, request: Request) -> Response:
        """Return the producers of a topic and its channels, including channels of silent producers only."""
        topic_name = _argument(request, "topic")
        self._lookupd.counts.lookups += 1
        topics = self._registry.topics(topic_name)
        if not topics:
            raise HTTPError(404, "TOPIC_NOT_FOUND")
        channels = orjson.dumps([channel.subkey for channel in self._registry.channels(topic_name)])
        producers = b",".join([peer.described for peer in self._registry.producers(topics)])
        return Response(200, b'{"channels":%b,"producers":[%b]}' % (channels, producers), JSON, NSQ_HEADERS)

    async def nodes(self, _request: Request) -> AnyResponse:
        """Return every nsqd that is not silent, with its topics."""
        return await answer_in_pieces(self._long_jobs, self._node_pieces(), JSON, NSQ_HEADERS)

    def _node_pieces(self) -> Pieces:
        yield b'{"producers":['
        separator = b""
        present = self._registry.clients.producers
        for peer in self._registry.active_peers():
            if peer in present:
                yield separator + self._node(peer)
                separator = b","
        yield b"]}"

    def _node(self, peer: Peer) -> bytes:
        tombstones = orjson.dumps(self._registry.tombstones(peer))
        topics = orjson.dumps([topic.key for topic in peer.topics])
        return b'%b,"tombstones":%b,"topics":%b}' % (peer.described[:-1], tombstones, topics)

    async def debug(self, _request: Request) -> AnyResponse:
        """Return all registrations that have producers."""
        pieces = _debug_pieces(list(self._registry.registrations()))
        return await answer_in_pieces(self._long_jobs, pieces, JSON, NSQ_HEADERS)

    def metrics(self, request: Request) -> Response:
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        page, content_type = self._metrics_page.render(accept)
        return Response(200, page, content_type)


class LookupdAdminAPI:
    """The routes that change the registry: create topics and channels before nsqd has them, and delete old ones."""

    def __init__(self, lookupd: Lookupd) -> None:
        self._registry = lookupd.registry
        self._log = lookupd.log

    def create_topic(self, request: Request) -> Response:
        topic_name = _argument(request, "topic")
        if not is_valid_name(topic_name):
            raise HTTPError(400, "INVALID_ARG_TOPIC")
        self._log.info("DB: adding topic(%s)", topic_name)
        self._registry.create_topic(topic_name)
        return EMPTY

    def delete_topic(self, request: Request) -> Response:
        """Delete a topic with its channels; an unknown topic is not an error."""
        for registration in self._registry.delete_topic(_argument(request, "topic")):
            if registration.category == "channel":
                self._log.info("DB: removing channel(%s) from topic(%s)", registration.subkey, registration.key)
            else:
                self._log.info("DB: removing topic(%s)", registration.key)
        return EMPTY

    def tombstone(self, request: Request) -> Response:
        """Hide a node that is about to lose a topic from the topic's consumers."""
        topic_name = _argument(request, "topic")
        node = _argument(request, "node")
        self._log.info("DB: setting tombstone for producer@%s of topic(%s)", on_one_line(node), on_one_line(topic_name))
        self._registry.tombstone(topic_name, node)
        return EMPTY

    def create_channel(self, request: Request) -> Response:
        topic_name, channel_name = _topic_and_channel(request)
        self._log.info("DB: adding channel(%s) in topic(%s)", channel_name, topic_name)
        self._registry.create_channel(topic_name, channel_name)
        self._log.info("DB: adding topic(%s)", topic_name)
        self._registry.create_topic(topic_name)
        return EMPTY

    def delete_channel(self, request: Request) -> Response:
        topic_name, channel_name = _topic_and_channel(request)
        if not self._registry.delete_channel(topic_name, channel_name):
            raise HTTPError(404, "CHANNEL_NOT_FOUND")
        self._log.info("DB: removing channel(%s) from topic(%s)", channel_name, topic_name)
        return EMPTY


def _argument(request: Request, name: str) -> str:
    value = request.query.get(name)
    if value is None:
        raise HTTPError(400, f"MISSING_ARG_{name.upper()}")
    return value


def _topic_and_channel(request: Request) -> tuple[str, str]:
    topic_name = _argument(request, "topic")
    if not is_valid_name(topic_name):
        raise HTTPError(400, "INVALID_ARG_TOPIC")
    channel_name = _argument(request, "channel")
    if not is_valid_name(channel_name):
        raise HTTPError(400, "INVALID_ARG_CHANNEL")
    return topic_name, channel_name


def _debug_pieces(registrations: list[Registration]) -> Pieces:
    """Yield the registrations as a JSON object, sorted by their names."""
    named = []
    for registration in registrations:
        named.append((f"{registration.category}:{registration.key}:{registration.subkey}", registration))
        yield None
    named.sort(key=lambda pair: pair[0])
    yield b"{"
    separator = b""
    for name, registration in named:
        # Registrations without producers are omitted.
        if registration.producers:
            producers = [_debug_producer(peer, tombstone) for peer, tombstone in registration.producers.items()]
            yield b"%b%b:%b" % (separator, orjson.dumps(name), orjson.dumps(producers))
            separator = b","
    yield b"}"


def _debug_producer(peer: Peer, tombstone: Tombstone | None) -> RegisteredProducer:
    said = peer.announcement
    return {
        "broadcast_address": said.broadcast_address,
        "hostname": said.hostname,
        "http_port": said.http_port,
        "id": peer.id,
        "last_update": peer.last_update_ns,
        "tcp_port": said.tcp_port,
        "tombstoned": tombstone is not None,
        "tombstoned_at": _NEVER_NS if tombstone is None else tombstone.wall_ns,
        "topology_region": said.topology_region,
        "topology_zone": said.topology_zone,
        "version": said.version,
    }
