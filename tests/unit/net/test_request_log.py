"""The log lines of requests."""

from typing import Any

from nsqx.net.http_head import Head
from nsqx.net.request_log import failure_line, request_line
from nsqx.net.requests import Request
from nsqx.net.responses import error_response


class Peer:
    remote = "127.0.0.1:51554"
    tls = None

    def answered(self, request: Any) -> None:
        raise AssertionError


def request_for(target: bytes) -> Request:
    request = Request(Peer(), Head("POST", target, {}))
    request.response = error_response(404, "NOT_FOUND")
    return request


def test_the_request_line_has_the_form_of_nsqd() -> None:
    line = request_line(request_for(b"/topic/create?topic=a%20b"), 10_726)
    assert line == "404 POST /topic/create?topic=a%20b (127.0.0.1:51554) 10.726µs"


def test_a_failure_is_one_line_with_its_location() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        line = failure_line(request_for(b"/a%0Ab"), error)
    assert "\n" not in line
    assert line.startswith("panic in HTTP handler - POST '/a\\nb': ValueError: first second at ")
    assert "test_request_log.py:" in line
