"""Answers in pieces: whole if they are short, else streamed in chunks, with a bounded amount of work per turn."""

import asyncio

from loop_turns import Progress
from nsqx.net.pieces import CHUNK_SIZE, answer_in_pieces
from nsqx.net.responses import JSON, Response, StreamedResponse
from nsqx.net.steps import STEPS_PER_TURN, StepScheduler

HEADERS = (("X-Test", "1"),)
PIECE = b"x" * 1000
CHUNK_PIECES = -(-CHUNK_SIZE // len(PIECE))


class Body:
    """Pieces that record their production and their end."""

    def __init__(self, count, piece=PIECE):
        self.produced = 0
        self.is_closed = False
        self.pieces = self._pieces(count, piece)

    def _pieces(self, count, piece):
        try:
            for _ in range(count):
                self.produced += 1
                yield piece
                yield None
        finally:
            self.is_closed = True


async def chunks_of(response):
    return [chunk async for chunk in response.pieces]


async def test_a_short_answer_is_whole():
    response = await answer_in_pieces(StepScheduler(), Body(CHUNK_PIECES - 1).pieces, JSON, HEADERS)
    assert isinstance(response, Response)
    assert (response.status, response.content_type, response.headers) == (200, JSON, HEADERS)
    assert response.body == PIECE * (CHUNK_PIECES - 1)


async def test_an_empty_answer_is_whole():
    assert (await answer_in_pieces(StepScheduler(), Body(0).pieces, JSON)).body == b""


async def test_a_long_answer_is_streamed_in_chunks():
    body = Body(10 * CHUNK_PIECES + 1)
    response = await answer_in_pieces(StepScheduler(), body.pieces, JSON, HEADERS)
    assert isinstance(response, StreamedResponse)
    assert body.produced == CHUNK_PIECES
    head = response.head_for(http10=False, keep_alive=True)
    assert b"\r\nContent-Type: application/json; charset=utf-8\r\nX-Test: 1\r\n" in head
    chunks = await chunks_of(response)
    assert list(map(len, chunks)) == [CHUNK_PIECES * len(PIECE)] * 10 + [len(PIECE)]
    assert b"".join(chunks) == PIECE * body.produced
    assert body.is_closed


async def test_an_answer_of_whole_chunks_has_no_empty_one():
    response = await answer_in_pieces(StepScheduler(), Body(2, bytes(CHUNK_SIZE)).pieces, JSON)
    assert list(map(len, await chunks_of(response))) == [CHUNK_SIZE, CHUNK_SIZE]


async def test_a_closed_stream_closes_the_pieces():
    body = Body(10 * CHUNK_PIECES)
    response = await answer_in_pieces(StepScheduler(), body.pieces, JSON)
    await anext(response.pieces)
    await response.pieces.aclose()
    assert body.is_closed
    assert body.produced == CHUNK_PIECES


async def test_many_streams_do_as_much_work_per_turn_as_one():
    jobs = StepScheduler()
    bodies = [Body(1000, b"x" * 500) for _ in range(5)]

    async def read(body):
        return await chunks_of(await answer_in_pieces(jobs, body.pieces, JSON))

    readers = [asyncio.ensure_future(read(body)) for body in bodies]
    await asyncio.sleep(0)  # each begins at once
    progress = Progress(lambda: sum(body.produced for body in bodies))
    await progress.watch(asyncio.gather(*readers))
    assert sum(body.produced for body in bodies) == 5000
    assert progress.longest <= STEPS_PER_TURN
