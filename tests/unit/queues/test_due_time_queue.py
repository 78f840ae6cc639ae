"""Due times of the deferred messages in a topic's disk queue: first in, first out, in bounded memory."""

import errno
import json
import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.queues import due_time_queue, files
from nsqx.queues.due_time_queue import DueTimeQueue
from nsqx.queues.due_times import DueTime

NOW_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS


@pytest.fixture(autouse=True, scope="module")
def small_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_time_queue, "_PART_COUNT", 4)
        yield


def message_id(number):
    return b"%016x" % number


def delay_of(number):
    return (number + 1) * SECOND_NS


def open_queue(directory):
    return DueTimeQueue(str(directory), "t", HOUR_NS)


def add(queue, *numbers):
    for number in numbers:
        queue.add(message_id(number), DueTime(NOW_NS, NOW_NS + delay_of(number)))


def take(queue, *numbers, now_ns=NOW_NS):
    return [queue.take(message_id(number), now_ns) for number in numbers]


def delays(*numbers):
    return [delay_of(number) for number in numbers]


def entries_in_memory(queue):
    return len(queue._current.entries) + len(queue._following.entries) + len(queue._newest)


def test_an_empty_queue_leaves_no_file(tmp_path):
    queue = open_queue(tmp_path)
    assert not queue
    assert take(queue, 1) == [0]
    queue.close()
    assert os.listdir(tmp_path) == []


def test_memory_is_bounded_with_very_many_entries(tmp_path):
    queue = open_queue(tmp_path)
    for number in range(1000):
        add(queue, number)
        assert entries_in_memory(queue) < 4
    for number in range(1000):
        assert take(queue, number) == delays(number)
        assert entries_in_memory(queue) <= 8
    assert not queue


def test_messages_that_are_not_deferred_have_no_delay(tmp_path):
    queue = open_queue(tmp_path)
    add(queue, *range(0, 40, 2))
    assert take(queue, *range(40)) == [0 if number % 2 else delay_of(number) for number in range(40)]


@pytest.mark.parametrize("lost", [range(3, 4), range(2, 7)])
def test_entries_of_lost_messages_are_skipped(tmp_path, lost):
    queue = open_queue(tmp_path)
    add(queue, *range(40))
    left = [number for number in range(40) if number not in lost]
    assert take(queue, *left) == delays(*left)


def test_entries_of_many_lost_messages_are_dropped_when_due(tmp_path):
    queue = open_queue(tmp_path)
    add(queue, *range(40))
    later_ns = NOW_NS + delay_of(29)
    assert [queue.take(message_id(1000 + number), later_ns) for number in range(20)] == [0] * 20
    assert take(queue, *range(30, 40), now_ns=later_ns) == [delay_of(number) - delay_of(29) for number in range(30, 40)]


def test_entries_survive_close_and_open(tmp_path):
    queue = open_queue(tmp_path)
    add(queue, *range(30))
    assert take(queue, *range(6)) == delays(*range(6))
    queue.close()
    queue = open_queue(tmp_path)
    add(queue, *range(30, 40))
    assert take(queue, *range(6, 40)) == delays(*range(6, 40))
    queue.close()
    assert os.listdir(tmp_path) == []


def test_written_entries_survive_a_kill(tmp_path):
    queue = open_queue(tmp_path)
    add(queue, *range(40))
    assert take(queue, *range(17)) == delays(*range(17))
    queue = open_queue(tmp_path)
    assert take(queue, *range(17, 40)) == delays(*range(17, 40))


def test_clear_discards_all_entries(tmp_path):
    queue = open_queue(tmp_path)
    add(queue, *range(10))
    queue.clear()
    assert not queue
    assert os.listdir(tmp_path) == []
    add(queue, *range(10))
    assert take(queue, *range(10)) == delays(*range(10))


def test_entries_stay_in_memory_while_the_file_cannot_be_written(tmp_path):
    def fail(operation):
        if operation.point == "due.write":
            raise OSError(errno.ENOSPC, "full")

    queue = open_queue(tmp_path)
    files.set_hook(fail)
    try:
        add(queue, *range(10))
    finally:
        files.set_hook(None)
    add(queue, *range(10, 20))
    assert take(queue, *range(20)) == delays(*range(20))


def test_the_file_of_an_earlier_version_is_read(tmp_path):
    due = {message_id(number).decode(): NOW_NS + delay_of(number) for number in range(10)}
    (tmp_path / "t.deferred.dat").write_text(json.dumps({"due": due}))
    queue = open_queue(tmp_path)
    add(queue, *range(10, 30))
    assert take(queue, *range(30)) == delays(*range(30))


@pytest.mark.parametrize("content", [b"", b"{", b"garbage", b"NSQXDUE1" + bytes(8)])
def test_an_invalid_file_is_refused(tmp_path, content):
    (tmp_path / "t.deferred.dat").write_bytes(content)
    with pytest.raises(ValueError):
        open_queue(tmp_path)


@given(st.lists(st.sampled_from(["add deferred", "add", "take", "restart"]), max_size=80))
def test_any_sequence_of_operations_agrees_with_the_model(steps):
    with tempfile.TemporaryDirectory() as directory:
        queue = open_queue(directory)
        waiting = []
        for number, step in enumerate(steps):
            if step == "add deferred":
                add(queue, number)
                waiting.append((number, delay_of(number)))
            elif step == "add":
                waiting.append((number, 0))
            elif step == "take" and waiting:
                first, delay_ns = waiting.pop(0)
                assert take(queue, first) == [delay_ns]
            elif step == "restart":
                queue.close()
                queue = open_queue(directory)
        assert [(number, *take(queue, number)) for number, _ in waiting] == waiting
        queue.close()
