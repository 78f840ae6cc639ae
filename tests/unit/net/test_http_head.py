"""Request heads: which are accepted, their meaning, and which are rejected."""

import pytest

from nsqx.errors import HTTPError
from nsqx.net.http_head import MAX_HEADERS, Head, parse_head, parse_query, split_target


def head_of(*lines: str, line: str = "GET /p HTTP/1.1", host: bool = True) -> Head:
    return parse_head("\r\n".join([line, *(["Host: x"] if host else []), *lines, "", ""]).encode("latin-1"))


def refusal_of(raw: bytes) -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        parse_head(raw)
    assert caught.value.__notes__, "the log has no reason"
    return caught.value.status, caught.value.code


def test_a_plain_get_is_parsed() -> None:
    head = head_of("Accept: */*", line="GET /stats?format=json HTTP/1.1")
    assert (head.method, head.path, head.raw_query) == ("GET", "/stats", b"format=json")
    assert head.headers == {b"host": b"x", b"accept": b"*/*"}
    assert (head.content_length, head.chunked, head.expects_continue) == (0, False, False)
    assert (head.keep_alive, head.http10, head.ordinary) == (True, False, True)


def test_content_length_is_parsed() -> None:
    assert head_of("Content-Length: 12").content_length == 12
    assert head_of("Content-Length:\t0012  ").content_length == 12
    assert head_of("Content-Length: 18446744073709551615").content_length == 2**64 - 1
    assert head_of("Transfer-Encoding: Chunked").chunked


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        ("1.1", None, True),
        ("1.1", "close", False),
        ("1.1", "Keep-Alive", True),
        ("1.1", "keep-alive, close", False),
        ("1.0", None, False),
        ("1.0", "close", False),
        ("1.0", "keep-alive", True),
    ],
)
def test_keep_alive_depends_on_version_and_header(version: str, connection: str | None, kept: bool) -> None:
    head = head_of(*([f"Connection: {connection}"] if connection else []), line=f"GET / HTTP/{version}")
    assert head.keep_alive is kept
    assert head.http10 is (version == "1.0")
    assert head.ordinary is (kept and version == "1.1")


def test_keep_alive_does_not_depend_on_the_body() -> None:
    assert not head_of("Connection: close", "Content-Length: 3", line="POST / HTTP/1.1").keep_alive
    assert head_of("Connection: keep-alive", "Content-Length: 3", line="POST / HTTP/1.0").keep_alive


def test_an_answer_to_head_is_not_ordinary() -> None:
    assert not head_of(line="HEAD /p HTTP/1.1").ordinary


def test_http10_needs_no_host() -> None:
    assert head_of(line="GET / HTTP/1.0", host=False).http10


def test_the_expect_header_is_parsed() -> None:
    assert head_of("Content-Length: 1", "Expect: 100-Continue").expects_continue
    assert head_of("Transfer-Encoding: chunked", "Expect: 100-continue").expects_continue
    assert not head_of("Expect: 100-continue").expects_continue
    assert not head_of("Content-Length: 1", "Expect: 100-continue", line="POST / HTTP/1.0").expects_continue


def test_an_upgrade_is_ignored_and_the_body_is_kept() -> None:
    """java.net.http offers HTTP/2 with every request, bodies included."""
    head = head_of(
        "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "Content-Length: 5", line="POST /pub HTTP/1.1"
    )
    assert (head.content_length, head.keep_alive) == (5, True)


def test_connect_is_the_last_request() -> None:
    head = head_of(line="CONNECT example.com:80 HTTP/1.1")
    assert (head.path, head.keep_alive) == ("", False)


def test_the_first_value_of_a_repeated_header_counts() -> None:
    assert head_of("X: a", "X: b").headers[b"x"] == b"a"


def test_white_space_around_values_is_removed() -> None:
    assert head_of("X:  a\xff b \t").headers[b"x"] == b"a\xff b"


GET = b"GET /p HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: x\r\n"

BAD_REQUESTS = {
    "empty": b"\r\n\r\n",
    "no version": b"GET /p\r\n\r\n",
    "no version, with headers": b"GET /p\r\nHost: x\r\n\r\n",
    "words after the version": b"GET /p HTTP/1.1 x\r\nHost: x\r\n\r\n",
    "lower case version": b"GET /p http/1.1\r\nHost: x\r\n\r\n",
    "RTSP": b"GET /p RTSP/1.0\r\nHost: x\r\n\r\n",
    "ICE": b"SOURCE /p ICE/1.0\r\nHost: x\r\n\r\n",
    "lower case method": b"get /p HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown method": b"FOO /p HTTP/1.1\r\nHost: x\r\n\r\n",
    "space before the method": b" GET /p HTTP/1.1\r\nHost: x\r\n\r\n",
    "two spaces after the method": b"GET  /p HTTP/1.1\r\nHost: x\r\n\r\n",
    "two spaces after the target": b"GET /p  HTTP/1.1\r\nHost: x\r\n\r\n",
    "tab after the method": b"GET\t/p HTTP/1.1\r\nHost: x\r\n\r\n",
    "space in the target": b"GET /p q HTTP/1.1\r\nHost: x\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
    "relative target": b"GET p HTTP/1.1\r\nHost: x\r\n\r\n",
    "more than an asterisk": b"OPTIONS *x HTTP/1.1\r\nHost: x\r\n\r\n",
    "absolute target of another scheme": b"GET ftp://h/p HTTP/1.1\r\nHost: x\r\n\r\n",
    "absolute target without a host": b"GET http:///p HTTP/1.1\r\nHost: x\r\n\r\n",
    "control character in the target": b"GET /p\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in the target": b"GET /p\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "DEL in the target": b"GET /p\x7f HTTP/1.1\r\nHost: x\r\n\r\n",
    "high byte in the target": b"GET /p\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "bad escape in the path": b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
    "half an escape in the path": b"GET /%4 HTTP/1.1\r\nHost: x\r\n\r\n",
    "blank line first": b"\r\nGET /p HTTP/1.1\r\nHost: x\r\n\r\n",
    "bare LF first": b"\nGET /p HTTP/1.1\r\nHost: x\r\n\r\n",
    "bare LF after the request line": b"GET /p HTTP/1.1\nHost: x\r\n\r\n",
    "bare LF after a header": GET[:-2] + b"\nA: b\r\n\r\n",
    "bare CR after a header": GET[:-2] + b"\rA: b\r\n\r\n",
    "CR CR LF": GET[:-2] + b"\r\r\n\r\n",
    "obs-fold with a space": GET + b"A: b\r\n c\r\n\r\n",
    "obs-fold with a tab": GET + b"A: b\r\n\tc\r\n\r\n",
    "space before the first header": b"GET /p HTTP/1.1\r\n Host: x\r\n\r\n",
    "space before the colon": GET + b"A : b\r\n\r\n",
    "tab before the colon": GET + b"A\t: b\r\n\r\n",
    "no colon": GET + b"A\r\n\r\n",
    "no name": GET + b": b\r\n\r\n",
    "space in the name": GET + b"A B: c\r\n\r\n",
    "parenthesis in the name": GET + b"A(: b\r\n\r\n",
    "high byte in the name": GET + b"A\xff: b\r\n\r\n",
    "NUL in a value": GET + b"A: b\0\r\n\r\n",
    "control character in a value": GET + b"A: \x01b\r\n\r\n",
    "DEL in a value": GET + b"A: b\x7f\r\n\r\n",
    "no Host": b"GET /p HTTP/1.1\r\n\r\n",
    "two Hosts": GET + b"Host: x\r\n\r\n",
    "two Hosts in HTTP/1.0": b"GET /p HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n",
    "two Hosts in one": b"GET /p HTTP/1.1\r\nHost: x y\r\n\r\n",
    "path in the Host": b"GET /p HTTP/1.1\r\nHost: x/y\r\n\r\n",
    "Content-Length twice, the same": POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
    "Content-Length twice, different": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "Content-Length twice, in other letters": POST + b"Content-Length: 1\r\ncontent-length: 2\r\n\r\n",
    "Content-Length list": POST + b"Content-Length: 1, 1\r\n\r\n",
    "Content-Length negative": POST + b"Content-Length: -1\r\n\r\n",
    "Content-Length with a plus": POST + b"Content-Length: +1\r\n\r\n",
    "Content-Length hexadecimal": POST + b"Content-Length: 0x1\r\n\r\n",
    "Content-Length a fraction": POST + b"Content-Length: 1.0\r\n\r\n",
    "Content-Length with an exponent": POST + b"Content-Length: 1e1\r\n\r\n",
    "Content-Length with an underscore": POST + b"Content-Length: 1_0\r\n\r\n",
    "Content-Length empty": POST + b"Content-Length:\r\n\r\n",
    "Content-Length of two words": POST + b"Content-Length: 1 1\r\n\r\n",
    "Content-Length over 64 bits": POST + b"Content-Length: 18446744073709551616\r\n\r\n",
    "Content-Length, space before the colon": POST + b"Content-Length : 1\r\n\r\n",
    "Content-Length, then chunked": POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunked, then Content-Length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
    "chunked and Content-Length with an upgrade": POST
    + b"Upgrade: h2c\r\nConnection: Upgrade\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
    "transfer coding is not chunked": POST + b"Transfer-Encoding: gzip\r\n\r\n",
    "transfer coding identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "transfer coding is almost chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n",
    "transfer coding quoted": POST + b'Transfer-Encoding: "chunked"\r\n\r\n',
    "transfer coding with a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
    "transfer coding empty": POST + b"Transfer-Encoding:\r\n\r\n",
    "chunked is not the last coding": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n",
    "chunked in two headers": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunked in HTTP/1.0": b"POST /p HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "NSQ's TCP magic": b"  V2NOP\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_malformed_heads_are_rejected(name: str) -> None:
    assert refusal_of(BAD_REQUESTS[name]) == (400, "BAD_REQUEST")


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "9.9"])
def test_other_http_versions_are_rejected(version: str) -> None:
    raw = f"GET /p HTTP/{version}\r\nHost: x\r\n\r\n".encode()
    assert refusal_of(raw) == (505, "HTTP_VERSION_NOT_SUPPORTED")


def test_other_transfer_codings_are_rejected() -> None:
    assert refusal_of(POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n") == (501, "NOT_IMPLEMENTED")


def test_an_unknown_expectation_is_rejected() -> None:
    assert refusal_of(POST + b"Content-Length: 1\r\nExpect: a miracle\r\n\r\n") == (417, "EXPECTATION_FAILED")


def test_the_number_of_headers_is_limited() -> None:
    allowed = b"".join(b"X%d: y\r\n" % number for number in range(MAX_HEADERS - 1))
    assert len(parse_head(GET + allowed + b"\r\n").headers) == MAX_HEADERS
    assert refusal_of(GET + allowed + b"Y: z\r\n\r\n") == (431, "HEADER_TOO_BIG")


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", b""),
        (b"/a/b?c=d&e", "/a/b", b"c=d&e"),
        (b"/a?b?c", "/a", b"b?c"),
        (b"/a?", "/a", b""),
        (b"/%70ing%2F", "/ping/", b""),
        (b"/a%20b+c", "/a b+c", b""),
        (b"/%C3%A9", "/é", b""),
        (b"/%ff", "/\ufffd", b""),
        (b"/pub?topic=t#ephemeral", "/pub", b"topic=t#ephemeral"),
        (b"/a#b?c", "/a#b", b"c"),
        (b"http://h:80/a?b", "/a", b"b"),
        (b"HTTPS://u:p@h/a", "/a", b""),
        (b"http://h", "/", b""),
        (b"http://h?a=b", "/", b"a=b"),
        (b"*", "*", b""),
        (b"h:80", "", b""),
    ],
)
def test_targets_are_split_into_path_and_query(target: bytes, path: str, query: bytes) -> None:
    assert split_target(target) == (path, query)


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (b"", {}),
        (b"topic=a", {"topic": "a"}),
        (b"topic=a&topic=b", {"topic": "a"}),
        (b"topic", {"topic": ""}),
        (b"topic=&x=1", {"topic": "", "x": "1"}),
        (b"&&a=b&", {"a": "b"}),
        (b"=b", {"": "b"}),
        (b"a=b=c", {"a": "b=c"}),
        (b"a+b=c+d", {"a b": "c d"}),
        (b"%61=%2B%26%3D", {"a": "+&="}),
        (b"topic=t%23ephemeral", {"topic": "t#ephemeral"}),
        (b"a=%3B", {"a": ";"}),
        (b"a=%C3%A9", {"a": "é"}),
        (b"a=%ff", {"a": "\ufffd"}),
    ],
)
def test_queries_are_parsed_as_in_go(raw: bytes, values: dict[str, str]) -> None:
    assert parse_query(raw) == values


@pytest.mark.parametrize("raw", [b"a=%", b"a=%4", b"a=%zz", b"%=a", b"a;b", b"a=1;b=2", b"a=1&;", b"good=1&bad=%g0"])
def test_malformed_queries_are_rejected(raw: bytes) -> None:
    with pytest.raises(HTTPError) as caught:
        parse_query(raw)
    assert (caught.value.status, caught.value.code) == (400, "INVALID_REQUEST")


def test_a_malformed_query_is_rejected_when_it_is_read() -> None:
    head = head_of(line="GET /p?a=%zz HTTP/1.1")
    for _ in range(2):
        with pytest.raises(HTTPError):
            head.query()


def test_a_query_is_parsed_once() -> None:
    head = head_of(line="GET /p?a=b HTTP/1.1")
    assert head.query() is head.query()
