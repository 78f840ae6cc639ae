"""Waiting, on the event loop, for state that nothing announces."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Return once ``condition`` holds, asked again and again."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.01)
