"""Searching messages."""

import json

import pytest

from nsqx.nsqadmin.search import Search

ID = "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("NEEDLE", b"a needle"),
        ("\u674e\u96f7", json.dumps({"name": "\u674e\u96f7"}).encode()),
        (ID, b"its id"),
        (ID.upper(), b"its id"),
        ("", b"anything"),
    ],
)
def test_a_message_is_found_by_its_body_or_its_id(text: str, body: bytes) -> None:
    assert Search(text).finds(ID, body)


@pytest.mark.parametrize("text", ["needle", ID[:-1], ID + "0"])
def test_a_message_is_not_found_by_another_text_or_a_part_of_its_id(text: str) -> None:
    assert not Search(text).finds(ID, b"its id")
