"""A real broker for tests that open no socket.

The clock moves only when the test moves it. Links and transports are lists of bytes. Syncs of disk queues and saves of
nsqd.dat need a running event loop, so stand-ins replace them unless a test brings its own. Disk queues are real, in a
directory of the test.
"""

import heapq
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nsqx.log import INFO
from nsqx.nsqd.broker import Broker
from nsqx.nsqd.client import Client
from nsqx.nsqd.free_disk import FreeDisk
from nsqx.nsqd.metadata import SavedTopic
from nsqx.nsqd.options import NsqdOptions
from nsqx.nsqd.protocol_states import ClientState
from nsqx.queues.log.store import LogOptions
from nsqx.queues.removal import remove_now
from rawclient import Frame, Message, sized

# The store of the topics, unless a test decides.
TEST_STORE = os.environ.get("NSQX_TEST_STORE", "classic")

MS = 1_000_000
SECOND = 1_000 * MS
MINUTE = 60 * SECOND


class BenchTimer:
    """A scheduled callback, for the broker and for the event loop."""

    def __init__(self, when_ns: int, callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.when_ns = when_ns
        self.callback = callback
        self.arguments = arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class BenchClock:
    """A clock that moves only by ``advance``, which fires timers in order, each at its own time."""

    def __init__(self) -> None:
        self.monotonic_ns = 5_000 * SECOND
        self.wall_offset_ns = 1_700_000_000 * SECOND
        self._serial = itertools.count()
        self._timers: list[tuple[int, int, BenchTimer]] = []

    def now_ns(self) -> int:
        return self.monotonic_ns

    def wall_ns(self) -> int:
        return self.monotonic_ns + self.wall_offset_ns

    def call_at(self, when_ns: int, callback: Callable[..., object], *arguments: object) -> BenchTimer:
        timer = BenchTimer(when_ns, callback, arguments)
        heapq.heappush(self._timers, (when_ns, next(self._serial), timer))
        return timer

    def advance(self, duration_ns: int) -> None:
        end_ns = self.monotonic_ns + duration_ns
        while self._timers and self._timers[0][0] <= end_ns:
            when_ns, _, timer = heapq.heappop(self._timers)
            self.monotonic_ns = max(self.monotonic_ns, when_ns)
            if not timer.cancelled:
                timer.callback(*timer.arguments)
        self.monotonic_ns = end_ns


class BenchDisk:
    """A disk whose free space the test decides. ``free_disk`` measures it once a second."""

    def __init__(self) -> None:
        self.is_full = True

    def free_disk(self) -> FreeDisk:
        return FreeDisk(".", 1, self._statvfs)

    def _statvfs(self, _path: str) -> Any:
        return SimpleNamespace(f_bavail=0 if self.is_full else 1, f_frsize=1)


class BenchLog:
    """Keeps the log lines as (level, line)."""

    level = INFO

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def debug(self, text: str, *arguments: object) -> None:
        self.lines.append(("debug", text % arguments))

    def info(self, text: str, *arguments: object) -> None:
        self.lines.append(("info", text % arguments))

    def warn(self, text: str, *arguments: object) -> None:
        self.lines.append(("warn", text % arguments))

    def error(self, text: str, *arguments: object) -> None:
        self.lines.append(("error", text % arguments))

    def errors(self) -> list[str]:
        return [line for level, line in self.lines if level == "error"]


class Saved:
    """The future of a completed save."""

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False

    def result(self) -> bool:
        return True

    def add_done_callback(self, callback: Callable[["Saved"], object]) -> None:
        callback(self)


class BenchSyncThreads:
    """Runs sync jobs at once. While ``is_slow`` is set, it runs them only when the test calls ``finish``."""

    def __init__(self) -> None:
        self.is_slow = False
        self._waiting: list[tuple[Any, Callable[[Any], object]]] = []

    @property
    def is_busy(self) -> bool:
        """True if a job waits for ``finish``."""
        return bool(self._waiting)

    def run(self, job: Any, done: Callable[[Any], object], *, is_urgent: bool) -> None:
        self._waiting.append((job, done))
        if not self.is_slow:
            self.finish(_queue_of(job))

    def finish(self, *queues: Any) -> None:
        """End the running syncs of these queues, of all queues by default. Syncs that begin meanwhile may wait."""
        waiting, self._waiting = self._waiting, []
        for job, done in waiting:
            if not queues or _queue_of(job) in queues:
                job.run()
                done(job)
            else:
                self._waiting.append((job, done))


def _queue_of(job: Any) -> Any:
    """Return the queue that a job syncs; a job of the topic logs stands for itself."""
    return getattr(job, "queue", job)


class BenchMetadataStore:
    """Counts the saves and writes nothing."""

    def __init__(self) -> None:
        self.save_count = 0

    def save(self, *, is_urgent: bool = False) -> Saved:
        self.save_count += 1
        return Saved()


class BenchRemover:
    """Removes files at once."""

    def remove(
        self, directory: str, name: str, paths: Iterable[str], *, is_deleted: bool, is_durable: bool = False
    ) -> None:
        remove_now(directory, name, paths, is_deleted=is_deleted, is_durable=is_durable)

    def reopen(self, directory: str, name: str) -> None:
        pass


class BenchLink:
    """A client's socket: the written bytes, and whether it was closed."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.write_count = 0
        self.is_closed = False

    def write(self, data: bytearray) -> None:
        assert not self.is_closed, "written after close"
        self.data += data
        self.write_count += 1

    def close(self) -> None:
        self.is_closed = True

    def take_frames(self) -> list[Frame]:
        """Return the frames written since the last call."""
        frames = split_frames(bytes(self.data))
        self.data.clear()
        return frames

    def take_messages(self) -> list[Message]:
        """Return the messages written since the last call; fail the test if another frame was written."""
        frames = self.take_frames()
        assert all(frame.type == 2 for frame in frames), frames
        return [Message.decode(frame.data) for frame in frames]

    def take_bodies(self) -> list[bytes]:
        return [message.body for message in self.take_messages()]


class Bench:
    """A broker with its clock, its log, and the callbacks of the next turn. ``saved`` are the topics of nsqd.dat."""

    def __init__(
        self, data_path: Path, clock: BenchClock | None = None, saved: Sequence[SavedTopic] = (), **options: Any
    ) -> None:
        self.clock = clock or BenchClock()
        self.log = BenchLog()
        self.soon: list[Callable[[], None]] = []
        options.setdefault("store", TEST_STORE)
        self.options = NsqdOptions(data_path=str(data_path), id=1, **options)
        self.broker = Broker(self.options, self.log, self.clock, self.soon.append)
        self.sync_threads = self.broker.commits.threads = BenchSyncThreads()
        self.metadata_store = self.broker.metadata_store = BenchMetadataStore()
        self.broker.classic_files.remover = BenchRemover()
        self.broker.logs.options = LogOptions(commit_size=1 << 20)
        self.start(list(saved))

    def start(self, saved: list[SavedTopic]) -> None:
        """Restore the topics of logs and of ``saved``."""
        self.broker.restore(saved)

    def settle(self) -> None:
        """Run turns of the loop until no callback is left."""
        self.run_scheduled()

    def run_scheduled(self) -> None:
        for _ in range(1000):
            if not self.soon:
                return
            callbacks = self.soon[:]
            self.soon.clear()
            for callback in callbacks:
                callback()
        raise AssertionError("the loop does not become idle")

    def advance(self, duration_ns: int) -> None:
        """Advance the clock, then run turns of the loop until no callback is left."""
        self.clock.advance(duration_ns)
        self.settle()

    def sync(self, queue: Any) -> None:
        """Sync everything written to ``queue`` so far."""
        self.sync_threads.finish(queue)
        job = queue.begin_sync()
        if job is None:  # a sync that began after another one had ended covers everything
            self.sync_threads.finish(queue)
        else:
            job.run()
            self.broker.turn.run(queue.end_sync, job)
        self.settle()

    def publish(self, topic_name: str, *bodies: bytes) -> None:
        """Publish as one batch, and settle."""
        self.broker.topic(topic_name).publish(b"".join(map(sized, bodies)), len(bodies))
        self.settle()

    def defer(self, topic_name: str, body: bytes, delay_ns: int) -> None:
        self.broker.topic(topic_name).publish_deferred(body, delay_ns)
        self.settle()

    def connect(self, **settings: Any) -> Client:
        """Return a client that has sent the magic; ``settings`` are attributes of the client."""
        client = self.broker.new_client("127.0.0.1:1234", "127.0.0.1", BenchLink())
        client.heartbeat_interval_ns = 30 * SECOND
        client.msg_timeout_ns = self.options.msg_timeout
        for name, value in settings.items():
            setattr(client, name, value)
        return client

    def consume(self, topic_name: str, channel_name: str, ready_count: int = 0, **settings: Any) -> Client:
        """Return a client that is subscribed, with RDY ``ready_count``."""
        client = self.connect(**settings)
        channel = self.broker.topic(topic_name).channel(channel_name)
        channel.add_client(client)
        client.channel = channel
        client.state = ClientState.SUBSCRIBED
        self.set_ready(client, ready_count)
        return client

    def set_ready(self, client: Client, count: int) -> None:
        client.ready_count = count
        client.channel.add_if_ready(client)
        self.settle()

    def leave(self, client: Client) -> None:
        """Simulate the end of the client's connection."""
        self.broker.clients.pop(client.id, None)
        client.channel.remove_client(client)
        self.settle()


class ClassicBench(Bench):
    """A broker whose topics have the classic store, whatever store the other tests use."""

    def __init__(self, data_path: Path, clock: BenchClock | None = None, **options: Any) -> None:
        super().__init__(data_path, clock, store="classic", **options)


def split_frames(data: bytes) -> list[Frame]:
    """Return the frames in ``data``, which must contain nothing else."""
    frames = []
    while data:
        size, kind = struct.unpack_from(">ii", data)
        assert len(data) >= 4 + size, "an incomplete frame"
        frames.append(Frame(kind, data[8 : 4 + size]))
        data = data[4 + size :]
    return frames
