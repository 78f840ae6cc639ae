"""Deduplication recognises redelivered messages, and only those."""

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
    """Return columns with messages given as (number, attempts[, time_ns]). The time defaults to the number."""
    made = Columns(topic, "address")
    for number, attempts, *time_ns in messages:
        add_message(made, text(number), time_ns[0] if time_ns else number, attempts)
    made.is_suspect = is_suspect
    return made


def identities(*numbers, node="n", span=(0, 0)):
    return Identities("t", node, [text(number) for number in numbers], list(numbers), span)


def test_a_redelivered_message_is_recognised():
    seen = SeenMessages(100)
    assert seen.admit(columns((1, 1), (2, 1)), "n") == []
    assert seen.admit(columns((2, 2), (3, 1), (1, 2)), "n") == [0, 2]


def test_redeliveries_with_attempt_one_are_recognised_after_a_reconnect():
    seen = SeenMessages(100)
    seen.admit(columns((1, 1), (5, 1)), "n")
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((5, 1), (3, 1), (6, 1), (1, 1)), "n") == [0, 3]
    assert seen.admit(columns((4, 1), (3, 1)), "n") == [1]


def test_suspect_messages_are_checked_individually():
    seen = SeenMessages(100)
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((7, 1), (8, 1)), "n") == []
    assert seen.admit(columns((7, 1), (9, 1), is_suspect=True), "n") == [0]


def test_the_same_id_in_another_topic_or_broker_is_another_message():
    seen = SeenMessages(100)
    seen.admit(columns((1, 1)), "n")
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((1, 1), topic="u"), "n") == []
    assert seen.admit(columns((1, 1)), "other") == []
    assert seen.admit(columns((1, 1, 2)), "n") == []


class TestMovedBrokers:
    """A broker without a broker id may return under another address."""

    @pytest.mark.parametrize("attempts", [1, 2])
    def test_redeliveries_from_a_new_address_are_recognised(self, attempts):
        seen = SeenMessages(100)
        seen.connected("t", "n:1", set())
        seen.admit(columns((1, 1), (2, 1)), "n:1")
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((1, attempts), (3, 1)), "n:2") == [0]
        assert seen.admit(columns((2, attempts, 9)), "n:2") == []
        assert seen.admit(columns((2, attempts)), "n:2") == [0]

    @pytest.mark.parametrize("attempts", [1, 2])
    def test_brokers_connected_at_the_same_time_are_different_brokers(self, attempts):
        seen = SeenMessages(100)
        seen.connected("t", "n:1", set())
        seen.connected("t", "n:2", {"n:1"})
        seen.admit(columns((1, 1), (2, 1)), "n:1")
        assert seen.admit(columns((1, attempts)), "n:2") == []
        # This is also true after the first broker has disconnected.
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((2, attempts)), "n:2") == []

    def test_a_broker_that_reconnects_beside_another_is_a_different_broker(self):
        seen = SeenMessages(100)
        seen.connected("t", "n:1", set())
        seen.admit(columns((1, 1), (2, 1)), "n:1")
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((1, 1)), "n:2") == [0]
        seen.connected("t", "n:1", {"n:2"})
        assert seen.admit(columns((2, 1)), "n:2") == []

    def test_a_broker_may_move_more_than_once(self):
        seen = SeenMessages(100)
        for number in range(1, 5):
            seen.connected("t", f"n:{number}", set())
            assert seen.admit(columns(*((each, 1) for each in range(number + 1))), f"n:{number}") == list(
                range(number if number > 1 else 0)
            )

    @pytest.mark.parametrize(
        ("spans", "known"), [([(0, 2), (2, 4)], [0]), ([(0, 3), (1, 4)], []), ([(2, 4), (0, 2)], [0])]
    )
    def test_row_spans_of_earlier_runs_show_which_brokers_were_connected_together(self, spans, known):
        seen = SeenMessages(100)
        seen.remember([identities(1, 2, node="n:1", span=spans[0]), identities(7, 8, node="n:2", span=spans[1])])
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((1, 1), (3, 1)), "n:2") == known

    def test_pinned_identities_of_the_old_address_are_recognised(self):
        seen = SeenMessages(2)
        seen.remember_pinned([identities(5, node="n:1")])
        seen.connected("t", "n:2", set())
        assert seen.admit(columns((5, 1)), "n:2") == [0]


def test_the_window_forgets_old_messages_but_keeps_pinned_ones():
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
def test_no_message_within_half_a_window_is_forgotten(deliveries, window):
    seen = SeenMessages(window)
    fresh: list[int] = []
    tries: dict[int, int] = {}
    for number, is_crash in deliveries:
        if is_crash:
            # nsqd has lost its attempt counts.
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


def test_latest_returns_the_newest_unpinned_identities_of_an_nsqd():
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


def test_rows_of_an_earlier_run_are_recognised():
    seen = SeenMessages(100)
    seen.remember([identities(1, 2)])
    seen.connected("t", "n", {"n"})
    again = columns((2, 2), (3, 1), (1, 1))
    assert seen.admit(again, "n") == [0, 2]
    assert seen.unpinned(again, [0], "n") == [identities(2)]
    assert seen.unpinned(again, [], "n") == []


def test_ids_may_arrive_in_any_order():
    seen = SeenMessages(100)
    assert seen.admit(columns((5, 1), (3, 1), (4, 1)), "n") == []
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((3, 1), (2, 1), (6, 1), (4, 1)), "n") == [0, 3]
    seen.remember([identities(9)])
    seen.remember_pinned([identities(8)])
    seen.connected("t", "n", {"n"})
    assert seen.admit(columns((8, 1), (9, 1), (7, 1)), "n") == [0, 1]


def test_a_message_repeated_within_one_batch_is_taken_once():
    seen = SeenMessages(100)
    assert seen.admit(columns((1, 1), (1, 2), (2, 2), (2, 3)), "n") == [1, 3]
