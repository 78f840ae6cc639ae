"""An application: subscribers, publishers and their lifetime, with one producer and a consumer for each subscriber."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from nsqx.client.arguments import as_list
from nsqx.client.consumer import STOP_TIMEOUT_S, Consumer
from nsqx.client.health import START_TIMEOUT_S, ClientHealth
from nsqx.client.options import Duration, OptionKeywords, positive_seconds_of, seconds_of
from nsqx.client.producer import PUBLISH_TIMEOUT_S, Producer
from nsqx.client.routing import AppSubscriber, MessageRouter, Middleware
from nsqx.client.stop_signals import stop_on_signals
from nsqx.client.topic_publisher import TopicPublisher
from nsqx.errors import ClientClosed, ConfigError

if TYPE_CHECKING:
    from typing import Self, Unpack

    from nsqx.client.codecs import Codec
    from nsqx.client.subscription import Message

_T = TypeVar("_T")


class App(MessageRouter):
    """Subscribers and publishers that start and stop together.

    Call ``await app.run()`` in a program of its own, or use ``async with app`` or ``lifespan`` in a web application. An
    app that has stopped can be started again.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        lookupd_http_addresses: str | Iterable[str] = (),
        publish_to: str | Iterable[str] = (),
        middlewares: Iterable[Middleware] = (),
        batching: bool = False,
        publish_timeout: Duration = PUBLISH_TIMEOUT_S,
        start_timeout: Duration = START_TIMEOUT_S,
        require_connection: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """Create an app. No connection is opened before it starts.

        Args:
            nsqd_tcp_addresses: nsqds to consume from and to publish to.
            lookupd_http_addresses: nsqlookupds that name the nsqds.
            publish_to: nsqds to publish to, in place of the others.
            middlewares: Middlewares of all subscribers, the outermost first.
            batching: As for Producer.
            publish_timeout: As for Producer.
            start_timeout: As for Producer and Consumer.
            require_connection: As for Producer and Consumer.
            **options: Options of the consumers and the producer. A subscriber may have its own.

        Raises:
            ConfigError: An argument is invalid, or no address is given.
        """
        super().__init__()
        self._app_middlewares = tuple(middlewares)
        self._nsqds = as_list(nsqd_tcp_addresses)
        self._lookupds = as_list(lookupd_http_addresses)
        self._publish_to = as_list(publish_to)
        if not self._nsqds and not self._lookupds:
            raise ConfigError("an app needs nsqd_tcp_addresses or lookupd_http_addresses")
        self._is_batching = batching
        self._publish_timeout_s = positive_seconds_of("publish_timeout", publish_timeout)
        self._start_timeout_s = positive_seconds_of("start_timeout", start_timeout)
        self._requires_connection = require_connection
        self._options = options
        self._publishers: list[TopicPublisher[Any]] = []
        self._producer: Producer | None = None
        self._consumers: list[Consumer] = []
        self._executors: list[ThreadPoolExecutor] = []
        self._stopping: asyncio.Task[None] | None = None
        self._new_producer()  # raises ConfigError

    def include(self, router: MessageRouter) -> None:
        """Add the subscribers of a router."""
        self._subscribers += router.subscribers

    def publisher(self, topic: str, codec: Codec[_T] | type[_T]) -> TopicPublisher[_T]:
        """Return an object that publishes values to a topic while the app runs.

        It is also a decorator: the results of a coroutine function are published. ``codec`` is a codec of
        ``nsqx.codecs``, or a type such as ``dict`` or a pydantic model. Raises InvalidName or ConfigError.
        """
        found = TopicPublisher(lambda: self.producer, topic, codec)
        self._publishers.append(found)
        return found

    @property
    def producer(self) -> Producer:
        """The producer of the app; raises ClientClosed while the app is not running."""
        if self._producer is None:
            raise ClientClosed("the app is not running: start it with run(), or with async with")
        return self._producer

    # Start and stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Run the app within the lifespan of an ASGI application. Pass this method as its argument ``lifespan``."""
        async with self:
            yield

    async def start(self) -> None:
        """Connect the producer and the consumers, at most for ``start_timeout``; raises ConnectFailed as they do."""
        if self._producer is not None:
            return
        self._producer = self._new_producer()
        self._consumers = [self._new_consumer(each) for each in self._subscribers]
        starts = [each.start() for each in self._consumers]
        if self._is_publishing:
            starts.append(self._producer.start())
        try:
            for outcome in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            await self.stop(0)
            raise

    async def stop(self, timeout: Duration = STOP_TIMEOUT_S) -> None:  # noqa: ASYNC109
        """Stop the consumers as ``Consumer.stop`` does, then wait for the outcome of all publishes.

        Takes at most ``timeout`` for each of the two.
        """
        timeout_s = seconds_of("timeout", timeout)
        consumers, self._consumers = self._consumers, []
        await asyncio.gather(*(each.stop(timeout_s) for each in consumers))
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(timeout_s)
        for executor in self._executors:
            executor.shutdown(wait=False, cancel_futures=True)
        self._executors.clear()

    async def run(self, *, handle_signals: bool = True, stop_timeout: Duration = STOP_TIMEOUT_S) -> None:
        """Start, and return after SIGTERM, SIGINT (Ctrl-C) or cancellation, when the app has stopped gracefully.

        A second signal ends the program. Signals for which the program has a handler are left alone.
        """
        is_over = asyncio.Event()
        with stop_on_signals(is_over.set) if handle_signals else nullcontext():
            starting = asyncio.ensure_future(self.start())
            over = asyncio.ensure_future(is_over.wait())
            try:
                await asyncio.wait([starting, over], return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await starting
                    await over
            finally:
                starting.cancel()
                over.cancel()
                await asyncio.gather(starting, over, return_exceptions=True)
                await self.stop(stop_timeout)

    # State

    @property
    def is_connected(self) -> bool:
        """True if the app runs and each of its clients that has started is connected."""
        return self._producer is not None and all(each.is_connected for each in self.health.values())

    @property
    def health(self) -> dict[str, ClientHealth]:
        """The state of the consumers, by ``topic/channel``, and of the ``producer`` if the app publishes."""
        found = {f"{each.topic}/{each.channel}": each.health for each in self._consumers}
        if self._producer is not None and (self._is_publishing or not self._consumers):
            found["producer"] = self._producer.health
        return found

    @property
    def _is_publishing(self) -> bool:
        return bool(self._publishers) or any(each.dead_letter_topic for each in self._subscribers)

    # Clients

    def _new_producer(self) -> Producer:
        return Producer(
            self._publish_to or self._nsqds,
            lookupd_http_addresses=[] if self._publish_to or self._nsqds else self._lookupds,
            batching=self._is_batching,
            publish_timeout=self._publish_timeout_s,
            start_timeout=self._start_timeout_s,
            require_connection=self._requires_connection,
            **self._options,
        )

    def _new_consumer(self, subscriber: AppSubscriber) -> Consumer:
        executor = None
        if subscriber.is_plain:
            executor = ThreadPoolExecutor(subscriber.concurrency, thread_name_prefix=f"nsqx {subscriber.topic}")
            self._executors.append(executor)
        options: OptionKeywords = {
            "max_in_flight": subscriber.concurrency,
            **self._options,
            **subscriber.options,
        }
        on_give_up = subscriber.on_give_up

        async def publish_dead_letter(message: Message) -> None:
            await self.producer.publish(subscriber.dead_letter_topic, message.body)

        return Consumer(
            subscriber.topic,
            subscriber.channel,
            subscriber.handler(self._app_middlewares, executor),
            nsqd_tcp_addresses=self._nsqds,
            lookupd_http_addresses=self._lookupds,
            concurrency=subscriber.concurrency,
            on_give_up=publish_dead_letter if subscriber.dead_letter_topic else on_give_up,
            start_timeout=self._start_timeout_s,
            require_connection=self._requires_connection,
            **options,
        )
