"""Subscribers of an application: the functions that handle messages, their arguments, and the middlewares around them.

Opens no connections. ``app`` makes a consumer of each subscriber.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from nsqx.client.arguments import at_least_one, check_name
from nsqx.client.codecs import Codec, codec_of, decoded
from nsqx.client.options import Options
from nsqx.client.subscription import Message
from nsqx.errors import ConfigError

if TYPE_CHECKING:
    from typing import Unpack

    from nsqx.client.dispatcher import Handler
    from nsqx.client.options import OptionKeywords

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(slots=True)
class Delivery:
    """A message on its way to the function of a subscriber.

    Attributes:
        message: The message.
        topic: Name of the topic.
        channel: Name of the channel.
        function_name: Name of the function of the subscriber.
        value: The decoded body, after the middlewares.
    """

    message: Message
    topic: str
    channel: str
    function_name: str
    value: Any = None


CallNext = Callable[[], Awaitable[Any]]
"""Calls the next middleware or, after the last one, the function. It may be called again, for another attempt."""

Middleware = Callable[[Delivery, CallNext], Awaitable[Any]]
"""A coroutine function that calls ``call_next`` and does something before or after it. An exception is a failure."""


@dataclass(frozen=True, slots=True)
class AppSubscriber:
    """A function, the channel that it consumes, and how. Created by ``subscriber`` of a router or app."""

    topic: str
    channel: str
    function: Callable[..., Any]
    concurrency: int
    on_give_up: Handler | None
    dead_letter_topic: str
    middlewares: tuple[Middleware, ...]
    options: OptionKeywords
    codec: Codec[Any] | None
    parameters: tuple[str, ...] = field(repr=False)
    """For each argument of the function: message, delivery or value."""

    def handler(self, outer: Iterable[Middleware], executor: Executor | None) -> Callable[[Message], Awaitable[Any]]:
        """Return the handler for a consumer. Plain functions run in ``executor``."""
        call: Callable[[Delivery], Awaitable[Any]] = partial(self._call, executor)
        for middleware in reversed((*outer, *self.middlewares)):
            call = partial(_link, middleware, call)
        name = getattr(self.function, "__qualname__", repr(self.function))

        async def handle(message: Message) -> Any:
            return await call(Delivery(message, self.topic, self.channel, name))

        return handle

    @property
    def is_plain(self) -> bool:
        """True if the function is no coroutine function, so that it runs in a thread."""
        return not inspect.iscoroutinefunction(self.function)

    async def _call(self, executor: Executor | None, delivery: Delivery) -> Any:
        """Decode the body and call the function; raises InvalidBody."""
        if self.codec is not None:
            delivery.value = decoded(self.codec, delivery.message.body)
        values = {"message": delivery.message, "delivery": delivery, "value": delivery.value}
        arguments = [values[each] for each in self.parameters]
        if not self.is_plain:
            return await self.function(*arguments)
        call = partial(contextvars.copy_context().run, self.function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(executor, call)


async def _link(middleware: Middleware, call: Callable[[Delivery], Awaitable[Any]], delivery: Delivery) -> Any:
    return await middleware(delivery, partial(call, delivery))


class MessageRouter:
    """A group of subscribers, for example those of one module. An app includes it."""

    def __init__(self, *, middlewares: Iterable[Middleware] = ()) -> None:
        """``middlewares`` are for the subscribers of this router, the outermost first."""
        self._middlewares = tuple(middlewares)
        self._subscribers: list[AppSubscriber] = []

    def subscriber(
        self,
        topic: str,
        channel: str,
        *,
        concurrency: int = 1,
        codec: Codec[Any] | Any = None,
        on_give_up: Handler | None = None,
        dead_letter_topic: str = "",
        middlewares: Iterable[Middleware] = (),
        **options: Unpack[OptionKeywords],
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Return a decorator that makes a function consume a channel. The function itself is not changed.

        A message is finished when the function returns. When it raises, the message is requeued or given up, as by a
        consumer. A parameter with the annotation ``Message`` or ``Delivery`` receives that; one without an annotation
        receives the message; one with another type receives the value that the codec for that type has decoded.

        Args:
            topic: Name of the topic.
            channel: Name of the channel.
            concurrency: Largest number of calls at once. A function that is no coroutine function runs in threads.
            codec: Decodes the body, in place of the codec for the type of the parameter.
            on_give_up: Called with a message before it is given up. ``message.error`` is the reason.
            dead_letter_topic: Publish the body of a message to this topic before it is given up.
            middlewares: Middlewares of this subscriber, within those of the router and the app.
            **options: Options of the consumer. ``max_in_flight`` is ``concurrency`` by default.

        Raises:
            ConfigError: An argument is invalid, or a parameter of the function cannot be filled.
            InvalidName: The name of a topic or channel is not valid.
        """
        check_name("topic", topic)
        check_name("channel", channel)
        at_least_one("concurrency", concurrency)
        Options.of(options)  # raises ConfigError
        if dead_letter_topic:
            check_name("topic", dead_letter_topic)
        if dead_letter_topic and on_give_up is not None:
            raise ConfigError("on_give_up and dead_letter_topic cannot be combined: publish in on_give_up")

        def register(function: Callable[_P, _R]) -> Callable[_P, _R]:
            parameters, kind = _parameters_of(function, has_codec=codec is not None)
            chosen = codec_of(codec) if codec is not None else None if kind is None else codec_of(kind)
            self._subscribers.append(
                AppSubscriber(
                    topic,
                    channel,
                    function,
                    concurrency,
                    on_give_up,
                    dead_letter_topic,
                    (*self._middlewares, *middlewares),
                    options,
                    chosen,
                    parameters,
                )
            )
            return function

        return register

    @property
    def subscribers(self) -> tuple[AppSubscriber, ...]:
        """The subscribers so far."""
        return tuple(self._subscribers)


def _parameters_of(function: Callable[..., Any], *, has_codec: bool) -> tuple[tuple[str, ...], Any]:
    """Return what each parameter receives, and the type of the value, if there is one; raises ConfigError."""
    if not callable(function):
        raise ConfigError(f"a subscriber must be a function, not {function!r}")
    name = getattr(function, "__qualname__", repr(function))
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except NameError as error:
        raise ConfigError(f"subscriber {name}: the annotation {error.name!r} is not defined in its module") from None
    received: list[str] = []
    kind: Any = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind == parameter.KEYWORD_ONLY or (received and parameter.default is not parameter.empty):
            if parameter.default is parameter.empty:
                raise ConfigError(f"subscriber {name}: the parameter {parameter.name} must not be keyword-only")
            continue
        hint = hints.get(parameter.name)
        if hint is Message or (hint is None and not has_codec):
            received.append("message")
        elif hint is Delivery:
            received.append("delivery")
        elif "value" in received:
            raise ConfigError(
                f"subscriber {name}: the parameter {parameter.name} has no value: use the types Message and Delivery"
                " beside one type for the body"
            )
        else:
            received.append("value")
            kind = hint
    return tuple(received), kind
