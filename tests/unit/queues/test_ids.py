"""Message ids: unique and increasing, even if the clock is set back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.queues.ids import MAX_NODE_ID, IdSource
from nsqx.wire.message import advance_id

TICK_NS = 1 << 20
EPOCH_TICK = 1288834974288
NOW_NS = 1_700_000_000_000_000_000


def parts(number):
    return number >> 22, number >> 12 & 0x3FF, number & 0xFFF


@pytest.mark.parametrize("node_id", [0, 1, 517, MAX_NODE_ID])
def test_the_layout_of_an_id(node_id):
    assert parts(IdSource(node_id).reserve(1, NOW_NS)) == ((NOW_NS >> 20) - EPOCH_TICK, node_id, 0)


def test_the_sequence_restarts_with_each_tick():
    ids = IdSource(3)
    start_ns = NOW_NS >> 20 << 20
    tick = (start_ns >> 20) - EPOCH_TICK
    assert parts(ids.reserve(1, start_ns)) == (tick, 3, 0)
    assert parts(ids.reserve(5, start_ns + 1)) == (tick, 3, 1)
    assert parts(ids.reserve(1, start_ns + TICK_NS - 1)) == (tick, 3, 6)
    assert parts(ids.reserve(1, start_ns + TICK_NS)) == (tick + 1, 3, 0)


def test_more_ids_than_fit_into_a_tick_run_ahead_of_the_clock_without_repeats():
    ids = IdSource(9)
    tick = (NOW_NS >> 20) - EPOCH_TICK
    assert parts(ids.reserve(4096, NOW_NS)) == (tick, 9, 0)
    assert parts(ids.reserve(1, NOW_NS)) == (tick + 1, 9, 0)
    # The clock reaches the tick in use: continue counting in it.
    assert parts(ids.reserve(1, NOW_NS + TICK_NS)) == (tick + 1, 9, 1)
    assert parts(ids.reserve(1, NOW_NS + 2 * TICK_NS)) == (tick + 2, 9, 0)


def test_a_clock_that_is_set_back_causes_no_repeats():
    ids = IdSource(0)
    first = ids.reserve(1, NOW_NS)
    assert ids.reserve(1, NOW_NS - 3_600_000_000_000) == first + 1
    assert ids.reserve(1, NOW_NS) == first + 2


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(-5 * TICK_NS, 5 * TICK_NS)), min_size=1, max_size=30))
def test_reserved_ranges_never_overlap(steps):
    ids = IdSource(1023)
    now_ns = NOW_NS
    end = -1
    for count, step_ns in steps:
        now_ns += step_ns
        first = ids.reserve(count, now_ns)
        assert first >= end
        assert parts(first)[1] == 1023
        end = advance_id(first, count)
