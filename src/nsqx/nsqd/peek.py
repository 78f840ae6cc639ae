"""Messages that are shown without being consumed: the request, the messages in the answer, and its limits.

``PeekCollector`` is used by threads. It knows neither logs nor queues.
"""

import base64
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

from nsqx.nsqd.dead_letters import LetterOrigin
from nsqx.wire.body_search import BodySearch

_MIB = 1 << 20
DEFAULT_COUNT, MAX_COUNT = 20, 1000
DEFAULT_BYTES, MAX_BYTES = _MIB, 16 * _MIB
MAX_SKIP = 1_000_000
# A request looks at no more messages, and at no more bytes.
MAX_SCANNED = 100_000
_MAX_SCANNED_BYTES = 64 * _MIB

WAITING, IN_FLIGHT, DELAYED = STATES = ("waiting", "in_flight", "deferred")


class PeekedMessage(TypedDict):
    """A message. Its body is in `text` if it is UTF-8, else in `base64`."""

    offset: NotRequired[Annotated[int, "Only in log topics."]]
    id: str
    timestamp: Annotated[int, "Nanoseconds since 1970."]
    attempts: NotRequired[Annotated[int, "How often the message was delivered, if that is known."]]
    state: NotRequired[Annotated[str, "`waiting`, `in_flight` or `deferred`."]]
    due: NotRequired[Annotated[int, "When a deferred message is due; nanoseconds since 1970."]]
    size: Annotated[int, "The size of the whole body."]
    text: NotRequired[str]
    base64: NotRequired[str]
    truncated: NotRequired[Annotated[bool, "True if the body was cut to max_bytes."]]
    origin: NotRequired[Annotated[LetterOrigin, "Only of dead letters in log topics."]]


class PeekAnswer(TypedDict):
    """The response of /peek."""

    topic: str
    channel: NotRequired[str]
    store: Annotated[str, "`classic` or `log`."]
    messages: list[PeekedMessage]
    next: Annotated[int, "Where to continue: the value of `offset` (log) or `skip` (classic)."]
    end: Annotated[int, "The end of the log, or the number of messages in the classic queues."]
    scanned: Annotated[int, "How many messages were looked at."]
    complete: Annotated[bool, "False if a limit other than `count` ended the request before all messages."]


@dataclass(frozen=True, slots=True)
class PeekRequest:
    """Which messages to show. ``offset``, ``time_ns``, ``id_number`` and ``last`` are None if they were not given."""

    offset: int | None = None
    time_ns: int | None = None
    id_number: int | None = None
    last: int | None = None
    skip: int = 0
    count: int = DEFAULT_COUNT
    max_bytes: int = DEFAULT_BYTES
    contains: str = ""
    state: str = ""


class PeekCollector:
    """Takes messages until the answer is full, or a request may look at no more."""

    def __init__(self, request: PeekRequest) -> None:
        self.messages: list[PeekedMessage] = []
        self.scanned = 0
        self.is_complete = True  # no limit except the count has ended the request
        self._count = request.count
        self._max_bytes = request.max_bytes
        self._search = BodySearch(request.contains)
        self._scanned_bytes = 0
        self._size = 0  # of the bodies in the answer

    @property
    def is_full(self) -> bool:
        """True if the answer takes no more messages."""
        return len(self.messages) >= self._count or not self.is_complete

    def pass_over(self, body: bytes) -> bool:
        """Look at a message that is not wanted; False if the request may look at no more."""
        if self.scanned >= MAX_SCANNED or self._scanned_bytes >= _MAX_SCANNED_BYTES:
            self.is_complete = False
            return False
        self.scanned += 1
        self._scanned_bytes += len(body)
        return True

    def add(self, body: bytes, fields: dict[str, Any]) -> bool:
        """Look at a message, and add it to the answer if it is wanted; False if the answer must end before it."""
        if self.is_full:
            return False
        if not self._search.finds(body):
            return self.pass_over(body)
        shown_size = min(len(body), self._max_bytes)
        if self.messages and self._size + shown_size > self._max_bytes:
            self.is_complete = False
            return False
        if not self.pass_over(body):
            return False
        self._size += shown_size
        message: Any = {**fields, **body_fields(body, self._max_bytes)}
        self.messages.append(message)
        return True


def body_fields(body: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the members of a message that show its body, or the first part of it, and the size of the whole body."""
    shown = body[:max_bytes]
    size = {"size": len(body)}
    cut = {"truncated": True} if len(shown) < len(body) else {}
    try:
        body.decode()
    except UnicodeDecodeError:
        return {**size, "base64": base64.b64encode(shown).decode(), **cut}
    return {**size, "text": shown.decode(errors="ignore"), **cut}  # without the first part of a character that was cut
