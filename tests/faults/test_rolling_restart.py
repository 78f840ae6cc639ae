"""Three nsqds are restarted one after the other, under load: no acknowledged message is lost.

Producers publish to any node that accepts the message. Consumers query nsqlookupd to follow the nodes, which come back
on other ports. A message that a node took without an answer is published again elsewhere, and one that was in flight
when its node stopped is delivered again: duplicates are counted, not forbidden. Run with -s to see the counts.
"""

import itertools
import json
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest

from daemons import Daemon, Fleet, has_go, program_command, start_nsqd, wait_until
from rawclient import OK, ConnectionEnded, RawClient

NODES = 3
PRODUCERS = 3
MESSAGES_BETWEEN = 300
# How many messages a consumer keeps in flight before it finishes them, so that some are in flight at every stop.
HELD = 20
POLL_INTERVAL_S = 0.05
TOPIC = "orders"
SOME_TIME_S = 40.0


class Node:
    """One nsqd that can be restarted with its data; ``address`` is None while it is down."""

    def __init__(self, lookupd: Daemon, data_path: Path) -> None:
        self._flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        self._data_path = data_path
        data_path.mkdir()
        self.start()

    def start(self) -> None:
        self.daemon = start_nsqd("nsqx", self._flag, data_path=self._data_path)
        self.address: str | None = self.daemon.tcp_address

    def stop(self) -> None:
        assert self.daemon.stop() == 0, self.daemon.log
        self.address = None


class Producer(threading.Thread):
    """Publishes numbered messages, each repeatedly until a node has acknowledged it."""

    def __init__(self, name: str, nodes: list[Node], stopping: threading.Event) -> None:
        super().__init__(name=name)
        self._nodes = nodes
        self._stopping = stopping
        self._clients: dict[str, RawClient] = {}
        self.published: list[str] = []
        self.retried = 0

    def run(self) -> None:
        addresses = self._live_addresses()
        for number in itertools.count():
            if self._stopping.is_set():
                break
            body = f"{self.name}.{number}"
            while not self._publish(next(addresses), body):
                self.retried += 1
            self.published.append(body)
        for client in self._clients.values():
            client.close()

    def _live_addresses(self) -> Iterator[str]:
        for node in itertools.cycle(self._nodes):
            address = node.address
            if address is not None:
                yield address

    def _publish(self, address: str, body: str) -> bool:
        try:
            if address not in self._clients:
                self._clients[address] = RawClient(address)
            return self._clients[address].pub(TOPIC, body.encode()) == OK
        except (OSError, ConnectionEnded):
            if address in self._clients:
                self._clients.pop(address).close()
            return False


class Consumer(threading.Thread):
    """Finishes messages of one node in groups, until the connection ends."""

    def __init__(self, address: str, received: Counter[str]) -> None:
        super().__init__(daemon=True)
        self.client = RawClient(address)
        self._received = received
        self.start()

    def run(self) -> None:
        held: list[bytes] = []
        try:
            assert self.client.sub(TOPIC, "ch") == OK
            self.client.rdy(2 * HELD)
            while True:
                try:
                    message = self.client.read_message(POLL_INTERVAL_S)
                    self._received[message.body.decode()] += 1
                    held.append(message.id)
                    is_time = len(held) == HELD
                except TimeoutError:
                    is_time = True
                while is_time and held:
                    self.client.fin(held.pop())
        except (OSError, ConnectionEnded):
            self.client.close()


class Discovery(threading.Thread):
    """Keeps a consumer connected to every node that nsqlookupd lists."""

    def __init__(self, lookupd: Daemon) -> None:
        super().__init__()
        self._url = f"http://{lookupd.http_address}/lookup?topic={TOPIC}"
        self._stopping = threading.Event()
        self._consumers: dict[str, Consumer] = {}
        self.received: Counter[str] = Counter()
        self.addresses: set[str] = set()

    def run(self) -> None:
        while not self._stopping.wait(POLL_INTERVAL_S):
            for address in self._producers():
                consumer = self._consumers.get(address)
                if consumer is None or not consumer.is_alive():
                    self._consume(address)

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        for consumer in self._consumers.values():
            consumer.client.half_close()
        for consumer in self._consumers.values():
            consumer.join()

    def _producers(self) -> list[str]:
        try:
            with urllib.request.urlopen(self._url, timeout=SOME_TIME_S) as answer:
                found = json.load(answer)["producers"]
        except HTTPError as error:
            error.close()
            return []
        return [f"{each['broadcast_address']}:{each['tcp_port']}" for each in found]

    def _consume(self, address: str) -> None:
        try:
            self._consumers[address] = Consumer(address, self.received)
            self.addresses.add(address)
        except OSError:
            pass  # nsqlookupd will remove the node from its list


@contextmanager
def nsq_tail(lookupd: Daemon, output: Path) -> Iterator[None]:
    """Run Go's nsq_tail, if it is installed, on its own channel: it writes each body on a line."""
    if not has_go():
        yield
        return
    flags = [f"--topic={TOPIC}", "--channel=tail", f"--lookupd-http-address={lookupd.http_address}"]
    flags.append("--consumer-opt=lookupd_poll_interval,100ms")
    command = [*program_command("go", "nsq_tail"), *flags]
    with output.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL) as process:
        try:
            yield
            process.terminate()
            process.wait(SOME_TIME_S)
        finally:
            process.kill()


def lines_of(output: Path) -> Counter[str]:
    return Counter(output.read_text().split("\n")[:-1]) if output.exists() else Counter()


@pytest.mark.timeout(180)
def test_a_rolling_restart_loses_no_acknowledged_message(fleet: Fleet, tmp_path: Path) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    nodes = [Node(lookupd, tmp_path / f"node{number}") for number in range(NODES)]
    stopping = threading.Event()
    producers = [Producer(f"p{number}", nodes, stopping) for number in range(PRODUCERS)]
    discovery = Discovery(lookupd)
    tail_output = tmp_path / "tail"
    try:
        for node in nodes:
            wait_until(lambda at=node: is_registered(lookupd, at), "the node is registered")
        for channel in ("ch", "tail"):
            nodes[0].daemon.post("/topic/create", topic=TOPIC)
            nodes[0].daemon.post("/channel/create", topic=TOPIC, channel=channel)
        wait_until(lambda: len(channels(lookupd)) == 2, "the channels are registered")
        with nsq_tail(lookupd, tail_output):
            discovery.start()
            for producer in producers:
                producer.start()
            for node in nodes:
                wait_for_more(producers, discovery)
                node.stop()
                wait_for_more(producers, discovery)
                node.start()
                wait_until(lambda at=node: at.address in discovery.addresses, "the consumers are connected again")
            wait_for_more(producers, discovery)
            stopping.set()
            for producer in producers:
                producer.join()
            published = {body for producer in producers for body in producer.published}
            wait_until(lambda: published <= discovery.received.keys(), "every message has come", SOME_TIME_S)
            if has_go():
                wait_until(lambda: published <= lines_of(tail_output).keys(), "nsq_tail has them too", SOME_TIME_S)
    finally:
        stopping.set()
        for producer in producers:
            if producer.ident is not None:
                producer.join()
        if discovery.ident is not None:
            discovery.stop()
        for node in nodes:
            node.daemon.stop()
    retried = sum(producer.retried for producer in producers)
    print(f"\npublished {len(published)} messages, {retried} tries failed and repeated")
    received = {"our channel": discovery.received} | ({"nsq_tail": lines_of(tail_output)} if has_go() else {})
    for name, bodies in received.items():
        lost = published - bodies.keys()
        print(f"{name}: received {len(published & bodies.keys())}, lost {len(lost)}, duplicated {duplicates(bodies)}")
        assert not lost
        assert bodies.keys() <= published, "only published messages are delivered"
    assert all(len(producer.published) == len(set(producer.published)) for producer in producers)


def duplicates(bodies: Counter[str]) -> int:
    return bodies.total() - len(bodies)


def is_registered(lookupd: Daemon, node: Node) -> bool:
    found = lookupd.request("GET", "/nodes").json()["producers"]
    return node.daemon.tcp_port in {each["tcp_port"] for each in found}


def channels(lookupd: Daemon) -> list[str]:
    names: list[str] = lookupd.request("GET", f"/channels?topic={TOPIC}").json()["channels"]
    return names


def wait_for_more(producers: list[Producer], discovery: Discovery) -> None:
    """Wait until every producer has published, and the consumers received, some more."""
    published = [len(producer.published) for producer in producers]
    received = len(discovery.received)

    def have_more() -> bool:
        more = [len(producer.published) - before for producer, before in zip(producers, published, strict=True)]
        return min(more) >= MESSAGES_BETWEEN and len(discovery.received) - received >= MESSAGES_BETWEEN

    wait_until(have_more, "messages flow", SOME_TIME_S)
