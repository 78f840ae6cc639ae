"""Polls the whole cluster once per interval for all viewers, and updates the statistics and the inventory.

Polling takes at most half of the time: if a poll takes longer than half the interval, the next one starts later. A
change made through this nsqadmin brings the next poll forward. Viewers wait for ``next_poll`` and read the statistics;
their number does not affect the poller.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.nsqd import NsqdClient, stats_of
from nsqx.errors import RequestFailed
from nsqx.nsqadmin import trouble
from nsqx.nsqadmin.alerts import NodeDisk
from nsqx.nsqadmin.cluster_stats import ClusterStats
from nsqx.nsqadmin.inventory import Inventory
from nsqx.nsqadmin.inventory_file import InventoryFile, state_path
from nsqx.nsqadmin.node_rows import NodeRows
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqx.cluster.http import HTTPSession
    from nsqx.log import Log
    from nsqx.nsqadmin.options import NsqadminOptions

# Between two polls, even after a change.
_MIN_PAUSE_S = 0.1
_SAVE_S = 30.0
_MAX_PROBED = 20
_FINAL_SAVE_TIMEOUT_S = 2.0
_DISK_KEYS = ("free", "size")


@dataclass(slots=True)
class _Listed:
    """The expected nsqds and topics of the cluster."""

    nodes: dict[str, str] = field(default_factory=dict)
    """The host name of every nsqd, by address; empty if unknown."""
    topics: set[str] = field(default_factory=set)
    """The topics that nsqlookupd knows."""


class Poller:
    """``start`` it in a running event loop, ``stop`` it once."""

    def __init__(self, options: NsqadminOptions, http: HTTPSession, log: Log, capacity: int) -> None:
        self.interval_s = options.poll_interval / NS_PER_S
        self.cluster_stats = ClusterStats(capacity, round(trouble.WINDOW_S / self.interval_s) if self.interval_s else 0)
        self.inventory = Inventory()
        self.node_rows = NodeRows()
        self.problems: list[str] = []
        """The failures of the last poll."""
        self.node_count = 0
        self.duration_s = 0.0
        """The duration of the last poll."""
        self.is_stopped = False
        self.disks: dict[str, NodeDisk] = {}
        """The disk of every nsqd that reports it, at its last answer."""
        self.started_s: dict[str, float] = {}
        """The time at which every nsqd was started, at its last answer."""
        self.after_poll: list[Callable[[bool], None]] = []
        """Called at the end of every poll for which the nsqds are known; the argument is false if none answered."""
        self._options = options
        self._http = http
        self._log = log
        self._polled = asyncio.Event()
        self._adding = asyncio.Lock()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._file = InventoryFile(state_path(options), log)
        self._saving: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._saved_s = 0.0
        self._saved_count = 0

    def start(self) -> None:
        self._file.load(self.inventory)
        if not self._options.nsqlookupd_http_addresses:
            # An address removed from the flags was removed on purpose.
            for address in self.inventory.known.keys() - set(self._options.nsqd_http_addresses):
                del self.inventory.known[address]
        self._saved_count = len(self.inventory.known)
        self._saved_s = time.monotonic()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop polling, wake the waiters for the next poll, and save the inventory."""
        self.is_stopped = True
        self._polled.set()
        if self._task is None:
            return
        tasks = [task for task in (self._task, self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(_FINAL_SAVE_TIMEOUT_S):
                await self._save()
        except TimeoutError:
            self._log.warn("saving the list of nodes timed out")

    def wake(self) -> None:
        """Poll again soon, after a change."""
        self._changed.set()

    def forget(self, address: str) -> bool:
        """Remove an nsqd from the inventory; return False if it is unknown or if the cluster still lists it."""
        if not self.inventory.forget(address):
            return False
        self._start_saving()
        return True

    @property
    def next_poll(self) -> asyncio.Event:
        """The event that is set at the end of the next poll; every poll has its own."""
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
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next poll is due, or until a change and the minimum pause."""
        least_s = max(self.duration_s, _MIN_PAUSE_S)
        await asyncio.sleep(min(least_s, max(self.interval_s, self.duration_s)))
        try:
            async with asyncio.timeout(max(self.interval_s - self.duration_s - least_s, 0)):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def poll(self) -> None:
        """Query every daemon once."""
        self._changed.clear()
        problems: list[str] = []
        try:
            listed = await self._list(problems)
        except RequestFailed as error:
            self._log_new_problems([str(error)])
            self.cluster_stats.skip(time.time())
            return
        self.cluster_stats.open()
        addresses = list(listed.nodes)
        outcomes = await asyncio.gather(*map(self._poll_node, addresses))
        failures = {address: reason for address, reason in zip(addresses, outcomes, strict=True) if reason is not None}
        self.node_count = len(addresses)
        self.node_rows.keep(addresses)
        self._log_new_problems([*problems, *(f"nsqd {address}: {failures[address]}" for address in failures)])
        lost = self._update_inventory(listed, failures)
        is_measured = not addresses or len(failures) < len(addresses)
        if not is_measured:
            self.cluster_stats.skip(time.time())
        else:
            self.cluster_stats.close(set(addresses), time.time(), self.inventory.missing_holdings(), listed.topics)
        self.started_s = {address: self.started_s[address] for address in addresses if address in self.started_s}
        self.disks = {address: self.disks[address] for address in addresses if address in self.disks}
        for each in self.after_poll:
            each(is_measured)
        is_due = time.monotonic() - self._saved_s >= _SAVE_S
        if self._task is not None and (lost or is_due or len(self.inventory.known) != self._saved_count):
            self._start_saving()

    def _update_inventory(self, listed: _Listed, failures: dict[str, str]) -> bool:
        """Record which nsqds are missing and their messages; return True if one was present at the last poll."""
        lost = self.inventory.note(listed.nodes, failures, time.time())
        for address in lost:
            self.inventory.set_holdings(address, self.cluster_stats.holdings(address))
            self._log.warn("%s is missing, %d messages were on it", address, self.inventory.known[address].stranded)
        unlisted = [each["address"] for each in self.inventory.missing if not each["listed"]]
        if unlisted and (self._probing is None or self._probing.done()):
            self._probing = asyncio.create_task(self._probe(unlisted[:_MAX_PROBED]))
        return bool(lost)

    async def _probe(self, addresses: list[str]) -> None:
        """Find the nsqds that run although no nsqlookupd lists them; one at a time, because most requests time out."""
        running = set()
        for address in addresses:
            try:
                await NsqdClient(self._http, address).ping()
            except RequestFailed:
                continue
            running.add(address)
        self.inventory.running = running

    def _start_saving(self) -> None:
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save())

    async def _save(self) -> None:
        self._saved_s = time.monotonic()
        self._saved_count = len(self.inventory.known)
        missing = {each["address"] for each in self.inventory.missing}
        for address in [each for each in self.inventory.known if each not in missing]:
            held = self.cluster_stats.holdings(address)
            if held and address in self.inventory.known:
                self.inventory.set_holdings(address, held)
            # Yield to the event loop: there can be hundreds of nodes with thousands of topics each.
            await asyncio.sleep(0)
        await self._file.save(self.inventory)

    async def _list(self, problems: list[str]) -> _Listed:
        """Return the nsqds and topics of the cluster; raise RequestFailed if no nsqlookupd answers."""
        lookupds = self._options.nsqlookupd_http_addresses
        if not lookupds:
            return _Listed(dict.fromkeys(self._options.nsqd_http_addresses, ""))
        answers = await ask_all(LookupdClient.at(self._http, lookupds), _listed_by)
        if not answers.found:
            raise RequestFailed("\n".join(answers.problems))
        problems.extend(answers.problems)
        listed = _Listed()
        for each in answers.values:
            listed.nodes.update(each.nodes)
            listed.topics |= each.topics
        return listed

    async def _poll_node(self, address: str) -> str | None:
        """Query one nsqd and add its statistics; return the reason of a failure, or None."""
        try:
            # Go's nsqd reports its memory only if it is asked for it.
            answer = await NsqdClient(self._http, address).stats_bytes(include_mem=self.node_rows.is_go(address))
            time_s = time.time()
            # One node at a time, with a yield to the event loop between them.
            async with self._adding:
                stats = stats_of(answer)
                self.cluster_stats.add_node(address, stats["topics"], time_s)
                self._note_disk(address, stats.get("node"))
                self.node_rows.note(address, stats, self.cluster_stats.node(address))
                if isinstance(stats.get("start_time"), int):
                    self.started_s[address] = stats["start_time"]
                await asyncio.sleep(0)
        except RequestFailed as error:
            return error.plain
        except ValueError as error:
            return str(error)
        return None

    def _note_disk(self, address: str, numbers: Any) -> None:
        """Note the disk of an nsqd, if it reports one; Go's nsqd does not."""
        free, size = (numbers.get(f"disk_{each}_bytes") if isinstance(numbers, dict) else None for each in _DISK_KEYS)
        if isinstance(free, int) and isinstance(size, int):
            self.disks[address] = NodeDisk(free, size)
        else:
            self.disks.pop(address, None)

    def _log_new_problems(self, problems: list[str]) -> None:
        """Log new problems only; a node that stays unreachable is logged once."""
        for problem in problems:
            if problem not in self.problems:
                self._log.warn("poll: %s", " ".join(problem.split()))
        self.problems = problems


async def _listed_by(lookupd: LookupdClient) -> _Listed:
    nodes, topics = await asyncio.gather(lookupd.nodes(), lookupd.topics())
    return _Listed({node.http_address: node.hostname for node in nodes}, set(topics))
