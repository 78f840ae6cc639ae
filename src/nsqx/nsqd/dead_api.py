"""/dead, /dead/redrive, /dead/purge and /log/cancel: dead letters and deferred messages over HTTP.

``topic`` is always the source topic. Its letters are in the channel ``dead`` of its dead-letter topic.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from nsqx.errors import BrokerExiting, DiskQueueError, HTTPError
from nsqx.gotext import INT64_MAX
from nsqx.names import is_valid_name
from nsqx.net.http_head import parse_query
from nsqx.net.responses import Response, json_response
from nsqx.nsqd.classic_peek import ClassicPeek
from nsqx.nsqd.dead_channel import ChannelGone, ChannelNeeded, DeadChannel, Letter, LetterSelection, cancel
from nsqx.nsqd.dead_letters import DEAD_CHANNEL
from nsqx.nsqd.log_cursor import LogCursor
from nsqx.nsqd.log_flow import LogFlow
from nsqx.nsqd.peek import (
    DEFAULT_BYTES,
    DEFAULT_COUNT,
    DELAYED,
    IN_FLIGHT,
    MAX_BYTES,
    MAX_COUNT,
    MAX_SCANNED,
    MAX_SKIP,
    WAITING,
    PeekedMessage,
    PeekRequest,
    body_fields,
)
from nsqx.nsqd.refusals import refused
from nsqx.nsqd.request_targets import find_topic, find_topic_and_channel
from nsqx.wire import byteops

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from nsqx.net.requests import Handler, Request
    from nsqx.net.router import Router
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.topic import Topic

_MAX_OFFSETS = 1000
_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)


class DeadAnswer(TypedDict):
    """The response of /dead."""

    topic: str
    dead_letter: Annotated[str, "The dead-letter topic."]
    count: Annotated[int, "All letters in its channel `dead`, also those of other topics and channels."]
    messages: list[PeekedMessage]
    next: Annotated[int, "Where to continue: the value of `offset` (log) or `skip` (classic)."]
    complete: Annotated[bool, "False if there may be more letters."]


class RedriveAnswer(TypedDict):
    """The response of /dead/redrive."""

    redriven: int
    left: Annotated[int, "Letters that are still in the channel `dead`."]


class PurgeAnswer(TypedDict):
    """The response of /dead/purge."""

    purged: int
    left: Annotated[int, "Letters that are still in the channel `dead`."]


class CancelAnswer(TypedDict):
    """The response of /log/cancel."""

    cancelled: bool


def add_dead_routes(router: Router, broker: Broker) -> None:
    """Add the routes."""
    api = DeadAPI(broker)

    def in_turn(handler: Handler) -> Handler:
        return lambda request: broker.turn.run(handler, request)

    router.add("GET", "/dead", api.show)
    router.add("POST", "/dead/redrive", in_turn(api.redrive))
    router.add("POST", "/dead/purge", in_turn(api.purge))
    router.add("POST", "/log/cancel", in_turn(api.cancel))


class DeadAPI:
    """Shows, redrives and purges dead letters, and cancels deferred messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # Requests

    def show(self, request: Request) -> Response | Awaitable[Response]:
        """Answer with letters and their origins."""
        query = request.query
        selection = self._selection(request, is_single=True)
        dead = self._find(selection)
        count = _number(query, "count", DEFAULT_COUNT, 1, MAX_COUNT)
        max_bytes = _number(query, "max_bytes", DEFAULT_BYTES, 1, MAX_BYTES)
        if dead.is_log and "skip" in query:
            raise HTTPError(400, "INVALID_SKIP")
        if dead.is_log:
            return self._show_log(dead, selection, count, max_bytes)
        skip = _number(query, "skip", 0, 0, MAX_SKIP)
        return self._show_classic(dead, selection, PeekRequest(skip=skip, count=count, max_bytes=max_bytes))

    def redrive(self, request: Request) -> Awaitable[Response]:
        """Put letters back into the channels that failed."""
        selection = self._selection(request)
        dead = self._find(selection)
        source = find_topic(self._broker, request)
        if selection.channel and source.find_channel(selection.channel) is None:
            raise HTTPError(404, "CHANNEL_NOT_FOUND")
        return self._redrive(dead, selection, source)

    def purge(self, request: Request) -> Awaitable[Response]:
        """Finish letters."""
        selection = self._selection(request)
        return self._purge(self._find(selection), selection)

    def cancel(self, request: Request) -> Awaitable[Response]:
        """Discard a deferred message."""
        query = request.query
        channel: Channel | None = None
        if "channel" in query:
            topic, channel = find_topic_and_channel(self._broker, request)
        else:
            topic = find_topic(self._broker, request)
        if not isinstance(topic.flow, LogFlow):
            raise HTTPError(400, "NOT_A_LOG")
        if "id" in query:
            if _ID.fullmatch(query["id"]) is None:
                raise HTTPError(400, "INVALID_ID")
            offset = topic.flow.log.identity.offset(byteops.id_number(query["id"].encode()))
        elif "offset" in query:
            offset = _number(query, "offset", 0, 0, INT64_MAX)
        else:
            raise HTTPError(400, "MISSING_ARG_OFFSET")
        durable = cancel(topic, offset, channel)
        if durable is None:
            raise HTTPError(404, "NOT_DEFERRED")
        return self._cancelled(durable)

    async def _cancelled(self, durable: Awaitable[None]) -> Response:
        try:
            await durable
        except DiskQueueError as error:
            raise refused(error) from None
        answer: CancelAnswer = {"cancelled": True}
        return json_response(answer)

    # The letters of a request

    def _selection(self, request: Request, *, is_single: bool = False) -> LetterSelection:
        """Return the letters that a request names; ``is_single``: at most one offset, and the count is no limit."""
        query = request.query
        topic, channel = query.get("topic"), query.get("channel", "")
        if topic is None:
            raise HTTPError(400, "MISSING_ARG_TOPIC")
        if not is_valid_name(topic):
            raise HTTPError(400, "INVALID_ARG_TOPIC")
        if channel and not is_valid_name(channel):
            raise HTTPError(400, "INVALID_ARG_CHANNEL")
        pairs = [parse_query(pair) for pair in request.raw_query.split(b"&")]
        offsets = tuple(_number(pair, "offset", 0, 0, INT64_MAX) for pair in pairs if "offset" in pair)
        if len(offsets) > (1 if is_single else _MAX_OFFSETS):
            raise HTTPError(400, "INVALID_OFFSET")
        count = 0 if is_single or "count" not in query else _number(query, "count", 0, 1, INT64_MAX)
        return LetterSelection(topic, channel, offsets, count)

    def _find(self, selection: LetterSelection) -> DeadChannel:
        """Return the channel with the letters of a source topic, which may not exist any more."""
        topic = self._topic_of(selection)
        channel = topic.find_channel(DEAD_CHANNEL) if topic is not None else None
        if topic is None or channel is None:
            raise HTTPError(404, "NO_DEAD_LETTERS")
        dead = DeadChannel(self._broker, topic, channel)
        if selection.offsets and not dead.is_log:
            raise HTTPError(400, "NOT_A_LOG")
        return dead

    def _topic_of(self, selection: LetterSelection) -> Topic | None:
        return self._broker.find_topic(self._name_of(selection))

    def _name_of(self, selection: LetterSelection) -> str:
        source = self._broker.find_topic(selection.topic)
        failing = source.find_channel(selection.channel) if source is not None else None
        if failing is not None:
            return failing.dead_letter
        return self._broker.configs.settings_of(selection.topic).dead_letter

    # Showing

    async def _show_log(self, dead: DeadChannel, selection: LetterSelection, count: int, max_bytes: int) -> Response:
        start = selection.offsets[0] if selection.offsets else 0
        shown: list[PeekedMessage] = []
        size = scanned = 0
        following = start
        is_complete = True
        try:
            async for letters in dead.read(dead.unfinished_from(start)):
                for letter in letters:
                    state = self._log_state(dead, letter.offset) if selection.includes(letter) else None
                    size += min(len(letter.body), max_bytes) if state is not None else 0
                    if len(shown) >= count or scanned >= MAX_SCANNED or (shown and size > max_bytes):
                        is_complete = False
                        break
                    scanned += 1
                    following = letter.offset + 1
                    if state is not None:
                        shown.append(self._log_letter(dead, letter, state, max_bytes))
                if not is_complete:
                    break
        except (BrokerExiting, DiskQueueError) as error:
            raise refused(error) from None
        return self._answer(dead, selection, shown, following, is_complete)

    def _log_state(self, dead: DeadChannel, offset: int) -> dict[str, Any] | None:
        """Return the state of a letter; None if it was finished meanwhile."""
        cursor = dead.channel.store
        assert isinstance(cursor, LogCursor)
        if cursor.is_in_flight(offset):
            return {"state": IN_FLIGHT}
        due_ns = cursor.due_ns(offset)
        if due_ns:
            clock = self._broker.clock
            return {"state": DELAYED, "due": due_ns + clock.wall_ns() - clock.now_ns()}
        return {"state": WAITING} if cursor.is_takable(offset) else None

    def _log_letter(self, dead: DeadChannel, letter: Letter, state: dict[str, Any], max_bytes: int) -> PeekedMessage:
        message: Any = {
            "offset": letter.offset,
            "id": byteops.id_text(dead.id_number(letter.offset)).decode(),
            "timestamp": letter.timestamp,
            **state,
            **body_fields(letter.body, max_bytes),
        }
        if letter.origin is not None:
            message["origin"] = letter.origin
        shown: PeekedMessage = message
        return shown

    async def _show_classic(self, dead: DeadChannel, selection: LetterSelection, request: PeekRequest) -> Response:
        """Answer with letters in flight, deferred, in memory and on disk. They have neither offset nor origin."""
        peek = ClassicPeek(self._broker, dead.topic, dead.channel, request)
        await peek.run()
        shown = peek.collector.messages
        return self._answer(dead, selection, shown, peek.next, peek.next >= peek.end)

    def _answer(
        self,
        dead: DeadChannel,
        selection: LetterSelection,
        shown: list[PeekedMessage],
        following: int,
        is_complete: bool,
    ) -> Response:
        answer: DeadAnswer = {
            "topic": selection.topic,
            "dead_letter": self._name_of(selection),
            "count": dead.count,
            "messages": shown,
            "next": following,
            "complete": is_complete,
        }
        return json_response(answer)

    # Redriving and purging

    async def _redrive(self, dead: DeadChannel, selection: LetterSelection, source: Topic) -> Response:
        try:
            redriven = await dead.redrive(selection, source)
        except ChannelGone:
            raise HTTPError(404, "CHANNEL_NOT_FOUND") from None
        except ChannelNeeded:
            raise HTTPError(400, "MISSING_ARG_CHANNEL") from None
        except (BrokerExiting, DiskQueueError) as error:
            raise refused(error) from None
        answer: RedriveAnswer = {"redriven": redriven, "left": dead.count}
        return json_response(answer)

    async def _purge(self, dead: DeadChannel, selection: LetterSelection) -> Response:
        try:
            purged = await dead.purge(selection)
        except (BrokerExiting, DiskQueueError) as error:
            raise refused(error) from None
        answer: PurgeAnswer = {"purged": purged, "left": dead.count}
        return json_response(answer)


def _number(query: Any, name: str, default: int, least: int, most: int) -> int:
    """Return the value of a parameter; raises HTTPError if it is not a number in these limits."""
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or not least <= int(text) <= most:
        raise HTTPError(400, f"INVALID_{name.upper()}")
    return int(text)
