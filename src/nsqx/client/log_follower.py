"""The log of a topic on one nsqd, read from a position on and followed at its end.

Knows the requests and the positions. It does not know the other nsqds, nor what happens with the messages.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from nsqx.client.pool import retry_delay_s
from nsqx.errors import ConfigError, ConnectFailed, ReadFailed, RequestFailed

if TYPE_CHECKING:
    from nsqx.cluster.nsqd import NsqdClient

_log = logging.getLogger("nsqx.client")

BEGINNING: Final = "beginning"
END: Final = "end"

_MAX_COUNT = 1000  # of /peek
_FIRST_RETRY_S = 0.1
_POSITION = re.compile(r"([0-9a-f]{16}):([0-9]{1,18})", re.ASCII)
_NO_TOPIC = "TOPIC_NOT_FOUND"
_GONE = "OFFSET_GONE"
# Answers that another attempt would not change.
_FINAL_TEXTS = {
    _GONE: "the messages from the offset {next} on were removed, and the oldest one is at {first}: "
    "use skip_missing=True to continue there",
    "NOT_A_LOG": "topic {topic} has the classic store: a reader needs a log, so convert the topic or start nsqd with "
    "--store=log",
    "OFFSET_BEYOND_END": "the offset {next} is beyond the end of topic {topic}",
    "INVALID_TIME": "invalid time {time!r}: use a time such as 2026-11-18T06:00:00Z, or a duration such as -1h",
    "INVALID_TOPIC": "invalid topic {topic}",
    "INVALID_OFFSET": "invalid offset {next}",
}


@dataclass(slots=True)
class LogMessage:
    """A message in the log of a topic.

    Attributes:
        offset: Its position in the log of its nsqd. Offsets grow, and never name two messages.
        id: The id that consumers see: 16 hexadecimal digits.
        timestamp: Time of the publish, in nanoseconds since 1970.
        body: The bytes that were published.
        nsqd_address: HTTP address of the nsqd.
        log: Id of the log. A topic that is deleted and created again has another log.
        value: The body as the codec of the reader has decoded it; without a codec, the body.
        error: Why the body cannot be decoded; otherwise None.
    """

    offset: int
    id: bytes
    timestamp: int
    body: bytes = field(repr=False)
    nsqd_address: str
    log: str
    value: Any = field(repr=False, default=None)
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LogStart:
    """Where to begin: ``beginning``, ``end``, a time in nanoseconds or RFC 3339, or an offset, perhaps of one log."""

    place: str = ""
    time: str = ""
    offset: int = 0
    log: str = ""


def log_start(start: object) -> LogStart:
    """Return the start that an argument names; raises ConfigError."""
    if isinstance(start, bool):
        pass
    elif isinstance(start, int) and start >= 0:
        return LogStart(offset=start)
    elif isinstance(start, datetime):
        return LogStart(time=str(round(start.timestamp() * 1_000_000) * 1000))
    elif isinstance(start, timedelta) and start >= timedelta(0):
        return LogStart(time=f"-{start.total_seconds():f}s")
    elif isinstance(start, str):
        if start in (BEGINNING, END):
            return LogStart(start)
        position = _POSITION.fullmatch(start)
        if position is not None:
            return LogStart(log=position[1], offset=int(position[2]))
        if start[:1] == "-" or "T" in start:
            return LogStart(time=start)
    raise ConfigError(
        f"option start: {start!r} is not beginning, end, an offset, a time such as 2026-11-18T06:00:00Z, a duration "
        "before now such as -1h, or a position of a reader"
    )


class LogFollower:
    """Reads the log of one nsqd. ``batches`` waits for new messages at the end, and while nsqd cannot be reached."""

    def __init__(
        self,
        nsqd: NsqdClient,
        topic: str,
        start: LogStart,
        *,
        stops_at_end: bool,
        skips_missing: bool,
        batch_bytes: int,
        request_timeout_s: float,
    ) -> None:
        self.address = nsqd.address
        self.is_connected = False
        self.last_error: Exception | None = None
        self.first_attempt = asyncio.Event()
        self._nsqd = nsqd
        self._topic = topic
        self._start = start
        self._stops_at_end = stops_at_end
        self._skips_missing = skips_missing
        self._batch_bytes = batch_bytes
        # The long poll ends before the timeout of the request.
        self._wait_s = request_timeout_s / 2
        self._log = start.log
        self._next = -1  # the next offset; -1 if it is not known yet
        self._stable = 0

    @property
    def position(self) -> str:
        """Where the first message is, before any was read; empty if it is not known."""
        return f"{self._log}:{self._next}" if self._next >= 0 else ""

    async def batches(self) -> AsyncGenerator[list[LogMessage], None]:
        """Yield the messages in order; raises ReadFailed if nsqd cannot continue at this position."""
        end: int | None = None
        attempt = 0
        while True:
            try:
                if self._next < 0:
                    await self._begin()
                if end is None:
                    end = self._stable
                if self._stops_at_end and self._next >= end:
                    return
                batch = await self._peek() if self._next < self._stable else []
                if self._next >= self._stable and not self._stops_at_end and not batch:
                    await self._await_more()
            except RequestFailed as error:
                self._note(error)
                if error.code == _GONE and self._skips_missing:
                    first = error.numbers.get("first", 0)
                    _log.warning("%s: offsets %d to %d of %s were removed", self._nsqd, self._next, first, self._topic)
                    self._next = max(self._next, first)
                    continue
                if error.code in _FINAL_TEXTS:
                    raise self._final(error) from error
                attempt += 1
                if attempt == 1 and error.code != _NO_TOPIC:
                    _log.warning("cannot read %s: %s", self._topic, self.last_error)
                if self._stops_at_end and error.code == _NO_TOPIC:
                    return
                await asyncio.sleep(retry_delay_s(_FIRST_RETRY_S, attempt))
            else:
                attempt = 0
                if batch:
                    yield batch

    def _note(self, error: RequestFailed | None) -> None:
        # An answer with a status shows that nsqd can be reached.
        self.is_connected = error is None or bool(error.status)
        if error is not None:
            self.last_error = ConnectFailed(f"{self.address}: {error.plain}")
            self.last_error.__cause__ = error
        self.first_attempt.set()

    def _final(self, error: RequestFailed) -> ReadFailed:
        """Return the error that ends the reading."""
        first = error.numbers.get("first", "a later offset")
        text = _FINAL_TEXTS[error.code].format(topic=self._topic, next=self._next, first=first, time=self._start.time)
        return ReadFailed(f"{self._nsqd}: {text}", error.code)

    async def _offsets(self, **query: str) -> dict[str, Any]:
        """Return what /log/offsets says about the log, and note how far it is durable."""
        answer = await self._nsqd.ask_object("GET", "/log/offsets", {"topic": self._topic, **query})
        topics = answer.get("topics")
        found = topics[0] if isinstance(topics, list) and topics else None
        if not isinstance(found, dict) or not isinstance(found.get("stable"), int):
            raise RequestFailed("the answer is not from nsqd")
        self._note(None)
        log = str(found.get("log", "0" * 16))
        if self._log and log != self._log:
            raise ReadFailed(
                f"{self._nsqd}: topic {self._topic} was deleted and created again, so the offsets of the log "
                f"{self._log} mean nothing: start from the beginning",
                "LOG_CHANGED",
            )
        self._log = log
        self._stable = found["stable"]
        return found

    async def _begin(self) -> None:
        """Find the first offset."""
        start = self._start
        found = await self._offsets()
        if start.place == BEGINNING:
            self._next = int(found["first"])
        elif start.place == END:
            self._next = self._stable
        elif start.time:
            try:
                at = await self._nsqd.ask_object("GET", "/log/at", {"topic": self._topic, "time": start.time})
                self._next = int(at["offset"])
            except RequestFailed as error:
                if error.code != "NO_SUCH_TIME":
                    raise
                self._next = self._stable
        elif start.offset > int(found["end"]):
            raise ReadFailed(
                f"{self._nsqd}: topic {self._topic}: the offset {start.offset} is beyond the end, {found['end']}",
                "OFFSET_BEYOND_END",
            )
        else:
            self._next = start.offset

    async def _await_more(self) -> None:
        """Return when there are new messages, or after a while."""
        await self._offsets(wait=f"{self._wait_s:f}s", **{"from": str(self._next)})

    async def _peek(self) -> list[LogMessage]:
        query = {
            "topic": self._topic,
            "offset": str(self._next),
            "count": str(min(_MAX_COUNT, self._stable - self._next)),
            "max_bytes": str(self._batch_bytes),
        }
        answer = await self._nsqd.ask_object("GET", "/peek", query)
        self._note(None)
        try:
            batch = [
                self._message(each)
                for each in answer["messages"]
                if self._next <= each["offset"] < self._stable and each.get("state") != "deferred"
            ]
            following = min(int(answer["next"]), self._stable)
        except (KeyError, TypeError, ValueError) as error:
            raise RequestFailed(f"the answer of /peek is invalid: {error!r}") from None
        if following <= self._next:
            raise RequestFailed(f"the answer of /peek ends where it begins, at the offset {self._next}")
        self._next = following
        return batch

    def _message(self, fields: dict[str, Any]) -> LogMessage:
        if fields.get("truncated"):
            raise ReadFailed(
                f"{self._nsqd}: the message at offset {fields['offset']} of {self._topic} has {fields['size']} bytes: "
                f"batch_bytes is {self._batch_bytes}",
                "TOO_LARGE",
            )
        body = fields["text"].encode() if "text" in fields else base64.b64decode(fields["base64"])
        return LogMessage(
            fields["offset"], fields["id"].encode(), fields["timestamp"], body, self.address, self._log, body
        )
