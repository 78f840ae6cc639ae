"""A taskiq broker on NSQ: ``NSQBroker("127.0.0.1:4150")``. It needs ``pip install 'nsqx[taskiq]'``.

A task is a message of a topic, and workers share the channel ``workers``. A message is finished when taskiq
acknowledges the task, so a task whose worker dies is executed again. The label ``delay`` of a task, in seconds, defers
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from nsqx.client.consumer import Consumer
from nsqx.client.producer import Producer
from nsqx.errors import ConfigError

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ModuleNotFoundError as error:
    raise ImportError(f"nsqx.adapters.taskiq needs {error.name}: pip install 'nsqx[taskiq]'") from error

if TYPE_CHECKING:
    from nsqx.client.subscription import Message


class NSQBroker(AsyncBroker):
    """Sends tasks to one nsqd, or to several, and lets workers take them from there.

    Tasks are published to ``nsqd_tcp_addresses``. Workers consume from the same ones, or from those that
    ``lookupd_http_addresses`` name. A task with the label ``topic`` is published to that topic instead. ``options`` are
    those of the client; ``max_in_flight`` is the number of tasks that a worker takes at once.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = "127.0.0.1:4150",
        *,
        lookupd_http_addresses: str | Iterable[str] = (),
        topic: str = "tasks",
        channel: str = "workers",
        **options: Any,
    ) -> None:
        super().__init__()
        self._nsqds = [nsqd_tcp_addresses] if isinstance(nsqd_tcp_addresses, str) else list(nsqd_tcp_addresses)
        self._lookupds = lookupd_http_addresses
        self._topic = topic
        self._channel = channel
        self._options = options
        self._producer = Producer(self._nsqds, **options)
        self._consumer: Consumer | None = None
        self._taken: asyncio.Queue[tuple[Message, asyncio.Future[None]]] = asyncio.Queue()

    async def startup(self) -> None:
        """Connect. A worker begins to take tasks with ``listen``."""
        await self._producer.start()
        await super().startup()

    async def shutdown(self) -> None:
        """Wait for the tasks in progress, and disconnect."""
        await super().shutdown()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            while not self._taken.empty():
                message, acknowledged = self._taken.get_nowait()
                message.requeue(0, backoff=False)
                acknowledged.set_result(None)
            await consumer.stop()
        await self._producer.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task. Raises PublishFailed."""
        topic = str(message.labels.get("topic", self._topic))
        delay_s = _delay_s(message.labels.get("delay", 0))
        if delay_s:
            await self._producer.publish_deferred(topic, message.message, delay_s)
        else:
            await self._producer.publish(topic, message.message)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks. nsqd does not deliver those in progress again, because the consumer touches them."""
        addresses: dict[str, Any] = {"lookupd_http_addresses": self._lookupds}
        if not self._lookupds:
            addresses = {"nsqd_tcp_addresses": self._nsqds}
        # taskiq has its own middlewares for retries, so no task is given up here.
        options = {"max_attempts": 0, **self._options}
        self._consumer = Consumer(self._topic, self._channel, self._hold, **addresses, **options)
        await self._consumer.start()
        while True:
            message, acknowledged = await self._taken.get()
            yield AckableMessage(data=message.body, ack=partial(_acknowledge, acknowledged))

    async def _hold(self, message: Message) -> None:
        """Pass a message to ``listen``, and return when its task is acknowledged. Then the message is finished."""
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken.put_nowait((message, acknowledged))
        await acknowledged


def _acknowledge(acknowledged: asyncio.Future[None]) -> None:
    if not acknowledged.done():
        acknowledged.set_result(None)


def _delay_s(label: Any) -> float:
    """Return the label ``delay`` of a task as seconds; raises ConfigError."""
    try:
        delay_s = float(label)
    except (TypeError, ValueError):
        delay_s = -1.0
    if not 0 <= delay_s < float("inf"):
        raise ConfigError(f"invalid label delay={label!r}: use a number of seconds, 0 or more")
    return delay_s
