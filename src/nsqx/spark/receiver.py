"""Takes messages from a channel into the segment directory: received, made durable, and only then finished.

Runs an event loop in a thread of its own. Order is everything here: a message is told known or new, its row is on disk,
then FIN is sent. Whatever fails in between, nsqd hands the message out again, and it is known or new once more. Knows
nothing of Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from nsqx.client.consumer import Consumer
from nsqx.client.options import Options
from nsqx.errors import ConfigError, ConnectFailed, LookupFailed, NSQError
from nsqx.spark.cluster import channel_depth, find_topics
from nsqx.spark.dedup import SeenMessages
from nsqx.spark.options import MSG_TIMEOUT_S, SourceOptions
from nsqx.spark.rows import Identities, Rows

if TYPE_CHECKING:
    from nsqx.client.subscription import Message, Subscription
    from nsqx.spark.segments import SegmentDirectory

_log = logging.getLogger("nsqx.spark")

STOP_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 60.0
# How long rows are gathered for a segment: shortly if Spark waits for them, and not at all if there are enough.
_LINGER_S = 0.05
_HURRIED_LINGER_S = 0.003
_ENOUGH_MESSAGES = 512
_DEPTH_INTERVAL_S = 5.0
_WRITE_ATTEMPTS = 6
_WRITE_RETRY_S = 0.5
# Consuming goes on when so much of the buffer's limit is left.
_RESUME_SHARE = 0.8
_FAILED_FIN = re.compile(r"E_FIN_FAILED FIN (\w{16}) ")


class _TopicConsumer(Consumer):
    """A consumer that tells when answers may have been lost."""

    def __init__(self, receiver: Receiver, topic: str, max_in_flight: int, client_options: dict[str, Any]) -> None:
        options = receiver.options
        super().__init__(
            topic,
            options.channel,
            receiver.handler_of(topic, self),
            nsqd_tcp_addresses=options.cluster.nsqd_tcp_addresses,
            lookupd_http_addresses=options.cluster.lookupd_http_addresses,
            # A message is never given up here: what to do with it is for the query to say.
            **{**client_options, "max_in_flight": max_in_flight, "max_attempts": 0},
        )
        self._receiver = receiver
        self.close_wait_count = 0

    def on_close_wait(self, subscription: Subscription) -> None:
        """nsqd has read everything that was sent before."""
        self.close_wait_count += 1
        super().on_close_wait(subscription)

    def on_lost(self, subscription: Subscription, error: Exception | None) -> None:
        """The latest FINs may not have arrived."""
        if not subscription.is_closing:
            self._receiver.connection_lost(self.topic, subscription.connection.address)
        super().on_lost(subscription, error)

    def on_answer_failed(self, subscription: Subscription, text: str, is_harmless: bool) -> None:
        """A FIN came too late: the message waits in its channel again."""
        match = _FAILED_FIN.match(text)
        if match is not None:
            self._receiver.finish_failed(self.topic, subscription.connection.address, match[1].encode())
        super().on_answer_failed(subscription, text, is_harmless)


class Receiver:
    """Fills a segment directory, which must be open, from ``start`` to ``stop``."""

    def __init__(self, options: SourceOptions, directory: SegmentDirectory) -> None:
        self.options = options
        self.directory = directory
        self.rows = directory.next_row
        self.depth: int | None = None
        self.known_count = 0
        self._seen = SeenMessages(options.dedup_window)
        self._client_options: dict[str, Any] = {"msg_timeout": MSG_TIMEOUT_S, **dict(options.cluster.client_options)}
        self._checked = Options.of(self._client_options)
        self._thread = threading.Thread(target=self._run, name="nsq receiver", daemon=True)
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._has_started = False
        self._has_ended = False
        self._is_clean = False
        self._is_awaited = False
        # What a bounded read is waiting for.
        self._bound_ns = 0
        self._expected: int | None = None
        # On the loop.
        self._loop: Any = None
        self._consumers: dict[str, _TopicConsumer] = {}
        self._pending: dict[str, list[Message]] = {}
        self._pending_count = 0
        self._writing: list[Message] = []
        self._write_began_s = 0.0
        self._pins_due: list[Identities] = []
        self._is_paused = False
        self._is_stopping = False
        self._received = 0
        self._received_old = 0
        self._take_count = 0
        # How often a bounded read came nearer to its end, and whether it is about to.
        self._step_count = 0
        self._is_stepping = False

    # From Spark's side

    def start(self, *, bound_ns: int = 0) -> None:
        """Begin to receive; raises ConfigError or ClientError if that is impossible.

        With ``bound_ns`` only until what was published before then is there.
        """
        self._bound_ns = bound_ns
        self._recall()
        self.directory.begin(self.options.max_in_flight)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._has_started or self._has_ended, _START_TIMEOUT_S)
        self.check()

    def _recall(self) -> None:
        """Take up what former runs received; what was last in flight may come again at any time."""
        self._seen.remember(self.directory.known_identities())
        self._seen.remember_pinned(self.directory.pinned_identities())
        state = self.directory.state
        if not state.is_clean:
            suspects = self._seen.every_latest(2 * max(state.max_in_flight, 1))
            self.directory.pin(suspects)
            self._seen.remember_pinned(suspects)

    def wait_for_rows(self, beyond: int, timeout_s: float) -> int:
        """How many rows there are, as soon as they are more than ``beyond``, or after ``timeout_s``, or at the end."""
        with self._changed:
            if self.rows <= beyond and not self._has_ended:
                self._is_awaited = True
                self._call(self._hurry)
                self._changed.wait_for(lambda: self.rows > beyond or self._has_ended, timeout_s)
                self._is_awaited = False
        self.check()
        return self.rows

    def check(self) -> None:
        """Raise what made receiving impossible."""
        if self._failure is not None:
            raise self._failure

    @property
    def is_paused(self) -> bool:
        """True while there are more rows than may be kept."""
        return self._is_paused

    @property
    def is_drained(self) -> bool:
        """True once a bounded read has all it is going to get."""
        return self._has_ended

    def committed(self) -> None:
        """Room was made in the directory."""
        self._call(self._regulate)

    def stop(self) -> bool:
        """Give back what is not durable and end; True if nsqd has heard of everything that is."""
        if self._thread.is_alive():
            self._call(self._begin_stop)
            self._thread.join(2 * STOP_TIMEOUT_S)
        return self._is_clean

    def _call(self, callback: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(callback)

    # The thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_event_loop) as runner:
                runner.run(self._receive())
        except (NSQError, OSError) as error:
            self._failure = error
        except Exception as error:
            _log.exception("the receiver failed")
            self._failure = error
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    async def _receive(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._enough = asyncio.Event()
        self._ending = asyncio.Event()
        topics = await self._find_topics()
        if self._bound_ns and self.options.cluster.lookupd_http_addresses:
            addresses = self.options.cluster.lookupd_http_addresses
            self._expected = await channel_depth(addresses, topics, self.options.channel)
        try:
            await asyncio.gather(*map(self._subscribe, topics))
            with self._changed:
                self._has_started = True
                self._changed.notify_all()
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(work) for work in self._helpers()]
                writer = tasks.create_task(self._keep_writing())
                await self._ending.wait()
                for helper in helpers:
                    helper.cancel()
                self._is_clean = await self._end_consumers()
                self._is_stopping = True
                self._hurry()
                self._wake.set()
                await writer
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            for consumer in self._consumers.values():
                await consumer.stop(0)

    def _helpers(self) -> list[Coroutine[Any, Any, None]]:
        helpers = [self._keep_touching()]
        if self.options.cluster.lookupd_http_addresses:
            helpers.append(self._keep_asking_depth())
        if self.options.topic_pattern:
            helpers.append(self._keep_finding_topics())
        if self._bound_ns:
            helpers.append(self._watch_drain())
        return helpers

    # Topics

    async def _find_topics(self) -> list[str]:
        options = self.options
        addresses = options.cluster.lookupd_http_addresses
        if not addresses:
            return list(options.topics)
        try:
            found = await find_topics(addresses)
        except LookupFailed as error:
            if options.cluster.nsqd_tcp_addresses and not options.topic_pattern:
                return list(options.topics)
            raise ConfigError(
                f"nsq: no nsqlookupd answers ({error}): check nsq.lookupd, which takes HTTP addresses, usually port"
                " 4161"
            ) from None
        if not options.topic_pattern:
            return list(options.topics)
        pattern = re.compile(options.topic_pattern)
        return [topic for topic in found if pattern.fullmatch(topic)]

    async def _subscribe(self, topic: str) -> None:
        consumer = _TopicConsumer(self, topic, self.options.max_in_flight, self._client_options)
        self._consumers[topic] = consumer
        try:
            await consumer.start()
        except ConnectFailed as error:
            raise ConfigError(
                f"nsq: no nsqd can be reached for topic {topic} ({error}): check nsq.nsqd, which takes TCP addresses,"
                " usually port 4150"
            ) from None
        self._share_out()

    def _share_out(self) -> None:
        share = 0 if self._is_paused else max(1, self.options.max_in_flight // max(1, len(self._consumers)))
        for consumer in self._consumers.values():
            if consumer.max_in_flight != share:
                with contextlib.suppress(ConfigError):  # one that has not started yet
                    consumer.max_in_flight = share

    async def _keep_finding_topics(self) -> None:
        while True:
            await asyncio.sleep(self._checked.lookupd_poll_interval)
            try:
                topics = await self._find_topics()
            except NSQError as error:
                _log.warning("cannot look for topics: %s", error)
                continue
            for topic in topics:
                if topic not in self._consumers:
                    _log.info("subscribing to the new topic %s", topic)
                    with contextlib.suppress(ConfigError):
                        await self._subscribe(topic)

    async def _keep_asking_depth(self) -> None:
        while True:
            self.depth = await channel_depth(
                self.options.cluster.lookupd_http_addresses, list(self._consumers), self.options.channel
            )
            await asyncio.sleep(_DEPTH_INTERVAL_S)

    # Messages

    def handler_of(self, topic: str, consumer: Consumer) -> Callable[[Message], None]:
        """What a topic's consumer does with a message."""
        waiting = self._pending.setdefault(topic, [])

        def take(message: Message) -> None:
            message.answer_later()
            waiting.append(message)
            count = self._pending_count = self._pending_count + 1
            if count == 1:
                self._wake.set()
            if not count & 15 and (count >= _ENOUGH_MESSAGES or consumer.is_starved):
                self._enough.set()

        return take

    def _hurry(self) -> None:
        self._enough.set()

    def connection_lost(self, topic: str, node: str) -> None:
        """Whatever was in flight there may come again after any number of others."""
        suspects = self._seen.latest(topic, node, 2 * self.options.max_in_flight)
        self._pins_due.append(suspects)
        self._wake.set()

    def finish_failed(self, topic: str, node: str, message_id: bytes) -> None:
        """That message will come again."""
        self._pins_due.extend(self._seen.one(topic, node, message_id))
        self._wake.set()

    async def _keep_writing(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._pending_count:
                await self._linger()
                await self._store()
            elif self._pins_due:
                await self._store()
            elif self._is_stopping:
                return
            if self._pending_count or self._is_stopping or self._pins_due:
                self._wake.set()

    async def _linger(self) -> None:
        """Gather a little: many small files are slow for everybody."""
        if self._pending_count >= _ENOUGH_MESSAGES or self._ending.is_set():
            return
        self._enough.clear()
        # Spark asked before the messages came, or it has enough to do.
        linger_s = _HURRIED_LINGER_S if self._is_awaited else _LINGER_S
        try:
            async with asyncio.timeout(linger_s):
                await self._enough.wait()
        except TimeoutError:
            pass

    async def _store(self) -> None:
        """Make what is pending durable, then finish it."""
        parts, pins = self._take_pending()
        self._write_began_s = self._loop.time()
        rows = await self._persist(parts, pins)
        self._seen.remember_pinned(pins)
        for message in self._writing:
            message.finish()
        self._writing = []
        if self._is_stepping:
            self._is_stepping = False
            self._step_count += 1
        if rows > self.rows:
            with self._changed:
                self.rows = rows
                self._changed.notify_all()
        self._regulate()

    def _take_pending(self) -> tuple[list[Rows], list[Identities]]:
        pins, self._pins_due = self._pins_due, []
        self._take_count += 1
        parts: list[Rows] = []
        writing: list[Message] = []
        for topic, waiting in self._pending.items():
            # Of a connection that is lost nothing can be finished: it all comes again.
            messages = [message for message in waiting if not message.is_lost]
            waiting.clear()
            if not messages:
                continue
            rows = Rows(
                topic,
                [message.body for message in messages],
                [message.id for message in messages],
                [message.timestamp for message in messages],
                [message.attempts for message in messages],
                [message.nsqd_address for message in messages],
            )
            self._note_progress(rows)
            known = self._seen.admit(rows)
            if known:
                self.known_count += len(known)
                pins.extend(self._seen.unpinned(rows, known))
                rows = rows.without(known)
            parts.append(rows)
            writing.extend(messages)
        self._pending_count = 0
        self._writing = writing
        return parts, pins

    async def _persist(self, parts: list[Rows], pins: list[Identities]) -> int:
        """Write pins and rows; tries again for a while if the storage fails. How many rows there are then."""
        for attempt in range(1, _WRITE_ATTEMPTS + 1):
            try:
                return await self._loop.run_in_executor(None, self._write, parts, pins)  # type: ignore[no-any-return]
            except OSError as error:
                if attempt == _WRITE_ATTEMPTS:
                    raise ConfigError(
                        f"nsq: segmentDir {self.directory.storage.location} cannot be written: {error}. Nothing is"
                        " lost: the messages are still in their channel"
                    ) from error
                _log.warning("cannot write a segment, trying again: %s", error)
                await asyncio.sleep(_WRITE_RETRY_S * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _write(self, parts: list[Rows], pins: list[Identities]) -> int:
        self.directory.pin(pins)
        return self.directory.append(parts) if any(map(len, parts)) else self.rows

    async def _keep_touching(self) -> None:
        """A write that takes long must not make nsqd think that nobody cares."""
        interval_s = max(0.1, self._checked.msg_timeout / 4)
        while True:
            await asyncio.sleep(interval_s)
            if not self._writing or self._loop.time() - self._write_began_s < interval_s:
                continue
            held = [*self._writing, *(message for waiting in self._pending.values() for message in waiting)]
            for message in held:
                if not message.is_answered:
                    message.touch()

    def _regulate(self) -> None:
        """Consume no more than the buffer may hold."""
        rows, size = self.directory.buffered()
        fill = max(rows / self.options.max_buffered_rows, size / self.options.max_buffered_bytes)
        is_paused = fill >= (_RESUME_SHARE if self._is_paused else 1.0)
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            _log.info("%s: %d rows wait for Spark", "pausing" if is_paused else "going on", rows)
            self._share_out()

    # Bounded reads

    def _note_progress(self, rows: Rows) -> None:
        if not self._bound_ns:
            return
        old = sum(time_ns <= self._bound_ns for time_ns in rows.timestamps_ns)
        self._received += len(rows)
        self._received_old += old
        if old or (self._expected is not None and self._received <= self._expected):
            self._is_stepping = True

    async def _watch_drain(self) -> None:
        """Nothing older came for a while, or all that had been counted is there."""
        tick_s = min(0.05, self.options.drain_idle_s / 4)
        idle_s = 0.0
        while idle_s < self.options.drain_idle_s:
            if self._expected is not None and self._received_old >= self._expected:
                break
            steps, takes = self._step_count, self._take_count
            await asyncio.sleep(tick_s)
            if self._step_count != steps or self._is_stepping or self._is_paused:
                idle_s = 0.0
            elif self._take_count != takes or not self._pending_count:
                # Otherwise a slow disk keeps messages waiting, and who knows what they are.
                idle_s += tick_s
        self._ending.set()

    # The end

    def _begin_stop(self) -> None:
        self._hurry()
        self._ending.set()

    async def _end_consumers(self) -> bool:
        """Stop the flow, finish what has come, and have nsqd confirm that it read the FINs."""
        consumers = list(self._consumers.values())
        for consumer in consumers:
            consumer.max_in_flight = 0
        until_s = time.monotonic() + STOP_TIMEOUT_S
        quiet = 0
        while quiet < 3 and time.monotonic() < until_s:
            in_flight = sum(consumer.stats.in_flight for consumer in consumers)
            quiet = 0 if in_flight else quiet + 1
            self._hurry()
            await asyncio.sleep(0.005)
        outcomes = await asyncio.gather(*(self._end_consumer(consumer) for consumer in consumers))
        return quiet >= 3 and all(outcomes)

    async def _end_consumer(self, consumer: _TopicConsumer) -> bool:
        connections, received = len(consumer.connected_addresses), consumer.stats.received
        await consumer.stop(STOP_TIMEOUT_S)
        return consumer.close_wait_count == connections and consumer.stats.received == received


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
