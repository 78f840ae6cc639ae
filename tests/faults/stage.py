"""The environment of a fault: one data directory, the daemons that use it in turn, and a record of the messages.

A scenario is a function from a ``Stage`` to an ``Outcome``. So a test can run it on nsqx's nsqd, and ``report`` on Go's
nsqd too. Scenarios assert nothing about the outcome.
"""

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from daemons import Daemon, DaemonFailed, start_nsqd, wait_until
from rawclient import ERROR, OK, ConnectionEnded, Message, RawClient

TOPIC, CHANNEL = "orders", "ch"
QUEUE = f"{TOPIC}:{CHANNEL}"
DISK_ONLY = "--mem-queue-size=0"
SMALL_FILES = "--max-bytes-per-file=2000"
LAST = b"the last message"

# How long a queue may stay silent after its last message before it counts as empty, even if its depth is not 0. Only
# daemons with a wrong depth need that time.
SILENCE_S = 8.0
# The same, as long as the last message has not arrived.
RESCUE_S = 20.0


def bodies(prefix: str, count: int, size: int = 60) -> list[bytes]:
    """Return distinct message bodies of ``size`` bytes."""
    return [f"{prefix} {number:06} ".encode().ljust(size, b".") for number in range(count)]


@dataclass(frozen=True)
class Outcome:
    """The fate of the acknowledged messages, and other observations of a scenario."""

    acked: int = 0
    lost: int = 0
    duplicated: int = 0
    foreign: int = 0  # delivered, but never published
    seen: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{self.lost} of {self.acked} acked lost"] if self.acked else []
        parts += [f"{self.duplicated} twice"] if self.duplicated else []
        parts += [f"{self.foreign} garbage"] if self.foreign else []
        return ", ".join(parts + [f"{name} {value}" for name, value in self.seen.items()])


class MessageTracker:
    """The messages that were sent, acknowledged, finished and delivered, over all daemons on a stage."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.finished: set[bytes] = set()
        # Delivered by the last daemon, after the fault.
        self.delivered: Counter[bytes] = Counter()
        # Published after the fault, acknowledged, and not delivered.
        self.lost_later = 0

    def publish(self, client: RawClient, topic: str, body: bytes) -> bool:
        """Publish a message; True if the daemon acknowledged it."""
        self.sent.add(body)
        if client.pub(topic, body) != OK:
            return False
        self.acked.add(body)
        return True

    def publish_many(self, daemon: Daemon, topic: str, messages: list[bytes], batch_size: int = 100) -> None:
        """Publish in batches; each must be acknowledged."""
        with RawClient(daemon.tcp_address) as client:
            for start in range(0, len(messages), batch_size):
                batch = messages[start : start + batch_size]
                self.sent.update(batch)
                assert client.mpub(topic, batch) == OK
                self.acked.update(batch)

    def finish(self, client: RawClient, count: int) -> list[Message]:
        """Receive and finish ``count`` messages on a subscribed connection."""
        messages = []
        for _ in range(count):
            message = client.read_message()
            self.finished.add(message.body)
            client.fin(message.id)
            messages.append(message)
        return messages

    @property
    def lost(self) -> set[bytes]:
        """Return the messages that were acknowledged but neither finished nor delivered."""
        return self.acked - self.finished - set(self.delivered)

    def outcome(self, **seen: Any) -> Outcome:
        duplicated = sum(self.delivered.values()) - len(self.delivered)
        duplicated += len(self.finished & set(self.delivered))
        foreign = sum(count for body, count in self.delivered.items() if body not in self.sent)
        if self.lost_later:
            seen["the next message"] = "lost"
        return Outcome(len(self.acked), len(self.lost) + self.lost_later, duplicated, foreign, seen)


class Stage:
    """A data directory and its daemons; everything ends with the block."""

    def __init__(self, implementation: str, directory: Path, store: str = "") -> None:
        """``store`` is the store of the topics of nsqx's nsqd: classic, log, or the default of the tests."""
        self.implementation = implementation
        self.store = store
        self.directory = directory
        self.data_path = directory / "data"
        self.data_path.mkdir()
        self.tracker = MessageTracker()
        self.cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cleanup.close()

    def nsqd(self, *flags: str, data_path: Path | None = None, env: Mapping[str, str] | None = None) -> Daemon:
        """Start an nsqd on the data directory, or on another."""
        if self.store and self.implementation == "nsqx":
            flags = (f"--store={self.store}", *flags)
        daemon = start_nsqd(self.implementation, *flags, data_path=data_path or self.data_path, env=env)
        self.cleanup.callback(_end, daemon)
        return daemon

    def nsqd_with_channel(self, *flags: str) -> Daemon:
        """Start an nsqd that has the topic and the channel and has saved them."""
        daemon = self.nsqd(*flags)
        create_channel(daemon)
        self.wait_for_metadata()
        return daemon

    def wait_for_metadata(self) -> None:
        """Wait until nsqd.dat names the channel: otherwise its messages would not be found."""
        path = self.data_path / "nsqd.dat"
        wait_until(lambda: f'"name":"{CHANNEL}"' in path.read_text(), "nsqd.dat names the channel")

    def consumer(self, daemon: Daemon, ready: int = 0, **identity: Any) -> RawClient:
        """Return a subscribed connection, which is closed with the stage."""
        client = RawClient(daemon.tcp_address)
        self.cleanup.callback(client.close)
        if identity:
            client.identify(**identity)
        assert client.sub(TOPIC, CHANNEL) == OK
        if ready:
            client.rdy(ready)
        return client

    def drain(self, daemon: Daemon) -> Counter[bytes]:
        """Finish and return everything that the channel still has; ``tracker.delivered`` counts it too.

        A last message is published. A disk queue is first in, first out, so it arrives after all others.
        """
        self.tracker.delivered = Counter()
        with RawClient(daemon.tcp_address) as client:
            assert client.pub(TOPIC, LAST) == OK
            assert client.sub(TOPIC, CHANNEL) == OK
            client.rdy(50)
            is_last_seen = False
            silent_since_s = time.monotonic()
            while True:
                try:
                    frame = client.read_answer(0.1)
                except TimeoutError:
                    patience_s = SILENCE_S if is_last_seen else RESCUE_S
                    if message_counts(daemon) == (0, 0, 0) or time.monotonic() > silent_since_s + patience_s:
                        break
                    continue
                silent_since_s = time.monotonic()
                if frame.type == ERROR:
                    assert frame.data.startswith(b"E_FIN_FAILED"), frame  # from Go's nsqd, for ids in flight twice
                    continue
                message = Message.decode(frame.data)
                client.fin(message.id)
                if message.body == LAST:
                    is_last_seen = True
                else:
                    self.tracker.delivered[message.body] += 1
        self.tracker.lost_later = 0 if is_last_seen else 1
        return self.tracker.delivered

    def restart_and_drain(self, *flags: str, data_path: Path | None = None) -> Outcome:
        """Restart nsqd and drain it; also check its depth, and list the files it set aside."""
        seen: dict[str, Any] = {}
        directory = data_path or self.data_path
        daemon = self.nsqd(DISK_ONLY, *flags, data_path=directory)
        create_channel(daemon)
        depth = wait_for_depth(daemon) + message_counts(daemon)[2]
        delivered = sum(self.drain(daemon).values())
        if depth != delivered:
            seen["depth after restart"] = f"{depth} instead of {delivered}"
        aside = sorted(path.name for path in directory.glob("*.bad"))
        if aside:
            seen["set aside"] = len(aside)
        daemon.stop()
        self.log = daemon.log
        return self.tracker.outcome(**seen)

    log = ""


def create_channel(daemon: Daemon) -> None:
    """Create the topic and the channel if they do not exist."""
    daemon.post("/topic/create", topic=TOPIC)
    daemon.post("/channel/create", topic=TOPIC, channel=CHANNEL)


def message_counts(daemon: Daemon) -> tuple[int, int, int]:
    """Return the number of messages that wait in topic and channel, are in flight, and are deferred."""
    topic = daemon.topic_stats(TOPIC)
    (channel,) = (entry for entry in topic["channels"] if entry["channel_name"] == CHANNEL)
    return topic["depth"] + channel["depth"], channel["in_flight_count"], channel["deferred_count"]


def wait_for_depth(daemon: Daemon) -> int:
    """Return the depth of the channel after the topic has moved all its messages."""
    wait_until(lambda: daemon.topic_stats(TOPIC)["depth"] <= 0, "the channel has every message")
    depth: int = daemon.channel_stats(TOPIC, CHANNEL)["depth"]
    return depth


def wait_for_save(path: Path, since_ns: int, at_most_s: float = 1.0) -> None:
    """Wait until a file has been replaced, for a limited time: a daemon need not replace an unchanged file."""
    deadline_s = time.monotonic() + at_most_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime_ns > since_ns:
                return
        time.sleep(0.01)


def kill(daemon: Daemon) -> None:
    """Kill a daemon, as a crash does: the files keep everything written, synced or not."""
    daemon.process.send_signal(signal.SIGKILL)
    daemon.kill()


def publish_until_ended(tracker: MessageTracker, client: RawClient, topic: str, messages: Iterable[bytes]) -> int:
    """Publish one by one until the daemon ends; return the number of acknowledged messages."""
    count = 0
    try:
        for body in messages:
            if not tracker.publish(client, topic, body):
                break
            count += 1
    except (ConnectionEnded, OSError):
        pass
    return count


def _end(daemon: Daemon) -> None:
    with contextlib.suppress(DaemonFailed):
        daemon.stop(timeout_s=10.0)
    if daemon.running:
        daemon.kill()
