"""The unanswered publish commands of one connection.

nsqd answers in the order of the commands. Answers are therefore matched first in, first out, and any number of commands
can be unanswered at once. The producer chooses the connection of each command and handles failures.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from time import monotonic
from typing import Any

from nsqx.client.connection import FrameReceiver, NsqdConnection
from nsqx.errors import PublishTimedOut
from nsqx.wire import encode

NEVER_S = float("inf")
# Typed in the .pxd.
_NEVER_S = NEVER_S


class Publication:
    """A publish command and the future of its caller.

    Attributes:
        head: The first line of the command, such as ``PUB orders``.
        body: The bytes after the first line and the size.
        future: The future of the caller; None if there are members.
        members: The publications that batching has joined into this command; None otherwise.
        attempts: Number of failed attempts.
        created_s: Time of the publish, by ``monotonic()``.
        deadline_s: Time when the publish fails, by ``monotonic()``; the earliest deadline of the members; NEVER_S
            after it has expired.
        error: The failure of the last attempt.
        is_uncertain: True after a connection was lost before it answered, so nsqd may have stored the message.
    """

    __slots__ = (
        "attempts",
        "body",
        "created_s",
        "deadline_s",
        "error",
        "future",
        "head",
        "is_uncertain",
        "members",
        "topic",
    )

    topic: str
    head: bytes
    body: bytes
    future: asyncio.Future[None] | None
    members: list[Publication] | None
    attempts: int
    created_s: float
    deadline_s: float
    error: Exception | None
    is_uncertain: bool

    def succeed(self) -> None:
        """Complete the future, or the futures of the members."""
        if self.members is not None:
            for member in self.members:
                member.succeed()
        elif self.future is not None and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Set an exception on the future, or on the futures of the members."""
        if self.members is not None:
            for member in self.members:
                member.fail(error)
        elif self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def is_abandoned(self) -> bool:
        """True if no caller waits for the outcome any more."""
        if self.members is not None:
            return [member for member in self.members if not member.is_abandoned()] == []
        return self.future is None or self.future.done()

    def expire(self, now_s: float, reason: str, is_under_way: bool) -> None:
        """Fail this publication if its deadline has passed; of a batch, fail the members whose deadline has passed."""
        if self.members is not None:
            self.deadline_s = _NEVER_S
            for member in self.members:
                member.is_uncertain = member.is_uncertain or self.is_uncertain
                member.error = member.error or self.error
                member.expire(now_s, reason, is_under_way)
                self.deadline_s = min(self.deadline_s, member.deadline_s)
        elif self.deadline_s <= now_s:
            timeout_s = self.deadline_s - self.created_s
            error = PublishTimedOut(
                self.topic,
                self.attempts + is_under_way,
                round(timeout_s, 6),
                reason,
                may_be_published=is_under_way or self.is_uncertain,
            )
            error.__cause__ = self.error
            self.fail(error)
            self.deadline_s = _NEVER_S

    def drop_finished_members(self) -> None:
        """Remove the members that have an outcome, so they are not sent again."""
        if self.members is not None and any(member.is_abandoned() for member in self.members):
            self.members = [member for member in self.members if not member.is_abandoned()]
            self.body = encode.join_batch([member.body for member in self.members])


def new_publication(
    topic: str, head: bytes, body: bytes, future: asyncio.Future[None] | None, timeout_s: float
) -> Publication:
    """Return a new publication that expires after ``timeout_s``."""
    publication = Publication.__new__(Publication)
    publication.topic = topic
    publication.head = head
    publication.body = body
    publication.future = future
    publication.members = None
    publication.attempts = 0
    publication.error = None
    publication.is_uncertain = False
    publication.created_s = monotonic()
    publication.deadline_s = publication.created_s + timeout_s
    return publication


def earliest_deadline_s(publications: Iterable[Publication]) -> float:
    """Return the earliest deadline of ``publications``, or NEVER_S."""
    earliest_s = _NEVER_S
    for publication in publications:
        if publication.deadline_s < earliest_s:
            earliest_s = publication.deadline_s
    return earliest_s


class Publisher(FrameReceiver):
    """The unanswered publications of one connection.

    Calls ``_on_room(publisher)``, ``_on_refused(publisher, publication, text)`` and
    ``_on_lost(publisher, publications, error)`` of ``owner``.
    """

    __slots__ = (
        "_expired_count",
        "_max_bytes",
        "_max_count",
        "_owner",
        "_under_way",
        "bytes_under_way",
        "connection",
        "refusal_text",
    )

    def __init__(self, connection: NsqdConnection, owner: Any, max_count: int, max_bytes: int) -> None:
        self.connection = connection
        self.bytes_under_way = 0
        # The error frame after which nsqd closes this connection.
        self.refusal_text = ""
        self._owner = owner
        self._under_way: deque[Publication] = deque()
        # Expired publications stay in the queue, because their answers may still arrive.
        self._expired_count = 0
        self._max_count = max_count
        self._max_bytes = max_bytes

    def has_room(self) -> bool:
        """True if another command can be sent."""
        return (
            self.connection.is_writable
            and self.bytes_under_way < self._max_bytes
            and len(self._under_way) < self._max_count
            and not self.connection.is_closed
            and not self.refusal_text
        )

    def count_under_way(self) -> int:
        """Return the number of unanswered commands that have not expired."""
        return len(self._under_way) - self._expired_count

    def publish(self, publication: Publication) -> None:
        """Send a publication and queue it until its answer arrives."""
        self._under_way.append(publication)
        self.bytes_under_way += len(publication.body)
        self.connection.send_sized(publication.head, publication.body)

    def ok(self, count: int) -> None:
        """Complete the oldest ``count`` publications."""
        if count > len(self._under_way):
            raise ValueError(f"{self.connection.address}: nsqd sent an answer without a command")
        for _ in range(count):
            publication = self._under_way.popleft()
            self.bytes_under_way -= len(publication.body)
            if self._expired_count and publication.deadline_s == _NEVER_S:
                self._expired_count -= 1
            future = publication.future
            if future is None:
                publication.succeed()
            elif not future.done():
                future.set_result(None)

    def drained(self) -> None:
        """Report possible room to the owner."""
        self._owner._on_room(self)

    def writable(self) -> None:
        """Report room to the owner."""
        self._owner._on_room(self)

    def refusal(self, text: str) -> None:
        """Report the oldest publication as refused. nsqd then closes the connection and answers no other."""
        self.refusal_text = text
        if self._under_way:
            publication = self._under_way.popleft()
            self.bytes_under_way -= len(publication.body)
            if publication.deadline_s == _NEVER_S:
                self._expired_count -= 1
            self._owner._on_refused(self, publication, text)

    def lost(self, error: Exception | None) -> None:
        """Report the unanswered publications to the owner."""
        self._owner._on_lost(self, self.take_under_way(), error)

    def take_under_way(self) -> deque[Publication]:
        """Remove and return all unanswered publications."""
        under_way, self._under_way = self._under_way, deque()
        self.bytes_under_way = 0
        self._expired_count = 0
        return under_way

    def expire(self, now_s: float) -> float:
        """Fail the publications whose deadline has passed, and return the next deadline."""
        earliest_s = earliest_deadline_s(self._under_way)
        if earliest_s > now_s:
            return earliest_s
        reason = f"{self.connection.address}: nsqd did not answer"
        for publication in self._under_way:
            if publication.deadline_s <= now_s:
                publication.expire(now_s, reason, True)
                if publication.deadline_s == _NEVER_S:
                    self._expired_count += 1
        return earliest_deadline_s(self._under_way)

    def unanswered_s(self, now_s: float) -> float:
        """Return how long nsqd has sent nothing while an answer was due."""
        if not self._under_way:
            return 0.0
        return min(now_s - self._under_way[0].created_s, self.connection.silent_s())
