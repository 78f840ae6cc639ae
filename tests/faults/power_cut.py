"""Scenarios of a power cut, replayed on a model of the disk from a trace of a daemon (rows 5, 6 and 13)."""

import contextlib
import random
import re
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from broker_model import FAST_DIRECTORY, messages_in
from disk_model import NAMES_ONLY, NOTHING, Image, RandomSurvival, Survival
from durable import TracedDisk, acknowledgements, plain
from stage import DISK_ONLY, QUEUE, SMALL_FILES, TOPIC, Outcome, Stage, bodies, create_channel, wait_for_depth
from tracing import Call, Tracer, read_calls, recording

from daemons import Daemon, wait_until
from nsqx.queues.log.commit_file import commit_paths, read_commit_file
from nsqx.wire.message import HEADER_LENGTH
from rawclient import OK, RawClient, pub

_DATA_FILE = re.compile(r"(.+)\.diskqueue\.(\d{6})\.dat")
_META = re.compile(rb"-?\d+\n(\d+),(\d+)\n")

RECORD_HEAD_SIZE = 4 + HEADER_LENGTH
END = 1 << 60
SYNC_EVERY = 100
MOVED = 400


@dataclass(frozen=True)
class Moment:
    """An acknowledgement: its line in the trace, the messages acknowledged by then, and those missing on disk."""

    line: int
    acked: int
    missing: int


class Recording:
    """A trace of the daemon on a stage, and the messages acknowledged in it, in order."""

    def __init__(self, stage: Stage, daemon: Daemon, *options: str, extra_calls: str = "") -> None:
        self.messages: list[bytes] = []
        self.survival: Survival = NOTHING
        self._stage = stage
        self._daemon = daemon
        self._batch_size = 1
        self._cut_count = 0
        self._trace = stage.directory / "trace"
        self._tracer = Tracer(daemon, *recording(extra_calls), *options, output=self._trace)
        stage.cleanup.callback(self._tracer.stop)
        self._image = Image.read(stage.data_path)

    def publish(self, messages: list[bytes], batch_size: int = 1) -> int:
        """Publish on one connection until refused; return the number of acknowledged messages. Use one at a time."""
        self._batch_size = batch_size
        before = len(self.messages)
        self._stage.tracker.sent.update(messages)  # including refused ones, which may be delivered
        with RawClient(self._daemon.tcp_address) as client:
            for start in range(0, len(messages), batch_size):
                batch = messages[start : start + batch_size]
                if (client.pub(TOPIC, batch[0]) if batch_size == 1 else client.mpub(TOPIC, batch)) != OK:
                    break
                self.messages += batch
        return len(self.messages) - before

    def end(self) -> None:
        """Cut the power: the daemon stops at once."""
        self._tracer.stop()
        self._daemon.kill()

    def moments(self) -> list[Moment]:
        """Return every acknowledgement."""
        calls = list(read_calls(self._trace))
        disk = self._new_disk(calls)
        found: list[Moment] = []
        upcoming = acknowledgements(calls)
        for call in calls:
            while upcoming and upcoming[0] <= call.ended:
                acked = (len(found) + 1) * self._batch_size
                found.append(Moment(upcoming.pop(0), acked, self._missing(disk, acked)))
            disk.apply(call)
        return found

    def acknowledgements(self) -> list[int]:
        """Return the lines of the trace at which each publish is acknowledged."""
        return acknowledgements(read_calls(self._trace))[-len(self.messages) :]

    def _new_disk(self, calls: list[Call]) -> TracedDisk:
        return TracedDisk(self._stage.data_path, self._image, calls)

    def missing_at_end(self) -> int:
        """Return how many acknowledged messages are missing on disk at the end of the trace."""
        return self._missing(self.disk(END), len(self.messages))

    def _missing(self, disk: TracedDisk, count: int) -> int:
        files = disk.after_power_cut(self.survival).files
        records = b"".join(content for name, content in files.items() if ".diskqueue.0" in name)
        return sum(body not in records for body in self.messages[:count])

    def syncs_that_lose(self) -> list[int]:
        """Return the lines at which a sync left a disk that lacks messages, according to its meta files."""
        calls = list(read_calls(self._trace))
        disk = self._new_disk(calls)
        found = []
        for call in calls:
            disk.apply(call)
            if call.name not in ("fsync", "fdatasync"):
                continue
            if not unread_bodies(disk.after_power_cut(self.survival).files).issuperset(self.messages):
                found.append(call.ended + 1)
        return found

    def cut_at_random(self, rng: random.Random, cut_count: int) -> list[Moment]:
        """Cut the power about ``cut_count`` times, at random calls, and keep a random part of the unsynced changes.

        Returns the cuts after which a new process cannot read all acknowledged messages. Requires a single producer.
        """
        calls = list(read_calls(self._trace))
        disk = self._new_disk(calls)
        upcoming = deque(acknowledgements(calls))
        acked = 0
        found = []
        for call in calls:
            while upcoming and upcoming[0] <= call.ended:
                upcoming.popleft()
                acked += self._batch_size
            while rng.random() < cut_count / (cut_count + len(calls)):
                with tempfile.TemporaryDirectory(dir=FAST_DIRECTORY) as directory:
                    disk.after_power_cut(RandomSurvival(rng)).write_to(Path(directory))
                    left = set().union(*messages_in(Path(directory)).values())
                missing = sum(body not in left for body in self.messages[:acked])
                if missing:
                    found.append(Moment(call.ended, acked, missing))
            disk.apply(call)
        return found

    def lines(self) -> list[int]:
        """Return the lines of syncs: only there does a cut make a difference."""
        return [call.ended + 1 for call in read_calls(self._trace) if call.name in ("fsync", "fdatasync")]

    def sync_count(self) -> int:
        """Return the number of syncs of data files."""
        calls = read_calls(self._trace)
        return sum(call.name in ("fsync", "fdatasync") and ".diskqueue.0" in plain(call.arguments) for call in calls)

    def disk(self, line: int) -> TracedDisk:
        """Return the disk at a line of the trace."""
        calls = list(read_calls(self._trace))
        disk = self._new_disk(calls)
        for call in calls:
            if call.ended < line:
                disk.apply(call)
        return disk

    def restart_after_cut(self, line: int, acked: int, survival: Survival | None = None) -> Outcome:
        """Start nsqd on the disk of a cut at this line, and check that the first ``acked`` messages are there."""
        self._cut_count += 1
        directory = self._stage.directory / f"cut {self._cut_count}"
        self.disk(line).write_to(directory, survival or self.survival)
        _change_boot_id(directory)
        self._stage.tracker.sent.update(self.messages)
        self._stage.tracker.acked = set(self.messages[:acked])
        return self._stage.restart_and_drain(data_path=directory)


def _change_boot_id(directory: Path) -> None:
    """Change the boot id in the commit files: after a power cut, the machine has another one."""
    for path in commit_paths(str(directory)):
        header, data = read_commit_file(path)
        if header is not None:
            changed = header._replace(boot_id=b"before the cut..").encode()
            Path(path).write_bytes(changed + data[len(changed) :])


def unread_bodies(files: Mapping[str, bytes]) -> set[bytes]:
    """Return the messages of every disk queue from the read position in its meta file on."""
    found: set[bytes] = set()
    for name, content in sorted(files.items()):
        match = _DATA_FILE.fullmatch(name)
        if match is None:
            continue
        meta = _META.match(files.get(f"{match[1]}.diskqueue.meta.dat", b""))
        read_file, read_position = (int(meta[1]), int(meta[2])) if meta is not None else (0, 0)
        if int(match[2]) >= read_file:
            found.update(_bodies_in(content, read_position if int(match[2]) == read_file else 0))
    return found


def _bodies_in(content: bytes, position: int) -> Iterator[bytes]:
    """Yield the bodies of the records of a data file, up to the first incomplete record."""
    while position + RECORD_HEAD_SIZE <= len(content):
        end = position + 4 + int.from_bytes(content[position : position + 4], "big")
        if not position + RECORD_HEAD_SIZE <= end <= len(content):
            return
        yield content[position + RECORD_HEAD_SIZE : end]
        position = end


def sync_always(stage: Stage) -> Recording:
    """Row 5: --sync-every=1, with a new file every few messages."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, SMALL_FILES, "--sync-every=1")
    record = Recording(stage, daemon)
    record.publish(bodies("synced", 60))
    record.end()
    return record


def sync_always_over_http(stage: Stage) -> Recording:
    """Row 5: the same with messages published over HTTP."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, SMALL_FILES, "--sync-every=1")
    record = Recording(stage, daemon)
    record.messages = bodies("synced", 30)
    for body in record.messages:
        daemon.post("/pub", body, topic=TOPIC)
    record.end()
    return record


def sync_always_for_many(stage: Stage) -> Recording:
    """Row 5: --sync-every=1, with ten pipelining producers and 20 messages each."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, "--sync-every=1")
    record = Recording(stage, daemon)
    record.messages = bodies("joined", 200)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(daemon.tcp_address)) for _ in range(10)]
        for number, client in enumerate(clients):
            client.send(b"".join(pub(TOPIC, body) for body in record.messages[number::10]))
        for client in clients:
            assert client.read_frames(20) == [OK] * 20
    record.end()
    return record


def sync_by_count(stage: Stage) -> Recording:
    """Row 5: --sync-every=100, with batches of 250 messages."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, f"--sync-every={SYNC_EVERY}", "--sync-timeout=60s")
    record = Recording(stage, daemon)
    record.publish(bodies("counted", 1000), batch_size=250)
    record.end()
    return record


def sync_by_time(stage: Stage) -> Recording:
    """Rows 5, 6: new topic, channel and files; everything must be durable after sync-timeout."""
    daemon = stage.nsqd(DISK_ONLY, SMALL_FILES, "--sync-timeout=100ms")
    record = Recording(stage, daemon)
    create_channel(daemon)
    record.publish(bodies("timed", 100))
    try:
        wait_until(lambda: record.missing_at_end() == 0, "every message is durable", 5.0)
        wait_until(
            lambda: QUEUE.encode() in b"".join(name.encode() for name in record.disk(END).after_power_cut().files),
            "the meta file is durable",
        )
    except AssertionError:
        pass  # the test checks missing_at_end
    record.end()
    return record


def half_synced(stage: Stage) -> Recording:
    """Row 5: 100 synced messages, then 50 more that are not synced."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, "--sync-timeout=1s")
    record = Recording(stage, daemon)
    record.publish(bodies("synced", 100))
    wait_until(lambda: record.missing_at_end() == 0, "every message is durable")
    record.publish(bodies("unsynced", 50))
    record.end()
    return record


def topic_to_channel(stage: Stage) -> Recording:
    """Row 5: messages that are durable in the topic move to a new channel."""
    flags = (DISK_ONLY, SMALL_FILES, "--sync-every=1")
    messages = bodies("moved", MOVED)
    first = stage.nsqd(*flags)
    first.post("/topic/create", topic=TOPIC)
    stage.tracker.publish_many(first, TOPIC, messages)
    first.stop()
    daemon = stage.nsqd(*flags)
    record = Recording(stage, daemon)
    record.messages = messages
    create_channel(daemon)
    wait_for_depth(daemon)
    daemon.stop()
    record.end()
    return record


def topic_to_channel_while_publishing(stage: Stage) -> Recording:
    """Row 34: the same with syncs of different duration, and publishers that keep the queues busy."""
    flags = (DISK_ONLY, "--sync-every=1")
    messages = bodies("moved", 5 * MOVED)
    first = stage.nsqd(*flags)
    first.post("/topic/create", topic=TOPIC)
    stage.tracker.publish_many(first, TOPIC, messages)
    first.stop()
    daemon = stage.nsqd(*flags, env={"NSQX_FAILPOINTS": "data.sync=delay:300@2,data.sync=delay:20@3+"})
    record = Recording(stage, daemon)
    record.messages = messages
    with RawClient(daemon.tcp_address) as client:
        client.send(b"".join(pub(TOPIC, body) for body in bodies("meanwhile", 20)))
        create_channel(daemon)
        assert client.read_frames(20) == [OK] * 20
        client.send(b"".join(pub(TOPIC, body) for body in bodies("later", 20)))
        wait_for_depth(daemon)
        assert client.read_frames(20) == [OK] * 20
    daemon.stop()
    record.end()
    return record


def cut_power(record: Recording, *, names_survive: bool) -> Outcome:
    """For the table: the most unsynced acknowledged messages, and a restart after the last acknowledgement."""
    record.survival = NAMES_ONLY if names_survive else NOTHING
    moments = record.moments()
    worst = max((moment.missing for moment in moments), default=0)
    outcome = record.restart_after_cut(END, len(record.messages))
    return Outcome(outcome.acked, outcome.lost, 0, outcome.foreign, {"at worst not durable when acked": worst})


def worst_on_the_way(stage: Stage) -> Outcome:
    """For the table: a restart after the first sync that leaves a disk without some messages, or after the last."""
    record = topic_to_channel(stage)
    lines = record.syncs_that_lose() or record.lines()[-1:]
    return record.restart_after_cut(lines[0], MOVED)
