"""The routes that begin, end and watch a drain: POST /drain, POST /undrain, GET /drain."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, TypedDict

from nsqx.errors import HTTPError
from nsqx.net.responses import Response, json_response

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from nsqx.net.requests import Request
    from nsqx.net.router import Router
    from nsqx.nsqd.broker import Broker

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
# The answer names at most so many topics and channels.
MAX_REMAINDERS = 100


class RemainderAnswer(TypedDict):
    """The messages that a channel still has."""

    topic: str
    channel: Annotated[str, "Empty if no channel has the messages."]
    depth: int
    in_flight: int
    deferred: int
    consumers: int


class DrainAnswer(TypedDict):
    """The state of a drain."""

    draining: bool
    since: Annotated[int, "Seconds since 1970; 0 if nsqd is not draining."]
    registered: Annotated[bool, "False if nsqd has left nsqlookupd because of the drain."]
    messages: Annotated[
        int, "All messages: waiting, in flight and deferred. A deferred message counts in each channel."
    ]
    removable: Annotated[bool, "True if nsqd is draining and has no messages."]
    remaining: Annotated[list[RemainderAnswer], f"The channels with most messages, at most {MAX_REMAINDERS}."]


def add_drain_routes(router: Router, broker: Broker) -> None:
    """Add the routes of this module."""
    api = DrainAPI(broker)
    router.add("GET", "/drain", api.show)
    router.add("POST", "/drain", api.begin)
    router.add("POST", "/undrain", api.end)


class DrainAPI:
    """Begins, ends and shows the drain of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def begin(self, request: Request) -> Awaitable[Response]:
        """Begin to drain; a repeated request changes only whether nsqd stays registered."""
        keeps_registered = _BOOLEANS.get(request.query.get("stay_registered", "false"))
        if keeps_registered is None:
            raise HTTPError(400, "INVALID_STAY_REGISTERED")
        drain = self._broker.drain
        self._broker.turn.run(partial(drain.begin, keeps_registered=keeps_registered))
        return self._answer()

    def end(self, _request: Request) -> Awaitable[Response]:
        """End the drain."""
        self._broker.turn.run(self._broker.drain.end)
        return self._answer()

    def show(self, _request: Request) -> Awaitable[Response]:
        """Answer with the state of the drain and what is left."""
        return self._answer()

    async def _answer(self) -> Response:
        drain = self._broker.drain
        remainders = await drain.remainders()
        remainders.sort(key=lambda each: (-each.total, each.topic, each.channel))
        answer: DrainAnswer = {
            "draining": drain.is_active,
            "since": drain.start_s,
            "registered": not drain.is_active or drain.keeps_registered,
            "messages": sum(each.total for each in remainders),
            "removable": drain.is_active and not remainders,
            "remaining": [
                RemainderAnswer(
                    topic=each.topic,
                    channel=each.channel,
                    depth=each.depth,
                    in_flight=each.in_flight,
                    deferred=each.deferred,
                    consumers=each.consumers,
                )
                for each in remainders[:MAX_REMAINDERS]
            ],
        }
        return json_response(answer)
