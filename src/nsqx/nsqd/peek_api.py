"""The route of nsqd's HTTP API that shows messages without consuming them: /peek."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from nsqx.errors import HTTPError
from nsqx.net.responses import Response, json_response
from nsqx.nsqd.classic_peek import ClassicPeek
from nsqx.nsqd.log_cursor import LogCursor
from nsqx.nsqd.log_flow import LogFlow
from nsqx.nsqd.log_peek import LogPeek
from nsqx.nsqd.log_position import LogPositions, parse_time
from nsqx.nsqd.peek import DEFAULT_BYTES, DEFAULT_COUNT, DELAYED, MAX_BYTES, MAX_COUNT, MAX_SKIP, STATES, PeekRequest
from nsqx.nsqd.request_targets import find_topic, find_topic_and_channel
from nsqx.nsqd.topic_settings import CLASSIC, LOG
from nsqx.wire import byteops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqx.net.requests import Request
    from nsqx.net.router import Router
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.peek import PeekAnswer
    from nsqx.nsqd.topic import Topic

_INTEGER = re.compile(r"[0-9]{1,18}", re.ASCII)
# The parameters that say which messages are wanted. Only one of them can be given.
_PLACES = ("offset", "time", "id", "last", "skip")
# Only so many requests read and search at the same time, because the threads have other work.
_MAX_RUNNING = 4


def add_peek_route(router: Router, broker: Broker) -> None:
    """Add the route of this module."""
    router.add("GET", "/peek", PeekAPI(broker).peek)


class PeekAPI:
    """Shows messages. No request changes what a consumer gets, or a depth."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._positions = LogPositions(broker)
        self._limit = asyncio.Semaphore(_MAX_RUNNING)

    async def peek(self, request: Request) -> Response:
        """Show messages of a topic, or the unfinished messages of a channel."""
        query = request.query
        topic, channel = find_topic(self._broker, request), None
        if "channel" in query:
            topic, channel = find_topic_and_channel(self._broker, request)
        wanted = self.parse(query)
        if wanted.state not in ("", DELAYED) and channel is None:
            raise HTTPError(400, "MISSING_ARG_CHANNEL")
        return json_response(await self.answer(topic, channel, wanted))

    async def answer(self, topic: Topic, channel: Channel | None, wanted: PeekRequest) -> PeekAnswer:
        """Return the answer for a topic, or for a channel of it; raises HTTPError."""
        async with self._limit:
            flow = topic.flow
            peek: LogPeek | ClassicPeek
            if isinstance(flow, LogFlow):
                if wanted.skip:
                    raise HTTPError(400, "INVALID_SKIP")
                cursor = channel.store if channel is not None else None
                assert cursor is None or isinstance(cursor, LogCursor)
                peek = LogPeek(self._broker, flow, self._positions, cursor, wanted)
            else:
                if wanted.offset is not None or wanted.time_ns is not None or wanted.last is not None:
                    raise HTTPError(400, "NOT_A_LOG")
                peek = ClassicPeek(self._broker, topic, channel, wanted)
            await peek.run()
        answer: PeekAnswer = {
            "topic": topic.name,
            "store": LOG if isinstance(flow, LogFlow) else CLASSIC,
            "messages": peek.collector.messages,
            "next": peek.next,
            "end": peek.end,
            "scanned": peek.collector.scanned,
            "complete": peek.collector.is_complete,
        }
        return answer if channel is None else {**answer, "channel": channel.name}

    def parse(self, query: Mapping[str, str]) -> PeekRequest:
        """Return which messages a query wants; raises HTTPError."""
        if sum(name in query for name in _PLACES) > 1:
            raise HTTPError(400, "CONFLICTING_ARGS")
        state = query.get("state", "")
        if state not in ("", *STATES):
            raise HTTPError(400, "INVALID_STATE")
        return PeekRequest(
            offset=_number(query, "offset", 0) if "offset" in query else None,
            time_ns=self._parse_time(query["time"]) if "time" in query else None,
            id_number=_parse_id(query["id"]) if "id" in query else None,
            last=_number(query, "last", 0, 1) if "last" in query else None,
            skip=_number(query, "skip", 0, 0, MAX_SKIP),
            count=1 if "id" in query else _parse_count(query),
            max_bytes=_number(query, "max_bytes", DEFAULT_BYTES, 1, MAX_BYTES),
            contains=query.get("contains", ""),
            state=state,
        )

    def _parse_time(self, text: str) -> int:
        try:
            return parse_time(text, self._broker.clock.wall_ns())
        except ValueError:
            raise HTTPError(400, "INVALID_TIME") from None


def _parse_count(query: Mapping[str, str]) -> int:
    """Return how many messages are wanted: all of the last ones, if only ``last`` is given."""
    default = DEFAULT_COUNT
    if "last" in query:
        default = min(MAX_COUNT, _number(query, "last", DEFAULT_COUNT, 1))
    return _number(query, "count", default, 1, MAX_COUNT)


def _parse_id(text: str) -> int:
    number = byteops.id_number(text.lower().encode())
    if number < 0:
        raise HTTPError(400, "INVALID_ID")
    return number


def _number(query: Mapping[str, str], name: str, default: int, least: int = 0, most: int = 1 << 62) -> int:
    text = query.get(name)
    if text is None:
        return default
    if _INTEGER.fullmatch(text) is None or not least <= int(text) <= most:
        raise HTTPError(400, f"INVALID_{name.upper()}")
    return int(text)
