"""Errors in test files are one line with the key; rows are compared without their order and in any notation."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install 'nsqx[spark]'")

from nsqx.errors import ConfigError  # noqa: E402
from nsqx.pipeline.case_file import case_file_of, read_cases  # noqa: E402
from nsqx.pipeline.parser import read_pipeline  # noqa: E402
from nsqx.pipeline.row_diff import compare_rows  # noqa: E402

PIPELINE = """
[pipeline]
name = "shop"
[source.orders]
topic = "orders"
format = "raw"
[sink.files]
from = "orders"
type = "json"
path = "out"
"""


def cases_of(directory, text):
    path = directory / "shop.toml"
    path.write_text(PIPELINE)
    cases = directory / "shop.test.toml"
    cases.write_text(text)
    assert case_file_of(str(path)) == str(cases)
    return read_cases(read_pipeline(str(path)), str(cases))


def test_messages_have_the_columns_of_the_data_source(tmp_path):
    (case,) = cases_of(
        tmp_path,
        """
        [[test.a.batch]]
        orders = ["${x}", { n = 1 }]
        [[test.a.batch]]
        orders = [{ _value = "y", _id = "7", _timestamp = 2026-11-15T08:00:00 }]
        [test.a.expect]
        files = []
        """,
    )
    first, second = case.batches[0]["orders"]
    (third,) = case.batches[1]["orders"]
    assert (first["value"], second["value"], third["value"]) == (b"${x}", b'{"n":1}', b"y")
    assert (first["topic"], first["timestamp"]) == ("orders", datetime(2026, 1, 1, tzinfo=UTC))
    assert second["timestamp"] == datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert len({first["id"], second["id"]}) == 2
    assert (third["id"], third["timestamp"]) == ("7", datetime(2026, 11, 15, 8, tzinfo=UTC))
    assert case.expected == {"files": []}


WRONG = {
    "": "test: a test is required",
    "[test.a.expect]\nfiles = []": "test.a.messages: set either messages or",
    "[test.a.messages]\norders = []": "test.a.expect: set the expected rows of a sink: use one of files",
    "[test.a.messages]\nclicks = []\n[test.a.expect]\nfiles = []": "test.a.messages.clicks: unknown key",
    "[test.a.messages]\norders = [1]\n[test.a.expect]\nfiles = []": "a message must be a table or a text, not 1",
    "[test.a.messages]\norders = [{_size = 1}]\n[test.a.expect]\nfiles = []": "unknown name _size: use one of _topic",
    "[test.a.messages]\norders = [{_value = 'x', n = 1}]\n[test.a.expect]\nfiles = []": "is the whole body: remove n",
    "[test.a.messages]\norders = [{_value_base64 = '?'}]\n[test.a.expect]\nfiles = []": "'?' is not base64",
    "[test.a.messages]\n[test.a.expect]\nfile = []": "test.a.expect.file: unknown key: did you mean files?",
    "[test.a.messages]\n[test.a.expect]\nfiles = ['x']": "test.a.expect.files: a row must be a table",
    "[[test.a.batch]]\n[test.a.messages]\n[test.a.expect]\nfiles = []": "set either messages or",
}


@pytest.mark.parametrize("text", WRONG)
def test_an_error_names_the_key(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        cases_of(tmp_path, text)
    assert WRONG[text] in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/shop.test.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (1, 1.0),
        (0.3, 0.1 + 0.2),
        (1.5, Decimal("1.50")),
        ("2026-11-15", date(2026, 11, 15)),
        ("2026-11-15T08:00:00+01:00", datetime(2026, 11, 15, 7, tzinfo=UTC)),
        (datetime(2026, 11, 15, 7, tzinfo=UTC), datetime(2026, 11, 15, 7, tzinfo=UTC)),
        ("ann", b"ann"),
        ({"b": 1, "a": 2}, [("a", 2), ("b", 1)]),
        ([1, {"x": None}], [1.0, {"x": None}]),
    ],
)
def test_equal_values_in_other_notations_are_equal(expected, found):
    assert not compare_rows([{"x": expected}], [{"x": found, "y": 1}], ["x", "y"])


def test_differences_are_counted_for_repeated_rows():
    diff = compare_rows([{"x": 1}, {"x": 1}, {"y": True}], [{"x": 1, "y": None}, {"x": 2, "y": None}], ["x", "y"])
    assert list(diff.lines()) == ["- x=1, y=null", "- x=null, y=true", "+ x=2, y=null"]
    assert compare_rows([], [{"x": 1}], ["x"]).unexpected == ("x=1",)
    assert compare_rows([{"z": 1}], [], ["x"]).unknown_columns == ("z",)
    assert compare_rows([{"x": True}], [{"x": 1}], ["x"])
