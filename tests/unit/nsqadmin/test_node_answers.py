"""Failures of nodes in plain words."""

import pytest

from nsqx.cluster.http import body_of
from nsqx.errors import RequestFailed
from nsqx.net.http_client import HTTPAnswer
from nsqx.nsqadmin.node_answers import explain


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (b'{"message":"NOT_FOUND"}', "NOT_AVAILABLE", "does not have this function"),
        (b'{"message":"METHOD_NOT_ALLOWED"}', "NOT_AVAILABLE", "does not have this function"),
        (b'{"message":"OFFSET_GONE","first":81920}', "OFFSET_GONE", "first offset is 81920"),
        (b'{"message":"OFFSET_BEYOND_END","end":7}', "OFFSET_BEYOND_END", "end is 7"),
        (b'{"message":"NOT_A_LOG"}', "NOT_A_LOG", "has no log"),
        (b'{"message":"SOMETHING_NEW"}', "SOMETHING_NEW", "the answer is 400"),
        (b"[]", "FAILED", "the answer is 400"),
        (b"no JSON", "FAILED", "the answer is 400"),
        (b'{"message":5}', "FAILED", "the answer is 400"),
    ],
)
def test_an_error_of_nsqd_is_explained(answer: bytes, code: str, text: str) -> None:
    with pytest.raises(RequestFailed) as caught:
        body_of(HTTPAnswer(400, body=answer))
    found, words = explain(caught.value)
    assert found == code
    assert text in words


def test_an_nsqd_that_does_not_answer_is_named_so() -> None:
    code, text = explain(RequestFailed("connection refused"))
    assert (code, text) == ("UNREACHABLE", "This nsqd does not answer: connection refused")
