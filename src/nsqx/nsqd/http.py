"""nsqd's HTTP API: the routes, their handlers and the texts of their answers.

A handler reads the request, calls the broker and chooses the answer. A refusal is an HTTPError. Handlers that change
state run in a turn of the broker, as every event that changes the broker must. A publish is answered when the messages
are as durable as configured. Routes that can create a topic answer when the channels that the topic has on other nsqds
exist here too; the timeouts of requests to nsqlookupd limit that wait.
"""

import asyncio
import re
from functools import cache, partial
from typing import TYPE_CHECKING

import orjson

from nsqx import log
from nsqx.errors import BrokerExiting, ConfigError, DiskQueueError, HTTPError, NotALogTopic, NSQError, ProtocolError
from nsqx.gotext import INT64_MAX, INT64_MIN
from nsqx.names import is_valid_name
from nsqx.net.access import ADMIN, CONSUME, PUBLISH, READ, tls_required
from nsqx.net.pieces import answer_in_pieces
from nsqx.net.requests import DEFERRED
from nsqx.net.responses import (
    EMPTY,
    JSON,
    OK,
    TEXT,
    Response,
    error_response,
    json_response,
    plain_response,
    text_response,
)
from nsqx.net.router import BodyLimit, Router
from nsqx.nsqd import stats
from nsqx.nsqd.dead_api import add_dead_routes
from nsqx.nsqd.debug import add_debug_routes
from nsqx.nsqd.drain_api import add_drain_routes
from nsqx.nsqd.large_publish import LargePublish
from nsqx.nsqd.log_api import add_log_routes, durable
from nsqx.nsqd.log_position import LogPositions, log_flow_of
from nsqx.nsqd.log_read_api import add_log_read_routes
from nsqx.nsqd.metrics import OPENMETRICS_CONTENT_TYPE, TEXT_CONTENT_TYPE, NsqdMetricsPage, accepts_openmetrics
from nsqx.nsqd.node_stats import node_numbers
from nsqx.nsqd.options import config_value
from nsqx.nsqd.peek_api import add_peek_route
from nsqx.nsqd.publish_options import NO_OFFSET, has_options, query_options
from nsqx.nsqd.refusals import refused
from nsqx.nsqd.request_targets import find_topic, find_topic_and_channel, find_topic_and_channel_name
from nsqx.nsqd.retention_api import RetentionAPI
from nsqx.nsqd.topic_config_api import TopicConfigAPI
from nsqx.nsqd.topic_settings import STORES
from nsqx.nsqd.transaction_api import add_transaction_routes
from nsqx.units import NS_PER_MS, NS_PER_S
from nsqx.version import NSQ_VERSION, VERSION
from nsqx.wire.batches import BatchSlices, LineSlices, has_longer_line
from nsqx.wire.commands import read_batch, wrap_int64
from nsqx.wire.http_headers import NSQ_HEADERS
from nsqx.wire.xpub import MAX_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nsqx.net.requests import AnyResponse, DeferredAnswer, Handler, Request
    from nsqx.net.steps import Steps
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.log_position import LogPosition
    from nsqx.nsqd.log_read_api import CreateAnswer
    from nsqx.nsqd.memory import MemoryMonitor
    from nsqx.nsqd.openapi import ConvertAnswer, NsqdInfo
    from nsqx.nsqd.publish_options import PublishOptions, PublishOutcome
    from nsqx.nsqd.topic import Topic
    from nsqx.wire.batches import Slices

    Headers = tuple[tuple[str, str], ...]

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_PUBLISH_PATHS = ("/pub", "/mpub", "/log/stage", "/log/commit")
# Routes that show messages.
_MESSAGE_PATHS = ("/peek", "/dead", "/log/read")
# Of the answer to a publish with options: the offset of its first message, and that it was stored before.
OFFSET_HEADER = "X-Nsq-Offset"
DUPLICATE_HEADER = "X-Nsq-Duplicate"
# How many channels of a topic are deleted in one turn of the loop.
_DELETES_PER_TURN = 20


def build_router(broker: "Broker", memory: "MemoryMonitor") -> Router:
    """Return the router with every path of the API."""
    options = broker.options
    publishing = PublishAPI(broker)
    administration = NsqdAdminAPI(broker)
    reports = ReportAPI(broker, memory)
    router = Router()

    def in_turn(handler: "Handler") -> "Handler":
        return lambda request: broker.turn.run(handler, request)

    message_limit = BodyLimit(options.max_msg_size, "MSG_TOO_BIG")
    batch_limit = BodyLimit(options.max_body_size, "BODY_TOO_BIG")
    router.add("POST", "/pub", in_turn(publishing.publish), body_limit=message_limit, logged=False)
    router.add("POST", "/mpub", in_turn(publishing.publish_many), body_limit=batch_limit, logged=False)
    router.add("GET", "/ping", reports.ping)
    router.add("GET", "/ready", reports.ready)
    router.add("GET", "/info", reports.info)
    router.add("GET", "/stats", reports.stats)
    router.add("GET", "/metrics", reports.metrics)
    router.add("GET", "/openapi.json", _openapi(router))
    router.add("POST", "/topic/create", in_turn(administration.create_topic))
    router.add("POST", "/topic/delete", administration.delete_topic)
    router.add("POST", "/topic/empty", in_turn(administration.empty_topic))
    router.add("POST", "/topic/convert", in_turn(administration.convert_topic))
    router.add("POST", "/topic/pause", in_turn(administration.pause_topic))
    router.add("POST", "/topic/unpause", in_turn(administration.unpause_topic))
    router.add("POST", "/channel/create", in_turn(administration.create_channel))
    router.add("POST", "/channel/delete", in_turn(administration.delete_channel))
    router.add("POST", "/channel/empty", in_turn(administration.empty_channel))
    router.add("POST", "/channel/pause", in_turn(administration.pause_channel))
    router.add("POST", "/channel/unpause", in_turn(administration.unpause_channel))
    value_limit = BodyLimit(options.max_msg_size, "INVALID_VALUE")
    configs = TopicConfigAPI(broker)
    router.add("GET", "/topic/config", configs.get_topic)
    router.add("PUT", "/topic/config", in_turn(configs.set_topic), body_limit=value_limit)
    router.add("GET", "/channel/config", configs.get_channel)
    router.add("PUT", "/channel/config", in_turn(configs.set_channel), body_limit=value_limit)
    router.add("POST", "/log/trim", in_turn(RetentionAPI(broker).trim))
    router.add("GET", "/config/:option", administration.get_option)
    router.add("PUT", "/config/:option", administration.set_option, body_limit=value_limit)
    add_drain_routes(router, broker)
    add_log_routes(router, broker)
    add_log_read_routes(router, broker)
    add_transaction_routes(router, broker)
    add_peek_route(router, broker)
    add_dead_routes(router, broker)
    add_debug_routes(router, with_pprof=options.enable_debug_endpoints)
    return router


def _openapi(router: Router) -> "Handler":
    """Return a handler that builds the OpenAPI document at the first request."""

    @cache
    def document() -> Response:
        from nsqx.nsqd.openapi import describe  # imported late, because most processes never need it

        return json_response(describe(router))

    return lambda _request: document()


def refuse_without_tls(https_port: int) -> "Callable[[Request], Response]":
    """Return a gate for the plain HTTP server that refuses every request and names the HTTPS port (tls-required)."""
    response = tls_required(https_port)
    return lambda _request: response


def route_group(method: str, path: str) -> str:
    """Return the access-control group of a request, or "" for a request that is always allowed."""
    if path in ("/ping", "/ready"):
        return ""
    if path in _PUBLISH_PATHS:
        return PUBLISH
    if (method == "GET" and path in _MESSAGE_PATHS) or path == "/channel/commit":
        return CONSUME
    if method == "GET" and not path.startswith("/debug"):
        return READ
    return ADMIN


class PublishAPI:
    """/pub and /mpub."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def publish(self, request: "Request") -> "DeferredAnswer":
        """Publish the body as one message. An empty body is refused before the query is checked."""
        if not request.body:
            raise HTTPError(400, "MSG_EMPTY")
        query = request.query
        topic = _topic_to_publish(self._broker, query)
        defer_ns = self._parse_defer(query["defer"]) if "defer" in query else 0
        if defer_ns or has_options(query):
            item = len(request.body).to_bytes(4, "big") + request.body
            return self._publish_with(request, topic, item, 1, query_options(query, defer_ns))
        try:
            self._broker.publish(topic, request.body)
        except (BrokerExiting, DiskQueueError) as error:
            raise refused(error) from None
        return self._answer_when_written(request, topic)

    def _publish_with(
        self, request: "Request", topic: "Topic", items: bytes, count: int, options: "PublishOptions"
    ) -> "DeferredAnswer":
        try:
            result = self._broker.publish_with(topic, items, count, options)
        except NotALogTopic:
            raise HTTPError(400, "NOT_A_LOG") from None
        except (BrokerExiting, DiskQueueError) as error:
            raise refused(error) from None
        return self._answer_when_written(request, topic, _result_headers(result))

    def publish_many(self, request: "Request") -> "Response | DeferredAnswer | Awaitable[Response]":
        """Publish each non-empty line as a message; with ``binary``, the body is that of an MPUB."""
        query = request.query
        topic = _topic_to_publish(self._broker, query)
        if self._is_binary(query):
            slices: Slices = BatchSlices(self._read_batch(request.body)[0])
        else:
            if has_longer_line(request.body, self._broker.options.max_msg_size):
                raise HTTPError(413, "MSG_TOO_BIG")
            slices = LineSlices(request.body)
        if has_options(query):
            return self._publish_whole(request, topic, slices)
        items = slices.next()
        if not slices.is_done:
            return self._publish_slices(topic, items, slices)
        if not slices.count:
            return _with_channels(self._broker, topic, OK)
        try:
            self._broker.publish_many(topic, items, slices.count)
        except (BrokerExiting, DiskQueueError) as error:
            raise refused(error) from None
        return self._answer_when_written(request, topic)

    def _publish_whole(
        self, request: "Request", topic: "Topic", slices: "Slices"
    ) -> "Response | DeferredAnswer | Awaitable[Response]":
        """Publish a batch with options, which must be stored wholly or not at all."""
        options = query_options(request.query)
        items = bytearray()
        count = 0
        while not slices.is_done:
            items += slices.next()
            count += slices.count
            if count > MAX_MESSAGES:
                raise HTTPError(413, "TOO_MANY_MESSAGES")
        if not count:
            return _with_channels(self._broker, topic, OK)
        return self._publish_with(request, topic, bytes(items), count, options)

    async def _publish_slices(self, topic: "Topic", items: bytes, slices: "Slices") -> Response:
        """Publish a batch that is too large for one turn; ``items`` is the first slice."""
        written: asyncio.Future[NSQError | None] = asyncio.get_running_loop().create_future()
        LargePublish(self._broker, topic, items, slices, partial(_settle, written))
        failure = await written
        if failure is not None:
            raise refused(failure)
        response = _with_channels(self._broker, topic, OK)
        return response if isinstance(response, Response) else await response

    def _answer_when_written(self, request: "Request", topic: "Topic", headers: "Headers" = ()) -> "DeferredAnswer":
        response = Response(200, b"OK", TEXT, (*NSQ_HEADERS, *headers)) if headers else OK
        answer = partial(_answer_publish, request, self._broker.channels_fetch(topic), response)
        self._broker.commits.when_written(answer, topic)
        return DEFERRED

    def _parse_defer(self, text: str) -> int:
        if _INTEGER.fullmatch(text) is None or len(text) > 20 or not INT64_MIN <= int(text) <= INT64_MAX:
            raise HTTPError(400, "INVALID_DEFER")
        # As in nsqd: the multiplication wraps at 64 bits, and the result is checked.
        defer_ns = wrap_int64(int(text) * NS_PER_MS)
        if not 0 <= defer_ns <= self._broker.options.max_req_timeout:
            raise HTTPError(400, "INVALID_DEFER")
        return defer_ns

    def _is_binary(self, query: "Mapping[str, str]") -> bool:
        value = query.get("binary")
        if value is None:
            return False
        if value not in _BOOLEANS:
            self._broker.log.warn("deprecated value '%s' used for /mpub binary param", value)
        return _BOOLEANS.get(value, True)

    def _read_batch(self, body: bytes) -> tuple[bytes, int]:
        options = self._broker.options
        try:
            return read_batch(body, options.max_body_size, options.max_msg_size)
        except ProtocolError as error:
            raise HTTPError(413, error.code.removeprefix("E_")) from None


class NsqdAdminAPI:
    """Changes topics, channels, and the options that can be changed while nsqd runs."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._positions = LogPositions(broker)

    def create_topic(self, request: "Request") -> "Response | Awaitable[Response]":
        topic = _topic_to_publish(self._broker, request.query)
        return _with_channels(self._broker, topic, EMPTY)

    async def delete_topic(self, request: "Request") -> Response:
        """Delete the channels first, a few in each turn, because there can be thousands."""
        broker, topic = self._broker, find_topic(self._broker, request)
        await broker.long_jobs.run(_delete_channels_steps(broker, topic), steps_per_turn=_DELETES_PER_TURN)
        if broker.find_topic(topic.name) is topic:
            broker.turn.run(broker.delete_topic, topic.name)
        return EMPTY

    def empty_topic(self, request: "Request") -> Response:
        name = request.query.get("topic")
        if name is not None and not is_valid_name(name):
            raise HTTPError(400, "INVALID_TOPIC")
        find_topic(self._broker, request).empty()
        return EMPTY

    def convert_topic(self, request: "Request") -> "Awaitable[Response]":
        """Choose the store of a topic, and begin to move its messages to it."""
        store = request.query.get("store")
        if store is None:
            raise HTTPError(400, "MISSING_ARG_STORE")
        if store not in STORES:
            raise HTTPError(400, "INVALID_STORE")
        topic = find_topic(self._broker, request)
        if topic.is_ephemeral:
            raise HTTPError(400, "EPHEMERAL_TOPIC")
        if self._broker.conversions.is_converting(topic.name):
            raise HTTPError(409, "CONVERTING")
        return self._convert(topic, store)

    async def _convert(self, topic: "Topic", store: str) -> Response:
        try:
            is_begun = await self._broker.conversions.convert(topic, store)
        except (BrokerExiting, DiskQueueError, OSError):
            raise HTTPError(503, "EXITING") from None
        answer: ConvertAnswer = {"topic": topic.name, "store": store}
        return json_response(answer, 202 if is_begun else 200)

    def pause_topic(self, request: "Request") -> "Awaitable[Response]":
        topic = find_topic(self._broker, request)
        topic.pause()
        return self._saved(topic)

    def unpause_topic(self, request: "Request") -> "Awaitable[Response]":
        topic = find_topic(self._broker, request)
        topic.unpause()
        return self._saved(topic)

    def create_channel(self, request: "Request") -> "Awaitable[Response]":
        topic, channel_name = find_topic_and_channel_name(self._broker, request)
        if "start" in request.query:
            position = self._positions.parse(request.query["start"], "INVALID_START")
            log_flow_of(topic)
            return self._create_at(topic, channel_name, position)
        self._create(topic, channel_name, None)
        return self._created(topic)

    def _create(self, topic: "Topic", channel_name: str, start: int | None) -> None:
        try:
            topic.channel(channel_name, start)
        except BrokerExiting:
            raise HTTPError(503, "EXITING") from None

    async def _create_at(self, topic: "Topic", channel_name: str, position: "LogPosition") -> Response:
        """Create a channel if it does not exist, and answer with its position, which is durable then."""
        is_new = topic.find_channel(channel_name) is None
        if is_new:
            start = await self._positions.offset_of(topic, position)
            is_new = topic.find_channel(channel_name) is None
            self._broker.turn.run(self._create, topic, channel_name, start)
        await self._created(topic)
        flow = log_flow_of(topic)
        channel = topic.find_channel(channel_name)
        if channel is None:
            raise HTTPError(404, "CHANNEL_NOT_FOUND")
        cursor = channel.store.cursor_stats()
        assert cursor is not None
        await durable(flow)
        answer: CreateAnswer = {
            "topic": topic.name,
            "channel": channel_name,
            "log": f"{flow.log.identity.log_id:016x}",
            "start": cursor["floor"],
            "created": is_new,
        }
        return json_response(answer)

    async def _created(self, topic: "Topic") -> Response:
        """Answer when a log that was changed has the new channel. nsqd.dat is saved later, as Go's nsqd does."""
        await self._broker.committed(topic)
        response = _with_channels(self._broker, topic, EMPTY)
        return response if isinstance(response, Response) else await response

    def delete_channel(self, request: "Request") -> Response:
        topic, channel_name = find_topic_and_channel_name(self._broker, request)
        if topic.find_channel(channel_name) is None:
            raise HTTPError(404, "CHANNEL_NOT_FOUND")
        topic.delete_channel(channel_name)
        return EMPTY

    def empty_channel(self, request: "Request") -> Response:
        find_topic_and_channel(self._broker, request)[1].empty()
        return EMPTY

    def pause_channel(self, request: "Request") -> "Awaitable[Response]":
        topic, channel = find_topic_and_channel(self._broker, request)
        channel.pause()
        return self._saved(topic)

    def unpause_channel(self, request: "Request") -> "Awaitable[Response]":
        topic, channel = find_topic_and_channel(self._broker, request)
        channel.unpause()
        return self._saved(topic)

    def get_option(self, request: "Request") -> Response:
        """Answer with the value of an option: a string as it is, other values as JSON."""
        try:
            value = config_value(self._broker.options, request.params["option"])
        except KeyError:
            raise HTTPError(400, "INVALID_OPTION") from None
        return text_response(value) if isinstance(value, str) else json_response(value)

    def set_option(self, request: "Request") -> Response:
        """Set the nsqlookupds to register with, or the log level; answers with the new value."""
        key = request.params["option"]
        if not request.body:
            raise HTTPError(413, "INVALID_VALUE")
        if key == "nsqlookupd_tcp_addresses":
            self._set_lookupd_addresses(request.body)
        elif key == "log_level":
            self._set_log_level(request.body)
        else:
            raise HTTPError(400, "INVALID_OPTION")
        return self.get_option(request)

    def _set_lookupd_addresses(self, body: bytes) -> None:
        try:
            addresses = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise HTTPError(400, "INVALID_VALUE") from None
        if addresses is None:
            addresses = []
        if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
            raise HTTPError(400, "INVALID_VALUE")
        try:
            self._broker.set_lookupd_addresses(addresses)
        except ConfigError:
            raise HTTPError(400, "INVALID_VALUE") from None

    def _set_log_level(self, body: bytes) -> None:
        try:
            level = log.parse_level(body.decode())
        except ValueError:
            raise HTTPError(400, "INVALID_VALUE") from None
        self._broker.options.log_level = level
        self._broker.log.level = level

    async def _saved(self, topic: "Topic") -> Response:
        """Answer when a change of ``topic`` or one of its channels survives a crash."""
        await self._broker.saved(topic)
        return EMPTY


class ReportAPI:
    """Reports the state of nsqd: health, statistics and Prometheus metrics."""

    def __init__(self, broker: "Broker", memory: "MemoryMonitor") -> None:
        self._broker = broker
        self._memory = memory
        self._metrics_page = NsqdMetricsPage()

    def ping(self, _request: "Request") -> Response:
        broker = self._broker
        return plain_response(200 if broker.is_healthy else 500, broker.health)

    def ready(self, _request: "Request") -> Response:
        broker = self._broker
        if broker.is_ready:
            return plain_response(200, "OK")
        return plain_response(503, broker.health if not broker.is_healthy else "NOK - draining")

    def info(self, _request: "Request") -> Response:
        broker = self._broker
        options = broker.options
        document: NsqdInfo = {
            "version": NSQ_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": broker.hostname,
            "http_port": broker.http_port,
            "tcp_port": broker.tcp_port,
            "start_time": broker.start_time_ns // NS_PER_S,
            "max_heartbeat_interval": options.max_heartbeat_interval,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout,
            "max_deflate_level": options.max_deflate_level,
            "topology_zone": options.topology_zone,
            "topology_region": options.topology_region,
            "broker_id": broker.broker_id,
            "nsqx_version": VERSION,
        }
        return json_response(document)

    async def stats(self, request: "Request") -> "AnyResponse":
        """Answer in JSON with ``format=json``, else as text; ``topic`` and ``channel`` select what is shown."""
        broker = self._broker
        query = request.query
        now_ns = broker.clock.wall_ns()
        selection = stats.StatsFilter(
            topic_name=query.get("topic", ""),
            channel_name=query.get("channel", ""),
            include_clients=_BOOLEANS.get(query.get("include_clients", ""), True),
        )
        memory = self._memory.stats() if _BOOLEANS.get(query.get("include_mem", ""), True) else None
        transactions = broker.transactions.stats()
        if query.get("format") == "json":
            pieces = stats.json_pieces(broker, now_ns, selection, memory, node_numbers(broker), transactions)
            return await answer_in_pieces(broker.long_jobs, pieces, JSON, NSQ_HEADERS)
        pieces = stats.text_pieces(broker, now_ns, selection, memory, transactions)
        return await answer_in_pieces(broker.long_jobs, pieces, TEXT, NSQ_HEADERS)

    async def metrics(self, request: "Request") -> "AnyResponse":
        """Answer with the page for Prometheus."""
        broker = self._broker
        openmetrics = accepts_openmetrics(request.headers.get(b"accept", b"").decode("latin-1"))
        selection = stats.StatsFilter(include_clients=broker.options.metrics_per_client)
        topics = stats.each_topic(broker, broker.clock.wall_ns(), selection)
        pieces = self._metrics_page.pieces(
            topics,
            healthy=broker.is_healthy,
            openmetrics=openmetrics,
            commits=stats.commit_stats(broker),
            node=node_numbers(broker),
            transactions=broker.transactions.stats(),
        )
        content_type = OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE
        return await answer_in_pieces(broker.long_jobs, pieces, content_type)


def _topic_to_publish(broker: "Broker", query: "Mapping[str, str]") -> "Topic":
    """Return the topic that ``query`` names, and create it if needed."""
    name = query.get("topic")
    if name is None:
        raise HTTPError(400, "MISSING_ARG_TOPIC")
    topic = broker.find_topic(name)
    if topic is not None:
        return topic
    if not is_valid_name(name):
        raise HTTPError(400, "INVALID_TOPIC")
    try:
        return broker.topic(name)
    except (BrokerExiting, DiskQueueError) as error:
        raise refused(error) from None


def _delete_channels_steps(broker: "Broker", topic: "Topic") -> "Steps[None]":
    for name in list(topic.channels):
        broker.turn.run(topic.delete_channel, name)
        yield


def _with_channels(broker: "Broker", topic: "Topic", response: Response) -> "Response | Awaitable[Response]":
    """Return the response, delayed until the channels that a new topic has on other nsqds are created."""
    fetch = broker.channels_fetch(topic)
    return response if fetch is None else _after(fetch, response)


def _settle(future: "asyncio.Future[NSQError | None]", failure: NSQError | None) -> None:
    if not future.done():  # the server may have closed meanwhile
        future.set_result(failure)


async def _after(fetch: "asyncio.Task[None]", response: Response) -> Response:
    await asyncio.wait([fetch])
    return response


def _result_headers(result: "PublishOutcome") -> "Headers":
    headers = [(OFFSET_HEADER, str(result.first))] if result.first != NO_OFFSET else []
    if result.is_duplicate:
        headers.append((DUPLICATE_HEADER, "true"))
    return tuple(headers)


def _answer_publish(
    request: "Request", channels_fetch: "asyncio.Task[None] | None", response: Response, failure: Exception | None
) -> None:
    if failure is not None:
        error = refused(failure)
        response = error_response(error.status, error.code, error.headers)
    if channels_fetch is None or channels_fetch.done():
        request.respond(response)
    else:
        channels_fetch.add_done_callback(lambda _: request.respond(response))
