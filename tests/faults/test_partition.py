"""nsqlookupd unreachable, stuck, slow, corrupted in transit, restarted or inconsistent: messages flow, views recover.

nsqd reaches nsqlookupd through a proxy. It sends a PING every 100 ms, not every 15 s, to detect failures soon.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import pytest

from daemons import Daemon, Fleet, wait_until
from lookup_timeouts import start_nsqd_with_lookup_timeouts
from partition_proxy import Proxy
from rawclient import OK, RawClient

PING_INTERVAL_S = 0.1
# nsqd waits up to 15 s before it retries an nsqlookupd that was unreachable for long.
HEALED_WITHIN_S = 30.0

Start = Callable[..., Daemon]


@pytest.fixture
def start_nsqd() -> Iterator[Start]:
    """A function that starts an nsqd which registers at some addresses; all end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*lookupd_addresses: str) -> Daemon:
            flags = [f"--lookupd-tcp-address={address}" for address in lookupd_addresses]
            return stack.enter_context(start_nsqd_with_lookup_timeouts(*flags, PING_INTERVAL_S=PING_INTERVAL_S))

        yield start


@pytest.fixture
def lookupd(fleet: Fleet) -> Daemon:
    return fleet.nsqlookupd("nsqx")


@pytest.fixture
def proxy(lookupd: Daemon) -> Iterator[Proxy]:
    with Proxy(lookupd.tcp_address) as way:
        yield way


class Traffic:
    """A producer and a consumer of one channel that run during the block; each message must arrive."""

    def __init__(self, daemon: Daemon, topic: str) -> None:
        self._daemon = daemon
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_more()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if exc is None:
                self.wait_for_more()
        finally:
            self._stopping.set()
            self._thread.join()

    def wait_for_more(self) -> None:
        """Wait until ten more messages have been delivered."""
        before = self.count
        wait_until(lambda: self.count >= before + 10 or not self._thread.is_alive(), "messages flow")
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with RawClient(self._daemon.tcp_address) as consumer, RawClient(self._daemon.tcp_address) as producer:
                assert consumer.sub(self._topic, "traffic") == OK
                consumer.rdy(1)
                while not self._stopping.wait(0.005):
                    assert producer.pub(self._topic, b"%d" % self.count) == OK
                    message = consumer.read_message()
                    assert message.body == b"%d" % self.count
                    consumer.fin(message.id)
                    self.count += 1
        except BaseException as failure:
            self._failure = failure


def producers(lookupd: Daemon, topic: str) -> list[int]:
    """Return the HTTP ports of the nsqds with a topic, as listed by nsqlookupd; one listed twice counts twice."""
    response = lookupd.request("GET", f"/lookup?topic={topic}")
    return sorted(each["http_port"] for each in response.json()["producers"]) if response.status == 200 else []


def wait_for_producers(lookupd: Daemon, topic: str, *daemons: Daemon) -> None:
    expected = sorted(daemon.http_port for daemon in daemons)
    wait_until(lambda: producers(lookupd, topic) == expected, f"{topic} is at {expected}", HEALED_WITHIN_S)


def test_topics_created_while_disconnected_are_registered_later(
    lookupd: Daemon, proxy: Proxy, start_nsqd: Start, topic: str
) -> None:
    nsqd = start_nsqd(proxy.address)
    with Traffic(nsqd, topic) as traffic:
        wait_for_producers(lookupd, topic, nsqd)
        proxy.cut()
        wait_for_producers(lookupd, topic)
        traffic.wait_for_more()
        nsqd.wait_for_log(r"LOOKUPD\(.*refused")
        nsqd.post("/pub", b"published while disconnected", topic=f"{topic}.new")
        nsqd.post("/channel/create", topic=f"{topic}.new", channel="ch")
        traffic.wait_for_more()
        proxy.heal()
        for name in (topic, f"{topic}.new"):
            wait_for_producers(lookupd, name, nsqd)
    assert nsqd.channel_stats(f"{topic}.new", "ch")["depth"] == 1
    assert lookupd.request("GET", f"/channels?topic={topic}.new").json() == {"channels": ["ch"]}


def test_topics_deleted_while_disconnected_are_unregistered_later(
    lookupd: Daemon, proxy: Proxy, start_nsqd: Start, topic: str
) -> None:
    nsqd = start_nsqd(proxy.address)
    for name in (topic, f"{topic}.deleted"):
        nsqd.post("/topic/create", topic=name)
        wait_for_producers(lookupd, name, nsqd)
    proxy.cut()
    nsqd.post("/topic/delete", topic=f"{topic}.deleted")
    proxy.heal()
    wait_for_producers(lookupd, topic, nsqd)
    assert producers(lookupd, f"{topic}.deleted") == []


def test_a_stuck_connection_is_replaced(lookupd: Daemon, proxy: Proxy, start_nsqd: Start, topic: str) -> None:
    """No connection is refused or closed, and no answer comes. nsqd is not listed twice afterwards."""
    nsqd = start_nsqd(proxy.address)
    with Traffic(nsqd, topic) as traffic:
        wait_for_producers(lookupd, topic, nsqd)
        proxy.blackhole()
        traffic.wait_for_more()
        nsqd.wait_for_log(r"LOOKUPD\(.*ERROR|ERROR: LOOKUPD\(")
        nsqd.post("/topic/create", topic=f"{topic}.new")
        assert producers(lookupd, topic) == [nsqd.http_port], "nsqlookupd does not notice the failure"
        traffic.wait_for_more()
        proxy.heal()
        for name in (topic, f"{topic}.new"):
            wait_for_producers(lookupd, name, nsqd)


def test_a_slow_network_is_retried(lookupd: Daemon, proxy: Proxy, start_nsqd: Start, topic: str) -> None:
    """Above nsqd's timeout it retries until the network is faster. A small delay does not matter."""
    proxy.delay(0.8)
    nsqd = start_nsqd(proxy.address)
    with Traffic(nsqd, topic) as traffic:
        nsqd.wait_for_log(r"ERROR: LOOKUPD\(")
        traffic.wait_for_more()
        proxy.delay(0.05)
        wait_for_producers(lookupd, topic, nsqd)
        nsqd.post("/channel/create", topic=topic, channel="ch")
        wait_until(
            lambda: "ch" in lookupd.request("GET", f"/channels?topic={topic}").json()["channels"],
            "the channel is registered",
        )


@pytest.mark.parametrize(
    "corruption",
    [
        lambda data: bytes(byte ^ 0xFF for byte in data),
        lambda data: data[:-1],
        lambda data: data + b"\x00",
        lambda data: b"\x7f" + data[1:],
        lambda data: data.replace(b"OK", b"E_INVALID"),
    ],
    ids=["flipped bits", "missing bytes", "added bytes", "wrong sizes", "refusals"],
)
def test_corrupted_traffic_is_retried(
    corruption: Callable[[bytes], bytes], lookupd: Daemon, proxy: Proxy, start_nsqd: Start, topic: str
) -> None:
    nsqd = start_nsqd(proxy.address)
    with Traffic(nsqd, topic) as traffic:
        wait_for_producers(lookupd, topic, nsqd)
        proxy.corrupt(corruption)
        nsqd.wait_for_log(r"ERROR: LOOKUPD\(")
        traffic.wait_for_more()
        proxy.heal()
        wait_for_producers(lookupd, topic, nsqd)
    assert "internal error" not in nsqd.log


def test_a_restarted_nsqlookupd_is_registered_with_again(fleet: Fleet, start_nsqd: Start, topic: str) -> None:
    """nsqlookupd keeps no state; every nsqd registers everything again."""
    lookupd = fleet.nsqlookupd("nsqx")
    nodes = [start_nsqd(lookupd.tcp_address) for _ in range(3)]
    for node in nodes:
        node.post("/topic/create", topic=topic)
        node.post("/channel/create", topic=topic, channel="ch")
    with Traffic(nodes[0], topic):
        wait_for_producers(lookupd, topic, *nodes)
        lookupd.kill()
        addresses = [f"--tcp-address={lookupd.tcp_address}", f"--http-address={lookupd.http_address}"]
        again = fleet.nsqlookupd("nsqx", *addresses)
        wait_for_producers(again, topic, *nodes)
        assert sorted(again.request("GET", f"/channels?topic={topic}").json()["channels"]) == ["ch", "traffic"]


def test_two_nsqlookupds_with_different_views_agree_after_recovery(fleet: Fleet, start_nsqd: Start, topic: str) -> None:
    """Each node reaches only one nsqlookupd. Asking both shows all nodes; after recovery each knows all."""
    lookupds = [fleet.nsqlookupd("nsqx") for _ in range(2)]
    with contextlib.ExitStack() as stack:
        ways = [[stack.enter_context(Proxy(each.tcp_address)) for each in lookupds] for _ in range(2)]
        ways[0][1].cut()
        ways[1][0].cut()
        nodes = [start_nsqd(*(way.address for way in ways[number])) for number in range(2)]
        for number, node in enumerate(nodes):
            node.post("/topic/create", topic=topic)
            node.post("/channel/create", topic=topic, channel=f"of_{number}")
            wait_for_producers(lookupds[number], topic, node)
        third = start_nsqd(*(each.tcp_address for each in lookupds))
        for each in lookupds:
            wait_until(lambda at=each: third.http_port in node_ports(at), "the third node is registered")
        third.post("/pub", b"first", topic=topic)
        for number in range(2):
            wait_until(lambda name=f"of_{number}": depth(third, topic, name) == 1, "every channel has the message")
        for row in ways:
            for way in row:
                way.heal()
        for each in lookupds:
            wait_for_producers(each, topic, *nodes, third)


def node_ports(lookupd: Daemon) -> set[int]:
    return {node["http_port"] for node in lookupd.request("GET", "/nodes").json()["producers"]}


def depth(daemon: Daemon, topic: str, channel: str) -> Any:
    entry = daemon.channel_stats(topic, channel)
    return entry["depth"] if entry else None
