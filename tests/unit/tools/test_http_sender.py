from urllib.parse import urlsplit

import pytest

from nsqx.errors import ConfigError
from nsqx.tools.http_sender import check_url, encode_request


def encoded(method: str, url: str, headers: dict[str, str] | None = None, body: bytes = b"") -> list[bytes]:
    return encode_request(method, urlsplit(url), headers or {}, body).split(b"\r\n")


def test_a_post_has_length_headers_and_body() -> None:
    lines = encoded("POST", "http://h:80/p?a=b", {"X": "1"}, b"\xff")
    assert lines[0] == b"POST /p?a=b HTTP/1.1"
    assert {b"Host: h:80", b"Content-Length: 1", b"X: 1"} <= set(lines)
    assert lines[-1] == b"\xff"


def test_a_get_has_no_content_length() -> None:
    assert not [line for line in encoded("GET", "http://h") if line.startswith(b"Content-Length")]
    assert encoded("GET", "http://h?q")[0] == b"GET /?q HTTP/1.1"


def test_a_given_header_replaces_the_default_regardless_of_case() -> None:
    lines = encoded("GET", "http://u:p%40@h/", {"accept-encoding": "identity", "authorization": "Bearer x"})
    assert [line for line in lines if line.lower().startswith((b"accept", b"auth"))] == [
        b"authorization: Bearer x",
        b"accept-encoding: identity",
    ]


def test_user_and_password_in_the_url_become_basic_authorization() -> None:
    lines = encoded("GET", "http://u:p%40@h/")
    assert b"Authorization: Basic dTpwQA==" in lines
    assert b"Host: h" in lines


def test_non_ascii_characters_in_the_url_are_escaped() -> None:
    assert encoded("GET", "http://h/\u00e9%20?q=\u00e9")[0] == b"GET /%C3%A9%20?q=%C3%A9 HTTP/1.1"


@pytest.mark.parametrize("url", ["", "h:80", "ftp://h", "http://", "http://h:port", "http://h/a b", "http://h:99999"])
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        check_url(url)
