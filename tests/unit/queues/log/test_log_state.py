"""The state of a topic: changes, snapshots, depths, and ranges without messages for every channel."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from nsqx.queues.log.batch import (
    ADDRESSED,
    DEFERRED,
    DELTA,
    MESSAGES,
    addressed,
    deferred,
    new_batch,
    new_record,
    releasing,
)
from nsqx.queues.log.state import Changes, Hole, LogState


def item(count):
    return struct.pack(">i", 0) * count


def messages(first, count=1, **fields):
    return new_batch(MESSAGES, first, count, 5, item(count), **fields)


def delta(state, fill):
    changes = Changes()
    fill(changes)
    return new_record(DELTA, state.serial + 1, changes.take())


def topic(count):
    """A topic of ``count`` messages with the channel 1 at the start."""
    state = LogState(1000)
    state.add(messages(0, count))
    state.add(delta(state, lambda changes: changes.create_channel(1, "channel", 0)))
    return state


def facts(state):
    return (
        state.serial,
        (state.first, state.end),
        state.lease,
        state.next_number,
        state.settings,
        state.unclaimed,
        (state.is_paused, state.paused_at),
        state.deferred,
        state.ranges,
        {c.number: (c.name, c.next, c.holes, c.is_paused) for c in state.channels.values()},
    )


def test_a_skipped_message_is_a_hole():
    state = topic(10)
    state.add(delta(state, lambda changes: changes.finish(1, [(0, 2), (4, 6)])))
    channel = state.channels[1]
    assert (channel.next, channel.holes, channel.floor) == (6, {2: Hole(), 3: Hole()}, 2)
    assert state.depth(1, 10) == 6
    state.add(delta(state, lambda changes: changes.finish(1, [(2, 4)])))
    assert (channel.holes, channel.floor, state.depth(1, 10)) == ({}, 6, 4)


def test_a_requeued_message_keeps_attempts_and_due_time():
    state = topic(5)
    state.add(delta(state, lambda changes: changes.requeue(1, [(2, Hole(3, 77))])))
    assert state.channels[1].holes == {0: Hole(), 1: Hole(), 2: Hole(3, 77)}
    assert state.depth(1, 5) == 5


def test_applying_a_batch_twice_changes_nothing():
    state = topic(5)
    change = delta(state, lambda changes: changes.finish(1, [(0, 1)]))
    assert state.add(change)
    before = facts(state)
    assert not state.add(change)
    assert not state.add(messages(0, 5))
    assert facts(state) == before


def test_a_gap_has_no_messages():
    state = topic(5)
    state.add(messages(100, 2))
    assert state.depth(1, state.end) == 7
    state.add(delta(state, lambda changes: changes.finish(1, [(101, 102)])))
    assert set(state.channels[1].holes) == {0, 1, 2, 3, 4, 100}


def test_messages_for_one_channel_count_for_that_channel_only():
    state = topic(2)
    state.add(delta(state, lambda changes: changes.create_channel(2, "other", 0)))
    state.add(new_batch(ADDRESSED, 2, 3, 5, item(3), addressed(2)))
    assert (state.depth(1, 5), state.depth(2, 5)) == (2, 5)


def test_deferred_messages_count_for_no_channel_until_they_are_released():
    state = topic(1)
    state.add(new_batch(DEFERRED, 1, 2, 5, item(2), deferred(50)))
    assert (state.depth(1, 3), state.deferred, state.floor) == (1, {1: 50, 2: 50}, 0)
    state.add(messages(3, extension=releasing([1])))
    assert (state.depth(1, 4), state.deferred) == (2, {2: 50})
    state.add(delta(state, lambda changes: changes.remove_deferred([2])))
    assert state.deferred == {}


def test_a_lost_message_is_no_longer_waited_for():
    state = topic(6)
    state.add(delta(state, lambda changes: changes.requeue(1, [(3, Hole(1, 0))])))
    state.add(delta(state, lambda changes: changes.lose(2, 5)))
    assert (state.depth(1, 6), set(state.channels[1].holes)) == (3, {0, 1})


def test_a_change_that_damage_left_without_its_messages_makes_no_holes():
    state = topic(3)
    state.add(delta(state, lambda changes: changes.requeue(1, [(5, Hole(1)), (6, Hole(2))])))
    state.add(delta(state, lambda changes: changes.finish(1, [(8, 9)])))
    assert state.channels[1].holes == {0: Hole(), 1: Hole(), 2: Hole()}
    state.add(messages(12))
    state.add(delta(state, lambda changes: changes.requeue(1, [(10, Hole(1)), (12, Hole(4))])))
    assert state.channels[1].holes == {0: Hole(), 1: Hole(), 2: Hole(), 12: Hole(4)}
    assert state.depth(1, state.end) == 4


def test_moving_a_channel_forgets_its_holes():
    state = topic(9)
    state.add(delta(state, lambda changes: changes.requeue(1, [(3, Hole(1, 0))])))
    state.add(delta(state, lambda changes: changes.move(1, 7)))
    assert (state.depth(1, 9), state.channels[1].holes) == (2, {})
    state.add(delta(state, lambda changes: changes.delete_channel(1)))
    assert (state.channels, state.next_number) == ({}, 2)


def test_an_unknown_change_is_ignored():
    state = topic(1)
    before = facts(state)
    state.apply(bytes([99, 3, 1, 2, 3]))
    assert facts(state) == before


KINDS = st.sampled_from([MESSAGES, ADDRESSED, DEFERRED])
CHANGES = st.one_of(
    st.tuples(st.just("finish"), st.integers(1, 2), st.integers(0, 30), st.integers(1, 4)),
    st.tuples(st.just("requeue"), st.integers(1, 2), st.integers(0, 30), st.integers(0, 9)),
    st.tuples(st.just("move"), st.integers(1, 2), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("messages"), KINDS, st.integers(0, 5), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.just(0), st.integers(0, 30), st.integers(1, 4)),
)


@settings(max_examples=150)
@given(st.lists(CHANGES, max_size=25))
def test_a_copy_is_equal_and_the_depth_counts_unfinished_messages(steps):
    state = topic(8)
    state.add(delta(state, lambda changes: changes.create_channel(2, "other", 3)))
    for what, number, first, count in steps:
        if what == "messages":
            extension = {MESSAGES: b"", ADDRESSED: addressed(2), DEFERRED: deferred(9)}[number]
            state.add(new_batch(number, state.end + first, count, 5, item(count), extension))
            continue
        first = min(first, state.end - 1)
        count = min(count, state.end - first)

        def fill(changes, what=what, number=number, first=first, count=count):
            if what == "finish":
                changes.finish(number, [(first, first + count)])
            elif what == "requeue":
                if list(state.messages_between(number, first, first + 1)):
                    changes.requeue(number, [(first, Hole(count, 0))])
            elif what == "move":
                changes.move(number, first)
            else:
                changes.lose(first, first + count)

        state.add(delta(state, fill))
    copy = state.copy()
    assert facts(copy) == facts(state)
    for number, channel in state.channels.items():
        mine = {o for first, end in state.messages_between(number, 0, state.end) for o in range(first, end)}
        unfinished = {offset for offset in mine if offset >= channel.next} | set(channel.holes)
        assert set(channel.holes) <= mine
        assert state.depth(number, state.end) == len(unfinished)


def test_a_snapshot_contains_everything():
    state = topic(3)

    def fill(changes):
        changes.pause_channel(1, True)
        changes.pause_topic(True, 2)
        changes.set_setting("durability", "write")
        changes.set_setting("retain_age", "1h")
        changes.set_unclaimed(2)
        changes.set_lease(5000)
        changes.skip(10)

    state.add(delta(state, fill))
    state.add(delta(state, lambda changes: changes.set_setting("retain_age", "")))
    assert facts(state.copy()) == facts(state)
    assert (state.settings, state.lease, state.end, state.is_paused) == ({"durability": "write"}, 5000, 10, True)


def test_forgotten_offsets_are_no_messages_for_a_channel_that_moves_over_them():
    """A channel moves back and forth. A state that applies this later, after the segments are gone, must agree."""
    state = topic(5)
    state.add(new_batch(DEFERRED, 5, 4, 5, item(4), deferred(77)))
    state.add(messages(9, 3))
    state.add(delta(state, lambda changes: changes.remove_deferred(range(5, 9))))
    state.add(delta(state, lambda changes: changes.finish(1, [(0, 12)])))
    state.forget_ranges(10)
    assert state.ranges == [(0, 10, 0)]
    state.add(delta(state, lambda changes: changes.move(1, 0)))
    state.add(delta(state, lambda changes: changes.requeue(1, [(2, Hole(1, 0)), (10, Hole(1, 0))])))
    state.add(delta(state, lambda changes: changes.finish(1, [(0, 5), (9, 10), (11, 12)])))
    assert (state.channels[1].holes, state.channels[1].next) == ({10: Hole(1, 0)}, 12)
    assert facts(state.copy()) == facts(state)


def test_ranges_after_the_position_of_a_channel_are_kept():
    state = topic(5)
    for first in (5, 7):
        state.add(new_batch(ADDRESSED, first, 2, 5, item(2), addressed(2)))
    state.add(delta(state, lambda changes: changes.move(1, 6)))
    state.forget_ranges(9)
    assert state.ranges == [(5, 9, 2)]
    state.add(new_batch(DEFERRED, 9, 2, 5, item(2), deferred(77)))
    state.add(delta(state, lambda changes: changes.move(1, 10)))
    state.forget_ranges(10)
    assert state.ranges == [(0, 11, 0)]
    state.forget_ranges(10)
    assert state.ranges == [(0, 11, 0)]


def test_a_trim_drops_everything_below_it():
    state = topic(10)

    def add(fill):
        state.add(delta(state, fill))

    add(lambda changes: changes.create_channel(2, "b", 8))
    state.add(new_batch(DEFERRED, 10, 2, 5, item(2), deferred(99)))
    state.add(messages(12, 8))
    add(lambda changes: changes.requeue(2, [(9, Hole(1)), (15, Hole(2, 7))]))
    add(lambda changes: changes.pause_topic(True, 5))
    add(lambda changes: changes.trim(11))
    assert (state.first, state.unclaimed, state.paused_at, state.deferred) == (11, 11, 11, {11: 99})
    assert (state.channels[1].next, state.channels[1].holes) == (11, {})
    assert (state.channels[2].next, state.channels[2].holes.keys()) == (16, {12, 13, 14, 15})
    assert (state.is_finished(11), state.depth(1, 20), state.depth(2, 20)) == (True, 8, 8)
    add(lambda changes: changes.requeue(1, [(3, Hole(1))]))
    add(lambda changes: changes.trim(4))
    assert (state.first, state.channels[1].holes) == (11, {})
    assert facts(state.copy()) == facts(state)
