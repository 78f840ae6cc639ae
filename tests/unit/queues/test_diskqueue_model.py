"""The disk queue against a model of two lists: pending messages and readable messages."""

import shutil
import tempfile
from pathlib import Path

from diskqueue_bench import FAST_DIRECTORY, HEAD, open_queue
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqx.wire.message import new_batch, new_message
from rawclient import sized

SIZES = st.integers(1, 60)


class DiskQueueMachine(RuleBasedStateMachine):
    """Any order of operations, including syncs in the background, is first in, first out."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=FAST_DIRECTORY))
        self.serial = 0
        self.pending = []
        self.readable = []
        self.taken = []
        self.unfinished = set()
        self.write_position = 0
        self.job = None

    @initialize(max_file_size=st.sampled_from([1, 100, 250, 1000]))
    def open(self, max_file_size):
        self.max_file_size = max_file_size
        self.pending_calls = 0
        self.queue = open_queue(self.directory, max_file_size, 60, on_pending=self.on_pending)

    def on_pending(self):
        self.pending_calls += 1

    def teardown(self):
        if hasattr(self, "queue"):
            if self.job is not None:
                self.job.run()
            self.queue.close()
            assert sorted(path.suffix for path in self.directory.iterdir() if path.suffix not in (".dat", ".crc")) == []
        shutil.rmtree(self.directory)

    def new_body(self, size):
        self.serial += 1
        return b"%d:" % self.serial + b"x" * size

    def note_put(self, body):
        """Model the rolling of files: a record that does not fit makes the queue write, and starts a new file."""
        length = HEAD + len(body)
        position = self.write_position + sum(HEAD + len(waiting) for waiting in self.pending)
        if position > 0 and position + length > self.max_file_size:
            self.note_written()
            self.write_position = 0
        self.pending.append(body)

    def note_written(self):
        self.write_position += sum(HEAD + len(body) for body in self.pending)
        self.readable += self.pending
        self.pending = []

    @rule(size=SIZES)
    def put_message(self, size):
        body = self.new_body(size % 50)
        self.queue.put_message(new_message(b"%016x" % self.serial, body, self.serial, 0))
        self.note_put(body)
        assert self.pending_calls > 0

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6))
    def put_batch(self, sizes):
        bodies = [self.new_body(size % 50) for size in sizes]
        batch = new_batch(b"".join(map(sized, bodies)), 0, len(bodies), self.serial, self.serial << 22)
        self.queue.put_batch(batch)
        assert batch.count == 0
        for body in bodies:
            self.note_put(body)

    @rule()
    def write_pending(self):
        self.queue.write_pending()
        self.note_written()
        self.pending_calls = 0

    @rule(count=st.integers(1, 5))
    def get(self, count):
        for _ in range(count):
            message = self.queue.get()
            if self.readable:
                assert message.body == self.readable.pop(0)
                self.taken.append((message.body, message.record))
                self.unfinished.add(message.record)
            else:
                assert message is None

    @rule(data=st.data())
    def finish(self, data):
        if self.unfinished:
            for record in data.draw(st.sets(st.sampled_from(sorted(self.unfinished)))):
                self.queue.finish(record)
                self.unfinished.discard(record)

    def note_reopened(self):
        """Model a restart: messages come again from the oldest unfinished one on."""
        start = next((i for i, (_, record) in enumerate(self.taken) if record in self.unfinished), len(self.taken))
        self.readable = [body for body, _ in self.taken[start:]] + self.readable
        self.taken, self.unfinished = [], set()

    @precondition(lambda self: self.job is None)
    @rule()
    def begin_sync(self):
        self.job = self.queue.begin_sync()
        assert self.job is not None

    @precondition(lambda self: self.job is not None)
    @rule()
    def finish_sync(self):
        self.job.run()
        assert self.job.error is None
        self.queue.end_sync(self.job)
        self.job = None

    @rule()
    def release_idle_files(self):
        self.queue.release_idle_files()

    @rule(runs_before_close=st.booleans())
    def close_and_reopen(self, runs_before_close):
        job, self.job = self.job, None
        if job is not None and runs_before_close:
            job.run()
        self.queue.close()
        self.note_written()
        if job is not None and not runs_before_close:
            job.run()
        self.note_reopened()
        self.open(self.max_file_size)

    @rule()
    def empty(self):
        self.queue.empty()
        if self.job is not None:
            self.job.run()
            self.queue.end_sync(self.job)
            self.job = None
        self.pending, self.readable, self.write_position = [], [], 0
        self.taken, self.unfinished = [], set()
        assert [path for path in self.directory.iterdir() if not path.name.endswith(".meta.dat")] == []

    @invariant()
    def agrees(self):
        if hasattr(self, "queue"):
            assert self.queue.depth == len(self.pending) + len(self.readable)
            assert self.queue.has_readable() or not self.readable

    @precondition(lambda self: self.readable)
    @rule()
    def get_all(self):
        bodies = []
        while (message := self.queue.get()) is not None:
            bodies.append(message.body)
            self.taken.append((message.body, message.record))
            self.queue.finish(message.record)
        assert bodies == self.readable
        self.readable = []
        assert not self.queue.has_readable()


TestDiskQueue = DiskQueueMachine.TestCase
TestDiskQueue.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
