"""Positions in a log as text."""

from datetime import UTC, datetime

import pytest

from nsqx.nsqd.log_position import LogPosition, parse_position, parse_time

NOW_NS = 1_794_556_800_000_000_000
SIX = int(datetime(2026, 11, 18, 6, tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("2026-11-18T06:00:00Z", SIX),
        ("2026-11-18t06:00:00z", SIX),
        ("2026-11-18 06:00:00Z", SIX),
        ("2026-11-18T06:00:00.5Z", SIX + 500_000_000),
        ("2026-11-18T06:00:00.123456789Z", SIX + 123_456_789),
        ("2026-11-18T06:00:00.1234567891Z", SIX + 123_456_789),
        ("2026-11-18T07:00:00+01:00", SIX),
        ("2026-11-18T07:00:00 01:00", SIX),  # a plus sign in a query
        ("2026-11-18T01:30:00-04:30", SIX),
        ("1970-01-01T00:00:00Z", 0),
        (str(NOW_NS), NOW_NS),
        ("0000000000000005", 5),
        ("-1h", NOW_NS - 3_600_000_000_000),
        ("-1m30s", NOW_NS - 90_000_000_000),
        ("-0", NOW_NS),
    ],
)
def test_times(text, time_ns):
    assert parse_time(text, NOW_NS) == time_ns
    assert parse_position(text, NOW_NS) == LogPosition(time_ns=time_ns)


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "1h", "-1", "-1x", "2026-11-18", "2026-11-18T06:00Z", "2026-11-18T06:00:00", "2026-02-30T06:00:00Z",
        "2026-11-18T25:00:00Z", "1969-12-31T23:59:59Z", "2263-01-01T00:00:00Z", "9999999999999999999", "\u0661" * 16,
        "+1h", "1_000", "-2540400h",
    ],
)  # fmt: skip
def test_invalid_times(text):
    with pytest.raises(ValueError, match=r"."):
        parse_time(text, NOW_NS)
    with pytest.raises(ValueError, match=r"."):
        parse_position(text, NOW_NS)


def test_positions():
    assert parse_position("beginning", NOW_NS) == LogPosition("beginning")
    assert parse_position("end", NOW_NS) == LogPosition("end")
    assert parse_position("0", NOW_NS) == LogPosition(offset=0)
    assert parse_position("999999999999999", NOW_NS) == LogPosition(offset=999_999_999_999_999)
    with pytest.raises(ValueError, match="invalid time"):
        parse_time("15", NOW_NS)
