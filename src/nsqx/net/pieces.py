"""Answers that are built in pieces: a short one is sent whole, a longer one is streamed.

A piece is usually a few hundred bytes and takes a few microseconds; None is a step without output. Pieces are joined
into chunks in turns of a StepScheduler, so that a large answer neither blocks the loop nor is in memory as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqx.net.responses import Response, StreamedResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from typing import TypeAlias

    from nsqx.net.requests import AnyResponse
    from nsqx.net.steps import Steps, StepScheduler

    Pieces: TypeAlias = Generator[bytes | None, None, None]

# The size of a chunk. A shorter answer is sent whole, with a Content-Length.
CHUNK_SIZE = 64 * 1024


async def answer_in_pieces(
    jobs: StepScheduler, pieces: Pieces, content_type: str, headers: tuple[tuple[str, str], ...] = ()
) -> AnyResponse:
    """Return 200 with ``pieces`` as its body. Beyond the first chunk they are produced while the answer is sent."""
    first = await jobs.run(_chunk_steps(pieces))
    if len(first) < CHUNK_SIZE:
        return Response(200, first, content_type, headers)
    return StreamedResponse(200, _chunks(jobs, first, pieces), content_type, headers)


async def _chunks(jobs: StepScheduler, first: bytes, pieces: Pieces) -> AsyncGenerator[bytes, None]:
    chunk = first
    try:
        while chunk:
            yield chunk
            await jobs.next_turn()
            chunk = await jobs.run(_chunk_steps(pieces))
    finally:
        pieces.close()


def _chunk_steps(pieces: Pieces) -> Steps[bytes]:
    """Join the next pieces, a step for each, to at least CHUNK_SIZE bytes; a shorter chunk is the last."""
    chunk: list[bytes] = []
    size = 0
    for piece in pieces:
        if piece is not None:
            chunk.append(piece)
            size += len(piece)
            if size >= CHUNK_SIZE:
                break
        yield
    return b"".join(chunk)
