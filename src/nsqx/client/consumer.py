"""The asyncio consumer: connects to the nsqds of a topic, keeps the connections, and closes them gracefully.

``rdy`` decides how many messages nsqd may send, and ``dispatcher`` passes them to the handler.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from nsqx.client.arguments import as_list, check_name
from nsqx.client.discovery import Discovery
from nsqx.client.dispatcher import Dispatcher, Handler
from nsqx.client.handshake import SETUP_TIMEOUT_S, check_address, open_connection
from nsqx.client.options import Duration, OptionKeywords, Options, seconds_of
from nsqx.client.pool import retry_delay_s
from nsqx.client.rdy import ReadyDistribution
from nsqx.client.subscription import Message, Subscription
from nsqx.client.telemetry import ConsumerTelemetry, consumer_telemetry
from nsqx.errors import ClientClosed, ConfigError, ConnectFailed, LookupFailed, NSQError
from nsqx.wire import requests

if TYPE_CHECKING:
    from typing import Self, Unpack

    from nsqx.client.connection import FrameReceiver

log = logging.getLogger("nsqx.client")

STOP_TIMEOUT_S = 30.0
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
            on_give_up: Called with a message that was delivered more than ``max_attempts`` times, before the message
                is finished.
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
        self._has_handler = handler is not None
        self._dispatcher = Dispatcher(
            handler,
            concurrency=concurrency or max(1, self.options.max_in_flight),
            max_attempts=self.options.max_attempts,
            give_up=on_give_up,
            telemetry=consumer_telemetry(telemetry, topic, channel),
        )
        self._state = _NEW
        self._subscriptions: dict[str, Subscription] = {}
        # The persistent id of the nsqd at each address; empty if nsqd has none.
        self.broker_ids: dict[str, str] = {}
        self._connecting: set[str] = set()
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
        await self.stop()

    async def start(self) -> None:
        """Connect and begin to consume.

        Raises ConnectFailed if none of the given nsqds can be reached and there is no nsqlookupd.
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
        try:
            await self._connect_first()
        except BaseException:
            self._state = _STOPPED
            await self._shut_down()
            raise
        if self._discovery.addresses:
            self._spawn(self._keep_polling())

    async def run(self) -> None:
        """Start, and return when the consumer has stopped. Cancelling this call stops the consumer gracefully."""
        await self.start()
        try:
            await self._stopped.wait()
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self, timeout: Duration = STOP_TIMEOUT_S) -> None:  # noqa: ASYNC109
        """Stop receiving, wait until all messages in flight are answered, and close the connections.

        After ``timeout`` (30 s by default) close without waiting; nsqd delivers the unanswered messages again. In a
        handler this returns at once, because the message of the handler is in flight.
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
        try:
            async with asyncio.timeout(seconds_of("timeout", timeout)):
                await self._nothing_left.wait()
                self._dispatcher.end()
                await self._dispatcher.finished()
        except TimeoutError:
            left = sum(each.in_flight_count for each in self._subscriptions.values())
            log.warning("stop timed out: %d messages were not answered", left)
        finally:
            self._state = _STOPPED
            await self._shut_down()

    async def _shut_down(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._dispatcher.close()
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

    async def _connect_first(self) -> None:
        outcomes = await asyncio.gather(*map(self._connect, self._named), return_exceptions=True)
        for address, outcome in zip(self._named, outcomes, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, NSQError):
                raise outcome
            if outcome is not None:
                log.warning("cannot consume from nsqd %s", outcome)
                self._spawn(self._reconnect(address))
        failures = [str(outcome) for outcome in outcomes if outcome is not None]
        if self._discovery.addresses:
            await self._poll()
        elif len(failures) == len(self._named):
            raise ConnectFailed("; ".join(failures))

    async def _connect(self, address: str) -> None:
        """Connect and subscribe, unless that is done or in progress; raises ConnectFailed."""
        if address in self._subscriptions or address in self._connecting or self._state != _RUNNING:
            return
        self._connecting.add(address)
        try:
            connection, terms = await open_connection(address, self.options, max_frame_size=self.options.max_msg_size)
            try:
                async with asyncio.timeout(SETUP_TIMEOUT_S):
                    await connection.request(requests.encode_subscribe(self.topic, self.channel))
            except TimeoutError:
                connection.fail(ConnectFailed("SUB timed out"))
                raise ConnectFailed(f"{address}: nsqd did not answer SUB within {SETUP_TIMEOUT_S:g} s") from None
            except NSQError as error:
                connection.fail(error)
                raise ConnectFailed(f"{address}: {error}") from error
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
            )
            if self._state != _RUNNING:
                connection.close()
                return
            self._subscriptions[address] = subscription
            self.broker_ids[address] = str(terms.broker_id)
            connection.start(self.receiver_of(subscription))
            self._rdy.add(subscription)
        finally:
            self._connecting.discard(address)

    def receiver_of(self, subscription: Subscription) -> FrameReceiver:
        """Return the receiver of a new connection. Subclasses override this to receive messages without a handler."""
        return subscription

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
            else:
                return

    async def _poll(self) -> None:
        """Query nsqlookupd once and connect to the nsqds that it lists."""
        try:
            found = await self._discovery.producers_of(self.topic)
        except LookupFailed as error:
            log.warning("cannot find nsqd for %s: %s", self.topic, error)
            return
        outcomes = await asyncio.gather(*map(self._connect, found), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, NSQError):
                log.warning("cannot consume from nsqd %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

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

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("internal error in the client", exc_info=task.exception())

    # From the subscriptions

    def on_close_wait(self, subscription: Subscription) -> None:
        """Redistribute the RDY count of a connection that nsqd is closing."""
        self._rdy.remove(subscription)

    def on_answer_failed(self, subscription: Subscription, text: str, is_harmless: bool) -> None:
        """Log that nsqd rejected an answer, in most cases because the message had timed out."""
        if is_harmless:
            log.warning("%s: %s", subscription.connection.address, text)
        else:
            log.error("%s: %s", subscription.connection.address, text)

    def on_lost(self, subscription: Subscription, error: Exception | None) -> None:
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
        log.warning("connection lost: %s", error or f"{address}: nsqd closed the connection")
        if address in self._named:
            self._spawn(self._reconnect(address))
        if self._discovery.addresses:
            self._recheck.set()
