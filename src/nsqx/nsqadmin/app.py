"""nsqadmin's HTTP application: the routes with their handlers and roles, and the headers of every answer.

nsqd's router matches the paths, so that near misses are redirected and 404 and 405 are answered as in Go.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import orjson
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from nsqx.errors import HTTPError
from nsqx.gotext import format_duration
from nsqx.net.http_head import Head
from nsqx.net.router import NOT_FOUND, Router
from nsqx.nsqadmin import audit
from nsqx.nsqadmin.access import Access, Role
from nsqx.nsqadmin.audit import Action, Audit
from nsqx.nsqadmin.request_context import Handler, RequestContext, json_bytes_response, json_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from nsqx.log import Log
    from nsqx.net.requests import Handler as RouterHandler
    from nsqx.net.responses import Response as FixedAnswer
    from nsqx.nsqadmin.alerting import AlertAPI
    from nsqx.nsqadmin.api import ActionAPI, ClusterQueryAPI
    from nsqx.nsqadmin.config_api import ConfigAPI
    from nsqx.nsqadmin.graphite import GraphiteAPI
    from nsqx.nsqadmin.inventory_api import InventoryAPI
    from nsqx.nsqadmin.lists_api import ListsAPI
    from nsqx.nsqadmin.live import LiveAPI
    from nsqx.nsqadmin.messages import MessageAPI
    from nsqx.nsqadmin.operations import OperationAPI
    from nsqx.nsqadmin.options import NsqadminOptions
    from nsqx.nsqadmin.page import Page
    from nsqx.nsqadmin.stored_messages import StoredMessageAPI
    from nsqx.nsqadmin.topic_logs import TopicLogAPI

_GZIP_LEVEL = 5
_GZIP_MIN_SIZE = 500
_PAGES = (
    "/",
    "/topics",
    "/topics/:topic",
    "/topics/:topic/:channel",
    "/alerts",
    "/channels",
    "/consumers",
    "/nodes",
    "/nodes/:node",
    "/counter",
    "/lookup",
    "/activity",
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A handler and its access rules."""

    handler: Handler
    role: Role
    is_guarded: bool = False
    """Reject requests that a page of another site makes a browser send."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of all routes."""

    queries: ClusterQueryAPI
    actions: ActionAPI
    operations: OperationAPI
    live: LiveAPI
    alerts: AlertAPI
    lists: ListsAPI
    inventory: InventoryAPI
    messages: MessageAPI
    logs: TopicLogAPI
    stored: StoredMessageAPI
    graphite: GraphiteAPI
    config: ConfigAPI
    page: Page


def build_app(options: NsqadminOptions, handlers: Handlers, access: Access, records: Audit, log: Log) -> ASGIApp:
    """Return the ASGI application."""
    base = options.base_path.rstrip("/")
    api_paths = (f"{base}/api/", f"{base}/config/")
    routes = _routes(options, handlers)
    app = _Application(routes, access, records, log, _security_headers(options), handlers.page, api_paths)
    return GZipMiddleware(app, minimum_size=_GZIP_MIN_SIZE, compresslevel=_GZIP_LEVEL)


def _routes(options: NsqadminOptions, handlers: Handlers) -> Router:
    router = Router()
    base = options.base_path.rstrip("/")

    def add(method: str, path: str, handler: Handler, role: Role, *, is_guarded: bool = False) -> None:
        endpoint = Endpoint(handler, role, is_guarded)
        # The router only finds the endpoint; it does not call it.
        router.add(method, base + path if path != "/" else base or "/", cast("RouterHandler", endpoint))

    def change(method: str, path: str, handler: Handler, role: Role = Role.OPERATE) -> None:
        add(method, path, handler, role, is_guarded=True)

    page, config, queries, actions = handlers.page, handlers.config, handlers.queries, handlers.actions
    for path in _PAGES:
        add("GET", path, page.index, Role.NOBODY)
    add("GET", "/static/:asset", page.asset, Role.NOBODY)
    add("GET", "/fonts/:asset", page.asset, Role.NOBODY)
    add("GET", "/assets/:asset", page.hashed_asset, Role.NOBODY)
    add("GET", "/ping", config.ping, Role.NOBODY)
    add("GET", "/openapi.json", _openapi(router, base), Role.VIEW)
    if options.proxy_graphite:
        add("GET", "/render", handlers.graphite.render, Role.VIEW)

    add("GET", "/api/topics", queries.topics, Role.VIEW)
    add("GET", "/api/topics/:topic", queries.topic, Role.VIEW)
    add("GET", "/api/topics/:topic/:channel", queries.channel, Role.VIEW)
    add("GET", "/api/nodes", queries.nodes, Role.VIEW)
    add("GET", "/api/nodes/:node", queries.node, Role.VIEW)
    add("GET", "/api/counter", queries.counter, Role.VIEW)
    add("GET", "/api/graphite", handlers.graphite.rate, Role.VIEW)
    change("POST", "/api/topics", actions.create)
    change("POST", "/api/topics/:topic", actions.act)
    change("POST", "/api/topics/:topic/:channel", actions.act)
    change("DELETE", "/api/topics/:topic", actions.delete_topic)
    change("DELETE", "/api/topics/:topic/:channel", actions.delete_channel)
    change("DELETE", "/api/nodes/:node", actions.tombstone)
    # As in NSQ, access depends on the caller's address, not on its user.
    add("GET", "/config/:option", config.get_option, Role.VIEW)
    change("PUT", "/config/:option", config.set_option, Role.VIEW)

    add("GET", "/api/settings", config.settings, Role.NOBODY)
    change("POST", "/api/login", config.login, Role.NOBODY)
    change("POST", "/api/logout", config.logout, Role.NOBODY)
    add("GET", "/api/overview", handlers.live.overview, Role.VIEW)
    add("GET", "/api/overview/channels", handlers.lists.channels, Role.VIEW)
    add("GET", "/api/overview/consumers", handlers.lists.consumers, Role.VIEW)
    add("GET", "/api/overview/nodes", handlers.lists.nodes, Role.VIEW)
    add("GET", "/api/health", handlers.live.health, Role.VIEW)
    add("GET", "/api/history/topics/:topic", handlers.live.topic_history, Role.VIEW)
    add("GET", "/api/history/topics/:topic/:channel", handlers.live.channel_history, Role.VIEW)
    add("GET", "/api/stream", handlers.live.stream, Role.VIEW)
    add("GET", "/api/alerts", handlers.alerts.alerts, Role.VIEW)
    add("GET", "/api/inventory", handlers.inventory.inventory, Role.VIEW)
    change("POST", "/api/nodes/:node", handlers.inventory.act)
    change("GET", "/api/tail/:topic", handlers.messages.tail, Role.CONSUME)
    add("GET", "/api/activity", config.activity, Role.VIEW)
    change("POST", "/api/operations", handlers.operations.operate)
    change("POST", "/api/publish/:topic", handlers.messages.publish)
    _add_log_routes(handlers, add, change)
    router.freeze()
    return router


def _add_log_routes(handlers: Handlers, add: Callable[..., None], change: Callable[..., None]) -> None:
    """Add the routes for logs, stored messages and dead letters."""
    logs, stored = handlers.logs, handlers.stored
    add("GET", "/api/log/:topic", logs.log, Role.VIEW)
    add("GET", "/api/config/:topic/:channel", logs.channel_config, Role.VIEW)
    change("PUT", "/api/config/:topic", logs.configure)
    change("PUT", "/api/config/:topic/:channel", logs.configure)
    change("POST", "/api/seek/:topic/:channel", logs.seek)
    change("POST", "/api/trim/:topic", logs.trim)
    change("GET", "/api/browse/:topic", stored.browse, Role.CONSUME)
    change("GET", "/api/dead/:topic", stored.dead_letters, Role.CONSUME)
    change("POST", "/api/dead/:topic", stored.act_on_dead_letters)


def _openapi(router: Router, base_path: str) -> Handler:
    """Return a handler that builds the OpenAPI document at the first request."""

    @cache
    def document() -> bytes:
        from nsqx.nsqadmin.openapi import describe  # not needed before

        return orjson.dumps(describe(router, base_path))

    async def serve(_context: RequestContext) -> Response:
        return json_bytes_response(document())

    return serve


def _security_headers(options: NsqadminOptions) -> list[tuple[bytes, bytes]]:
    """Return headers that stop browsers from running foreign scripts, framing the page, or guessing content types."""
    graphs = ""
    if options.graphite_url and not options.proxy_graphite:
        parts = urlsplit(options.graphite_url)
        graphs = f" {parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    policy = "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            # Graphs set their size with style attributes.
            "style-src 'self' 'unsafe-inline'",
            f"img-src 'self' data:{graphs}",
            "font-src 'self'",
            f"connect-src 'self'{graphs}",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )
    return [
        (b"content-security-policy", policy.encode("ascii", "replace")),
        (b"x-frame-options", b"DENY"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
    ]


class _Application:
    def __init__(
        self,
        router: Router,
        access: Access,
        records: Audit,
        log: Log,
        security_headers: Iterable[tuple[bytes, bytes]],
        page: Page,
        api_paths: tuple[str, ...],
    ) -> None:
        self._router = router
        self._access = access
        self._audit = records
        self._log = log
        self._security_headers = list(security_headers)
        self._page = page
        self._api_paths = api_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started_ns = time.monotonic_ns()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *self._security_headers]
            await send(message)

        request = Request(scope, receive)
        try:
            response = await self._answer(request)
            response.headers.setdefault("Cache-Control", "no-store")
            await response(scope, receive, send_with_headers)
        except ClientDisconnect:
            return
        finally:
            if self._log.info_enabled:
                elapsed = format_duration(time.monotonic_ns() - started_ns)
                self._log.info("%d %s %s (%s) %s", status, scope["method"], _uri(scope), _remote(scope), elapsed)

    async def _answer(self, request: Request) -> Response:
        try:
            self._access.check_host(request)
            head = _head(request)
            self._router.resolve(head)
            assert head.route is not None
            if head.route is NOT_FOUND and _wants_html(request) and not head.path.startswith(self._api_paths):
                return self._page.not_found()
            if head.route.answer is not None:
                return _starlette_response(head.route.answer)
            return await self._run_endpoint(cast("Endpoint", head.route.handler), request, head)
        except HTTPError as error:
            response = json_response({"message": error.code}, error.status)
            if error.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            if error.status == 429:
                response.headers["Retry-After"] = "1"
            return response
        except ClientDisconnect:
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._log.error("panic in HTTP handler - %r at %s:%s", error, where.filename, where.lineno)
            return json_response({"message": "INTERNAL_ERROR"}, 500)

    async def _run_endpoint(self, endpoint: Endpoint, request: Request, head: Head) -> Response:
        context = RequestContext(request, head, self._access.caller(request, time.monotonic()))
        try:
            if endpoint.is_guarded:
                self._access.check_origin(request)
            self._access.require(context.caller, endpoint.role)
        except HTTPError as error:
            if endpoint.is_guarded:
                named = {name: head.params.get(name, "") for name in ("topic", "channel", "node")}
                action = Action(f"{head.method} {head.path}", **named)
                self._audit.record(action, context.caller, audit.REFUSED, error.code)
            raise
        return await endpoint.handler(context)


def _head(request: Request) -> Head:
    scope = request.scope
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    return Head(scope["method"], target, {})


def _wants_html(request: Request) -> bool:
    """True if a browser displays the answer; other clients get JSON."""
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


def _starlette_response(answer: FixedAnswer) -> Response:
    return Response(answer.body, answer.status, headers=dict(answer.headers), media_type=answer.content_type)


def _uri(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    if scope["query_string"]:
        raw += b"?" + scope["query_string"]
    return raw.decode("ascii", "backslashreplace")


def _remote(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "@"
