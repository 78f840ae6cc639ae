"""The encoding of responses. The headers were recorded from Go's nsqd 1.3.0."""

import re
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from http_doubles import Answer, read_answers
from nsqx.net import responses
from nsqx.net.responses import (
    EMPTY,
    OK,
    Response,
    error_response,
    json_response,
    method_not_allowed,
    options_response,
    plain_response,
    redirect_response,
    refusal_response,
    text_response,
)

TEXT = {"content-type": "text/plain; charset=utf-8"}
JSON = {"content-type": "application/json; charset=utf-8"}
HTML = {"content-type": "text/html; charset=utf-8"}
NSQ = {"x-nsq-content-type": "nsq; version=1.0"}


def sent(response: Response) -> Answer:
    """Return what a client receives, without the headers that every answer has."""
    (answer,) = read_answers(response.wire())
    assert answer.headers.pop("content-length") == str(len(answer.body))
    assert re.fullmatch(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", answer.headers["date"])
    parsedate_to_datetime(answer.headers.pop("date"))
    return answer


def test_the_answer_to_pub() -> None:
    assert sent(OK) == Answer(200, b"OK", TEXT | NSQ)


def test_the_answer_to_ping() -> None:
    assert sent(plain_response(200, "OK")) == Answer(200, b"OK", TEXT)
    assert sent(plain_response(500, "NOK - disk full")) == Answer(500, b"NOK - disk full", TEXT)


def test_the_answer_to_an_admin_request() -> None:
    assert sent(EMPTY) == Answer(200, b"", NSQ)


def test_a_json_answer() -> None:
    """The answer to /info, /stats?format=json, and /config of an option that is not a string."""
    assert sent(json_response({"a": [1, None]})) == Answer(200, b'{"a":[1,null]}', JSON | NSQ)
    assert sent(json_response(2)) == Answer(200, b"2", JSON | NSQ)


def test_a_text_answer() -> None:
    """The answer to /stats as text, and /config of a string; an empty one has no Content-Type."""
    assert sent(text_response("vm")) == Answer(200, b"vm", TEXT | NSQ)
    assert sent(text_response("é")) == Answer(200, "é".encode(), TEXT | NSQ)
    assert sent(text_response("")) == Answer(200, b"", NSQ)


@pytest.mark.parametrize(
    ("status", "code"), [(400, "MSG_EMPTY"), (404, "NOT_FOUND"), (413, "MSG_TOO_BIG"), (500, "INTERNAL_ERROR")]
)
def test_an_error_answer(status: int, code: str) -> None:
    assert sent(error_response(status, code)) == Answer(status, b'{"message":"%b"}' % code.encode(), JSON | NSQ)


def test_error_texts_are_escaped() -> None:
    assert sent(error_response(400, 'a "b"\n')).body == b'{"message":"a \\"b\\"\\n"}'


def test_the_answer_to_an_invalid_request() -> None:
    assert sent(refusal_response(400, "BAD_REQUEST")) == Answer(400, b'{"message":"BAD_REQUEST"}', JSON)


def test_405_names_the_allowed_methods() -> None:
    answer = sent(method_not_allowed("GET, OPTIONS"))
    assert answer == Answer(405, b'{"message":"METHOD_NOT_ALLOWED"}', {"allow": "GET, OPTIONS"} | JSON | NSQ)


def test_the_answer_to_options() -> None:
    assert sent(options_response("OPTIONS, POST")) == Answer(200, b"", {"allow": "OPTIONS, POST"})
    assert sent(options_response("")) == Answer(200, b"")


def test_a_redirect_keeps_the_method() -> None:
    body = b'<a href="/ping?x=1">Moved Permanently</a>.\n\n'
    assert sent(redirect_response("GET", "/ping?x=1")) == Answer(301, body, {"location": "/ping?x=1"} | HTML)
    assert sent(redirect_response("POST", "/pub?topic=a")) == Answer(307, b"", {"location": "/pub?topic=a"})


def test_the_page_of_a_redirect_is_escaped() -> None:
    assert b'href="/ping?&quot;&gt;&lt;b&gt;"' in redirect_response("GET", '/ping?"><b>').body


def test_the_reason_phrase_of_413_is_that_of_go() -> None:
    assert error_response(413, "MSG_TOO_BIG").wire().startswith(b"HTTP/1.1 413 Request Entity Too Large\r\n")


@pytest.mark.parametrize(
    ("http10", "keep_alive", "version", "connection"),
    [
        (False, True, "HTTP/1.1", None),
        (False, False, "HTTP/1.1", "close"),
        (True, True, "HTTP/1.0", "keep-alive"),
        (True, False, "HTTP/1.0", None),
    ],
)
def test_answers_for_http10_and_closing_clients(
    http10: bool, keep_alive: bool, version: str, connection: str | None
) -> None:
    (answer,) = read_answers(OK.wire_for(http10=http10, keep_alive=keep_alive, with_body=True))
    assert answer.version == version
    assert answer.headers.get("connection") == connection
    assert answer.body == b"OK"


def test_an_answer_to_head_has_the_length_but_no_body() -> None:
    data = OK.wire_for(http10=False, keep_alive=True, with_body=False)
    assert data.endswith(b"\r\n\r\n")
    (answer,) = read_answers(data, to_heads=1)
    assert answer.headers["content-length"] == "2"


def test_encoded_answers_are_cached_for_a_second(monkeypatch: Any) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr(responses, "time", lambda: now)
    first = OK.wire()
    now += 0.9
    assert OK.wire() is first
    now += 0.1
    assert b"Date: Tue, 14 Nov 2023 22:13:21 GMT\r\n" in OK.wire()


def test_a_line_break_in_a_header_is_an_error() -> None:
    with pytest.raises(ValueError):
        Response(200, b"", None, (("Location", "/\r\nX: y"),))
    with pytest.raises(ValueError):
        Response(200, b"", "text/plain\n", ())
