"""A backlog with its disk queue under random use, faults, crashes and restarts, against a model of losses.

The seed determines the whole run. It publishes, consumes, requeues, syncs and restarts. Files are so small that they
change all the time. Operations fail, and the process or the power ends at any file operation. The model tracks where
each message is, and so whether it may be lost, may be delivered again, or must be delivered.
"""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from disk_model import PAGE_SIZE, SECTOR_SIZE, DiskModel, Image, RandomSurvival
from recording_os import RecordingOS

from nsqx.errors import DiskQueueError
from nsqx.queues import files
from nsqx.queues.backlog import Backlog
from nsqx.queues.diskqueue import DiskQueue
from nsqx.queues.failpoints import Failpoints, Fault, Stopped
from nsqx.queues.files import FileOperation
from nsqx.queues.recovery import GOOD, scan
from nsqx.queues.sidecar import sidecar_path
from nsqx.wire.message import HEADER_LENGTH, Batch, QueuedMessage, new_batch, new_message
from rawclient import sized

if TYPE_CHECKING:
    from nsqx.queues.sync import SyncJob

NAME = "q"
MAX_MESSAGE_SIZE = 200
RECORD_HEAD_SIZE = 4 + HEADER_LENGTH
SIDECAR_HEAD_SIZE = 42
# A directory where a sync takes no time.
FAST_DIRECTORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
FAULTS = (
    ("data.write", "fail", "ENOSPC"),
    ("data.write", "short", "ENOSPC"),
    ("data.open", "fail", "EMFILE"),
    ("data.read", "fail", "EMFILE"),
    ("data.sync", "fail", "EIO"),
    ("meta.write", "short", "ENOSPC"),
    ("meta.*", "fail", "ENOSPC"),
    ("sums.*", "fail", "ENOSPC"),
    ("sums.write", "short", "ENOSPC"),
    ("directory.sync", "fail", "EIO"),
    ("*.unlink", "fail", "EIO"),
)


class Lost(AssertionError):
    """The queue has lost a message that it must keep."""


class Log:
    """Keeps the log of the queue for the analysis of a failure."""

    def __init__(self, history: list[str], directory: Path) -> None:
        self._history = history
        self._directory = directory

    def info(self, text: str, *args: object) -> None:
        """Ignore the line."""

    def warn(self, text: str, *args: object) -> None:
        self._history.append("  warning: " + (text % args).replace(f"{self._directory}/", ""))

    error = warn


class Run:
    """One run. ``history`` lists its steps, for the analysis of a failure."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._directory = Path(tempfile.mkdtemp(prefix="model-", dir=FAST_DIRECTORY))
        # The files are small, so pages and sectors are too, in half of the runs.
        page_size, sector_size = self._rng.choice(((PAGE_SIZE, SECTOR_SIZE), (64, 8)))
        self._disk_model = DiskModel(self._directory, Image(), page_size, sector_size)
        self._os = RecordingOS(self._disk_model)
        self._torn_ranges: dict[str, list[tuple[int, int]]] = {}  # the parts of each file that power cuts have lost
        self._failpoints: Failpoints | None = None
        self._max_file_size = self._rng.choice((1, 100, 300, 1000, 100_000))
        self._memory_limit = self._rng.choice((0, 0, 0, 3, 10))
        self._damages = self._rng.choice(("nothing", "checksums", "records"))
        self._serial = 0
        self._job: SyncJob | None = None
        self._job_bodies: set[bytes] = set()
        self._taken: list[QueuedMessage] = []
        # The state of published and unfinished messages: only in memory; put into the disk queue but perhaps not
        # written; written, so they survive the end of the process; synced, so they survive a power cut.
        self._volatile: set[bytes] = set()
        self._pending: set[bytes] = set()
        self._written: set[bytes] = set()
        self._durable: set[bytes] = set()
        self._doomed: set[bytes] = set()  # of a failed sync; the next sync may report success without them
        self._finished: set[bytes] = set()
        self._repeatable: set[bytes] = set()  # may be delivered more than once, because of a crash
        self._known: set[bytes] = set()  # everything ever published
        self._lost_to_damage: set[bytes] = set()

    def perform(self, steps: int) -> None:
        """Run all steps; raises Lost, or any unexpected error of the queue."""
        try:
            with self._os.installed():
                self._open()
                for _ in range(steps):
                    self._step()
                self._arm(None)
                self._restart_cleanly()
                self._drain()
        finally:
            files.set_hook(None)
            self._close_descriptors()
            shutil.rmtree(self._directory)

    def _step(self) -> None:
        action = self._rng.choices(_ACTIONS, _WEIGHTS)[0]
        self.history.append(action.__name__.lstrip("_"))
        self.counts[self.history[-1]] += 1
        try:
            action(self)
        except Stopped:
            self._crashed()

    # Failpoints

    def _arm(self, fault: Fault | None) -> None:
        self._failpoints = Failpoints([fault] if fault is not None else [], _stop)
        files.set_hook(self._hook)

    def _hook(self, operation: FileOperation) -> None:
        assert self._failpoints is not None
        try:
            self._failpoints(operation)
        except OSError:
            if operation.name == files.SYNC:
                self._os.fail_sync(operation.descriptor, RandomSurvival(self._rng))
            if operation.point == "data.sync":
                self._doomed |= self._written - self._durable
            self.history.append(f"  {operation.point} fails")
            raise
        except Stopped:
            self.history.append(f"  stopped at {operation.point}")
            raise
        if operation.name == files.SYNC:
            self._os.begin_sync(operation.descriptor)()

    def _order_fault(self) -> None:
        point, action, argument = self._rng.choice(FAULTS)
        if self._damages == "records" and point.startswith("sums"):
            return  # without its checksum the damage cannot be detected
        first = self._rng.randint(1, 4)
        self._arm(Fault(point, action, argument, first, first + self._rng.choice((0, 0, 3))))

    def _order_stop(self) -> None:
        kind = self._rng.choice(("*", "data", "meta", "sums"))
        self._arm(Fault(f"{kind}.*", self._rng.choice(("stop", "tear")), "", *[self._rng.randint(1, 12)] * 2))

    def _order_nothing(self) -> None:
        self._arm(None)

    # Processes

    def _open(self) -> None:
        self._arm(None)
        disk = DiskQueue(
            NAME,
            str(self._directory),
            self._max_file_size,
            MAX_MESSAGE_SIZE,
            Log(self.history, self._directory),
            lambda: None,
        )
        self._backlog = Backlog(self._memory_limit, disk)
        self._disk = disk

    def _crash(self) -> None:
        self._crashed()

    def _crashed(self) -> None:
        """Apply a crash, which may include a power cut."""
        is_power_cut = self._rng.random() < 0.4
        self.history.append("  power cut" if is_power_cut else "  killed")
        self.counts["power cut" if is_power_cut else "killed"] += 1
        self._forget_life()
        if is_power_cut:
            self._cut_power()
            self._written &= self._durable
        self._repeatable |= self._known
        self._volatile.clear()
        self._pending.clear()
        self._open()
        self._check_depth()

    def _cut_power(self) -> None:
        """Leave in the directory a tree that a power cut may leave."""
        self._os.check()
        image = self._disk_model.after_power_cut(RandomSurvival(self._rng))
        for path in self._directory.iterdir():
            path.unlink()
        image.write_to(self._directory)
        self._disk_model.load(image)
        self._torn_ranges = {
            path: self._torn_ranges.get(path, []) + list(ranges) for path, ranges in image.lost.items()
        }

    def _forget_life(self) -> None:
        files.set_hook(None)
        self._job = None
        self._taken.clear()
        self._close_descriptors()

    def _restart_cleanly(self) -> None:
        """Close as a channel does; messages that cannot be written then are lost, unless they were read from disk."""
        self._end_sync()
        is_damaged = False
        in_memory = self._backlog.drain_memory()
        messages = [item for item in in_memory if isinstance(item, QueuedMessage)] + self._taken
        read = {message.body for message in messages if message.record}
        unread = self._pending | self._volatile
        is_synced = bool(messages or unread) or self._disk.has_unsynced()
        try:
            for item in in_memory:
                if isinstance(item, Batch):
                    self._disk.put_batch(item)
                else:
                    self._disk.put_message(item)
            for message in self._taken:
                self._disk.put_message(message)
            self._disk.finish_all()
            self._disk.close()
        except DiskQueueError:
            self._finished |= unread  # it is unknown how many of them were written before the failure
            self._repeatable |= self._finished | read
        else:
            self._written |= unread
            is_damaged = self._rng.random() < 0.5
            if is_synced:
                self._durable |= self._written - self._doomed
        self._volatile, self._pending = set(), set()
        self._forget_life()
        if is_damaged:
            is_damaged = self._damage()
            self._disk_model.load(Image.read(self._directory))
        self._open()
        if not is_damaged:
            self._check_depth()

    def _close_descriptors(self) -> None:
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith(str(self._directory)):
                    os.close(int(name))
            except OSError:
                pass

    def _damage(self) -> bool:
        """Change a bit of a waiting record, or any bits of the checksums; only one of the two in a run."""
        if self._damages == "checksums":
            for path in sorted(self._directory.glob("*.crc")):
                content = bytearray(path.read_bytes())
                if not content:
                    continue
                position = self._rng.randrange(len(content))
                how = self._rng.choice(("flip", "cut", "remove"))
                self.history.append(f"  checksums: {how}")
                if how == "remove":
                    path.unlink()
                elif how == "cut":
                    path.write_bytes(content[:position])
                else:
                    content[position] ^= 1 << self._rng.randrange(8)
                    path.write_bytes(content)
            return False
        return self._damages == "records" and self._damage_record()

    def _damage_record(self) -> bool:
        records = self._described_records()
        everything = b"".join(path.read_bytes() for path in self._directory.glob("*.dat"))
        waiting = [entry for entry in records if entry[3] in self._written and everything.count(entry[3]) == 1]
        if not waiting:
            return False
        path, position, size, body = self._rng.choice(waiting)
        content = bytearray(path.read_bytes())
        content[position + self._rng.randrange(size)] ^= 1 << self._rng.randrange(8)
        path.write_bytes(content)
        self.history.append(f"  damaged: {body!r}")
        self._written.discard(body)
        self._durable.discard(body)
        self._finished.add(body)
        self._lost_to_damage.add(body)
        return True

    def _described_records(self) -> list[tuple[Path, int, int, bytes]]:
        """Return path, position, size and body of each record that has a checksum.

        A power cut may leave a sidecar without its head. Then an intact record must show that the sidecar belongs to
        the data file, and the damage of a record may go unnoticed. Such files are left out.
        """
        records = []
        for path in sorted(self._directory.glob("*.diskqueue.0*.dat")):
            if not _has_head(Path(sidecar_path(str(path)))):
                continue
            content = path.read_bytes()
            for stretch in scan(str(path), 0, MAX_MESSAGE_SIZE + 26):
                position = stretch.start
                while stretch.kind == GOOD and position < stretch.end:
                    size = 4 + int.from_bytes(content[position : position + 4], "big")
                    records.append((path, position, size, content[position + 30 : position + size]))
                    position += size
        return records

    # Use

    def _bodies(self, count: int) -> list[bytes]:
        bodies = []
        for _ in range(count):
            self._serial += 1
            bodies.append(b"%d:" % self._serial + b"x" * self._rng.randint(0, 100))
        self._known.update(bodies)
        return bodies

    def _room(self) -> int:
        return max(0, self._memory_limit - (self._backlog.depth - self._backlog.disk_depth))

    def _note_put(self, bodies: list[bytes], room: int) -> None:
        self._volatile.update(bodies[:room])
        self._pending.update(bodies[room:])

    def _publish(self) -> None:
        (body,) = self._bodies(1)
        self._note_put([body], self._room())
        self._backlog.put_message(new_message(b"%016x" % self._serial, body, self._serial, 0))

    def _publish_batch(self) -> None:
        bodies = self._bodies(self._rng.randint(1, 12))
        self._note_put(bodies, self._room())
        self._backlog.put_batch(
            new_batch(b"".join(map(sized, bodies)), 0, len(bodies), self._serial, self._serial << 22)
        )

    def _write(self) -> None:
        try:
            self._disk.write_pending()
        except DiskQueueError:
            return
        self._written |= self._pending
        self._pending.clear()

    def _consume(self) -> None:
        for _ in range(self._rng.randint(1, 8)):
            message = self._backlog.get()
            if message is None:
                return
            self._check_delivered(message)
            self._taken.append(message)

    def _take_one(self) -> QueuedMessage | None:
        return self._taken.pop(self._rng.randrange(len(self._taken))) if self._taken else None

    def _finish(self) -> None:
        for _ in range(self._rng.randint(1, 6)):
            message = self._take_one()
            if message is not None:
                self._backlog.finish(message)
                for place in (self._volatile, self._pending, self._written, self._durable):
                    place.discard(message.body)
                self._finished.add(message.body)

    def _requeue(self) -> None:
        message = self._take_one()
        if message is not None:
            if not message.record:
                self._volatile.discard(message.body)
                self._note_put([message.body], min(1, self._room()))
            self._backlog.put_back(message)

    def _begin_sync(self) -> None:
        if self._job is None:
            try:
                self._job = self._disk.begin_sync(saves_positions=self._rng.random() < 0.5)
            except OSError:
                return
            self._job_bodies = set(self._written)

    def _end_sync(self) -> None:
        job, self._job = self._job, None
        if job is None:
            return
        job.run()
        self._disk.end_sync(job)
        if job.error is None:
            self._durable |= (self._job_bodies & self._written) - self._doomed

    def _release_idle_files(self) -> None:
        self._disk.release_idle_files()

    def _empty(self) -> None:
        if self._rng.random() < 0.9:
            return
        gone = self._volatile | self._pending | self._written
        self._finished |= gone
        self._repeatable |= gone
        self._taken.clear()
        for place in (self._volatile, self._pending, self._written, self._durable):
            place.clear()
        try:
            self._backlog.empty()
        except OSError:
            pass

    # Checks

    def _check_delivered(self, message: QueuedMessage) -> None:
        body = message.body
        if body not in self._known:
            if not self._is_torn(body):
                raise Lost(f"garbage is delivered: {body!r}")
            self.counts["torn message"] += 1
            self._known.add(body)
            self._repeatable.add(body)  # two torn messages may be equal
        if body in self._lost_to_damage:
            raise Lost(f"a damaged message was delivered: {body!r}")
        if any(body == other.body for other in self._taken) and body not in self._repeatable:
            raise Lost(f"{body!r} is delivered twice")
        if body in self._finished and body not in self._repeatable:
            raise Lost(f"{body!r} was finished and delivered again")
        if message.record and body not in self._finished:
            # It was written early because a file was full, or a torn write contained the whole record.
            self._pending.discard(body)
            self._written.add(body)

    def _is_torn(self, body: bytes) -> bool:
        """True if a body is in a part of a file that a power cut has lost.

        Records have checksums from the sync that makes them durable. So a power cut may leave a record whose length is
        intact and whose body is not, if no sync had covered it, and the queue delivers it.
        """
        for path, ranges in self._torn_ranges.items():
            content = (self._directory / path).read_bytes() if (self._directory / path).exists() else b""
            position = content.find(body)
            while position >= 0:
                if any(start < position + len(body) and position - RECORD_HEAD_SIZE < end for start, end in ranges):
                    return True
                position = content.find(body, position + 1)
        return False

    def _check_depth(self) -> None:
        """Check, after opening, that a copy of the directory has as many messages as the depth of the queue."""
        with tempfile.TemporaryDirectory(dir=FAST_DIRECTORY) as directory:
            files.set_hook(None)
            shutil.copytree(self._directory, directory, dirs_exist_ok=True)
            copied = DiskQueue(
                NAME, directory, self._max_file_size, MAX_MESSAGE_SIZE, Log([], self._directory), lambda: None
            )
            depth = copied.depth
            bodies = []
            while (message := copied.get()) is not None:
                bodies.append(message.body)
            copied.close()
        self._arm(None)
        missing = self._written - set(bodies)
        if missing:
            raise Lost(f"lost: {sorted(missing)}")
        # Truncated files and damaged records are detected only when they are read.
        is_exact = not self._lost_to_damage and not self.counts["power cut"]
        if depth != len(bodies) and is_exact:
            raise Lost(f"depth {depth}, but {len(bodies)} messages")

    def _drain(self) -> None:
        come: set[bytes] = set()
        while (message := self._backlog.get()) is not None:
            self._check_delivered(message)
            come.add(message.body)
        missing = self._written - come
        if missing:
            raise Lost(f"lost: {sorted(missing)}")
        if self._disk.depth:
            raise Lost(f"depth {self._disk.depth} of an empty queue")
        self._disk.close()


def _has_head(sidecar: Path) -> bool:
    """True if the head of a sidecar is intact."""
    head = sidecar.read_bytes()[:SIDECAR_HEAD_SIZE] if sidecar.exists() else b""
    return len(head) == SIDECAR_HEAD_SIZE and crc32(head[:-4]) == int.from_bytes(head[-4:], "big")


def _stop() -> None:
    raise Stopped


_CHOICES: dict[Callable[[Run], None], int] = {
    Run._publish: 8,
    Run._publish_batch: 8,
    Run._write: 14,
    Run._consume: 10,
    Run._finish: 8,
    Run._requeue: 5,
    Run._begin_sync: 5,
    Run._end_sync: 5,
    Run._release_idle_files: 1,
    Run._empty: 1,
    Run._order_fault: 2,
    Run._order_stop: 3,
    Run._order_nothing: 3,
    Run._crash: 2,
    Run._restart_cleanly: 2,
}
_ACTIONS, _WEIGHTS = list(_CHOICES), list(_CHOICES.values())


def run_seed(seed: int, steps: int = 60) -> Run:
    """Perform the run of a seed; a failure includes the seed."""
    run = Run(seed)
    try:
        run.perform(steps)
    except Exception as failure:
        tail = "\n".join(run.history[-60:])
        raise AssertionError(f"{failure}\n{tail}\nNSQX_SEED={seed} repeats this run") from failure
    return run
