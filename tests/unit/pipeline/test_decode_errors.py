"""The reason of a dead letter says why a message could not be decoded."""

import pytest

from nsqx.pipeline.decode_errors import explain_json_error, unknown_fields


def field(name, kind):
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


SCHEMA = {
    "type": "struct",
    "fields": [
        field("number", "integer"),
        field("size", "double"),
        field("is_on", "boolean"),
        field("time", "timestamp"),
        field("name", "string"),
        field("tags", {"type": "array", "elementType": "long", "containsNull": True}),
        field("inner", {"type": "struct", "fields": [field("deep", "short")]}),
        field("counts", {"type": "map", "keyType": "string", "valueType": "byte", "valueContainsNull": True}),
    ],
}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value is empty"),
        (b"\xff", "the value is not UTF-8"),
        (b'"x"', 'the value is JSON but not an object: "x"'),
        (b'{"number": "1"}', 'field number: INT expected, found "1"'),
        (b'{"number": 2147483648}', "field number: INT expected, found 2147483648"),
        (b'{"number": true}', "field number: INT expected, found true"),
        (b'{"number": 1.5}', "field number: INT expected, found 1.5"),
        (b'{"size": "big"}', 'field size: DOUBLE expected, found "big"'),
        (b'{"size": "NaN", "is_on": 1}', "field is_on: BOOLEAN expected, found 1"),
        (b'{"name": {"any": 1}, "time": "later"}', 'field time: TIMESTAMP expected, found "later"'),
        (b'{"tags": 1}', "field tags: ARRAY expected, found 1"),
        (b'{"tags": [1, "x"]}', 'field tags[1]: BIGINT expected, found "x"'),
        (b'{"inner": {"deep": 40000}}', "field inner.deep: SMALLINT expected, found 40000"),
        (b'{"counts": {"a": 1, "b": 200}}', "field counts.b: TINYINT expected, found 200"),
        (b'{"number": 1, "size": 1, "is_on": null}', "the value does not match the schema"),
    ],
)
def test_the_reason_names_the_field(value, reason):
    assert explain_json_error(value, SCHEMA) == reason


def test_the_reason_for_invalid_json_starts_with_not_json():
    assert explain_json_error(b'{"number": }', SCHEMA).startswith("the value is not JSON: ")


def test_long_values_are_shortened_in_the_reason():
    assert explain_json_error(b'{"number": "%s"}' % (b"x" * 1000), SCHEMA).endswith("xxx…")


def test_fields_outside_the_schema_are_found():
    value = b'{"number": 1, "NAME": "x", "new": 1, "inner": {"deep": 1, "deeper": 2}, "counts": {"a": 1}}'
    assert list(unknown_fields(value, SCHEMA)) == ["new", "inner.deeper"]
    assert list(unknown_fields(b"no json", SCHEMA)) == []
    assert list(unknown_fields(b"[1]", SCHEMA)) == []
