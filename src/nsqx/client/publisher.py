"""What one connection has been asked to publish and has not answered yet.

nsqd answers in the order of the commands, so answers are matched first in, first out, and any number of publishes may
be under way at once. Which connection to use, and what to do about a failure, is the producer's business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from nsqx.client.connection import Connection, Receiver


class Publication:
    """A publishing command on its way, and who waits for it.

    ``head`` is the command's line and ``body`` what follows the size. Several publishes that were joined into one
    command have ``members``, each a publication of its own; otherwise ``future`` is the one that waits.
    """

    __slots__ = ("attempts", "body", "future", "head", "members", "topic")

    topic: str
    head: bytes
    body: bytes
    future: asyncio.Future[None] | None
    members: list[Publication] | None
    attempts: int

    def succeed(self) -> None:
        """It is published."""
        if self.members is not None:
            for member in self.members:
                member.succeed()
        elif self.future is not None and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        """It is not published, or nobody knows."""
        if self.members is not None:
            for member in self.members:
                member.fail(error)
        elif self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def is_abandoned(self) -> bool:
        """True if nobody waits for it any more."""
        if self.members is not None:
            return [member for member in self.members if not member.is_abandoned()] == []
        return self.future is None or self.future.done()


def new_publication(topic: str, head: bytes, body: bytes, future: asyncio.Future[None] | None) -> Publication:
    """A publication that was not tried yet."""
    publication = Publication.__new__(Publication)
    publication.topic = topic
    publication.head = head
    publication.body = body
    publication.future = future
    publication.members = None
    publication.attempts = 0
    return publication


class Publisher(Receiver):
    """One connection's publications under way.

    ``owner`` is told by ``on_room(publisher)``, ``on_refused(publisher, publication, text)`` and
    ``on_lost(publisher, publications, error)``.
    """

    __slots__ = ("_max_bytes", "_max_count", "_owner", "_under_way", "bytes_under_way", "connection", "refusal_text")

    def __init__(self, connection: Connection, owner: Any, max_count: int, max_bytes: int) -> None:
        self.connection = connection
        self.bytes_under_way = 0
        # Why nsqd is about to close this connection, if it said so.
        self.refusal_text = ""
        self._owner = owner
        self._under_way: deque[Publication] = deque()
        self._max_count = max_count
        self._max_bytes = max_bytes

    def has_room(self) -> bool:
        """True if it may be given one more."""
        return (
            self.connection.is_writable
            and self.bytes_under_way < self._max_bytes
            and len(self._under_way) < self._max_count
            and not self.connection.is_closed
            and not self.refusal_text
        )

    def count_under_way(self) -> int:
        """How many commands wait for their answer."""
        return len(self._under_way)

    def publish(self, publication: Publication) -> None:
        """Send; the answer will come."""
        self._under_way.append(publication)
        self.bytes_under_way += len(publication.body)
        self.connection.send_sized(publication.head, publication.body)

    def ok(self, count: int) -> None:
        """The oldest ``count`` are published."""
        if count > len(self._under_way):
            raise ValueError(f"{self.connection.address}: nsqd answered what was not asked")
        for _ in range(count):
            publication = self._under_way.popleft()
            self.bytes_under_way -= len(publication.body)
            future = publication.future
            if future is None:
                publication.succeed()
            elif not future.done():
                future.set_result(None)

    def drained(self) -> None:
        """There may be room now."""
        self._owner.on_room(self)

    def writable(self) -> None:
        """There is room now."""
        self._owner.on_room(self)

    def refusal(self, text: str) -> None:
        """The oldest is refused; nsqd closes the connection after that, and the others get no answer."""
        self.refusal_text = text
        if self._under_way:
            publication = self._under_way.popleft()
            self.bytes_under_way -= len(publication.body)
            self._owner.on_refused(self, publication, text)

    def lost(self, error: Exception | None) -> None:
        """The connection is gone, and with it the answers."""
        self._owner.on_lost(self, self.take_under_way(), error)

    def take_under_way(self) -> Iterable[Publication]:
        """Give up all that wait for an answer."""
        under_way, self._under_way = self._under_way, deque()
        self.bytes_under_way = 0
        return under_way
