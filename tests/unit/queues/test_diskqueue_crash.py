"""The disk queue after a crash at any system call: written messages are there, in order, and the depth is right.

One run of a script gives all crashes: the directory is copied before each call that changes a file, and halfway through
each write. A queue is then opened on each copy.
"""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from diskqueue_bench import FAST_DIRECTORY, META, drain, open_queue
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqx.wire.message import new_batch, new_message
from rawclient import sized

MAX_FILE_SIZE = 120


@dataclass
class Crash:
    """A copy of the directory, and the messages that a queue opened on it must have."""

    moment: str
    files: dict[str, bytes]
    written: list[bytes]  # messages whose write had returned
    unwritten: list[bytes]  # messages put but not yet written
    read_count: int
    synced_read_count: int


@dataclass
class Recorder:
    """Runs a script on a queue and records the crashes on the way."""

    directory: Path
    crashes: list[Crash] = field(default_factory=list)
    written: list[bytes] = field(default_factory=list)
    unwritten: list[bytes] = field(default_factory=list)
    read_count: int = 0
    synced_read_count: int = 0
    job_read_count: int = 0
    serial: int = 0

    def note(self, moment):
        files = {entry.name: Path(entry.path).read_bytes() for entry in os.scandir(self.directory)}
        self.crashes.append(
            Crash(moment, files, self.written[:], self.unwritten[:], self.read_count, self.synced_read_count)
        )

    def watch(self, patch):
        pwrite, rename = os.pwrite, os.rename

        def watched_pwrite(descriptor, data, position):
            self.note("before write")
            pwrite(descriptor, data[: len(data) // 2], position)
            self.note("half a write")
            return pwrite(descriptor, data, position)

        def watched_rename(source, target):
            self.note("before rename")
            rename(source, target)
            if target.endswith(META):
                self.synced_read_count = self.job_read_count

        def watched(name):
            call = getattr(os, name)

            def before(*arguments):
                self.note(f"before {name}")
                return call(*arguments)

            patch.setattr(os, name, before)

        patch.setattr(os, "pwrite", watched_pwrite)
        patch.setattr(os, "rename", watched_rename)
        watched("fsync")
        watched("fdatasync")
        watched("unlink")

    def bodies(self, sizes):
        bodies = []
        for size in sizes:
            self.serial += 1
            bodies.append(b"%d:" % self.serial + b"x" * size)
        return bodies

    def run(self, script):
        self.queue = open_queue(self.directory, MAX_FILE_SIZE, 100)
        self.job = None
        for name, argument in script:
            getattr(self, name)(argument)
            self.note(f"after {name}")
        self.end_sync(None)
        self.job_read_count = self.read_count
        self.queue.close()
        self.written, self.unwritten = self.written + self.unwritten, []
        self.note("after close")

    def put(self, sizes):
        for body in self.bodies(sizes):
            self.unwritten.append(body)
            self.queue.put_message(new_message(b"%016x" % self.serial, body, 1, 0))

    def put_batch(self, sizes):
        bodies = self.bodies(sizes)
        self.unwritten += bodies
        self.queue.put_batch(new_batch(b"".join(map(sized, bodies)), 0, len(bodies), 1, self.serial << 22))

    def write(self, _):
        self.queue.write_pending()
        self.written += self.unwritten
        self.unwritten = []

    def get(self, count):
        for _ in range(count):
            message = self.queue.get()
            if message is not None:
                self.queue.finish(message.record)
                self.read_count += 1

    def begin_sync(self, _):
        if self.job is None:
            self.job_read_count = self.read_count
            self.job = self.queue.begin_sync()

    def end_sync(self, _):
        if self.job is not None:
            self.job.run()
            self.queue.end_sync(self.job)
            self.job = None


SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=6)
SCRIPTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SIZES),
        st.tuples(st.just("put_batch"), SIZES),
        st.tuples(st.just("write"), st.none()),
        st.tuples(st.just("get"), st.integers(1, 6)),
        st.tuples(st.just("begin_sync"), st.none()),
        st.tuples(st.just("end_sync"), st.none()),
    ),
    max_size=14,
)


def reopen(crash):
    """Return the depth of a queue opened after the crash, and the messages it returns."""
    with tempfile.TemporaryDirectory(dir=FAST_DIRECTORY) as directory:
        for name, content in crash.files.items():
            Path(directory, name).write_bytes(content)
        queue = open_queue(directory, MAX_FILE_SIZE, 100)
        depth = queue.depth
        queue.put_message(new_message(b"%016x" % 0, b"after the crash", 1, 0))
        queue.write_pending()
        bodies = drain(queue)
        assert queue.depth == 0
        queue.close()
    assert bodies[-1:] == [b"after the crash"]
    return depth, bodies[:-1]


def check(crash):
    depth, bodies = reopen(crash)
    assert depth == len(bodies), crash.moment
    if not bodies:
        assert crash.read_count >= len(crash.written), crash.moment
        return
    everything = crash.written + crash.unwritten
    first = everything.index(bodies[0])
    # The messages are in order and without gaps, up to a torn end.
    assert bodies == everything[first : first + len(bodies)], crash.moment
    # No written message is lost unless it was read, and none that was read before the last sync comes again.
    assert crash.synced_read_count <= first <= crash.read_count, crash.moment
    assert first + len(bodies) >= len(crash.written), crash.moment


def crashes_of(script):
    with tempfile.TemporaryDirectory(dir=FAST_DIRECTORY) as directory, pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(Path(directory))
        recorder.watch(patch)
        recorder.run(script)
        return recorder.crashes


@settings(max_examples=40, deadline=None)
@given(SCRIPTS)
def test_no_written_message_is_lost(script):
    for crash in crashes_of(script):
        check(crash)


def test_several_files_filled_before_the_first_sync():
    """A large MPUB fills files faster than they are synced."""
    for crash in crashes_of([("put_batch", [60] * 5), ("write", None), ("get", 2)]):
        check(crash)


def test_several_files_filled_since_the_last_sync():
    script = [("put", [60]), ("write", None), ("begin_sync", None), ("end_sync", None), ("get", 1)]
    for crash in crashes_of([*script, ("put_batch", [60] * 5), ("write", None), ("get", 2)]):
        check(crash)


def test_a_second_crash_before_anything_was_synced():
    with tempfile.TemporaryDirectory(dir=FAST_DIRECTORY) as directory:
        for expected in ([b"1"], [b"1", b"2"], [b"1", b"2", b"3"]):
            queue = open_queue(directory, MAX_FILE_SIZE, 100)
            body = b"%d" % len(expected)
            queue.put_message(new_message(b"%016x" % 0, body, 1, 0))
            queue.write_pending()
            # This queue was not synced: the next process opens the files as they are now.
            assert queue.depth == len(expected)
        assert drain(queue) == expected
