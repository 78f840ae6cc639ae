"""A message as a subscriber has received it, and as handlers see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from faststream.message import StreamMessage

if TYPE_CHECKING:
    from nsqx.client.options import Duration


class AnswerableMessage(Protocol):
    """The part of ``nsqx.Message`` that the adapter uses."""

    @property
    def id(self) -> bytes: ...

    @property
    def timestamp(self) -> int: ...

    @property
    def attempts(self) -> int: ...

    @property
    def is_answered(self) -> bool: ...

    def finish(self) -> bool: ...

    def requeue(self, delay: Duration | None = None, backoff: bool = True) -> bool: ...

    def touch(self) -> bool: ...


@dataclass(slots=True, eq=False)
class ReceivedMessage:
    """A message from nsqd, with the names of its topic and channel.

    Attributes:
        body: The bytes that were published. A middleware may replace them before they are parsed.
        message: The message to answer, of class ``nsqx.Message``.
        max_attempts: The attempt limit of the subscriber; 0 means no limit.
        bury: Publishes a body to the dead-letter topic; None if the subscriber has none.
    """

    topic: str
    channel: str
    body: bytes
    message: AnswerableMessage
    max_attempts: int = 0
    bury: Callable[[bytes], Awaitable[None]] | None = None

    async def give_up(self) -> None:
        """Finish the message, after publishing it to the dead-letter topic if there is one."""
        if self.bury is not None:
            await self.bury(self.body)
        self.message.finish()


class NSQStreamMessage(StreamMessage[ReceivedMessage]):
    """A message of NSQ in a handler: ``async def handle(body: str, message: NSQMessage)``."""

    async def ack(self) -> None:
        """Finish the message."""
        if self._is_open:
            self.raw_message.message.finish()
        await super().ack()

    async def nack(self, delay: Duration | None = None, backoff: bool = True) -> None:
        """Requeue the message, or reject it if this was the last attempt.

        nsqd delivers it again after ``delay``. The default is ``default_requeue_delay`` times the number of attempts.
        With ``backoff``, this counts as a failure and the subscriber pauses.
        """
        if self._is_open:
            raw = self.raw_message
            if 0 < raw.max_attempts <= raw.message.attempts:
                await raw.give_up()
            else:
                raw.message.requeue(delay, backoff)
        await super().nack()

    async def reject(self) -> None:
        """Finish the message without processing it. It goes to the dead-letter topic if the subscriber has one."""
        if self._is_open:
            await self.raw_message.give_up()
        await super().reject()

    async def touch(self) -> None:
        """Restart the message timeout. Messages in a handler are touched automatically."""
        if self._is_open:
            self.raw_message.message.touch()

    @property
    def attempts(self) -> int:
        """Number of deliveries, including this one."""
        return self.raw_message.message.attempts

    @property
    def timestamp_ns(self) -> int:
        """Time of the publish, in nanoseconds since 1970."""
        return self.raw_message.message.timestamp

    @property
    def _is_open(self) -> bool:
        return self.committed is None and not self.raw_message.message.is_answered
