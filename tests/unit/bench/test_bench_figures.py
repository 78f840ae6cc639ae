"""Percentiles, and figures as people read them."""

from array import array

import pytest

from nsqx.bench.figures import KIBIBYTES, MILLISECONDS, PER_SECOND, format_value, lateness_figures, percentile

HUNDRED = array("q", range(1, 101))


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (0.999, 100), (0.0, 1), (1.0, 100)])
def test_percentile_of_a_hundred(share, expected):
    assert percentile(HUNDRED, share) == expected


def test_percentile_of_one_sample():
    assert percentile(array("q", [7]), 0.999) == 7


def test_lateness_is_sorted_first_and_told_in_milliseconds():
    figures = lateness_figures("flow", array("q", [3_000_000, 1_000_000, 2_000_000]), cpu_us=1.5)
    assert [(each.name, each.value) for each in figures] == [("flow p50", 2.0), ("flow p99", 3.0), ("flow p99.9", 3.0)]
    assert [each.cpu_us for each in figures] == [1.5, None, None]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1234567.8, PER_SECOND, "1,234,568"), (0.12345, MILLISECONDS, "0.123"), (3.61, KIBIBYTES, "3.6")],
)
def test_format_value(value, unit, text):
    assert format_value(value, unit) == text
