"""What was received before is known; what only looks like it is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqx.spark.dedup import SeenMessages
from nsqx.spark.rows import Identities, Rows


def rows(*messages, topic="t"):
    """Messages as (node, id, time, attempts)."""
    nodes, ids, times, attempts = zip(*messages, strict=True)
    return Rows(topic, [b"x"] * len(ids), list(ids), list(times), list(attempts), list(nodes))


def test_a_message_is_known_the_second_time():
    seen = SeenMessages(100)
    assert seen.admit(rows(("n", b"1", 1, 1), ("n", b"2", 2, 1))) == []
    assert seen.admit(rows(("n", b"2", 2, 2), ("n", b"3", 3, 1), ("n", b"1", 1, 2))) == [0, 2]
    assert seen.admit(rows(("n", b"4", 4, 1), ("n", b"4", 4, 1))) == [1]


def test_the_same_id_elsewhere_is_another_message():
    seen = SeenMessages(100)
    seen.admit(rows(("n", b"1", 1, 1)))
    assert seen.admit(rows(("n", b"1", 1, 1), topic="u")) == []
    assert seen.admit(rows(("other", b"1", 1, 1))) == []
    assert seen.admit(rows(("n", b"1", 2, 1))) == []


def test_a_message_is_known_from_an_nsqd_that_moved():
    seen = SeenMessages(100)
    seen.admit(rows(("n:1", b"1", 1, 1)))
    assert seen.admit(rows(("n:2", b"1", 1, 2))) == [0]
    assert seen.admit(rows(("n:2", b"1", 9, 2))) == []


def test_the_window_moves_on_and_pins_stay():
    seen = SeenMessages(10)
    seen.admit(rows(("n", b"0", 0, 1), ("n", b"p", 0, 1)))
    seen.remember_pinned([Identities("t", "n", [b"p"], [0])])
    for number in range(1, 20):
        seen.admit(rows(("n", b"%d" % number, number, 1)))
    assert seen.admit(rows(("n", b"19", 19, 2))) == [0]
    assert seen.admit(rows(("n", b"p", 0, 2))) == [0]
    assert seen.admit(rows(("n", b"0", 0, 2))) == []
    assert seen.pin_count == 1


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(2, 40))
def test_within_half_a_window_nothing_is_forgotten(numbers, window):
    seen = SeenMessages(window)
    fresh: list[int] = []
    for number in numbers:
        is_known = bool(seen.admit(rows(("n", b"%d" % number, number, 1))))
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
        seen.admit(rows((f"n{number % 2}", b"%d" % number, number, 1)))
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
    again = rows(("n", b"2", 2, 2), ("n", b"3", 3, 1))
    assert seen.admit(again) == [0]
    assert seen.unpinned(again, [0]) == [Identities("t", "n", [b"2"], [2])]
    assert again.without([0]).ids == [b"3"]
