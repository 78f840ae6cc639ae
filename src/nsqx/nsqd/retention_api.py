"""POST /log/trim: drops the oldest messages of a log, finished or not."""

import asyncio
from typing import TYPE_CHECKING, Annotated, TypedDict

from nsqx.errors import DiskQueueError, HTTPError
from nsqx.net.responses import Response, json_response
from nsqx.nsqd.log_position import LogPositions, log_flow_of
from nsqx.nsqd.refusals import refused
from nsqx.nsqd.request_targets import find_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from nsqx.net.requests import Request
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.log_position import LogPosition
    from nsqx.nsqd.topic import Topic

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class TrimAnswer(TypedDict):
    """What a trim has dropped, or would drop."""

    topic: str
    before: Annotated[int, "The messages before this offset are dropped."]
    first: Annotated[int, "The first offset that the log has now."]
    dropped: Annotated[dict[str, int], "The unfinished messages that are dropped, by channel."]
    dropped_from_topic: Annotated[int, "The messages that no channel had: deferred ones, and those that wait."]
    bytes: Annotated[int, "The size of the segments that the next checkpoint removes."]
    dry_run: bool


class RetentionAPI:
    """Drops the oldest messages of logs."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._positions = LogPositions(broker)

    def trim(self, request: "Request") -> "Awaitable[Response]":
        """Drop the messages before a position, for all channels; answers when that survives a crash."""
        topic = find_topic(self._broker, request)
        text = request.query.get("before")
        if text is None:
            raise HTTPError(400, "MISSING_ARG_BEFORE")
        position = self._positions.parse(text, "INVALID_POSITION")
        is_dry_run = _BOOLEANS.get(request.query.get("dry_run", "false"))
        if is_dry_run is None:
            raise HTTPError(400, "INVALID_DRY_RUN")
        log_flow_of(topic)
        return self._trim(topic, position, is_dry_run)

    async def _trim(self, topic: "Topic", position: "LogPosition", is_dry_run: bool) -> Response:
        before = await self._positions.offset_of(topic, position)
        flow = log_flow_of(topic)
        log = flow.log
        before = min(before, log.written)  # a message that is being written has no reader yet
        segments = log.writer.segments[:]
        ends = [segment.first for segment in segments[1:]]
        freed = [segment.size for segment, end in zip(segments, ends, strict=False) if end <= before]
        if is_dry_run:
            dropped = flow.count_below(before)
        else:
            dropped = self._broker.turn.run(flow.trim, before, "POST /log/trim")
            await self._written(topic)
        answer: TrimAnswer = {
            "topic": topic.name,
            "before": before,
            "first": log.first,
            "dropped": {name: count for name, count in dropped.items() if name},
            "dropped_from_topic": dropped.get("", 0),
            "bytes": sum(freed),
            "dry_run": is_dry_run,
        }
        return json_response(answer)

    async def _written(self, topic: "Topic") -> None:
        """Return when the log of ``topic`` has everything so far durably; raises HTTPError if it cannot be written."""
        written: asyncio.Future[DiskQueueError | None] = asyncio.get_running_loop().create_future()
        if topic.when_durable(lambda failure: None if written.done() else written.set_result(failure)):
            failure = await written
            if failure is not None:
                raise refused(failure)
