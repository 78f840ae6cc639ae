"""The messages in the answer of /peek, and its limits."""

import json

import pytest

from nsqx.nsqd import peek
from nsqx.nsqd.peek import PeekCollector, PeekRequest


def collect(*bodies, **request):
    """Return the shown bodies, how many messages were looked at, and whether the request is complete."""
    collector = PeekCollector(PeekRequest(**request))
    for body in bodies:
        if not collector.add(body, {}):
            break
    shown = [message.get("text", message.get("base64")) for message in collector.messages]
    return shown, collector.scanned, collector.is_complete


def test_the_answer_ends_at_the_count():
    assert collect(b"1", b"2", b"3", count=2) == (["1", "2"], 2, True)
    collector = PeekCollector(PeekRequest(count=1))
    assert not collector.is_full
    assert collector.add(b"1", {"id": "x"})
    assert collector.is_full
    assert not collector.add(b"2", {})
    assert collector.messages == [{"id": "x", "size": 1, "text": "1"}]


def test_the_answer_ends_at_its_size():
    assert collect(b"12", b"34", b"5", max_bytes=4) == (["12", "34"], 2, False)
    assert collect(b"123456", b"7", max_bytes=4) == (["1234"], 1, False)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"abcdef", {"text": "abcd", "truncated": True}),
        (b"abc\xc3\xa9f", {"text": "abc", "truncated": True}),
        (b"\xff23456", {"base64": "/zIzNA==", "truncated": True}),
        (b"\xff", {"base64": "/w=="}),
        (b"", {"text": ""}),
    ],
)
def test_bodies(body, fields):
    collector = PeekCollector(PeekRequest(max_bytes=4))
    collector.add(body, {})
    assert collector.messages == [{"size": len(body), **fields}]


@pytest.mark.parametrize("needle", ["wor", "WOR"])
def test_a_search_ignores_case(needle):
    expected = (["Hello World", "eP93T3I="], 3, True)
    assert collect(b"Hello World", b"x\xffwOr", b"wo r", contains=needle) == expected


def test_a_search_decodes_the_escapes_of_json():
    escaped = json.dumps({"name": "\u674e\u96f7"})
    plain = json.dumps({"name": "\u674e\u96f7"}, ensure_ascii=False)
    other = json.dumps({"name": "\u674e"})
    bodies = [text.encode() for text in (escaped, plain, other)]
    assert collect(*bodies, contains="\u674e\u96f7") == ([escaped, plain], 3, True)
    assert collect(*bodies, contains="\\u674E\\U96F7") == ([escaped], 3, True)
    assert collect(b"not json \\u674e", contains="\u674e") == ([], 1, True)


def test_a_search_looks_at_a_limited_number(monkeypatch):
    monkeypatch.setattr(peek, "MAX_SCANNED", 3)
    assert collect(b"a", b"b", b"c", b"d", contains="d") == ([], 3, False)
    assert collect(b"a", b"b", b"c", contains="c") == (["c"], 3, True)
    monkeypatch.setattr(peek, "_MAX_SCANNED_BYTES", 2)
    assert collect(b"a", b"b", b"c", b"d", contains="d") == ([], 2, False)


def test_other_messages_count_as_looked_at(monkeypatch):
    monkeypatch.setattr(peek, "MAX_SCANNED", 2)
    collector = PeekCollector(PeekRequest())
    assert [collector.pass_over(b"x") for _ in range(3)] == [True, True, False]
    assert (collector.scanned, collector.is_complete) == (2, False)
