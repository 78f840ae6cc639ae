"""Server-sent events: their encoding, and a response that sends them until the viewer or the daemon closes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import orjson
from starlette.responses import StreamingResponse

from nsqx.errors import HTTPError

KEEPALIVE_S = 15.0
KEEPALIVE = b": still here\n\n"
# The browser's delay before it reconnects, in milliseconds.
RETRY = b"retry: 3000\n\n"


def event(name: str, document: object, number: int | None = None) -> bytes:
    """Encode one event; JSON has no line breaks, so that its data is one line."""
    return event_of(name, orjson.dumps(document), number)


def event_of(name: str, data: bytes, number: int | None = None) -> bytes:
    """Encode one event whose data is already JSON."""
    identity = b"" if number is None else b"id: %d\n" % number
    return b"%bevent: %b\ndata: %b\n\n" % (identity, name.encode(), data)


class Viewers:
    """Counts the open streams and ends them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0
        self.is_closing = asyncio.Event()

    def response(self, events: AsyncGenerator[bytes, None]) -> StreamingResponse:
        """Return a response that sends ``events``; raise HTTPError 503 if the limit is reached."""
        if self.count >= self._limit or self.is_closing.is_set():
            raise HTTPError(503, "TOO_MANY_VIEWERS")
        self.count += 1
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return _Stream(self, events, headers)

    def left(self) -> None:
        self.count -= 1

    def close(self) -> None:
        """End every stream."""
        self.is_closing.set()


class _Stream(StreamingResponse):
    """A response that leaves the viewer count when it ends."""

    def __init__(self, viewers: Viewers, events: AsyncGenerator[bytes, None], headers: dict[str, str]) -> None:
        super().__init__(_until(events, viewers.is_closing), headers=headers, media_type="text/event-stream")
        self._viewers = viewers
        self._events = events

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._viewers.left()
            await self._events.aclose()


async def _until(events: AsyncGenerator[bytes, None], closing: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield the events, and keepalive comments in silent periods, until they end or ``closing`` is set."""
    yield RETRY
    ended = asyncio.ensure_future(closing.wait())
    following: asyncio.Task[bytes] | None = None
    try:
        while not closing.is_set():
            if following is None:
                following = asyncio.ensure_future(_next_event(events))
            await asyncio.wait((following, ended), timeout=KEEPALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                try:
                    data = following.result()
                except StopAsyncIteration:
                    return
                following = None
                yield data
            elif not ended.done():
                yield KEEPALIVE
    finally:
        ended.cancel()
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _next_event(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)
