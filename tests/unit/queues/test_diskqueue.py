"""The disk queue: its files byte for byte, and its handling of damaged and missing files."""

import errno
import os
import stat
import struct

import pytest
from diskqueue_bench import (
    HEAD,
    META,
    data_name,
    drain,
    open_queue,
    put,
    put_batch,
    record,
    sums_name,
    sync,
    take,
    write,
)

from broker_bench import BenchLog
from nsqx.errors import DiskQueueError
from nsqx.queues import record_reader
from nsqx.wire.message import new_message


def names(directory):
    """Return the files in a directory, without sidecars."""
    return sorted(name for name in os.listdir(directory) if not name.endswith((".crc", ".crc.bad")))


def failing(error_number):
    def fail(*arguments):
        raise OSError(error_number, os.strerror(error_number))

    return fail


# Files


def test_records_and_meta_byte_for_byte(tmp_path):
    queue = open_queue(tmp_path)
    queue.put_message(new_message(b"0123456789abcdef", b"one", 1_700_000_000_000_000_000, 3))
    put(queue, b"two")
    queue.close()
    assert (tmp_path / data_name(0)).read_bytes() == (
        record(b"one", 1_700_000_000_000_000_000, 3, b"0123456789abcdef") + record(b"two")
    )
    assert (tmp_path / META).read_bytes() == b"2\n0,0\n0,66\n"
    assert names(tmp_path) == [data_name(0), META]
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600 for name in names(tmp_path))


def test_meta_after_reading_half(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one", b"two")
    assert take(queue) == [b"one"]
    queue.close()
    assert (tmp_path / META).read_bytes() == b"1\n0,33\n0,66\n"


def test_an_unused_queue_leaves_no_files(tmp_path):
    queue = open_queue(tmp_path)
    assert (queue.name, queue.depth, queue.has_readable(), queue.get()) == ("q", 0, False, None)
    queue.close()
    assert names(tmp_path) == []


def test_all_fields_of_a_message_are_stored(tmp_path):
    queue = open_queue(tmp_path)
    queue.put_message(new_message(b"0123456789abcdef", b"body", 42, 65535))
    queue.close()
    message = open_queue(tmp_path).get()
    assert (message.id, message.body, message.timestamp, message.attempts) == (b"0123456789abcdef", b"body", 42, 65535)
    assert message.defer_ns == 0


def test_a_stored_batch_is_emptied_and_keeps_its_ids(tmp_path):
    queue = open_queue(tmp_path)
    put_batch(queue, b"a", b"b")
    queue.write_pending()
    assert [(m.id, m.body) for m in (queue.get(), queue.get())] == [(b"%016x" % 0, b"a"), (b"%016x" % 1, b"b")]
    queue.close()


@pytest.mark.parametrize("puts", [put, put_batch])
@pytest.mark.parametrize(
    ("max_file_size", "sizes"),
    [
        (3 * (HEAD + 5), [3, 1]),  # a file that is exactly full takes no further record
        (3 * (HEAD + 5) - 1, [2, 2]),  # with one byte less, the third record does not fit
        (1, [1, 1, 1, 1]),  # a record larger than a file has a file of its own
        (HEAD + 5, [1, 1, 1, 1]),
    ],
)
def test_a_full_file_is_followed_by_a_new_one(tmp_path, puts, max_file_size, sizes):
    queue = open_queue(tmp_path, max_file_size)
    bodies = [b"body%d" % index for index in range(4)]
    puts(queue, *bodies)
    queue.write_pending()
    lengths = [(tmp_path / data_name(number)).stat().st_size for number in range(len(sizes))]
    assert lengths == [count * (HEAD + 5) for count in sizes]
    assert not (tmp_path / data_name(len(sizes))).exists()
    assert drain(queue) == bodies
    queue.close()


def test_a_sync_removes_finished_files(tmp_path):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1", b"2", b"3", b"4", b"5")
    assert take(queue, 3) == [b"1", b"2", b"3"]
    assert (tmp_path / data_name(0)).exists()
    sync(queue)
    assert names(tmp_path) == [data_name(1), data_name(2), META]
    assert (tmp_path / META).read_bytes() == b"2\n1,31\n2,31\n"
    assert drain(queue) == [b"4", b"5"]
    queue.close()
    assert names(tmp_path) == [data_name(2), META]
    assert (tmp_path / META).read_bytes() == b"0\n2,31\n2,31\n"


def test_the_last_file_stays_and_is_appended_to(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    assert drain(queue) == [b"one"]
    queue.close()
    queue = open_queue(tmp_path)
    write(queue, b"two")
    queue.close()
    assert (tmp_path / data_name(0)).read_bytes() == record(b"one") + record(b"two")
    assert drain(open_queue(tmp_path)) == [b"two"]


def test_only_written_messages_can_be_read(tmp_path):
    calls = []
    queue = open_queue(tmp_path, on_pending=lambda: calls.append(1))
    put(queue, b"one")
    put(queue, b"two")
    assert calls == [1]
    assert (queue.depth, queue.has_readable(), queue.get()) == (2, False, None)
    queue.write_pending()
    put(queue, b"three")
    assert calls == [1, 1]
    assert queue.has_readable()
    assert queue.peek_timestamp() == 0
    assert drain(queue) == [b"one", b"two"]
    assert (queue.depth, queue.has_readable(), queue.peek_timestamp()) == (1, False, -1)
    queue.write_pending()
    assert drain(queue) == [b"three"]
    queue.close()


def test_a_message_longer_than_the_read_buffer(tmp_path):
    bodies = [b"a" * 200_000, b"b", b"c" * 70_000]
    queue = open_queue(tmp_path, max_message_size=200_000)
    write(queue, *bodies)
    assert drain(queue) == bodies
    queue.close()


def test_peek_timestamp_removes_nothing(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one", timestamp=7)
    write(queue, b"two", timestamp=8)
    assert queue.peek_timestamp() == queue.peek_timestamp() == 7
    assert queue.depth == 2
    queue.get()
    assert queue.peek_timestamp() == 8
    queue.close()


# Syncs


def test_positions_are_due_after_a_number_of_puts_and_gets(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    sync(queue)
    assert not queue.has_unsynced()
    write(queue, b"two")
    assert (queue.are_positions_due(3), queue.has_unsynced()) == (False, True)
    queue.get()
    assert not queue.are_positions_due(3)
    queue.get()
    assert queue.are_positions_due(3)
    queue.close()


def test_positions_are_due_after_a_change_of_files(tmp_path):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1")
    assert queue.are_positions_due(1000)
    sync(queue)
    write(queue, b"2")
    assert not queue.are_positions_due(1000)
    write(queue, b"3")
    assert queue.are_positions_due(1000)
    sync(queue)
    assert [queue.get().body for _ in range(2)] == [b"1", b"2"]
    assert not queue.are_positions_due(1000)
    assert queue.get().body == b"3"
    assert queue.are_positions_due(1000)
    queue.close()


def test_a_sync_writes_data_then_meta_and_then_removes_files(tmp_path, monkeypatch):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1", b"2", b"3")
    assert take(queue, 3) == [b"1", b"2", b"3"]
    inodes = {(tmp_path / data_name(number)).stat().st_ino: data_name(number) for number in (0, 1)}
    inodes[tmp_path.stat().st_ino] = "directory"
    calls = []
    real = {name: getattr(os, name) for name in ("fsync", "fdatasync", "rename", "unlink")}

    def note_sync(name):
        def sync_noted(descriptor):
            calls.append((name, inodes.get(os.fstat(descriptor).st_ino, "new meta")))
            real[name](descriptor)

        return sync_noted

    def note_rename(source, target):
        calls.append(("rename", os.path.basename(target)))
        real["rename"](source, target)

    def note_unlink(path):
        calls.append(("unlink", os.path.basename(path)))
        real["unlink"](path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note_sync("fsync"))
        patch.setattr(os, "fdatasync", note_sync("fdatasync"))
        patch.setattr(os, "rename", note_rename)
        patch.setattr(os, "unlink", note_unlink)
        sync(queue)
    assert calls == [
        ("fdatasync", data_name(0)),
        ("fdatasync", data_name(1)),
        ("fsync", "new meta"),
        ("rename", META),
        ("fsync", "directory"),
        ("unlink", data_name(0)),
        ("unlink", sums_name(0)),
    ]
    queue.close()


def sync_data(queue):
    """Make the records durable without saving the positions; return the job."""
    job = queue.begin_sync(saves_positions=False)
    job.run()
    queue.end_sync(job)
    return job


def test_a_sync_of_the_data_alone_is_one_call_and_its_records_are_found(tmp_path, monkeypatch):
    queue = open_queue(tmp_path)
    write(queue, b"1")
    sync(queue)
    meta, syncs, fdatasync = (tmp_path / META).read_bytes(), [], os.fdatasync
    write(queue, b"2", b"3")
    answers = when_durable(queue)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        patch.setattr(os, "fdatasync", lambda fd: (syncs.append(fd), fdatasync(fd)))
        assert sync_data(queue).error is None
    assert (len(syncs), answers, queue.unsynced_count()) == (1, [None], 0)
    assert queue.has_unsynced()  # the positions are not saved
    assert (tmp_path / META).read_bytes() == meta
    assert open_queue(tmp_path).depth == 3


def test_the_data_is_synced_alone_only_where_the_meta_file_on_disk_names_the_file(tmp_path):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1")
    assert sync_data(queue).positions is not None  # a new file
    write(queue, b"2")
    assert sync_data(queue).positions is None
    write(queue, b"3")
    assert sync_data(queue).positions is not None  # in the next file
    queue.empty()
    write(queue, b"4")
    assert sync_data(queue).positions is not None
    queue.close()
    queue = open_queue(tmp_path, 10_000)
    write(queue, b"5")
    assert sync_data(queue).positions is not None  # the last process may have been killed before its sync
    write(queue, b"6")
    assert sync_data(queue).positions is None
    queue.close()


def test_a_file_that_is_created_after_the_meta_file_names_it_needs_a_save_of_the_positions(tmp_path):
    queue = open_queue(tmp_path, HEAD + 1)
    write(queue, b"1")
    queue.empty()
    sync(queue)  # the meta file names a file that does not exist yet
    write(queue, b"2")
    assert sync_data(queue).positions is not None
    queue.close()


@pytest.mark.parametrize("saves_positions", [False, True])
def test_after_a_failed_sync_the_next_one_saves_the_positions(tmp_path, monkeypatch, saves_positions):
    queue = open_queue(tmp_path)
    write(queue, b"1")
    sync(queue)
    write(queue, b"2")
    job = queue.begin_sync(saves_positions=saves_positions)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync" if saves_positions else "fdatasync", failing(errno.EIO))
        job.run()
    queue.end_sync(job)
    assert (str(queue.failure), queue.unsynced_count()) == ("Input/output error", 1)
    assert sync_data(queue).positions is not None
    assert (queue.failure, queue.unsynced_count()) == (None, 0)
    queue.close()


def test_only_one_sync_runs_at_a_time(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    job = queue.begin_sync()
    assert queue.begin_sync() is None
    job.run()
    queue.end_sync(job)
    sync(queue)
    queue.close()


def test_a_sync_saves_the_state_at_its_start(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    job = queue.begin_sync()
    write(queue, b"two")
    put(queue, b"three")
    take(queue)
    job.run()
    queue.end_sync(job)
    assert (tmp_path / META).read_bytes() == b"1\n0,0\n0,33\n"
    assert queue.has_unsynced()
    sync(queue)
    assert (tmp_path / META).read_bytes() == b"1\n0,33\n0,66\n"  # without the pending record
    queue.write_pending()
    sync(queue)
    assert (tmp_path / META).read_bytes() == b"2\n0,33\n0,101\n"
    queue.close()


@pytest.mark.parametrize("call", ["fdatasync", "fsync", "rename", "pwrite"])
def test_a_failed_sync_is_retried(tmp_path, monkeypatch, call):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1", b"2", b"3")
    drain(queue)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if name != META}
    job = queue.begin_sync()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.EIO))
        job.run()
    queue.end_sync(job)
    assert isinstance(job.error, OSError)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if name != META} == before
    assert queue.are_positions_due(1000)
    sync(queue)
    assert names(tmp_path) == [data_name(1), META]
    # A file whose sync failed is not appended to.
    assert (tmp_path / META).read_bytes() == (b"0\n1,31\n2,0\n" if call == "fdatasync" else b"0\n1,31\n1,31\n")
    queue.close()


def test_a_sync_that_cannot_start_forgets_no_file(tmp_path, monkeypatch):
    queue = open_queue(tmp_path, HEAD + 1)
    write(queue, b"1", b"2")
    full_file, synced = (tmp_path / data_name(0)).stat().st_ino, []
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", failing(errno.EMFILE))
        with pytest.raises(OSError, match="Too many open files"):
            queue.begin_sync()
    fdatasync = os.fdatasync
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: (synced.append(os.fstat(fd).st_ino), fdatasync(fd)))
        sync(queue)
    assert full_file in synced
    queue.close()


def test_a_sync_does_not_confirm_records_of_a_running_earlier_sync(tmp_path, monkeypatch):
    """If a file is rolled during a sync, the next sync must not overtake it."""
    queue = open_queue(tmp_path, HEAD + 1)
    write(queue, b"1", b"2")
    slow_job = queue.begin_sync()
    write(queue, b"3")
    inodes = {(tmp_path / data_name(number)).stat().st_ino: number for number in range(3)}
    synced = []
    fdatasync = os.fdatasync
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: (synced.append(inodes.get(os.fstat(fd).st_ino)), fdatasync(fd)))
        job = queue.begin_sync()
        if job is not None:
            job.run()
            queue.end_sync(job)
            assert {0, 1, 2} <= set(synced)
    slow_job.run()
    queue.end_sync(slow_job)
    sync(queue)
    queue.close()
    assert (tmp_path / META).read_bytes() == b"3\n0,0\n2,31\n"


@pytest.mark.parametrize("has_run", [False, True])
def test_close_during_a_sync(tmp_path, has_run):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1", b"2", b"3")
    drain(queue)
    job = queue.begin_sync()
    write(queue, b"4")
    if has_run:
        job.run()
    queue.close()
    if not has_run:
        job.run()
    queue.end_sync(job)
    assert names(tmp_path) == [data_name(1), META]
    assert (tmp_path / META).read_bytes() == b"1\n1,31\n1,62\n"
    assert drain(open_queue(tmp_path)) == [b"4"]


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("ending", ["empty", "delete"])
def test_empty_during_a_sync(tmp_path, has_run, ending):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1", b"2", b"3")
    queue.get()
    job = queue.begin_sync()
    if has_run:
        job.run()
    getattr(queue, ending)()
    if not has_run:
        job.run()
    queue.end_sync(job)
    assert names(tmp_path) == ([META] if ending == "empty" else [])
    assert (queue.depth, queue.get()) == (0, None)
    if ending == "empty":
        assert (tmp_path / META).read_bytes() == b"0\n2,0\n2,0\n"
        write(queue, b"4")
        assert names(tmp_path) == [data_name(2), META]
        assert drain(queue) == [b"4"]
        queue.close()


def test_empty_drops_pending_records(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    put(queue, b"two")
    queue.empty()
    assert (queue.depth, queue.has_readable()) == (0, False)
    queue.write_pending()
    queue.close()
    assert open_queue(tmp_path).depth == 0


def test_idle_files_are_released_and_opened_again(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    drain(queue)
    sync(queue)
    count = len(os.listdir("/proc/self/fd"))
    queue.release_idle_files()
    assert len(os.listdir("/proc/self/fd")) == count - 1
    write(queue, b"two")
    assert drain(queue) == [b"two"]
    queue.close()


def test_files_in_use_are_not_released(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    count = len(os.listdir("/proc/self/fd"))
    queue.release_idle_files()
    assert len(os.listdir("/proc/self/fd")) == count
    queue.close()


def test_close_closes_every_descriptor(tmp_path):
    count = len(os.listdir("/proc/self/fd"))
    queue = open_queue(tmp_path, HEAD + 1)
    write(queue, b"1", b"2", b"3")
    queue.get()
    queue.begin_sync().run()
    write(queue, b"4", b"5")
    queue.close()
    assert len(os.listdir("/proc/self/fd")) == count


# Writes that fail


@pytest.mark.parametrize("torn", [False, True])
def test_a_failed_write_loses_no_message_and_damages_no_file(tmp_path, monkeypatch, torn):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    put(queue, b"two", b"three")
    pwrite = os.pwrite
    attempts = []

    def fail(descriptor, data, position):
        attempts.append(position)
        if torn and len(attempts) == 1:
            return pwrite(descriptor, data[:40], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(DiskQueueError, match="^No space left on device$"):
            queue.write_pending()
    assert str(queue.failure) == "No space left on device"
    assert (tmp_path / data_name(0)).read_bytes() == record(b"one")
    write(queue, b"four")
    assert queue.failure is None
    assert drain(queue) == [b"one", b"two", b"three", b"four"]
    queue.close()


def test_a_failed_open_for_writing_loses_no_message(tmp_path, monkeypatch):
    queue = open_queue(tmp_path)
    put(queue, b"one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EACCES))
        with pytest.raises(DiskQueueError, match="Permission denied"):
            queue.write_pending()
    write(queue, b"two")
    assert drain(queue) == [b"one", b"two"]
    queue.close()


def test_close_reports_a_failed_write_and_keeps_the_written_messages(tmp_path, monkeypatch):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    put(queue, b"two")
    pwrite = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data, at) if at == 0 else failing(errno.ENOSPC)())
        with pytest.raises(DiskQueueError):
            queue.close()
    queue = open_queue(tmp_path)
    assert queue.depth == 1
    assert drain(queue) == [b"one"]


# Unfinished messages


def test_unfinished_messages_survive_a_crash(tmp_path):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1", b"2", b"3", b"4", b"5")
    messages = [queue.get() for _ in range(5)]
    for number in (0, 3, 4):
        queue.finish(messages[number].record)
    sync(queue)
    assert (tmp_path / META).read_bytes() == b"4\n0,31\n2,31\n"
    after_crash = open_queue(tmp_path, 2 * (HEAD + 1))
    assert (after_crash.depth, drain(after_crash)) == (4, [b"2", b"3", b"4", b"5"])
    queue.finish(messages[1].record)
    queue.put_message(new_message(b"%016x" % 9, b"6", 0, 0))
    queue.write_pending()
    sync(queue)
    assert names(tmp_path) == [data_name(1), data_name(2), META]
    queue.finish(messages[2].record)
    assert drain(queue) == [b"6"]
    queue.close()
    assert names(tmp_path) == [data_name(2), META]


def test_a_file_whose_sync_failed_is_not_appended_to(tmp_path, monkeypatch):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    job = queue.begin_sync()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        job.run()
    queue.end_sync(job)
    assert str(queue.failure) == os.strerror(errno.EIO)
    sync(queue)
    assert queue.failure is None
    write(queue, b"two")
    assert (tmp_path / data_name(0)).read_bytes() == record(b"one")
    assert (tmp_path / data_name(1)).read_bytes() == record(b"two")
    assert drain(queue) == [b"one", b"two"]
    queue.close()


def test_close_keeps_the_meta_file_if_the_last_sync_fails(tmp_path, monkeypatch):
    """The old meta file names a durable record. The record that replaces it may be lost."""
    queue = open_queue(tmp_path)
    write(queue, b"one")
    sync(queue)
    meta = (tmp_path / META).read_bytes()
    assert take(queue) == [b"one"]
    put(queue, b"one")
    queue.finish_all()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        with pytest.raises(DiskQueueError):
            queue.close()
    assert (tmp_path / META).read_bytes() == meta


# Damaged and missing files


@pytest.mark.parametrize(("missing", "left"), [(0, [b"3", b"4", b"5"]), (1, [b"1", b"2", b"5"])])
def test_messages_of_a_missing_file_do_not_count(tmp_path, missing, left):
    """A file may be set aside before the meta file that does not need it is saved."""
    queue = open_queue(tmp_path, max_file_size=2 * len(record(b"1")))
    for body in (b"1", b"2", b"3", b"4", b"5"):
        put(queue, body)
    queue.close()
    os.rename(tmp_path / data_name(missing), tmp_path / (data_name(missing) + ".bad"))
    queue = open_queue(tmp_path)
    assert queue.depth == 3
    assert drain(queue) == left
    assert queue.depth == 0
    queue.close()


def test_without_meta_everything_is_unread(tmp_path):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1", b"2", b"3", b"4", b"5")
    queue.close()
    (tmp_path / META).unlink()
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    assert queue.depth == 5
    write(queue, b"6")
    assert drain(queue) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert queue.depth == 0
    queue.close()
    assert names(tmp_path) == [data_name(3), META]


@pytest.mark.parametrize("content", [b"", b"garbage", b"1\n0,0\n", b"1\n0,0\n0", b"x\n0,0\n0,0\n"])
def test_an_invalid_meta_file_is_treated_as_missing(tmp_path, content):
    (tmp_path / data_name(4)).write_bytes(record(b"one"))
    (tmp_path / META).write_bytes(content)
    queue = open_queue(tmp_path)
    assert queue.depth == 1
    assert drain(queue) == [b"one"]
    queue.close()


def test_rebuilding_skips_missing_files(tmp_path):
    (tmp_path / data_name(3)).write_bytes(record(b"three"))
    (tmp_path / data_name(5)).write_bytes(record(b"five"))
    queue = open_queue(tmp_path)
    assert queue.depth == 2
    assert drain(queue) == [b"three", b"five"]
    queue.close()


def test_rebuilding_ignores_files_of_other_queues(tmp_path):
    (tmp_path / "q:c.diskqueue.000000.dat").write_bytes(record(b"of another"))
    (tmp_path / "qq.diskqueue.000000.dat").write_bytes(record(b"of another"))
    (tmp_path / (data_name(0) + ".bad")).write_bytes(record(b"bad"))
    queue = open_queue(tmp_path)
    assert (queue.depth, queue.get()) == (0, None)


def test_records_after_the_saved_write_position_are_read(tmp_path):
    (tmp_path / data_name(2)).write_bytes(record(b"one") + record(b"two") + record(b"three"))
    (tmp_path / META).write_bytes(b"1\n2,0\n2,33\n")
    queue = open_queue(tmp_path)
    assert queue.depth == 3
    write(queue, b"four")
    assert (tmp_path / data_name(3)).read_bytes() == record(b"four")
    assert drain(queue) == [b"one", b"two", b"three", b"four"]
    assert queue.depth == 0
    queue.close()
    assert names(tmp_path) == [data_name(3), META]


@pytest.mark.parametrize("recorded", [33, 66])
def test_files_after_the_saved_write_position_are_read(tmp_path, recorded):
    """Files may have been rolled since the meta file was last saved."""
    (tmp_path / data_name(2)).write_bytes(record(b"one") + record(b"two"))
    (tmp_path / data_name(3)).write_bytes(record(b"333"))
    (tmp_path / data_name(4)).write_bytes(record(b"444"))
    (tmp_path / META).write_bytes(b"%d\n2,0\n2,%d\n" % (recorded // 33, recorded))
    queue = open_queue(tmp_path, 66)
    assert queue.depth == 4
    write(queue, b"new")
    assert drain(queue) == [b"one", b"two", b"333", b"444", b"new"]
    assert queue.depth == 0
    queue.close()


@pytest.mark.parametrize("cut", [1, 3, 4, 20, 32])
def test_a_torn_tail_loses_only_the_torn_record(tmp_path, cut):
    (tmp_path / data_name(0)).write_bytes(record(b"one") + record(b"two") + record(b"torn")[:cut])
    (tmp_path / META).write_bytes(b"1\n0,0\n0,33\n")
    queue = open_queue(tmp_path)
    assert queue.depth == 2
    write(queue, b"four")
    assert drain(queue) == [b"one", b"two", b"four"]
    assert queue.depth == 0
    queue.close()
    assert names(tmp_path) == [data_name(0) + ".bad", data_name(1), META]


@pytest.mark.parametrize("size", [b"\x00\x00\x00\x00", b"\x00\x00\x00\x19", b"\xff\xff\xff\xff", b"\x00\x00\x10\x00"])
def test_an_invalid_length_sets_the_file_aside_and_reading_continues_in_the_next(tmp_path, size):
    log = BenchLog()
    (tmp_path / data_name(0)).write_bytes(record(b"one") + size + b"garbage" * 20 + record(b"unreachable"))
    (tmp_path / data_name(1)).write_bytes(record(b"two"))
    (tmp_path / META).write_bytes(b"4\n0,0\n1,33\n")
    queue = open_queue(tmp_path, log=log)
    assert queue.depth == 4
    assert drain(queue) == [b"one", b"two"]
    assert queue.depth == 0
    queue.close()
    assert names(tmp_path) == [data_name(0) + ".bad", data_name(1), META]
    assert any("invalid message read size" in line for line in log.errors())


def test_an_invalid_length_in_the_current_write_file(tmp_path):
    (tmp_path / data_name(0)).write_bytes(record(b"one") + b"\xff" * 33)
    (tmp_path / META).write_bytes(b"2\n0,0\n0,66\n")
    queue = open_queue(tmp_path)
    assert drain(queue) == [b"one"]
    write(queue, b"two")
    assert (tmp_path / data_name(1)).read_bytes() == record(b"two")
    assert drain(queue) == [b"two"]
    queue.close()


def test_an_invalid_length_does_not_lose_pending_records(tmp_path):
    (tmp_path / data_name(0)).write_bytes(b"\xff" * 33)
    (tmp_path / META).write_bytes(b"1\n0,0\n0,33\n")
    queue = open_queue(tmp_path)
    put(queue, b"pending")
    assert queue.get() is None
    assert queue.depth == 1
    queue.write_pending()
    assert drain(queue) == [b"pending"]
    queue.close()


def test_a_missing_data_file_is_skipped(tmp_path):
    (tmp_path / data_name(1)).write_bytes(record(b"two"))
    (tmp_path / META).write_bytes(b"2\n0,0\n1,33\n")
    queue = open_queue(tmp_path)
    assert drain(queue) == [b"two"]
    assert queue.depth == 0
    queue.close()


@pytest.mark.timeout(5)  # a reader past the end must not search for the end forever
@pytest.mark.parametrize(
    ("meta", "logged"),
    [
        (b"5\n0,33\n0,33\n", "positive depth at tail (5), data loss, resetting 0..."),
        (b"-2\n0,33\n0,33\n", "negative depth at tail (-2), metadata corruption, resetting 0..."),
        (b"0\n0,66\n0,33\n", "read position 0,66 is beyond write position 0,33"),
        (b"0\n1,0\n0,33\n", "read position 1,0 is beyond write position 0,33"),
    ],
)
def test_a_wrong_depth_or_position_is_corrected(tmp_path, meta, logged):
    log = BenchLog()
    (tmp_path / data_name(0)).write_bytes(record(b"one"))
    (tmp_path / META).write_bytes(meta)
    queue = open_queue(tmp_path, log=log)
    assert (queue.depth, queue.get()) == (0, None)
    assert any(logged in line for line in log.errors())
    write(queue, b"two")
    assert drain(queue) == [b"two"]
    queue.close()


@pytest.mark.parametrize("error_number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_a_temporary_read_error_is_retried(tmp_path, monkeypatch, error_number):
    queue = open_queue(tmp_path)
    write(queue, b"one", b"two")
    queue.close()
    queue = open_queue(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(error_number))
        assert queue.get() is None
        assert queue.peek_timestamp() == -1
        assert queue.has_readable()
    assert queue.depth == 2
    assert drain(queue) == [b"one", b"two"]
    queue.close()


def test_a_file_that_cannot_be_read_is_set_aside(tmp_path, monkeypatch):
    queue = open_queue(tmp_path, HEAD + 3)
    write(queue, b"one", b"two")
    queue.close()
    queue = open_queue(tmp_path, HEAD + 3)
    pread, calls = os.pread, []

    def fail_once(descriptor, size, position):
        calls.append(position)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return pread(descriptor, size, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail_once)
        assert drain(queue) == [b"two"]
    assert queue.depth == 0
    queue.close()
    assert (tmp_path / (data_name(0) + ".bad")).exists()


def test_a_deleted_queue_stays_deleted(tmp_path):
    """Files that were read, but not removed because of a crash, do not come back either."""
    (tmp_path / data_name(0)).write_bytes(record(b"read long ago"))
    (tmp_path / data_name(1)).write_bytes(record(b"one"))
    (tmp_path / META).write_bytes(b"1\n1,0\n1,33\n")
    open_queue(tmp_path).delete()
    queue = open_queue(tmp_path)
    assert (queue.depth, drain(queue)) == (0, [])


def test_a_sync_that_ends_after_the_deletion_starts_no_other(tmp_path):
    """Another sync would write the meta file of the deleted queue again."""
    queue = open_queue(tmp_path)
    put(queue, b"one")
    queue.write_pending()
    job = queue.begin_sync()
    queue.delete()
    job.run()
    queue.end_sync(job)
    assert not queue.has_unsynced()
    assert not (tmp_path / META).exists()


# Records above the size limit


@pytest.mark.parametrize("is_synced", [True, False], ids=["synced", "not synced"])
def test_messages_stay_deliverable_when_the_size_limit_is_lowered(tmp_path, is_synced):
    bodies = [b"s" * 10, b"l" * 900, b"s" * 20, b"l" * 800, b"l" * 700]
    queue = open_queue(tmp_path, max_message_size=1000)
    write(queue, *bodies)
    if is_synced:
        queue.close()
    lowered = open_queue(tmp_path, max_message_size=100)
    assert lowered.depth == len(bodies)
    assert drain(lowered) == bodies
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".bad")]


def test_messages_above_the_limit_are_found_without_a_meta_file(tmp_path):
    bodies = [b"l" * 900, b"s" * 20, b"l" * 5_000_000]
    (tmp_path / data_name(0)).write_bytes(b"".join(map(record, bodies)))
    queue = open_queue(tmp_path, max_message_size=100)
    assert queue.depth == len(bodies)
    assert drain(queue) == bodies


@pytest.mark.parametrize(
    "damaged",
    [
        struct.pack(">i", 26 + 150) + record(b"s" * 100)[4:],
        struct.pack(">i", 1 << 28) + record(b"s" * 100)[4:],
        record(b"l" * 900, message_id=b"not an id, no..."),
    ],
    ids=["length into the next record", "length past the end", "no message id"],
)
def test_a_damaged_length_above_the_limit_is_not_taken_for_a_large_record(tmp_path, damaged):
    (tmp_path / data_name(0)).write_bytes(record(b"first") + damaged + record(b"behind") * 3)
    queue = open_queue(tmp_path, max_message_size=100)
    assert drain(queue) == [b"first"]
    queue.close()
    assert data_name(0) + ".bad" in os.listdir(tmp_path)


def test_reading_a_record_above_the_limit_is_retried_after_a_temporary_error(tmp_path, monkeypatch):
    (tmp_path / data_name(0)).write_bytes(record(b"l" * 900))
    queue = open_queue(tmp_path, max_message_size=100)
    with monkeypatch.context() as patch:
        patch.setattr(record_reader, "is_large_record", failing(errno.EMFILE))
        assert queue.get() is None
        assert queue.depth == 1
    assert drain(queue) == [b"l" * 900]


# Durability


def when_durable(queue):
    """Return a list that receives the result of ``when_durable``."""
    answers = []
    queue.when_durable(answers.append)
    return answers


def test_a_completed_sync_covers_the_records_written_before_its_start(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    first = when_durable(queue)
    job = queue.begin_sync()
    write(queue, b"two")
    second = when_durable(queue)
    put(queue, b"three")
    third = when_durable(queue)
    job.run()
    queue.end_sync(job)
    assert (first, second, third, queue.is_awaited()) == ([None], [], [], True)
    sync(queue)
    assert (second, third) == ([None], [])  # the third record is not written
    queue.write_pending()
    sync(queue)
    assert (third, queue.is_awaited()) == ([None], False)
    assert when_durable(queue) == [None]
    queue.close()


def test_a_failed_sync_is_reported_to_every_waiting_callback(tmp_path, monkeypatch):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    job = queue.begin_sync()
    serial = queue.put_serial()
    write(queue, b"two")  # to the same file, which cannot be trusted any more
    answers = when_durable(queue)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        job.run()
    queue.end_sync(job)
    assert [str(answer) for answer in answers] == ["Input/output error"]
    assert queue.is_lost(serial)
    write(queue, b"three")
    later = when_durable(queue)
    sync(queue)
    assert later == [None]
    queue.close()


@pytest.mark.parametrize("fills_more", [False, True])
def test_write_pending_reports_early_written_records_that_a_failed_sync_lost(tmp_path, monkeypatch, fills_more):
    """A record is written before ``write_pending`` if its file is full."""
    queue = open_queue(tmp_path, HEAD + 1)
    write(queue, b"1")
    job = queue.begin_sync()
    put(queue, b"2")
    put(queue, b"3")  # this writes the second record
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        job.run()
    queue.end_sync(job)
    if fills_more:
        put(queue, b"4")  # this writes the third record, successfully
    with pytest.raises(DiskQueueError, match="Input/output error"):
        queue.write_pending()
    queue.close()


def test_a_sync_that_cannot_start_is_reported_to_every_waiting_callback(tmp_path, monkeypatch):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    answers = when_durable(queue)
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", failing(errno.EMFILE))
        with pytest.raises(OSError, match="Too many open files"):
            queue.begin_sync()
    assert [str(answer) for answer in answers] == ["Too many open files"]
    queue.close()


@pytest.mark.parametrize("ending", ["empty", "delete", "close"])
def test_ending_a_queue_calls_the_waiting_callbacks(tmp_path, ending):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    put(queue, b"two")
    answers = when_durable(queue)
    getattr(queue, ending)()
    assert (answers, queue.is_awaited()) == ([None], False)


def test_a_file_that_fills_up_during_a_sync_does_not_delay_durability(tmp_path):
    queue = open_queue(tmp_path, HEAD + 1)
    write(queue, b"1")
    answers = when_durable(queue)
    job = queue.begin_sync()
    write(queue, b"2")
    job.run()
    queue.end_sync(job)
    assert answers == [None]
    queue.close()


def test_rewind_reads_again_from_the_oldest_unfinished_message(tmp_path):
    queue = open_queue(tmp_path, 2 * (HEAD + 1))
    write(queue, b"1", b"2", b"3", b"4", b"5")
    messages = [queue.get() for _ in range(4)]
    for index in (0, 2):
        queue.finish(messages[index].record)
    queue.rewind()
    assert queue.depth == 4
    sync(queue)
    queue.finish(messages[3].record)  # the earlier record number, which does not finish the record that is read again
    assert drain(queue) == [b"2", b"3", b"4", b"5"]
    queue.close()
