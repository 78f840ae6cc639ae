"""The latency sketch: exact ranks, values within the error bound, expiry and merging."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.nsqd.latency import BATCH_SIZE, LatencySketch, MergedLatency

# Half a bucket, and the rounding to a 32-bit float.
MAX_RELATIVE_ERROR = 1 / 256 + 2**-23

SECOND_NS = 1_000_000_000
WINDOW_NS = 600 * SECOND_NS
HALF_WINDOW_NS = WINDOW_NS // 2
# The start of a half window: half windows end at multiples of half the window.
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
def test_each_percentile_is_close_to_the_latency_of_its_rank(latencies, percentiles):
    result = filled(latencies, percentiles).result(START_NS)
    assert result["count"] == len(latencies)
    ascending = sorted(latencies)
    for quantile, value in zip(percentiles, values(result), strict=True):
        exact = ascending[ceil(quantile * len(ascending)) - 1]
        assert value == pytest.approx(exact, rel=MAX_RELATIVE_ERROR, abs=1)


@given(st.lists(st.lists(st.integers(1, 10**12), max_size=700), min_size=1, max_size=4))
def test_merged_sketches_equal_one_sketch_of_all_latencies(parts):
    together = filled([latency for part in parts for latency in part])
    merged = MergedLatency()
    for part in parts:
        merged.add(filled(part), START_NS)
    assert merged.result() == together.result(START_NS)


def test_the_result_has_the_percentiles_in_the_configured_order():
    assert filled([1000], (1.0, 0.99, 0.5)).result(START_NS) == {
        "count": 1,
        "percentiles": [
            {"quantile": 1, "value": 1002},
            {"quantile": 0.99, "value": 1002},
            {"quantile": 0.5, "value": 1002},
        ],
    }


def test_a_quantile_of_1_is_written_as_go_writes_it():
    entry = filled([1000], (1.0,)).result(START_NS)["percentiles"][0]
    assert isinstance(entry["quantile"], int)


def test_the_percentiles_of_an_empty_sketch_are_0():
    assert filled([]).result(START_NS) == {
        "count": 0,
        "percentiles": [{"quantile": 0.99, "value": 0}, {"quantile": 0.5, "value": 0}],
    }


def test_the_result_without_sketches_has_no_percentiles():
    assert MergedLatency().result() == {"count": 0, "percentiles": None}


def test_result_does_not_change_the_sketch():
    sketch = filled(range(1, 1200))
    first = sketch.result(START_NS)
    assert sketch.result(START_NS) == first


def test_latencies_expire_with_the_window():
    sketch = filled([SECOND_NS] * 3)
    sketch.add(5 * SECOND_NS, START_NS + HALF_WINDOW_NS)
    assert sketch.result(START_NS + HALF_WINDOW_NS)["count"] == 4
    # Two half windows have ended since the first three latencies, one since the fourth.
    assert sketch.result(START_NS + WINDOW_NS)["count"] == 1
    assert sketch.result(START_NS + WINDOW_NS + HALF_WINDOW_NS)["count"] == 0


def test_latencies_stay_expired_after_a_long_silence():
    sketch = filled([SECOND_NS] * 3)
    sketch.add(5 * SECOND_NS, START_NS + 10 * WINDOW_NS)
    assert sketch.result(START_NS + 10 * WINDOW_NS) == {
        "count": 1,
        "percentiles": [
            {"quantile": 0.99, "value": pytest.approx(5 * SECOND_NS, rel=MAX_RELATIVE_ERROR)},
            {"quantile": 0.5, "value": pytest.approx(5 * SECOND_NS, rel=MAX_RELATIVE_ERROR)},
        ],
    }


def test_a_batch_is_counted_in_the_half_window_of_its_arrival():
    sketch = filled([SECOND_NS] * (BATCH_SIZE - 1))
    sketch.add(SECOND_NS, START_NS + HALF_WINDOW_NS)
    assert sketch.result(START_NS + WINDOW_NS)["count"] == 1


def test_a_clock_that_is_set_back_keeps_the_window():
    sketch = filled([SECOND_NS])
    sketch.add(SECOND_NS, START_NS - WINDOW_NS)
    assert sketch.result(START_NS)["count"] == 2


def test_a_window_of_0_is_accepted():
    sketch = LatencySketch((0.5,), 0)
    sketch.add(SECOND_NS, START_NS)
    assert sketch.result(START_NS)["count"] == 1
