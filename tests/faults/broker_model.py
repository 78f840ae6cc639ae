"""A whole broker under random use on a simulated machine, with many power cuts.

Publishers, consumers and an operator work at the same time: topics collect messages without a channel, channels are
created, topics and channels are paused and unpaused, messages are finished, requeued and kept in flight, and syncs take
different times. At random moments, and at some of the acknowledgements, the model checks what a power cut would leave:

- with ``--mem-queue-size=0 --sync-every=1``, and with topic logs and ``--durability=fsync``, every acknowledged message
  for every channel that is entitled to it and has not finished it;
- with any flags, a message that survives one power cut also survives each later one, until it is finished;
- a channel whose SUB was answered.

With an attempt limit, some messages are never finished by their consumers and become dead letters, which an operator
redrives and purges. With topic logs, a message is then in exactly one place: its channel, or the channel ``dead``.

At the end everything is unpaused, and every acknowledged message must be delivered to every entitled channel.

A channel is entitled to a message if it existed when the message was published, or was the first channel of its topic.
Channels of logs are moved back and forth. A message that a channel passes counts as finished. When a move back is
durable, the finished messages after the position count as unfinished again.
"""

import asyncio
import os
import random
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson
from disk_model import NOTHING, RandomSurvival
from log_contents import read_logs
from log_model import read_all
from simulation import Machine

import nsqx.nsqd.metadata_store
import nsqx.nsqd.sync_threads
from broker_bench import BenchLog, BenchRemover, split_frames
from nsqx.errors import DiskQueueError
from nsqx.nsqd.broker import Broker
from nsqx.nsqd.dead_channel import ChannelGone, ChannelNeeded, DeadChannel, LetterSelection
from nsqx.nsqd.effects import Close
from nsqx.nsqd.metadata import load_metadata
from nsqx.nsqd.options import NsqdOptions
from nsqx.nsqd.session import ClientSession
from nsqx.queues import files
from nsqx.queues.diskqueue import DiskQueue
from nsqx.queues.files import FileOperation
from nsqx.queues.log.batch import MESSAGES, origin_of
from nsqx.queues.log.store import LogOptions, LogStore
from nsqx.queues.log.stored import SilentLog, StoredLogs
from rawclient import ERROR, MESSAGE, Message, dpub, fin, mpub, pub, rdy, req, sub

FAST_DIRECTORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
TOPICS = ("a", "b")
CHANNELS = ("c", "d", "e")
MAX_MESSAGE_SIZE = 1000
DURATION_S = 2.0
PATIENCE_S = 300.0
_OTHER_BOOT_ID = b"another boot id "


class Lost(AssertionError):
    """A power cut would lose more than it may."""


class Link:
    """A client's socket: gives each frame to ``on_frame``."""

    def __init__(self) -> None:
        self.on_frame: Any = None
        self.is_closed = False

    def write(self, data: bytearray) -> None:
        for frame in split_frames(bytes(data)):
            self.on_frame(frame)

    def close(self) -> None:
        self.is_closed = True


class Connection:
    """A session on the broker, without a socket."""

    def __init__(self, broker: Broker) -> None:
        self.link = Link()
        self.client = broker.new_client("127.0.0.1:1", "127.0.0.1", self.link)
        self._session = ClientSession(broker, self.client)
        self._broker = broker

    def send(self, data: bytes) -> None:
        self._broker.turn.run(self._receive, data)

    def _receive(self, data: bytes) -> None:
        self._session.receive(data)
        if self._session.take_effect() == Close():
            self._broker.turn.close(self.client)

    def end(self) -> None:
        self._broker.clients.pop(self.client.id, None)
        self._broker.turn.run(self._session.closed)


class BrokerRun:
    """One run, which the seed determines completely. ``cut_count`` is the number of checked power cuts."""

    def __init__(self, seed: int, channels: tuple[str, ...] = CHANNELS, **fixed: Any) -> None:
        self._channels = channels
        self.failure: Lost | None = None
        self.rng = random.Random(seed)
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()
        rng = self.rng
        self.options: dict[str, Any] = {
            "mem_queue_size": rng.choice((0, 0, 0, 5, 1000)),
            "sync_every": rng.choice((1, 1, 1, 20, 2500)),
            "max_bytes_per_file": rng.choice((5000, 50_000, 1_000_000)),
            "sync_timeout": 200_000_000,
            "msg_timeout": 500_000_000,
            "store": "classic",
        } | fixed
        self._failure_rate = rng.choice((0.0, 0.0, 0.0, 0.02))
        self._base_s = rng.choice((0.0002, 0.005, 0.02))
        self._slow_queue = rng.choice(("none", "a:c", "a:d", "a", "b", "nsqd"))
        self._directory = Path(tempfile.mkdtemp(prefix="broker-", dir=FAST_DIRECTORY))
        self._data = self._directory / "data"
        self._data.mkdir()
        self._machine = Machine(self._data, self._sync_time_s, self._sync_fails)
        self._serial = 0
        # For each message its topic and entitled channels; for each channel the messages it has finished.
        self._entitled: dict[bytes, tuple[str, set[str]]] = {}
        self._homeless: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self._finished: dict[str, set[bytes]] = {}
        self._again: dict[str, set[bytes]] = {}  # for each moved channel the messages that it gets again
        self._acked: set[bytes] = set()
        self._survivors: set[tuple[str, bytes]] = set()  # queue and message that a power cut has left once
        self._established: set[str] = set()
        self._is_over = self._is_drained = False

    @property
    def _is_strict(self) -> bool:
        """True if no acknowledged message may be lost."""
        if self._has_logs:
            return self.options["durability"] == "fsync"
        return self.options["mem_queue_size"] == 0 and self.options["sync_every"] == 1

    @property
    def _has_logs(self) -> bool:
        return self.options["store"] == "log"

    @property
    def _has_limit(self) -> bool:
        return bool(self.options.get("max_attempts"))

    def perform(self) -> None:
        """Run the model; raises Lost."""
        machine = self._machine
        threads: Any = nsqx.nsqd.sync_threads
        saves: Any = nsqx.nsqd.metadata_store
        originals = threads.JobThreads, saves.ThreadPoolExecutor
        threads.JobThreads, saves.ThreadPoolExecutor = machine.job_threads, machine.executor
        files.set_hook(machine.hook)
        asyncio.set_event_loop(machine.loop)
        try:
            with machine.os.installed():
                machine.loop.run_until_complete(self._live())
        finally:
            files.set_hook(None)
            machine.close()
            asyncio.set_event_loop(None)
            threads.JobThreads, saves.ThreadPoolExecutor = originals
            self._close_descriptors()
            shutil.rmtree(self._directory)

    # The machine

    def _sync_time_s(self, operation: FileOperation) -> float:
        path = os.readlink(f"/proc/self/fd/{operation.descriptor}")
        is_slow = Path(path).name.startswith(f"{self._slow_queue}.d")
        return self._base_s * self.rng.choice((0.5, 1, 1, 2, 10)) * (self.rng.choice((1, 10, 100)) if is_slow else 1)

    def _sync_fails(self, operation: FileOperation) -> bool:
        kinds = (files.DATA, files.META, files.COMMIT, files.SEGMENT)
        return operation.kind in kinds and self.rng.random() < self._failure_rate

    def _close_descriptors(self) -> None:
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith(str(self._directory)):
                    os.close(int(name))
            except OSError:
                pass

    # The actors

    async def _live(self) -> None:
        loop = self._machine.loop
        options = NsqdOptions(data_path=str(self._data), id=1, max_msg_size=MAX_MESSAGE_SIZE, **self.options)
        self.log = BenchLog()
        self._broker = Broker(options, self.log, self._machine.clock, loop.call_soon)
        self._broker.classic_files.remover = BenchRemover()
        if self._has_logs:
            self._broker.logs.options = self._log_options()
        if self._has_limit and not self._has_logs:
            for topic in TOPICS:
                names = {f"{each}/dead_letter": self._letter_topic(topic, each) for each in self._letter_channels}
                self._broker.configs.note_saved(topic, names)
        self._broker.restore([])
        actors = [self._publisher(topic) for topic in (*TOPICS, TOPICS[0])]
        actors += [self._backlog(TOPICS[0])]
        actors += [self._creator(topic, channel) for topic in TOPICS for channel in self._channels]
        actors += [self._consumer(topic, channel) for topic in TOPICS for channel in self._channels]
        actors += [self._operator(), self._cutter()]
        if self._has_limit:
            actors += [self._redriver(topic, channel) for topic in TOPICS for channel in self._letter_channels]
        tasks = [loop.create_task(actor) for actor in actors]
        loop.call_later(DURATION_S, self._end)
        ended, _ = await asyncio.wait(tasks, timeout=DURATION_S + 0.5)
        for task in ended:
            task.result()
        if self.failure is None and self._channels:
            await self._drain()
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        if self.failure is not None:
            raise self.failure

    def _log_options(self) -> LogOptions:
        choice = self.rng.choice
        return LogOptions(
            commit_size=choice((16_384, 65_536, 1_000_000)),
            segment_size=self.options["max_bytes_per_file"],
            direct_size=choice((2000, 128 * 1024)),
            memory_size=choice((0, 10_000, 1_000_000)),
            lease_step=choice((64, 1 << 20)),
        )

    def _end(self) -> None:
        self._is_over = True

    async def _drain(self) -> None:
        """Let the consumers finish everything."""
        self._failure_rate = 0.0
        for topic in self._broker.topics.values():
            for owner in (topic, *topic.channels.values()):
                owner.unpause()
        deadline_s = self._machine.loop.time() + PATIENCE_S
        while missing := self._unfinished():
            if self._machine.loop.time() > deadline_s:
                raise Lost(f"never delivered: {missing.most_common(6)}")
            await asyncio.sleep(0.5)
        self._is_drained = True

    def _unfinished(self) -> Counter[str]:
        """Return how many acknowledged messages each channel still has to finish."""
        counts = Counter[str]()
        for body in self._acked:
            topic, channels = self._entitled[body]
            for channel in channels:
                if body not in self._finished[f"{topic}:{channel}"]:
                    counts[f"{topic}:{channel}"] += 1
        return counts

    @property
    def _letter_channels(self) -> tuple[str, ...]:
        """Return the channels with a dead-letter topic of their own: classic letters do not say where they are from."""
        return ("",) if self._has_logs else self._channels

    def _letter_topic(self, topic: str, channel: str) -> str:
        return f"{topic}.dead" if self._has_logs else f"{topic}.{channel}.dead"

    def _is_poison(self, body: bytes) -> bool:
        """True if consumers never finish a message before the end."""
        return self._has_limit and crc32(body) % 4 == 0

    async def _redriver(self, topic_name: str, channel: str) -> None:
        """Redrive and purge dead letters, and redrive all of them at the end."""
        letter_topic = self._letter_topic(topic_name, channel)
        while not self._is_drained:
            await self._pause(0.1)
            source, letters = self._broker.topics.get(topic_name), self._broker.topics.get(letter_topic)
            if source is None or letters is None or "dead" not in letters.channels:
                continue
            dead = DeadChannel(self._broker, letters, letters.channels["dead"])
            limit = 0 if self._is_over else self.rng.choice((1, 3, 0))
            selection = LetterSelection(topic_name, channel, (), limit)
            try:
                if dead.is_log and not self._is_over and self.rng.random() < 0.2:
                    self.counts["purged"] += await self._purge_one(dead, selection)
                else:
                    self.counts["redriven"] += await dead.redrive(selection, source)
            except (DiskQueueError, ChannelGone, ChannelNeeded):
                self.counts["redrive refused"] += 1

    async def _purge_one(self, dead: DeadChannel, selection: LetterSelection) -> int:
        async for letters in dead.read(dead.unfinished_from(0)):
            letter = self.rng.choice(letters)
            assert letter.origin is not None
            queue = f"{letter.origin['topic']}:{letter.origin['channel']}"
            self._finished.setdefault(queue, set()).add(letter.body)  # from now on it may be gone
            return await dead.purge(selection._replace(offsets=(letter.offset,), limit=0))
        return 0

    async def _pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.rng.expovariate(1 / mean_s))

    async def _publisher(self, topic: str) -> None:
        mean_s = self.rng.choice((0.02, 0.05, 0.2))
        while not self._is_over:
            connection = Connection(self._broker)
            unanswered: deque[list[bytes]] = deque()
            connection.link.on_frame = lambda frame, waiting=unanswered: self._answered(waiting, frame)
            while not self._is_over and not connection.link.is_closed:
                await self._pause(mean_s)
                if connection.link.is_closed or self._is_over:
                    break
                for _ in range(self.rng.choice((1, 1, 1, 5))):
                    count = self.rng.choice((1, 1, 1, 1, 10, 50))
                    bodies = self._new_bodies(topic, count)
                    if count == 1 and (self._has_logs or not self._is_strict) and self.rng.random() < 0.1:
                        connection.send(dpub(topic, 300, bodies[0]))
                    else:
                        connection.send(pub(topic, bodies[0]) if count == 1 else mpub(topic, bodies))
                    unanswered.append(bodies)
            connection.end()

    async def _backlog(self, topic: str) -> None:
        """Publish many messages before the first channel exists."""
        connection = Connection(self._broker)
        unanswered: deque[list[bytes]] = deque()
        connection.link.on_frame = lambda frame: self._answered(unanswered, frame)
        for _ in range(self.rng.choice((1, 3, 10, 30))):
            bodies = self._new_bodies(topic, 100)
            unanswered.append(bodies)
            connection.send(mpub(topic, bodies))

    def _new_bodies(self, topic: str, count: int) -> list[bytes]:
        bodies = []
        channels = set(self._broker.topics[topic].channels) if topic in self._broker.topics else set()
        for _ in range(count):
            self._serial += 1
            body = b"%s%d." % (topic.encode(), self._serial)
            body = body.ljust(self.rng.randint(len(body), 60), b".")
            bodies.append(body)
            self._entitled[body] = topic, set(channels)
            if not channels:
                self._homeless[topic].append(body)
        return bodies

    def _answered(self, unanswered: deque[list[bytes]], frame: Any) -> None:
        if not unanswered:
            return
        bodies = unanswered.popleft()
        if frame.type == ERROR:
            self.counts["refused"] += 1
            return
        self._acked.update(bodies)
        self.counts["acked"] += len(bodies)
        if self._is_strict and self.rng.random() < 0.03:
            self._check_power_cut("at an OK")

    async def _creator(self, topic: str, channel: str) -> None:
        """Create a channel before its consumer subscribes."""
        await asyncio.sleep(self.rng.random() * DURATION_S * 0.6)
        self._note_channel(topic, channel)
        self._broker.topic(topic).channel(channel)

    def _note_channel(self, topic: str, channel: str) -> None:
        if topic in self._broker.topics and channel in self._broker.topics[topic].channels:
            return
        self.history.append(f"{self._machine.loop.time():.4f} channel {topic}:{channel}")
        for body in self._homeless[topic]:
            self._entitled[body][1].add(channel)
        self._homeless[topic] = []

    async def _consumer(self, topic: str, channel: str) -> None:
        await asyncio.sleep(self.rng.random() * DURATION_S)
        queue = f"{topic}:{channel}"
        finished = self._finished.setdefault(queue, set())
        self._note_channel(topic, channel)
        connection = Connection(self._broker)
        arrived: deque[Message] = deque()

        def on_frame(frame: Any) -> None:
            if frame.type == MESSAGE:
                arrived.append(Message.decode(frame.data))
            elif frame.data == b"OK" and self._broker.is_healthy:  # after a failed write, SUB is answered nevertheless
                self._established.add(queue)
                if self.rng.random() < 0.3:
                    self._check_power_cut("at SUB's OK")

        connection.link.on_frame = on_frame
        connection.send(sub(topic, channel))
        connection.send(rdy(self.rng.choice((5, 200))))
        while not self._is_drained:
            await self._pause(0.01)
            while arrived and (self._is_over or self.rng.random() < 0.9):
                message = arrived.popleft()
                draw = self.rng.random()
                if self._is_poison(message.body) and not self._is_over:
                    self.counts["failed"] += 1
                    connection.send(req(message.id, 0))
                elif draw < 0.7 or self._is_over:
                    finished.add(message.body)  # it may have timed out, but it was delivered
                    self._again.get(queue, set()).discard(message.body)
                    connection.send(fin(message.id))
                elif draw < 0.8:
                    self.counts["requeued"] += 1
                    connection.send(req(message.id, self.rng.choice((0, 0, 20))))

    async def _operator(self) -> None:
        while not self._is_over:
            await self._pause(0.1)
            topic = self._broker.topics.get(self.rng.choice(TOPICS))
            if topic is None or self._is_over:
                continue
            # A channel that moves back gets messages again that are dead letters already.
            if self._has_logs and not self._has_limit and topic.channels and self.rng.random() < 0.4:
                self._seek(topic, self.rng.choice(sorted(topic.channels)))
                continue
            owner: Any = topic
            if topic.channels and self.rng.random() < 0.4:
                owner = topic.channels[self.rng.choice(sorted(topic.channels))]
            owner.unpause() if owner.paused else owner.pause()
            self.counts["unpaused" if not owner.paused else "paused"] += 1

    def _seek(self, topic: Any, channel_name: str) -> None:
        """Move a channel to any written offset that the log has."""
        queue = f"{topic.name}:{channel_name}"
        finished = self._finished.setdefault(queue, set())
        log = topic.flow.log
        target = self.rng.choice((log.first_kept, self.rng.randint(log.first_kept, max(log.first_kept, log.written))))
        offsets = {
            fact.body: offset
            for offset, fact in sorted(read_all(log)[0].items())
            if fact.kind == MESSAGES or offset in log.state.deferred
        }
        passed = {body for body, offset in offsets.items() if offset < target and offset not in log.state.deferred}
        finished |= passed
        self._again[queue] = again = set(offsets) - passed
        self.history.append(f"{self._machine.loop.time():.4f} seek {queue} {target}")
        self.counts["seeks"] += 1

        def end(error: Any) -> None:
            if error is None and self._again.get(queue) is again:
                finished.difference_update(again)  # those that were not finished once more
                self.counts["durable seeks"] += 1

        def seek() -> None:
            topic.channels[channel_name].seek(target)
            if not topic.when_durable(end):
                end(None)

        self._broker.turn.run(seek)

    # Power cuts

    async def _cutter(self) -> None:
        while not self._is_over:
            await self._pause(0.15)
            self._check_power_cut("at any moment")

    def _check_power_cut(self, when: str) -> None:
        """Check what a power cut would leave now."""
        if self._is_over:
            return
        self.counts["cuts"] += 1
        self.counts[when] += 1
        target = self._directory / f"cut {self.counts['cuts']}"
        is_least = self.rng.random() < 0.7
        files.set_hook(None)
        try:
            self._machine.os.check()
            target.mkdir()
            self._machine.disk.after_power_cut(NOTHING if is_least else RandomSurvival(self.rng)).write_to(target)
            left = log_messages_in(target) if self._has_logs else messages_in(target)
            letters = log_letters_in(target) if self._has_logs else Counter[tuple[str, bytes]]()
            self._check(when, left, letters, is_least=is_least)
        except Lost as failure:
            self.failure = self.failure or failure
            self._is_over = True
        finally:
            files.set_hook(self._machine.hook)
            shutil.rmtree(target)

    def _check(
        self, when: str, left: dict[str, set[bytes]], letters: Counter[tuple[str, bytes]], *, is_least: bool
    ) -> None:
        now = f"{self._machine.loop.time():.4f} power cut {when}"
        self.counts["letters"] += letters.total()
        for (queue, body), number in letters.items():
            if number + (body in left.get(queue, ())) > 1:
                raise Lost(f"{now}: {body!r} of {queue} is a dead letter {number} times, and waits in its channel")
        forgotten = self._established - set(left)
        if forgotten:
            raise Lost(f"{now}: channels forgotten: {sorted(forgotten)}")
        must = self._acked if self._is_strict else set()
        missing = Counter[str]()
        for body, (topic, channels) in self._entitled.items():
            in_topic = left.get(topic, set())
            for queue in [f"{topic}:{channel}" for channel in channels] or [topic]:
                letter_topic = self._letter_topic(topic, queue.partition(":")[2])
                is_dead = letters[queue, body] > 0 or body in left.get(letter_topic, ())
                is_dead = is_dead or body in left.get(f"{letter_topic}:dead", ())
                is_left = body in in_topic or body in left.get(queue, in_topic)
                if is_left or is_dead or body in self._finished.get(queue, ()):
                    if is_least:
                        self._survivors.add((queue, body))
                        if queue == topic:
                            continue
                elif body in must or (queue, body) in self._survivors or (topic, body) in self._survivors:
                    missing[queue] += 1
        if missing:
            raise Lost(f"{now}: {missing.total()} messages lost: {dict(missing)}")


def messages_in(directory: Path) -> dict[str, set[bytes]]:
    """Return the bodies in every queue that nsqd.dat names, as a new process reads them."""
    left = {}
    for topic in load_metadata(str(directory)):
        for name in [topic.name, *(f"{topic.name}:{channel}" for channel, _ in topic.channels)]:
            left[name] = set(_bodies(directory, name))
    return left


def log_messages_in(directory: Path) -> dict[str, set[bytes]]:
    """Return the bodies in every topic without channels and in every channel, as after a new start of the machine."""
    LogStore(str(directory), LogOptions(commit_size=1 << 20), _OTHER_BOOT_ID, SilentLog()).close()
    left = {}
    for topic, contents in read_logs(directory).items():
        if topic.endswith(".dead"):
            continue
        left[topic] = set() if contents.channels else contents.unfinished("")
        left |= {f"{topic}:{channel}": contents.unfinished(channel) for channel in contents.channels}
    return left


def log_letters_in(directory: Path) -> Counter[tuple[str, bytes]]:
    """Return how often each message is a dead letter, by the queue that it comes from and its body."""
    letters = Counter[tuple[str, bytes]]()
    for log in StoredLogs(str(directory)).logs:
        for channel in [channel for channel in log.state.channels.values() if channel.name == "dead"]:
            for batch in log.batches(log.first):
                if batch.has_offsets and (batch.first in channel.holes or batch.first >= channel.next):
                    origin = orjson.loads(origin_of(batch))
                    letters[f"{origin['topic']}:{origin['channel']}", next(batch.bodies())[1]] += 1
    return letters


def _bodies(directory: Path, name: str) -> Iterable[bytes]:
    queue = DiskQueue(name, str(directory), 1_000_000, MAX_MESSAGE_SIZE, BenchLog(), lambda: None)
    while (message := queue.get()) is not None:
        yield message.body
    queue.close()


def run_broker_seed(seed: int, **fixed: Any) -> BrokerRun:
    """Perform the run of a seed; a failure includes the seed."""
    run = BrokerRun(seed, **fixed)
    try:
        run.perform()
    except Exception as failure:
        tail = "\n".join(run.history[-30:])
        raise AssertionError(f"{failure}\n{run.options}\n{tail}\nNSQX_SEED={seed} repeats this run") from failure
    return run
