"""Publishing the values of one type to one topic."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from nsqx.client.arguments import check_name
from nsqx.client.codecs import Codec, codec_of, encoded

if TYPE_CHECKING:
    from nsqx.client.options import Duration
    from nsqx.client.producer import Producer

_T = TypeVar("_T")
_P = ParamSpec("_P")


class TopicPublisher(Generic[_T]):
    """Publishes values to one topic. Create one with ``publisher`` of a producer or an app.

    It is also a decorator of coroutine functions: their results are published, unless they are None.
    """

    def __init__(self, producer: Callable[[], Producer], topic: str, codec: Codec[_T] | type[_T]) -> None:
        """``producer`` returns the producer to use. Raises InvalidName or ConfigError."""
        self._producer = producer
        self._codec: Codec[_T] = codec_of(codec)
        self.topic = check_name("topic", topic)

    def publish(self, value: _T, timeout: Duration | None = None, seq: int | None = None) -> asyncio.Future[None]:
        """Publish a value. The arguments, the future and the errors are those of ``Producer.publish``.

        Raises InvalidMessage if the value cannot be encoded.
        """
        return self._producer().publish(self.topic, encoded(self._codec, self.topic, value), timeout, seq)

    def publish_many(
        self, values: Iterable[_T], timeout: Duration | None = None, seq: int | None = None
    ) -> asyncio.Future[None]:
        """Publish several values together, as ``Producer.publish_many``."""
        bodies = [encoded(self._codec, self.topic, value) for value in values]
        return self._producer().publish_many(self.topic, bodies, timeout, seq)

    def publish_deferred(
        self, value: _T, delay: Duration, timeout: Duration | None = None, seq: int | None = None
    ) -> asyncio.Future[None]:
        """Publish a value that nsqd delivers after ``delay``, as ``Producer.publish_deferred``."""
        body = encoded(self._codec, self.topic, value)
        return self._producer().publish_deferred(self.topic, body, delay, timeout, seq)

    def __call__(self, function: Callable[_P, Awaitable[_T | None]]) -> Callable[_P, Awaitable[_T | None]]:
        """Return a function that publishes the result of ``function``. It returns when nsqd has the message."""

        @functools.wraps(function)
        async def publish_result(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
            result = await function(*args, **kwargs)
            if result is not None:
                await self.publish(result)
            return result

        return publish_result
