"""Removal of files in a thread: the state that crashes and recreated queues find meanwhile."""

import threading

import pytest
from diskqueue_bench import META, data_name, drain, put

from broker_bench import BenchLog
from nsqx.queues import removal
from nsqx.queues.diskqueue import DiskQueue
from nsqx.queues.positions import is_discarded
from nsqx.queues.recovery import data_file_numbers
from nsqx.queues.removal import FileRemover

GONE = b"0\n4,0\n4,0\n"


class HeldRemover(FileRemover):
    """Removes no file before ``finish``; the removing thread waits for it."""

    def __init__(self, monkeypatch):
        super().__init__(BenchLog())
        self.log = self._log
        self.began = threading.Event()
        self.go = threading.Event()
        remove_data_file = removal.remove_data_file

        def wait_and_remove(path):
            self.began.set()
            self.go.wait()
            remove_data_file(path)

        monkeypatch.setattr(removal, "remove_data_file", wait_and_remove)

    def finish(self):
        self.go.set()
        self.close(30)


@pytest.fixture
def remover(monkeypatch):
    held = HeldRemover(monkeypatch)
    yield held
    held.finish()


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def data_names(directory):
    return [name for name in names(directory) if name.endswith(".dat") and name != META]


def open_in(directory, remover, numbers=None):
    remover.reopen(str(directory), "q")
    return DiskQueue("q", str(directory), 1, 1000, BenchLog(), lambda: None, numbers, remover.remove)


def fill_files(queue, *bodies):
    """Put each body into a file of its own."""
    for body in bodies:
        put(queue, body)
    queue.write_pending()


@pytest.fixture
def filled(tmp_path, remover):
    queue = open_in(tmp_path, remover)
    fill_files(queue, b"1", b"2", b"3", b"4")
    return queue


def test_empty_does_not_wait_for_the_removal_of_files(filled, tmp_path, remover):
    filled.empty()
    assert (tmp_path / META).read_bytes() == GONE
    assert data_names(tmp_path) == [data_name(number) for number in range(4)]
    fill_files(filled, b"new")
    remover.finish()
    assert data_names(tmp_path) == [data_name(4)]
    assert drain(filled) == [b"new"]
    filled.close()


def test_a_recreated_queue_keeps_its_new_files(filled, tmp_path, remover):
    """A channel is deleted and created again: its new files have other names than those to be removed."""
    filled.delete()
    remover.began.wait()
    again = open_in(tmp_path, remover, [])
    fill_files(again, b"new", b"newer")
    remover.finish()
    assert data_names(tmp_path) == [data_name(4), data_name(5)]
    assert META in names(tmp_path)
    assert drain(again) == [b"new", b"newer"]
    again.close()


def test_a_queue_that_is_deleted_twice_leaves_no_files(filled, tmp_path, remover):
    filled.delete()
    again = open_in(tmp_path, remover, [])
    fill_files(again, b"new", b"newer")
    again.delete()
    remover.finish()
    assert names(tmp_path) == []


def test_the_first_removal_leaves_the_meta_file_to_the_second(filled, tmp_path, remover):
    """Without the meta file a crash would restore the messages of the second queue."""
    filled.delete()
    remover.began.wait()
    again = open_in(tmp_path, remover, [])
    fill_files(again, b"new")
    seen = []
    remove_if_there = removal.remove_if_there

    def note(kind, path):
        seen.append(data_names(tmp_path))
        remove_if_there(kind, path)

    removal.remove_if_there = note
    try:
        again.delete()
        remover.finish()
    finally:
        removal.remove_if_there = remove_if_there
    assert seen == [[]]


def test_a_crash_before_the_removal_restores_no_message(filled, tmp_path, remover):
    filled.empty()
    reopened = open_in(tmp_path, remover)
    assert (reopened.depth, reopened.get()) == (0, None)
    assert data_names(tmp_path) == [data_name(number) for number in range(4)]
    remover.finish()
    assert data_names(tmp_path) == []


def test_the_meta_file_is_durable_before_the_first_removal_and_removed_last(filled, monkeypatch, remover):
    order = []
    monkeypatch.setattr(removal, "sync_file", lambda kind, _: order.append(kind))
    monkeypatch.setattr(removal, "sync_directory", lambda _: order.append("directory"))
    monkeypatch.setattr(removal, "remove_data_file", lambda _: order.append("removed"))
    filled.delete()
    remover.finish()
    assert order == ["meta", "directory", *["removed"] * 4, "directory"]


def test_close_leaves_the_remaining_files_to_the_next_start(filled, tmp_path, remover):
    filled.delete()
    remover.began.wait()
    closing = threading.Thread(target=remover.close, args=(0,))
    closing.start()
    while not remover._is_closing:
        pass
    remover.go.set()
    closing.join()
    numbers = data_file_numbers(str(tmp_path))["q"]
    assert numbers == [1, 2, 3]
    assert is_discarded(str(tmp_path), "q", numbers)


def test_a_file_that_cannot_be_removed_is_logged(filled, tmp_path, monkeypatch, remover):
    def fail(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(removal, "remove_data_file", fail)
    filled.delete()
    remover.finish()
    assert (tmp_path / META).exists()
    (line,) = remover.log.errors()
    assert line.startswith("cannot remove files that are no longer needed, left to the next start - [Errno 13]")


@pytest.mark.parametrize(
    ("meta", "numbers", "expected"),
    [
        (b"0\n4,0\n4,0\n", [1, 3], True),
        (b"0\n4,0\n4,0\n", [1, 4], False),
        (b"1\n4,0\n4,0\n", [1], False),
        (b"0\n4,10\n4,10\n", [1], False),
        (b"0\n3,0\n4,0\n", [1], False),
        (b"nonsense", [1], False),
        (None, [1], False),
    ],
)
def test_files_before_the_read_position_of_an_empty_queue_are_discarded(tmp_path, meta, numbers, expected):
    if meta is not None:
        (tmp_path / META).write_bytes(meta)
    assert is_discarded(str(tmp_path), "q", numbers) == expected
