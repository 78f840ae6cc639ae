"""Lists over the whole cluster: all channels and all nsqds from the poller, all consumers by asking every nsqd.

A list can be long, so that the caller names what it wants: a search, a filter, an order and a limit. The nsqds are
asked for their clients at most once in a poll interval, whatever the number of viewers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.nsqd import stats_of
from nsqx.errors import HTTPError, RequestFailed
from nsqx.nsqadmin.consumer_list import ConsumerList
from nsqx.nsqadmin.request_context import RequestContext, json_response

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.cluster.nsqd import NsqdClient
    from nsqx.nsqadmin.cluster import ClusterClient
    from nsqx.nsqadmin.poller import Poller
    from nsqx.nsqadmin.single_flight import SingleFlight

MAX_ROWS = 1000
DEFAULT_ROWS = 100
# The shortest time between two readings of all clients, without a poller.
_MIN_READING_S = 5.0
# Rates are computed between readings that are at most so far apart.
_MAX_STEP_S = 120.0

_Row = dict[str, Any]

CHANNEL_FILTERS: dict[str, Callable[[_Row], bool]] = {
    "": bool,
    "busy": lambda row: row["rate"] > 0 or row["rate_out"] > 0,
    "backlog": lambda row: bool(row["backlog"]),
    "unread": lambda row: row["clients"] == 0,
    "paused": lambda row: bool(row["paused"]),
    "failing": lambda row: row["timed_out_per_min"] > 0 or row["requeued_per_min"] > 0,
    "trouble": lambda row: bool(row["trouble"]) or row["missing_nodes"] > 0,
}
CONSUMER_FILTERS: dict[str, Callable[[_Row], bool]] = {
    "": bool,
    "busy": lambda row: (row["finished_per_s"] or 0) > 0 or row["in_flight_count"] > 0,
    "idle": lambda row: row["ready_count"] == 0,
    "requeueing": lambda row: row["requeue_count"] > 0,
}
CHANNEL_KEYS = (
    "name",
    "topic",
    "matters",
    "rate",
    "rate_out",
    "depth",
    "oldest",
    "drain",
    "in_flight",
    "deferred",
    "requeued",
    "timed_out",
    "latency",
    "clients",
)
CONSUMER_KEYS = (
    "name",
    "topic",
    "channel",
    "connections",
    "ready",
    "in_flight",
    "rate",
    "finished",
    "requeued",
    "connected",
)
_CONSUMER_FIELDS = {
    "name": "hostname",
    "ready": "ready_count",
    "in_flight": "in_flight_count",
    "finished": "finish_count",
    "requeued": "requeue_count",
    "connected": "connected_at_s",
    "rate": "finished_per_s",
}
_FOREVER_S = 1e12


class ListsAPI:
    """The lists of channels, consumers and nodes."""

    def __init__(self, poller: Poller | None, cluster: ClusterClient, single_flight: SingleFlight) -> None:
        """Without a poller there are no lists of channels and nodes: these routes answer 404."""
        self._poller = poller
        self._cluster = cluster
        self._single_flight = single_flight
        self._reading: tuple[float, ConsumerList, list[str]] | None = None

    async def channels(self, context: RequestContext) -> Response:
        """Return the channels of all topics at the last poll."""
        poller = self._require_poller()
        stats = poller.cluster_stats
        rows = [row for topic in stats.present_topics() for row in stats.channel_rows(topic)]
        found = _matching(context, rows, ("topic", "name"), CHANNEL_FILTERS)
        found = _in_order(context, found, "-matters", CHANNEL_KEYS, _channel_value, ("topic", "name"))
        clock = stats.clock
        return json_response(
            {
                "time_s": round(clock.time_s(clock.number), 3) if clock.number >= 0 else None,
                "total": len(rows),
                "found": len(found),
                "channels": found[: _limit(context)],
            }
        )

    async def nodes(self, _context: RequestContext) -> Response:
        """Return the numbers of every nsqd at its last answer."""
        return json_response({"nodes": self._require_poller().node_rows.rows()})

    async def consumers(self, context: RequestContext) -> Response:
        """Return the consumers of all channels, from readings at most a poll interval old."""
        at_s, reading, problems = await self._single_flight.share(("all consumers",), self._read)
        rows = reading.rows()
        found = _matching(context, rows, ("topic", "channel", "hostname", "client_id", "user_agent"), CONSUMER_FILTERS)
        found = _in_order(context, found, "topic", CONSUMER_KEYS, _consumer_value, ("topic", "channel", "hostname"))
        return json_response(
            {
                "time_s": round(at_s, 3),
                "total": len(rows),
                "found": len(found),
                "consumers": found[: _limit(context)],
                "message": "WARNING: " + "; ".join(problems) if problems else "",
            }
        )

    def _require_poller(self) -> Poller:
        if self._poller is None:
            raise HTTPError(404, "HISTORY_DISABLED")
        return self._poller

    async def _read(self) -> tuple[float, ConsumerList, list[str]]:
        """Ask every nsqd for its clients, unless that was done a moment ago."""
        now_s = time.time()
        before = self._reading
        least_s = _MIN_READING_S if self._poller is None else self._poller.interval_s
        if before is not None and 0 <= now_s - before[0] < least_s:
            return before
        problems: list[str] = []
        try:
            nodes = await self._cluster.nodes(problems)
        except RequestFailed as error:
            raise HTTPError(502, f"UPSTREAM_ERROR: {error}") from None
        is_recent = before is not None and now_s - before[0] <= _MAX_STEP_S
        reading = ConsumerList(now_s, before[1] if before is not None and is_recent else None)
        adding = asyncio.Lock()

        async def add(nsqd: NsqdClient) -> None:
            answer = await nsqd.stats_bytes(include_clients=True, include_mem=False)
            # One node at a time, with a yield to the event loop between them.
            async with adding:
                reading.add(nsqd.address, stats_of(answer)["topics"])
                await asyncio.sleep(0)

        answers = await ask_all(self._cluster.nsqds(nodes), add)
        problems.extend(answers.plain_problems)
        reading.forget_before()
        self._reading = now_s, reading, problems
        return self._reading


def _matching(
    context: RequestContext, rows: list[_Row], names: tuple[str, ...], filters: dict[str, Callable[[_Row], bool]]
) -> list[_Row]:
    """Return the rows that a request selects."""
    chosen = filters.get(context.query.get("filter", ""))
    if chosen is None:
        raise HTTPError(400, "INVALID_ARG_FILTER")
    words = context.query.get("q", "").casefold().split()

    def has_words(row: _Row) -> bool:
        named = " ".join(row[name] for name in names).casefold()
        return all(word in named for word in words)

    return [row for row in rows if chosen(row) and (not words or has_words(row))]


def _in_order(
    context: RequestContext,
    rows: list[_Row],
    default: str,
    keys: Iterable[str],
    value_of: Callable[[_Row, str], Any],
    names: tuple[str, ...],
) -> list[_Row]:
    """Return the rows in the order that a request names; rows that are equal by name."""
    order = context.query.get("sort", "") or default
    key = order.removeprefix("-")
    if key not in keys:
        raise HTTPError(400, "INVALID_ARG_SORT")
    by_name = sorted(rows, key=lambda row: [row[name] for name in names])
    return sorted(by_name, key=lambda row: value_of(row, key), reverse=order.startswith("-"))


def _limit(context: RequestContext) -> int:
    text = context.query.get("limit", "") or str(DEFAULT_ROWS)
    if not (text.isascii() and text.isdigit()) or not 0 < int(text[:9]) <= MAX_ROWS:
        raise HTTPError(400, "INVALID_ARG_LIMIT")
    return int(text)


def _channel_value(row: _Row, key: str) -> Any:
    """Return what a channel is sorted by; larger values need more attention."""
    if key == "matters":
        return matters(row)
    if key == "oldest":
        return -(row["oldest_at_s"] or _FOREVER_S)
    if key == "drain":
        if row["drain"] in ("growing", "steady"):
            return _FOREVER_S * (2 if row["drain"] == "growing" else 1)
        return -1.0 if row["drain_s"] is None else row["drain_s"]
    if key == "latency":
        return max(row["latency_ns"].values(), default=0)
    return row[{"requeued": "requeued_per_min", "timed_out": "timed_out_per_min"}.get(key, key)]


def matters(row: _Row) -> tuple[int, ...]:
    """Return how much a channel needs attention: trouble first, then old or growing backlogs, then the deepest.

    Depths count by their magnitude, so that rows do not change places with every poll.
    """
    return int(bool(row["trouble"])), int(row["backlog"]), row["depth"].bit_length()


def _consumer_value(row: _Row, key: str) -> Any:
    value = row[_CONSUMER_FIELDS.get(key, key)]
    return -1.0 if value is None else value
