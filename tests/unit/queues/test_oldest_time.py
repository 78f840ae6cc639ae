"""When the oldest waiting message was published, read without changing a queue."""

from diskqueue_bench import open_queue

from nsqx.queues import files
from nsqx.queues.backlog import Backlog
from nsqx.queues.deadlines import InFlight
from nsqx.wire.message import new_message


def message(timestamp, body=b"x"):
    return new_message(b"%016x" % timestamp, body, timestamp, 0)


def put(queue, *timestamps):
    for timestamp in timestamps:
        queue.put_message(message(timestamp))


def test_pending_written_and_read_messages_of_a_disk_queue(tmp_path):
    queue = open_queue(tmp_path)
    assert queue.oldest_time_ns() == 0
    put(queue, 11, 12)
    assert queue.oldest_time_ns() == 11
    queue.write_pending()
    assert queue.oldest_time_ns() == 11
    queue.get()
    assert queue.oldest_time_ns() == 12
    queue.get()
    assert queue.oldest_time_ns() == 0
    put(queue, 13)
    assert queue.oldest_time_ns() == 13
    queue.close()


def test_the_queue_of_an_earlier_process_is_read_once_and_not_changed(tmp_path):
    first = open_queue(tmp_path)
    put(first, 11, 12)
    first.close()
    queue = open_queue(tmp_path)
    reads = []
    files.set_hook(lambda operation: reads.append(operation.name if hasattr(operation, "name") else operation))
    try:
        assert [queue.oldest_time_ns() for _ in range(3)] == [11, 11, 11]
    finally:
        files.set_hook(None)
    assert len(reads) == 2  # it is opened and read once
    assert (queue.depth, queue.get().timestamp, queue.oldest_time_ns()) == (2, 11, 12)
    queue.close()


def test_a_file_that_is_gone_makes_the_time_unknown(tmp_path):
    first = open_queue(tmp_path)
    put(first, 11)
    first.close()
    queue = open_queue(tmp_path)
    (data,) = tmp_path.glob("*.000000.dat")
    data.unlink()
    assert queue.oldest_time_ns() == -1
    queue.close()


def test_the_next_file_is_read_if_nothing_is_left_in_the_first(tmp_path):
    first = open_queue(tmp_path, max_file_size=60)
    put(first, 11, 12, 13)
    first.write_pending()
    first.finish(first.get().record)
    assert first.oldest_time_ns() == 12
    first.close()
    queue = open_queue(tmp_path, max_file_size=60)
    assert queue.oldest_time_ns() == 12
    queue.close()


def test_the_older_of_memory_and_disk(tmp_path):
    disk = open_queue(tmp_path)
    backlog = Backlog(1, disk)
    assert backlog.oldest_time_ns() == 0
    backlog.put_message(message(21))
    backlog.put_message(message(22))
    assert backlog.oldest_time_ns() == 21
    disk.write_pending()
    backlog.get()
    assert backlog.oldest_time_ns() == 22
    backlog.put_message(message(23))
    assert backlog.oldest_time_ns() == 22
    disk.close()


def test_messages_in_flight_with_several_timeouts():
    in_flight = InFlight()
    assert in_flight.oldest_time_ns() == 0
    later, earlier = message(32), message(31)
    in_flight.add(later, 100, 1000)
    in_flight.add(earlier, 100, 2000)
    assert in_flight.oldest_time_ns() == 31
    in_flight.remove(earlier, 2000)
    assert in_flight.oldest_time_ns() == 32
    in_flight.touch(later, 900, 1000, 1500)  # is cut short
    assert in_flight.oldest_time_ns() == 32
