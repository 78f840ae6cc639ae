"""Conversions between the stores of a running nsqd, under load: nothing that was acknowledged is lost.

The slow test kills nsqd during conversions. NSQX_KILLS sets how often.
"""

import contextlib
import os
import random
import threading
import time
from pathlib import Path

import pytest

from daemons import Daemon, Fleet, wait_until
from rawclient import OK, ConnectionEnded, RawClient

CHANNELS = ("all", "half")
KILLS = int(os.environ.get("NSQX_KILLS", "60"))
# Publishes are on disk before the OK, so that kill -9 loses nothing in the classic store either.
FLAGS = (
    "--mem-queue-size=0",
    "--msg-timeout=2s",
    "--max-bytes-per-file=200000",
    "--log-memory=1048576",
    "--commit-bytes=1048576",
)


class Load:
    """Publishers and consumers that reconnect until ``stop``."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.address = ""
        self.acknowledged: set[bytes] = set()
        self.attempted: set[bytes] = set()
        self.received: dict[str, set[bytes]] = {channel: set() for channel in CHANNELS}
        self._is_stopped = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(self._publish, prefix)) for prefix in "xy"]
        self._threads += [threading.Thread(target=self._repeat, args=(self._consume, name)) for name in CHANNELS]
        self._numbers = dict.fromkeys("xy", 0)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, work, argument: str) -> None:
        while not self._is_stopped.is_set():
            with contextlib.suppress(OSError, ConnectionEnded), RawClient(self.address) as client:
                work(client, argument)
            time.sleep(0.02)

    def _publish(self, client: RawClient, prefix: str) -> None:
        while not self._is_stopped.is_set():
            count = random.choice((1, 20))
            number = self._numbers[prefix]
            bodies = [f"{prefix}-{number + index}".encode() for index in range(count)]
            self._numbers[prefix] += count
            self.attempted.update(bodies)
            answer = client.pub(self.topic, bodies[0]) if count == 1 else client.mpub(self.topic, bodies)
            assert answer == OK
            self.acknowledged.update(bodies)
            time.sleep(0.002)

    def _consume(self, client: RawClient, channel: str) -> None:
        assert client.sub(self.topic, channel) == OK
        client.rdy(20)
        while not self._is_stopped.is_set():
            message = client.read_message()
            if channel == "all" or random.random() < 0.5:
                self.received[channel].add(message.body)
                client.fin(message.id)
            else:
                client.req(message.id, random.choice((0, 50, 60_000)))


def converting(daemon: Daemon, topic: str) -> bool:
    return "converting" in daemon.topic_stats(topic)


def convert(daemon: Daemon, topic: str, store: str) -> int:
    """Return the status of the answer."""
    return daemon.request("POST", "/topic/convert", query={"topic": topic, "store": store}).status


def drain(daemon: Daemon, topic: str, channel: str) -> set[bytes]:
    """Receive and finish everything in a channel, except for messages that are deferred for long."""
    bodies: set[bytes] = set()
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(topic, channel) == OK
        client.rdy(200)
        while True:
            stats = daemon.channel_stats(topic, channel)
            if not stats["depth"] and not stats["in_flight_count"]:
                break
            for _ in range(stats["depth"] + stats["in_flight_count"]):
                try:
                    message = client.read_message(timeout_s=0.5)
                except TimeoutError:
                    break
                bodies.add(message.body)
                client.fin(message.id)
    return bodies


def unfinished(daemon: Daemon, topic: str, channel: str) -> set[bytes]:
    """Return the bodies of all unfinished messages of a channel, also of deferred ones."""
    bodies: set[bytes] = set()
    place: dict[str, int] = {}
    while True:
        query = {"topic": topic, "channel": channel, "count": 1000, **place}
        page = daemon.request("GET", "/peek", query=query).json()
        bodies.update(message["text"].encode() for message in page["messages"])
        if len(page["messages"]) < 1000:
            assert page["complete"]
            return bodies
        place = {"offset" if page["store"] == "log" else "skip": page["next"]}


def check(daemon: Daemon, load: Load) -> None:
    """Every acknowledged message was received, or is in its channel."""
    wait_until(lambda: not converting(daemon, load.topic), "the conversion ends", 60)
    for channel in CHANNELS:
        received = load.received[channel] | drain(daemon, load.topic, channel)
        left = unfinished(daemon, load.topic, channel)
        missing = load.acknowledged - received - left
        assert received | left <= load.attempted
        assert not missing, sorted(missing)[:20]
        if channel == "all":
            assert not left, sorted(left)[:20]


def test_conversions_under_load_lose_nothing(fleet: Fleet, tmp_path: Path, topic: str) -> None:
    daemon = fleet.nsqd("nsqx", *FLAGS, data_path=tmp_path)
    for channel in CHANNELS:
        daemon.post("/topic/create", topic=topic)
        daemon.post("/channel/create", topic=topic, channel=channel)
    load = Load(topic)
    load.address = daemon.tcp_address
    load.start()
    try:
        for store in ("log", "classic", "log"):
            count = len(load.acknowledged)
            wait_until(lambda count=count: len(load.acknowledged) > count + 200, "messages are published")
            assert convert(daemon, topic, store) == 202
            wait_until(lambda: not converting(daemon, topic), "the conversion ends")
            assert ("log" in daemon.topic_stats(topic)) == (store == "log")
    finally:
        load.stop()
    check(daemon, load)


@pytest.mark.slow
def test_kills_during_conversions_lose_nothing(fleet: Fleet, tmp_path: Path, topic: str) -> None:
    daemon = fleet.nsqd("nsqx", *FLAGS, data_path=tmp_path)
    for channel in CHANNELS:
        daemon.post("/topic/create", topic=topic)
        daemon.post("/channel/create", topic=topic, channel=channel)
    load = Load(topic)
    load.address = daemon.tcp_address
    load.start()
    store = "classic"
    cut_short = 0
    try:
        for _ in range(KILLS):
            if not converting(daemon, topic):
                store = "classic" if "log" in daemon.topic_stats(topic) else "log"
            with contextlib.suppress(OSError):
                assert convert(daemon, topic, store) in (202, 409)
            time.sleep(random.uniform(0, 0.3))
            with contextlib.suppress(OSError):
                cut_short += converting(daemon, topic)
            daemon.kill()
            daemon = fleet.nsqd("nsqx", *FLAGS, data_path=tmp_path)
            load.address = daemon.tcp_address
            time.sleep(random.uniform(0, 0.2))
    finally:
        load.stop()
    print(f"{KILLS} kills, {cut_short} during a conversion, {len(load.acknowledged)} messages acknowledged")
    check(daemon, load)
