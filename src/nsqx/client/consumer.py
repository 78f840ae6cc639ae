"""The asyncio consumer: connects to the nsqds of a topic, keeps the connections, and closes them gracefully.

``rdy`` decides how many messages nsqd may send, and ``dispatcher`` passes them to the handler.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nsqx.client.arguments import as_list, check_name
from nsqx.client.codecs import Codec, codec_of
from nsqx.client.discovery import Discovery
from nsqx.client.dispatcher import Dispatcher, Handler
from nsqx.client.handshake import SETUP_TIMEOUT_S, check_address, connect_error, open_connection
from nsqx.client.health import START_TIMEOUT_S, ClientHealth, start_failure
from nsqx.client.options import Duration, OptionKeywords, Options, positive_seconds_of, seconds_of
from nsqx.client.pool import retry_delay_s
from nsqx.client.rdy import ReadyDistribution
from nsqx.client.stop_signals import stop_on_signals
from nsqx.client.subscription import Message, Subscription
from nsqx.client.telemetry import ConsumerTelemetry, consumer_telemetry
from nsqx.errors import (
    ClientClosed,
    ConfigError,
    ConnectFailed,
    ConnectionClosed,
    ConnectRefused,
    LookupFailed,
    NSQError,
)
from nsqx.wire import requests
from nsqx.wire.log_place import decode_log_place

if TYPE_CHECKING:
    from typing import Self, Unpack

    from nsqx.client.connection import FrameReceiver

log = logging.getLogger("nsqx.client")

STOP_TIMEOUT_S = 30.0
# nsqd answers CLS with CLOSE_WAIT at once. A connection without the answer is closed when no messages are in flight.
_CLOSE_WAIT_S = 2.0
# Handlers that are cancelled at the end of stop may run this much longer.
_CANCEL_GRACE_S = 1.0
# nsqd's default, until an nsqd has told its own.
_MSG_TIMEOUT_S = 60.0
# First delay after a lost connection. It doubles up to 5 s for reconnects, to lookupd_poll_interval for look-ups.
_FIRST_RETRY_S = 0.25

_NEW = 0
_RUNNING = 1
_STOPPING = 2
_STOPPED = 3


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Counters of a consumer since its start.

    Attributes:
        received: Messages that nsqd has delivered.
        finished: Messages that were finished.
        requeued: Messages that were requeued.
        connections: Open connections.
        in_flight: Delivered messages that are not answered yet.
    """

    received: int
    finished: int
    requeued: int
    connections: int
    in_flight: int


class Consumer:
    """A client that consumes one channel of a topic.

    With a handler, call ``await consumer.run()``. A message is finished when the handler returns and requeued when the
    handler raises. Without a handler, iterate with ``async for message in consumer`` and answer each message.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler | None = None,
        *,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        concurrency: int | None = None,
        on_give_up: Handler | None = None,
        auto_touch: bool = True,
        codec: Codec[Any] | Any = None,
        start_timeout: Duration = START_TIMEOUT_S,
        require_connection: bool = False,
        telemetry: bool | ConsumerTelemetry = False,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """Create a consumer. No connection is opened before ``start``.

        Args:
            topic: Name of the topic.
            channel: Name of the channel.
            handler: Function or coroutine function that is called with each message.
            nsqd_tcp_addresses: nsqds to consume from, as ``host:port`` or the path of a unix socket.
            lookupd_http_addresses: nsqlookupds that name the nsqds of the topic.
            concurrency: Largest number of coroutine handlers that run at once. Default: ``max_in_flight``.
            on_give_up: Called with a message before it is given up, which means finished: when its handler has failed
                in delivery number ``max_attempts``, has raised GiveUp, or when its body is invalid. ``message.error``
                is the reason.
            auto_touch: Touch messages whose handlers need longer than the message timeout, up to nsqd's
                ``--max-msg-timeout``. Plain functions block the event loop, so their messages cannot be touched.
            codec: Decodes bodies to ``message.value``: a codec of ``nsqx.codecs``, or a type such as a pydantic model.
            start_timeout: Longest time that ``start`` waits for the first connections (10 s by default).
            require_connection: Raise ConnectFailed from ``start`` if no nsqd can be reached. By default the consumer
                continues in the background and connects when an nsqd is there.
            telemetry: True for OpenTelemetry spans and metrics, or an object that records them.
            **options: Options of the client, such as ``max_in_flight``. OptionKeywords lists them.

        Raises:
            ConfigError: An argument is invalid, or no address is given.
            InvalidName: The name of the topic or channel is not valid.
        """
        self.topic = check_name("topic", topic)
        self.channel = check_name("channel", channel)
        self.options = Options.of(options)
        if self.options.heartbeat_interval < 0:
            raise ConfigError("option heartbeat_interval: nsqd rejects consumers without heartbeats")
        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"option concurrency: must be an integer of at least 1, not {concurrency!r}")
        if handler is not None and not callable(handler):
            raise ConfigError(f"the handler must be callable, not {handler!r}")
        self._named = [check_address(each) for each in as_list(nsqd_tcp_addresses)]
        self._discovery = Discovery(as_list(lookupd_http_addresses), self.options)
        if not self._named and not self._discovery.addresses:
            raise ConfigError("a consumer needs nsqd_tcp_addresses or lookupd_http_addresses")
        self._start_timeout_s = positive_seconds_of("start_timeout", start_timeout)
        self._requires_connection = require_connection
        self._has_handler = handler is not None
        self._dispatcher = Dispatcher(
            handler,
            concurrency=concurrency or max(1, self.options.max_in_flight),
            max_attempts=self.options.max_attempts,
            give_up=on_give_up,
            telemetry=consumer_telemetry(telemetry, topic, channel),
            decode=None if codec is None else codec_of(codec).decode,
            name=f"{topic}/{channel}",
        )
        self._held: Callable[[], Iterable[Message]] | None = None
        if auto_touch and handler is not None:
            self._held = self._dispatcher.held
        self._touch_timer: asyncio.TimerHandle | None = None
        self._held_before: set[Message] = set()
        self._msg_timeout_s = 0.0
        self._state = _NEW
        self._subscriptions: dict[str, Subscription] = {}
        # The persistent id of the nsqd at each address; empty if nsqd has none.
        self._broker_ids: dict[str, str] = {}
        self._connecting: set[str] = set()
        self._failures: dict[str, Exception] = {}
        self._lookup_failure: Exception | None = None
        self._last_error: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._past = [0, 0, 0]

    # Start and stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An iteration that has failed answers no more messages. When the connections end, nsqd delivers them again.
        has_failed = kind is not None and not self._has_handler
        await self.stop(0 if has_failed else STOP_TIMEOUT_S)

    async def start(self) -> None:
        """Begin to consume. Wait until every nsqd is connected or cannot be reached, at most ``start_timeout``.

        The consumer then continues in the background, unless ``require_connection`` is set.

        Raises:
            ConnectRefused: Every nsqd rejected the connection, for example because of a wrong secret.
            ConnectFailed: No nsqd is connected, and ``require_connection`` is set.
        """
        if self._state == _RUNNING:
            return
        if self._state != _NEW:
            raise ClientClosed("the consumer was stopped")
        self._state = _RUNNING
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self._rdy = ReadyDistribution(self.options, loop.time, loop.call_later)
        self._stopped = asyncio.Event()
        self._nothing_left = asyncio.Event()
        self._recheck = asyncio.Event()
        self._dispatcher.start()
        attempts = [self._spawn(self._attempt(address)) for address in self._named]
        if self._discovery.addresses:
            attempts.append(self._spawn(self._begin_polling()))
        try:
            done, _ = await asyncio.wait(attempts, timeout=self._start_timeout_s)
            for attempt in done:
                if not attempt.cancelled():
                    attempt.result()
            self._check_start(is_complete=len(done) == len(attempts))
        except BaseException:
            self._state = _STOPPED
            await self._shut_down()
            raise

    async def run(self, *, handle_signals: bool = True, stop_timeout: Duration = STOP_TIMEOUT_S) -> None:
        """Start, and return when the consumer has stopped.

        SIGTERM and SIGINT (Ctrl-C) stop the consumer gracefully, within ``stop_timeout``; a second signal ends the
        program. Signals for which the program has a handler are left alone, and so are all with
        ``handle_signals=False``. Cancelling this call stops the consumer gracefully too.
        """

        def stop() -> None:
            self._stopping = asyncio.create_task(self.stop(stop_timeout))

        with stop_on_signals(stop) if handle_signals else nullcontext():
            await self.start()
            try:
                await self._stopped.wait()
            except asyncio.CancelledError:
                await self.stop(stop_timeout)
                raise

    async def stop(self, timeout: Duration = STOP_TIMEOUT_S) -> None:  # noqa: ASYNC109
        """Stop receiving, wait until all messages in flight are answered, and close the connections.

        After ``timeout`` (30 s by default) close without waiting; nsqd delivers the unanswered messages again. The end
        of ``async with`` does not wait if an iteration has raised an exception. In a handler this returns at once,
        because the message of the handler is in flight.
        """
        if self._state == _RUNNING and self._dispatcher.is_handling(asyncio.current_task()):
            self._stopping = asyncio.create_task(self.stop(timeout))
            return
        if self._state == _NEW:
            self._state = _STOPPED
            self._dispatcher.end()
        if self._state == _STOPPED:
            return
        if self._state == _STOPPING:
            await self._stopped.wait()
            return
        self._state = _STOPPING
        self._rdy.stop()
        if not self._has_handler:
            self._dispatcher.refuse()
        for subscription in self._subscriptions.values():
            subscription.start_close()
        if not self._subscriptions:
            self._nothing_left.set()
        impatience = asyncio.get_running_loop().call_later(_CLOSE_WAIT_S, self._assume_close_wait)
        try:
            async with asyncio.timeout(seconds_of("timeout", timeout)):
                await self._nothing_left.wait()
                self._dispatcher.end()
                await self._dispatcher.finished()
        except TimeoutError:
            left = sum(each.in_flight_count for each in self._subscriptions.values())
            log.warning("%s/%s: stopped with unanswered messages: %d", self.topic, self.channel, left)
        finally:
            impatience.cancel()
            self._state = _STOPPED
            await self._shut_down()

    def _assume_close_wait(self) -> None:
        """Stop waiting for nsqds that do not answer CLS: frozen ones, and those whose connection is half open."""
        for subscription in list(self._subscriptions.values()):
            subscription.end_close()

    async def _shut_down(self) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._dispatcher.close(_CANCEL_GRACE_S)
        finally:  # also if this call is cancelled
            if self._touch_timer is not None:
                self._touch_timer.cancel()
            for subscription in list(self._subscriptions.values()):
                subscription.connection.close()
            self._rdy.stop()
            self._stopped.set()

    # Messages

    def __aiter__(self) -> AsyncIterator[Message]:
        if self._has_handler:
            raise ConfigError("this consumer has a handler: use run(), or leave the handler out to iterate")
        return self

    async def __anext__(self) -> Message:
        if self._state == _NEW:
            await self.start()
        message = await self._dispatcher.next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def batches(self, max_count: int, max_wait: Duration = 1.0) -> AsyncIterator[list[Message]]:
        """Iterate over lists of messages.

        A list is complete when it has ``max_count`` or ``max_in_flight`` messages, or ``max_wait`` after its first
        message, or when the consumer stops.
        """
        max_wait_s = seconds_of("max_wait", max_wait)
        while True:
            try:
                batch = [await self.__anext__()]
            except StopAsyncIteration:
                return
            try:
                async with asyncio.timeout(max_wait_s):
                    while len(batch) < min(max_count, self.max_in_flight) and not self._dispatcher.is_ending:
                        message = self._dispatcher.take()
                        if message is None:
                            await self._dispatcher.wait()
                        else:
                            batch.append(message)
            except TimeoutError:
                pass
            except BaseException:
                for message in batch:
                    message.requeue(0, backoff=False)
                raise
            yield batch

    # State

    @property
    def is_starved(self) -> bool:
        """True if nsqd waits for answers before it sends more messages.

        A handler that collects messages should answer them now.
        """
        return self._state in (_RUNNING, _STOPPING) and self._rdy.is_starved

    @property
    def max_in_flight(self) -> int:
        """Largest number of messages in flight over all connections. Can be set after ``start``; 0 pauses."""
        return self._rdy.max_in_flight if self._state != _NEW else self.options.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        if not isinstance(count, int) or count < 0:
            raise ConfigError(f"option max_in_flight: must be an integer of at least 0, not {count!r}")
        if self._state == _NEW:
            raise ConfigError("max_in_flight cannot be set before the consumer is started: pass it as an option")
        self._rdy.change_max_in_flight(count)

    @property
    def is_connected(self) -> bool:
        """True if an nsqd is connected."""
        return bool(self._subscriptions)

    @property
    def last_error(self) -> Exception | None:
        """The last failed attempt to connect, lost connection or failed lookup; None if there was none."""
        return self._last_error

    @property
    def health(self) -> ClientHealth:
        """The state of the connections, for readiness probes."""
        failures = {address: str(error) for address, error in self._failures.items()}
        return ClientHealth(self.is_connected, tuple(self._subscriptions), failures, self._last_error)

    @property
    def connected_addresses(self) -> list[str]:
        """Addresses of the connected nsqds."""
        return list(self._subscriptions)

    @property
    def stats(self) -> ConsumerStats:
        """Counters since the start of the consumer."""
        current = list(self._subscriptions.values())
        return ConsumerStats(
            received=self._past[0] + sum(each.message_count for each in current),
            finished=self._past[1] + sum(each.finish_count for each in current),
            requeued=self._past[2] + sum(each.requeue_count for each in current),
            connections=len(current),
            in_flight=sum(each.in_flight_count for each in current),
        )

    # Connections

    async def _attempt(self, address: str) -> None:
        """Try to connect to a given nsqd. If that fails, try again in the background."""
        try:
            await self._connect(address)
        except ConnectFailed as error:
            log.warning("cannot consume from nsqd %s", error)
            self._note_failure(address, error)
            self._spawn(self._reconnect(address))

    def _check_start(self, *, is_complete: bool) -> None:
        """Raise the error of a start that reached no nsqd, if there is one."""
        if self._subscriptions or self._state != _RUNNING:
            return
        errors = list(self._failures.values())
        if self._lookup_failure is not None:
            errors.append(self._lookup_failure)
        if is_complete and self._discovery.addresses and not errors:
            return  # nsqlookupd answered: no nsqd has the topic yet
        if not is_complete:
            text = "; ".join(map(str, errors)) or "no answer"
            errors = [ConnectFailed(f"no nsqd is connected after {self._start_timeout_s:g} s ({text})")]
        failure = start_failure(errors, is_required=self._requires_connection)
        if failure is not None:
            raise failure

    async def _connect(self, address: str) -> None:
        """Connect and subscribe, unless that is done or in progress; raises ConnectFailed."""
        if address in self._subscriptions or address in self._connecting or self._state != _RUNNING:
            return
        self._connecting.add(address)
        try:
            size = self.options.max_msg_size
            connection, terms = await open_connection(address, self.options, max_frame_size=size, asks_extras=True)
            try:
                async with asyncio.timeout(SETUP_TIMEOUT_S):
                    answer = await connection.request(requests.encode_subscribe(self.topic, self.channel))
                place = decode_log_place(answer)
            except TimeoutError:
                connection.fail(ConnectFailed("SUB timed out"))
                raise ConnectFailed(f"{address}: nsqd did not answer SUB within {SETUP_TIMEOUT_S:g} s") from None
            except NSQError as error:
                connection.fail(error)
                raise connect_error(address, error) from error
            except ValueError as error:
                connection.close()
                raise ConnectRefused(f"{address}: {error}") from None
            except BaseException:
                connection.close()
                raise
            subscription = Subscription(
                connection,
                self,
                self._rdy,
                self._dispatcher,
                terms.max_rdy_count,
                self._requeue_delay_s,
                self._clock,
                place,
            )
            if self._state != _RUNNING:
                connection.close()
                return
            self._failures.pop(address, None)
            self._subscriptions[address] = subscription
            self._broker_ids[address] = str(terms.broker_id)
            self._msg_timeout_s = min(self._msg_timeout_s or terms.msg_timeout_s, terms.msg_timeout_s)
            if self._held is not None:
                self._keep_touching(self._held)
            connection.start(self._receiver_of(subscription))
            self._rdy.add(subscription)
        finally:
            self._connecting.discard(address)

    def _receiver_of(self, subscription: Subscription) -> FrameReceiver:
        """Return the receiver of a new connection. Subclasses override this to receive messages without a handler."""
        return subscription

    # Automatic TOUCH

    def _keep_touching(self, held: Callable[[], Iterable[Message]]) -> None:
        """Touch the messages that ``held`` returns."""
        self._held = held
        if self._touch_timer is None and self._state == _RUNNING:
            self._watch_held()

    def _watch_held(self) -> None:
        # A message is touched when it is seen twice, so after one to two thirds of its timeout.
        interval_s = (self._msg_timeout_s or _MSG_TIMEOUT_S) / 3
        self._touch_timer = asyncio.get_running_loop().call_later(interval_s, self._touch_held)

    def _touch_held(self) -> None:
        """Touch the messages that have waited or been handled since the last call."""
        held = set() if self._held is None else set(self._held())
        for message in held & self._held_before:
            if not message.is_answered and not message.is_detached:
                message.touch()
        self._held_before = held
        self._watch_held()

    def _requeue_delay_s(self, attempts: int) -> float:
        return min(self.options.default_requeue_delay * attempts, self.options.max_requeue_delay)

    async def _reconnect(self, address: str) -> None:
        """Try to connect to a configured nsqd until it succeeds."""
        attempt = 0
        while self._state == _RUNNING:
            attempt += 1
            delay_s = retry_delay_s(_FIRST_RETRY_S, attempt)
            await asyncio.sleep(min(delay_s, self.options.lookupd_poll_interval))
            try:
                await self._connect(address)
            except ConnectFailed as error:
                log.info("cannot consume from nsqd %s", error)
                self._note_failure(address, error)
            else:
                return

    def _note_failure(self, address: str, error: Exception) -> None:
        self._failures[address] = self._last_error = error

    async def _poll(self) -> None:
        """Query nsqlookupd once and connect to the nsqds that it lists."""
        try:
            found = await self._discovery.producers_of(self.topic)
        except LookupFailed as error:
            log.warning("cannot find nsqd for %s: %s", self.topic, error)
            self._lookup_failure = self._last_error = error
            return
        self._lookup_failure = None
        outcomes = await asyncio.gather(*map(self._connect, found), return_exceptions=True)
        for address, outcome in zip(found, outcomes, strict=True):
            if isinstance(outcome, NSQError):
                log.warning("cannot consume from nsqd %s", outcome)
                self._note_failure(address, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        for address in [each for each in self._failures if each not in (*found, *self._named)]:
            del self._failures[address]

    async def _begin_polling(self) -> None:
        try:
            await self._poll()
        finally:
            self._spawn(self._keep_polling())

    async def _keep_polling(self) -> None:
        """Poll nsqlookupd at the interval. After a lost connection poll sooner, with doubling delays."""
        interval_s = self.options.lookupd_poll_interval
        wait_s = interval_s
        while True:
            jitter_s = wait_s * self.options.lookupd_poll_jitter * random.random()
            try:
                async with asyncio.timeout(wait_s + jitter_s):
                    await self._recheck.wait()
                wait_s = min(_FIRST_RETRY_S, interval_s)
            except TimeoutError:
                wait_s = min(wait_s * 2, interval_s)
            self._recheck.clear()
            await self._poll()

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("internal error in the client", exc_info=task.exception())

    # From the subscriptions

    def _on_close_wait(self, subscription: Subscription) -> None:
        """Redistribute the RDY count of a connection that nsqd is closing."""
        self._rdy.remove(subscription)

    def _on_answer_failed(self, subscription: Subscription, text: str, is_harmless: bool) -> None:
        """Log that nsqd rejected an answer, in most cases because the message had timed out."""
        if is_harmless:
            log.warning("%s: %s", subscription.connection.address, text)
        else:
            log.error("%s: %s", subscription.connection.address, text)

    def _on_lost(self, subscription: Subscription, error: Exception | None) -> None:
        """Forget a connection that ended, and reconnect if the consumer is running."""
        address = subscription.connection.address
        if self._subscriptions.get(address) is subscription:
            del self._subscriptions[address]
        counts = (subscription.message_count, subscription.finish_count, subscription.requeue_count)
        self._past = [past + count for past, count in zip(self._past, counts, strict=True)]
        self._rdy.remove(subscription)
        if self._state == _STOPPING and not self._subscriptions:
            self._nothing_left.set()
        if self._state != _RUNNING:
            return
        self._last_error = error or ConnectionClosed(f"{address}: nsqd closed the connection")
        log.warning("connection lost: %s", self._last_error)
        if address in self._named:
            self._spawn(self._reconnect(address))
        if self._discovery.addresses:
            self._recheck.set()
