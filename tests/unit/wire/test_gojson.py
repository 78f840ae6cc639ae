"""JSON decoded as Go's decoder decodes it into a struct."""

import pytest

from nsqx.wire.gojson import InvalidJSON, decode_fields

KINDS = {"name": str, "count": int, "on": bool}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b'{"name":"a","count":-5,"on":true}', {"name": "a", "count": -5, "on": True}),
        (b'{"NAME":"a","Count":1}', {"name": "a", "count": 1}),
        (b'{"name":"a","name":"b"}', {"name": "b"}),
        (b'{"name":"a","Name":null}', {"name": "a"}),
        (b'{"other":[1,{"x":null}]}', {}),
        (b" \r\n\tnull ", {}),
        (b"{}", {}),
        (b'{"count":-0}', {"count": 0}),
        (b'{"count":9223372036854775807}', {"count": 2**63 - 1}),
        (b'{"count":-9223372036854775808}', {"count": -(2**63)}),
        (b'{"name":"\xff"}', {"name": "\ufffd"}),
        (b'{"name":"\\ud800"}', {"name": "\ufffd"}),
        (b'{"name":"\\ud83d\\ude00"}', {"name": "\U0001f600"}),
    ],
)
def test_fields_are_decoded_as_go_does(body, fields):
    found = decode_fields(body, KINDS)
    assert found == fields
    assert {name: type(value) for name, value in found.items()} == {name: KINDS[name] for name in fields}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b'"x"',
        b"5",
        b"true",
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b'{"x":NaN}',
        b'{"x":Infinity}',
        b'{"x":"\n"}',
        b'{"count":"1"}',
        b'{"count":1.0}',
        b'{"count":1e3}',
        b'{"count":true}',
        b'{"count":9223372036854775808}',
        b'{"count":-9223372036854775809}',
        b'{"count":' + b"1" * 5000 + b"}",
        b'{"on":1}',
        b'{"name":1}',
        b'{"name":["a"]}',
        b'{"name":1,"name":"a"}',
        b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:30]),
)
def test_invalid_json_is_refused(body):
    with pytest.raises(InvalidJSON):
        decode_fields(body, KINDS)
