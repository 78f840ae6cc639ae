"""HTTP queries to nsqlookupds and nsqds: topics, nodes and statistics."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote_plus, urlsplit

import orjson

from nsqx.errors import NSQError
from nsqx.gotext import quote
from nsqx.net.address import format_host_port
from nsqx.net.daemon_http import NSQD, NSQLOOKUPD, Credentials, ask
from nsqx.net.http_client import HTTPRequestFailed
from nsqx.tools.utility import strerror

_COUNTS = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)

_T = TypeVar("_T")


class QueryFailed(NSQError):
    """A daemon did not answer, or its answer is invalid; the text contains the URL and the reason."""


class ClusterQueries:
    """Queries with timeouts. Each query is sent to all addresses at once; an address is host:port or an https URL."""

    def __init__(
        self, credentials: Credentials, *, connect_timeout_s: float = 2.0, request_timeout_s: float = 5.0
    ) -> None:
        self._credentials = credentials
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s

    async def topics(self, lookupd_addresses: Sequence[str]) -> tuple[list[str], list[QueryFailed]]:
        """Return the topics of all nsqlookupds, and the failures; raises QueryFailed if all of them fail."""
        answers, failures = await self._ask_all(
            NSQLOOKUPD, lookupd_addresses, lambda address: self._get(NSQLOOKUPD, address, "/topics")
        )
        found = {topic for answer in answers for topic in _field(answer, "topics", list) or []}
        return sorted(found), failures

    async def nsqds(self, lookupd_addresses: Sequence[str], topic: str = "") -> list[str]:
        """Return the HTTP addresses of the nsqds with ``topic``, or of all; raises QueryFailed if a query fails."""
        path = f"/lookup?topic={quote_plus(topic)}" if topic else "/nodes"
        answers = await self._ask_each(
            NSQLOOKUPD,
            lookupd_addresses,
            lambda address: self._get(NSQLOOKUPD, address, path, missing_is_empty=True),
        )
        found: dict[str, None] = {}
        for answer in answers:
            for producer in _field(answer, "producers", list) or []:
                found[format_host_port(producer["broadcast_address"], producer["http_port"])] = None
        return list(found)

    async def producers(self, lookupd_addresses: Sequence[str], topic: str) -> dict[str, str]:
        """Return the HTTP addresses, by TCP address, of the nsqds that have ``topic``.

        Raises QueryFailed if no nsqlookupd answers.
        """
        path = f"/lookup?topic={quote_plus(topic)}"
        answers, _ = await self._ask_all(
            NSQLOOKUPD,
            lookupd_addresses,
            lambda address: self._get(NSQLOOKUPD, address, path, missing_is_empty=True),
        )
        found: dict[str, str] = {}
        for answer in answers:
            for producer in _field(answer, "producers", list) or []:
                host = producer["broadcast_address"]
                tcp_address = format_host_port(host, producer["tcp_port"])
                found[tcp_address] = format_host_port(host, producer["http_port"])
        return found

    async def tcp_port(self, nsqd_address: str) -> int:
        """Return the TCP port of the nsqd with this HTTP address; raises QueryFailed."""
        port = (await self._get(NSQD, nsqd_address, "/info")).get("tcp_port")
        return port if isinstance(port, int) else 0

    async def stats(self, nsqd_addresses: Sequence[str], topic: str = "", channel: str = "") -> list[dict[str, Any]]:
        """Return the topics in /stats of all nsqds; raises QueryFailed if any query fails."""
        entries, failures = await self.stats_of_reachable(nsqd_addresses, topic, channel)
        if failures:
            raise QueryFailed("; ".join(map(str, failures)))
        return entries

    async def stats_of_reachable(
        self, nsqd_addresses: Sequence[str], topic: str = "", channel: str = ""
    ) -> tuple[list[dict[str, Any]], list[QueryFailed]]:
        """Return the topics in /stats of the nsqds that answer, and the failures; raises QueryFailed if all fail."""
        query = "format=json"
        if topic:
            query += f"&topic={quote_plus(topic)}"
        if channel:
            query += f"&channel={quote_plus(channel)}"
        answers, failures = await self._ask_all(
            NSQD,
            nsqd_addresses,
            lambda address: self._get(NSQD, address, f"/stats?{query}&include_clients=false"),
        )
        # Before NSQ 1.0 the answer was wrapped in "data".
        entries = [each for answer in answers for each in _field(answer.get("data", answer), "topics", list) or []]
        return entries, failures

    async def _ask_each(self, what: str, addresses: Sequence[str], ask: Callable[[str], Awaitable[_T]]) -> list[_T]:
        answers, failures = await self._ask_all(what, addresses, ask)
        if failures:
            raise QueryFailed("; ".join(map(str, failures)))
        return answers

    async def _ask_all(
        self, what: str, addresses: Sequence[str], ask: Callable[[str], Awaitable[_T]]
    ) -> tuple[list[_T], list[QueryFailed]]:
        """Return the answers and the failures; raises QueryFailed if all queries fail."""
        outcomes = await asyncio.gather(*map(ask, addresses), return_exceptions=True)
        answers: list[_T] = []
        failures: list[QueryFailed] = []
        for outcome in outcomes:
            if isinstance(outcome, QueryFailed):
                failures.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers.append(outcome)
        if failures and not answers:
            raise QueryFailed(f"failed to query any {what}: {'; '.join(map(str, failures))}")
        return answers, failures

    async def _get(self, kind: str, address: str, path: str, *, missing_is_empty: bool = False) -> dict[str, Any]:
        """Return a JSON object; raises QueryFailed."""
        url = f"{address.rstrip('/') if '://' in address else f'http://{address}'}{path}"
        try:
            answer = await ask(
                kind,
                "GET",
                url,
                self._credentials,
                connect_timeout_s=self._connect_timeout_s,
                request_timeout_s=self._request_timeout_s,
            )
        except HTTPRequestFailed as error:
            raise QueryFailed(_reason(url, error)) from error
        if missing_is_empty and answer.status == 404 and b"TOPIC_NOT_FOUND" in answer.body:
            return {}
        if answer.status != 200:
            raise QueryFailed(f"{url}: got response {answer.status} {quote(answer.body[:200])}")
        return _json_object(url, answer.body)


def _json_object(url: str, body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise QueryFailed(f"{url}: the answer is not JSON") from None
    if not isinstance(value, dict):
        raise QueryFailed(f"{url}: the answer is not a JSON object: is this an NSQ daemon?")
    return value


def _field(answer: dict[str, Any], name: str, kind: type) -> Any:
    value = answer.get(name)
    if value is not None and not isinstance(value, kind):
        raise QueryFailed(f"the field {name} of the answer is not a list")
    return value


def _reason(url: str, error: HTTPRequestFailed) -> str:
    """Return the reason of a failed request, in Go's wording for system errors."""
    cause = error.__context__
    if isinstance(cause, ssl.SSLError):
        return f'Get "{url}": tls: {getattr(cause, "verify_message", "") or cause.reason or cause}'
    if isinstance(cause, OSError) and cause.errno:
        return f'Get "{url}": dial tcp {urlsplit(url).netloc}: connect: {strerror(cause)}'
    return str(error)


def total(entries: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the sums of the counts of several entries of /stats, and ``memory_depth``."""
    sums = dict.fromkeys(_COUNTS, 0)
    for entry in entries:
        for name in _COUNTS:
            sums[name] += entry.get(name, 0)
    sums["memory_depth"] = sums["depth"] - sums["backend_depth"]
    return sums
