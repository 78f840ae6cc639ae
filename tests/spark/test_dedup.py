"""What was received before is known; what only looks like it is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqx.spark.columns import Columns
from nsqx.spark.dedup import SeenMessages
from nsqx.spark.identities import Identities


def columns(*messages, node="n", topic="t"):
    """Messages as (id, time, attempts)."""
    made = Columns(topic, node)
    for message_id, time_ns, attempts in messages:
        made.add(message_id, time_ns, attempts, b"x")
    return made


def test_a_message_is_known_the_second_time():
    seen = SeenMessages(100)
    assert seen.admit(columns((b"1", 1, 1), (b"2", 2, 1))) == []
    assert seen.admit(columns((b"2", 2, 2), (b"3", 3, 1), (b"1", 1, 2))) == [0, 2]
    assert seen.admit(columns((b"4", 4, 1), (b"4", 4, 1))) == [1]


def test_the_same_id_elsewhere_is_another_message():
    seen = SeenMessages(100)
    seen.admit(columns((b"1", 1, 1)))
    assert seen.admit(columns((b"1", 1, 1), topic="u")) == []
    assert seen.admit(columns((b"1", 1, 1), node="other")) == []
    assert seen.admit(columns((b"1", 2, 1))) == []


def test_a_message_is_known_from_an_nsqd_that_moved():
    seen = SeenMessages(100)
    seen.admit(columns((b"1", 1, 1), node="n:1"))
    assert seen.admit(columns((b"1", 1, 2), node="n:2")) == [0]
    assert seen.admit(columns((b"1", 9, 2), node="n:2")) == []


def test_the_window_moves_on_and_pins_stay():
    seen = SeenMessages(10)
    seen.admit(columns((b"0", 0, 1), (b"p", 0, 1)))
    seen.remember_pinned([Identities("t", "n", [b"p"], [0])])
    for number in range(1, 20):
        seen.admit(columns((b"%d" % number, number, 1)))
        seen.settle()
    assert seen.admit(columns((b"19", 19, 2))) == [0]
    assert seen.admit(columns((b"p", 0, 2))) == [0]
    assert seen.admit(columns((b"0", 0, 2))) == []
    assert seen.pin_count == 1


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(2, 40))
def test_within_half_a_window_nothing_is_forgotten(numbers, window):
    seen = SeenMessages(window)
    fresh: list[int] = []
    for number in numbers:
        is_known = bool(seen.admit(columns((b"%d" % number, number, 1))))
        seen.settle()
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
        seen.admit(columns((b"%d" % number, number, 1), node=f"n{number % 2}"))
    assert seen.latest("t", "n0", 3) == Identities("t", "n0", [b"2", b"4", b"6"], [2, 4, 6])
    seen.remember_pinned([Identities("t", "n0", [b"4"], [4])])
    assert seen.latest("t", "n0", 3).ids == [b"2", b"6"]
    assert [part.node for part in seen.every_latest(1)] == ["n0", "n1"]
    assert seen.latest("t", "nowhere", 3).ids == []
    assert seen.one("t", "n0", b"6") == [Identities("t", "n0", [b"6"], [6])]
    assert seen.one("t", "n0", b"4") == []
    assert seen.one("t", "n0", b"99") == []


def test_rows_of_a_former_run_are_known():
    seen = SeenMessages(100)
    seen.remember([Identities("t", "n", [b"1", b"2"], [1, 2])])
    again = columns((b"2", 2, 2), (b"3", 3, 1))
    assert seen.admit(again) == [0]
    assert seen.unpinned(again, [0]) == [Identities("t", "n", [b"2"], [2])]
    assert seen.unpinned(again, []) == []


def test_ids_need_not_grow():
    seen = SeenMessages(100)
    assert seen.admit(columns((b"5", 5, 1), (b"3", 3, 1), (b"4", 4, 1))) == []
    assert seen.admit(columns((b"3", 3, 1), (b"2", 2, 1), (b"6", 6, 1), (b"4", 4, 1))) == [0, 3]
    seen.remember([Identities("t", "n", [b"9"], [9])])
    seen.remember_pinned([Identities("t", "n", [b"8"], [8])])
    assert seen.admit(columns((b"8", 8, 1), (b"9", 9, 1), (b"7", 7, 1))) == [0, 1]


def test_a_message_that_comes_twice_at_once_is_taken_once():
    seen = SeenMessages(100)
    assert seen.admit(columns((b"1", 1, 1), (b"1", 1, 2), (b"2", 2, 2), (b"2", 2, 3))) == [1, 3]
