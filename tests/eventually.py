"""Waits on the event loop until a condition is true."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Call ``condition`` until it is true; raise AssertionError after the timeout."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.01)
