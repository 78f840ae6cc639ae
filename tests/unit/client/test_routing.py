"""What the functions of subscribers receive, and the order of the middlewares around them."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nsqx import App, ClientClosed, ConfigError, Delivery, GiveUp, InvalidBody, InvalidName, Message, MessageRouter
from nsqx.middlewares import HandlerMetrics, limit_time, log_deliveries, retry

VALUE = contextvars.ContextVar("VALUE", default=0)


class FakeMessage:
    """The parts of a message that routing uses."""

    def __init__(self, body=b"{}"):
        self.id = b"0123456789abcdef"
        self.body = body
        self.attempts = 2


async def call(function, body=b"{}", *, middlewares=(), executor=None, **arguments):
    """Register a function, and return what its handler returns for a body."""
    router = MessageRouter()
    router.subscriber("t", "c", **arguments)(function)
    (subscriber,) = router.subscribers
    return await subscriber.handler(middlewares, executor)(FakeMessage(body))


async def returns(*parts):
    return parts


async def test_parameters_receive_what_their_types_say():
    async def nothing():
        return "nothing"

    async def message(message: Message):
        return type(message)

    async def unannotated(anything):
        return type(anything)

    async def value(order: dict):
        return order

    async def everything(order: dict, message: Message, delivery: Delivery, limit: int = 3):
        return order, type(message), delivery.value, delivery.topic, delivery.channel, delivery.function_name, limit

    body = b'{"id":1}'
    assert await call(nothing) == "nothing"
    assert await call(message) is FakeMessage
    assert await call(unannotated) is FakeMessage
    assert await call(value, body) == {"id": 1}
    assert await call(unannotated, body, codec=dict) is dict
    name = everything.__qualname__
    assert await call(everything, body) == ({"id": 1}, FakeMessage, {"id": 1}, "t", "c", name, 3)


async def test_an_invalid_body_is_a_failure_that_middlewares_see():
    async def value(order: dict):
        raise AssertionError("not called")

    metrics = HandlerMetrics()
    with pytest.raises(InvalidBody, match="the body is not JSON"):
        await call(value, b"{", middlewares=[metrics])
    assert metrics.count("t", "c", "given up") == 1


async def test_plain_functions_run_in_threads_with_the_context():
    def plain(message: Message):
        return threading.get_ident(), VALUE.get()

    VALUE.set(7)
    with ThreadPoolExecutor(1) as executor:
        thread, value = await call(plain, executor=executor)
    assert thread != threading.get_ident()
    assert value == 7


async def test_middlewares_are_called_from_the_outside_in():
    calls = []

    def named(name):
        async def middleware(delivery, call_next):
            calls.append(f"{name} before")
            try:
                return await call_next()
            finally:
                calls.append(f"{name} after")

        return middleware

    router = MessageRouter(middlewares=[named("router")])

    @router.subscriber("t", "c", middlewares=[named("subscriber")])
    async def handle(message: Message):
        calls.append("handle")
        return 3

    app = App("127.0.0.1:4150", middlewares=[named("app")])
    app.include(router)
    (subscriber,) = app.subscribers
    assert await subscriber.handler(app._app_middlewares, None)(FakeMessage()) == 3
    names = ["app", "router", "subscriber"]
    assert calls == [*(f"{name} before" for name in names), "handle", *(f"{name} after" for name in names[::-1])]
    assert await handle(FakeMessage()) == 3  # the function itself is unchanged


def test_functions_that_cannot_be_called_are_rejected():
    router = MessageRouter()

    def two(first: dict, second: str): ...
    def keyword(*, order: dict): ...
    def undefined(order: "Missing"): ...  # noqa: F821

    for function, text in [
        (two, "the parameter second has no value"),
        (keyword, "the parameter order must not be keyword-only"),
        (undefined, "the annotation 'Missing' is not defined"),
        (3, "a subscriber must be a function, not 3"),
    ]:
        with pytest.raises(ConfigError, match=text):
            router.subscriber("t", "c")(function)
    assert router.subscribers == ()
    for arguments in ({"topic": "bad name"}, {"channel": ""}, {"dead_letter_topic": "bad name"}):
        with pytest.raises(InvalidName):
            router.subscriber(**{"topic": "t", "channel": "c", **arguments})
    with pytest.raises(ConfigError, match="option concurrency"):
        router.subscriber("t", "c", concurrency=0)
    with pytest.raises(ConfigError, match="invalid option max_inflight: did you mean max_in_flight"):
        router.subscriber("t", "c", max_inflight=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="cannot be combined"):
        router.subscriber("t", "c", dead_letter_topic="d", on_give_up=print)


def test_an_app_needs_addresses_and_runs_before_it_publishes():
    with pytest.raises(ConfigError, match="an app needs nsqd_tcp_addresses or lookupd_http_addresses"):
        App()
    with pytest.raises(ConfigError, match="invalid option nope"):
        App("127.0.0.1:4150", nope=1)
    app = App("127.0.0.1:4150")
    assert not app.is_connected
    assert app.health == {}
    with pytest.raises(ClientClosed, match="the app is not running"):
        app.publisher("t", dict).publish({})


# Middlewares


class Failing:
    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


DELIVERY = Delivery(FakeMessage(), "t", "c", "handle")


async def test_retry_calls_again_up_to_its_attempts():
    handle = Failing(OSError(), OSError())
    assert await retry(3, "1ms")(DELIVERY, handle) == "done"
    assert handle.calls == 3
    handle = Failing(OSError(), OSError(), OSError("last"))
    with pytest.raises(OSError, match="last"):
        await retry(3, "1ms")(DELIVERY, handle)
    for error in (GiveUp("no"), ValueError("no")):
        handle = Failing(error)
        with pytest.raises(type(error)):
            await retry(3, "1ms", on=OSError)(DELIVERY, handle)
        assert handle.calls == 1


async def test_a_time_limit_cancels_the_function():
    with pytest.raises(TimeoutError):
        await limit_time("10ms")(DELIVERY, asyncio.Event().wait)
    assert await limit_time("1m")(DELIVERY, Failing()) == "done"


async def test_deliveries_are_logged(caplog):
    with caplog.at_level("INFO", "nsqx.app"):
        await log_deliveries()(DELIVERY, Failing())
        with pytest.raises(ValueError):
            await log_deliveries()(DELIVERY, Failing(ValueError("two\nlines")))
    done, failed = (record.getMessage() for record in caplog.records)
    assert done.startswith("t/c: handle handled message 0123456789abcdef, attempt 2, in ")
    assert done.endswith(" ms: done")
    assert failed.endswith(" ms: ValueError: two lines")


async def test_metrics_count_outcomes_and_durations():
    metrics = HandlerMetrics()
    running = []

    async def handle():
        running.append(metrics.running("t", "c"))

    await metrics(DELIVERY, handle)
    for error in (ValueError(), GiveUp()):
        with pytest.raises(type(error)):
            await metrics(DELIVERY, Failing(error))
    assert running == [1]
    assert metrics.running("t", "c") == 0
    assert [metrics.count("t", "c", each) for each in ("done", "failed", "given up")] == [1, 1, 1]
    lines = metrics.prometheus().splitlines()
    assert 'nsqx_handler_messages_total{topic="t",channel="c",outcome="given up"} 1' in lines
    assert 'nsqx_handler_running{topic="t",channel="c"} 0' in lines
    assert 'nsqx_handler_seconds_bucket{topic="t",channel="c",le="+Inf"} 3' in lines
    assert 'nsqx_handler_seconds_count{topic="t",channel="c"} 3' in lines
