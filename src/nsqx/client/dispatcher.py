"""The queue of received messages, and the three ways to process them.

A plain function is called at once for each message. A coroutine function is awaited by up to ``concurrency`` workers.
An iterator takes one message at a time. A message whose connection has ended is skipped, because it can no longer be
answered and nsqd delivers it again.

A failed message is requeued, or given up: after ``max_attempts`` deliveries, or at once for GiveUp and an invalid body.
A handler that ends because it awaits a cancelled task has failed too. Only ``close`` cancels the handlers themselves.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from nsqx.client.subscription import Message
from nsqx.errors import GiveUp, InvalidBody

if TYPE_CHECKING:
    from nsqx.client.telemetry import ConsumerTelemetry

Handler = Callable[[Message], Awaitable[object] | object]

_log = logging.getLogger("nsqx.client")

_MAX_LOGGED = 500
# Handlers that never wait yield to the event loop after this time.
_TURN_S = 0.02


class Dispatcher:
    """The message queue of one consumer."""

    __slots__ = (
        "_concurrency",
        "_decode",
        "_give_up",
        "_handler",
        "_hands",
        "_is_direct",
        "_is_ending",
        "_is_refusing",
        "_is_resuming",
        "_is_waking",
        "_loop",
        "_max_attempts",
        "_name",
        "_tasks",
        "_telemetry",
        "_waiters",
        "_worker_count",
        "messages",
    )

    def __init__(
        self,
        handler: Handler | None,
        *,
        concurrency: int,
        max_attempts: int,
        give_up: Handler | None,
        telemetry: ConsumerTelemetry | None = None,
        decode: Callable[[bytes], object] | None = None,
        name: str = "",
    ) -> None:
        """Without a handler, messages wait for ``take`` or ``next``. ``give_up`` is for those over ``max_attempts``.

        ``decode`` returns the value of a body. ``name`` is for the log.
        """
        self.messages: deque[Message] = deque()
        self._handler = handler
        self._is_direct = handler is not None and not _is_coroutine_function(handler)
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._give_up = give_up
        self._decode = decode
        self._name = name
        self._telemetry = telemetry
        self._loop: Any = None
        self._is_ending = False
        self._is_refusing = False
        self._is_resuming = False
        self._is_waking = False
        self._worker_count = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        # The message of each running handler, in a list of one.
        self._hands: list[list[Message | None]] = []

    def start(self) -> None:
        """Use the running event loop."""
        self._loop = asyncio.get_running_loop()

    # Arrivals

    def arrived(self) -> None:
        """Process new messages in ``messages``."""
        if self._is_refusing:
            self._give_back()
            return
        if self._is_direct:
            if not self._is_resuming:
                self._handle_directly()
            return
        if not self._is_waking:
            # Wake one waiter first. If it never waits it takes all messages, and the others need not run.
            self._is_waking = True
            self._wake(1)
            self._loop.call_soon(self._wake_rest)

    def _wake_rest(self) -> None:
        self._is_waking = False
        self._wake(len(self.messages))

    def _wake(self, count: int) -> None:
        """Wake up to ``count`` waiters. With a handler, start new workers for the rest."""
        while self._waiters and count > 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
        if self._handler is not None:
            while count > 0 and self._worker_count < self._concurrency:
                self._worker_count += 1
                self._spawn(self._work())
                count -= 1

    def take(self) -> Message | None:
        """Return the next message, or None if there is none."""
        while self.messages:
            message = self.messages.popleft()
            if message.is_lost:
                continue
            if self._max_attempts and message.attempts > self._max_attempts:
                self._abandon(message)
                continue
            if self._decode is not None and not self._set_value(message):
                continue
            return message
        return None

    async def next(self) -> Message | None:
        """Wait for the next message and return it; None after ``end``."""
        while True:
            message = self.take()
            if message is not None:
                if self._telemetry is not None:
                    self._telemetry.received()
                return message
            if self._is_ending:
                return None
            await self.wait()

    async def wait(self) -> None:
        """Wait until messages arrive, or until ``end``."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                # This waiter was woken and will not take the message: wake another one.
                self.arrived()
            raise

    # Stop

    def refuse(self) -> None:
        """Requeue all messages in the queue, and all that still arrive."""
        self._is_refusing = True
        self._give_back()

    def _give_back(self) -> None:
        while self.messages:
            message = self.messages.popleft()
            if not message.is_lost:
                message.requeue(0, backoff=False)

    def end(self) -> None:
        """End all waits: no more messages will arrive."""
        self._is_ending = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def close(self, grace_s: float) -> None:
        """Cancel the running handlers and wait for them, at most ``grace_s``."""
        self.end()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, running = await asyncio.wait(tasks, timeout=grace_s)
            if running:
                _log.error("%d handlers did not end %g s after they were cancelled", len(running), grace_s)

    async def finished(self) -> None:
        """Wait until the running handlers return; call ``end`` first."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks)

    def is_handling(self, task: asyncio.Task[Any] | None) -> bool:
        """True if ``task`` runs a handler."""
        return task in self._tasks

    @property
    def is_ending(self) -> bool:
        """True after ``end``."""
        return self._is_ending

    # Handling

    def _set_value(self, message: Message) -> bool:
        """Decode the body. If that fails, give the message up and return False."""
        assert self._decode is not None
        try:
            message.value = self._decode(message.body)
        except Exception as error:
            self.failed(message, error if isinstance(error, GiveUp) else InvalidBody(one_line(error)))
            return False
        return True

    def held(self) -> list[Message]:
        """Return the messages that wait for a handler, and those of the running handlers."""
        handled = [hand[0] for hand in self._hands]
        return [*self.messages, *(message for message in handled if message is not None)]

    def _handle_directly(self) -> None:
        self._is_resuming = False
        handler = self._handler
        assert handler is not None
        until_s = time.monotonic() + _TURN_S
        while True:
            message = self.take()
            if message is None:
                return
            try:
                if self._telemetry is None:
                    outcome = handler(message)
                else:
                    with self._telemetry.processing(message):
                        outcome = handler(message)
            except asyncio.CancelledError as error:
                self.failed(message, _cancelled(error))
            except Exception as error:
                self.failed(message, error)
            else:
                if outcome is not None and inspect.isawaitable(outcome):
                    self._spawn(self._await_outcome(message, outcome))
                elif not message.is_detached and not message.is_answered:
                    message.finish()
            if self.messages and time.monotonic() > until_s:
                self._is_resuming = True
                self._loop.call_soon(self._handle_directly)
                return

    async def _work(self) -> None:
        handler = self._handler
        assert handler is not None
        hand: list[Message | None] = [None]
        self._hands.append(hand)
        until_s = time.monotonic() + _TURN_S
        while True:
            message = hand[0] = self.take()
            if message is None:
                if self._is_ending:
                    return
                await self.wait()
                until_s = time.monotonic() + _TURN_S
                continue
            try:
                if self._telemetry is None:
                    await handler(message)  # type: ignore[misc]
                else:
                    with self._telemetry.processing(message):
                        await handler(message)  # type: ignore[misc]
            except asyncio.CancelledError as error:
                if _is_stopping():
                    raise
                self.failed(message, _cancelled(error))
            except Exception as error:
                self.failed(message, error)
            else:
                if not message.is_detached and not message.is_answered:
                    message.finish()
            if time.monotonic() > until_s:
                await asyncio.sleep(0)
                until_s = time.monotonic() + _TURN_S

    async def _await_outcome(self, message: Message, outcome: Awaitable[object]) -> None:
        hand: list[Message | None] = [message]
        self._hands.append(hand)
        try:
            await outcome
        except asyncio.CancelledError as error:
            if _is_stopping():
                raise
            self.failed(message, _cancelled(error))
        except Exception as error:
            self.failed(message, error)
        else:
            if not message.is_detached and not message.is_answered:
                message.finish()
        finally:
            self._hands.remove(hand)

    def failed(self, message: Message, error: Exception) -> None:
        """Requeue a message whose handler has raised ``error``, or give it up, and log one line."""
        message.error = error
        is_final = isinstance(error, GiveUp)
        is_last = 0 < self._max_attempts <= message.attempts
        if message.is_answered:
            outcome = "it was answered before"
        elif is_final or is_last:
            outcome = "giving up"
        else:
            outcome = "requeued"
        attempt = f"attempt {message.attempts} of {self._max_attempts or 'any number'}"
        text = f"{self._name}: message {message.id.decode('ascii', 'replace')} failed, {attempt}, {outcome}"
        level = logging.ERROR if outcome == "giving up" else logging.WARNING
        has_traceback = (is_last and not is_final) or _log.isEnabledFor(logging.DEBUG)
        _log.log(level, "%s: %s", text, one_line(error), exc_info=error if has_traceback else None)
        if outcome == "requeued":
            message.requeue()
        elif outcome == "giving up":
            if not is_final:
                message._failed()
            self._finish_or_give_up(message)

    def _abandon(self, message: Message) -> None:
        """Give up a message that was delivered too often, because earlier deliveries timed out or were lost."""
        text = message.id.decode("ascii", "replace")
        _log.warning("%s: giving up message %s: more than %d attempts", self._name, text, self._max_attempts)
        self._finish_or_give_up(message)

    def _finish_or_give_up(self, message: Message) -> None:
        if self._give_up is None:
            message.finish()
        else:
            self._spawn(self._run_give_up(self._give_up, message))

    async def _run_give_up(self, give_up: Handler, message: Message) -> None:
        """Finish the message if ``give_up`` returns, and requeue it if ``give_up`` raises."""
        try:
            outcome = give_up(message)
            if inspect.isawaitable(outcome):
                await outcome
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_stopping():
                raise
            _log.exception("%s: on_give_up failed for %r", self._name, message)
            if not message.is_answered:
                message.requeue(backoff=False)
        else:
            if not message.is_answered:
                message.finish()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def one_line(error: BaseException) -> str:
    """Return the type and the text of an error in one line of limited length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _MAX_LOGGED else f"{text[:_MAX_LOGGED]}…"


def _is_stopping() -> bool:
    """Return True if the current task was cancelled by ``close``, and not by something that its handler awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cancelled(cause: asyncio.CancelledError) -> Exception:
    """Return the error of a handler that awaits a cancelled task. Its message has failed as by any other exception."""
    error = RuntimeError("the handler awaits a task that was cancelled")
    error.__cause__ = cause
    return error


def _is_coroutine_function(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
