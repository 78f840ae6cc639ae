"""Faults on order, and that every file operation of the broker can be given one."""

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
# The seam, what it calls on, and who uses such calls for other things: sockets, and the memory in use.
# The seam itself; a socket; files of the kernel's.
PAST_THE_SEAM = {"queues/files.py", "queues/failpoints.py", "nsqd/connection.py", "nsqd/memory.py", "nsqd/cpu_quota.py"}
FILE_CALL = re.compile(r"\bos\.(open|pread|pwrite|read|write|fsync|fdatasync|rename|replace|unlink|remove|ftruncate)\(")


def stop():
    raise Stopped


@pytest.fixture
def order():
    """Gives the faults of a text to the seam; what it returns counts."""

    def give(text):
        hook = failpoints_of(text, stop)
        files.set_hook(hook)
        return hook

    yield give
    files.set_hook(None)


def test_a_write_that_is_torn(tmp_path, order):
    queue = open_queue(tmp_path)
    write(queue, b"one")
    order("data.write=tear")
    put(queue, b"two", b"three")
    with pytest.raises(Stopped):
        queue.write_pending()
    assert (tmp_path / data_name(0)).stat().st_size == 33 + (33 + 35) // 2
    files.set_hook(None)
    after_crash = open_queue(tmp_path)
    assert drain(after_crash) == [b"one", b"two"]


def test_a_write_that_fails_halfway(tmp_path, order):
    queue = open_queue(tmp_path)
    order("data.write=short:ENOSPC")
    put(queue, b"one")
    with pytest.raises(DiskQueueError, match="No space left on device"):
        queue.write_pending()
    assert (tmp_path / data_name(0)).read_bytes() == b""
    queue.write_pending()
    assert (tmp_path / data_name(0)).read_bytes() == record(b"one")
    queue.close()


def test_a_fault_at_a_certain_time_only(tmp_path, order):
    order("data.write=fail:EIO@2")
    queue = open_queue(tmp_path)
    write(queue, b"one")
    put(queue, b"two")
    with pytest.raises(DiskQueueError, match="Input/output error"):
        queue.write_pending()
    queue.write_pending()
    assert drain(queue) == [b"one", b"two"]
    queue.close()


def test_faults_from_a_time_on_at_many_points(tmp_path, order):
    hook = order("*.sync=fail@2+, meta.rename=fail:ENOENT@9")
    queue = open_queue(tmp_path)
    write(queue, b"one")
    for _ in range(2):
        job = queue.begin_sync()
        job.run()
        queue.end_sync(job)
        assert job.error.errno == errno.EIO
    assert hook.counts["data.sync"] >= 1
    assert hook.counts["meta.rename"] == 1  # when the file whose sync failed was left


def test_a_delay(tmp_path, order, monkeypatch):
    waited = []
    monkeypatch.setattr(failpoints.threading.Event, "wait", lambda _, timeout_s: waited.append(timeout_s))
    order("meta.sync=delay:250@1+")
    queue = open_queue(tmp_path)
    write(queue, b"one")
    sync(queue)
    assert waited == [0.25]
    queue.close()


def test_every_kind_of_operation_is_met(tmp_path, order):
    hook = order("")
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


def test_a_process_takes_its_faults_from_the_environment(tmp_path):
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
def test_orders_that_make_no_sense(text):
    with pytest.raises(ValueError, match="NSQX_FAILPOINTS"):
        failpoints_of(text)


def test_nobody_goes_past_the_seam():
    found = []
    for path in [*SOURCE.glob("queues/*.py"), *SOURCE.glob("nsqd/*.py")]:
        name = path.relative_to(SOURCE).as_posix()
        if name in PAST_THE_SEAM:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            is_lock = "O_DIRECTORY" in line
            if (FILE_CALL.search(line) and not is_lock) or re.search(r"(?<![\w.])open\(", line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert found == []


def test_without_faults_nobody_is_asked(tmp_path):
    assert files._hook is None
    queue = open_queue(tmp_path)
    write(queue, b"one")
    queue.close()
    assert (tmp_path / META).exists()
