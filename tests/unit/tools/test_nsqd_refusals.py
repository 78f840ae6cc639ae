"""The refusals of nsqd in words."""

import pytest

from nsqx.cluster.http import body_of
from nsqx.errors import RequestFailed
from nsqx.net.http_client import HTTPAnswer
from nsqx.tools.nsqd_refusals import refusal_text


def failure(status, body):
    with pytest.raises(RequestFailed) as found:
        body_of(HTTPAnswer(status, {}, body))
    return found.value


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (404, b'{"message":"TOPIC_NOT_FOUND"}', "the topic does not exist there"),
        (410, b'{"message":"OFFSET_GONE","first":7}', "messages before the offset 7 were removed"),
        (410, b'{"message":"OFFSET_GONE"}', "the answer is 410 Gone, OFFSET_GONE"),
        (416, b'{"message":"OFFSET_BEYOND_END","end":7}', "the log ends at the offset 7"),
        (500, b"oops", "the answer is 500 Internal Server Error"),
        (500, b"[1]", "the answer is 500 Internal Server Error"),
        (400, b'{"message":"OTHER"}', "the answer is 400 Bad Request, OTHER"),
    ],
)
def test_texts(status, body, text):
    assert refusal_text(failure(status, body)) == text


def test_the_code_and_the_numbers_of_a_refusal():
    found = failure(410, b'{"message":"OFFSET_GONE","first":7,"x":"y","flag":true}')
    assert (found.code, found.numbers, found.status) == ("OFFSET_GONE", {"first": 7}, 410)
    assert (failure(500, b"oops").code, failure(500, b'{"message":5}').code) == ("", "")
