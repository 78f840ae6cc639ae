"""Producers of a log: the last publish of each, what is forgotten, and publishes that are not whole."""

import struct

import pytest

from nsqx.queues.log.batch import DEFERRED, DELTA, MESSAGES, PRODUCER, deferred, encode_extension, new_batch, new_record
from nsqx.queues.log.producers import LastPublish, ProducerTag, producer_of
from nsqx.queues.log.state import Changes, LogState


def numbered(first, seq, name="p", previous=0, count=2, tag_count=None, timestamp=5):
    items = struct.pack(">i", 0) * count
    tag = ProducerTag(name, seq, previous, count if tag_count is None else tag_count)
    return new_batch(MESSAGES, first, count, timestamp, items, encode_extension({PRODUCER: tag.encode()}))


def forget(state, *offsets):
    changes = Changes()
    changes.forget_producers(offsets)
    return new_record(DELTA, state.serial + 1, changes.take())


def known(state):
    return dict(state.producers.items())


def test_a_batch_has_its_producer():
    assert producer_of(numbered(0, 7, "billing-1", 5)) == ProducerTag("billing-1", 7, 5, 2)
    assert producer_of(new_batch(MESSAGES, 0, 0, 0, b"")) is None
    assert producer_of(new_batch(DEFERRED, 0, 0, 0, b"", deferred(9))) is None


def test_the_state_knows_the_last_publish_of_each_producer():
    state = LogState(1000)
    for batch in (numbered(0, 1, "a"), numbered(2, 9, "b", timestamp=6), numbered(4, 5, "a", 1, 3, timestamp=7)):
        assert state.add(batch)
    assert list(state.producers.items()) == [("b", LastPublish(9, 2, 2, 6)), ("a", LastPublish(5, 4, 3, 7))]
    assert not state.add(numbered(0, 1, "a"))
    assert state.copy().producers == state.producers
    assert len(state.producers) == 2
    assert state.producers.find("c") is None


def test_deferred_messages_have_a_producer_too():
    extension = deferred(50, {PRODUCER: ProducerTag("a", 3, 0, 1).encode()})
    state = LogState(1000)
    state.add(new_batch(DEFERRED, 0, 1, 5, struct.pack(">i", 0), extension))
    assert known(state) == {"a": LastPublish(3, 0, 1, 5)}
    assert state.deferred == {0: 50}


def test_a_publish_without_all_its_messages_is_not_stored():
    state = LogState(1000)
    state.add(numbered(0, 1, "a", tag_count=3))
    assert known(state) == {}


@pytest.mark.parametrize(
    ("max_count", "before_ns", "expected"),
    [(3, 0, []), (2, 0, [0]), (0, 0, [0, 2, 4]), (3, 15, [0]), (3, 25, [0, 2]), (2, 25, [0, 2])],
)
def test_the_oldest_producers_are_forgotten(max_count, before_ns, expected):
    state = LogState(1000)
    for number, name in enumerate("abc"):
        state.add(numbered(2 * number, 1, name, timestamp=10 * (number + 1)))
    assert state.producers.forgettable(max_count, before_ns) == expected


def test_a_producer_that_published_later_is_not_forgotten():
    state, other = LogState(1000), LogState(1000)
    batches = [numbered(0, 1, "a"), numbered(2, 1, "b"), numbered(4, 2, "a", 1)]
    change = forget(state, 0, 2)
    for batch in (*batches[:2], change, batches[2]):
        state.add(batch)
    for batch in (*batches, change):  # the order of a recovery
        other.add(batch)
    assert known(state) == known(other) == {"a": LastPublish(2, 4, 2, 5)}


def test_a_producer_whose_later_publish_is_lost_is_not_forgotten_with_others():
    state = LogState(1000)
    state.add(numbered(0, 1, "a"))
    state.add(numbered(2, 1, "b"))
    state.add(forget(state, 2))  # when "a" had published at 4, which a power cut has taken away
    assert known(state) == {"a": LastPublish(1, 0, 2, 5)}
