"""Chunked bodies: their content, their end, and the malformed ones that are rejected."""

import gc
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.errors import HTTPError
from nsqx.net.chunked import ChunkedBody

NEXT = b"GET /next HTTP/1.1\r\n\r\n"


def encode(*chunks: bytes, trailers: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n" + trailers + b"\r\n"


def decode(data: bytes, max_bytes: int = 1000) -> tuple[bytes, int]:
    """Return the body in ``data`` and the position of its end."""
    body = ChunkedBody(max_bytes)
    end = body.feed(data, 0)
    assert body.complete
    return body.take(), end


def test_a_body_ends_where_the_next_request_begins() -> None:
    coded = encode(b"abc", b"de")
    assert decode(coded + NEXT) == (b"abcde", len(coded))


def test_decoding_starts_at_the_given_position() -> None:
    body = ChunkedBody(100)
    assert body.feed(b"head" + encode(b"abc"), 4) == 4 + len(encode(b"abc"))
    assert body.take() == b"abc"


@pytest.mark.parametrize(
    "coded",
    [
        b"3\r\nabc\r\n0\r\n\r\n",
        b"03\r\nabc\r\n000\r\n\r\n",
        b"3;name\r\nabc\r\n0\r\n\r\n",
        b'3;name="value; more"\r\nabc\r\n0;last\r\n\r\n',
        encode(b"abc", trailers=b"X: y\r\nHost: evil\r\n"),
    ],
)
def test_valid_forms_are_decoded(coded: bytes) -> None:
    assert decode(coded + NEXT) == (b"abc", len(coded))


def test_an_empty_body() -> None:
    assert decode(b"0\r\n\r\n" + NEXT) == (b"", 5)


@given(
    chunks=st.lists(st.one_of(st.binary(min_size=1, max_size=20), st.just(b"\r\n\r\n"), st.just(b"0\r\n\r\n"))),
    trailers=st.sampled_from([b"", b"A: b\r\n", b"A:\r\nB: c\r\n"]),
    cuts=st.lists(st.integers(0, 400)),
)
def test_any_split_of_the_input_gives_the_same_body(chunks: list[bytes], trailers: bytes, cuts: list[int]) -> None:
    coded = encode(*chunks, trailers=trailers)
    stream = coded + NEXT
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    body = ChunkedBody(10_000)
    taken = 0
    for start, end in zip(places, places[1:], strict=False):
        taken += body.feed(stream[start:end], 0)
        if body.complete:
            break
    assert body.complete
    assert taken == len(coded)
    assert body.take() == b"".join(chunks)


@pytest.mark.parametrize(
    "coded",
    [
        b"\r\nabc\r\n0\r\n\r\n",
        b"zz\r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"+3\r\nabc\r\n0\r\n\r\n",
        b"3 \r\nabc\r\n0\r\n\r\n",
        b" 3\r\nabc\r\n0\r\n\r\n",
        b"3\nabc\r\n0\r\n\r\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"3\r\nabc\r\n0\n\n",
        b"3;a\nabc\r\n0\r\n\r\n",
        b"3;a\x01\r\nabc\r\n0\r\n\r\n",
        b"2\r\nabc\r\n0\r\n\r\n",
        b"4\r\nabc\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        b"3\r\nabc\r\n0\r\nno colon\r\n\r\n",
        b"3\r\nabc\r\n0\r\nA : b\r\n\r\n",
        b"3\r\nabc\r\n0\r\nA: b\r\n c\r\n\r\n",
        b"3\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n",
        b"3\r\nabc\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_malformed_coding_is_rejected(coded: bytes) -> None:
    with pytest.raises(HTTPError) as caught:
        decode(coded)
    assert (caught.value.status, caught.value.code) == (400, "BAD_REQUEST")


def test_a_body_over_the_limit_is_oversize() -> None:
    assert decode(encode(b"x" * 600, b"x" * 400), max_bytes=1000)[0] == b"x" * 1000
    body = ChunkedBody(999)
    body.feed(encode(b"x" * 600, b"x" * 400), 0)
    assert body.oversize


def test_the_limit_applies_before_a_chunk_is_complete() -> None:
    body = ChunkedBody(10)
    body.feed(b"ffffff\r\n" + b"x" * 11, 0)
    assert body.oversize
    assert body.size <= 10


def test_a_body_may_be_sent_byte_by_byte() -> None:
    assert decode(encode(*[b"x"] * 50_000), max_bytes=50_000)[0] == b"x" * 50_000


@pytest.mark.parametrize("end", [ChunkedBody.take, ChunkedBody.abandon])
def test_the_decoder_leaves_no_reference_cycle(end: Callable[[ChunkedBody], object]) -> None:
    body = ChunkedBody(100)
    body.feed(b"3\r\nab", 0)
    seen = weakref.ref(body)
    gc.disable()
    try:
        end(body)
        del body
        assert seen() is None
    finally:
        gc.enable()


def feed_often(body: ChunkedBody, data: bytes) -> None:
    for _ in range(1000):
        body.feed(data, 0)


@pytest.mark.parametrize("filler", [b"1;" + b"x" * 1000 + b"\r\na\r\n", b"1;" + b"x" * 1000])
def test_endless_extensions_are_rejected(filler: bytes) -> None:
    body = ChunkedBody(1_000_000)
    with pytest.raises(HTTPError, match="BAD_REQUEST"):
        feed_often(body, filler)


def test_endless_trailers_are_rejected() -> None:
    body = ChunkedBody(1_000_000)
    body.feed(b"0\r\n", 0)
    with pytest.raises(HTTPError, match="BAD_REQUEST"):
        feed_often(body, b"A: " + b"x" * 1000 + b"\r\n")
