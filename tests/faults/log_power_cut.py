"""Power cuts of an nsqd with topic logs, replayed on a model of the disk from a trace of its system calls.

A publisher and consumers work while the calls of nsqd are recorded. Small files make it roll, change its commit files
and remove segments. Then the power is cut at random calls, and a random part of what was not synced survives. For
each cut the logs are recovered as after a new start of the machine, and these rules are checked:

- Every message that must be durable is unfinished in each channel of its topic, unless its consumer has sent FIN.
- Nothing is there that was not published, and no offset has another body than a consumer has seen.
- The offset of the next message is above all offsets that a consumer has seen.

With durability ``fsync``, every acknowledged message must be durable. With ``write``, these are the acknowledged
messages whose commit file or segment was synced after they were written.
"""

import random
import re
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from broker_model import FAST_DIRECTORY
from disk_model import NOTHING, Image, RandomSurvival, Survival
from durable import TracedDisk, acknowledgements, path_of, written
from log_contents import read_logs
from stage import TOPIC, Stage
from tracing import Call, Tracer, read_calls, recording

from daemons import Daemon
from nsqx.queues.log.identity import LogIdentity
from nsqx.queues.log.store import LogOptions, LogStore
from nsqx.queues.log.stored import SilentLog
from rawclient import OK, ConnectionEnded, RawClient, sized

FLAGS = (
    "--store=log",
    "--commit-bytes=1048576",
    "--log-memory=1048576",
    "--max-bytes-per-file=100000",
    "--sync-timeout=100ms",
)
CONSUMED, UNTOUCHED = "consumed", "untouched"
# The second topic has only a channel that is consumed, so that its segments are removed.
CHANNELS = {TOPIC: (CONSUMED, UNTOUCHED), "second": (CONSUMED,)}
LONG_DELAY_MS = 600_000
AFTER = b"published after the power cut"
# nsqd cannot read the boot id, so it assumes that the machine has started again.
NEW_BOOT = {"NSQX_FAILPOINTS": "commit.read=fail:EIO"}
_OTHER_BOOT_ID = b"another boot id "
_NAME = re.compile(rb"cut \d{6} ")
_SYNCS = ("fsync", "fdatasync")


class LogLost(AssertionError):
    """A power cut breaks a rule."""


class LogRecording:
    """A trace of an nsqd with a publisher and consumers. Messages have names: the start of their bodies."""

    def __init__(self, stage: Stage, durability: str, rng: random.Random, batch_count: int) -> None:
        """Publish ``batch_count`` times, and stop nsqd at once."""
        self.cut_count = 0
        self._directory = stage.data_path
        self._rng = rng
        self._batches: list[list[bytes]] = []  # names
        self._published: dict[str, set[bytes]] = {topic: set() for topic in CHANNELS}
        self._delayed: set[bytes] = set()
        self._finished: set[bytes] = set()
        self._seen: dict[str, dict[int, bytes]] = {topic: {} for topic in CHANNELS}  # names by message id
        self._is_synced = durability == "fsync"
        self._serial = 0
        daemon = stage.nsqd(*FLAGS, f"--durability={durability}")
        threads = []
        for topic, channels in CHANNELS.items():
            daemon.post("/topic/create", topic=topic)
            for channel in channels:
                daemon.post("/channel/create", topic=topic, channel=channel)
            client = RawClient(daemon.tcp_address)
            assert client.sub(topic, CONSUMED) == OK
            threads.append(threading.Thread(target=self._consume, args=[client, topic]))
        trace = stage.directory / "trace"
        tracer = Tracer(daemon, *recording(), output=trace)
        stage.cleanup.callback(tracer.stop)
        self._image = Image.read(self._directory)
        for thread in threads:
            thread.start()
        self._publish(daemon, batch_count)
        tracer.stop()
        daemon.kill()
        for thread in threads:
            thread.join()
        self._calls = list(read_calls(trace))

    def _consume(self, client: RawClient, topic: str) -> None:
        with client:
            client.rdy(50)
            try:
                while True:
                    message = client.read_message()
                    name = message.body[:11]
                    self._seen[topic][int(message.id, 16)] = name
                    self._finished.add(name)
                    client.fin(message.id)
            except (OSError, ConnectionEnded):
                pass

    def _publish(self, daemon: Daemon, batch_count: int) -> None:
        with RawClient(daemon.tcp_address) as client:
            for _ in range(batch_count):
                kind = self._rng.choice(("pub", "pub", "pub", "dpub", "mpub", "mpub", "large"))
                bodies = self._new_bodies({"mpub": self._rng.randint(2, 30), "large": 150}.get(kind, 1))
                self._batches.append([body[:11] for body in bodies])
                topic = self._rng.choice(list(CHANNELS))
                self._published[topic].update(self._batches[-1])
                if kind == "pub":
                    answer = client.pub(topic, bodies[0])
                elif kind == "dpub":
                    delay_ms = self._rng.choice((10, 200, LONG_DELAY_MS))
                    if delay_ms == LONG_DELAY_MS:
                        self._delayed.update(self._batches[-1])
                    answer = client.dpub(topic, delay_ms, bodies[0])
                else:
                    answer = client.mpub(topic, bodies)
                assert answer == OK, answer

    def _new_bodies(self, count: int) -> list[bytes]:
        self._serial += count
        numbers = range(self._serial - count, self._serial)
        return [b"cut %06d " % number + b"." * self._rng.choice((50, 1000, 1500)) for number in numbers]

    @property
    def message_count(self) -> int:
        """The number of acknowledged messages."""
        return self._serial

    @property
    def removal_count(self) -> int:
        """How many files nsqd has removed."""
        return sum(call.name in ("unlink", "unlinkat") and call.result == 0 for call in self._calls)

    def cut(self, cut_count: int) -> None:
        """Cut the power about ``cut_count`` times, at random calls; raises LogLost."""
        for disk, must in self._cuts(cut_count):
            self.cut_count += 1
            survival: Survival = NOTHING if self._rng.random() < 0.3 else RandomSurvival(self._rng)
            with tempfile.TemporaryDirectory(dir=FAST_DIRECTORY) as name:
                directory = Path(name)
                disk.after_power_cut(survival).write_to(directory)
                self._check(directory, must)

    def _cuts(self, cut_count: int) -> Iterator[tuple[TracedDisk, set[bytes]]]:
        """Yield the disk at random calls, and the names of the messages that must be durable."""
        disk = TracedDisk(self._directory, self._image, self._calls)
        upcoming = deque(acknowledgements(self._calls))
        # The trace may end before the call that sends the last OK returns.
        assert len(self._batches) - len(upcoming) in (0, 1), "every batch was acknowledged once"
        batches = iter(self._batches)
        acked: set[bytes] = set()
        writes = _Writes(self._calls)
        rate = cut_count / (cut_count + len(self._calls))
        for call in self._calls:
            while upcoming and upcoming[0] <= call.ended:
                upcoming.popleft()
                acked.update(next(batches))
            while self._rng.random() < rate:
                yield disk, acked if self._is_synced else acked & writes.durable
            disk.apply(call)
            writes.apply(call)

    def _check(self, directory: Path, must: set[bytes]) -> None:
        next_offsets = recover(directory)
        logs = read_logs(directory)
        for topic, channels in CHANNELS.items():
            contents = logs[topic]
            for channel in channels:
                lost = (must & self._published[topic]).difference(body[:11] for body in contents.unfinished(channel))
                if channel == CONSUMED:
                    lost -= self._finished
                if lost:
                    raise LogLost(f"{topic}:{channel}: {len(lost)} of {len(must)} messages lost: {sorted(lost)[:5]}")
            names = {offset: body[:11] for offset, body in contents.messages.items() if body != AFTER}
            foreign = set(names.values()) - self._published[topic]
            if foreign:
                raise LogLost(f"{topic}: {len(foreign)} messages were never published: {sorted(foreign)[:5]}")
            identity, next_offset = next_offsets[topic]
            seen = {identity.offset(number): name for number, name in self._seen[topic].items()}
            is_used = next_offset <= max(seen, default=-1)
            if is_used or any(names.get(offset, name) != name for offset, name in seen.items()):
                raise LogLost(f"{topic}: an offset names two messages")

    def restart(self, stage: Stage, survival: Survival) -> None:
        """Start nsqd after a cut at the end of the trace. A channel without a consumer must deliver every message."""
        disk = TracedDisk(self._directory, self._image, self._calls)
        for call in self._calls:
            disk.apply(call)
        directory = stage.directory / "cut"
        disk.write_to(directory, survival)
        daemon = stage.nsqd(*FLAGS, data_path=directory, env=NEW_BOOT)
        entry = daemon.channel_stats(TOPIC, UNTOUCHED)
        assert entry["depth"] + entry["deferred_count"] == len(self._published[TOPIC])
        missing = self._published[TOPIC] - self._delayed
        with RawClient(daemon.tcp_address) as client:
            assert client.sub(TOPIC, UNTOUCHED) == OK
            client.rdy(100)
            while missing:
                message = client.read_message()
                missing.discard(message.body[:11])
                client.fin(message.id)


class _Writes:
    """Follows a trace: the messages that are in a file which was synced after they were written."""

    def __init__(self, calls: list[Call]) -> None:
        self.durable: set[bytes] = set()
        self._unsynced: dict[str, set[bytes]] = {}  # names, by path
        self._upcoming = deque(sorted((call for call in calls if call.name in _SYNCS), key=lambda call: call.began))
        self._running: dict[Call, set[bytes]] = {}

    def apply(self, call: Call) -> None:
        """Note a call that has returned."""
        while self._upcoming and self._upcoming[0].began <= call.ended:
            sync = self._upcoming.popleft()
            self._running[sync] = set(self._unsynced.get(path_of(sync), ()))
        if call.name in _SYNCS:
            names = self._running.pop(call)
            if call.result == 0:
                self.durable |= names
                self._unsynced.get(path_of(call), set()).difference_update(names)
        elif call.name in ("pwrite64", "pwritev", "pwritev2"):
            self._unsynced.setdefault(path_of(call), set()).update(_NAME.findall(written(call)))


def recover(directory: Path) -> dict[str, tuple[LogIdentity, int]]:
    """Open the logs as after a new start of the machine, and publish to each; return its identity and the offset."""
    store = LogStore(str(directory), LogOptions(commit_size=1 << 20), _OTHER_BOOT_ID, SilentLog())
    offsets = {topic: (log.identity, log.append(sized(AFTER), 1, 0)) for topic, log in store.logs.items()}
    store.close()
    return offsets
