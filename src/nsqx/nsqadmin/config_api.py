"""``/config``, ``/ping``, the settings that the page loads first, and the login."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson

from nsqx import log as levels
from nsqx.errors import ConfigError, HTTPError
from nsqx.net.address import TCPAddress, parse_address
from nsqx.nsqadmin import audit
from nsqx.nsqadmin.access import Access, Role
from nsqx.nsqadmin.audit import Action, Audit
from nsqx.nsqadmin.options import NsqadminOptions, config_value
from nsqx.nsqadmin.request_context import RequestContext, json_response, plain_response, text_response
from nsqx.nsqadmin.tail import MAX_PER_S
from nsqx.units import NS_PER_S
from nsqx.version import NSQ_VERSION, VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from nsqx.log import Log
    from nsqx.nsqadmin.cluster_options import ClusterLink
    from nsqx.nsqadmin.single_flight import SingleFlight

_MAX_VALUE_SIZE = 1024 * 1024


class ConfigAPI:
    """Options, settings and sessions."""

    def __init__(
        self,
        options: NsqadminOptions,
        access: Access,
        single_flight: SingleFlight,
        records: Audit,
        log: Log,
        clusters: Sequence[ClusterLink] = (),
    ) -> None:
        """``clusters`` are the links to all clusters of this nsqadmin, if it has several."""
        self._clusters = [link._asdict() for link in clusters]
        self._options = options
        self._access = access
        self._single_flight = single_flight
        self._audit = records
        self._log = log

    async def ping(self, _context: RequestContext) -> Response:
        return plain_response("OK")

    async def get_option(self, context: RequestContext) -> Response:
        """Return a string as it is, any other type as JSON."""
        self._access.check_config(context.request)
        return self._option(context.params["option"])

    async def set_option(self, context: RequestContext) -> Response:
        """Set the nsqlookupds or the log level; answers with the new value."""
        self._access.check_config(context.request)
        if context.caller.role < Role.OPERATE:
            raise HTTPError(403, "FORBIDDEN")
        name = context.params["option"]
        value = await context.body(_MAX_VALUE_SIZE, "INVALID_VALUE")
        if not value:
            raise HTTPError(413, "INVALID_VALUE")
        if name == "nsqlookupd_http_addresses":
            self._set_lookupds(value)
        elif name == "log_level":
            self._set_log_level(value)
        else:
            raise HTTPError(400, "INVALID_OPTION")
        self._single_flight.forget()
        detail = f"{name}={value[:200].decode('utf-8', 'replace')}"
        self._audit.record(Action("set_option", ""), context.caller, audit.DONE, detail)
        return self._option(name)

    def _option(self, name: str) -> Response:
        try:
            value = config_value(self._options, name)
        except KeyError:
            raise HTTPError(400, "INVALID_OPTION") from None
        return text_response(value) if isinstance(value, str) else json_response(value)

    def _set_lookupds(self, value: bytes) -> None:
        try:
            addresses = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise HTTPError(400, "INVALID_VALUE") from None
        if not isinstance(addresses, list) or not all(map(_is_address, addresses)):
            raise HTTPError(400, "INVALID_VALUE")
        self._options.nsqlookupd_http_addresses = addresses

    def _set_log_level(self, value: bytes) -> None:
        try:
            level = levels.parse_level(value.decode())
        except ValueError:
            raise HTTPError(400, "INVALID_VALUE") from None
        self._options.log_level = level
        self._log.level = level

    # The page

    async def settings(self, context: RequestContext) -> Response:
        """The settings that the page loads first. They need no login, so none is secret."""
        options = self._options
        role = context.caller.role
        document: dict[str, object] = {
            "version": NSQ_VERSION,
            "nsqx_version": VERSION,
            "base_path": options.base_path,
            "login": self._access.has_tokens,
            "role": role.name.lower(),
            "may_consume": self._access.may_consume(context.caller),
            "may_operate": self._access.may_operate(context.caller),
            "user": context.caller.user,
            "cluster": options.cluster_name,
            "clusters": self._clusters,
        }
        if role == Role.NOBODY:
            return json_response(document)
        document |= {
            "poll_interval_s": options.poll_interval / NS_PER_S,
            "history_window_s": options.history_window / NS_PER_S if options.poll_interval else 0,
            "messages": options.messages,
            "tail_max_per_s": MAX_PER_S,
            "manual_url": options.manual_url.rstrip("/"),
            "nsqlookupd": options.nsqlookupd_http_addresses,
            "graph_enabled": bool(options.graphite_url),
            "graphite_url": "" if options.proxy_graphite else options.graphite_url,
            "proxy_graphite": options.proxy_graphite,
            "statsd_interval_s": options.statsd_interval // NS_PER_S,
            "statsd_counter_format": options.statsd_counter_format,
            "statsd_gauge_format": options.statsd_gauge_format,
            "statsd_prefix": options.statsd_prefix,
        }
        return json_response(document)

    async def activity(self, _context: RequestContext) -> Response:
        """The latest audit records, newest first."""
        return json_response({"activity": list(reversed(self._audit.recent)), "message": ""})

    async def login(self, context: RequestContext) -> Response:
        """Exchange a token for a cookie, which event streams and links can use too."""
        token = (await context.fields({"token": str})).get("token", "")
        action = Action("login", "")
        try:
            role = self._access.role_of_token(context.request, token, time.monotonic())
        except HTTPError as error:
            self._audit.record(action, context.caller, audit.REFUSED, error.code)
            raise
        if role == Role.NOBODY:
            self._audit.record(action, context.caller, audit.REFUSED)
            raise HTTPError(401, "UNAUTHORIZED")
        self._audit.record(action, context.caller, audit.DONE, role.name.lower())
        response = json_response({"role": role.name.lower(), "message": ""})
        key = self._access.open_session(role, time.monotonic())
        response.headers["Set-Cookie"] = self._access.cookie(context.request, key)
        return response

    async def logout(self, context: RequestContext) -> Response:
        self._access.close_session(context.request)
        response = json_response({"message": ""})
        response.headers["Set-Cookie"] = self._access.cookie(context.request, "")
        return response


def _is_address(text: object) -> bool:
    try:
        return isinstance(text, str) and isinstance(parse_address(text), TCPAddress)
    except ConfigError:
        return False
