"""Asks the whole cluster once per interval, for all viewers together, and keeps the ledger.

Never more than half of the time is spent asking: where a round takes longer than half the interval, the next one
begins later. Viewers wait for ``next_poll`` and read the ledger; how many there are makes no difference here.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nsqx.nsqadmin.documents import objects
from nsqx.nsqadmin.ledger import Ledger
from nsqx.nsqadmin.nodes import Node
from nsqx.nsqadmin.roll_call import RollCall
from nsqx.nsqadmin.upstream import Upstream, UpstreamFailed, decode

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqadmin.options import Options

_NS_PER_S = 1_000_000_000
_STATS = "stats?format=json&include_clients=false&include_mem=false"


class Poller:
    """``start`` it in a running event loop, ``stop`` it once."""

    def __init__(self, options: Options, upstream: Upstream, log: Log, capacity: int) -> None:
        self.ledger = Ledger(capacity)
        self.interval_s = options.poll_interval / _NS_PER_S
        self.problems: list[str] = []
        """Whom the last poll could not ask, and why."""
        self.roll_call = RollCall()
        self.node_count = 0
        self.duration_s = 0.0
        """How long the last poll took."""
        self.is_stopped = False
        self._options = options
        self._upstream = upstream
        self._log = log
        self._polled = asyncio.Event()
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop asking; whoever waits for the next poll is told."""
        self.is_stopped = True
        self._polled.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def next_poll(self) -> asyncio.Event:
        """Set when the next poll is over; every poll has its own."""
        return self._polled

    async def _run(self) -> None:
        while True:
            started_s = time.monotonic()
            try:
                await self.poll()
            except Exception as error:
                self._log.error("poll failed - %r", error)
            self.duration_s = time.monotonic() - started_s
            polled, self._polled = self._polled, asyncio.Event()
            polled.set()
            await asyncio.sleep(max(self.interval_s - self.duration_s, self.duration_s))

    async def poll(self) -> None:
        """Ask everybody once."""
        problems: list[str] = []
        try:
            addresses = await self._addresses(problems)
        except UpstreamFailed as error:
            self._note([str(error)])
            self.ledger.skip(time.time())
            return
        self.ledger.open()
        outcomes = await asyncio.gather(*map(self._poll_node, addresses))
        failures = {address: reason for address, reason in zip(addresses, outcomes, strict=True) if reason is not None}
        self.node_count = len(addresses)
        self._note([*problems, *failures.values()])
        self.roll_call.note(failures, set(addresses) - failures.keys(), time.time())
        if addresses and len(failures) == len(addresses):
            self.ledger.skip(time.time())
        else:
            self.ledger.close(set(addresses), time.time())

    async def _addresses(self, problems: list[str]) -> list[str]:
        """Where every nsqd is; raises UpstreamFailed if no nsqlookupd tells."""
        lookupds = self._options.nsqlookupd_http_addresses
        if not lookupds:
            return list(dict.fromkeys(self._options.nsqd_http_addresses))
        outcomes = await asyncio.gather(*map(self._nodes_of, lookupds), return_exceptions=True)
        addresses: dict[str, None] = {}
        failures: list[str] = []
        for outcome in outcomes:
            if isinstance(outcome, UpstreamFailed):
                failures.append(str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                addresses.update(dict.fromkeys(outcome))
        if len(failures) == len(lookupds):
            raise UpstreamFailed("\n".join(failures))
        problems.extend(failures)
        return list(addresses)

    async def _nodes_of(self, lookupd: str) -> list[str]:
        document = await self._upstream.get(f"http://{lookupd}/nodes")
        return [Node.decode(each).http_address for each in objects(document, "producers") or ()]

    async def _poll_node(self, address: str) -> str | None:
        """Ask one nsqd and count it in; what went wrong."""
        url = f"http://{address}/{_STATS}"
        try:
            body = await self._upstream.get_bytes(url)
            time_s = time.time()
            # One after the other, and whoever else has something to do in between.
            async with self._turn:
                self.ledger.add_node(address, decode(body), time_s)
                await asyncio.sleep(0)
        except UpstreamFailed as error:
            return str(error)
        except ValueError as error:
            return f"Get {url}: {error}"
        return None

    def _note(self, problems: list[str]) -> None:
        """Log what is new; a node that stays away is not told of at every poll."""
        for problem in problems:
            if problem not in self.problems:
                self._log.warn("poll: %s", " ".join(problem.split()))
        self.problems = problems
