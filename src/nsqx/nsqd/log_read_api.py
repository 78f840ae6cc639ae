"""The routes of nsqd's HTTP API for readers with positions of their own, such as Spark: /log/read, /channel/commit.

A range of a log is sent as the bytes of whole batches, which are not parsed here. Threads read them, and the body is
sent while it is read. The position of such a reader is a channel, so depth, lag and retention work as for consumers.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypedDict

from nsqx.errors import HTTPError
from nsqx.net.responses import Response, StreamedResponse, json_response
from nsqx.nsqd.log_api import durable
from nsqx.nsqd.log_cursor import LogCursor
from nsqx.nsqd.log_position import LogPositions, log_flow_of
from nsqx.nsqd.refusals import refused
from nsqx.nsqd.request_targets import find_topic, find_topic_and_channel
from nsqx.queues.log.raw_reads import PIECE_SIZE, SegmentRead, TailRead, begin_raw_read
from nsqx.wire import byteops
from nsqx.wire.http_headers import NSQ_HEADERS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from nsqx.net.requests import Request
    from nsqx.net.router import Router
    from nsqx.nsqd.broker import Broker
    from nsqx.queues.log.log import TopicLog

OCTETS = "application/octet-stream"
DEFAULT_READ_BYTES, MAX_READ_BYTES = 8 << 20, 64 << 20
_INTEGER = re.compile(r"[0-9]{1,18}", re.ASCII)
_LOG_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
# At most this many requests read at the same time, because the threads also sync publishes.
_MAX_RUNNING = 8

# "from" is a keyword of Python.
CommitAnswer = TypedDict(
    "CommitAnswer",
    {
        "topic": str,
        "channel": str,
        "log": Annotated[str, "The id of the log: 16 hexadecimal digits."],
        "from": Annotated[int, "The first unfinished offset before."],
        "to": Annotated[int, "The first unfinished offset now."],
        "depth": Annotated[int, "Waiting messages now."],
    },
)


class CreateAnswer(TypedDict):
    """The response of /channel/create with `start`."""

    topic: str
    channel: str
    log: Annotated[str, "The id of the log: 16 hexadecimal digits."]
    start: Annotated[int, "The position of the channel: where it begins, or where it is if it existed."]
    created: Annotated[bool, "False if the channel existed."]


def add_log_read_routes(router: Router, broker: Broker) -> None:
    """Add the routes of this module."""
    api = LogReadAPI(broker)
    router.add("GET", "/log/read", api.read)
    router.add("POST", "/channel/commit", api.commit)


def check_log_id(log: TopicLog, query: Mapping[str, str]) -> None:
    """Raise HTTPError if a query has no id of a log, or that of another log of the topic."""
    log_id = query.get("log")
    if log_id is None:
        raise HTTPError(400, "MISSING_ARG_LOG")
    if _LOG_ID.fullmatch(log_id) is None:
        raise HTTPError(400, "INVALID_LOG")
    if int(log_id, 16) != log.identity.log_id:
        raise HTTPError(409, "LOG_CHANGED")


def read_offset(query: Mapping[str, str], name: str, missing: str) -> int:
    """Return an offset in a query; raises HTTPError."""
    text = query.get(name)
    if text is None:
        raise HTTPError(400, missing)
    if _INTEGER.fullmatch(text) is None:
        raise HTTPError(400, f"INVALID_{name.upper()}")
    return int(text)


class LogReadAPI:
    """Sends ranges of logs, and keeps the positions of their readers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._positions = LogPositions(broker)
        self._limit = asyncio.Semaphore(_MAX_RUNNING)

    # /log/read

    async def read(self, request: Request) -> StreamedResponse:
        """Send the batches of a range, or those at its beginning if the range is large."""
        query = request.query
        topic, channel = find_topic(self._broker, request), None
        if "channel" in query:
            topic, channel = find_topic_and_channel(self._broker, request)
        log = log_flow_of(topic).log
        check_log_id(log, query)
        first = read_offset(query, "from", "MISSING_ARG_FROM")
        end = read_offset(query, "to", "MISSING_ARG_TO")
        max_bytes = _max_bytes(query)
        if end <= first:
            raise HTTPError(400, "INVALID_TO")
        self._check_range(log, first, end)
        headers: tuple[tuple[str, str], ...] = ()
        if channel is not None:
            cursor = channel.store
            assert isinstance(cursor, LogCursor)
            headers = (("X-Nsq-Channel", str(cursor.number)),)
        async with self._limit:
            job = await self._positions.run(begin_raw_read(log, first, end, max_bytes))
        if job.error is not None:
            self._check_range(log, first, end)  # it may have been removed meanwhile
            self._broker.log.error("LOG(%s): failed to read - %s", topic.name, job.error)
            raise HTTPError(503, "READ_FAILED")
        headers = (
            *NSQ_HEADERS,
            ("X-Nsq-Log", f"{log.identity.log_id:016x}"),
            ("X-Nsq-First-Id", byteops.id_text(log.identity.first_id).decode()),
            ("X-Nsq-Segment", str(job.segment_first)),
            ("X-Nsq-First", str(job.first)),
            ("X-Nsq-Next", str(job.next)),
            ("X-Nsq-Last", str(log.state.last_end(first, job.next))),
            *headers,
        )
        return StreamedResponse(200, self._pieces(topic.name, job), OCTETS, headers, length=job.size)

    def _check_range(self, log: TopicLog, first: int, end: int) -> None:
        if log.is_deleted:
            raise HTTPError(409, "LOG_CHANGED")
        if first < log.first:
            raise HTTPError(410, "OFFSET_GONE", fields=(("first", log.first),))
        if end > log.stable:
            raise HTTPError(416, "OFFSET_BEYOND_END", fields=(("stable", log.stable),))

    async def _pieces(self, topic_name: str, job: TailRead | SegmentRead) -> AsyncGenerator[bytes, None]:
        sent, data = 0, job.data
        job.data = b""
        while True:
            for start in range(0, len(data), PIECE_SIZE):
                yield data[start : start + PIECE_SIZE] if len(data) > PIECE_SIZE else data
            sent += len(data)
            if sent >= job.size:
                return
            assert isinstance(job, SegmentRead)
            async with self._limit:
                piece = await self._positions.run(job.piece(sent))
            data = piece.data
            if piece.error is not None or not data:
                # The client notices the missing end and asks again; then it gets the reason.
                raise OSError(f"cannot read the log of {topic_name}: {piece.error or 'the segment is too short'}")

    # /channel/commit

    async def commit(self, request: Request) -> Response:
        """Finish everything before an offset for a channel, and answer when that is durable."""
        broker, query = self._broker, request.query
        topic, channel = find_topic_and_channel(broker, request)
        flow = log_flow_of(topic)
        log = flow.log
        check_log_id(log, query)
        offset = read_offset(query, "offset", "MISSING_ARG_OFFSET")
        if broker.conversions.is_converting(topic.name):
            raise HTTPError(409, "CONVERTING")
        if offset > log.stable:
            raise HTTPError(416, "OFFSET_BEYOND_END", fields=(("stable", log.stable),))
        if broker.logs.failure is not None:
            raise refused(broker.logs.failure)
        cursor = channel.store
        assert isinstance(cursor, LogCursor)
        before = cursor.floor
        broker.turn.run(partial(cursor.commit, offset))
        await durable(flow)
        answer: CommitAnswer = {
            "topic": topic.name,
            "channel": channel.name,
            "log": f"{log.identity.log_id:016x}",
            "from": before,
            "to": cursor.floor,
            "depth": cursor.depth,
        }
        return json_response(answer)


def _max_bytes(query: Mapping[str, str]) -> int:
    text = query.get("max_bytes")
    if text is None:
        return DEFAULT_READ_BYTES
    if _INTEGER.fullmatch(text) is None or not 1 <= int(text) <= MAX_READ_BYTES:
        raise HTTPError(400, "INVALID_MAX_BYTES")
    return int(text)
