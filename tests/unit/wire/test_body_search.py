"""Searching message bodies."""

import json

import pytest

from nsqx.wire.body_search import BodySearch, decoded


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("李雷", json.dumps({"name": "李雷"}).encode()),
        ("李雷", json.dumps({"name": "李雷"}, ensure_ascii=False).encode()),
        ("😀", json.dumps(["😀"]).encode()),
        ("GRÜSSE", json.dumps({"a": "grüße"}).encode()),
        ("a/b", b'{"path": "a\\/b"}'),
        ('say "hi"', json.dumps({"text": 'say "hi"'}).encode()),
        ("\\u674e", json.dumps({"name": "李"}).encode()),
        ("two\nlines", json.dumps("two\nlines").encode()),
        ("needle", b"\xff\xfe needle \x00"),
        ("", b"anything"),
    ],
)
def test_the_text_is_found(text: str, body: bytes) -> None:
    assert BodySearch(text).finds(body)


@pytest.mark.parametrize(("text", "body"), [("李", b"{}"), ("A", b"not json \\u0041"), ("x", b""), ("x", b"\xff")])
def test_the_text_is_not_found(text: str, body: bytes) -> None:
    assert not BodySearch(text).finds(body)


@pytest.mark.parametrize("body", ['{"a": "\\ud83d"}', '["\\ude00\\ud83d"]', '"\\u12', "{\\"])
def test_invalid_escapes_are_ignored(body: str) -> None:
    decoded(body).encode()
