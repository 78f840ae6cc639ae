"""Producer and consumer for code without an event loop: scripts, notebooks, threads, Spark executors.

The asyncio client runs on its own event loop in a background thread. Calls to that thread are collected, so a burst of
publishes or answers wakes it once. Clients do not survive a fork: create them in the process that uses them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nsqx.client import consumer as asyncio_consumer
from nsqx.client import producer as asyncio_producer
from nsqx.client import subscription
from nsqx.client.arguments import check_name
from nsqx.client.codecs import Codec, codec_of, encoded
from nsqx.client.options import Duration, seconds_of
from nsqx.client.stop_signals import stop_thread_on_signals
from nsqx.errors import AlreadyAnswered, ClientClosed, ConfigError, PublishTimedOut
from nsqx.net.event_loop import new_event_loop as new_event_loop

if TYPE_CHECKING:
    from typing import Self

    from nsqx.client.health import ClientHealth

_T = TypeVar("_T")

_log = logging.getLogger("nsqx.client")

# The background thread enforces the deadline of a publish. Callers wait this much longer in case the thread hangs.
_LOOP_GRACE_S = 5.0


class _LoopThread:
    """An event loop in a background thread, and calls to it from other threads."""

    def __init__(self, name: str) -> None:
        self._loop = new_event_loop()
        self._pid = os.getpid()
        self._calls: deque[Callable[[], object]] = deque()
        self._is_awake = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def wait_for(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run a coroutine on the loop and return its result."""
        if self._pid != os.getpid() or not self._thread.is_alive():
            work.close()
            raise ClientClosed("this client was closed, or belongs to another process")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def call(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` on the loop soon. Calls keep their order; several calls can share one wake-up."""
        if self._pid != os.getpid():
            raise ClientClosed("this client belongs to another process")
        with self._lock:
            self._calls.append(callback)
            if self._is_awake:
                return
            self._is_awake = True
        self._loop.call_soon_threadsafe(self._take_calls)

    def _take_calls(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, deque()
            self._is_awake = False
        for callback in calls:
            try:
                callback()
            except Exception:  # the other calls have other callers
                _log.exception("internal error in the client")

    async def settle(self) -> None:
        """Run all calls that were made before."""
        self._take_calls()

    def close(self) -> None:
        """Stop the loop and its thread."""
        if self._pid != os.getpid() or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LOOP_GRACE_S)


class Producer:
    """A producer whose methods wait for nsqd's answer. It takes the arguments of ``nsqx.Producer``."""

    def __init__(self, nsqd_tcp_addresses: str | Iterable[str] = (), **arguments: Any) -> None:
        """Connect, or continue in the background if no nsqd can be reached.

        Raises:
            ConfigError: An argument is invalid, or no address is given.
            ConnectRefused: Every nsqd rejected the connection.
            ConnectFailed: No nsqd can be reached, and ``require_connection`` is set.
        """
        self._producer = asyncio_producer.Producer(nsqd_tcp_addresses, **arguments)
        self._thread = _LoopThread("nsqx producer")
        self._is_closed = False
        try:
            self._thread.wait_for(self._producer.start())
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def publish(self, topic: str, body: bytes, timeout: Duration | None = None, seq: int | None = None) -> None:
        """Publish one message and wait for the answer. ``seq`` is its number, for a producer with a name.

        Raises PublishFailed, and PublishTimedOut after ``timeout`` (default: ``publish_timeout``).
        """
        self._wait(topic, self.submit(topic, body, timeout, seq), timeout)

    def publish_many(
        self, topic: str, bodies: Iterable[bytes], timeout: Duration | None = None, seq: int | None = None
    ) -> None:
        """Publish several messages together and wait for the answer."""
        self._wait(topic, self.submit_many(topic, bodies, timeout, seq), timeout)

    def publish_deferred(
        self, topic: str, body: bytes, delay: Duration, timeout: Duration | None = None, seq: int | None = None
    ) -> None:
        """Publish one message that nsqd delivers after ``delay``, and wait for the answer."""
        outcome = self._submit(lambda: self._producer.publish_deferred(topic, body, delay, timeout, seq))
        self._wait(topic, outcome, timeout)

    def submit(
        self, topic: str, body: bytes, timeout: Duration | None = None, seq: int | None = None
    ) -> concurrent.futures.Future[None]:
        """Publish one message without waiting. The future has the outcome. Many publishes can be unanswered at once."""
        return self._submit(lambda: self._producer.publish(topic, body, timeout, seq))

    def submit_many(
        self, topic: str, bodies: Iterable[bytes], timeout: Duration | None = None, seq: int | None = None
    ) -> concurrent.futures.Future[None]:
        """Publish several messages together without waiting. The future has the outcome."""
        listed = list(bodies)
        return self._submit(lambda: self._producer.publish_many(topic, listed, timeout, seq))

    def close(self, timeout: Duration | None = None) -> None:
        """Wait for all answers, then close. Publishes without an answer after ``timeout`` fail."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._thread.wait_for(self._thread.settle())
            self._thread.wait_for(self._producer.close(timeout))
        finally:
            self._thread.close()

    def publisher(self, topic: str, codec: Codec[_T] | type[_T]) -> BlockingTopicPublisher[_T]:
        """Return an object that publishes values to a topic.

        ``codec`` is a codec of ``nsqx.codecs``, or a type such as ``dict`` or a pydantic model. Raises InvalidName or
        ConfigError.
        """
        return BlockingTopicPublisher(self, topic, codec)

    @property
    def is_connected(self) -> bool:
        """True if an nsqd is connected."""
        return self._producer.is_connected

    @property
    def last_error(self) -> Exception | None:
        """The last failed attempt to connect, lost connection or failed lookup; None if there was none."""
        return self._producer.last_error

    @property
    def health(self) -> ClientHealth:
        """The state of the connections, for readiness probes."""
        return self._producer.health

    def _wait(self, topic: str, outcome: concurrent.futures.Future[None], timeout: Duration | None) -> None:
        timeout_s = self._producer.publish_timeout_s if timeout is None else seconds_of("timeout", timeout)
        try:
            outcome.result(max(0.0, timeout_s) + _LOOP_GRACE_S)
        except concurrent.futures.TimeoutError:
            if outcome.done():
                raise
            reason = "the thread of this producer is not running"
            raise PublishTimedOut(topic, 1, timeout_s, reason, may_be_published=True) from None

    def _submit(self, publish: Callable[[], asyncio.Future[None]]) -> concurrent.futures.Future[None]:
        if self._is_closed:
            raise ClientClosed("the producer is closed")
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

        def begin() -> None:
            if outcome.cancelled():
                return
            try:
                publish().add_done_callback(finished)
            except Exception as error:
                if outcome.set_running_or_notify_cancel():
                    outcome.set_exception(error)

        def finished(done: asyncio.Future[None]) -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        self._thread.call(begin)
        return outcome


class BlockingTopicPublisher(Generic[_T]):
    """Publishes values to one topic, and waits for nsqd's answers. Create one with ``Producer.publisher``."""

    def __init__(self, producer: Producer, topic: str, codec: Codec[_T] | type[_T]) -> None:
        """Raises InvalidName or ConfigError."""
        self._producer = producer
        self._codec: Codec[_T] = codec_of(codec)
        self.topic = check_name("topic", topic)

    def publish(self, value: _T, timeout: Duration | None = None, seq: int | None = None) -> None:
        """Publish a value and wait for the answer, as ``Producer.publish``.

        Raises InvalidMessage if the value cannot be encoded.
        """
        self._producer.publish(self.topic, encoded(self._codec, self.topic, value), timeout, seq)

    def publish_many(self, values: Iterable[_T], timeout: Duration | None = None, seq: int | None = None) -> None:
        """Publish several values together and wait for the answer."""
        bodies = [encoded(self._codec, self.topic, value) for value in values]
        self._producer.publish_many(self.topic, bodies, timeout, seq)

    def publish_deferred(
        self, value: _T, delay: Duration, timeout: Duration | None = None, seq: int | None = None
    ) -> None:
        """Publish a value that nsqd delivers after ``delay``, and wait for the answer."""
        body = encoded(self._codec, self.topic, value)
        self._producer.publish_deferred(self.topic, body, delay, timeout, seq)


class Message:
    """A message from nsqd. Answer it once, with ``finish`` or ``requeue``, from any thread.

    Attributes:
        id (bytes): 16 hexadecimal digits, unique within one nsqd.
        body (bytes): The bytes that were published.
        timestamp (int): Time of the publish, in nanoseconds since 1970.
        attempts (int): Number of deliveries, including this one.
        value (Any): The body as the codec of the consumer has decoded it; without a codec, the body.
    """

    __slots__ = ("_is_answered", "_message", "_thread", "attempts", "body", "id", "timestamp", "value")

    def __init__(self, message: subscription.Message, thread: _LoopThread) -> None:
        self._message = message
        self._thread = thread
        self._is_answered = False
        self.id = message.id
        self.body = message.body
        self.timestamp = message.timestamp
        self.attempts = message.attempts
        self.value = message.value

    def finish(self) -> None:
        """Finish the message."""
        self._answer(self._message.finish)

    def requeue(self, delay: Duration | None = None, backoff: bool = True) -> None:
        """Ask nsqd to deliver the message again after ``delay``; 0 means at once.

        The default delay grows with the number of attempts. With ``backoff``, the consumer backs off.
        """
        if delay is not None:
            seconds_of("delay", delay)
        self._answer(lambda: self._message.requeue(delay, backoff))

    def touch(self) -> None:
        """Restart the message timeout."""
        if self._is_answered:
            raise AlreadyAnswered(f"{self!r} was already answered")
        self._thread.call(self._message.touch)

    @property
    def is_answered(self) -> bool:
        """True after ``finish`` or ``requeue``."""
        return self._is_answered

    @property
    def nsqd_address(self) -> str:
        """Address of the nsqd that delivered the message."""
        return self._message.nsqd_address

    @property
    def offset(self) -> int | None:
        """The offset in the log of the topic; None if the topic has no log."""
        return self._message.offset

    @property
    def log(self) -> str:
        """The id of the log of the topic; empty if the topic has none."""
        return self._message.log

    def _fail(self, answer: Callable[[], object]) -> None:
        self._is_answered = True
        self._thread.call(answer)

    def _answer(self, answer: Callable[[], object]) -> None:
        if self._is_answered:
            raise AlreadyAnswered(f"{self!r} was already answered")
        self._is_answered = True
        self._thread.call(answer)

    def __repr__(self) -> str:
        return repr(self._message)


class Consumer:
    """A consumer of one channel. It takes the keyword arguments of ``nsqx.Consumer``, without the handler.

    Iterate over the consumer and answer each message, or call ``run`` with a handler.
    """

    def __init__(self, topic: str, channel: str, **arguments: Any) -> None:
        """Connect and begin to consume, or continue in the background if no nsqd can be reached.

        Raises:
            ConfigError: An argument is invalid, or no address is given.
            InvalidName: The name of the topic or channel is not valid.
            ConnectRefused: Every nsqd rejected the connection.
            ConnectFailed: No nsqd can be reached, and ``require_connection`` is set.
        """
        if "handler" in arguments:
            raise ConfigError("handler: pass it to run(), which calls it in the thread of its caller")
        self._consumer = asyncio_consumer.Consumer(topic, channel, **arguments)
        self._is_touching = bool(arguments.get("auto_touch", True))
        self._thread = _LoopThread("nsqx consumer")
        # None marks the end.
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        # In ``run``: the messages that wait for the handler, and that of the handler.
        self._taken: deque[Message] = deque()
        self._handled: Message | None = None
        self._running_thread = 0
        self._close_timeout: Duration | None = None
        self._is_closed = False
        self._has_ended = False
        try:
            self._thread.wait_for(self._start())
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Nobody answers the messages of a program that has failed. When the connections end, nsqd delivers them again.
        self.close(asyncio_consumer.STOP_TIMEOUT_S if kind is None else 0)

    def __iter__(self) -> Iterator[Message]:
        while True:
            message = self.get()
            if message is None:
                return
            yield message

    def get(self, timeout: Duration | None = None) -> Message | None:
        """Return the next message; None if none arrives within ``timeout`` or the consumer was closed."""
        if self._has_ended:
            return None
        try:
            message = self._messages.get(timeout=_optional_s(timeout))
        except queue.Empty:
            return None
        if message is None:
            self._note_end()
        return message

    def _note_end(self) -> None:
        """Let the other threads that wait for a message find the end too."""
        self._has_ended = True
        self._messages.put(None)

    def take(self, max_count: int, max_wait: Duration = 1.0) -> list[Message]:
        """Return up to ``max_count`` messages, fewer if no more arrive within ``max_wait``.

        At most ``max_in_flight`` messages arrive before some are answered.
        """
        until_s = time.monotonic() + seconds_of("max_wait", max_wait)
        taken: list[Message] = []
        while len(taken) < max_count:
            message = self.get(max(0.0, until_s - time.monotonic()))
            if message is None:
                break
            taken.append(message)
        return taken

    def run(
        self,
        handler: Callable[[Message], object],
        *,
        handle_signals: bool = True,
        stop_timeout: Duration = asyncio_consumer.STOP_TIMEOUT_S,
    ) -> None:
        """Call ``handler`` in this thread with each message. Return when the consumer is closed.

        A message is finished when the handler returns. When the handler raises, the message is requeued, or given up
        after ``max_attempts`` deliveries; ``on_give_up`` is then called in the background thread. With ``auto_touch``,
        messages that wait for a long handler are touched.

        In the main thread, SIGTERM and SIGINT (Ctrl-C) close the consumer after the handler, within ``stop_timeout``; a
        second signal ends the program. Signals for which the program has a handler are left alone, and so are all with
        ``handle_signals=False``.
        """

        def stop() -> None:
            self._close_timeout = stop_timeout
            self._messages.put(None)  # ends the wait for a message

        self._running_thread = threading.get_ident()
        if self._is_touching:
            self._thread.call(lambda: self._consumer._keep_touching(self._held))
        with stop_thread_on_signals(stop) if handle_signals else contextlib.nullcontext():
            for first in self:
                self._taken.append(first)
                while self._taken and self._close_timeout is None:
                    self._take_all()
                    with contextlib.suppress(IndexError):  # close() has requeued the rest
                        self._handled = self._taken.popleft()
                        self._handle(handler, self._handled)
                if self._close_timeout is not None:
                    break
            if self._close_timeout is not None:
                self.close(self._close_timeout)

    def _take_all(self) -> None:
        """Take the messages that have arrived, so that they are touched while they wait."""
        with contextlib.suppress(queue.Empty):
            while (message := self._messages.get_nowait()) is not None:
                self._taken.append(message)
            self._note_end()

    def _handle(self, handler: Callable[[Message], object], message: Message) -> None:
        try:
            handler(message)
        except Exception as error:
            message._fail(partial(self._consumer._dispatcher.failed, message._message, error))
        except BaseException:  # the program ends
            if not message.is_answered:
                message.requeue(0, backoff=False)
            raise
        else:
            if not message.is_answered:
                message.finish()
        finally:
            self._handled = None

    def _held(self) -> list[subscription.Message]:
        held = [*self._taken.copy(), *filter(None, [self._handled])]
        return [message._message for message in held]

    @property
    def is_connected(self) -> bool:
        """True if an nsqd is connected."""
        return self._consumer.is_connected

    @property
    def last_error(self) -> Exception | None:
        """The last failed attempt to connect, lost connection or failed lookup; None if there was none."""
        return self._consumer.last_error

    @property
    def health(self) -> ClientHealth:
        """The state of the connections, for readiness probes."""
        return self._consumer.health

    @property
    def stats(self) -> asyncio_consumer.ConsumerStats:
        """Counters since the start of the consumer."""
        return self._consumer.stats

    @property
    def is_starved(self) -> bool:
        """True if nsqd waits for answers before it sends more messages."""
        return self._consumer.is_starved

    def close(self, timeout: Duration = asyncio_consumer.STOP_TIMEOUT_S) -> None:
        """Requeue messages that were not taken, wait until the others are answered, and close.

        After ``timeout`` (30 s by default) close without waiting; the end of ``with`` does not wait after an exception.
        In a handler of ``run`` this returns at once, and the consumer is closed after the handler.
        """
        if self._is_closed:
            return
        if self._handled is not None and self._running_thread == threading.get_ident():
            self._close_timeout = timeout
            return
        self._is_closed = True
        try:
            self._thread.wait_for(self._stop(timeout))
        finally:
            self._messages.put(None)
            self._thread.close()

    async def _start(self) -> None:
        await self._consumer.start()
        self._transfer = asyncio.create_task(self._keep_transferring())

    async def _keep_transferring(self) -> None:
        async for message in self._consumer:
            self._messages.put(Message(message, self._thread))

    def _requeue_all(self, take: Callable[[], Message | None], end: type[Exception]) -> None:
        """Requeue messages that no handler has seen."""
        with contextlib.suppress(end):
            while True:
                message = take()
                if message is not None and not message.is_answered:
                    message._message.requeue(0, backoff=False)

    async def _stop(self, timeout: Duration) -> None:  # noqa: ASYNC109
        await self._thread.settle()
        self._transfer.cancel()
        await asyncio.gather(self._transfer, return_exceptions=True)
        self._requeue_all(self._messages.get_nowait, queue.Empty)
        self._requeue_all(self._taken.pop, IndexError)
        await self._consumer.stop(timeout)


def _optional_s(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds_of("timeout", timeout)
