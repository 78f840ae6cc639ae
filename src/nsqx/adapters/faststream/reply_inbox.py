"""Replies to the requests of one broker.

Replies arrive at an ephemeral topic of the broker, which nsqd removes when the broker disconnects. The correlation id
names the request of a reply.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from nsqx.adapters.faststream.envelope import unseal
from nsqx.adapters.faststream.message import ReceivedMessage

if TYPE_CHECKING:
    from nsqx.adapters.faststream.connector import Connector
    from nsqx.client.consumer import Consumer
    from nsqx.client.producer import Producer
    from nsqx.client.subscription import Message

_CHANNEL = "replies#ephemeral"
_STOP_TIMEOUT_S = 2.0


class ReplyInbox:
    """Waits for replies. Its consumer starts with the first request."""

    def __init__(self, connector: Connector, producer: Producer) -> None:
        self._connector = connector
        self._producer = producer
        self._topic = f"faststream-reply-{uuid4().hex}#ephemeral"
        self._consumer: Consumer | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: dict[str, deque[asyncio.Future[ReceivedMessage]]] = {}

    async def request(
        self, correlation_id: str, timeout_s: float | None, send: Callable[[str], Awaitable[None]]
    ) -> ReceivedMessage:
        """Call ``send`` with the topic for the reply, and return the reply. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._opened()
            reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(correlation_id, deque())
            waiting.append(reply)
            try:
                await send(self._topic)
                return await reply
            finally:
                if reply in waiting:
                    waiting.remove(reply)
                if not waiting and self._waiting.get(correlation_id) is waiting:
                    del self._waiting[correlation_id]

    async def close(self) -> None:
        """Stop to consume replies."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.stop(_STOP_TIMEOUT_S)

    async def _opened(self) -> None:
        """Wait for the consumer. It also goes on to start after a request that cannot wait so long."""
        if self._opening is None or (self._opening.done() and self._consumer is None):
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_retrieve)
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        consumer = self._connector.reply_consumer(self._topic, _CHANNEL, self._arrived, self._producer)
        await consumer.start()
        self._consumer = consumer

    def _arrived(self, message: Message) -> None:
        """Resolve the oldest request with the correlation id of the reply. Late replies have none."""
        _, headers = unseal(message.body)
        waiting = self._waiting.get(str(headers.get("correlation_id", "")))
        if waiting:
            reply = waiting.popleft()
            if not reply.done():
                reply.set_result(ReceivedMessage(self._topic, _CHANNEL, message.body, message))


def _retrieve(task: asyncio.Task[None]) -> None:
    """Mark the exception as retrieved. Each request reports the failure itself."""
    if not task.cancelled():
        task.exception()
