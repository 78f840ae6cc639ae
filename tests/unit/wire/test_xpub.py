"""The body and the answer of XPUB, as client and nsqd exchange them."""

import pytest

from nsqx.wire import encode
from nsqx.wire.xpub import (
    XpubAnswer,
    XpubRequest,
    decode_xpub,
    decode_xpub_answer,
    encode_xpub,
    encode_xpub_answer,
    publish_extended_line,
)

ITEMS = b"\0\0\0\3one\0\0\0\1x"


@pytest.mark.parametrize(
    ("options", "request_"),
    [
        ({}, XpubRequest(ITEMS, 2)),
        ({"producer": "billing-1", "seq": 2**62 - 1}, XpubRequest(ITEMS, 2, "billing-1", 2**62 - 1)),
        ({"sync": True, "defer": 5}, XpubRequest(ITEMS, 2, "", 0, True, 5)),
    ],
)
def test_a_body_is_decoded_as_it_was_encoded(options, request_):
    assert decode_xpub(encode_xpub(options, encode.join_batch([b"one", b"x"])), 1000, 100) == request_


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        (XpubAnswer(0, 2, False), b'{"offset":0,"count":2}'),
        (XpubAnswer(7, 1, True), b'{"offset":7,"count":1,"duplicate":true}'),
        (XpubAnswer(-1, 1, True), b'{"count":1,"duplicate":true}'),
    ],
)
def test_an_answer(answer, data):
    assert encode_xpub_answer(answer) == data
    assert decode_xpub_answer(data) == answer


@pytest.mark.parametrize("data", [b"OK", b"[]", b"{}", b'{"count":"1"}', b"CLOSE_WAIT"])
def test_what_is_not_an_answer_is_refused(data):
    with pytest.raises(ValueError, match=r".+"):
        decode_xpub_answer(data)


def test_the_line():
    assert publish_extended_line("orders") == b"XPUB orders\n"
