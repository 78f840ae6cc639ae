"""An envelope keeps payload and headers, and every other body stays as it is."""

import json

import pytest

pytest.importorskip("faststream", reason="pip install faststream")

from nsqx.adapters.faststream.envelope import seal, unseal  # noqa: E402


@pytest.mark.parametrize("payload", [b"", b"hello", "grüße".encode(), b'{"a": 1}', bytes(range(256))])
def test_payload_and_headers_survive(payload: bytes) -> None:
    headers = {"content-type": "text/plain", "count": 3, "nested": {"a": [1, None]}}
    assert unseal(seal(payload, headers)) == (payload, headers)


def test_the_envelope_is_the_documented_json() -> None:
    envelope = {"faststream": 1, "headers": {"a": "b"}, "data": "hello"}
    assert json.loads(seal(b"hello", {"a": "b"})) == envelope
    assert json.loads(seal(b"\xff", {})) == {"faststream": 1, "headers": {}, "data_base64": "/w=="}
    # Other clients may write the members in any order, and leave out the headers.
    assert unseal(json.dumps(dict(reversed(envelope.items())), indent=1).encode()) == (b"hello", {"a": "b"})
    assert unseal(b'{"faststream":1,"data":"hello"}') == (b"hello", {})


def test_headers_that_json_does_not_have_become_text() -> None:
    assert unseal(seal(b"x", {"error": ValueError("no"), 1: 2}))[1] == {"error": "no", "1": 2}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"{",
        b'{"data": "hello", "headers": {}}',
        b'["faststream"]',
        b'{"faststream": 2, "headers": {}, "data": "a later version"}',
        b'{"faststream": 1, "headers": []  , "data": "hello"}',
        b'{"faststream": 1, "headers": {}}',
        b'{"faststream": 1, "headers": {}, "data": 3}',
        b'{"faststream": 1, "headers": {}, "data_base64": "*"}',
        b'{"faststream": 1, "headers": {}, "data": "cut',
        b'{"text": "\\"faststream\\""}',
    ],
)
def test_any_other_body_is_a_plain_message(body: bytes) -> None:
    assert unseal(body) == (body, {})
