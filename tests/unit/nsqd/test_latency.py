"""The latency sketch: exact ranks, values within its error, windows that pass, sketches that merge."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.nsqd.latency import BATCH_SIZE, LatencySketch, merged_result

# Half a bucket, and what rounding to a 32-bit float adds.
MAX_RELATIVE_ERROR = 1 / 256 + 2**-23

SECOND_NS = 1_000_000_000
WINDOW_NS = 600 * SECOND_NS
HALF_WINDOW_NS = WINDOW_NS // 2
# Where a half window begins: sketches let theirs end at multiples of half a window.
START_NS = 1000 * WINDOW_NS + 1


def filled(latencies, percentiles=(0.99, 0.5), now_ns=START_NS):
    sketch = LatencySketch(percentiles, WINDOW_NS)
    for latency in latencies:
        sketch.add(latency, now_ns)
    return sketch


def values(result):
    return [entry["value"] for entry in result["percentiles"]]


@given(
    st.lists(st.integers(-(10**6), 10**13), min_size=1, max_size=3 * BATCH_SIZE),
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=4),
)
def test_each_percentile_is_near_the_latency_of_its_rank(latencies, percentiles):
    result = filled(latencies, percentiles).result(START_NS)
    assert result["count"] == len(latencies)
    ascending = sorted(latencies)
    for quantile, value in zip(percentiles, values(result), strict=True):
        exact = ascending[ceil(quantile * len(ascending)) - 1]
        assert value == pytest.approx(exact, rel=MAX_RELATIVE_ERROR, abs=1)


@given(st.lists(st.lists(st.integers(1, 10**12), max_size=700), min_size=1, max_size=4))
def test_merged_sketches_are_one_sketch_of_all(parts):
    together = filled([latency for part in parts for latency in part])
    assert merged_result(map(filled, parts), START_NS) == together.result(START_NS)


def test_result_names_each_percentile_in_the_configured_order():
    assert filled([1000], (1.0, 0.99, 0.5)).result(START_NS) == {
        "count": 1,
        "percentiles": [
            {"quantile": 1, "value": 1002},
            {"quantile": 0.99, "value": 1002},
            {"quantile": 0.5, "value": 1002},
        ],
    }


def test_whole_quantile_is_written_as_nsqd_writes_it():
    entry = filled([1000], (1.0,)).result(START_NS)["percentiles"][0]
    assert isinstance(entry["quantile"], int)


def test_nothing_measured_is_zero():
    assert filled([]).result(START_NS) == {
        "count": 0,
        "percentiles": [{"quantile": 0.99, "value": 0}, {"quantile": 0.5, "value": 0}],
    }


def test_no_sketch_has_no_percentiles():
    assert merged_result([], START_NS) == {"count": 0, "percentiles": None}


def test_asking_changes_nothing():
    sketch = filled(range(1, 1200))
    first = sketch.result(START_NS)
    assert sketch.result(START_NS) == first


def test_latencies_leave_with_the_window():
    sketch = filled([SECOND_NS] * 3)
    sketch.add(5 * SECOND_NS, START_NS + HALF_WINDOW_NS)
    assert sketch.result(START_NS + HALF_WINDOW_NS)["count"] == 4
    # The half of the first three is over twice now, that of the fourth once.
    assert sketch.result(START_NS + WINDOW_NS)["count"] == 1
    assert sketch.result(START_NS + WINDOW_NS + HALF_WINDOW_NS)["count"] == 0


def test_latencies_do_not_come_back_after_a_long_silence():
    sketch = filled([SECOND_NS] * 3)
    sketch.add(5 * SECOND_NS, START_NS + 10 * WINDOW_NS)
    assert sketch.result(START_NS + 10 * WINDOW_NS) == {
        "count": 1,
        "percentiles": [
            {"quantile": 0.99, "value": pytest.approx(5 * SECOND_NS, rel=MAX_RELATIVE_ERROR)},
            {"quantile": 0.5, "value": pytest.approx(5 * SECOND_NS, rel=MAX_RELATIVE_ERROR)},
        ],
    }


def test_batch_is_counted_in_the_half_window_it_came_in():
    sketch = filled([SECOND_NS] * (BATCH_SIZE - 1))
    sketch.add(SECOND_NS, START_NS + HALF_WINDOW_NS)
    assert sketch.result(START_NS + WINDOW_NS)["count"] == 1


def test_a_clock_that_steps_back_keeps_the_window():
    sketch = filled([SECOND_NS])
    sketch.add(SECOND_NS, START_NS - WINDOW_NS)
    assert sketch.result(START_NS)["count"] == 2


def test_empty_window_is_survived():
    sketch = LatencySketch((0.5,), 0)
    sketch.add(SECOND_NS, START_NS)
    assert sketch.result(START_NS)["count"] == 1
