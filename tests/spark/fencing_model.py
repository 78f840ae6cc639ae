"""A model of owners of a segment directory on remote storage that run, freeze and die in any order.

The lease and the segment directory are the real ones. The storage, the channel, Spark's checkpoint and the clock are
models. One owner runs at a time. Before every storage call the scheduler may switch to another owner and may advance
the clock, so any interleaving of these calls can happen. At the end a last owner drains the channel, and every message
must have reached the sink exactly once.
"""

from __future__ import annotations

import contextlib
import io
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from messages import add_message

from nsqx.errors import ConfigError
from nsqx.spark.columns import Columns
from nsqx.spark.lease import Lease, LeaseLost, take_lease
from nsqx.spark.rows import Rows
from nsqx.spark.segments import SegmentDirectory
from nsqx.spark.slices import DataLost, read_slices

MSG_TIMEOUT_S = 15.0


class Scheduler:
    """Runs threads one at a time, in random order, and owns the clock."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_s = 1000.0
        self.step_count = 0
        self._changed = threading.Condition()
        self._waiting: dict[int, float] = {}
        self._running: int | None = None
        self._live = 0
        self.failures: list[BaseException] = []

    def run(self, actors: list[Callable[[], None]]) -> None:
        """Run all actors until they end."""
        self._live = len(actors)
        threads = [threading.Thread(target=self._act, args=(actor,), daemon=True) for actor in actors]
        for thread in threads:
            thread.start()
        with self._changed:
            while self._live:
                self._changed.wait_for(lambda: self._running is None and len(self._waiting) == self._live)
                if not self._live:
                    break
                ready = [each for each, until_s in self._waiting.items() if until_s <= self.now_s]
                if not ready:
                    self.now_s = min(self._waiting.values())
                    continue
                self.step_count += 1
                self.now_s += self.rng.choice((0.0, 0.0, 0.1, 2.0))
                self._running = self.rng.choice(ready)
                del self._waiting[self._running]
                self._changed.notify_all()
        for thread in threads:
            thread.join()

    def _act(self, actor: Callable[[], None]) -> None:
        try:
            self.park()
            actor()
        except BaseException as error:
            self.failures.append(error)
        with self._changed:
            self._running = None
            self._live -= 1
            self._changed.notify_all()

    def park(self, sleep_s: float = 0.0) -> None:
        """Let other threads run for at least ``sleep_s``."""
        me = threading.get_ident()
        with self._changed:
            if self._running == me:
                self._running = None
            self._waiting[me] = self.now_s + sleep_s
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._running == me)


class Store:
    """Storage in memory. Every call is atomic and sees the effects of all earlier calls."""

    location = "model"
    is_local = False

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.files: dict[str, bytes] = {}

    def create(self) -> None:
        """No-op."""

    def names(self, folder: str = "") -> list[str]:
        self._scheduler.park()
        start = f"{folder}/" if folder else ""
        found = [name.removeprefix(start) for name in self.files if name.startswith(start)]
        return [name for name in found if "/" not in name]

    def write(self, name: str, fill: Any) -> None:
        stream = io.BytesIO()
        fill(stream)
        self._scheduler.park()
        self.files[name] = stream.getvalue()

    def open(self, name: str) -> Any:
        return pa.BufferReader(self.read(name))

    def read(self, name: str) -> bytes:
        self._scheduler.park()
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def delete(self, name: str) -> None:
        self._scheduler.park()
        self.files.pop(name, None)

    def create_once(self, name: str, content: bytes) -> bool:
        self._scheduler.park()
        is_new = name not in self.files
        self.files.setdefault(name, content)
        if is_new and self._scheduler.rng.random() < 0.02:
            raise OSError("the answer was lost")
        return is_new


class Channel:
    """A channel with a backlog and messages in flight. A message returns to the backlog after its timeout."""

    def __init__(self, scheduler: Scheduler, count: int) -> None:
        self._scheduler = scheduler
        self._waiting = list(range(count))
        self._in_flight: dict[int, tuple[object, float]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._in_flight

    def receive(self, owner: object, count: int) -> list[int]:
        for number, (_, until_s) in list(self._in_flight.items()):
            if until_s <= self._scheduler.now_s:
                del self._in_flight[number]
                self._waiting.append(number)
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        for number in taken:
            self._in_flight[number] = (owner, self._scheduler.now_s + MSG_TIMEOUT_S)
        return taken

    def finish(self, owner: object, numbers: list[int]) -> None:
        for number in numbers:
            if self._in_flight.get(number, (None, 0.0))[0] is owner:
                del self._in_flight[number]


class Checkpoint:
    """The committed offset of the query and the rows of the sink. A repeated batch must have the same rows."""

    def __init__(self) -> None:
        self.row = 0
        self.sink: dict[int, bytes] = {}

    def process(self, directory: SegmentDirectory, store: Store) -> None:
        """Run a batch from the last committed offset to the last stored row."""
        start, end = self.row, directory.next_row
        directory.check_start(start, fail_on_data_loss=True)
        rows: list[bytes] = []
        for part in directory.slices(start, end, 1):
            for batch in read_slices("", directory.state.identity, part, lambda _: store):
                rows.extend(batch.column("value").to_pylist())
        assert len(rows) == end - start, (start, end, len(rows))
        for row, value in enumerate(rows, start):
            assert self.sink.setdefault(row, value) == value, "a repeated batch has a different row"
        self.row = max(self.row, end)
        directory.commit(end)


class Model:
    """Several owners that compete for one directory and one channel."""

    def __init__(self, seed: int, count: int = 12) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(self.rng)
        self.store = Store(self.scheduler)
        self.channel = Channel(self.scheduler, count)
        self.checkpoint = Checkpoint()
        self.count = count
        self.takeover_count = 0
        self.loss_count = 0

    def run(self) -> None:
        """Run three competing owners, then one that drains the channel.

        Raises AssertionError if a row is lost or duplicated.
        """
        self.scheduler.run([self._owner for _ in range(3)])
        self.scheduler.run([self._last_owner])
        if self.scheduler.failures:
            raise self.scheduler.failures[0]
        found = Counter(int(value) for value in self.checkpoint.sink.values())
        assert found == Counter(range(self.count)), f"lost {set(range(self.count)) - set(found)}, found {found}"

    def _owner(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.scheduler.park(self.rng.choice((0.0, 5.0, 30.0)))
            try:
                self._own()
            except LeaseLost:
                self.loss_count += 1
            except (ConfigError, OSError):
                pass

    def _last_owner(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                self._own(is_last=True)
                return

    def _own(self, *, is_last: bool = False) -> None:
        held = take_lease(self.store, 0.0, clock=lambda: self.scheduler.now_s, sleep=self.scheduler.park)
        self.takeover_count += held.epoch > 1
        directory = SegmentDirectory.load(self.store, held, "c", 10, 1000)
        try:
            self._receive(directory, held, is_last)
        except DataLost:
            # Only an owner that has lost its lease may find rows missing.
            held.verify()
            raise

    def _receive(self, directory: SegmentDirectory, held: Lease, is_last: bool) -> None:
        me = object()
        known = {message_id for part in directory.known_identities() for message_id in part.ids}
        directory.begin(10)
        while not (is_last and self.channel.is_empty):
            self.scheduler.park(self.rng.choice((0.0, 0.0, 1.0, 60.0)))
            act = self.rng.random()
            if act < 0.15:
                self.checkpoint.process(directory, self.store)
            elif act < 0.2 and not is_last:
                return  # killed
            elif act < 0.25 and not is_last:
                directory.close(is_clean=True)
                return
            elif act < 0.35:
                held.renew()
            else:
                self._take(directory, me, known)
        self.checkpoint.process(directory, self.store)

    def _take(self, directory: SegmentDirectory, me: object, known: set[bytes]) -> None:
        numbers = self.channel.receive(me, self.rng.randrange(1, 4))
        fresh = [number for number in numbers if b"%016x" % number not in known]
        if not numbers:
            return
        if fresh:
            self._append(directory, fresh)
            known.update(b"%016x" % number for number in fresh)
        else:
            directory.verify()
        self.scheduler.park(self.rng.choice((0.0, 0.0, 60.0)))
        self.channel.finish(me, numbers)

    def _append(self, directory: SegmentDirectory, numbers: list[int]) -> None:
        """Append, and retry after an error as the recorder does."""
        for _ in range(3):
            with contextlib.suppress(OSError):
                directory.append([_rows(numbers)])
                return
        raise OSError("the storage fails")


def _rows(numbers: list[int]) -> Rows:
    columns = Columns("t", "127.0.0.1:4150")
    for number in numbers:
        add_message(columns, b"%016x" % number, 1_700_000_000_000_000_000 + number, 1, b"%d" % number)
    return Rows(columns)
