"""Bodies and queries are decoded as in Go."""

import pytest

from nsqx.errors import HTTPError
from nsqx.nsqadmin.request_context import query_fault, read_fields, text_response

KINDS = {"topic": str, "count": int, "on": bool}


def fault(body: bytes) -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        read_fields(body, KINDS)
    return caught.value.status, caught.value.code


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b'{"topic":"t"}', {"topic": "t"}),
        (b' {"TOPIC":"t", "other": [1]} trailing', {"topic": "t"}),
        (b'{"topic":"a","topic":"b"}', {"topic": "b"}),
        (b'{"topic":null,"count":5,"on":true}', {"count": 5, "on": True}),
        (b"null", {}),
        (b"{}{}", {}),
    ],
)
def test_valid_bodies_are_decoded(body: bytes, fields: dict[str, object]) -> None:
    assert read_fields(body, KINDS) == fields


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "EOF"),
        (b" \n", "EOF"),
        (b"{", "unexpected EOF"),
        (b'{"topic":"t', "unexpected EOF"),
        (b'{"topic":', "unexpected EOF"),
        (b"x", "invalid character 'x' looking for beginning of value"),
        (b'{"topic":x}', "invalid character 'x' looking for beginning of value"),
        (b"[]", "json: cannot unmarshal array into an object"),
        (b'"t"', "json: cannot unmarshal string into an object"),
        (b"true", "json: cannot unmarshal bool into an object"),
        (b'{"topic":1}', "json: cannot unmarshal number into Go struct field .topic of type string"),
        (b'{"count":"x"}', "json: cannot unmarshal string into Go struct field .count of type int"),
        (b'{"count":true}', "json: cannot unmarshal bool into Go struct field .count of type int"),
        (b'{"on":{}}', "json: cannot unmarshal object into Go struct field .on of type bool"),
    ],
)
def test_invalid_bodies_are_rejected(body: bytes, text: str) -> None:
    assert fault(body) == (400, text)


def test_deep_nesting_is_rejected() -> None:
    assert fault(b"[" * 200_000)[0] == 400


def test_malformed_queries_have_the_messages_of_go() -> None:
    assert query_fault(b"a=%zz") == 'invalid URL escape "%zz"'
    assert query_fault(b"a=1&b=%2") == 'invalid URL escape "%2"'
    assert query_fault(b"a;b&c=%zz") == "invalid semicolon separator in query"


def test_an_empty_text_has_no_content_type() -> None:
    assert "content-type" not in text_response("").headers
    assert text_response("x").headers["content-type"] == "text/plain; charset=utf-8"
