"""The newest batches of a log in memory."""

from log_bench import items

from nsqx.queues.log.batch import MESSAGES, new_batch
from nsqx.queues.log.tail import LogTail


def filled(*firsts):
    tail = LogTail()
    for first in firsts:
        tail.add(new_batch(MESSAGES, first, 2, 5, items(b"a", b"b")))
    return tail


def test_a_batch_is_found_by_any_of_its_offsets_and_across_gaps():
    tail = filled(10, 12, 20)
    assert [batch and batch.first for batch in map(tail.find, (9, 10, 11, 13, 14, 19, 21, 22))] == [
        None,
        10,
        10,
        12,
        20,
        20,
        20,
        None,
    ]


def test_dropped_batches_are_not_found():
    tail = filled(*range(0, 400, 2))
    size = tail.size
    for first in range(0, 398, 2):
        assert tail.first == first
        assert tail.find(first).first == first
        size -= tail.drop_first()
        assert tail.size == size
        assert tail.find(first) is None
    assert tail.find(399).first == 398
    tail.drop_first()
    assert (tail.first, tail.size) == (-1, 0)
