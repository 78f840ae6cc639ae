"""Graphite: the rate of a metric, and a proxy for the graphs of the page."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, unquote, urlsplit

from starlette.responses import Response

from nsqx.cluster.http import body_of, decode
from nsqx.errors import HTTPError, RequestFailed
from nsqx.nsqadmin.request_context import RequestContext, json_response
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.cluster.http import HTTPSession
    from nsqx.log import Log
    from nsqx.nsqadmin.options import NsqadminOptions

# Headers of one connection, and headers that the HTTP client or server sets.
_NOT_FORWARDED = frozenset(
    (
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        # Credentials for nsqadmin.
        "authorization",
        "cookie",
    )
)


class GraphiteAPI:
    """``/api/graphite`` and ``/render``."""

    def __init__(self, options: NsqadminOptions, http: HTTPSession, log: Log) -> None:
        self._options = options
        self._http = http
        self._log = log

    async def rate(self, context: RequestContext) -> Response:
        """Return messages per second, from the count of the interval before the last one."""
        if context.query.get("metric") != "rate":
            raise HTTPError(400, "INVALID_ARG_METRIC")
        target = context.query.get("target")
        if target is None:
            raise HTTPError(400, "INVALID_ARG_TARGET")
        interval_s = self._options.statsd_interval // NS_PER_S
        query = f"format=json&from=-{interval_s * 2}sec&target={quote_plus(target)}&until=-{interval_s}sec"
        url = f"{self._options.graphite_url}/render?{query}"
        self._log.info("GRAPHITE: %s", url)
        try:
            document = decode(body_of(await self._http.fetch("GET", url, headers=_credentials(url))))
            count = document[0]["datapoints"][0][0]
            rate = "N/A" if count < 0 else f"{count / interval_s:.2f}"
        except (RequestFailed, LookupError, TypeError, ArithmeticError) as error:
            self._log.error("graphite request failed - %s", error)
            raise HTTPError(500, "INTERNAL_ERROR") from None
        return json_response({"rate": rate})

    async def render(self, context: RequestContext) -> Response:
        """Forward the request to Graphite with the same path and query."""
        base = urlsplit(self._options.graphite_url)
        target = context.head.target.decode("latin-1")
        url = f"{base.scheme}://{base.netloc.rpartition('@')[2]}{target}"
        headers = {name: value for name, value in context.request.headers.items() if name.lower() not in _NOT_FORWARDED}
        headers["x-forwarded-for"] = ", ".join(
            filter(
                None, (headers.get("x-forwarded-for"), context.request.client.host if context.request.client else "")
            )
        )
        try:
            answer = await self._http.fetch("GET", url, headers={**headers, **_credentials(base.geturl())})
        except RequestFailed as error:
            self._log.warn("http: proxy error: %s", error)
            return Response(b"", 502)
        shown = {name: value for name, value in answer.headers.items() if name.lower() not in _NOT_FORWARDED}
        return Response(answer.body, answer.status, headers=shown)


def _credentials(url: str) -> dict[str, str]:
    """Return the basic authentication header for the user and password of a URL."""
    parts: Any = urlsplit(url)
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
