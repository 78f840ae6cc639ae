"""Failpoints: injected faults, and that every file operation of the broker has a failpoint."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from diskqueue_bench import META, data_name, drain, open_queue, put, record, sync, write

from nsqx.errors import DiskQueueError
from nsqx.queues import failpoints, files
from nsqx.queues.due_times import DueTime, load_due_times, save_due_times
from nsqx.queues.failpoints import Stopped, failpoints_of

SOURCE = Path(files.__file__).parents[1]
# Modules that may call these functions directly: files and failpoints themselves, a socket, and files of the kernel.
DIRECT_FILE_ACCESS = {
    "queues/files.py",
    "queues/failpoints.py",
    "nsqd/connection.py",
    "nsqd/memory.py",
    "nsqd/cpu_quota.py",
}
FILE_CALL = re.compile(
    r"\bos\.(open|pread|pwritev?|read|write|fsync|fdatasync|rename|replace|unlink|remove|ftruncate)\("
)


def stop():
    raise Stopped


@pytest.fixture
def inject():
    """Return a function that injects the faults of a text and returns the hook."""

    def set_faults(text):
        hook = failpoints_of(text, stop)
        files.set_hook(hook)
        return hook

    yield set_faults
    files.set_hook(None)


def test_tear_writes_half_and_stops_the_process(tmp_path, inject):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    inject("data.write=tear")
    put(queue, b"two", b"three")
    with pytest.raises(Stopped):
        queue.write_pending()
    assert (tmp_path / data_name(0)).stat().st_size == 33 + (33 + 35) // 2
    files.set_hook(None)
    after_crash = open_queue(tmp_path)
    assert drain(after_crash) == [b"one", b"two"]


def test_short_writes_half_and_fails(tmp_path, inject):
    queue = open_queue(tmp_path)
    inject("data.write=short:ENOSPC")
    put(queue, b"one")
    with pytest.raises(DiskQueueError, match="No space left on device"):
        queue.write_pending()
    assert (tmp_path / data_name(0)).read_bytes() == b""
    queue.write_pending()
    assert (tmp_path / data_name(0)).read_bytes() == record(b"one")
    queue.close()


def test_a_fault_can_hit_one_operation_only(tmp_path, inject):
    inject("data.write=fail:EIO@2")
    queue = open_queue(tmp_path)
    write(queue, b"one")
    put(queue, b"two")
    with pytest.raises(DiskQueueError, match="Input/output error"):
        queue.write_pending()
    queue.write_pending()
    assert drain(queue) == [b"one", b"two"]
    queue.close()


def test_a_fault_can_hit_all_later_operations_of_many_kinds(tmp_path, inject):
    hook = inject("*.sync=fail@2+, meta.rename=fail:ENOENT@9")
    queue = open_queue(tmp_path)
    write(queue, b"one")
    for _ in range(2):
        job = queue.begin_sync()
        job.run()
        queue.end_sync(job)
        assert job.error.errno == errno.EIO
    assert hook.counts["data.sync"] >= 1
    assert hook.counts["meta.rename"] == 1  # after the sync failed, the queue changed to a new file


def test_delay_waits_before_the_operation(tmp_path, inject, monkeypatch):
    waited = []
    monkeypatch.setattr(failpoints.threading.Event, "wait", lambda _, timeout_s: waited.append(timeout_s))
    inject("meta.sync=delay:250@1+")
    queue = open_queue(tmp_path)
    write(queue, b"one")
    sync(queue)
    assert waited == [0.25]
    queue.close()


def test_every_kind_of_operation_has_a_failpoint(tmp_path, inject):
    hook = inject("")
    queue = open_queue(tmp_path, 40)
    write(queue, b"one", b"two", b"three")
    sync(queue)
    assert drain(queue) == [b"one", b"two", b"three"]
    sync(queue)
    save_due_times(str(tmp_path), "q", {b"0" * 16: DueTime(0, 1)})
    assert load_due_times(str(tmp_path), "q") == {b"0" * 16: DueTime(0, 1)}
    save_due_times(str(tmp_path), "q", {})
    queue.delete()
    files.replace_file(str(tmp_path / "nsqd.dat"), b"{}")
    expected = {f"{kind}.{name}" for kind in ("meta", "due", "nsqd") for name in ("open", "write", "sync", "rename")}
    expected |= {f"data.{name}" for name in ("open", "read", "write", "sync", "unlink")}
    expected |= {f"sums.{name}" for name in ("open", "write", "unlink")}
    expected |= {"meta.read", "meta.unlink", "due.read", "due.unlink", "directory.open", "directory.sync"}
    assert expected <= set(hook.counts)
    assert all(point.partition(".")[0] in files.KINDS for point in hook.counts)
    assert all(point.partition(".")[2] in files.OPERATIONS for point in hook.counts)


def test_a_process_reads_its_faults_from_the_environment(tmp_path):
    program = f"""
from nsqx.queues.files import replace_file
replace_file({str(tmp_path / "first")!r}, b"first")
replace_file({str(tmp_path / "second")!r}, b"second")
"""
    environment = {**os.environ, "NSQX_FAILPOINTS": "nsqd.rename=stop@2"}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert ended.returncode == -9
    names = [path.suffix for path in tmp_path.iterdir()]
    assert sorted(names) == ["", ".tmp"]


@pytest.mark.parametrize(
    "text", ["data.write", "data.write=explode", "write=fail", "data.write=fail:ENOTHING", "a.b=delay", "a.b=fail@x"]
)
def test_invalid_faults_are_refused(text):
    with pytest.raises(ValueError, match="NSQX_FAILPOINTS"):
        failpoints_of(text)


def test_all_file_access_goes_through_the_files_module():
    found = []
    for path in [*SOURCE.glob("queues/**/*.py"), *SOURCE.glob("nsqd/*.py")]:
        name = path.relative_to(SOURCE).as_posix()
        if name in DIRECT_FILE_ACCESS:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            is_lock = "O_DIRECTORY" in line
            if (FILE_CALL.search(line) and not is_lock) or re.search(r"(?<![\w.])open\(", line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert found == []


def test_without_faults_there_is_no_hook(tmp_path):
    assert files._hook is None
    queue = open_queue(tmp_path)
    write(queue, b"one")
    queue.close()
    assert (tmp_path / META).exists()
