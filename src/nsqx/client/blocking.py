"""Producer and consumer for code without an event loop: scripts, notebooks, threads, Spark executors.

The asyncio client runs on a loop of its own in a background thread. What crosses over to it is collected, so that a
burst of publishes or answers wakes that thread once. Objects do not survive a fork: make them in the process that uses
them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from nsqx.client import consumer as asyncio_consumer
from nsqx.client import producer as asyncio_producer
from nsqx.client import subscription
from nsqx.client.options import Duration, seconds_of
from nsqx.errors import AlreadyAnswered, ClientClosed, PublishTimedOut

if TYPE_CHECKING:
    from typing import Self

_T = TypeVar("_T")

# The loop in the other thread keeps the deadline of a publish. This is the further wait if that thread hangs.
_LOOP_GRACE_S = 5.0


class _LoopThread:
    """An event loop in a thread, and the way into it."""

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
        """The result of a coroutine that runs on the loop."""
        if self._pid != os.getpid() or not self._thread.is_alive():
            work.close()
            raise ClientClosed("this client belongs to another process, or was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def call(self, callback: Callable[[], object]) -> None:
        """Call on the loop, soon; calls keep their order, and many share one waking."""
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
            callback()

    async def settle(self) -> None:
        """Return when every call made before has been done."""
        self._take_calls()

    def close(self) -> None:
        """End the loop and its thread."""
        if self._pid != os.getpid() or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """For a thread of its own: uvloop\'s, where that exists."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Producer:
    """Publishes, and waits for nsqd's answer; takes the arguments of ``nsqx.Producer``."""

    def __init__(self, nsqd_tcp_addresses: str | Iterable[str] = (), **arguments: Any) -> None:
        """Connect; raises ConfigError, or ConnectFailed if no nsqd can be reached."""
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

    def publish(self, topic: str, body: bytes, timeout: Duration | None = None) -> None:
        """Publish one message; raises PublishTimedOut after ``timeout``, by default ``publish_timeout``."""
        self._wait(topic, self.submit(topic, body, timeout), timeout)

    def publish_many(self, topic: str, bodies: Iterable[bytes], timeout: Duration | None = None) -> None:
        """Publish messages together."""
        self._wait(topic, self.submit_many(topic, bodies, timeout), timeout)

    def publish_deferred(self, topic: str, body: bytes, delay: Duration, timeout: Duration | None = None) -> None:
        """Publish one message that nsqd hands out after ``delay``."""
        self._wait(topic, self._submit(lambda: self._producer.publish_deferred(topic, body, delay, timeout)), timeout)

    def submit(self, topic: str, body: bytes, timeout: Duration | None = None) -> concurrent.futures.Future[None]:
        """Publish without waiting: the future will know. Many may be under way at once."""
        return self._submit(lambda: self._producer.publish(topic, body, timeout))

    def submit_many(
        self, topic: str, bodies: Iterable[bytes], timeout: Duration | None = None
    ) -> concurrent.futures.Future[None]:
        """Publish messages together without waiting: the future will know."""
        listed = list(bodies)
        return self._submit(lambda: self._producer.publish_many(topic, listed, timeout))

    def close(self, timeout: Duration | None = None) -> None:
        """Wait for all answers, then close; what is left after ``timeout`` fails."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._thread.wait_for(self._thread.settle())
            self._thread.wait_for(self._producer.close(timeout))
        finally:
            self._thread.close()

    def _wait(self, topic: str, outcome: concurrent.futures.Future[None], timeout: Duration | None) -> None:
        timeout_s = self._producer.publish_timeout_s if timeout is None else seconds_of("timeout", timeout)
        try:
            outcome.result(max(0.0, timeout_s) + _LOOP_GRACE_S)
        except concurrent.futures.TimeoutError:
            if outcome.done():
                raise
            reason = "the thread of this producer does not run"
            raise PublishTimedOut(topic, 1, timeout_s, reason, may_be_published=True) from None

    def _submit(self, publish: Callable[[], asyncio.Future[None]]) -> concurrent.futures.Future[None]:
        if self._is_closed:
            raise ClientClosed("the producer is closed")
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

        def begin() -> None:
            try:
                publish().add_done_callback(finished)
            except Exception as error:
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


class Message:
    """A message from nsqd. Answer it once, with ``finish`` or ``requeue``, from any thread.

    Attributes:
        id (bytes): 16 hexadecimal digits, unique within one nsqd.
        body (bytes): The bytes that were published.
        timestamp (int): Time of the publish, in nanoseconds since 1970.
        attempts (int): Number of deliveries, including this one.
    """

    __slots__ = ("_is_answered", "_message", "_thread", "attempts", "body", "id", "timestamp")

    def __init__(self, message: subscription.Message, thread: _LoopThread) -> None:
        self._message = message
        self._thread = thread
        self._is_answered = False
        self.id = message.id
        self.body = message.body
        self.timestamp = message.timestamp
        self.attempts = message.attempts

    def finish(self) -> None:
        """It is done."""
        self._answer(self._message.finish)

    def requeue(self, delay: Duration | None = None, backoff: bool = True) -> None:
        """Have it handed out again after ``delay``, by default longer with every attempt; 0 means at once."""
        if delay is not None:
            seconds_of("delay", delay)
        self._answer(lambda: self._message.requeue(delay, backoff))

    def touch(self) -> None:
        """Ask for more time."""
        if self._is_answered:
            raise AlreadyAnswered(f"{self!r} was answered before")
        self._thread.call(self._message.touch)

    @property
    def is_answered(self) -> bool:
        """True once it was finished or requeued."""
        return self._is_answered

    @property
    def nsqd_address(self) -> str:
        """The nsqd that it came from."""
        return self._message.nsqd_address

    def _answer(self, answer: Callable[[], object]) -> None:
        if self._is_answered:
            raise AlreadyAnswered(f"{self!r} was answered before")
        self._is_answered = True
        self._thread.call(answer)

    def __repr__(self) -> str:
        return repr(self._message)


class Consumer:
    """Consumes one channel of a topic; takes the options of ``nsqx.Consumer``.

    Iterate over it and answer each message, or give a handler to ``run``.
    """

    def __init__(self, topic: str, channel: str, **arguments: Any) -> None:
        """Connect and begin to consume; raises ConfigError, InvalidName or ConnectFailed."""
        self._consumer = asyncio_consumer.Consumer(topic, channel, **arguments)
        self._thread = _LoopThread("nsqx consumer")
        # None stands for the end.
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
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
        self.close()

    def __iter__(self) -> Iterator[Message]:
        while True:
            message = self.get()
            if message is None:
                return
            yield message

    def get(self, timeout: Duration | None = None) -> Message | None:
        """The next message; None if none came within ``timeout``, or if the consumer was closed."""
        if self._has_ended:
            return None
        try:
            message = self._messages.get(timeout=_optional_s(timeout))
        except queue.Empty:
            return None
        if message is None:
            self._has_ended = True
        return message

    def take(self, max_count: int, max_wait: Duration = 1.0) -> list[Message]:
        """Up to ``max_count`` messages, fewer if no more came within ``max_wait``.

        No more than ``max_in_flight`` can come before some are answered.
        """
        until_s = time.monotonic() + seconds_of("max_wait", max_wait)
        taken: list[Message] = []
        while len(taken) < max_count:
            message = self.get(max(0.0, until_s - time.monotonic()))
            if message is None:
                break
            taken.append(message)
        return taken

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call ``handler`` in this thread for each message: finished when it returns, requeued when it raises.

        Returns when the consumer has been closed from another thread.
        """
        for message in self:
            try:
                handler(message)
            except Exception:
                asyncio_consumer.log.exception("the handler failed on %r", message)
                if not message.is_answered:
                    message.requeue()
            else:
                if not message.is_answered:
                    message.finish()

    @property
    def stats(self) -> asyncio_consumer.ConsumerStats:
        """What has been done so far."""
        return self._consumer.stats

    @property
    def is_starved(self) -> bool:
        """True if nsqd waits for answers before it sends more."""
        return self._consumer.is_starved

    def close(self, timeout: Duration = asyncio_consumer.STOP_TIMEOUT_S) -> None:
        """Give back what was not taken, wait until the rest was answered, and close; by force after ``timeout``."""
        if self._is_closed:
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

    async def _stop(self, timeout: Duration) -> None:  # noqa: ASYNC109
        await self._thread.settle()
        self._transfer.cancel()
        await asyncio.gather(self._transfer, return_exceptions=True)
        while not self._messages.empty():
            message = self._messages.get_nowait()
            if message is not None and not message.is_answered:
                message._message.requeue(0, backoff=False)
        await self._consumer.stop(timeout)


def _optional_s(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds_of("timeout", timeout)
