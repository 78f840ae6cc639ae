"""Go's text forms, compared with the output of Go."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.gotext import (
    INT64_MAX,
    INT64_MIN,
    format_duration,
    format_float,
    parse_duration_ns,
    parse_float,
    parse_int,
    quote,
)

# The tables contain the output of Go 1.26 for the same input.
DURATIONS = [
    ("0", 0),
    ("+0", 0),
    ("-0", 0),
    ("5s", 5_000_000_000),
    ("30s", 30_000_000_000),
    ("1478s", 1_478_000_000_000),
    ("-5s", -5_000_000_000),
    ("+5s", 5_000_000_000),
    ("-0s", 0),
    ("5.0s", 5_000_000_000),
    ("5.6s", 5_600_000_000),
    ("5.s", 5_000_000_000),
    (".5s", 500_000_000),
    ("1.0s", 1_000_000_000),
    ("1.00s", 1_000_000_000),
    ("1.004s", 1_004_000_000),
    ("1.0040s", 1_004_000_000),
    ("100.00100s", 100_001_000_000),
    ("10ns", 10),
    ("11us", 11_000),
    ("12µs", 12_000),
    ("12μs", 12_000),
    ("13ms", 13_000_000),
    ("14s", 14_000_000_000),
    ("15m", 900_000_000_000),
    ("16h", 57_600_000_000_000),
    ("3h30m", 12_600_000_000_000),
    ("10.5s4m", 250_500_000_000),
    ("-2m3.4s", -123_400_000_000),
    ("1h2m3s4ms5us6ns", 3_723_004_005_006),
    ("39h9m14.425s", 140_954_425_000_000),
    ("52763797000ns", 52_763_797_000),
    ("0.3333333333333333333h", 1_200_000_000_000),
    ("9007199254740993ns", 9_007_199_254_740_993),
    ("9223372036854775807ns", 9_223_372_036_854_775_807),
    ("9223372036854775.807us", 9_223_372_036_854_775_807),
    ("9223372036s854ms775us807ns", 9_223_372_036_854_775_807),
    ("-9223372036854775808ns", -9_223_372_036_854_775_808),
    ("-9223372036854775.808us", -9_223_372_036_854_775_808),
    ("0.100000000000000000000h", 360_000_000_000),
    ("0.830103483285477580700h", 2_988_372_539_827),
    ("1.0000000001s", 1_000_000_000),
    ("1.9999999999s", 1_999_999_999),
    ("0.9999999999999999999999s", 1_000_000_000),
    ("1m0s", 60_000_000_000),
    ("250ms", 250_000_000),
    ("1h30m", 5_400_000_000_000),
    ("2562047h47m16.854775807s", 9_223_372_036_854_775_807),
    ("007s", 7_000_000_000),
]

BAD_DURATIONS = [
    ("", 'time: invalid duration ""'),
    ("3", 'time: missing unit in duration "3"'),
    ("-", 'time: invalid duration "-"'),
    ("s", 'time: invalid duration "s"'),
    (".", 'time: invalid duration "."'),
    ("-.", 'time: invalid duration "-."'),
    (".s", 'time: invalid duration ".s"'),
    ("+.s", 'time: invalid duration "+.s"'),
    ("1d", 'time: unknown unit "d" in duration "1d"'),
    (" 1s", 'time: invalid duration " 1s"'),
    ("1s ", 'time: unknown unit "s " in duration "1s "'),
    ("1 s", 'time: unknown unit " s" in duration "1 s"'),
    ("1e3s", 'time: unknown unit "e" in duration "1e3s"'),
    ("1S", 'time: unknown unit "S" in duration "1S"'),
    ("1.2.3s", 'time: missing unit in duration "1.2.3s"'),
    ("--1s", 'time: invalid duration "--1s"'),
    ("+-1s", 'time: invalid duration "+-1s"'),
    ("1_0s", 'time: unknown unit "_" in duration "1_0s"'),
    ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
    ("9223372036854775.808us", 'time: invalid duration "9223372036854775.808us"'),
    ("-9223372036854775809ns", 'time: invalid duration "-9223372036854775809ns"'),
    ("3000000h", 'time: invalid duration "3000000h"'),
    ("10000000000000000000ns", 'time: invalid duration "10000000000000000000ns"'),
    ("1s0", 'time: missing unit in duration "1s0"'),
    ("0x1s", 'time: unknown unit "x" in duration "0x1s"'),
]

SHOWN_DURATIONS = [
    (0, "0s"),
    (1, "1ns"),
    (999, "999ns"),
    (1_000, "1µs"),
    (1_001, "1.001µs"),
    (1_100, "1.1µs"),
    (1_500, "1.5µs"),
    (999_999, "999.999µs"),
    (1_000_000, "1ms"),
    (2_200_000, "2.2ms"),
    (25_000_000, "25ms"),
    (250_000_000, "250ms"),
    (999_999_999, "999.999999ms"),
    (1_000_000_000, "1s"),
    (1_500_000_000, "1.5s"),
    (3_300_000_000, "3.3s"),
    (59_999_999_999, "59.999999999s"),
    (60_000_000_000, "1m0s"),
    (61_000_000_001, "1m1.000000001s"),
    (245_000_000_000, "4m5s"),
    (245_001_000_000, "4m5.001s"),
    (3_600_000_000_000, "1h0m0s"),
    (3_661_000_000_000, "1h1m1s"),
    (9_900_000_000_000, "2h45m0s"),
    (18_367_001_000_000, "5h6m7.001s"),
    (600_000_000_000, "10m0s"),
    (900_000_000_000, "15m0s"),
    (480_000_000_001, "8m0.000000001s"),
    (9_223_372_036_854_775_807, "2562047h47m16.854775807s"),
    (-9_223_372_036_854_775_808, "-2562047h47m16.854775808s"),
    (-1, "-1ns"),
    (-1_500_000_000, "-1.5s"),
    (-60_000_000_000, "-1m0s"),
]

QUOTED = [
    (b"", r'""'),
    (b"abc", r'"abc"'),
    (b"a b", r'"a b"'),
    (b'a"b', r'"a\"b"'),
    (b"a\\b", r'"a\\b"'),
    (b"'", '"\'"'),
    (b"`", r'"`"'),
    (b"\x07\x08\x0c\n\r\t\x0b", r'"\a\b\f\n\r\t\v"'),
    (b"\x00\x01\x1f\x7f", r'"\x00\x01\x1f\x7f"'),
    (b"\xc3\xa9\xe2\x98\xba\xe6\x97\xa5\xe6\x9c\xac", r'"é☺日本"'),
    (b"\xc2\xa0\xc2\xad\xe2\x80\x8b\xe2\x80\xa8\xef\xbb\xbf", r'"\u00a0\u00ad\u200b\u2028\ufeff"'),
    (b"\xef\xbf\xbd", r'"�"'),
    (b"\xf0\x9f\x98\x80", r'"😀"'),
    (b"\xf4\x8f\xbf\xbf\xf3\xa0\x80\x81", r'"\U0010ffff\U000e0001"'),
    (b"\xee\x80\x80", r'"\ue000"'),
    (b"\xff", r'"\xff"'),
    (b"\xc3", r'"\xc3"'),
    (b"a\xe2\x82A", r'"a\xe2\x82A"'),
    (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),
    (b"\xc0\x80", r'"\xc0\x80"'),
    (b"\xf4\x90\x80\x80", r'"\xf4\x90\x80\x80"'),
    (b"\xe2\x82\xac\x80", r'"€\x80"'),
    (b"\xc2\x85", r'"\u0085"'),
    (b"\xcd\xb8", r'"\u0378"'),
    (b"\xe3\x80\x80", r'"\u3000"'),
    (b"e\xcc\x81", r'"é"'),
]

INTEGERS = [
    ("0", 0),
    ("-0", 0),
    ("+0", 0),
    ("1", 1),
    ("-1", -1),
    ("+7", 7),
    ("10000", 10_000),
    ("00", 0),
    ("017", 15),
    ("0o17", 15),
    ("0O17", 15),
    ("0x1F", 31),
    ("0X1f", 31),
    ("-0x10", -16),
    ("0b101", 5),
    ("-0B11", -3),
    ("1_000", 1_000),
    ("0x_1", 1),
    ("0x1_f", 31),
    ("0_7", 7),
    ("0b_1", 1),
    ("1_0_0", 100),
    ("9223372036854775807", 9_223_372_036_854_775_807),
    ("-9223372036854775808", -9_223_372_036_854_775_808),
    ("0x7fffffffffffffff", 9_223_372_036_854_775_807),
]

BAD_INTEGERS = [
    ("9223372036854775808", "value out of range"),
    ("-9223372036854775809", "value out of range"),
    ("99999999999999999999", "value out of range"),
    ("0xffffffffffffffff", "value out of range"),
    ("", "parse error"),
    ("-", "parse error"),
    ("+", "parse error"),
    ("abc", "parse error"),
    ("1.5", "parse error"),
    ("1e3", "parse error"),
    (" 1", "parse error"),
    ("1 ", "parse error"),
    ("_1", "parse error"),
    ("1_", "parse error"),
    ("1__0", "parse error"),
    ("0x", "parse error"),
    ("0x_", "parse error"),
    ("0b", "parse error"),
    ("0b2", "parse error"),
    ("08", "parse error"),
    ("0o8", "parse error"),
    ("0_", "parse error"),
    ("--1", "parse error"),
    ("+-1", "parse error"),
    ("1a", "parse error"),
    ("٣", "parse error"),
    ("0xg", "parse error"),
    ("1,000", "parse error"),
    ("_", "parse error"),
    ("0__7", "parse error"),
]

FLOATS = [
    ("1", "1"),
    ("0.5", "0.5"),
    ("1.0", "1"),
    ("-1.5", "-1.5"),
    ("+2", "2"),
    (".5", "0.5"),
    ("5.", "5"),
    ("1e3", "1000"),
    ("1E-3", "0.001"),
    ("0x1p-2", "0.25"),
    ("0x1.8p1", "3"),
    ("inf", "+Inf"),
    ("-Inf", "-Inf"),
    ("+infinity", "+Inf"),
    ("NaN", "NaN"),
    ("nan", "NaN"),
    ("1e308", "1e+308"),
    ("0", "0"),
    ("-0", "-0"),
    ("4.9e-324", "5e-324"),
    ("1e-400", "0"),
    ("0x.8p0", "0.5"),
    ("1_0", "10"),
    ("0x_1p0", "1"),
]

BAD_FLOATS = [
    ("1e400", "value out of range"),
    ("", "parse error"),
    (".", "parse error"),
    ("-", "parse error"),
    ("e3", "parse error"),
    ("1e", "parse error"),
    ("abc", "parse error"),
    (" 1", "parse error"),
    ("1 ", "parse error"),
    ("0x1", "parse error"),
    ("1,5", "parse error"),
    ("+nan", "parse error"),
    ("infi", "parse error"),
    ("1d", "parse error"),
    ("0xp1", "parse error"),
    ("٣", "parse error"),
    ("0x1p", "parse error"),
]

SHOWN_FLOATS = [
    (0e00, "0"),
    (-0e00, "-0"),
    (1e00, "1"),
    (2e00, "2"),
    (-1e00, "-1"),
    (5e-01, "0.5"),
    (1.5e00, "1.5"),
    (1e-01, "0.1"),
    (9.9e-01, "0.99"),
    (1e-03, "0.001"),
    (1e-04, "0.0001"),
    (1e-05, "1e-05"),
    (1.5e-07, "1.5e-07"),
    (1e06, "1e+06"),
    (1.23456789e08, "1.23456789e+08"),
    (1e15, "1e+15"),
    (1e16, "1e+16"),
    (1e20, "1e+20"),
    (1e21, "1e+21"),
    (1.5e300, "1.5e+300"),
    (-2.5e-01, "-0.25"),
    (5e-324, "5e-324"),
    (float("+inf"), "+Inf"),
    (float("-inf"), "-Inf"),
    (float("nan"), "NaN"),
    (1.2345678901234567e19, "1.2345678901234567e+19"),
    (1.000005e05, "100000.5"),
]


@pytest.mark.parametrize(("text", "duration_ns"), DURATIONS)
def test_parse_duration(text, duration_ns):
    assert parse_duration_ns(text) == duration_ns


@pytest.mark.parametrize(("text", "error"), BAD_DURATIONS)
def test_parse_duration_rejects(text, error):
    with pytest.raises(ValueError) as caught:
        parse_duration_ns(text)
    assert str(caught.value) == error


@pytest.mark.parametrize("text", ["1\u0663s", "\udc85s", "\u0663s", "9" * 5000 + "s"])
def test_parse_duration_rejects_unicode_digits_and_long_numbers(text):
    with pytest.raises(ValueError):
        parse_duration_ns(text)


@pytest.mark.parametrize(("duration_ns", "text"), SHOWN_DURATIONS)
def test_format_duration(duration_ns, text):
    assert format_duration(duration_ns) == text


# Below 2**53 ns the fraction of a second is exact in Go's float arithmetic.
@given(st.integers(-(1 << 53), 1 << 53))
def test_a_formatted_duration_parses_back(duration_ns):
    assert parse_duration_ns(format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize(("text", "value"), INTEGERS)
def test_parse_int(text, value):
    assert parse_int(text) == value


@pytest.mark.parametrize(("text", "error"), BAD_INTEGERS)
def test_parse_int_rejects(text, error):
    with pytest.raises(ValueError) as caught:
        parse_int(text)
    assert str(caught.value) == error


def test_parse_int_rejects_a_number_too_long_for_python():
    with pytest.raises(ValueError, match="^value out of range$"):
        parse_int("9" * 5000)


@given(st.integers(INT64_MIN, INT64_MAX))
def test_every_int64_parses_in_every_base(value):
    assert parse_int(str(value)) == parse_int(hex(value)) == parse_int(oct(value)) == parse_int(bin(value)) == value


@pytest.mark.parametrize(("text", "shown"), FLOATS)
def test_parse_float(text, shown):
    assert format_float(parse_float(text)) == shown


@pytest.mark.parametrize(("text", "error"), BAD_FLOATS)
def test_parse_float_rejects(text, error):
    with pytest.raises(ValueError) as caught:
        parse_float(text)
    assert str(caught.value) == error


def test_parse_float_rejects_a_hexadecimal_out_of_range():
    with pytest.raises(ValueError, match="^value out of range$"):
        parse_float("0x1p5000")


@pytest.mark.parametrize(("value", "text"), SHOWN_FLOATS)
def test_format_float(value, text):
    assert format_float(value) == text


@given(st.floats(allow_nan=False))
def test_a_formatted_float_parses_back(value):
    again = parse_float(format_float(value))
    assert again == value
    assert math.copysign(1, again) == math.copysign(1, value)


@pytest.mark.parametrize(("data", "quoted"), QUOTED)
def test_quote_bytes(data, quoted):
    assert quote(data) == quoted


@pytest.mark.parametrize(("data", "quoted"), QUOTED)
def test_quote_accepts_text_with_escaped_bytes_as_in_argv(data, quoted):
    assert quote(data.decode("utf-8", "surrogateescape")) == quoted


def test_quote_shows_a_lone_surrogate_as_its_bytes():
    assert quote("\ud800") == r'"\xed\xa0\x80"'
