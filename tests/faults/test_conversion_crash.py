"""Conversions between the stores with a fault at every file operation, then a kill or a power cut, then a restart.

NSQX_SLOW or --run-slow injects every fault at every operation. The quick tests choose some.
"""

import os
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from disk_model import DiskModel, Image, RandomSurvival
from recording_os import RecordingOS

from broker_bench import MINUTE, MS, SECOND, BenchClock
from conversion_bench import ConversionBench, received
from log_directories import close_descriptors
from nsqx.nsqd import log_commits
from nsqx.queues import files
from nsqx.queues.failpoints import Failpoints, Fault, Stopped

IS_SLOW = bool(os.environ.get("NSQX_SLOW"))
STEP = 1 if IS_SLOW else 23
ACTIONS = (("stop", ""), ("tear", ""), ("fail", "EIO"), ("short", "ENOSPC"))
OPTIONS = {"mem_queue_size": 0, "sync_every": 1, "max_bytes_per_file": 250}

# The unfinished messages of each channel and of the paused topic.
CHANNEL_C = {b"m1", b"m2", b"m3", b"m4", b"m5"}
LATER = b"m1"  # in c, when it is due
CHANNEL_D = {b"m0", *CHANNEL_C}
TOPIC = {b"held 0", b"held 1"}


def prepare(path: Path, store: str) -> BenchClock:
    """Write a data directory with unfinished, requeued and deferred messages; return the clock."""
    bench = ConversionBench(path, store, **OPTIONS)
    topic = bench.broker.topic("t")
    topic.channel("d").pause()
    client = bench.consume("t", "c", 3)
    for number in range(6):
        bench.publish("t", b"m%d" % number)
    first, second, _ = client.link.take_messages()
    client.ready_count = 0
    client.channel.finish(client, first.id)
    client.channel.requeue(client, second.id, 30 * MINUTE)
    topic.pause()
    bench.publish("t", b"held 0")
    bench.publish("t", b"held 1")
    bench.restart(store, **OPTIONS).broker.close_topics()
    return bench.clock


class Machine:
    """A directory on a simulated disk, and the broker that uses it."""

    def __init__(self, original: Path, path: Path, clock: BenchClock, seed: int) -> None:
        shutil.copytree(original, path)
        self.path = path
        self.operation_count = 0
        self.bench: ConversionBench
        self._clock_ns = clock.monotonic_ns
        self._rng = random.Random(seed)
        self._disk = DiskModel(path, Image.read(path))
        self._os = RecordingOS(self._disk)
        self._failpoints = Failpoints([])
        self._is_stopped = False
        self._boot = 1

    def __enter__(self) -> "Machine":
        self._recording = self._os.installed()
        self._recording.__enter__()
        self._read_boot_id = log_commits.read_boot_id
        log_commits.read_boot_id = lambda: self._boot.to_bytes(16, "big")
        files.set_hook(self._hook)
        return self

    def __exit__(self, *_: object) -> None:
        files.set_hook(None)
        log_commits.read_boot_id = self._read_boot_id
        self._recording.__exit__(None, None, None)
        close_descriptors(self.path)
        shutil.rmtree(self.path)

    def _hook(self, operation: files.FileOperation) -> None:
        if self._is_stopped:
            raise Stopped
        self.operation_count += 1
        is_sync = operation.name in (files.SYNC, files.DATASYNC)
        try:
            self._failpoints(operation)
        except OSError:
            if is_sync:
                self._os.fail_sync(operation.descriptor, RandomSurvival(self._rng))
            raise
        if is_sync:
            self._os.begin_sync(operation.descriptor)()

    def _stop(self) -> None:
        self._is_stopped = True
        raise Stopped

    def start(self, store: str) -> None:
        clock = BenchClock()
        clock.monotonic_ns = self._clock_ns
        self.bench = ConversionBench(self.path, store, clock, **OPTIONS)

    def arm(self, action: str, argument: str, number: int) -> None:
        self._failpoints = Failpoints([Fault("*.*", action, argument, number, number)], self._stop)

    def convert(self, store: str) -> None:
        """Convert the topic, and do what happens within some seconds after it."""
        self.operation_count = 0
        self.bench.begin(store)
        self.finish()

    def finish(self) -> None:
        for _ in range(40):
            self.bench.advance(100 * MS)
        for _ in range(20):
            if not self.bench.broker.conversions.is_converting("t"):
                break
            self.bench.advance(SECOND)
        assert not self.bench.broker.conversions.is_converting("t")
        self.bench.advance(3 * SECOND)

    def crash(self, *, is_power_cut: bool) -> None:
        self._is_stopped = False
        self._failpoints = Failpoints([])
        close_descriptors(self.path)
        if is_power_cut:
            self._os.check()
            image = self._disk.after_power_cut(RandomSurvival(self._rng))
            for path in self.path.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            image.write_to(self.path)
            self._disk.load(image)
            self._boot += 1

    def check(self, store: str) -> None:
        """Every message is there, at most twice, and depths are exact."""
        bench = self.bench
        topic = bench.broker.topics["t"]
        assert (topic.paused, topic.channels["c"].paused, topic.channels["d"].paused) == (True, False, True)
        assert bench.store_of() == store
        topic.channels["d"].unpause()
        total = sum(bench.counts("c"))
        found = received(bench, "c")
        if store == "log":
            assert LATER not in {message.body for message in found}
        topic_depth = topic.depth
        topic.unpause()
        bench.settle()
        bench.advance(60 * MINUTE)
        found += received(bench, "c")
        bodies = [message.body for message in found]
        self._check_bodies("c", bodies, CHANNEL_C | TOPIC)
        assert max(map(bodies.count, bodies)) <= 2
        if store == "log":
            assert len(bodies) == total + topic_depth
        bodies = [message.body for message in received(bench, "d")]
        self._check_bodies("d", bodies, CHANNEL_D | TOPIC)
        assert (bench.counts("c"), bench.counts("d"), topic.depth) == ((0, 0, 0), (0, 0, 0), 0)

    def _check_bodies(self, channel: str, bodies: list[bytes], expected: set[bytes]) -> None:
        """Missing messages are in a file that could not be read: the classic store gives it up and keeps it."""
        assert set(bodies) <= expected
        paths = [*self.path.glob("t.diskqueue.*.bad"), *self.path.glob(f"t:{channel}.diskqueue.*.bad")]
        set_aside = b"".join(path.read_bytes() for path in paths)
        assert [body for body in expected.difference(bodies) if body not in set_aside] == []


@pytest.fixture
def fast_path():
    """A directory where a sync takes no time, and in which no file stays open."""
    with TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield Path(path)
        close_descriptors(path)


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("stores", [("classic", "log"), ("log", "classic")], ids=["to log", "to classic"])
def test_a_fault_at_any_file_operation_of_a_conversion_loses_nothing(fast_path, stores, is_power_cut):
    original = fast_path / "original"
    original.mkdir()
    clock = prepare(original, stores[0])
    with Machine(original, fast_path / "whole", clock, 0) as machine:
        machine.start(stores[0])
        machine.convert(stores[1])
        total = machine.operation_count
        machine.check(stores[1])
    assert total > 60
    for action, argument in ACTIONS:
        for number in range(1 + random.randrange(STEP), total + 1, STEP):
            seed = random.randrange(1 << 32)
            with Machine(original, fast_path / "trial", clock, seed) as machine:
                try:
                    try_fault(machine, stores, action, argument, number, is_power_cut)
                except Exception as error:
                    raise AssertionError(f"{action} {argument} at operation {number}, seed {seed}") from error


def try_fault(
    machine: Machine, stores: tuple[str, str], action: str, argument: str, number: int, is_power_cut: bool
) -> None:
    """Convert with a fault, end the process, and check what the next one finds."""
    machine.start(stores[0])
    machine.arm(action, argument, number)
    is_begun = False
    try:
        machine.convert(stores[1])
        is_begun = True
    except Stopped:
        pass
    machine.crash(is_power_cut=is_power_cut)
    # If the choice was not durable, the flag decides.
    machine.start(stores[1])
    machine.finish()
    machine.check(stores[1])
    assert is_begun or action in ("stop", "tear")
