"""The routes of nsqd's HTTP API for positions in topic logs: move a channel, list offsets, find a time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypedDict
from urllib.parse import parse_qs

from nsqx.errors import DiskQueueError, HTTPError
from nsqx.gotext import parse_duration_ns
from nsqx.net.responses import Response, json_response
from nsqx.nsqd.log_flow import LogFlow
from nsqx.nsqd.log_position import LogPositions, log_flow_of, parse_time
from nsqx.nsqd.refusals import refused
from nsqx.nsqd.request_targets import find_topic, find_topic_and_channel
from nsqx.units import NS_PER_MINUTE, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqx.net.requests import Request
    from nsqx.net.router import Router
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.topic import Topic
    from nsqx.queues.log.log import TopicLog

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_MAX_WAIT_NS = 5 * NS_PER_MINUTE
_MAX_FIELDS = 4000
_MAX_DIGITS = 19
# How many times of first messages are remembered.
_MAX_FIRST_TIMES = 10_000

# "from" is a keyword of Python.
SeekAnswer = TypedDict(
    "SeekAnswer",
    {
        "topic": str,
        "channel": str,
        "from": Annotated[int, "The next offset before."],
        "to": Annotated[int, "The next offset now."],
        "depth_before": Annotated[int, "Waiting messages before."],
        "depth": Annotated[int, "Waiting messages now."],
        "in_flight": Annotated[int, "Messages in flight that are forgotten."],
        "forgotten": Annotated[int, "Requeued and deferred messages of the channel that are forgotten."],
        "dry_run": Annotated[bool, "True if nothing was changed."],
    },
)


class ChannelOffsets(TypedDict):
    """The position of a channel in a log."""

    channel: str
    floor: Annotated[int, "The first unfinished offset."]
    next: Annotated[int, "The first offset that was never delivered."]
    holes: Annotated[int, "Unfinished messages before `next`."]
    paused: bool


class LogOffsets(TypedDict):
    """The offsets of the log of a topic."""

    topic: str
    log: Annotated[str, "Another one if the topic is deleted and created again; 16 hexadecimal digits."]
    first: Annotated[int, "The first offset that the log still has."]
    stable: Annotated[int, "The messages before this offset are durable."]
    end: Annotated[int, "The offset of the next message."]
    first_time: Annotated[str | None, "The time of the first message; null if the log is empty."]
    bytes: int
    bytes_per_message: int
    segments: int
    paused: bool
    channels: list[ChannelOffsets]


class OffsetsAnswer(TypedDict):
    """The response of /log/offsets."""

    topics: list[LogOffsets]


class TimeAnswer(TypedDict):
    """The first message at or after a time."""

    offset: int
    timestamp: Annotated[int, "Nanoseconds since 1970."]


def add_log_routes(router: Router, broker: Broker) -> None:
    """Add the routes of this module."""
    api = LogAPI(broker)
    router.add("POST", "/channel/seek", api.seek)
    router.add("GET", "/log/offsets", api.offsets)
    router.add("GET", "/log/at", api.at)


class LogAPI:
    """Moves channels, and answers questions about offsets."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._positions = LogPositions(broker)
        self._first_times: dict[int, tuple[int, int]] = {}  # first offset and its time, by log id

    # /channel/seek

    async def seek(self, request: Request) -> Response:
        """Move a channel, and answer when the new position is durable."""
        broker, query = self._broker, request.query
        topic, channel = find_topic_and_channel(broker, request)
        if "to" not in query:
            raise HTTPError(400, "MISSING_ARG_TO")
        position = self._positions.parse(query["to"], "INVALID_POSITION")
        is_dry_run = _BOOLEANS.get(query.get("dry_run", "false"))
        if is_dry_run is None:
            raise HTTPError(400, "INVALID_DRY_RUN")
        flow = log_flow_of(topic)
        if broker.conversions.is_converting(topic.name):
            raise HTTPError(409, "CONVERTING")
        offset = await self._positions.offset_of(topic, position)
        if topic.find_channel(channel.name) is not channel:
            raise HTTPError(404, "CHANNEL_NOT_FOUND")
        if broker.logs.failure is not None and not is_dry_run:
            raise refused(broker.logs.failure)
        result = broker.turn.run(partial(channel.seek, offset, is_dry_run=is_dry_run))
        if not is_dry_run:
            await durable(flow)
        answer: SeekAnswer = {
            "topic": topic.name,
            "channel": channel.name,
            "from": result.from_offset,
            "to": result.to_offset,
            "depth_before": result.depth_before,
            "depth": result.depth,
            "in_flight": result.in_flight_count,
            "forgotten": result.forgotten_count,
            "dry_run": is_dry_run,
        }
        return json_response(answer)

    # /log/offsets

    async def offsets(self, request: Request) -> Response:
        """List the offsets of logs; with ``wait`` as soon as messages after the offset ``from`` are durable.

        With ``sync``, everything that is written is made durable first.
        """
        query = parse_qs(request.raw_query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
        topics = self._log_topics(request.query, query.get("topic", []))
        wait_ns, starts = self._parse_wait(request.query, query.get("from", []), len(topics))
        is_synced = _BOOLEANS.get(request.query.get("sync", "false"))
        if is_synced is None:
            raise HTTPError(400, "INVALID_SYNC")
        if is_synced:
            await self._sync(topics)
        if wait_ns:
            await self._await_stable(topics, starts, wait_ns, is_synced=is_synced)
        found: list[LogOffsets] = []
        for topic in topics:
            flow = topic.flow
            if isinstance(flow, LogFlow) and not flow.log.is_deleted:
                first_time = await self._first_time(flow.log)
                found.append(_offsets(topic, flow, first_time))
        answer: OffsetsAnswer = {"topics": found}
        return json_response(answer)

    def _log_topics(self, query: Mapping[str, str], names: list[str]) -> list[Topic]:
        """Return the topics in a query, or all log topics."""
        if "topic" not in query:
            return [topic for topic in self._broker.topics.values() if isinstance(topic.flow, LogFlow)]
        topics = []
        for name in dict.fromkeys(names):
            topic = self._broker.find_topic(name)
            if topic is None:
                raise HTTPError(404, "TOPIC_NOT_FOUND")
            log_flow_of(topic)
            topics.append(topic)
        return topics

    def _parse_wait(self, query: Mapping[str, str], starts: list[str], topic_count: int) -> tuple[int, list[int]]:
        """Return how long to wait, and for each topic from which offset on a message ends it."""
        if "wait" not in query:
            return 0, []
        try:
            wait_ns = parse_duration_ns(query["wait"])
        except ValueError:
            raise HTTPError(400, "INVALID_WAIT") from None
        if not 0 <= wait_ns <= _MAX_WAIT_NS:
            raise HTTPError(400, "INVALID_WAIT")
        if len(starts) not in (1, topic_count):
            raise HTTPError(400, "INVALID_FROM")
        for start in starts:
            if not start.isascii() or not start.isdigit() or len(start) > _MAX_DIGITS:
                raise HTTPError(400, "INVALID_FROM")
        return wait_ns, [int(start) for start in starts] * (topic_count if len(starts) == 1 else 1)

    async def _sync(self, topics: list[Topic]) -> None:
        """Return when what is written now is durable, or cannot be made durable."""
        try:
            for topic in topics:
                if isinstance(topic.flow, LogFlow) and topic.flow.log.stable < topic.flow.log.written:
                    self._broker.logs.write_later(is_synced=True)
                    await durable(topic.flow)
        except HTTPError:
            pass  # the answer has what is durable

    async def _await_stable(self, topics: list[Topic], starts: list[int], wait_ns: int, *, is_synced: bool) -> None:
        """Return when one of the logs has a durable message at or after its start, or after ``wait_ns``.

        With ``is_synced``, written messages are made durable.
        """
        logs = [(log_flow_of(topic).log, start) for topic, start in zip(topics, starts, strict=True)]
        has_changed = asyncio.Event()
        watch = self._broker.logs.watch(has_changed.set)
        try:
            async with asyncio.timeout(wait_ns / NS_PER_S):
                while not any(log.stable > start or log.is_deleted for log, start in logs):
                    has_changed.clear()
                    if is_synced and any(log.stable < log.written for log, _ in logs):
                        self._broker.turn.run(partial(self._broker.logs.write_later, is_synced=True))
                    await has_changed.wait()
        except TimeoutError:
            pass
        finally:
            watch.cancel()

    async def _first_time(self, log: TopicLog) -> int | None:
        """Return the timestamp of the first message; None if the log has none."""
        first, log_id = log.first, log.identity.log_id
        known = self._first_times.get(log_id)
        if known is not None and known[0] == first:
            return known[1]
        offset = await self._positions.find_time(log, 0)
        time_ns = await self._positions.timestamp_at(log, offset) if offset >= 0 else None
        if time_ns is None:
            return None
        if len(self._first_times) > _MAX_FIRST_TIMES:
            self._first_times.clear()
        self._first_times[log_id] = first, time_ns
        return time_ns

    # /log/at

    async def at(self, request: Request) -> Response:
        """Find the first message at or after a time."""
        query = request.query
        topic = find_topic(self._broker, request)
        if "time" not in query:
            raise HTTPError(400, "MISSING_ARG_TIME")
        try:
            time_ns = parse_time(query["time"], self._broker.clock.wall_ns())
        except ValueError:
            raise HTTPError(400, "INVALID_TIME") from None
        log = log_flow_of(topic).log
        offset = await self._positions.find_time(log, time_ns)
        timestamp = await self._positions.timestamp_at(log, offset) if offset >= 0 else None
        if timestamp is None:
            raise HTTPError(404, "NO_SUCH_TIME")
        answer: TimeAnswer = {"offset": offset, "timestamp": timestamp}
        return json_response(answer)


def _offsets(topic: Topic, flow: LogFlow, first_time_ns: int | None) -> LogOffsets:
    log = flow.log
    channels: list[ChannelOffsets] = []
    for channel in topic.channels.values():
        cursor = channel.store.cursor_stats()
        if cursor is not None:
            channels.append(
                {
                    "channel": channel.name,
                    "floor": cursor["floor"],
                    "next": cursor["next"],
                    "holes": cursor["holes"],
                    "paused": channel.paused,
                }
            )
    return {
        "topic": topic.name,
        "log": f"{log.identity.log_id:016x}",
        "first": log.first,
        "stable": log.stable,
        "end": log.end,
        "first_time": None if first_time_ns is None else _time_text(first_time_ns),
        "bytes": log.size,
        "bytes_per_message": log.size // (log.end - log.first) if log.end > log.first else 0,
        "segments": len(log.writer.segments),
        "paused": topic.paused,
        "channels": channels,
    }


def _time_text(time_ns: int) -> str:
    """Return a time in the form of Go's RFC3339Nano."""
    seconds, fraction = divmod(time_ns, NS_PER_S)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return text + (f".{fraction:09d}".rstrip("0") if fraction else "") + "Z"


async def durable(flow: LogFlow) -> None:
    """Return when the log has everything so far durably; raises HTTPError 503 if it cannot be written."""
    written: asyncio.Future[DiskQueueError | None] = asyncio.get_running_loop().create_future()
    if not flow.when_durable(lambda error: None if written.done() else written.set_result(error)):
        return
    error = await written
    if error is not None:
        raise refused(error)
