"""Sends mutated bytes to every port of a real daemon while a valid client publishes and consumes.

The ``Report`` has no failures if the daemon runs and answers, its log contains no traceback, it closed every
connection, and the valid client lost no message.
"""

import contextlib
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mutation import Mutator, in_pieces
from targets import COMMANDS, HTTP, IDENTIFY, REGISTER, SNAPPY, target_named

from daemons import Daemon
from rawclient import MESSAGE, OK, Message, RawClient
from rawlookup import RawLookupClient, identify

GOOD_TOPIC, GOOD_CHANNEL = "good.client.of.the.bombardment", "ch"
REGISTERED_TOPIC = "registered.during.the.bombardment"
BOMBERS = 3
# The daemon must close a connection within this time after the client has ended its side.
HANG_S = 20.0
_ABRUPT = struct.pack("ii", 1, 0)
_TROUBLE = re.compile(
    r"Traceback|Task exception|exception was never retrieved|panic in|Fatal error|^[A-Za-z.]{1,60}Error\b"
)
# Inputs with this word could make the daemon connect to random addresses.
_LOOKUPD_OPTION = re.compile(rb"lookupd", re.IGNORECASE)


@dataclass
class Report:
    """The number of inputs, the failures, and the messages of the valid client."""

    inputs: int = 0
    failures: list[str] = field(default_factory=list)
    good_sent: int = 0
    good_lost: int = 0
    good_twice: int = 0

    def __str__(self) -> str:
        good = f"; valid client: {self.good_sent} sent, {self.good_lost} lost, {self.good_twice} duplicates"
        return f"{self.inputs} inputs, {len(self.failures)} failures{good if self.good_sent else ''}"


def tcp_inputs(seed: int) -> Iterator[bytes]:
    """Yield byte streams for the TCP port of nsqd, with the magic."""
    return iter(Mutator(seed, target_named("session").seeds(), COMMANDS + IDENTIFY + SNAPPY))


def lookup_inputs(seed: int) -> Iterator[bytes]:
    """Yield byte streams for the TCP port of nsqlookupd."""
    return iter(Mutator(seed, target_named("lookup_session").seeds(), REGISTER))


def http_inputs(seed: int, routes: list[bytes]) -> Iterator[bytes]:
    """Yield valid and invalid HTTP requests for ``routes``."""
    seeds = [
        *(data.replace(b"/echo", route) for data in target_named("http_requests").seeds() for route in routes[:3]),
        *(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % route for route in routes),
        *(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello" % route for route in routes),
    ]
    tokens = (*HTTP, *routes, b"topic=t", b"channel=c", b"&", b"format=json", b"%23ephemeral")
    return (data for data in Mutator(seed, seeds, tokens) if not _LOOKUPD_OPTION.search(data))


class Bomber(threading.Thread):
    """Sends one input per connection, whole or in pieces, and closes or resets the connection."""

    def __init__(self, address: str, inputs: Iterator[bytes], seed: int, goes_on: Callable[[int], bool]) -> None:
        super().__init__(daemon=True)
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._inputs = inputs
        self._random = random.Random(seed)
        self._goes_on = goes_on
        self.sent = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while self._goes_on(self.sent):
            data = next(self._inputs)
            self.sent += 1
            try:
                self._send(data)
            except ConnectionRefusedError:
                self.failures.append(f"the daemon refuses connections after {data!r}")
                return
            except TimeoutError:
                self.failures.append(f"the connection was not closed after {data!r}")
            except OSError:
                pass  # the daemon may close the connection on invalid input

    def _send(self, data: bytes) -> None:
        with socket.create_connection(self._address, HANG_S) as connection:
            for piece in [data] if self._random.random() < 0.5 else in_pieces(data)[:50]:
                if piece:
                    connection.sendall(piece)
            if self._random.random() < 0.3:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABRUPT)
                return
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


class GoodClient:
    """A valid client that publishes and consumes all the time, and counts lost and duplicate messages."""

    def __init__(self, daemon: Daemon) -> None:
        self._address = daemon.tcp_address
        self._stop = threading.Event()
        self._sent: set[bytes] = set()
        self._received: Counter[bytes] = Counter()
        self._consumer = RawClient(self._address)
        assert self._consumer.sub(GOOD_TOPIC, GOOD_CHANNEL) == OK
        self._consumer.rdy(50)
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._watched, args=(work,)) for work in (self._publish, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.failures.append(f"the valid client: {error!r}")
            self._stop.set()

    def _publish(self) -> None:
        with RawClient(self._address) as client:
            number = 0
            while not self._stop.wait(0.002):
                body = b"good message %d" % number
                assert client.pub(GOOD_TOPIC, body) == OK
                self._sent.add(body)
                number += 1

    def _consume(self) -> None:
        while not self._stop.is_set() or len(self._received) < len(self._sent):
            try:
                frame = self._consumer.read_answer(5.0)
            except TimeoutError:
                if self._stop.is_set():
                    return
                continue
            assert frame.type == MESSAGE, frame
            message = Message.decode(frame.data)
            self._received[message.body] += 1
            self._consumer.fin(message.id)
            self._consumer.nop()

    def finish(self, report: Report) -> None:
        """Stop publishing, consume the remaining messages, and add the counts to ``report``."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._consumer.close()
        report.good_sent = len(self._sent)
        report.good_lost = len(self._sent - set(self._received))
        report.good_twice = self._received.total() - len(self._received)
        report.failures += self.failures
        if report.good_lost:
            report.failures.append(f"the valid client lost {report.good_lost} messages")


NSQD_ROUTES = [
    b"/pub?topic=t", b"/mpub?topic=t&binary=true", b"/mpub?topic=t", b"/stats?format=json", b"/stats?topic=t", b"/ping",
    b"/info", b"/metrics", b"/topic/create?topic=t", b"/topic/delete?topic=t", b"/topic/pause?topic=t",
    b"/config/log_level",
    b"/channel/create?topic=t&channel=c", b"/channel/empty?topic=t&channel=c", b"/channel/delete?topic=t&channel=c",
    b"/debug/setblockrate?rate=1", b"/pub?topic=t&defer=100",
]  # fmt: skip
LOOKUPD_ROUTES = [
    b"/lookup?topic=t", b"/topics", b"/channels?topic=t", b"/nodes", b"/ping", b"/info", b"/debug", b"/metrics",
    b"/topic/create?topic=t", b"/topic/delete?topic=t", b"/topic/tombstone?topic=t&node=x:1",
    b"/channel/create?topic=t&channel=c", b"/channel/delete?topic=t&channel=c",
]  # fmt: skip


def bombard_nsqd(daemon: Daemon, seed: int, *, inputs: int = 0, seconds: float = 0.0) -> Report:
    """Send mutated input to both ports of nsqd: ``inputs`` per thread, or for ``seconds``."""
    good = GoodClient(daemon)
    report = _fire(
        (daemon.tcp_address, lambda each: tcp_inputs(each)),
        (daemon.http_address, lambda each: http_inputs(each, NSQD_ROUTES)),
        seed=seed,
        goes_on=_limit(inputs, seconds),
    )
    good.finish(report)
    _judge(daemon, report)
    return report


def bombard_nsqlookupd(daemon: Daemon, seed: int, *, inputs: int = 0, seconds: float = 0.0) -> Report:
    """Send mutated input to both ports of nsqlookupd; a registered nsqd must stay registered."""
    with RawLookupClient(daemon.tcp_address) as peer:
        peer.ask(identify())
        assert peer.ask(b"REGISTER " + REGISTERED_TOPIC.encode() + b"\n") == b"OK"
        report = _fire(
            (daemon.tcp_address, lambda each: lookup_inputs(each)),
            (daemon.http_address, lambda each: http_inputs(each, LOOKUPD_ROUTES)),
            seed=seed,
            goes_on=_limit(inputs, seconds),
        )
        _judge(daemon, report)
        if not report.failures:
            assert peer.ask(b"PING\n") == b"OK"
            producers = daemon.request("GET", "/lookup", query={"topic": REGISTERED_TOPIC}).json()["producers"]
            if len(producers) != 1:
                report.failures.append("a registered nsqd is no longer listed")
    return report


def _limit(inputs: int, seconds: float) -> Callable[[int], bool]:
    deadline_s = time.monotonic() + seconds
    return (lambda sent: sent < inputs) if inputs else (lambda _sent: time.monotonic() < deadline_s)


def _fire(*ports: tuple[str, Callable[[int], Iterator[bytes]]], seed: int, goes_on: Callable[[int], bool]) -> Report:
    bombers = [
        Bomber(address, make_inputs(seed + number), seed + number, goes_on)
        for address, make_inputs in ports
        for number in range(BOMBERS)
    ]
    for bomber in bombers:
        bomber.start()
    for bomber in bombers:
        bomber.join()
    return Report(sum(bomber.sent for bomber in bombers), [text for bomber in bombers for text in bomber.failures])


def _judge(daemon: Daemon, report: Report) -> None:
    """Add a failure if the daemon ended, does not answer, or logged an internal error."""
    if not daemon.running:
        report.failures.append(f"the daemon has ended: {daemon.log[-2000:]}")
        return
    with contextlib.suppress(OSError):
        answer = daemon.request("GET", "/ping")
        if answer.status != 200:
            report.failures.append(f"/ping answers {answer.status} {answer.body!r}")
    report.failures += trouble_in(daemon.log)


def trouble_in(log: str) -> list[str]:
    """Return up to five lines of a log that show an internal error."""
    return [line for line in log.splitlines() if _TROUBLE.search(line)][:5]
