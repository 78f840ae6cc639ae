"""nsqd with topic logs, killed under load: nothing that was acknowledged is lost, and depths are exact."""

import random
import threading
import time
from pathlib import Path

import pytest

from daemons import Daemon, Fleet, wait_until
from rawclient import OK, ConnectionEnded, RawClient

CHANNELS = ("all", "half", "none")
LIVES = 3


class Publisher(threading.Thread):
    """Publishes numbered messages until the connection breaks. ``acknowledged`` are those with an OK."""

    def __init__(self, daemon: Daemon, topic: str, prefix: str) -> None:
        super().__init__()
        self._daemon = daemon
        self._topic = topic
        self._prefix = prefix
        self.attempted: set[bytes] = set()
        self.acknowledged: set[bytes] = set()

    def run(self) -> None:
        number = 0
        try:
            with RawClient(self._daemon.tcp_address) as client:
                while True:
                    bodies = [f"{self._prefix}-{number + index}".encode() for index in range(random.choice((1, 5)))]
                    number += len(bodies)
                    self.attempted.update(bodies)
                    if len(bodies) > 1:
                        answer = client.mpub(self._topic, bodies)
                    elif number % 7 == 0:
                        answer = client.dpub(self._topic, random.randrange(1, 400), bodies[0])
                    else:
                        answer = client.pub(self._topic, bodies[0])
                    assert answer == OK
                    self.acknowledged.update(bodies)
        except (OSError, ConnectionEnded):
            pass


class Consumer(threading.Thread):
    """Finishes some messages and requeues others until the connection breaks. Keeps what it has received."""

    def __init__(self, daemon: Daemon, topic: str, channel: str, share: float) -> None:
        super().__init__()
        self._daemon = daemon
        self._topic = topic
        self._channel = channel
        self._share = share
        self.received: set[bytes] = set()

    def run(self) -> None:
        try:
            with RawClient(self._daemon.tcp_address) as client:
                assert client.sub(self._topic, self._channel) == OK
                client.rdy(20)
                while True:
                    message = client.read_message()
                    if random.random() < self._share:
                        self.received.add(message.body)
                        client.fin(message.id)
                    else:
                        client.req(message.id, random.choice((0, 50)))
        except (OSError, ConnectionEnded):
            pass


def drain(daemon: Daemon, topic: str, channel: str) -> set[bytes]:
    """Receive and finish everything in a channel. Its depth and deferred messages must then be 0."""
    bodies = set()
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(topic, channel) == OK
        client.rdy(100)
        while True:
            entry = daemon.channel_stats(topic, channel)
            waiting = entry["depth"] + entry["deferred_count"] + entry["in_flight_count"]
            if not waiting:
                return bodies
            deadline = time.monotonic() + 10
            for _ in range(waiting):
                message = client.read_message(deadline - time.monotonic())
                bodies.add(message.body)
                client.fin(message.id)
            wait_until(lambda: not daemon.channel_stats(topic, channel)["in_flight_count"], "no message is in flight")


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_nothing_acknowledged_is_lost_when_nsqd_is_killed(
    fleet: Fleet, topic: str, tmp_path: Path, durability: str
) -> None:
    flags = ("--store=log", f"--durability={durability}")
    attempted: set[bytes] = set()
    acknowledged: set[bytes] = set()
    finished: dict[str, set[bytes]] = {channel: set() for channel in CHANNELS}
    for life in range(LIVES):
        daemon = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
        daemon.post("/topic/create", topic=topic)
        for channel in CHANNELS:
            daemon.post("/channel/create", topic=topic, channel=channel)
        publishers = [Publisher(daemon, topic, f"{life}-{number}") for number in range(3)]
        consumers = {"all": Consumer(daemon, topic, "all", 0.9), "half": Consumer(daemon, topic, "half", 0.5)}
        for thread in (*publishers, *consumers.values()):
            thread.start()
        time.sleep(random.uniform(0.3, 0.8))
        daemon.kill()
        for thread in (*publishers, *consumers.values()):
            thread.join()
        for publisher in publishers:
            attempted |= publisher.attempted
            acknowledged |= publisher.acknowledged
        for channel, consumer in consumers.items():
            finished[channel] |= consumer.received
    daemon = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    assert len(acknowledged) > 100
    for channel in CHANNELS:
        found = drain(daemon, topic, channel) | finished[channel]
        assert acknowledged <= found <= attempted
    assert "damaged" not in daemon.log
    time.sleep(0.3)  # FIN has no answer; it is written within 50 ms
    daemon.kill()
    daemon = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    assert {channel: daemon.channel_stats(topic, channel)["depth"] for channel in CHANNELS} == dict.fromkeys(
        CHANNELS, 0
    )
    assert daemon.stop() == 0


def test_depths_and_due_times_are_exact_after_a_crash(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx", "--store=log", data_path=tmp_path)
    daemon.post("/topic/create", topic=topic)
    for channel in ("a", "b"):
        daemon.post("/channel/create", topic=topic, channel=channel)
    with RawClient(daemon.tcp_address) as client:
        assert client.mpub(topic, [b"%d" % number for number in range(10)]) == OK
        assert client.dpub(topic, 6000, b"deferred") == OK
    due = time.monotonic() + 6
    daemon.post("/pub", b"deferred", topic=topic, defer="6000")
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(topic, "a") == OK
        client.rdy(3)
        first, second, third = (client.read_message() for _ in range(3))
        client.fin(second.id)
        client.req(first.id, 6000)
        client.req(third.id, 0)
        time.sleep(0.3)
    daemon.kill()
    daemon = fleet.nsqd("nsqx", "--store=log", data_path=tmp_path)
    entry = daemon.channel_stats(topic, "a")
    assert (entry["depth"], entry["deferred_count"]) == (8, 3)
    entry = daemon.channel_stats(topic, "b")
    assert (entry["depth"], entry["deferred_count"]) == (10, 2)
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(topic, "a") == OK
        client.rdy(100)
        messages = [client.read_message() for _ in range(11)]
        assert due - 0.1 <= time.monotonic() <= due + 3
        late = [message.body for message in messages[8:]]
        assert sorted(late) == [first.body, b"deferred", b"deferred"]
        assert {message.body for message in messages[:8]} == {b"%d" % number for number in range(10)} - {
            first.body,
            second.body,
        }
        for message in messages:
            client.fin(message.id)
    wait_until(lambda: daemon.channel_stats(topic, "a")["in_flight_count"] == 0, "everything is finished")
    assert daemon.stop() == 0
    daemon = fleet.nsqd("nsqx", "--store=log", data_path=tmp_path)
    assert daemon.channel_stats(topic, "a")["depth"] == 0
    assert daemon.channel_stats(topic, "b")["depth"] == 12
