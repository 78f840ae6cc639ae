"""Queries to nsqlookupd for the addresses of nsqds.

One nsqlookupd is asked at a time. If it fails, or does not answer soon, the next one is asked too, and the first answer
counts. So a frozen nsqlookupd delays a client only a little.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from nsqx.errors import LookupFailed, RequestFailed

if TYPE_CHECKING:
    from nsqx.client.options import Options
    from nsqx.cluster.lookupd import LookupdClient
    from nsqx.cluster.node import Node

_MAX_TRIES = 3
# The next nsqlookupd is asked after this time without an answer.
_ASK_NEXT_AFTER_S = 1.0


class Discovery:
    """Queries the nsqlookupds in turn. If one fails or is slow, the next one is asked, up to three."""

    def __init__(self, addresses: Iterable[str], options: Options) -> None:
        self.addresses = list(dict.fromkeys(addresses))
        self._lookupds = _clients(self.addresses, options) if self.addresses else []
        self._next = random.randrange(len(self.addresses)) if self.addresses else 0

    async def producers_of(self, topic: str) -> list[str]:
        """Return the TCP addresses of the nsqds that have ``topic``; raises LookupFailed."""
        return await self._ask(lambda lookupd: lookupd.lookup(topic))

    async def nodes(self) -> list[str]:
        """Return the TCP addresses of all nsqds; raises LookupFailed."""
        return await self._ask(lambda lookupd: lookupd.nodes())

    async def _ask(self, ask: Callable[[LookupdClient], Awaitable[list[Node]]]) -> list[str]:
        failures: list[str] = []
        queries: dict[asyncio.Future[list[Node]], LookupdClient] = {}
        left = min(_MAX_TRIES, len(self._lookupds))
        try:
            while left or queries:
                if left:
                    left -= 1
                    lookupd = self._lookupds[self._next]
                    self._next = (self._next + 1) % len(self._lookupds)
                    queries[asyncio.ensure_future(ask(lookupd))] = lookupd
                wait_s = _ASK_NEXT_AFTER_S if left else None
                done, _ = await asyncio.wait(queries, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for query in done:
                    lookupd = queries.pop(query)
                    try:
                        return [node.tcp_address for node in query.result()]
                    except RequestFailed as error:
                        failures.append(f"{lookupd}: {error.reason}")
        finally:
            for query in queries:
                query.cancel()
        raise LookupFailed("; ".join(failures))


def _clients(addresses: list[str], options: Options) -> list[LookupdClient]:
    # Imported here because a client without nsqlookupd sends no HTTP requests.
    from nsqx.client.http_credentials import http_credentials
    from nsqx.cluster.http import HTTPSession
    from nsqx.cluster.lookupd import LookupdClient, check_lookupd_address

    for address in addresses:
        check_lookupd_address(address)
    timeout_s = options.lookupd_poll_timeout
    return LookupdClient.at(HTTPSession(http_credentials(options), timeout_s, timeout_s), addresses)
