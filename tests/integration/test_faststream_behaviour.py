"""What FastStream promises of every broker, in memory and on a real nsqd."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest

faststream = pytest.importorskip("faststream", reason="pip install 'faststream[cli]'")

from fast_depends import Depends  # noqa: E402
from faststream import BaseMiddleware, Context, ExceptionMiddleware, FastStream, Header, Response, TestApp  # noqa: E402
from faststream._internal.parser import DefaultCodec  # noqa: E402
from faststream.annotations import ContextRepo  # noqa: E402
from faststream.exceptions import SetupError, StopConsume, SubscriberNotFound  # noqa: E402
from faststream.response import ensure_response  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from nsqx.adapters.faststream import (  # noqa: E402
    NSQBroker,
    NSQMessage,
    NSQPublisher,
    NSQResponse,
    NSQRoute,
    NSQRouter,
    TestNSQBroker,
)
from nsqx.adapters.faststream.message import NSQStreamMessage  # noqa: E402
from nsqx.adapters.faststream.response import NSQPublishCommand  # noqa: E402
from nsqx.testing import LocalBroker  # noqa: E402

TIMEOUT_S = 30.0
CHANNEL = "handlers"


class Order(BaseModel):
    number: int


@dataclass
class Invoice:
    number: int


class Seen:
    """The values that handlers have received, in their order."""

    def __init__(self) -> None:
        self._values: asyncio.Queue[Any] = asyncio.Queue()
        self.put = self._values.put_nowait

    async def next(self, count: int = 1) -> Any:
        """Return the next value, or a list of ``count`` values."""
        async with asyncio.timeout(TIMEOUT_S):
            values = [await self._values.get() for _ in range(count)]
        return values[0] if count == 1 else values

    def has_more(self) -> bool:
        return not self._values.empty()


class Place:
    """Where brokers run: in memory, or on an nsqd."""

    def __init__(self, nsqd: LocalBroker | None) -> None:
        self._nsqd = nsqd
        self.is_real = nsqd is not None

    def broker(self, **options: Any) -> NSQBroker:
        address = "127.0.0.1:1" if self._nsqd is None else self._nsqd.tcp_address
        return NSQBroker(address, **{"channel": CHANNEL, "logger": None, **options})

    @asynccontextmanager
    async def running(self, *brokers: NSQBroker) -> AsyncIterator[None]:
        if self._nsqd is None:
            async with TestNSQBroker(*brokers):
                yield
            return
        try:
            for broker in brokers:
                await broker.start()
            yield
        finally:
            for broker in brokers:
                await broker.stop()


@pytest.fixture(scope="module")
def nsqd() -> Iterator[LocalBroker]:
    with LocalBroker() as running:
        yield running


@pytest.fixture(params=["memory", "nsqd"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.getfixturevalue("nsqd") if request.param == "nsqd" else None)


@pytest.fixture
def seen() -> Seen:
    return Seen()


# Subscribers


async def test_two_topics_share_a_handler(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()

    @broker.subscriber(topic)
    @broker.subscriber(f"{topic}_2")
    def handle(body: str) -> None:
        seen.put(body)

    async with place.running(broker):
        await broker.publish("a", topic)
        await broker.publish("b", f"{topic}_2")
        assert sorted(await seen.next(2)) == ["a", "b"]


async def test_every_channel_gets_a_copy_and_its_subscribers_share_it(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()

    @broker.subscriber(topic, "one")
    async def first(body: str) -> None:
        seen.put(("one", body))

    @broker.subscriber(topic, "one")
    async def same(body: str) -> None:
        seen.put(("one", body))

    @broker.subscriber(topic, "two")
    async def other(body: str) -> None:
        seen.put(("two", body))

    async with place.running(broker):
        await broker.publish("a", topic)
        assert sorted(await seen.next(2)) == [("one", "a"), ("two", "a")]
    assert not seen.has_more()


async def test_filters_choose_the_handler(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()
    subscriber = broker.subscriber(topic)

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def handle_json(body: Any) -> None:
        seen.put(("json", body))

    @subscriber
    async def handle_rest(body: Any) -> None:
        seen.put(("rest", body))

    async with place.running(broker):
        await broker.publish({"a": 1}, topic)
        assert await seen.next() == ("json", {"a": 1})
        await broker.publish("text", topic)
        assert await seen.next() == ("rest", "text")


async def test_a_subscriber_can_be_added_while_the_broker_runs(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()
    async with place.running(broker):
        subscriber = broker.subscriber(topic)
        subscriber(lambda body: seen.put(body))
        await subscriber.start()
        await broker.publish("a", topic)
        assert await seen.next() == "a"
        await subscriber.stop()


async def test_a_subscriber_with_a_handler_is_not_read_by_hand(place: Place, topic: str) -> None:
    broker = place.broker()
    subscriber = broker.subscriber(topic)

    @subscriber
    async def handle(body: Any) -> None: ...

    async with place.running(broker):
        with pytest.raises(AssertionError, match="has no get_one"):
            await subscriber.get_one(timeout=0.001)
        with pytest.raises(AssertionError, match="cannot be iterated"):
            await anext(aiter(subscriber))


async def test_a_subscriber_needs_a_channel(place: Place, topic: str) -> None:
    broker = place.broker(channel="")

    @broker.subscriber(topic)
    async def handle(body: Any) -> None: ...

    with pytest.raises(SetupError, match=f'the subscriber of topic "{topic}" has no channel: use subscriber'):
        async with place.running(broker):
            pass


async def test_two_brokers_in_one_app(place: Place, topic: str, seen: Seen) -> None:
    one, two = place.broker(), place.broker()

    @one.subscriber(topic)
    @two.publisher(f"{topic}_2")
    async def forward(body: str) -> str:
        return body.upper()

    @one.subscriber(f"{topic}_2")
    async def handle(body: str) -> None:
        seen.put(body)

    if place.is_real:
        async with TestApp(FastStream(one, two)):
            await one.publish("a", topic)
            assert await seen.next() == "A"
    else:
        async with TestNSQBroker(one, two) as (first, _), TestApp(FastStream(one, two)):
            await first.publish("a", topic)
            assert await seen.next() == "A"


# Values


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sent", "kind", "received"),
    [
        ("hello", str, "hello"),
        (b"hello", bytes, b"hello"),
        (b"\xff\x00", bytes, b"\xff\x00"),
        (1, int, 1),
        (1, float, 1.0),
        (False, bool, False),
        ({"a": 1}, dict[str, int], {"a": 1}),
        ([1, 2], list[int], [1, 2]),
        (MOMENT, datetime, MOMENT),
        (Order(number=1), Order, Order(number=1)),
        (Order(number=1), dict, {"number": 1}),
        ({"number": 1}, Order, Order(number=1)),
        (b'{"number": 1}', Order, Order(number=1)),
        (Invoice(number=1), Invoice, Invoice(number=1)),
        ({"number": 1}, Invoice, Invoice(number=1)),
        (None, bytes, b""),
    ],
)
async def test_values_are_converted(place: Place, topic: str, seen: Seen, sent: Any, kind: Any, received: Any) -> None:
    broker = place.broker()

    @broker.subscriber(topic)
    async def handle(body: kind) -> None:
        seen.put(body)

    async with place.running(broker):
        await broker.publish(sent, topic)
        assert await seen.next() == received


async def test_members_and_items_become_arguments(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()

    @broker.subscriber(topic)
    async def handle(a: int, b: int, *rest: tuple[int, ...]) -> None:  # FastDepends takes the type of all of them
        seen.put((a, b, *rest))

    async with place.running(broker):
        await broker.publish({"a": 1, "b": "2"}, topic)
        assert await seen.next() == (1, 2)
        await broker.publish([1, 2, 3, 4], topic)
        assert await seen.next() == (1, 2, 3, 4)


async def test_dependencies_context_and_headers_are_injected(place: Place, topic: str, seen: Seen) -> None:
    def tenfold(order: Order) -> int:
        return 10 * order.number

    broker = place.broker(dependencies=[Depends(lambda: seen.put("dependency of the broker"))])

    @broker.subscriber(topic, dependencies=[Depends(lambda: seen.put("dependency of the subscriber"))])
    async def handle(
        order: Order,
        message: NSQMessage,
        context: ContextRepo,
        tens: int = Depends(tenfold),
        its_broker: Any = Context("broker"),  # noqa: B008
        tenant: Annotated[str, Header()] = "",
    ) -> None:
        assert context.get("message") is message
        seen.put((order.number, tens, its_broker, tenant, message.correlation_id, type(message), message.attempts))

    async with place.running(broker):
        await broker.publish({"number": 4}, topic, headers={"tenant": "acme"}, correlation_id="c-1")
        assert await seen.next(2) == ["dependency of the broker", "dependency of the subscriber"]
        assert await seen.next() == (4, 40, broker, "acme", "c-1", NSQStreamMessage, 1)


async def test_a_class_in_place_of_an_annotation_is_explained(place: Place, topic: str) -> None:
    broker = place.broker()

    @broker.subscriber(topic)
    async def handle(message: NSQStreamMessage) -> None: ...

    with pytest.raises(SetupError, match="from nsqx.adapters.faststream.annotations import NSQMessage"):
        async with place.running(broker):
            pass


# Publishers


async def test_results_are_published(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()
    third = broker.publisher(f"{topic}_3", headers={"from": "third"})

    @broker.publisher(f"{topic}_1")
    @broker.subscriber(topic)
    @broker.publisher(f"{topic}_2")
    async def handle(body: str) -> Response:
        await third.publish("by hand", headers={"more": "yes"})
        return Response("result", headers={"custom": "1"}, correlation_id="r-1")

    async def record(body: str, message: NSQMessage) -> None:
        headers = {name: value for name, value in message.headers.items() if name in ("custom", "from", "more")}
        seen.put((message.raw_message.topic.removeprefix(topic), body, headers, message.correlation_id == "r-1"))

    for number in (1, 2, 3):
        broker.subscriber(f"{topic}_{number}")(record)

    async with place.running(broker):
        await broker.publish("", topic)
        assert sorted(await seen.next(3)) == [
            ("_1", "result", {"custom": "1"}, True),
            ("_2", "result", {"custom": "1"}, True),
            ("_3", "by hand", {"from": "third", "more": "yes"}, False),
        ]


async def test_a_result_has_the_correlation_id_of_its_message(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()

    @broker.subscriber(topic)
    @broker.publisher(f"{topic}_2")
    async def handle(body: str) -> str:
        return body

    @broker.subscriber(f"{topic}_2")
    async def last(body: str, message: NSQMessage) -> None:
        seen.put(message.correlation_id)

    async with place.running(broker):
        await broker.publish("a", topic, correlation_id="c-7")
        assert await seen.next() == "c-7"


@pytest.mark.parametrize("no_reply", [False, True])
async def test_results_go_to_reply_to(place: Place, topic: str, seen: Seen, no_reply: bool) -> None:
    broker = place.broker()

    @broker.subscriber(topic, no_reply=no_reply)
    @broker.publisher(f"{topic}_end")
    async def handle(body: str) -> str:
        return body.upper()

    @broker.subscriber(f"{topic}_reply")
    @broker.subscriber(f"{topic}_end")
    async def record(body: str, message: NSQMessage) -> None:
        seen.put((message.raw_message.topic, body))

    async with place.running(broker):
        await broker.publish("a", topic, reply_to=f"{topic}_reply")
        expected = [(f"{topic}_end", "A")] if no_reply else [(f"{topic}_end", "A"), (f"{topic}_reply", "A")]
        found = [await seen.next() for _ in expected]
        assert sorted(found) == expected
    assert not seen.has_more()


async def test_a_publisher_can_ask_for_replies(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()
    publisher = broker.publisher(topic, reply_to=f"{topic}_reply")

    @broker.subscriber(topic)
    async def handle(body: str) -> str:
        return body.upper()

    @broker.subscriber(f"{topic}_reply")
    async def reply(body: str) -> None:
        seen.put(body)

    async with place.running(broker):
        await publisher.publish("a")
        assert await seen.next() == "A"


async def test_a_batch_is_several_messages(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()
    publisher = broker.publisher(topic, headers={"from": "publisher"})

    @broker.subscriber(topic)
    async def handle(body: Any, message: NSQMessage) -> None:
        seen.put((body, message.headers.get("from"), message.correlation_id))

    async with place.running(broker):
        await broker.publish_batch("a", {"b": 1}, topic=topic, headers={"from": "broker"}, correlation_id="c")
        await publisher.publish_batch("c", correlation_id="d")
        await broker.publish_batch(topic=topic)
        await publisher.publish_batch()
        assert sorted(await seen.next(3), key=str) == [
            ("a", "broker", "c"),
            ("c", "publisher", "d"),
            ({"b": 1}, "broker", "c"),
        ]


async def test_delays_and_raw_results(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()

    @broker.subscriber(topic)
    @broker.publisher(f"{topic}_2")
    async def handle(body: str) -> NSQResponse:
        return NSQResponse(body, headers={"lost": "yes"}, delay=0.001, raw=True)

    @broker.subscriber(f"{topic}_2")
    async def last(body: bytes, message: NSQMessage) -> None:
        seen.put((body, message.raw_message.body, message.headers))

    async with place.running(broker):
        await broker.publish("a", topic, delay="1ms")
        assert await seen.next() == (b"a", b"a", {})


# Requests


@pytest.mark.parametrize("by", ["broker", "publisher", "publisher of a router"])
async def test_requests_return_the_result(place: Place, topic: str, by: str) -> None:
    broker = place.broker()
    router = NSQRouter()
    publisher = (router if "router" in by else broker).publisher(topic)
    broker.include_router(router)

    @broker.subscriber(topic)
    async def handle(body: str) -> dict[str, str]:
        return {"answer": body.upper()}

    async with place.running(broker):
        sender: Any = broker if by == "broker" else publisher
        reply = await sender.request("a", topic, timeout=TIMEOUT_S, correlation_id="c-1")
        assert (await reply.decode(), reply.correlation_id) == ({"answer": "A"}, "c-1")
        await reply.ack()


async def test_a_request_without_an_answer_times_out(place: Place, topic: str) -> None:
    broker = place.broker()

    @broker.subscriber(topic)
    async def handle(body: str) -> None:
        await asyncio.sleep(0.05)

    async with place.running(broker):
        with pytest.raises(TimeoutError):
            await broker.request("a", topic, timeout=0.01)


async def test_middlewares_see_requests_and_replies(place: Place, topic: str) -> None:
    class Double(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            msg.body *= 2
            return await call_next(msg)

    broker = place.broker(middlewares=[Double])

    @broker.subscriber(topic)
    async def handle(body: str) -> str:
        return body

    async with place.running(broker):
        reply = await broker.request("x", topic, timeout=TIMEOUT_S)
        assert await reply.decode() == "xxxx"


# Routers


async def test_routers_prefix_their_topics(place: Place, topic: str, seen: Seen) -> None:
    inner, outer = NSQRouter(prefix="in_"), NSQRouter(prefix="out_")
    by_hand = inner.publisher(f"{topic}_3")

    @inner.subscriber(topic)
    @inner.publisher(f"{topic}_2")
    async def handle(body: str) -> str:
        await by_hand.publish(body)
        return body

    async def record(body: str, message: NSQMessage) -> None:
        seen.put((message.raw_message.topic, message.raw_message.channel))

    outer.include_router(inner)
    broker = place.broker()
    broker.include_router(outer, prefix="all_")
    for number in (2, 3):
        broker.subscriber(f"all_out_in_{topic}_{number}", "last")(record)
    async with place.running(broker):
        await broker.publish("a", f"all_out_in_{topic}")
        assert sorted(await seen.next(2)) == [(f"all_out_in_{topic}_{number}", "last") for number in (2, 3)]


async def test_routes_and_routers_as_arguments(place: Place, topic: str, seen: Seen) -> None:
    async def double(body: int) -> int:
        return 2 * body

    route = NSQRoute(double, topic, "doubles", max_workers=2, publishers=[NSQPublisher(f"{topic}_2")], msg_timeout=5)
    broker = place.broker(routers=[NSQRouter("r_", [route])])

    @broker.subscriber(f"r_{topic}_2")
    async def last(body: int) -> None:
        seen.put(body)

    async with place.running(broker):
        await broker.publish(21, f"r_{topic}")
        assert await seen.next() == 42


async def test_a_subscriber_of_a_nested_router_starts_later(place: Place, topic: str, seen: Seen) -> None:
    nested = NSQRouter()
    broker = place.broker(routers=[NSQRouter(routers=[nested])])
    async with place.running(broker):
        subscriber = nested.subscriber(topic)
        subscriber(lambda body: seen.put(body))
        await subscriber.start()
        await broker.publish("a", topic)
        assert await seen.next() == "a"
        await subscriber.stop()


def test_only_routers_of_nsq_are_included() -> None:
    with pytest.raises(SetupError, match="dict is no router of NSQ: use NSQRouter"):
        NSQBroker().include_router({})  # type: ignore[arg-type]


def test_routers_and_routes_have_the_options_of_brokers() -> None:
    def options(function: Any) -> set[str]:
        return set(inspect.signature(function).parameters) - {"self"}

    broker, router = NSQBroker(), NSQRouter()
    assert options(broker.subscriber) == options(router.subscriber)
    assert options(broker.subscriber) == options(NSQRoute) - {"call", "publishers"}
    assert options(broker.publisher) == options(router.publisher) == options(NSQPublisher)


# Middlewares, parsers and codecs


async def test_middlewares_run_from_the_outermost_to_the_innermost(place: Place, topic: str, seen: Seen) -> None:
    def named(name: str) -> type[BaseMiddleware]:
        class Named(BaseMiddleware):
            async def on_receive(self) -> None:
                seen.put(f"receive {name}")

            async def consume_scope(self, call_next: Any, msg: Any) -> Any:
                seen.put(f"consume {name}")
                return await call_next(msg)

            async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
                seen.put(f"publish {name}")
                return await call_next(cmd)

            async def after_processed(self, *error: Any) -> bool | None:
                seen.put(f"after {name}")
                return await super().after_processed(*error)

        return Named

    router = NSQRouter(middlewares=[named("router")])
    broker = place.broker(middlewares=[named("broker")])
    broker.add_middleware(named("added"))
    broker.include_router(router)
    publisher = router.publisher(topic)

    @router.subscriber(topic)
    async def handle(body: str) -> None:
        seen.put("handle")

    async with place.running(broker):
        await publisher.publish("a")
        order = ["broker", "added", "router"]
        assert await seen.next(13) == [
            *(f"publish {name}" for name in order),
            *(f"receive {name}" for name in order),
            *(f"consume {name}" for name in order),
            "handle",
            *(f"after {name}" for name in reversed(order)),
        ]


async def test_a_middleware_changes_what_is_published(place: Place, topic: str, seen: Seen) -> None:
    class Stamp(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            assert isinstance(cmd, NSQPublishCommand)
            cmd.batch_bodies = [body.upper() for body in cmd.batch_bodies]
            cmd.add_headers({"stamp": cmd.destination})
            return await call_next(cmd)

    broker = place.broker(middlewares=[Stamp])

    @broker.subscriber(topic)
    async def handle(body: str, message: NSQMessage) -> None:
        seen.put((body, message.headers["stamp"]))

    async with place.running(broker):
        await broker.publish("a", topic)
        await broker.publish_batch("b", "c", topic=topic)
        assert sorted(await seen.next(3)) == [("A", topic), ("B", topic), ("C", topic)]


async def test_an_exception_middleware_answers_for_the_handler(place: Place, topic: str, seen: Seen) -> None:
    errors = ExceptionMiddleware()

    @errors.add_handler(ZeroDivisionError, publish=True)
    def answer(error: ZeroDivisionError) -> str:
        return f"{type(error).__name__}"

    broker = place.broker(middlewares=[errors])

    @broker.subscriber(topic)
    @broker.publisher(f"{topic}_2")
    async def handle(body: int) -> str:
        return str(1 / body)

    @broker.subscriber(f"{topic}_2")
    async def last(body: str) -> None:
        seen.put(body)

    async with place.running(broker):
        await broker.publish(0, topic)
        assert await seen.next() == "ZeroDivisionError"


@pytest.mark.parametrize("level", ["broker", "router", "subscriber", "handler"])
async def test_parsers_and_decoders_are_replaced(place: Place, topic: str, seen: Seen, level: str) -> None:
    async def parser(message: Any, original: Any) -> Any:
        parsed = await original(message)
        parsed.headers["parsed"] = "yes"
        return parsed

    async def decoder(message: Any, original: Any) -> Any:
        return f"<{await original(message)}>"

    replaced = {"parser": parser, "decoder": decoder}
    broker = place.broker(**(replaced if level == "broker" else {}))
    router = NSQRouter(**(replaced if level == "router" else {}))  # type: ignore[arg-type]
    subscriber = router.subscriber(topic, **(replaced if level == "subscriber" else {}))  # type: ignore[arg-type]

    @subscriber(**(replaced if level == "handler" else {}))  # type: ignore[call-overload, untyped-decorator]
    async def handle(body: str, message: NSQMessage) -> None:
        seen.put((body, message.headers["parsed"]))

    broker.include_router(router)
    async with place.running(broker):
        await broker.publish("a", topic)
        assert await seen.next() == ("<a>", "yes")


@pytest.mark.parametrize("level", ["broker", "subscriber"])
async def test_codecs_encode_and_decode(place: Place, topic: str, seen: Seen, level: str) -> None:
    class Reversed(DefaultCodec):
        async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
            return bytes(reversed(msg)), "application/reversed"

        async def decode(self, msg: Any) -> Any:
            return bytes(reversed(msg.body))

    codec = Reversed()
    broker = place.broker(**({"codec": codec} if level == "broker" else {}))

    @broker.subscriber(topic, codec=None if level == "broker" else codec)
    async def handle(body: bytes, message: NSQMessage) -> None:
        seen.put((body, message.body))

    async with place.running(broker):
        await broker.publish(b"abc", topic)
        assert await seen.next() == ((b"abc", b"cba") if level == "broker" else (b"cba", b"abc"))


# The test broker


async def test_the_test_broker_records_calls(topic: str) -> None:
    broker = NSQBroker(channel=CHANNEL)
    publisher = broker.publisher(f"{topic}_2")

    @broker.subscriber(topic)
    async def handle(order: Order) -> None:
        await publisher.publish({"invoice": order.number}, headers={"a": "b"}, correlation_id="c")

    with pytest.raises(SetupError, match="is not under a test broker"):
        handle.mock.assert_not_called()
    async with TestNSQBroker(broker) as tested:
        assert len(tested.subscribers) == 2
        assert await tested.ping(timeout=1)
        await tested.publish(Order(number=3), topic, headers={"x": "y"})
        handle.mock.assert_called_once_with({"number": 3})
        await handle.assert_called_once_with(Order(number=3), headers={"x": "y"}, context={"broker": broker})
        publisher.mock.assert_called_once_with({"invoice": 3})
        await publisher.assert_called_once_with({"invoice": 3}, headers={"a": "b"}, correlation_id="c")
        with pytest.raises(AssertionError, match="body:"):
            await handle.assert_called_once_with({"number": 4})
    assert len(broker.subscribers) == 1


async def test_the_test_broker_raises_what_handlers_raise(topic: str) -> None:
    broker = NSQBroker(channel=CHANNEL)

    @broker.subscriber(topic)
    async def handle(number: int) -> float:
        return 1 / number

    async with TestNSQBroker(broker) as tested:
        with pytest.raises(ZeroDivisionError):
            await tested.publish(0, topic)
        with pytest.raises(SubscriberNotFound, match=f"no subscriber of topic {topic}_2"):
            await tested.request(0, f"{topic}_2")


async def test_the_test_broker_restores_the_broker(nsqd: LocalBroker, topic: str, seen: Seen) -> None:
    broker = Place(nsqd).broker()

    @broker.subscriber(topic)
    async def handle(body: str) -> None:
        seen.put(body)

    async with TestNSQBroker(broker):
        await broker.publish("memory", topic)
        assert await seen.next() == "memory"
    async with broker:
        await broker.start()
        await broker.publish("nsqd", topic)
        assert await seen.next() == "nsqd"


async def test_the_test_broker_can_use_nsqd(nsqd: LocalBroker, topic: str) -> None:
    broker = Place(nsqd).broker()
    publisher = broker.publisher(f"{topic}_2")

    @broker.subscriber(topic)
    async def handle(body: str) -> None:
        await publisher.publish(body.upper())

    async with TestNSQBroker(broker, with_real=True) as tested:
        await tested.publish("a", topic)
        await handle.wait_call(TIMEOUT_S)
        handle.mock.assert_called_once_with("a")
        (fake,) = [each for each in tested.subscribers if each.topic == f"{topic}_2"]
        await fake.calls[0].handler.wait_call(TIMEOUT_S)
        publisher.mock.assert_called_once_with("A")


# Commands


def test_results_of_any_kind_become_commands() -> None:
    plain = NSQPublishCommand.from_cmd(ensure_response(Response(1, headers={"a": 1})).as_publish_command())
    assert (plain.body, plain.headers, plain.delay, plain.raw) == (1, {"a": 1}, None, None)
    batch = NSQPublishCommand.from_cmd(ensure_response([1, 2, 3]).as_publish_command(), batch=True)
    assert batch.batch_bodies == (1, 2, 3)
    response = NSQResponse("a", headers={"h": 1}, correlation_id="c", delay="5s", raw=True).as_publish_command()
    assert NSQPublishCommand.from_cmd(response) is response
    assert (response.delay, response.raw, response.correlation_id) == ("5s", True, "c")
    assert repr(response) == "<NSQPublishCommand topic='' body='a' headers={'h': 1} correlation_id='c'>"


async def test_stop_consume_stops_the_subscriber(place: Place, topic: str, seen: Seen) -> None:
    broker = place.broker()
    subscriber = broker.subscriber(topic)

    @subscriber
    async def handle(body: str) -> None:
        seen.put(body)
        raise StopConsume

    async with place.running(broker):
        if not place.is_real:
            with pytest.raises(StopConsume):
                await broker.publish("a", topic)
            return
        await broker.publish("a", topic)
        assert await seen.next() == "a"
        await subscriber.stop()
        await broker.publish("b", topic)
    assert not seen.has_more()
