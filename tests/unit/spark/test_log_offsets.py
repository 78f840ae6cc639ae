"""Offsets of topic logs: limits, division into tasks, and the lag in progress reports."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.errors import NSQError
from nsqx.spark.log_offsets import (
    Span,
    decode_offset,
    divide,
    encode_offset,
    is_log_offset,
    limit_positions,
    row_count,
    rows_per_task,
)

KEYS = [("a", "1"), ("a", "2"), ("b", "3")]
COUNTS = st.lists(st.integers(0, 300_000), min_size=3, max_size=3)


def test_offsets_are_encoded_in_a_fixed_order():
    positions = {("b", "3"): 5, ("a", "2"): 7, ("a", "1"): 1}
    offset = encode_offset(positions)
    assert json.dumps(offset) == '{"a": {"1": 1, "2": 7}, "b": {"3": 5}}'
    assert decode_offset(offset) == positions
    assert is_log_offset(offset)
    assert not is_log_offset({"rows": 5, "segments": "x"})
    with pytest.raises(NSQError, match="is not an offset of topic logs"):
        decode_offset({"rows": 5})


@given(COUNTS, st.integers(1, 100_000))
def test_a_limit_is_kept_and_every_log_gets_a_share(counts, limit):
    start = dict.fromkeys(KEYS, 10)
    end = {key: 10 + count for key, count in zip(KEYS, counts, strict=True)}
    limited = limit_positions(start, end, limit, 0, {})
    assert row_count(start, limited) <= limit + len(KEYS)
    for key, count in zip(KEYS, counts, strict=True):
        assert start[key] + min(count, 1) <= limited[key] <= end[key]


def test_bytes_limit_too():
    start, end = {("a", "1"): 0}, {("a", "1"): 1000}
    assert limit_positions(start, end, 0, 20_000, {("a", "1"): 200}) == {("a", "1"): 100}
    assert limit_positions(start, end, 0, 0, {}) == end


@given(COUNTS, st.integers(1, 20), st.integers(1, 60_000))
def test_tasks_cover_every_offset_once(counts, least, most):
    spans = [Span(key, 5, 5 + count) for key, count in zip(KEYS, counts, strict=True)]
    if sum(counts) // most > 2000:
        return
    parts = list(divide(spans, least, lambda _, __: most))
    assert all(0 < part.end - part.start <= most for part in parts)
    for span in spans:
        own = [part for part in parts if part.key == span.key]
        ends = [span.start, *(part.end for part in own)]
        assert [part.start for part in own] == ends[:-1]
        assert not own or ends[-1] == span.end
        assert own or span.start == span.end
    if sum(counts) >= 20 * least:
        assert len(parts) >= least
    share = max(1, -(-sum(counts) // least))
    assert len(parts) == sum(-(-count // min(most, share)) for count in counts)


@pytest.mark.parametrize(
    ("total", "cores", "size", "tasks"),
    [
        (40_000, 2, 200, 1),
        (200_000, 2, 200, 2),
        (200_000, 64, 200, 4),
        (1_000_000, 2, 200, 2),
        (10_000_000, 2, 200, 20),
        (1_000_000, 16, 200, 16),
        (1_000_000, 2, 0, 2),
        (1_000, 2, 1024 * 1024, 8),
        (3, 2, 1024 * 1024 * 1024, 3),
    ],
)
def test_a_task_is_large_unless_cores_would_be_idle(total, cores, size, tasks):
    spans = [Span(KEYS[0], 7, 7 + total)]
    assert len(list(divide(spans, 1, lambda _, rows: rows_per_task(rows, cores, size)))) == tasks


def test_the_lag_of_logs_is_in_progress_reports():
    pytest.importorskip("pyspark")
    from nsqx.spark.listener import read_progress

    source = {
        "startOffset": {}, "endOffset": {"a": {"1": 90}}, "numInputRows": 5, "processedRowsPerSecond": 1.0,
        "latestOffset": {"a": {"1": 100}, "b": {"2": 7}, "#lost": 0, "#away": []},
    }  # fmt: skip
    (found,) = read_progress({"name": "q", "batchId": 3, "batchDuration": 10, "sources": [source]})
    assert (found.lag_rows, found.depth, found.rows) == (17, None, 5)
