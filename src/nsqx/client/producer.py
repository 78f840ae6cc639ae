# cython: auto_pickle=False
"""The asyncio producer: chooses an nsqd for each publish, limits unanswered commands, and retries failures.

Every publish succeeds or raises before its deadline. A publish whose answer was lost is tried again, possibly on
another nsqd. A message can therefore be published twice; NSQ delivers at least once. A producer with a name numbers its
publishes, so that nsqd stores each of them once; see ``numbered_stream``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from nsqx.client.arguments import as_bytes, as_list, at_least_one, check_name
from nsqx.client.deadlines import Deadlines
from nsqx.client.discovery import Discovery
from nsqx.client.handshake import check_address
from nsqx.client.health import START_TIMEOUT_S, ClientHealth, first_attempt
from nsqx.client.numbered_stream import NumberedStream, check_producer_name, first_seq_of, split_by_count
from nsqx.client.options import Duration, OptionKeywords, Options, positive_seconds_of, seconds_of
from nsqx.client.pool import Pool, retry_delay_s
from nsqx.client.publisher import Publication, Publisher, earliest_deadline_s, new_publication
from nsqx.client.signatures import ConstructorSignature, annotate_returns
from nsqx.client.telemetry import ProducerTelemetry, producer_telemetry
from nsqx.client.topic_publisher import TopicPublisher
from nsqx.errors import (
    ClientClosed,
    ConfigError,
    ConnectFailed,
    ConnectionClosed,
    ConnectRefused,
    InvalidMessage,
    NotConnected,
    PublishFailed,
)
from nsqx.wire import encode, requests

if TYPE_CHECKING:
    from typing import Self, Unpack

    from nsqx.client.codecs import Codec
    from nsqx.client.connection import NsqdConnection

_T = TypeVar("_T")

PUBLISH_TIMEOUT_S = 10.0
# A connection is closed when an answer is due and nothing arrives for the publish timeout, but at least this long.
_MIN_SILENCE_S = 1.0
_JOINED_BYTES = 1024 * 1024

_RETRIED_CODES = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
_BODY_CODES = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})
_MAX_CACHED_LINES = 10_000

_NEW = 0
_RUNNING = 1
_CLOSING = 2
_CLOSED = 3


class Producer:
    """A client that publishes messages to one or more nsqds.

    The publish methods return a future. Await it, or gather many futures. All calls must come from the same event loop.
    """

    __slots__ = (
        "__weakref__",
        "_create_future",
        "_deadlines",
        "_delayed",
        "_discovery",
        "_drain_waiters",
        "_is_batching",
        "_joined",
        "_joined_bytes",
        "_lines",
        "_loop",
        "_max_attempts",
        "_max_batch_bytes",
        "_max_outstanding",
        "_max_outstanding_bytes",
        "_named",
        "_next",
        "_open",
        "_opened",
        "_options",
        "_pool",
        "_publish_timeout_s",
        "_requires_connection",
        "_retry_delay_s",
        "_start_timeout_s",
        "_state",
        "_stream",
        "_telemetry",
        "_waiting",
    )
    __signature__ = ConstructorSignature()

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        lookupd_http_addresses: str | Iterable[str] = (),
        batching: bool = False,
        max_outstanding: int = 16 * 1024,
        max_outstanding_bytes: int = 32 * 1024 * 1024,
        max_batch_bytes: int = 4 * 1024 * 1024,
        max_publish_attempts: int = 5,
        retry_delay: Duration = 0.1,
        publish_timeout: Duration = PUBLISH_TIMEOUT_S,
        start_timeout: Duration = START_TIMEOUT_S,
        require_connection: bool = False,
        telemetry: bool | ProducerTelemetry = False,
        producer_name: str = "",
        first_seq: int | None = None,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """Create a producer. No connection is opened before ``start`` or the first publish.

        Args:
            nsqd_tcp_addresses: nsqds to publish to, as ``host:port`` or the path of a unix socket.
            lookupd_http_addresses: nsqlookupds that name the nsqds to publish to.
            batching: Send publishes to one topic together if they are made in the same turn of the event loop.
            max_outstanding: Largest number of unanswered commands per connection. Further publishes wait in memory.
            max_outstanding_bytes: Largest number of unanswered bytes per connection. Further publishes wait in memory.
            max_batch_bytes: Largest size of one MPUB command. Keep it below nsqd's ``--max-body-size`` (default 5 MiB).
            max_publish_attempts: Number of attempts after which a publish fails.
            retry_delay: Delay before a publish or a connection is tried again. The first retry of a publish is made at
                once. The delay doubles with each attempt, up to 5 s.
            publish_timeout: Longest time for one publish, including retries (10 s by default).
            start_timeout: Longest time that ``start`` waits for the first connection (10 s by default).
            require_connection: Raise ConnectFailed from ``start`` if no nsqd can be reached. By default the producer
                continues in the background and connects when an nsqd is there.
            telemetry: True for OpenTelemetry spans and metrics, or an object that records them.
            producer_name: A name that no other running producer has. Publishes are then numbered, and nsqd stores each
                number once, also if a publish is sent again. It needs one nsqd of nsqx, and log topics.
            first_seq: The first number of a producer with a name. The default is the time in microseconds, which is
                above the numbers of earlier processes.
            **options: Options of the client, such as ``tls_v1``. OptionKeywords lists them.

        Raises:
            ConfigError: An argument is invalid, or no address is given.
        """
        self._options = Options.of(options)
        self._named = [check_address(each) for each in as_list(nsqd_tcp_addresses)]
        self._discovery = Discovery(as_list(lookupd_http_addresses), self._options)
        if not self._named and not self._discovery.addresses:
            raise ConfigError("a producer needs nsqd_tcp_addresses or lookupd_http_addresses")
        self._max_outstanding = at_least_one("max_outstanding", max_outstanding)
        self._max_outstanding_bytes = at_least_one("max_outstanding_bytes", max_outstanding_bytes)
        self._max_batch_bytes = at_least_one("max_batch_bytes", max_batch_bytes)
        self._max_attempts = at_least_one("max_publish_attempts", max_publish_attempts)
        self._retry_delay_s = seconds_of("retry_delay", retry_delay)
        self._publish_timeout_s = positive_seconds_of("publish_timeout", publish_timeout)
        self._start_timeout_s = positive_seconds_of("start_timeout", start_timeout)
        self._requires_connection = require_connection
        self._is_batching = batching
        self._telemetry = producer_telemetry(telemetry)
        self._stream: NumberedStream | None = None
        if producer_name:
            has_lookupd = bool(self._discovery.addresses)
            self._stream = NumberedStream(
                check_producer_name(producer_name, self._named, has_lookupd, batching),
                self._named[0],
                first_seq_of(first_seq),
                self._discovery,
                self._options,
                max_outstanding=self._max_outstanding,
                max_outstanding_bytes=self._max_outstanding_bytes,
                max_attempts=self._max_attempts,
                retry_delay_s=self._retry_delay_s,
            )
        elif first_seq is not None:
            raise ConfigError("first_seq needs a producer_name")
        self._state = _NEW
        self._loop: Any = None
        self._create_future: Any = None
        self._deadlines: Any = None
        self._pool: Pool | None = None
        self._opened: asyncio.Future[None] | None = None
        self._lines: dict[str, bytes] = {}
        # The open connections, and the index of the one used last.
        self._open: list[Publisher] = []
        self._next = 0
        # Publications that wait for room on a connection, and those that wait for a retry.
        self._waiting: deque[Publication] = deque()
        self._delayed: dict[Publication, asyncio.TimerHandle] = {}
        # Batching: the publications of this loop turn, by topic.
        self._joined: dict[str, list[Publication]] = {}
        self._joined_bytes = 0
        self._drain_waiters: list[asyncio.Future[None]] = []

    # Start and close

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect, and wait until an nsqd is connected or none can be reached, at most ``start_timeout``.

        The producer then continues in the background, unless ``require_connection`` is set. Calling ``start`` is
        optional: the first publish connects too.

        Raises:
            ConnectRefused: Every nsqd rejected the connection, for example because of a wrong secret, or because it
                does not know the publishes of a producer with a name.
            ConnectFailed: No nsqd can be reached, and ``require_connection`` is set.
        """
        opened, pool = self._stream.begin() if self._stream is not None else self._begun()
        if self.is_connected:
            return
        try:
            error = await first_attempt(opened, self._start_timeout_s)
        except BaseException:
            await self.close(0)
            raise
        if isinstance(error, TimeoutError):
            error = ConnectFailed(f"no nsqd is connected after {self._start_timeout_s:g} s ({pool.obstacle()})")
        if error is not None and (self._requires_connection or isinstance(error, ConnectRefused)):
            await self.close(0)
            raise error

    async def close(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Wait for the outcome of all publishes, then close the connections.

        Publishes without an outcome after ``timeout`` fail with PublishFailed. Without ``timeout``, wait until every
        publish is answered or expired.
        """
        if self._stream is not None:
            await self._stream.close(None if timeout is None else seconds_of("timeout", timeout))
            return
        if self._state == _NEW:
            self._state = _CLOSED
        if self._state == _CLOSED:
            return
        self._state = _CLOSING
        self._send_joined()
        try:
            async with asyncio.timeout(None if timeout is None else seconds_of("timeout", timeout)):
                await self._drained()
        except TimeoutError:
            pass
        finally:
            self._state = _CLOSED
            self._fail_everything(ClientClosed("the producer was closed"))
            if self._opened is not None and not self._opened.done():
                self._opened.cancel()
            self._deadlines.close()
            assert self._pool is not None
            await self._pool.close()

    async def drain(self) -> None:
        """Wait until no publish waits for room on a connection.

        Use this to limit memory when publishing without awaiting each future.
        """
        if self._stream is not None:
            await self._stream.drain()
        if self._waiting:
            waiter = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter

    @property
    def publish_timeout_s(self) -> float:
        """Longest time for a publish without its own timeout."""
        return self._publish_timeout_s

    @property
    def is_connected(self) -> bool:
        """True if an nsqd is connected."""
        return bool(self._open) or bool(self._stream is not None and self._stream.connected_addresses)

    @property
    def last_error(self) -> Exception | None:
        """The last failed attempt to connect, lost connection or failed lookup; None if there was none."""
        pool = self._pool if self._stream is None else self._stream.pool
        return None if pool is None else pool.last_error

    @property
    def health(self) -> ClientHealth:
        """The state of the connections, for readiness probes."""
        pool = self._pool if self._stream is None else self._stream.pool
        failures = {} if pool is None else pool.failures
        return ClientHealth(self.is_connected, tuple(self.connected_addresses), failures, self.last_error)

    @property
    def connected_addresses(self) -> list[str]:
        """Addresses of the connected nsqds."""
        if self._stream is not None:
            return self._stream.connected_addresses
        return [each.connection.address for each in self._open]

    @property
    def outstanding(self) -> int:
        """Number of publish commands without an outcome."""
        if self._stream is not None:
            return self._stream.outstanding
        under_way = sum(each.count_under_way() for each in self._open)
        joined = sum(map(len, self._joined.values()))
        return under_way + len(self._waiting) + len(self._delayed) + joined

    # Publishing

    def publish(
        self, topic: str, body: bytes, timeout: Duration | None = None, seq: int | None = None
    ) -> asyncio.Future[None]:
        """Publish one message.

        Return a future that is done when nsqd has answered. It raises PublishFailed if nsqd rejects the message or all
        attempts fail, and PublishTimedOut after ``timeout`` (default: ``publish_timeout``).

        A producer with a name gives the publish the next number, or ``seq``, which must be above the numbers before it.

        Raises:
            InvalidName: The name of the topic is not valid.
            InvalidMessage: The body is empty or not bytes, or the number is too low.
            ClientClosed: The producer is closed.
            ConfigError: There is a number, but the producer has no name.
        """
        if self._stream is not None or seq is not None:
            return self._publish_numbered(topic, [body], timeout, seq)
        line = self._lines.get(topic)
        if line is None:
            line = self._new_line(topic)
        if type(body) is not bytes:
            body = as_bytes(body)
        if not body:
            raise InvalidMessage(f"publish to {topic}: the body is empty, and nsqd rejects empty messages")
        if self._state != _RUNNING:
            self._begin()
        future: asyncio.Future[None] = self._create_future()
        publication = new_publication(topic, line, body, future, self._timeout_s(timeout))
        if self._telemetry is not None:
            self._telemetry.published(topic, 1, len(body), future)
        if self._is_batching:
            self._join(publication)
        else:
            self._send(publication)
        return future

    def publish_many(
        self, topic: str, bodies: Iterable[bytes], timeout: Duration | None = None, seq: int | None = None
    ) -> asyncio.Future[None]:
        """Publish several messages in one command, or in several commands if they exceed ``max_batch_bytes``.

        The future is done when every command is answered. It raises the first failure. A producer with a name numbers
        the commands. With ``seq`` the messages must fit into one: at most ``max_batch_bytes`` and 20,000 messages.
        """
        if self._stream is not None or seq is not None:
            return self._publish_numbered(topic, list(bodies), timeout, seq)
        if topic not in self._lines:
            self._new_line(topic)
        listed = list(bodies)
        size = _check_bodies(topic, listed)
        if self._state != _RUNNING:
            self._begin()
        timeout_s = self._timeout_s(timeout)
        if listed and size <= self._max_batch_bytes:
            return self._publish_batch(topic, listed, timeout_s)
        futures = [self._publish_batch(topic, batch, timeout_s) for batch in self._split(listed)]
        return asyncio.ensure_future(_all_of(futures), loop=self._loop)

    def publish_deferred(
        self, topic: str, body: bytes, delay: Duration, timeout: Duration | None = None, seq: int | None = None
    ) -> asyncio.Future[None]:
        """Publish one message that nsqd delivers after ``delay``. ``seq`` is that of ``publish``."""
        if topic not in self._lines:
            self._new_line(topic)
        body = as_bytes(body)
        if not body:
            raise InvalidMessage(f"publish to {topic}: the body is empty, and nsqd rejects empty messages")
        delay_s = seconds_of("delay", delay)
        if delay_s < 0:
            raise InvalidMessage(f"publish to {topic}: the delay is negative ({delay_s:g} s)")
        if self._stream is not None or seq is not None:
            return self._publish_numbered(topic, [body], timeout, seq, round(delay_s * 1000))
        if self._state != _RUNNING:
            self._begin()
        future: asyncio.Future[None] = self._create_future()
        line = requests.publish_deferred_line(topic, round(delay_s * 1000))
        if self._telemetry is not None:
            self._telemetry.published(topic, 1, len(body), future)
        self._send(new_publication(topic, line, body, future, self._timeout_s(timeout)))
        return future

    def publisher(self, topic: str, codec: Codec[_T] | type[_T]) -> TopicPublisher[_T]:
        """Return an object that publishes values to a topic.

        ``codec`` is a codec of ``nsqx.codecs``, or a type such as ``dict`` or a pydantic model. Raises InvalidName or
        ConfigError.
        """
        return TopicPublisher(lambda: self, topic, codec)

    def _publish_numbered(
        self, topic: str, bodies: list[bytes], timeout: Duration | None, seq: int | None, delay_ms: int = 0
    ) -> asyncio.Future[None]:
        """Publish messages with the next number, or with ``seq``."""
        if self._stream is None:
            raise ConfigError(f"publish to {topic}: seq needs a producer with a producer_name")
        check_name("topic", topic)
        size = _check_bodies(topic, bodies)
        batches = [one for part in self._split(bodies) for one in split_by_count(part)]
        if seq is not None and len(batches) != 1:
            raise InvalidMessage(
                f"publish to {topic}: {len(bodies)} messages of {size} bytes do not fit into one publish with a number"
            )
        timeout_s = self._timeout_s(timeout)
        futures = [self._stream.publish(topic, batch, timeout_s, seq, delay_ms) for batch in batches]
        if self._telemetry is not None:
            for batch, future in zip(batches, futures, strict=True):
                self._telemetry.published(topic, len(batch), sum(map(len, batch)), future)
        if len(futures) == 1:
            return futures[0]
        return asyncio.ensure_future(_all_of(futures))

    def _timeout_s(self, timeout: Duration | None) -> float:
        """Return the timeout of one publish in seconds; raises ConfigError."""
        if timeout is None:
            return self._publish_timeout_s
        return positive_seconds_of("timeout", timeout)

    def _publish_batch(self, topic: str, bodies: list[bytes], timeout_s: float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._create_future()
        body = encode.join_batch(bodies)
        if self._telemetry is not None:
            self._telemetry.published(topic, len(bodies), len(body), future)
        self._send(new_publication(topic, requests.publish_many_line(topic), body, future, timeout_s))
        return future

    def _split(self, bodies: list[bytes]) -> list[list[bytes]]:
        batches: list[list[bytes]] = []
        size = self._max_batch_bytes
        for body in bodies:
            if size + len(body) > self._max_batch_bytes:
                batches.append([])
                size = 4
            batches[len(batches) - 1].append(body)
            size += 4 + len(body)
        return batches

    def _new_line(self, topic: str) -> bytes:
        check_name("topic", topic)
        if len(self._lines) >= _MAX_CACHED_LINES:
            self._lines.clear()
        line = self._lines[topic] = requests.publish_line(topic)
        return line

    # Batching

    def _join(self, publication: Publication) -> None:
        if not self._joined:
            self._loop.call_soon(self._send_joined)
        self._joined.setdefault(publication.topic, []).append(publication)
        self._joined_bytes += len(publication.body)
        if self._joined_bytes >= _JOINED_BYTES:
            self._send_joined()

    def _send_joined(self) -> None:
        joined, self._joined = self._joined, {}
        self._joined_bytes = 0
        for topic, members in joined.items():
            if len(members) == 1:
                self._send(members[0])
                continue
            body = encode.join_batch([member.body for member in members])
            line = requests.publish_many_line(topic)
            publication = new_publication(topic, line, body, None, self._publish_timeout_s)
            publication.members = members
            publication.deadline_s = earliest_deadline_s(members)
            self._send(publication)

    # Choosing a connection

    def _send(self, publication: Publication) -> None:
        if publication.deadline_s < self._deadlines.earliest_s:
            self._deadlines.watch(publication.deadline_s)
        publisher = None if self._waiting else self._pick()
        if publisher is None:
            self._waiting.append(publication)
        else:
            publisher.publish(publication)

    def _pick(self) -> Publisher | None:
        """Return the next connection that has room, in turn, or None."""
        count = len(self._open)
        for _ in range(count):
            self._next = self._next + 1 if self._next + 1 < count else 0
            publisher = self._open[self._next]
            if publisher.has_room():
                return publisher
        return None

    def _on_room(self, publisher: Publisher) -> None:
        """Send waiting publications on ``publisher`` while it has room."""
        while self._waiting and publisher.has_room():
            publication = self._waiting.popleft()
            if not publication.is_abandoned():
                publisher.publish(publication)
        if self._drain_waiters:
            self._wake_drained()

    def _pump(self) -> None:
        for publisher in list(self._open):
            self._on_room(publisher)

    def _wake_drained(self) -> None:
        if self._waiting or (self._state == _CLOSING and self.outstanding):
            return
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _drained(self) -> None:
        """Wait until every publish has an outcome."""
        while self.outstanding:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter

    # From the pool and the publishers

    def _begun(self) -> tuple[asyncio.Future[None], Pool]:
        """Begin to connect, and return the outcome of the first attempt and the pool."""
        self._begin()
        assert self._opened is not None
        assert self._pool is not None
        return self._opened, self._pool

    def _begin(self) -> None:
        if self._state == _RUNNING:
            return
        if self._state != _NEW:
            raise ClientClosed("the producer is closed")
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._opened = self._loop.create_future()
        self._opened.add_done_callback(_retrieve)
        self._deadlines = Deadlines(self._loop, self._expire)
        self._pool = Pool(self, self._named, self._discovery, self._options, self._retry_delay_s)
        self._state = _RUNNING
        self._pool.start()

    def _on_open(self, connection: NsqdConnection) -> None:
        """Use a new connection."""
        publisher = Publisher(connection, self, self._max_outstanding, self._max_outstanding_bytes)
        self._open.append(publisher)
        connection.start(publisher)
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        self._on_room(publisher)

    def _on_unreachable(self, error: Exception) -> None:
        """Count a failed attempt for all waiting publications: no nsqd could be reached."""
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)
        waiting, self._waiting = self._waiting, deque()
        for publication in waiting:
            publication.attempts += 1
            if publication.attempts < self._max_attempts:
                self._waiting.append(publication)
            elif publication.is_uncertain:
                publication.fail(_unanswered(publication, error))
            else:
                publication.fail(_caused(NotConnected(publication.topic, publication.attempts, error), error))
        self._wake_drained()

    def _on_refused(self, publisher: Publisher, publication: Publication, text: str) -> None:
        """Retry or fail a publication that nsqd answered with an error."""
        code = text.partition(" ")[0]
        if code in _RETRIED_CODES:
            self._retry(publication, ConnectionClosed(f"{publisher.connection.address}: {text}"))
        elif publication.members is not None and code in _BODY_CODES:
            # One message of the batch is invalid. Send the messages one by one, so only that one fails.
            for member in publication.members:
                member.is_uncertain = publication.is_uncertain
            self._waiting.extend(publication.members)
        else:
            reason = f"{publisher.connection.address}: {text}"
            may_be_published = publication.is_uncertain
            attempts = publication.attempts + 1
            publication.fail(PublishFailed(publication.topic, attempts, reason, may_be_published=may_be_published))

    def _on_lost(self, publisher: Publisher, publications: Iterable[Publication], error: Exception | None) -> None:
        """Retry ``publications``, which were unanswered when their connection ended."""
        if publisher in self._open:
            self._open.remove(publisher)
        self._next = 0
        reason = error or ConnectionClosed(f"{publisher.connection.address}: nsqd closed the connection")
        if self._pool is not None:
            self._pool.lost(publisher.connection, reason)
        for publication in publications:
            if publication.is_abandoned():
                continue
            if publisher.refusal_text:
                # nsqd closed the connection because of another publication and read nothing after that one.
                self._waiting.append(publication)
                continue
            publication.is_uncertain = True
            if self._state == _CLOSED:
                publication.attempts += 1
                publication.fail(_unanswered(publication, reason))
            else:
                self._retry(publication, reason)
        self._pump()
        self._wake_drained()

    def _retry(self, publication: Publication, reason: Exception) -> None:
        publication.attempts += 1
        publication.error = reason
        publication.drop_finished_members()
        if publication.attempts >= self._max_attempts:
            publication.fail(_unanswered(publication, reason))
        elif publication.attempts == 1:
            self._waiting.append(publication)
        else:
            delay_s = retry_delay_s(self._retry_delay_s, publication.attempts - 1)
            self._delayed[publication] = self._loop.call_later(delay_s, self._retry_now, publication)

    def _retry_now(self, publication: Publication) -> None:
        self._delayed.pop(publication, None)
        self._waiting.append(publication)
        self._pump()

    def _expire(self, now_s: float) -> float:
        """Fail every publication whose deadline has passed, and return the next deadline."""
        next_s = self._expire_unsent(now_s)
        silence_s = max(self._publish_timeout_s, _MIN_SILENCE_S)
        for publisher in list(self._open):
            next_s = min(next_s, publisher.expire(now_s))
            if publisher.unanswered_s(now_s) >= silence_s:
                address = publisher.connection.address
                publisher.connection.fail(ConnectionClosed(f"{address}: nsqd sent no answer for {silence_s:g} s"))
        self._wake_drained()
        return next_s

    def _expire_unsent(self, now_s: float) -> float:
        """Fail expired publications that wait for room or for a retry, and return the next deadline."""
        next_s = min(earliest_deadline_s(self._waiting), earliest_deadline_s(self._delayed))
        if next_s > now_s:
            return next_s
        reason = "earlier publishes are not answered yet"
        if not self._open and self._pool is not None:
            reason = f"no nsqd is connected ({self._pool.obstacle()})"
        for publication in (*self._waiting, *self._delayed):
            if publication.deadline_s <= now_s:
                publication.expire(now_s, reason, False)
                publication.drop_finished_members()
        self._waiting = deque([each for each in self._waiting if not each.is_abandoned()])
        for publication in [each for each in self._delayed if each.is_abandoned()]:
            self._delayed.pop(publication).cancel()
        return min(earliest_deadline_s(self._waiting), earliest_deadline_s(self._delayed))

    def _fail_everything(self, error: Exception) -> None:
        left = [*self._waiting, *self._delayed]
        for publisher in list(self._open):
            under_way = publisher.take_under_way()
            for publication in under_way:
                publication.is_uncertain = True
            if under_way:
                # Close at once: unsent data must not delay the end of the connection.
                publisher.connection.fail(error)
            left.extend(under_way)
        for timer in self._delayed.values():
            timer.cancel()
        self._waiting.clear()
        self._delayed.clear()
        for publication in left:
            publication.fail(_unanswered(publication, error))
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


annotate_returns(Producer, publish="asyncio.Future[None]", _on_room="None")


def _check_bodies(topic: str, bodies: list[bytes]) -> int:
    """Convert the bodies to bytes in place and return the size of their batch; raises InvalidMessage."""
    size = 4
    for index, body in enumerate(bodies):
        if type(body) is not bytes:
            body = bodies[index] = as_bytes(body)
        if not body:
            raise InvalidMessage(f"publish to {topic}: body {index} is empty, and nsqd rejects empty messages")
        size += 4 + len(body)
    return size


def _unanswered(publication: Publication, reason: Exception) -> Exception:
    """Return the error of a publication that is not tried again."""
    uncertain = publication.is_uncertain
    error = PublishFailed(publication.topic, publication.attempts, reason, may_be_published=uncertain)
    return _caused(error, reason)


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def _retrieve(future: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved. Each publish reports the failure itself."""
    if not future.cancelled():
        future.exception()


async def _all_of(futures: list[asyncio.Future[None]]) -> None:
    """Wait for all futures, then raise the first failure."""
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
