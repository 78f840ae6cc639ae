"""The connections of a producer.

The pool keeps one connection to each nsqd, reopens lost connections, and updates the list of nsqds from nsqlookupd.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Protocol

from nsqx.client.handshake import open_connection
from nsqx.client.health import start_failure
from nsqx.errors import ConnectFailed, LookupFailed

if TYPE_CHECKING:
    from nsqx.client.connection import NsqdConnection
    from nsqx.client.discovery import Discovery
    from nsqx.client.options import Options

_log = logging.getLogger("nsqx.client")

MAX_RETRY_DELAY_S = 5.0


class PoolOwner(Protocol):
    """The callbacks of a pool."""

    def _on_open(self, connection: NsqdConnection) -> None:
        """Handle a new connection, which has no receiver yet."""

    def _on_unreachable(self, error: Exception) -> None:
        """Handle a failed connection attempt to every known nsqd while none is connected."""


def retry_delay_s(first_s: float, attempt: int) -> float:
    """Return the delay before another attempt.

    The delay doubles with each attempt, up to MAX_RETRY_DELAY_S. It is multiplied by a random factor of 0.5 to 1.
    """
    longest_s = min(first_s * float(1 << min(max(attempt - 1, 0), 16)), MAX_RETRY_DELAY_S)
    return longest_s * (0.5 + 0.5 * random.random())


class Pool:
    """Keeps a connection to every nsqd that is configured or discovered."""

    def __init__(
        self,
        owner: PoolOwner,
        addresses: list[str],
        discovery: Discovery,
        options: Options,
        first_delay_s: float,
        *,
        needs_xpub: bool = False,
    ) -> None:
        self._owner = owner
        self._named = addresses
        self._discovery = discovery
        self._options = options
        self._first_delay_s = first_delay_s
        self._needs_xpub = needs_xpub
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._connections: dict[str, NsqdConnection] = {}
        self._lost: dict[str, asyncio.Event] = {}
        # Failures since the last report, and the last failure of each nsqd.
        self._failed: dict[str, Exception] = {}
        self._last_failures: dict[str, Exception] = {}
        self._lookup_failure: Exception | None = None
        self.last_error: Exception | None = None
        self._poll: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to connect and to poll nsqlookupd."""
        for address in self._named:
            self._add(address)
        if self._discovery.addresses:
            self._poll = asyncio.create_task(self._keep_polling(), name="nsqx producer discovery")

    def lost(self, connection: NsqdConnection, error: Exception) -> None:
        """Open a new connection in place of ``connection``, which ended because of ``error``."""
        self.last_error = error
        event = self._lost.get(connection.address)
        if event is not None:
            event.set()

    @property
    def failures(self) -> dict[str, str]:
        """The last failure of each nsqd that cannot be reached, by address."""
        return {address: str(error) for address, error in self._last_failures.items()}

    def obstacle(self) -> str:
        """Describe why no nsqd is connected, or what is in progress."""
        if not self._tasks:
            lookupds = ", ".join(self._discovery.addresses)
            return str(self._lookup_failure or f"waiting for nsqlookupd {lookupds}")
        return "; ".join(str(self._last_failures.get(each, f"{each}: connecting")) for each in self._tasks)

    async def close(self) -> None:
        """Close every connection."""
        tasks = [*self._tasks.values(), *filter(None, [self._poll])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()

    def _add(self, address: str) -> None:
        if address not in self._tasks:
            self._lost[address] = asyncio.Event()
            self._tasks[address] = asyncio.create_task(self._keep(address), name=f"nsqx producer {address}")

    def _remove(self, address: str) -> None:
        _log.info("%s: disconnected and no longer listed by nsqlookupd", address)
        self._tasks.pop(address).cancel()
        self._lost.pop(address)
        self._failed.pop(address, None)
        self._last_failures.pop(address, None)

    async def _keep(self, address: str) -> None:
        """Keep a connection to ``address`` open until cancelled."""
        attempt = 0
        while True:
            try:
                connection, _ = await open_connection(address, self._options, needs_xpub=self._needs_xpub)
            except ConnectFailed as error:
                attempt += 1
                if attempt == 1:
                    _log.warning("cannot connect to nsqd %s", error)
                self._note_failure(address, error)
                await asyncio.sleep(retry_delay_s(self._first_delay_s, attempt))
                continue
            attempt = 0
            self._failed.pop(address, None)
            self._last_failures.pop(address, None)
            lost = self._lost[address]
            lost.clear()
            self._connections[address] = connection
            self._owner._on_open(connection)
            await lost.wait()
            self._connections.pop(address, None)

    def _note_failure(self, address: str, error: Exception) -> None:
        self._failed[address] = self._last_failures[address] = self.last_error = error
        if not self._connections and len(self._failed) == len(self._tasks):
            self._report_unreachable()

    def _report_unreachable(self) -> None:
        errors = list(self._failed.values())
        self._failed.clear()
        self._owner._on_unreachable(start_failure(errors, is_required=True) or ConnectFailed("no nsqd"))

    async def _keep_polling(self) -> None:
        options = self._options
        while True:
            try:
                found = await self._discovery.nodes()
            except LookupFailed as error:
                _log.warning("cannot find nsqd: %s", error)
                self._lookup_failure = self.last_error = error
                if not self._tasks:
                    self._owner._on_unreachable(error)
            else:
                self._adopt(found)
            pause_s = options.lookupd_poll_interval
            if not self._tasks:
                pause_s = min(pause_s, MAX_RETRY_DELAY_S)
            await asyncio.sleep(pause_s * (1 + options.lookupd_poll_jitter * random.random()))

    def _adopt(self, found: list[str]) -> None:
        for address in found:
            self._add(address)
        if not found and not self._tasks:
            error = self._lookup_failure = self.last_error = ConnectFailed("nsqlookupd lists no nsqd")
            self._owner._on_unreachable(error)
        # Keep connected nsqds that are not listed: a restarted nsqlookupd has an empty list at first.
        for address in [each for each in self._tasks if each not in (*found, *self._named, *self._connections)]:
            self._remove(address)
