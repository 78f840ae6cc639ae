"""A LogStore under random use, faults, crashes, power cuts and restarts, against a model of losses.

The seed determines the whole run. It publishes, finishes, requeues, defers, cancels, makes dead letters and redrives
them, moves channels back and forth, deletes topics, commits and checkpoints. Commit files and segments are so small
that they change all the time. Producers number some of their publishes, and repeat after a crash those that were not
acknowledged: then each is stored once. The model knows for each message and each change whether it is only in memory,
written, or durable. It checks after every step and every restart that nothing is lost that must not be lost, that an
offset names one message for ever, and that depths are exact. Segments are removed too: none that is needed, and all
but one of each log if everything is finished.

What a restart finds is also the beginning of what was appended: the messages and changes up to some batch, and no later
one. A change that survives without an earlier one could make messages unreachable.

Segments are also kept for replay, ended early, and dropped with unfinished messages by trims. What a trim dropped never
comes back. A few unfinished messages are copied to the end of their log: after a crash there is the old one or the
copy, never both and never none.
"""

import os
import random
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from disk_model import PAGE_SIZE, SECTOR_SIZE, DiskModel, Image, RandomSurvival
from recording_os import RecordingOS

from nsqx.queues import files
from nsqx.queues.failpoints import Failpoints, Fault, Stopped
from nsqx.queues.files import FileOperation
from nsqx.queues.log.batch import ADDRESSED, DEFERRED, MESSAGES, PRODUCER, LogBatch, channel_of, origin_of
from nsqx.queues.log.log import TopicLog
from nsqx.queues.log.producers import ProducerTag
from nsqx.queues.log.recovery import NO_BOOT_ID
from nsqx.queues.log.segment import KEEP_NOTHING
from nsqx.queues.log.state import Changes, Hole
from nsqx.queues.log.store import LogOptions, LogStore

if TYPE_CHECKING:
    from nsqx.queues.log.jobs import CheckpointJob, CommitJob
    from nsqx.queues.log.log import ReadJob

# A directory where a sync takes no time.
FAST_DIRECTORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
TOPICS = ("orders", "orders.dead", "clicks")
PRODUCERS = ("billing-1", "x" * 64)
NEVER = 1 << 62  # more batches than a log ever has
FAULTS = (
    ("commit.writev", "fail", "EIO"),
    ("commit.writev", "short", "ENOSPC"),
    ("commit.datasync", "fail", "EIO"),
    ("commit.*", "fail", "ENOSPC"),
    ("segment.writev", "short", "ENOSPC"),
    ("segment.datasync", "fail", "EIO"),
    ("segment.open", "fail", "EMFILE"),
    ("segment.*", "fail", "ENOSPC"),
    ("directory.*", "fail", "EIO"),
    ("index.*", "fail", "ENOSPC"),
    ("*.*", "fail", "EIO"),
)


class Lost(AssertionError):
    """The store has lost or changed something that it must keep."""


@dataclass
class Fact:
    """A message as it was published. ``channel`` is 0 for all channels."""

    kind: int
    body: bytes
    channel: int = 0
    due_ns: int = 0
    releases: tuple[int, ...] = ()
    origin: bytes = b""


@dataclass
class Operation:
    """A change of the state. ``offsets`` of a channel are affected, or the whole channel if it is None."""

    number: int  # among the batches of the log
    channel: int
    offsets: frozenset[int] | None


@dataclass
class ModelChannel:
    """A channel. Everything from ``start`` on is for it, except what is finished."""

    start: int
    finished: set[int] = field(default_factory=set)
    holes: dict[int, Hole] = field(default_factory=dict)  # requeued explicitly
    was_moved: bool = False  # to another position, so finished messages may be unfinished again

    def trim(self, first: int) -> None:
        self.start = max(self.start, first)
        self.finished = {offset for offset in self.finished if offset >= first}
        self.holes = {offset: hole for offset, hole in self.holes.items() if offset >= first}

    def is_unfinished(self, offset: int) -> bool:
        return offset in self.holes or (offset >= self.start and offset not in self.finished)


@dataclass
class NumberedPublish:
    """A publish of a producer. It is acknowledged when ``number`` batches of its log are durable."""

    producer: str
    seq: int
    bodies: list[bytes]
    kind: int
    due_ns: int
    first: int = -1  # offset; -1 if it is not stored
    number: int = 0
    is_acknowledged: bool = False


class Moment(NamedTuple):
    """A log after a change: the serial of the change, the end of the messages before it, and all channels then."""

    serial: int
    end: int
    unclaimed: int
    channels: dict[int, tuple[str, int, dict[int, Hole]]]


@dataclass
class ModelTopic:
    """What is known about one log."""

    log: TopicLog
    names: dict[int, Fact] = field(default_factory=dict)  # of all lives
    present: set[int] = field(default_factory=set)  # written, and seen after the last restart if it was before
    unwritten: dict[int, Fact] = field(default_factory=dict)  # appended in this life, or recovered and not seen yet
    recovered: set[int] = field(default_factory=set)  # not seen yet in this life
    expected: set[int] = field(default_factory=set)  # at a restart: all messages of the life before
    operations: list[Operation] = field(default_factory=list)  # of this life
    moments: list[Moment] = field(default_factory=list)  # of this life, the first one at its start
    channels: dict[int, ModelChannel] = field(default_factory=dict)
    deferred: dict[int, int] = field(default_factory=dict)
    discarded: set[int] = field(default_factory=set)  # deferred messages, durably
    numbered: list[NumberedPublish] = field(default_factory=list)
    unrepeated: set[str] = field(default_factory=set)  # producers that must repeat their publishes after a crash
    forgotten: set[str] = field(default_factory=set)  # producers that may be unknown
    cancelled: dict[int, int] = field(default_factory=dict)  # deferred messages: the number of the batch, in this life
    once_cancelled: set[int] = field(default_factory=set)  # in all lives
    trims: list[tuple[int, int]] = field(default_factory=list)  # numbers among the batches of this life, and offsets
    first: int = 0  # what is below it was dropped before this life
    copied: set[int] = field(default_factory=set)  # offsets of copies
    vanished: set[int] = field(default_factory=set)  # that the last power cut has taken away
    seen_first: int = 0  # of the first segment in this life
    written_count: int = 0
    safe_count: int = 0
    stable: int = 0
    is_known: bool = False  # was there after a restart, so it must be there after a crash without a power cut
    was_safe: bool = False  # something of it was durable
    is_deleted: bool = False

    @property
    def key(self) -> int:
        return self.log.identity.log_id

    def fact(self, offset: int) -> Fact:
        return self.names.get(offset) or self.unwritten[offset]

    def for_channel(self, number: int) -> Iterator[int]:
        """Yield the present messages that a channel gets."""
        for offset in self.present:
            fact = self.fact(offset)
            if fact.kind == MESSAGES or (fact.kind == ADDRESSED and fact.channel == number):
                yield offset

    def unfinished(self, number: int) -> list[int]:
        channel = self.channels[number]
        return [offset for offset in self.for_channel(number) if channel.is_unfinished(offset)]


@dataclass
class Move:
    """A message that was finished in one topic and appended to another, in one frame."""

    source: ModelTopic
    channel: int
    offset: int
    target: ModelTopic
    target_offset: int


@dataclass
class Copy:
    """A message of a channel, or a deferred one, that was appended again and finished at its old place: one frame."""

    topic: ModelTopic
    channel: int  # 0 for a deferred message
    offset: int
    again: int


class Logger:
    """Keeps the log lines of the store."""

    def __init__(self, history: list[str]) -> None:
        self._history = history

    def info(self, text: str, *args: object) -> None:
        """Ignore the line."""

    def warn(self, text: str, *args: object) -> None:
        self._history.append("  warning: " + text % args)

    error = warn


def items_of(bodies: Sequence[bytes]) -> bytes:
    """Return bodies as they are in an MPUB."""
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def read_all(log: TopicLog) -> tuple[dict[int, Fact], int]:
    """Return every message that can be read, and the number of those that are found to be lost."""
    found: dict[int, Fact] = {}
    lost_count = 0
    offset = log.first
    while offset < log.written:
        batch = log.batch_at(offset)
        batches = [batch] if batch is not None else []
        following = batch.end if batch is not None else offset
        if batch is None:
            job = log.begin_read(offset, 300)
            job.run()
            lost_count += log.end_read(job)
            batches, following = job.batches, job.next
        for one in batches:
            found.update(_facts(one))
        if following <= offset:
            raise Lost(f"reading does not advance at {offset} of {log.written}")
        offset = following
    return found, lost_count


def _facts(batch: LogBatch) -> Iterator[tuple[int, Fact]]:
    channel = channel_of(batch)[0] if batch.kind == ADDRESSED else 0
    for offset, body in batch.bodies():
        yield offset, Fact(batch.kind, body, channel, origin=origin_of(batch))


class Run:
    """One run. ``history`` lists its steps, for the analysis of a failure."""

    def __init__(self, seed: int, topics: Sequence[str] = TOPICS) -> None:
        self.seed = seed
        self._names = topics
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()
        self.operation_count = 0
        self._rng = rng = random.Random(seed)
        self._directory = Path(tempfile.mkdtemp(prefix="log-model-", dir=FAST_DIRECTORY))
        # The files are small, so pages and sectors are too, in half of the runs.
        page_size, sector_size = rng.choice(((PAGE_SIZE, SECTOR_SIZE), (64, 8)))
        self._disk_model = DiskModel(self._directory, Image(), page_size, sector_size)
        self._os = RecordingOS(self._disk_model)
        self._failpoints = Failpoints([], _stop)
        self._boot = 1
        self._has_boot_id = rng.random() < 0.9
        self._choices = rng.choice((_CHOICES, _NUMBERED_CHOICES, _UNSYNCED_CHOICES))
        self._options = LogOptions(
            commit_size=8192 + rng.choice((1500, 3000, 20_000)),
            segment_size=rng.choice((1, 700, 2000, 100_000)),
            direct_size=rng.choice((300, 1000, 100_000)),
            unsynced_direct_size=rng.choice((300, 1000, 100_000)),
            memory_size=rng.choice((0, 500, 100_000)),
            unsynced_size=rng.choice((500, 100_000)),
            lease_step=rng.choice((4, 20, 1000)),
            idle_size=rng.choice((0, 1000, 100_000)),
        )
        if self._choices is not _CHOICES and rng.random() < 0.7:
            # Commits are synced only if they must be, so that a power cut takes away a lot.
            self._options = replace(
                self._options, segment_size=100_000, unsynced_direct_size=rng.choice((300, 1000)), lease_step=10_000
            )
        if self._choices is _UNSYNCED_CHOICES:
            self._options = replace(self._options, commit_size=8192 + 20_000, unsynced_size=100_000)
        self._serial = 0
        self._next_channel = 1
        self._topics: dict[int, ModelTopic] = {}  # by log id
        self._forgotten: dict[int, ModelTopic] = {}  # deleted, perhaps not durably
        self._moves: list[Move] = []
        self._copies: list[Copy] = []
        self._has_lost_pages = False
        self._was_recovering = False  # when the last life ended
        self._commit: CommitJob | None = None
        self._checkpoint: CheckpointJob | None = None
        self._read: tuple[TopicLog, ReadJob] | None = None

    # Running

    def perform(self, steps: int | Sequence[str]) -> None:
        """Run random steps, or the given ones; raises Lost, or any unexpected error of the store."""
        names = steps if not isinstance(steps, int) else None
        try:
            with self._os.installed():
                files.set_hook(self._hook)
                self._open()
                if names is not None:
                    for name in names:
                        self._step(getattr(type(self), f"_{name}"))
                else:
                    for _ in range(steps if isinstance(steps, int) else 0):
                        self._step(self._rng.choices(list(self._choices), list(self._choices.values()))[0])
                self._order_nothing()
                self._restart_cleanly()
                self._repeat_all()
                self._restart_cleanly()
                if not all(one.is_acknowledged for topic in self._topics.values() for one in topic.numbered):
                    raise Lost("a publish was repeated and is not acknowledged")
        finally:
            files.set_hook(None)
            self._close_descriptors()
            shutil.rmtree(self._directory)

    def arm(self, fault: Fault) -> None:
        """Inject a fault."""
        self._failpoints = Failpoints([fault], _stop)

    def _step(self, action: Callable[["Run"], None]) -> None:
        self.history.append(action.__name__.lstrip("_"))
        self.counts[self.history[-1]] += 1
        try:
            action(self)
        except Stopped:
            self._crashed()
        self._check_live()

    def _hook(self, operation: FileOperation) -> None:
        self.operation_count += 1
        is_sync = operation.name in (files.SYNC, files.DATASYNC)
        try:
            self._failpoints(operation)
        except OSError:
            if is_sync:
                self._os.fail_sync(operation.descriptor, RandomSurvival(self._rng))
                self._has_lost_pages = True
            self.history.append(f"  {operation.point} fails")
            self.counts["fault"] += 1
            raise
        except Stopped:
            self.history.append(f"  stopped at {operation.point}")
            raise
        if is_sync:
            self._os.begin_sync(operation.descriptor)()

    def _order_fault(self) -> None:
        point, action, argument = self._rng.choice(FAULTS)
        first = self._rng.randint(1, 4)
        self.arm(Fault(point, action, argument, first, first + self._rng.choice((0, 0, 3))))

    def _order_stop(self) -> None:
        kind = self._rng.choice(("*", "commit", "segment", "directory"))
        self.arm(Fault(f"{kind}.*", self._rng.choice(("stop", "tear")), "", *[self._rng.randint(1, 12)] * 2))

    def _order_nothing(self) -> None:
        self._failpoints = Failpoints([], _stop)

    # Lives

    def _open(self) -> None:
        boot_id = self._boot.to_bytes(16, "big") if self._has_boot_id else NO_BOOT_ID
        self._store = LogStore(str(self._directory), self._options, boot_id, Logger(self.history))
        self._commit = self._checkpoint = self._read = None
        # After a failed sync, a power cut may take away data that every later process has seen.
        if self._store.damaged_count and not self._has_lost_pages:
            raise Lost("damage is reported, but there is none")

    def _crash(self) -> None:
        self._crashed()

    def _cut_power(self) -> None:
        self._crashed(power_cut_share=1)

    def _crashed(self, power_cut_share: float = 0.4) -> None:
        """End the process at once, perhaps with the power, perhaps again while it starts."""
        is_power_cut = False
        self._was_recovering = self._store.is_recovering
        while True:
            is_power_cut = self._end_life(self._rng.random() < power_cut_share) or is_power_cut
            self._order_nothing()
            if self._rng.random() < 0.3:
                self.arm(Fault("*.*", "stop", "", *[self._rng.randint(1, 30)] * 2))
            try:
                self._open()
                break
            except Stopped:
                self.counts["stopped while starting"] += 1
        self._check_restart(is_power_cut)
        if self._rng.random() < 0.5:
            self._repeat_all()

    def _end_life(self, is_power_cut: bool) -> bool:
        self.history.append("  power cut" if is_power_cut else "  killed")
        self.counts["power cut" if is_power_cut else "killed"] += 1
        self._close_descriptors()
        if is_power_cut:
            self._os.check()
            image = self._disk_model.after_power_cut(RandomSurvival(self._rng))
            for path in self._directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            image.write_to(self._directory)
            self._disk_model.load(image)
            self._boot += 1
        return is_power_cut

    def _restart_cleanly(self) -> None:
        self._end_commit()
        self._end_checkpoint()
        try:
            self._store.close()
        except OSError:
            self._note_progress()
            self._end_life(False)
            is_complete = False
        else:
            for topic in self._topics.values():
                self._settle(topic)
            is_complete = True
            self._close_descriptors()
            self._boot += self._rng.choice((0, 1))
        self._order_nothing()
        self._open()
        if is_complete and self._store.is_recovering:
            raise Lost("not clean after a clean end")
        self._check_restart(False)

    def _settle(self, topic: ModelTopic) -> None:
        for numbered in topic.numbered:
            numbered.is_acknowledged = numbered.is_acknowledged or numbered.first >= 0
        topic.written_count = topic.safe_count = topic.log.given_count
        topic.present |= topic.unwritten.keys()
        topic.names.update(topic.unwritten)
        topic.unwritten.clear()
        topic.recovered.clear()
        topic.stable = topic.log.stable
        topic.was_safe = topic.was_safe or topic.safe_count > 0

    def _close_descriptors(self) -> None:
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith(str(self._directory)):
                    os.close(int(name))
            except OSError:
                pass

    # Use

    def _topic(self, others: Sequence[str] = ()) -> ModelTopic:
        name = self._rng.choice(others or self._names)
        log = self._store.logs.get(name)
        if log is None:
            log = self._store.create_log(name, self._serial << 22, self._serial)
            if log.identity.log_id in self._topics:
                raise Lost("a log id was used twice")
            self._topics[log.identity.log_id] = ModelTopic(log)
            self._note_moment(self._topics[log.identity.log_id], 0)
        return self._topics[log.identity.log_id]

    def _facts(self, count: int, kind: int = MESSAGES, size: int = 40, **fields: object) -> list[Fact]:
        facts = []
        for _ in range(count):
            self._serial += 1
            body = b"%d:" % self._serial + b"x" * self._rng.randint(0, size)
            facts.append(Fact(kind, body, **fields))  # type: ignore[arg-type]
        return facts

    def _note_appended(self, topic: ModelTopic, first: int, facts: list[Fact]) -> None:
        for offset, fact in enumerate(facts, first):
            if offset in topic.names or offset in topic.unwritten:
                raise Lost(f"offset {offset} of {topic.log.topic} names {topic.fact(offset)} and {fact}")
            topic.unwritten[offset] = fact

    def _publish(self) -> None:
        topic = self._topic()
        facts = self._facts(self._rng.randint(1, 6))
        first = topic.log.gather(items_of([fact.body for fact in facts]), len(facts), self._serial)
        self._note_appended(topic, first, facts)

    def _publish_much(self) -> None:
        topic = self._topic()
        facts = self._facts(self._rng.randint(3, 30), size=100)
        first = topic.log.append(items_of([fact.body for fact in facts]), len(facts), self._serial)
        self._note_appended(topic, first, facts)

    def _publish_numbered(self) -> None:
        """Publish with a number, or repeat everything that is not acknowledged, in order."""
        topic = self._topic(self._names[:1])
        producer = self._rng.choice(PRODUCERS)
        unacknowledged = [one for one in topic.numbered if one.producer == producer and not one.is_acknowledged]
        if producer in topic.unrepeated or (unacknowledged and self._rng.random() < 0.3):
            self._repeat(topic, producer)
            return
        self._serial += self._rng.choice((1, 1, 5))
        is_deferred = self._rng.random() < 0.2
        due_ns = self._rng.randint(1, 1 << 60) if is_deferred else 0
        size = self._rng.choice((40, 40, 150))
        facts = self._facts(self._rng.randint(1, 12), DEFERRED if is_deferred else MESSAGES, size)
        numbered = NumberedPublish(producer, self._serial, [fact.body for fact in facts], facts[0].kind, due_ns)
        topic.numbered.append(numbered)
        self._store_once(topic, numbered)

    def _repeat_all(self) -> None:
        for topic in self._topics.values():
            if not topic.is_deleted:
                for producer in PRODUCERS:
                    self._repeat(topic, producer)

    def _repeat(self, topic: ModelTopic, producer: str) -> None:
        topic.unrepeated.discard(producer)
        for numbered in topic.numbered:
            if numbered.producer == producer and not numbered.is_acknowledged:
                self._store_once(topic, numbered)

    def _store_once(self, topic: ModelTopic, numbered: NumberedPublish) -> None:
        """Publish as nsqd does: not again what is there."""
        log = topic.log
        last = log.state.producers.find(numbered.producer)
        if last is not None and numbered.seq <= last.seq:
            if numbered.first < 0:
                raise Lost(f"{numbered} of {log.topic} is not stored, but {last} says so")
            self.counts["duplicate"] += 1
            numbered.is_acknowledged = last.end <= log.stable
        else:
            if numbered.first >= 0:
                raise Lost(f"{numbered} of {log.topic} is stored, but {last} does not say so")
            count = len(numbered.bodies)
            tag = ProducerTag(numbered.producer, numbered.seq, last.seq if last is not None else 0, count)
            values, due_ns = {PRODUCER: tag.encode()}, numbered.due_ns
            numbered.first = log.publish(items_of(numbered.bodies), count, self._serial, values, due_ns)
            self._note_appended(
                topic, numbered.first, [Fact(numbered.kind, body, due_ns=due_ns) for body in numbered.bodies]
            )
            if due_ns:
                topic.deferred.update({numbered.first + index: due_ns for index in range(count)})
        numbered.number = log.given_count + log.pending_count

    def _forget_producers(self) -> None:
        """Forget all producers but one. They do not repeat their publishes any more."""
        topic = self._topic(self._names[:1])
        names = [name for name, _ in topic.log.state.producers.items()]
        if topic.log.forget_producers(1, 0) != max(0, len(names) - 1):
            raise Lost(f"of the producers {names} of {topic.log.topic} not all but one were forgotten")
        topic.forgotten.update(names[:-1])
        topic.numbered = [one for one in topic.numbered if one.producer not in names[:-1]]

    def _publish_deferred(self) -> None:
        topic = self._topic()
        due_ns = self._rng.randint(1, 1 << 60)
        facts = self._facts(self._rng.randint(1, 3), DEFERRED, due_ns=due_ns)
        first = topic.log.append_deferred(items_of([fact.body for fact in facts]), len(facts), self._serial, due_ns)
        self._note_appended(topic, first, facts)
        topic.deferred.update({first + index: due_ns for index in range(len(facts))})

    def _publish_addressed(self) -> None:
        topic = self._topic()
        if topic.channels:
            number = self._rng.choice(sorted(topic.channels))
            facts = self._facts(self._rng.randint(1, 3), ADDRESSED, channel=number)
            data = items_of([fact.body for fact in facts])
            self._note_appended(topic, topic.log.append_addressed(number, data, len(facts), self._serial), facts)

    def _release(self) -> None:
        topic = self._topic()
        due = [offset for offset in sorted(topic.deferred) if offset in topic.present][:3]
        if due:
            (fact,) = self._facts(1)
            fact.releases = tuple(due)
            first = topic.log.append(items_of([fact.body]), 1, self._serial, due)
            self._note_appended(topic, first, [fact])
            for offset in due:
                del topic.deferred[offset]

    def _recovered_serial(self, log: TopicLog) -> int:
        """Return the serial of the last change at a start, without that of the start itself, which is not written."""
        return log.state.serial - (1 if log in self._store._skipping else 0)

    def _note_moment(self, topic: ModelTopic, serial: int) -> None:
        state = topic.log.state
        channels = {one.number: (one.name, one.next, dict(one.holes)) for one in state.channels.values()}
        topic.moments.append(Moment(serial, state.end, state.unclaimed, channels))

    def _change(self, topic: ModelTopic, changes: Changes, channel: int, offsets: Sequence[int] | None) -> None:
        topic.log.change(changes)
        self._note_moment(topic, topic.log.state.serial)
        number = topic.log.given_count + topic.log.pending_count
        topic.operations.append(Operation(number, channel, None if offsets is None else frozenset(offsets)))

    def _create_channels(self) -> None:
        """Create a channel in each topic; for scripts."""
        for name in TOPICS:
            self._create_channel_of(self._topic([name]))

    def _create_channel(self) -> None:
        self._create_channel_of(self._topic())

    def _create_channel_of(self, topic: ModelTopic) -> None:
        if len(topic.channels) >= 3:
            return
        number, self._next_channel = self._next_channel, self._next_channel + 1
        start = topic.log.end if topic.channels else topic.log.state.unclaimed
        changes = Changes()
        changes.create_channel(number, f"channel{number}", start)
        self._change(topic, changes, number, None)
        topic.channels[number] = ModelChannel(start)

    def _delete_channel(self) -> None:
        topic = self._topic()
        if topic.channels and self._rng.random() < 0.3:
            number = self._rng.choice(sorted(topic.channels))
            changes = Changes()
            changes.delete_channel(number)
            if len(topic.channels) == 1:
                changes.set_unclaimed(topic.log.end)
            self._change(topic, changes, number, None)
            del topic.channels[number]

    def _some_unfinished(self, topic: ModelTopic) -> tuple[int, list[int]]:
        if not topic.channels:
            return 0, []
        number = self._rng.choice(sorted(topic.channels))
        unfinished = sorted(topic.unfinished(number))[:20]
        return number, sorted(self._rng.sample(unfinished, min(len(unfinished), self._rng.randint(1, 8))))

    def _finish(self) -> None:
        topic = self._topic()
        number, offsets = self._some_unfinished(topic)
        if offsets:
            self._finish_offsets(topic, number, offsets)

    def _finish_all(self) -> None:
        """Finish everything that channels can see."""
        for topic in [topic for topic in self._topics.values() if not topic.is_deleted]:
            for number in topic.channels:
                self._finish_offsets(topic, number, sorted(topic.unfinished(number)))

    def _finish_offsets(self, topic: ModelTopic, number: int, offsets: list[int]) -> None:
        changes = Changes()
        changes.finish(number, [(offset, offset + 1) for offset in offsets])
        self._change(topic, changes, number, offsets)
        topic.channels[number].finished.update(offsets)
        for offset in offsets:
            topic.channels[number].holes.pop(offset, None)

    def _requeue(self) -> None:
        topic = self._topic()
        number, offsets = self._some_unfinished(topic)
        if offsets:
            holes = [(offset, Hole(self._rng.randint(1, 300), self._rng.choice((0, 1 << 50)))) for offset in offsets]
            changes = Changes()
            changes.requeue(number, holes)
            self._change(topic, changes, number, offsets)
            topic.channels[number].holes.update(holes)

    def _empty_channel(self) -> None:
        topic = self._topic()
        if topic.channels and self._rng.random() < 0.3:
            number = self._rng.choice(sorted(topic.channels))
            changes = Changes()
            changes.move(number, topic.log.end)
            self._change(topic, changes, number, None)
            topic.channels[number] = ModelChannel(topic.log.end)

    def _seek(self) -> None:
        """Move a channel to any offset that the log has, back or forth."""
        topic = self._topic()
        if topic.channels:
            number = self._rng.choice(sorted(topic.channels))
            offset = self._rng.choice((topic.log.first_kept, self._rng.randint(topic.log.first_kept, topic.log.end)))
            changes = Changes()
            changes.move(number, offset)
            self._change(topic, changes, number, None)
            topic.channels[number] = ModelChannel(offset, was_moved=True)
            # A message that was moved to another topic may be delivered again here.
            self._moves = [move for move in self._moves if (move.source, move.channel) != (topic, number)]
            self._copies = [copy for copy in self._copies if (copy.topic, copy.channel) != (topic, number)]

    def _move_message(self) -> None:
        """Finish a message here and append it there, as a dead letter: both or none."""
        source = self._topic()
        number, offsets = self._some_unfinished(source)
        if not offsets:
            return
        target = self._topic([name for name in TOPICS if name != source.log.topic])
        self._finish_offsets(source, number, offsets[:1])
        facts = self._facts(1, origin=b'{"offset":%d}' % offsets[0])
        first = target.log.append_letter(items_of([facts[0].body]), self._serial, facts[0].origin)
        self._note_appended(target, first, facts)
        self._store.join(source.log, target.log)
        if not source.channels[number].was_moved:
            self._moves.append(Move(source, number, offsets[0], target, first))

    def _redrive(self) -> None:
        """Finish messages here and append them there for one channel, as redriven letters: both or none."""
        letters = self._topic()
        self._redrive_to(letters, self._topic([name for name in TOPICS if name != letters.log.topic]))

    def _redrive_all(self) -> None:
        """Redrive letters of all other topics to the first one; for scripts."""
        for name in TOPICS[1:]:
            self._redrive_to(self._topic([name]), self._topic(TOPICS[:1]))

    def _redrive_to(self, letters: ModelTopic, source: ModelTopic) -> None:
        number, offsets = self._some_unfinished(letters)
        if not offsets or not source.channels:
            return
        channel = self._rng.choice(sorted(source.channels))
        facts = self._facts(len(offsets), ADDRESSED, channel=channel)
        first = source.log.append_addressed(channel, items_of([f.body for f in facts]), len(facts), self._serial)
        self._note_appended(source, first, facts)
        self._finish_offsets(letters, number, offsets)
        self._store.join(letters.log, source.log)
        if not letters.channels[number].was_moved:
            for index, offset in enumerate(offsets):
                self._moves.append(Move(letters, number, offset, source, first + index))

    def _cancel(self) -> None:
        """Discard a deferred message."""
        topic = self._topic()
        if topic.deferred:
            offset = self._rng.choice(sorted(topic.deferred))
            changes = Changes()
            changes.remove_deferred([offset])
            topic.log.change(changes)
            del topic.deferred[offset]
            topic.cancelled[offset] = topic.log.given_count + topic.log.pending_count
            topic.once_cancelled.add(offset)

    def _copy_forward(self) -> None:
        """Append unfinished messages again, and finish the old ones: both or none."""
        topic = self._topic()
        log = topic.log
        number, offsets = self._some_unfinished(topic)
        for offset in offsets[:4]:
            fact = Fact(ADDRESSED, topic.fact(offset).body, number)
            hole = topic.channels[number].holes.get(offset, Hole())
            again = log.append_addressed(number, items_of([fact.body]), 1, self._serial, hole.attempts, hole.due_ns)
            self._note_appended(topic, again, [fact])
            self._finish_offsets(topic, number, [offset])
            topic.copied.add(again)
            if not topic.channels[number].was_moved:
                self._copies.append(Copy(topic, number, offset, again))
        for offset in [offset for offset in sorted(topic.deferred) if offset in topic.present][:3]:
            fact = Fact(DEFERRED, topic.fact(offset).body, due_ns=topic.deferred[offset], releases=(offset,))
            again = log.append_deferred(items_of([fact.body]), 1, self._serial, fact.due_ns, [offset])
            self._note_appended(topic, again, [fact])
            topic.deferred[again] = topic.deferred.pop(offset)
            topic.copied.add(again)
            self._copies.append(Copy(topic, 0, offset, again))
        self._store.join(log)

    def _trim(self) -> None:
        """Drop every message below an offset, finished or not."""
        topic = self._topic()
        segments = topic.log.writer.segments
        firsts = [segment.first for segment in segments if segment.first <= topic.log.written]
        first = self._rng.choice([*firsts, self._rng.randint(topic.log.first, max(topic.log.first, topic.log.written))])
        first = max(first, topic.log.first)
        affected = {number: [o for o in topic.unfinished(number) if o < first] for number in topic.channels}
        changes = Changes()
        changes.trim(first)
        self._change(topic, changes, 0, [])
        count = topic.operations[-1].number
        topic.trims.append((count, first))
        for number, offsets in affected.items():
            topic.operations.append(Operation(count, number, frozenset(offsets)))
            topic.channels[number].trim(first)
        topic.deferred = {offset: due_ns for offset, due_ns in topic.deferred.items() if offset >= first}

    def _keep(self) -> None:
        """Keep finished segments for replay from some offset on, or none."""
        topic = self._topic()
        keep_from = self._rng.choice([KEEP_NOTHING, self._rng.randint(0, topic.log.end)])
        if not topic.log.is_writing:
            topic.log.writer.keep_from = keep_from
        self._store.look_at(topic.log)

    def _end_segment(self) -> None:
        """End the newest segment early."""
        topic = self._topic()
        if not topic.log.is_writing:
            topic.log.writer.is_roll_wanted = True
        self._store.look_at(topic.log)

    def _trim_and_crash(self) -> None:
        self._publish_much()
        self._commit_now()
        self._complete_checkpoint()
        self._publish_much()
        self._commit_now()
        self._trim()
        self._commit_now()
        self._remove_finished()
        self._crashed()

    def _append_and_cut_power(self) -> None:
        """Cut the power after several writes of many batches each, none of which must be durable."""
        self._end_commit()
        if self._store.is_recovering:
            self._complete_checkpoint()
        self._publish()
        self._commit = self._store.begin_commit(is_synced=True)
        self._end_commit()
        for _ in range(self._rng.randint(1, 3)):
            for _ in range(self._rng.randint(1, 12)):
                self._rng.choice(_APPENDING)(self)
            self._commit_unsynced()
        self._crashed(power_cut_share=1)

    def _delete_topic(self) -> None:
        if self._rng.random() < 0.3:
            topic = self._topic()
            topic.is_deleted = True
            self._moves = [move for move in self._moves if topic not in (move.source, move.target)]
            self._copies = [copy for copy in self._copies if copy.topic is not topic]
            self._store.delete_log(topic.log)

    def _delete(self) -> None:
        """Delete a topic for certain; for scripts."""
        topic = self._topic()
        topic.is_deleted = True
        self._store.delete_log(topic.log)

    # Jobs

    def _begin_commit(self) -> None:
        if self._commit is None:
            self._commit = self._store.begin_commit(is_synced=self._rng.random() < 0.5)

    def _end_commit(self) -> None:
        job, self._commit = self._commit, None
        if job is not None:
            job.run()
            self._store.end_commit(job)
            self._note_progress()

    def _commit_now(self) -> None:
        self._end_commit()
        self._begin_commit()
        self._end_commit()

    def _commit_unsynced(self) -> None:
        self._end_commit()
        self._commit = self._store.begin_commit(is_synced=False)
        self._end_commit()

    def _begin_checkpoint(self) -> None:
        if self._checkpoint is None:
            self._checkpoint = self._store.begin_checkpoint(is_complete=self._rng.random() < 0.2)

    def _end_checkpoint(self) -> None:
        job, self._checkpoint = self._checkpoint, None
        if job is not None:
            job.run()
            self._store.end_checkpoint(job)
            if self._commit is None:
                self._note_progress()

    def _complete_checkpoint(self) -> None:
        """Write everything to segments; for scripts."""
        self._end_checkpoint()
        self._checkpoint = self._store.begin_checkpoint(is_complete=True)
        self._end_checkpoint()

    def _checkpoint_now(self) -> None:
        self._end_checkpoint()
        self._begin_checkpoint()
        self._end_checkpoint()

    def _find_finished(self) -> None:
        self._store.find_finished()

    def _remove_finished(self) -> None:
        """Remove finished segments."""
        self._store.find_finished()
        self._checkpoint_now()
        for log in self._store.logs.values():
            log.forget_ranges(log.end)

    def _seek_before_removal(self) -> None:
        """Move channels back to finished messages just before a checkpoint removes segments."""
        self._finish_all()
        self._commit_now()
        self._store.find_finished()
        for _ in range(3):
            self._seek()
        self._checkpoint_now()

    def _remove_and_crash(self) -> None:
        for _ in range(2):
            self._publish_much()
            self._commit_now()
            self._complete_checkpoint()
        self._finish_all()
        self._remove_finished()
        self._crashed()

    def _keep_up(self) -> None:
        """Finish everything and keep nothing. Then one small segment of each log remains."""
        self._order_nothing()
        self._end_commit()
        self._complete_checkpoint()
        for topic in [topic for topic in self._topics.values() if not topic.is_deleted]:
            changes = Changes()
            changes.set_unclaimed(topic.log.end)
            changes.remove_deferred(topic.deferred)
            topic.discarded.update(topic.deferred)
            topic.deferred.clear()
            for number in topic.channels:
                changes.move(number, topic.log.end)
                topic.channels[number] = ModelChannel(topic.log.end)
            self._change(topic, changes, 0, None)
            topic.operations += [Operation(topic.operations[-1].number, number, None) for number in topic.channels]
        while self._store.has_unsynced:
            self._commit = self._store.begin_commit(is_synced=True)
            self._end_commit()
            self._complete_checkpoint()
        for log in self._store.logs.values():
            log.writer.keep_from = KEEP_NOTHING
            self._store.look_at(log)
        for _ in range(2):
            self._store.find_finished()
            self._complete_checkpoint()
        for log in self._store.logs.values():
            paths = list(Path(log.writer.directory).glob("*.*"))
            if Counter(path.suffix for path in paths)[".seg"] > 1:
                raise Lost(f"{log.topic} has the files {sorted(path.name for path in paths)}")
            if log.writer.has_finished(log.state, self._options.idle_size):
                raise Lost(f"{log.topic} has {log.writer.position} bytes, although everything is finished")

    def _begin_read(self) -> None:
        log = self._topic().log
        offset = self._rng.randint(0, log.written)
        if offset < log.written and log.batch_at(offset) is None:
            self._read = (log, log.begin_read(offset, 300))

    def _end_read(self) -> None:
        read, self._read = self._read, None
        if read is None or read[0].is_deleted:
            return
        log, job = read
        job.run()
        if job.error is None and log.end_read(job):
            raise Lost(f"a reader of {log.topic} lost {job.missing}, {job.gone_first} to {job.gone_end}")

    def _note_progress(self) -> None:
        """Note what is written and durable now. No commit is running."""
        for topic in self._topics.values():
            log = topic.log
            topic.written_count, topic.safe_count = log.given_count, log.safe_count
            if log.stable < topic.stable or log.stable > log.written:
                raise Lost(f"stable went from {topic.stable} to {log.stable}, written {log.written}")
            topic.stable = log.stable
            for numbered in topic.numbered:
                if numbered.first >= 0 and log.safe_count >= numbered.number:
                    numbered.is_acknowledged = True
            topic.was_safe = topic.was_safe or log.safe_count > 0
            for offset in [offset for offset in topic.unwritten if offset < log.written]:
                topic.names[offset] = topic.unwritten.pop(offset)
                topic.present.add(offset)
                topic.recovered.discard(offset)

    # Checks

    def _check_live(self) -> None:
        """Check depths, deferred messages, and the memory."""
        for topic in self._topics.values():
            if topic.is_deleted or self._store.is_recovering:
                continue
            state = topic.log.state
            if state.channels.keys() != topic.channels.keys():
                raise Lost(f"channels {sorted(state.channels)} instead of {sorted(topic.channels)}")
            for number in topic.channels:
                depth, expected = state.depth(number, topic.log.written), topic.unfinished(number)
                if depth != len(expected):
                    raise Lost(f"depth {depth} of {topic.log.topic}/{number} instead of {len(expected)}")
            if state.deferred != topic.deferred:
                raise Lost(f"deferred {state.deferred} instead of {topic.deferred}")
            self._check_removed(topic, topic.log, {o for o in topic.present if o < topic.log.first})
            self._check_kept(topic)
        held = sum(
            sum(batch.size for batch in (*log._held, *log._pending) if batch.has_offsets)
            for log in self._store.logs.values()
        )
        if self._store.memory_size > self._options.memory_size + held:
            raise Lost(f"{self._store.memory_size} bytes are in memory, {held} of them must be")

    def _check_kept(self, topic: ModelTopic) -> None:
        """Check that no segment was removed that must be kept for replay."""
        writer = topic.log.writer
        first = writer.segments[0].first if writer.segments else 0
        if first > max(topic.seen_first, writer.keep_from):
            raise Lost(
                f"segments of {topic.log.topic} before {first} were removed, and {writer.keep_from} must be kept"
            )
        topic.seen_first = first

    def _check_trims(self, topic: ModelTopic, log: TopicLog, certain_count: int) -> None:
        """Check that what was certainly dropped is still dropped, and nothing that was not."""
        certain = max([topic.first, *(first for number, first in topic.trims if number <= certain_count)])
        most = max([topic.first, *(first for _, first in topic.trims)])
        if not certain <= log.state.first <= most:
            raise Lost(f"{log.topic} begins at {log.state.first}, it was trimmed to {certain}, perhaps to {most}")

    def _check_restart(self, is_power_cut: bool) -> None:
        """Compare the logs with what must be there after a restart, and continue with what is there."""
        saved, self._failpoints = self._failpoints, Failpoints([], _stop)
        logs = {log.identity.log_id: log for log in self._store.logs.values()}
        if is_power_cut and self._was_recovering:
            # A deletion that was found after a crash may not have been durable.
            self._topics.update({key: topic for key, topic in self._forgotten.items() if key in logs})
        self._forgotten.clear()
        if logs.keys() - self._topics.keys():
            raise Lost("an unknown log has appeared")
        for key, topic in list(self._topics.items()):
            is_gone = topic.is_deleted and not topic.log.pending_count and topic.log.is_safe
            if key in logs:
                if is_gone:
                    raise Lost(f"the deleted log {topic.log.topic} is there again")
                self._check_log(topic, logs[key], is_power_cut)
                continue
            is_required = topic.was_safe if is_power_cut else topic.is_known or topic.written_count
            if not topic.is_deleted and is_required:
                raise Lost(f"the log {topic.log.topic} is gone")
            del self._topics[key]
            if self._store.is_recovering:
                self._forgotten[key] = topic
            self._moves = [move for move in self._moves if topic not in (move.source, move.target)]
            self._copies = [copy for copy in self._copies if copy.topic is not topic]
        self._check_copies()
        kept = []
        for move in self._moves:
            is_finished = not move.source.channels.get(move.channel, ModelChannel(0)).is_unfinished(move.offset)
            is_appended = move.target_offset in move.target.present | move.target.recovered
            is_appended = is_appended or move.target_offset < move.target.log.first  # removed later
            if is_finished != is_appended and move.channel in move.source.channels:
                raise Lost(f"half of a move survived: finished {is_finished}, appended {is_appended}, {move.offset}")
            if is_appended and self._store.is_recovering:
                kept.append(move)
        self._moves = kept
        self._failpoints = saved

    def _check_copies(self) -> None:
        """Check that of each message that was copied there is the old one or the copy."""
        kept = []
        for copy in self._copies:
            topic, log = copy.topic, copy.topic.log
            is_appended = copy.again in topic.present | topic.recovered or copy.again < log.first
            if copy.channel:
                channel = topic.channels.get(copy.channel)
                is_old = channel is not None and copy.offset >= log.first and channel.is_unfinished(copy.offset)
            else:
                is_old = copy.offset in topic.deferred
            if is_old and is_appended:
                raise Lost(f"{copy.offset} of {log.topic} was copied to {copy.again}, and both are there")
            is_gone = copy.offset < log.first or (copy.channel and copy.channel not in topic.channels)
            is_gone = is_gone or copy.offset in topic.vanished | topic.discarded
            if not (is_old or is_appended or is_gone):
                raise Lost(f"{copy.offset} of {log.topic} was copied to {copy.again}, and both are gone")
            if is_appended and self._store.is_recovering:
                kept.append(copy)
        self._copies = kept

    def _check_log(self, topic: ModelTopic, log: TopicLog, is_power_cut: bool) -> None:
        found, lost_count = read_all(log)
        for batch in log._held:
            if batch.has_offsets:
                found.update(_facts(batch))
        if lost_count:
            raise Lost(f"{lost_count} messages of {log.topic} are reported as lost")
        found = {offset: fact for offset, fact in found.items() if offset >= log.first}
        topic.expected = topic.present | topic.unwritten.keys()
        required = {o for o in topic.present | topic.recovered if not is_power_cut or o < topic.stable}
        gone = {o for o in topic.present | topic.recovered if o < log.first and o not in found}
        if required - found.keys() - gone:
            raise Lost(f"lost from {log.topic}: {sorted(required - found.keys() - gone)}")
        self._check_removed(topic, log, gone & required)
        topic.vanished = (topic.present | topic.recovered) - found.keys() - gone
        topic.copied = {offset for offset in topic.copied if offset in found or offset < log.first}
        facts = topic.unwritten | topic.names
        for offset, fact in found.items():
            expected = facts.get(offset)
            if expected is None or (fact.kind, fact.body, fact.channel, fact.origin) != (
                expected.kind,
                expected.body,
                expected.channel,
                expected.origin,
            ):
                raise Lost(f"offset {offset} of {log.topic} has {fact} instead of {expected}")
        seen = {offset for offset in found if offset < log.written}
        topic.names.update({offset: facts[offset] for offset in seen})
        topic.unwritten = {offset: facts[offset] for offset in found if offset not in seen}
        if topic.names and log.end <= max(topic.names):
            raise Lost(f"offset {max(topic.names)} of {log.topic} was in use, but the log ends at {log.end}")
        topic.present, topic.recovered = set(found), set(topic.unwritten)
        is_unsettled = is_power_cut and self._was_recovering
        if not is_unsettled:
            self._check_order(topic, log)
        certain_count = topic.safe_count if is_power_cut else topic.written_count
        if not is_unsettled:
            self._check_trims(topic, log, certain_count)
        self._check_channels(topic, log, certain_count, is_unsettled)
        self._check_cancelled(topic, log, certain_count, is_unsettled)
        self._check_deferred(topic, log)
        self._check_numbered(topic, log, found)
        topic.log = log
        topic.present = seen
        topic.operations.clear()
        topic.moments.clear()
        self._note_moment(topic, self._recovered_serial(log))
        topic.trims.clear()
        topic.first = log.state.first
        topic.seen_first = log.writer.segments[0].first if log.writer.segments else 0
        topic.written_count, topic.safe_count = log.given_count, log.safe_count
        topic.stable = log.stable
        topic.is_known = True
        topic.is_deleted = False

    def _check_order(self, topic: ModelTopic, log: TopicLog) -> None:
        """Check that nothing survived without everything before it."""
        end = max(topic.present, default=-1) + 1
        known = {offset for offset in topic.expected if offset >= log.first}
        missing = {offset for offset in known if offset < end} - topic.present
        if missing:
            raise Lost(f"{sorted(missing)} of {log.topic} are missing before {end - 1}")
        serial = self._recovered_serial(log)
        last = [moment for moment in topic.moments if moment.serial <= serial][-1]
        missing = {offset for offset in known if offset < last.end} - topic.present
        if missing:
            raise Lost(f"{sorted(missing)} of {log.topic} are missing before change {last.serial}")
        following = next((moment for moment in topic.moments if moment.serial > serial), None)
        if following is not None and any(offset >= following.end for offset in topic.present):
            raise Lost(f"{end - 1} of {log.topic} is there without change {following.serial}")
        channels = {one.number: (one.name, one.next, one.holes) for one in log.state.channels.values()}
        if (log.state.unclaimed, channels) != (last.unclaimed, last.channels):
            raise Lost(f"{log.topic} has the channels {channels} instead of {last} after change {serial}")

    def _check_removed(self, topic: ModelTopic, log: TopicLog, removed: set[int]) -> None:
        """Check that the state of the log needs none of the removed messages."""
        state = log.state
        for offset in removed:
            fact = topic.fact(offset)
            is_needed = offset in state.deferred
            if fact.kind == MESSAGES and not state.channels:
                is_needed = offset >= state.unclaimed
            for number, channel in state.channels.items():
                if fact.kind == MESSAGES or (fact.kind == ADDRESSED and fact.channel == number):
                    is_needed = is_needed or offset in channel.holes or offset >= channel.next
            if is_needed:
                raise Lost(f"{offset} of {log.topic} was removed, but is needed")

    def _check_channels(self, topic: ModelTopic, log: TopicLog, certain_count: int, is_unsettled: bool) -> None:
        doubtful = [operation for operation in topic.operations if operation.number > certain_count]
        doubtful_channels = {operation.channel for operation in doubtful if operation.offsets is None}
        different = log.state.channels.keys() ^ topic.channels.keys()
        if different - doubtful_channels and not is_unsettled:
            raise Lost(f"channels {sorted(different)} have appeared or are gone")
        channels = {}
        for number, state in log.state.channels.items():
            found = {o for o in topic.for_channel(number) if o in state.holes or o >= state.next}
            if number in topic.channels and number not in doubtful_channels and not is_unsettled:
                touched = {o for operation in doubtful if operation.channel == number for o in operation.offsets or ()}
                expected = set(topic.unfinished(number))
                if (found ^ expected) - touched:
                    raise Lost(f"{log.topic}/{number}: unfinished {sorted(found)} instead of {sorted(expected)}")
                for offset, hole in topic.channels[number].holes.items():
                    if offset in found - touched and state.holes.get(offset) != hole:
                        raise Lost(f"{log.topic}/{number}: {offset} is {state.holes.get(offset)} instead of {hole}")
            # Continue with the state that is there.
            present = set(topic.for_channel(number))
            start = min(present | {state.next})
            channel = ModelChannel(start, {o for o in range(start, state.next) if o not in state.holes})
            channel.holes = {o: hole for o, hole in state.holes.items() if hole != Hole()}
            channel.was_moved = number in topic.channels and topic.channels[number].was_moved
            channels[number] = channel
        topic.channels = channels

    def _check_numbered(self, topic: ModelTopic, log: TopicLog, found: dict[int, Fact]) -> None:
        """Check that the log knows what is stored, and has no message twice."""
        offsets: dict[bytes, list[int]] = {}
        for offset, fact in found.items():
            if offset not in topic.copied:
                offsets.setdefault(fact.body, []).append(offset)
        last: dict[str, int] = {}
        for numbered in topic.numbered:
            expected = [numbered.first + index for index in range(len(numbered.bodies))] if numbered.first >= 0 else []
            is_removed = bool(expected) and expected[-1] < log.first
            for index, body in enumerate(numbered.bodies):
                places = [place for place in offsets.get(body, []) if place >= log.first]
                if len(places) > 1 or (places and places != expected[index : index + 1]):
                    raise Lost(f"message {index} of {numbered} of {log.topic} is at {places}")
            stored = [body for body in numbered.bodies if offsets.get(body)]
            is_stored = is_removed or len(stored) == len(numbered.bodies)
            if stored and not is_stored and expected[0] >= log.first:
                raise Lost(f"only {len(stored)} messages of {numbered} of {log.topic} are there")
            is_stored = is_stored or (bool(stored) and expected[0] < log.first)
            if numbered.is_acknowledged and not is_stored:
                raise Lost(f"{numbered} of {log.topic} was acknowledged")
            if is_stored:
                last[numbered.producer] = numbered.seq
            else:
                numbered.first = -1
            if not numbered.is_acknowledged:
                topic.unrepeated.add(numbered.producer)
                numbered.number = NEVER
        known = {name: one.seq for name, one in log.state.producers.items() if name not in topic.forgotten}
        if known != {name: seq for name, seq in last.items() if name not in topic.forgotten}:
            raise Lost(f"the producers of {log.topic} are {known} instead of {last}")

    def _check_cancelled(self, topic: ModelTopic, log: TopicLog, certain_count: int, is_unsettled: bool) -> None:
        """Note which of the cancelled messages stay discarded. Those of the last batches may be back."""
        # An offset that was never written may be given to another message.
        known = {offset for offset in topic.once_cancelled if offset in topic.present or offset in topic.names}
        topic.once_cancelled &= known
        for offset, number in topic.cancelled.items():
            if offset in known and (number <= certain_count or offset not in log.state.deferred):
                topic.discarded.add(offset)
        if is_unsettled:
            topic.discarded -= topic.once_cancelled & log.state.deferred.keys()
        topic.cancelled.clear()

    def _check_deferred(self, topic: ModelTopic, log: TopicLog) -> None:
        removed = {offset for offset in topic.names if offset < log.first}
        released = {o for offset in topic.present | removed for o in topic.fact(offset).releases} | topic.discarded
        expected = {
            offset: topic.fact(offset).due_ns
            for offset in topic.present
            if topic.fact(offset).kind == DEFERRED and offset not in released
        }
        if log.state.deferred != expected:
            raise Lost(f"deferred {log.state.deferred} instead of {expected}")
        topic.deferred = expected


def _stop() -> None:
    raise Stopped


_CHOICES: dict[Callable[[Run], None], int] = {
    Run._publish: 12,
    Run._publish_much: 3,
    Run._publish_numbered: 10,
    Run._forget_producers: 1,
    Run._publish_deferred: 2,
    Run._publish_addressed: 2,
    Run._release: 2,
    Run._create_channel: 3,
    Run._delete_channel: 1,
    Run._finish: 8,
    Run._finish_all: 3,
    Run._requeue: 4,
    Run._empty_channel: 1,
    Run._seek: 5,
    Run._move_message: 4,
    Run._redrive: 4,
    Run._cancel: 2,
    Run._copy_forward: 4,
    Run._trim: 3,
    Run._trim_and_crash: 2,
    Run._append_and_cut_power: 1,
    Run._keep: 3,
    Run._end_segment: 2,
    Run._delete_topic: 1,
    Run._begin_commit: 6,
    Run._end_commit: 6,
    Run._commit_now: 10,
    Run._begin_checkpoint: 4,
    Run._end_checkpoint: 4,
    Run._checkpoint_now: 4,
    Run._find_finished: 4,
    Run._remove_finished: 6,
    Run._seek_before_removal: 3,
    Run._remove_and_crash: 3,
    Run._keep_up: 1,
    Run._begin_read: 3,
    Run._end_read: 3,
    Run._order_fault: 2,
    Run._order_stop: 3,
    Run._order_nothing: 3,
    Run._crash: 2,
    Run._restart_cleanly: 2,
}
# Many numbered publishes that are not durable when the power is cut.
_NUMBERED_CHOICES: dict[Callable[[Run], None], int] = {
    Run._publish: 4,
    Run._publish_numbered: 40,
    Run._forget_producers: 1,
    Run._create_channel: 1,
    Run._finish_all: 2,
    Run._begin_commit: 8,
    Run._end_commit: 8,
    Run._commit_now: 4,
    Run._commit_unsynced: 8,
    Run._cut_power: 4,
    Run._checkpoint_now: 4,
    Run._remove_finished: 2,
    Run._order_fault: 2,
    Run._order_stop: 8,
    Run._crash: 4,
    Run._restart_cleanly: 1,
}
# Many batches in direct writes that are not durable when the power is cut, and frames after them.
_UNSYNCED_CHOICES: dict[Callable[[Run], None], int] = {
    Run._publish: 12,
    Run._publish_much: 4,
    Run._publish_deferred: 2,
    Run._publish_numbered: 2,
    Run._create_channel: 8,
    Run._delete_channel: 6,
    Run._finish: 8,
    Run._requeue: 6,
    Run._seek: 2,
    Run._move_message: 3,
    Run._redrive: 3,
    Run._copy_forward: 2,
    Run._begin_commit: 2,
    Run._end_commit: 2,
    Run._commit_now: 2,
    Run._commit_unsynced: 4,
    Run._append_and_cut_power: 12,
    Run._begin_checkpoint: 2,
    Run._end_checkpoint: 2,
    Run._checkpoint_now: 6,
    Run._order_fault: 1,
    Run._order_stop: 2,
    Run._order_nothing: 2,
    Run._cut_power: 1,
    Run._crash: 1,
}
_APPENDING = (
    *(Run._publish, Run._publish, Run._publish_much, Run._publish_deferred, Run._create_channel, Run._create_channel),
    *(Run._delete_channel, Run._finish, Run._finish, Run._requeue, Run._move_message),
)


def run_seed(seed: int, steps: int = 60) -> Run:
    """Perform the run of a seed; a failure includes the seed."""
    run = Run(seed)
    try:
        run.perform(steps)
    except Exception as failure:
        tail = "\n".join(run.history[-60:])
        raise AssertionError(f"{failure!r}\n{tail}\nNSQX_SEED={seed} repeats this run") from failure
    return run
