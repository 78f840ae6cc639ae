"""Delays between connection attempts, and the nsqds of a producer. Connections are replaced by fakes."""

import asyncio

from eventually import until
from nsqx.client import pool as pool_module
from nsqx.client.discovery import Discovery
from nsqx.client.options import Options
from nsqx.client.pool import MAX_RETRY_DELAY_S, Pool, retry_delay_s
from nsqx.errors import ConnectFailed, ConnectionClosed, LookupFailed


def test_delays_double_up_to_the_limit():
    for attempt, longest_s in [(0, 0.1), (1, 0.1), (2, 0.2), (5, 1.6), (50, MAX_RETRY_DELAY_S)]:
        delays = [retry_delay_s(0.1, attempt) for _ in range(100)]
        assert all(longest_s / 2 <= delay <= longest_s for delay in delays)
        assert len(set(delays)) > 1


class FakeConnection:
    def __init__(self, address):
        self.address = address
        self.is_closed = False

    def close(self):
        self.is_closed = True


class Network:
    """Fake nsqds and nsqlookupd, and the owner of the pool, which records the calls it gets."""

    def __init__(self, monkeypatch, *up):
        self.up = set(up)
        self.listed = []
        self.opened = asyncio.Queue()
        self.unreachable = asyncio.Queue()
        monkeypatch.setattr(pool_module, "open_connection", self.open_connection)
        monkeypatch.setattr(Discovery, "nodes", self.nodes)

    async def open_connection(self, address, options, *, needs_xpub=False):
        if address not in self.up:
            raise ConnectFailed(f"{address}: down")
        return FakeConnection(address), None

    async def nodes(self):
        if self.listed is None:
            raise LookupFailed("no nsqlookupd")
        return self.listed

    def _on_open(self, connection):
        self.opened.put_nowait(connection)

    def _on_unreachable(self, error):
        self.unreachable.put_nowait(str(error))

    def pool(self, *named, lookupds=()):
        options = Options.of({"lookupd_poll_interval": "10ms", "lookupd_poll_jitter": 0.0})
        return Pool(self, list(named), Discovery(lookupds, options), options, 0.001)


async def test_every_given_nsqd_is_connected_and_reconnected(monkeypatch):
    network = Network(monkeypatch, "a:1", "b:1")
    pool = network.pool("a:1", "b:1")
    pool.start()
    connections = [await network.opened.get() for _ in range(2)]
    assert sorted(each.address for each in connections) == ["a:1", "b:1"]
    pool.lost(connections[0], ConnectionClosed("a:1: gone"))
    again = await network.opened.get()
    assert again.address == connections[0].address
    assert str(pool.last_error) == "a:1: gone"
    assert pool.failures == {}
    await pool.close()
    assert connections[1].is_closed
    assert again.is_closed


async def test_failures_of_all_nsqds_are_reported_together(monkeypatch):
    network = Network(monkeypatch)
    pool = network.pool("a:1", "b:1")
    pool.start()
    for _ in range(3):
        assert sorted((await network.unreachable.get()).split("; ")) == ["a:1: down", "b:1: down"]
    network.up.add("b:1")
    assert (await network.opened.get()).address == "b:1"
    await pool.close()


async def test_nsqds_are_added_and_removed_as_nsqlookupd_lists_them(monkeypatch):
    network = Network(monkeypatch, "a:1", "b:1")
    network.listed = ["a:1"]
    pool = network.pool(lookupds=["l:1"])
    pool.start()
    first = await network.opened.get()
    network.listed = ["b:1"]
    second = await network.opened.get()
    assert (first.address, second.address) == ("a:1", "b:1")
    assert not first.is_closed, "a connected nsqd is kept"
    network.up.remove("a:1")
    pool.lost(first, ConnectionClosed("a:1: gone"))
    await until(lambda: "a:1" not in pool._tasks, "a lost nsqd that is no longer listed is removed")
    await pool.close()


async def test_a_failed_look_up_and_an_empty_list_are_reported(monkeypatch):
    network = Network(monkeypatch)
    network.listed = None
    pool = network.pool(lookupds=["l:1"])
    pool.start()
    assert await network.unreachable.get() == "no nsqlookupd"
    await pool.close()
    network.listed = []
    pool = network.pool(lookupds=["l:1"])
    pool.start()
    assert await network.unreachable.get() == "nsqlookupd lists no nsqd"
    await pool.close()
