"""The state of a client's connections, for readiness probes, and the wait for the first connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nsqx.errors import ConnectFailed, ConnectRefused

START_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """The connections of a producer, consumer or reader at one moment.

    Attributes:
        is_connected: True if at least one nsqd is connected.
        connected_addresses: Addresses of the connected nsqds.
        failures: The last failure of each nsqd that cannot be reached, by address.
        last_error: The last failed attempt to connect, lost connection or failed lookup; None if there was none. It
            stays after the connection is there again.
    """

    is_connected: bool
    connected_addresses: tuple[str, ...]
    failures: Mapping[str, str]
    last_error: Exception | None


def start_failure(errors: list[Exception], *, is_required: bool) -> Exception | None:
    """Return the error of a start whose first attempts all failed, or None if the client continues in the background.

    A client that waits for its nsqds raises only if each of them answered and rejected it.
    """
    text = "; ".join(map(str, errors))
    if errors and all(isinstance(each, ConnectRefused) for each in errors):
        return ConnectRefused(text)
    return ConnectFailed(text) if is_required else None


async def first_attempt(opened: asyncio.Future[None], timeout_s: float) -> Exception | None:
    """Wait until ``opened`` is done, at most ``timeout_s``; return its error, TimeoutError or None."""
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(opened)
    except Exception as error:
        return error
    return None
