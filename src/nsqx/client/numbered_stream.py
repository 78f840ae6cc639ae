"""The publishes of a producer with a name: numbered, in order, to one nsqd, each stored once.

nsqd stores a publish only if its number is above the last one that it has stored for that producer and topic. So a
publish that is sent again makes no duplicate. But a publish that is sent after a later one would be taken for a
duplicate and would be lost. Therefore nothing overtakes:

- All publishes are in one queue, and go to one connection at a time in the order of their numbers.
- If the connection is lost, the unanswered publishes are sent again, in order, before any other.
- If a publish fails for any reason, all later ones that are not answered fail with it. So if nsqd has stored a number,
  it has stored every lower number whose publish did not fail.
- A number that is not above all others that wait or are stored is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

from nsqx.client.connection import FrameReceiver, NsqdConnection
from nsqx.client.deadlines import Deadlines
from nsqx.client.pool import Pool, retry_delay_s
from nsqx.client.publisher import NEVER_S
from nsqx.errors import (
    ClientClosed,
    ConfigError,
    ConnectionClosed,
    InvalidMessage,
    NotConnected,
    PublishFailed,
    PublishTimedOut,
)
from nsqx.names import is_valid_producer
from nsqx.wire import encode
from nsqx.wire.xpub import MAX_MESSAGES, MAX_SEQ, decode_xpub_answer, encode_xpub, publish_extended_line

if TYPE_CHECKING:
    from nsqx.client.discovery import Discovery
    from nsqx.client.options import Options

# The error of an nsqd whose disk cannot be written, or that is stopping. With this text it is another one.
_RETRIED_CODE = "E_XPUB_FAILED"
_NOT_A_LOG = "is not a log topic"


def check_producer_name(name: str, addresses: Sequence[str], has_lookupd: bool, is_batching: bool) -> str:
    """Return the name of a producer if it can be used with these arguments; raises ConfigError."""
    if not isinstance(name, str) or not is_valid_producer(name):
        raise ConfigError(f"producer_name {name!r}: use 1 to 64 of a-z A-Z 0-9 . _ -")
    if has_lookupd or len(addresses) != 1:
        raise ConfigError(
            "producer_name needs exactly one address in nsqd_tcp_addresses and no lookupd_http_addresses, because "
            "only the nsqd that has stored a message knows its number"
        )
    if is_batching:
        raise ConfigError("producer_name does not work with batching, use publish_many to publish messages together")
    return name


def first_seq_of(seq: int | None) -> int:
    """Return the first number: a given one, or the time in microseconds, which is above those of earlier processes."""
    if seq is None:
        return time_ns() // 1000
    if type(seq) is not int or not 0 < seq < MAX_SEQ:
        raise ConfigError(f"first_seq {seq!r}: must be an integer from 1 to {MAX_SEQ - 1}")
    return seq


class NumberedPublication:
    """A publish with a number, and the future of its caller."""

    __slots__ = (
        "attempts",
        "body",
        "created_s",
        "deadline_s",
        "future",
        "is_numbered_by_caller",
        "is_sent",
        "seq",
        "topic",
    )

    def __init__(
        self, topic: str, seq: int, body: bytes, future: asyncio.Future[None], timeout_s: float, by_caller: bool
    ) -> None:
        self.topic = topic
        self.seq = seq
        self.body = body
        self.future = future
        self.attempts = 0  # that have failed
        self.is_sent = False  # earlier, and without an answer: nsqd may have stored it
        self.is_numbered_by_caller = by_caller
        self.created_s = monotonic()
        self.deadline_s = self.created_s + timeout_s

    def fail(self, error: Exception) -> None:
        """Set an exception on the future."""
        if not self.future.done():
            self.future.set_exception(error)

    def failure(self, reason: object) -> PublishFailed:
        """Return the error of a publish that is not tried again."""
        attempts, is_sent = self.attempts, self.is_sent
        return PublishFailed(self.topic, attempts, reason, may_be_published=is_sent, seq=self.seq)


class NumberedStream(FrameReceiver):
    """The queue of a producer with a name, and its connection."""

    def __init__(
        self,
        name: str,
        address: str,
        first_seq: int,
        discovery: Discovery,
        options: Options,
        *,
        max_outstanding: int,
        max_outstanding_bytes: int,
        max_attempts: int,
        retry_delay_s: float,
    ) -> None:
        self._name = name
        self._address = address
        self._next_seq = first_seq
        self._discovery = discovery
        self._options = options
        self._max_count = max_outstanding
        self._max_bytes = max_outstanding_bytes
        self._max_attempts = max_attempts
        self._retry_delay_s = retry_delay_s
        self._connection: NsqdConnection | None = None
        self._under_way: deque[NumberedPublication] = deque()
        self._waiting: deque[NumberedPublication] = deque()
        self._bytes_under_way = 0
        # By topic: the highest number that nsqd has acknowledged, and the highest that is in use.
        self._stored: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self._refusal_text = ""  # the error frame after which nsqd closes the connection
        self._pause: asyncio.TimerHandle | None = None  # until it ends, nothing is sent
        self._waiters: list[asyncio.Future[None]] = []
        self._is_closed = False
        self._loop: Any = None
        self._pool: Pool | None = None
        self._opened: asyncio.Future[None] | None = None
        self._deadlines: Deadlines | None = None

    # Start and close

    def begin(self) -> tuple[asyncio.Future[None], Pool]:
        """Begin to connect, once; return the outcome of the first attempt and the pool; raises ClientClosed."""
        if self._is_closed:
            raise ClientClosed("the producer is closed")
        if self._pool is None:
            self._loop = asyncio.get_running_loop()
            self._opened = self._loop.create_future()
            self._opened.add_done_callback(_retrieve)
            self._deadlines = Deadlines(self._loop, self._expire)
            self._pool = Pool(
                self, [self._address], self._discovery, self._options, self._retry_delay_s, needs_xpub=True
            )
            self._pool.start()
        assert self._opened is not None
        return self._opened, self._pool

    @property
    def pool(self) -> Pool | None:
        """The pool of the connection; None before ``begin``."""
        return self._pool

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait for the outcome of all publishes, then close. Publishes without one after the timeout fail."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pool is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while self.outstanding:
                    await self._progress()
        except TimeoutError:
            pass
        finally:
            for publication in self._under_way:
                publication.is_sent = True
            everything = [*self._under_way, *self._waiting]
            if everything:
                reason = ClientClosed("the producer was closed")
                self._fail_from(everything[0], everything[0].failure(reason), reason)
            assert self._opened is not None
            assert self._deadlines is not None
            if not self._opened.done():
                self._opened.cancel()
            if self._pause is not None:
                self._pause.cancel()
            self._deadlines.close()
            await self._pool.close()

    async def drain(self) -> None:
        """Wait until no publish waits for room on the connection."""
        while self._waiting:
            await self._progress()

    async def _progress(self) -> None:
        """Wait until a publish is sent or has an outcome."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _note_progress(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def outstanding(self) -> int:
        """Number of publishes without an outcome."""
        return len(self._under_way) + len(self._waiting)

    @property
    def connected_addresses(self) -> list[str]:
        """The address of nsqd while it is connected."""
        return [self._address] if self._connection is not None else []

    # Publishing

    def publish(
        self, topic: str, bodies: list[bytes], timeout_s: float, seq: int | None, delay_ms: int = 0
    ) -> asyncio.Future[None]:
        """Publish messages together; raises InvalidMessage if the number is not above those before it."""
        self.begin()
        number = self._number(topic, seq)
        options: dict[str, Any] = {"producer": self._name, "seq": number}
        if delay_ms:
            options["defer"] = delay_ms
        future: asyncio.Future[None] = self._loop.create_future()
        body = encode_xpub(options, encode.join_batch(bodies))
        publication = NumberedPublication(topic, number, body, future, timeout_s, seq is not None)
        assert self._deadlines is not None
        if publication.deadline_s < self._deadlines.earliest_s:
            self._deadlines.watch(publication.deadline_s)
        self._waiting.append(publication)
        self._send_more()
        return future

    def _number(self, topic: str, seq: int | None) -> int:
        used = self._used.get(topic, 0)
        if seq is None:
            seq = max(self._next_seq, used + 1)
            self._next_seq = seq + 1
        elif type(seq) is not int or not 0 < seq < MAX_SEQ:
            raise InvalidMessage(f"publish to {topic}: seq {seq!r} is not an integer from 1 to {MAX_SEQ - 1}")
        elif seq <= used:
            raise InvalidMessage(
                f"publish to {topic}: seq {seq} is not above {used}, which was published before; nsqd would take the "
                "message for a duplicate and not store it"
            )
        self._used[topic] = seq
        return seq

    def _send_more(self) -> None:
        connection = self._connection
        while (
            connection is not None
            and self._waiting
            and self._pause is None
            and not self._refusal_text
            and connection.is_writable
            and len(self._under_way) < self._max_count
            and self._bytes_under_way < self._max_bytes
        ):
            publication = self._waiting.popleft()
            if publication.future.cancelled() and not publication.is_sent:
                continue
            publication.attempts += 1
            self._under_way.append(publication)
            self._bytes_under_way += len(publication.body)
            connection.send_sized(publish_extended_line(publication.topic), publication.body)
        if self._waiters:
            self._note_progress()

    # From the connection

    def response(self, data: bytes) -> None:
        """Complete the oldest publish."""
        if self._connection is None:
            return  # given up; what is left in its buffer does not count
        answer = decode_xpub_answer(data)
        if not self._under_way:
            raise ValueError(f"{self._address}: nsqd sent an answer without a command")
        publication = self._under_way[0]
        if answer.is_duplicate and not publication.is_sent and not publication.is_numbered_by_caller:
            reason = (
                f"{self._address}: nsqd has stored number {publication.seq} of the producer {self._name} before: "
                "another program uses this name, or the clock was set back"
            )
            error = PublishFailed(publication.topic, publication.attempts, reason, seq=publication.seq)
            self._fail_from(publication, error, error)
            return
        self._under_way.popleft()
        self._bytes_under_way -= len(publication.body)
        self._stored[publication.topic] = publication.seq
        if not publication.future.done():
            publication.future.set_result(None)

    def ok(self, count: int) -> None:  # noqa: ARG002
        """Refuse an answer that no XPUB has."""
        if self._connection is not None:
            raise ValueError(f"{self._address}: nsqd answered XPUB with OK")

    def refusal(self, text: str) -> None:
        """Retry or fail the oldest publish. nsqd closes the connection and has read nothing after that command."""
        if self._connection is None:
            return
        self._refusal_text = text
        if not self._under_way:
            return
        publication = self._under_way[0]
        is_retried = text.startswith(_RETRIED_CODE) and _NOT_A_LOG not in text
        reason = ConnectionClosed(f"{self._address}: {text}")
        if is_retried and publication.attempts < self._max_attempts:
            # nsqd may have stored it, if only the sync of its write has failed.
            publication.is_sent = True
            delay_s = retry_delay_s(self._retry_delay_s, publication.attempts)
            self._pause = self._loop.call_later(delay_s, self._end_pause)
            return
        publication.is_sent = publication.is_sent or is_retried
        self._fail_from(publication, publication.failure(reason), reason)

    def _end_pause(self) -> None:
        self._pause = None
        self._send_more()

    def drained(self) -> None:
        """Send more if there is room."""
        self._send_more()

    def writable(self) -> None:
        """Send more if there is room."""
        self._send_more()

    def lost(self, error: Exception | None) -> None:
        """Send the unanswered publishes again when there is a new connection."""
        reason = error or ConnectionClosed(f"{self._address}: nsqd closed the connection")
        connection, self._connection = self._connection, None
        if self._refusal_text:
            for publication in list(self._under_way)[1:]:
                publication.attempts -= 1  # nsqd has not read it
        else:
            for publication in self._under_way:
                publication.is_sent = True
        self._refusal_text = ""
        self._waiting.extendleft(reversed(self._under_way))
        self._under_way.clear()
        self._bytes_under_way = 0
        if connection is not None and self._pool is not None:
            self._pool.lost(connection, reason)
        self._fail_exhausted(reason)
        self._note_progress()

    # From the pool

    def _on_open(self, connection: NsqdConnection) -> None:
        """Use a new connection."""
        self._connection = connection
        connection.start(self)
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        self._send_more()

    def _on_unreachable(self, error: Exception) -> None:
        """Count a failed attempt of the publishes that wait."""
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)
        for publication in self._waiting:
            publication.attempts += 1
        self._fail_exhausted(error)

    # Failures

    def _fail_exhausted(self, reason: Exception) -> None:
        """Fail the waiting publishes if the first one has had all its attempts."""
        if not self._waiting or self._waiting[0].attempts < self._max_attempts:
            return
        first = self._waiting[0]
        if first.is_sent:
            error: PublishFailed = first.failure(reason)
        else:
            error = NotConnected(first.topic, first.attempts, reason, seq=first.seq)
        self._fail_from(first, error, reason)

    def _fail_from(self, first: NumberedPublication, error: PublishFailed, cause: Exception) -> None:
        """Fail a publish, and all later ones: nsqd would not store the first one any more if it stored one of them."""
        everything = [*self._under_way, *self._waiting]
        index = next(index for index, publication in enumerate(everything) if publication is first)
        was_under_way = index < len(self._under_way)
        if error is not cause:
            error.__cause__ = cause
        if was_under_way:
            self._drop_connection(cause)
        self._waiting = deque(everything[:index])
        first.fail(error)
        for publication in everything[index + 1 :]:
            later = publication.failure(f"number {first.seq} of this producer failed before")
            later.__cause__ = error
            publication.fail(later)
        self._used = dict(self._stored)
        for publication in self._waiting:
            self._used[publication.topic] = publication.seq
        self._note_progress()

    def _drop_connection(self, reason: Exception) -> None:
        """Close the connection, so that its answers cannot be mistaken. The pool opens another one."""
        connection, self._connection = self._connection, None
        for publication in self._under_way:
            publication.is_sent = publication.is_sent or not self._refusal_text
        self._under_way.clear()
        self._bytes_under_way = 0
        self._refusal_text = ""
        if connection is not None:
            connection.receiver = FrameReceiver()
            connection.fail(reason)
            if self._pool is not None:
                self._pool.lost(connection, reason)

    def _expire(self, now_s: float) -> float:
        """Fail the publishes whose deadline has passed, and those after them; return the next deadline."""
        everything = [*self._under_way, *self._waiting]
        under_way_count = len(self._under_way)
        for index, publication in enumerate(everything):
            if publication.deadline_s > now_s:
                continue
            is_under_way = index < under_way_count
            if is_under_way:
                reason = f"{self._address}: nsqd did not answer"
            elif self._connection is None and self._pool is not None:
                reason = f"no nsqd is connected ({self._pool.obstacle()})"
            else:
                reason = "earlier publishes are not answered yet"
            timeout_s = round(publication.deadline_s - publication.created_s, 6)
            may_be_published = is_under_way or publication.is_sent
            attempts, seq = publication.attempts, publication.seq
            error = PublishTimedOut(
                publication.topic, attempts, timeout_s, reason, may_be_published=may_be_published, seq=seq
            )
            self._fail_from(publication, error, error)
            break
        return min((one.deadline_s for one in (*self._under_way, *self._waiting)), default=NEVER_S)


def split_by_count(bodies: list[bytes]) -> list[list[bytes]]:
    """Divide bodies into lists that fit into one publish."""
    return [bodies[start : start + MAX_MESSAGES] for start in range(0, len(bodies), MAX_MESSAGES)]


def _retrieve(future: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved. Each publish reports the failure itself."""
    if not future.cancelled():
        future.exception()
