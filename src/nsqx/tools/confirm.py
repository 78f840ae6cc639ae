"""Questions on a terminal that are answered with yes or no."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any


async def confirm(question: str, stopping: asyncio.Event) -> bool:
    """Ask on stderr, and return True if the next line of stdin begins with y; False at its end or on a signal."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        if not answered.done():
            answered.set_result(os.read(sys.stdin.fileno(), 1024))

    loop.add_reader(sys.stdin.fileno(), read)
    stopped = loop.create_task(stopping.wait())
    waiting: list[asyncio.Future[Any]] = [answered, stopped]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(sys.stdin.fileno())
        stopped.cancel()
    answer = answered.result() if answered.done() else b""
    if not answer.endswith(b"\n"):
        sys.stderr.write("\n")
    return answer.strip().lower().startswith(b"y")
