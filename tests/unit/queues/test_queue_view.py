"""A view of a disk queue: what it reads while the queue is in use, with removed and damaged files."""

import os

from nsqx.queues.diskqueue import DiskQueue
from nsqx.queues.positions import data_path
from nsqx.wire.message import new_message


class Silent:
    def info(self, text, *args):
        pass

    warn = error = info


def new_queue(path, max_file_size=1000):
    return DiskQueue("q", str(path), max_file_size, 1000, Silent(), lambda: None)


def put(queue, *bodies):
    for number, body in enumerate(bodies):
        queue.put_message(new_message(b"%016x" % number, body, 7 + number, number))


def bodies(view):
    return [message.body for message in view.messages()]


def test_a_view_has_written_and_pending_messages(tmp_path):
    queue = new_queue(tmp_path)
    assert bodies(queue.view()) == []
    put(queue, b"1", b"2", b"3")
    assert bodies(queue.view()) == [b"1", b"2", b"3"]
    queue.write_pending()
    put(queue, b"4")
    queue.get()
    view = queue.view()
    second = next(view.messages())
    assert (second.body, second.timestamp, second.attempts, second.id) == (b"2", 8, 1, b"%016x" % 1)
    assert bodies(view) == bodies(view) == [b"2", b"3", b"4"]
    assert (queue.depth, queue.get().body) == (3, b"2")


def test_a_view_reads_several_files(tmp_path):
    queue = new_queue(tmp_path, 200)
    expected = [b"%d" % number * 20 for number in range(30)]
    put(queue, *expected)
    queue.write_pending()
    assert len(list(tmp_path.glob("*.dat"))) > 4
    assert bodies(queue.view()) == expected
    for _ in range(10):
        queue.finish(queue.get().record)
    assert bodies(queue.view()) == expected[10:]


def test_removed_files_are_left_out(tmp_path):
    queue = new_queue(tmp_path, 200)
    expected = [b"%02d" % number * 20 for number in range(30)]
    put(queue, *expected)
    queue.write_pending()
    view = queue.view()
    os.unlink(data_path(str(tmp_path), "q", 0))
    found = bodies(view)
    assert 0 < len(found) < 30
    assert found == expected[-len(found) :]


def test_damaged_records_are_left_out(tmp_path):
    queue = new_queue(tmp_path)
    put(queue, b"first", b"second", b"third")
    queue.write_pending()
    job = queue.begin_sync()
    job.run()
    queue.end_sync(job)
    path = data_path(str(tmp_path), "q", 0)
    with open(path, "r+b") as file:
        content = file.read().replace(b"second", b"sEcond")
        file.seek(0)
        file.write(content)
    del queue
    queue = new_queue(tmp_path)
    assert bodies(queue.view()) == [b"first", b"third"]
    assert queue.depth == 3
