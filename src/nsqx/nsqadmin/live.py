"""The live data of the page: the overview, histories, and streams of changes, all from the poller's statistics.

Only the poller queries the cluster. For a topic or channel that is open in a page there is one more query per poll,
independent of the number of viewers. An answer is encoded once for all its viewers.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.errors import HTTPError
from nsqx.names import is_valid_name
from nsqx.nsqadmin.cluster_stats import SPARKLINE_POINTS
from nsqx.nsqadmin.long_history import NSQADMIN_STOPPED, event_documents, join
from nsqx.nsqadmin.request_context import RequestContext, json_bytes_response, json_response
from nsqx.nsqadmin.sse import Viewers, event_of
from nsqx.nsqadmin.subject import CHANNEL_SERIES, TOPIC_SERIES, Subject

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.nsqadmin.alerting import Alerting
    from nsqx.nsqadmin.api import ClusterQueryAPI
    from nsqx.nsqadmin.history_keeper import HistoryKeeper
    from nsqx.nsqadmin.poller import Poller

ALL = "all"
# A shorter time without a poll is not shown as a gap.
_LEAST_GAP_S = 15.0


class LiveAPI:
    """Overview, histories and streams."""

    def __init__(
        self,
        poller: Poller | None,
        queries: ClusterQueryAPI,
        viewers: Viewers,
        alerting: Alerting | None = None,
        keeper: HistoryKeeper | None = None,
    ) -> None:
        """Without a poller there is no history, and every route here answers 404."""
        self._alerting = alerting
        self._keeper = keeper
        self._poller = poller
        self._queries = queries
        self._viewers = viewers
        # The encoded answers of the last poll, by subject.
        self._encoded: dict[tuple[str, ...], tuple[int, bytes]] = {}
        self._details: dict[tuple[str, str], tuple[int, asyncio.Task[bytes]]] = {}

    # Answers

    async def overview(self, _context: RequestContext) -> Response:
        poller = self._require_poller()
        return json_bytes_response(self._encode_once(("overview",), lambda: self._overview(poller)))

    async def health(self, _context: RequestContext) -> Response:
        """The header of the overview, without the topics."""
        return json_response(self._head(self._require_poller()))

    async def topic_history(self, context: RequestContext) -> Response:
        poller = self._require_poller()
        name = context.params["topic"]
        topic = poller.cluster_stats.topics.get(name)
        return self._history(context, topic, (name, ""), "TOPIC_NOT_FOUND")

    async def channel_history(self, context: RequestContext) -> Response:
        poller = self._require_poller()
        name, channel_name = context.params["topic"], context.params["channel"]
        topic = poller.cluster_stats.topics.get(name)
        channel = None if topic is None else topic.channels.get(channel_name)
        code = "TOPIC_NOT_FOUND" if topic is None else "CHANNEL_NOT_FOUND"
        return self._history(context, channel, (name, channel_name), code)

    def _history(self, context: RequestContext, subject: Subject | None, key: tuple[str, str], code: str) -> Response:
        """Return the polls of the last hour; with ``span`` a longer or shorter time, in points that fit it."""
        poller = self._require_poller()
        since_s, span_s = _number(context, "since"), _number(context, "span")
        head = {"topic": key[0], "channel": key[1]} if key[1] else {"topic": key[0]}
        names = CHANNEL_SERIES if key[1] else TOPIC_SERIES
        keeper = self._keeper
        if span_s is None or keeper is None:
            if subject is None:
                raise HTTPError(404, code)
            return json_response(_polls(poller, subject, head, names, -math.inf if since_s is None else since_s))
        if not 0 < span_s < math.inf:
            raise HTTPError(400, "INVALID_ARG_SPAN")
        now_s = time.time()
        stretches = keeper.history.span(subject, key, span_s, now_s)
        if subject is None and not stretches:
            raise HTTPError(404, code)
        stops = [each for each in keeper.history.events if each.kind == NSQADMIN_STOPPED]
        times_s, series = join(stretches, len(names), max(6 * poller.interval_s, _LEAST_GAP_S), stops)
        nodes = poller.cluster_stats.nodes_with(subject) if subject is not None else ()
        return json_response(
            {
                **head,
                "interval_s": poller.interval_s,
                "step_s": max((each.step_s for each in stretches), default=0.0),
                "times_s": [round(time_s, 3) for time_s in times_s],
                "series": dict(zip(names, series, strict=True)),
                "events": event_documents(keeper.history.events, nodes, now_s - span_s),
            }
        )

    async def stream(self, context: RequestContext) -> Response:
        """Stream server-sent events about the cluster, one topic, or one channel."""
        poller = self._require_poller()
        topic = context.query.get("topics", ALL) or ALL
        channel = context.query.get("channel", "")
        if topic == ALL and "channel" not in context.query:
            return self._viewers.response(self._all_events(poller))
        if not is_valid_name(topic):
            raise HTTPError(400, "INVALID_TOPIC")
        if channel and not is_valid_name(channel):
            raise HTTPError(400, "INVALID_CHANNEL")
        return self._viewers.response(self._subject_events(poller, topic, channel))

    def _require_poller(self) -> Poller:
        if self._poller is None:
            raise HTTPError(404, "HISTORY_DISABLED")
        return self._poller

    # Encoding

    def _head(self, poller: Poller) -> dict[str, Any]:
        """Return the fields at the start of every document."""
        clock = poller.cluster_stats.clock
        return {
            "number": clock.number,
            "time_s": round(clock.time_s(clock.number), 3) if clock.number >= 0 else None,
            "interval_s": poller.interval_s,
            "nodes": poller.node_count,
            "totals": poller.cluster_stats.totals,
            "trouble": poller.cluster_stats.trouble,
            "alerts": {} if self._alerting is None else self._alerting.book.counts,
            "missing": poller.inventory.missing,
            "message": _message(poller.problems),
        }

    def _encode_once(self, key: tuple[str, ...], write: Any) -> bytes:
        """Return the result of ``write``, called at most once per poll."""
        number = self._require_poller().cluster_stats.clock.number
        encoded = self._encoded.get(key)
        if encoded is not None and encoded[0] == number:
            return encoded[1]
        self._encoded = {kept: each for kept, each in self._encoded.items() if each[0] == number}
        data: bytes = write()
        self._encoded[key] = number, data
        return data

    def _overview(self, poller: Poller) -> bytes:
        cluster_stats = poller.cluster_stats
        topics = sorted(cluster_stats.present_topics(), key=lambda topic: topic.name)
        return orjson.dumps(
            {
                **self._head(poller),
                "sparkline_s": poller.interval_s * 2 * SPARKLINE_POINTS,
                "topics": [{**topic.row, "sparkline": cluster_stats.sparkline(topic)} for topic in topics],
            }
        )

    def _changes(self, poller: Poller) -> bytes:
        cluster_stats = poller.cluster_stats
        number = cluster_stats.clock.number
        changed = [topic.row for topic in cluster_stats.present_topics() if topic.changed == number]
        return orjson.dumps({**self._head(poller), "topics": changed, "removed": cluster_stats.removed})

    def _subject(self, poller: Poller, topic_name: str, channel_name: str) -> bytes:
        topic = poller.cluster_stats.topics.get(topic_name)
        row = topic.row if topic is not None and topic.row else None
        channels = poller.cluster_stats.channel_rows(topic) if topic is not None and row else []
        document = {**self._head(poller), "topic": row}
        if channel_name:
            document["channel"] = next((each for each in channels if each["name"] == channel_name), None)
        else:
            document["channels"] = channels
        return orjson.dumps(document)

    async def _detail(self, poller: Poller, topic: str, channel: str) -> bytes:
        """Return NSQ's own answer about a topic or channel, queried once per poll for all its viewers."""
        number = poller.cluster_stats.clock.number
        begun = self._details.get((topic, channel))
        if begun is None or begun[0] != number:
            self._details = {key: each for key, each in self._details.items() if each[0] == number}
            begun = number, asyncio.ensure_future(self._ask_detail(topic, channel))
            self._details[topic, channel] = begun
        return await asyncio.shield(begun[1])

    async def _ask_detail(self, topic: str, channel: str) -> bytes:
        queries = self._queries
        try:
            if channel:
                return await queries.encode(lambda report: queries.channel_document(report, topic, channel))
            return await queries.encode(lambda report: queries.topic_document(report, topic))
        except HTTPError as error:
            return orjson.dumps({"message": error.code})

    # Streams

    async def _all_events(self, poller: Poller) -> AsyncGenerator[bytes, None]:
        seen = -1
        while not poller.is_stopped:
            polled = poller.next_poll
            number = poller.cluster_stats.clock.number
            if seen < 0 or number > seen + 1:
                # A viewer that missed a poll needs a complete snapshot: changes alone do not suffice.
                yield event_of("snapshot", self._encode_once(("overview",), lambda: self._overview(poller)), number)
            elif number == seen + 1:
                yield event_of("delta", self._encode_once(("changes",), lambda: self._changes(poller)), number)
            seen = number
            await polled.wait()

    async def _subject_events(self, poller: Poller, topic: str, channel: str) -> AsyncGenerator[bytes, None]:
        name = "snapshot"
        while not poller.is_stopped:
            polled = poller.next_poll
            number = poller.cluster_stats.clock.number
            key = ("subject", topic, channel)
            yield event_of(name, self._encode_once(key, lambda: self._subject(poller, topic, channel)), number)
            name = "delta"
            yield event_of("detail", await self._detail(poller, topic, channel))
            await polled.wait()


def _message(problems: list[str]) -> str:
    return "WARNING: " + "; ".join(problems) if problems else ""


def _number(context: RequestContext, name: str) -> float | None:
    """Return a number of the query, or None; raise HTTPError 400 if it is invalid."""
    text = context.query.get(name, "")
    try:
        number = float(text) if text else None
    except ValueError:
        number = math.nan
    if number is not None and math.isnan(number):
        raise HTTPError(400, f"INVALID_ARG_{name.upper()}")
    return number


def _polls(
    poller: Poller, subject: Subject, head: dict[str, Any], series: tuple[str, ...], since_s: float
) -> dict[str, Any]:
    clock = poller.cluster_stats.clock
    numbers = clock.range(since_s)
    return {
        **head,
        "interval_s": poller.interval_s,
        "times_s": [round(clock.time_s(number), 3) for number in numbers],
        "series": {name: subject.track.series(index, numbers) for index, name in enumerate(series)},
    }
