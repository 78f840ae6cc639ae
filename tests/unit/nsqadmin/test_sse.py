"""Server-sent events."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from nsqx.errors import HTTPError
from nsqx.nsqadmin import sse
from nsqx.nsqadmin.sse import Viewers, event


def test_an_event_is_three_lines() -> None:
    assert event("delta", {"text": "a\nb\r"}, 7) == b'id: 7\nevent: delta\ndata: {"text":"a\\nb\\r"}\n\n'
    assert event("x", None) == b"event: x\ndata: null\n\n"


class Connection:
    """A fake ASGI server for a response."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.disconnected = asyncio.Event()
        self.something = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, object]) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            assert isinstance(message["body"], bytes)
            self.sent.append(message["body"])
            self.something.set()


SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}}


class Source:
    """Yields events on request and records whether it was closed."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_closed = False

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            while (data := await self.queue.get()) is not None:
                yield data
        finally:
            self.is_closed = True


async def test_events_are_sent_until_their_end() -> None:
    viewers, source, connection = Viewers(5), Source(), Connection()
    for data in (b"one", b"two", None):
        source.queue.put_nowait(data)
    await viewers.response(source.events())(SCOPE, connection.receive, connection.send)
    assert connection.sent == [sse.RETRY, b"one", b"two"]
    assert source.is_closed
    assert viewers.count == 0


async def test_a_disconnected_viewer_ends_the_source() -> None:
    viewers, source, connection = Viewers(5), Source(), Connection()
    response = viewers.response(source.events())
    assert viewers.count == 1
    serving = asyncio.create_task(response(SCOPE, connection.receive, connection.send))
    await connection.something.wait()
    connection.disconnected.set()
    await serving
    assert source.is_closed
    assert viewers.count == 0


async def test_closing_ends_every_stream() -> None:
    viewers, source, connection = Viewers(5), Source(), Connection()
    response = viewers.response(source.events())
    serving = asyncio.create_task(response(SCOPE, connection.receive, connection.send))
    await connection.something.wait()
    viewers.close()
    await serving
    assert source.is_closed
    with pytest.raises(HTTPError, match="TOO_MANY_VIEWERS"):
        viewers.response(source.events())


async def test_keepalives_are_sent_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEPALIVE_S", 0.001)
    viewers, source, connection = Viewers(5), Source(), Connection()
    serving = asyncio.create_task(viewers.response(source.events())(SCOPE, connection.receive, connection.send))
    async with asyncio.timeout(10):
        while sse.KEEPALIVE not in connection.sent:
            connection.something.clear()
            await connection.something.wait()
    source.queue.put_nowait(b"late")
    source.queue.put_nowait(None)
    await serving
    assert connection.sent[-1] == b"late" or b"late" in connection.sent


async def test_the_number_of_streams_is_limited() -> None:
    viewers = Viewers(1)
    first = viewers.response(Source().events())
    with pytest.raises(HTTPError, match="TOO_MANY_VIEWERS"):
        viewers.response(Source().events())
    connection = Connection()
    connection.disconnected.set()
    await first(SCOPE, connection.receive, connection.send)
    assert viewers.count == 0
