"""What was received before is known; what only looks like it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import add_message

from nsqx.spark.columns import Columns
from nsqx.spark.dedup import SeenMessages
from nsqx.spark.identities import Identities


def text(number):
    return b"%016d" % number


def columns(*messages, topic="t", is_suspect=False):
    """Messages as (number, attempts); they were published when their number says, or at a third value."""
    made = Columns(topic, "address")
    for number, attempts, *time_ns in messages:
        add_message(made, text(number), time_ns[0] if time_ns else number, attempts)
    made.is_suspect = is_suspect
    return made


def identities(*numbers, node="n", span=(0, 0)):
    return Identities("t", node, [text(number) for number in numbers], list(numbers), span)


def test_a_message_is_known_the_second_time():
    seen = SeenMessages(100)
    assert seen.admit(columns((1, 1), (2, 1)), "n") == []
    assert seen.admit(columns((2, 2), (3, 1), (1, 2)), "n") == [0, 2]


def test_a_new_connection_may_bring_anything_again_as_if_for_the_first_time():
    seen = SeenMessages(100)
    seen.admit(columns((1, 1), (5, 1)), "n")
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((5, 1), (3, 1), (6, 1), (1, 1)), "n") == [0, 3]
    assert seen.admit(columns((4, 1), (3, 1)), "n") == [1]


def test_what_came_before_a_connection_and_was_taken_after_it_is_looked_up():
    seen = SeenMessages(100)
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((7, 1), (8, 1)), "n") == []
    assert seen.admit(columns((7, 1), (9, 1), is_suspect=True), "n") == [0]


def test_the_same_id_elsewhere_is_another_message():
    seen = SeenMessages(100)
    seen.admit(columns((1, 1)), "n")
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((1, 1), topic="u"), "n") == []
    assert seen.admit(columns((1, 1)), "other") == []
    assert seen.admit(columns((1, 1, 2)), "n") == []


class TestMovedBrokers:
    """A broker whose address alone is known may come back under another one."""

    @pytest.mark.parametrize("attempts", [1, 2])
    def test_what_comes_again_from_another_address_is_known(self, attempts):
        seen = SeenMessages(100)
        seen.connected("t", "n:1", set())
        seen.admit(columns((1, 1), (2, 1)), "n:1")
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((1, attempts), (3, 1)), "n:2") == [0]
        assert seen.admit(columns((2, attempts, 9)), "n:2") == []
        assert seen.admit(columns((2, attempts)), "n:2") == [0]

    @pytest.mark.parametrize("attempts", [1, 2])
    def test_of_brokers_connected_at_once_neither_is_the_other(self, attempts):
        seen = SeenMessages(100)
        seen.connected("t", "n:1", set())
        seen.connected("t", "n:2", {"n:1"})
        seen.admit(columns((1, 1), (2, 1)), "n:1")
        assert seen.admit(columns((1, attempts)), "n:2") == []
        # Nor when the first is gone.
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((2, attempts)), "n:2") == []

    def test_one_that_comes_back_beside_the_other_was_not_the_other(self):
        seen = SeenMessages(100)
        seen.connected("t", "n:1", set())
        seen.admit(columns((1, 1), (2, 1)), "n:1")
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((1, 1)), "n:2") == [0]
        seen.connected("t", "n:1", {"n:2"})
        assert seen.admit(columns((2, 1)), "n:2") == []

    def test_it_may_move_more_than_once(self):
        seen = SeenMessages(100)
        for number in range(1, 5):
            seen.connected("t", f"n:{number}", set())
            assert seen.admit(columns(*((each, 1) for each in range(number + 1))), f"n:{number}") == list(
                range(number if number > 1 else 0)
            )

    @pytest.mark.parametrize(
        ("spans", "known"), [([(0, 2), (2, 4)], [0]), ([(0, 3), (1, 4)], []), ([(2, 4), (0, 2)], [0])]
    )
    def test_rows_of_former_runs_tell_whether_brokers_were_connected_at_once(self, spans, known):
        seen = SeenMessages(100)
        seen.remember([identities(1, 2, node="n:1", span=spans[0]), identities(7, 8, node="n:2", span=spans[1])])
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((1, 1), (3, 1)), "n:2") == known

    def test_pins_of_a_predecessor_count(self):
        seen = SeenMessages(2)
        seen.remember_pinned([identities(5, node="n:1")])
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((5, 1)), "n:2") == [0]


def test_the_window_moves_on_and_pins_stay():
    seen = SeenMessages(10)
    seen.admit(columns((0, 1), (99, 1)), "n")
    seen.remember_pinned([identities(99)])
    for number in range(1, 20):
        seen.admit(columns((number, 1)), "n")
    assert seen.admit(columns((19, 2)), "n") == [0]
    assert seen.admit(columns((99, 2)), "n") == [0]
    assert seen.admit(columns((0, 2)), "n") == []
    assert seen.pin_count == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=200), st.integers(2, 40))
def test_within_half_a_window_nothing_is_forgotten(deliveries, window):
    seen = SeenMessages(window)
    fresh: list[int] = []
    tries: dict[int, int] = {}
    for number, is_crash in deliveries:
        if is_crash:
            # nsqd has forgotten how often it handed out what.
            tries.clear()
            seen.connected("t", "n", {"n"})
        tries[number] = tries.get(number, 0) + 1
        is_known = bool(seen.admit(columns((number, tries[number])), "n"))
        recent = fresh[-(window // 2) :]
        if number in recent:
            assert is_known
        if is_known:
            assert number in fresh
        else:
            fresh.append(number)


def test_the_latest_of_an_nsqd_are_told_without_those_pinned():
    seen = SeenMessages(10)
    for number in range(8):
        seen.admit(columns((number, 1)), f"n{number % 2}")
    assert seen.latest("t", "n0", 3) == identities(2, 4, 6, node="n0")
    seen.remember_pinned([identities(4, node="n0")])
    assert seen.latest("t", "n0", 3) == identities(2, 6, node="n0")
    assert [part.broker for part in seen.every_latest(1)] == ["n0", "n1"]
    assert seen.latest("t", "nowhere", 3).ids == []
    assert seen.one("t", "n0", text(6)) == [identities(6, node="n0")]
    assert seen.one("t", "n0", text(4)) == []
    assert seen.one("t", "n0", text(99)) == []


def test_rows_of_a_former_run_are_known():
    seen = SeenMessages(100)
    seen.remember([identities(1, 2)])
    seen.connected("t", "n", {"n"})
    again = columns((2, 2), (3, 1), (1, 1))
    assert seen.admit(again, "n") == [0, 2]
    assert seen.unpinned(again, [0], "n") == [identities(2)]
    assert seen.unpinned(again, [], "n") == []


def test_ids_need_not_grow():
    seen = SeenMessages(100)
    assert seen.admit(columns((5, 1), (3, 1), (4, 1)), "n") == []
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((3, 1), (2, 1), (6, 1), (4, 1)), "n") == [0, 3]
    seen.remember([identities(9)])
    seen.remember_pinned([identities(8)])
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((8, 1), (9, 1), (7, 1)), "n") == [0, 1]


def test_a_message_that_comes_twice_at_once_is_taken_once():
    seen = SeenMessages(100)
    assert seen.admit(columns((1, 1), (1, 2), (2, 2), (2, 3)), "n") == [1, 3]
