"""Encoders of client commands: the Python half. tests/unit/client tests the compiled half through its users."""

from hypothesis import given
from hypothesis import strategies as st

from nsqx.wire import encode, requests
from nsqx.wire.commands import BATCH, BODY, FINISH, LINE, SIZE, CommandReader

BODIES = st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=20)


def read_command(data):
    """Return the words and the body of one command."""
    reader = CommandReader()
    reader.feed(data)
    assert reader.next() == LINE
    reader.expect_body()
    assert reader.next() == SIZE
    reader.accept_body()
    assert reader.next() == BODY
    return reader.words, reader.take_body()


@given(st.binary(max_size=100), st.binary(max_size=20))
def test_append_sized(body, before):
    out = bytearray(before)
    encode.append_sized(out, requests.publish_line("t"), body)
    assert out[: len(before)] == before
    assert read_command(bytes(out[len(before) :])) == ([b"PUB", b"t"], body)


@given(st.integers(0, 2**31 - 1))
def test_append_sized_line(size):
    out = bytearray(b"before")
    encode.append_sized_line(out, b"PUB t\n", size)
    assert out == b"beforePUB t\n" + size.to_bytes(4, "big")


def test_append_finish():
    out = bytearray(b"before")
    encode.append_finish(out, b"0123456789abcdef")
    reader = CommandReader()
    reader.feed(bytes(out[6:]))
    assert reader.next() == FINISH
    assert reader.id_number == 0x0123456789ABCDEF


def test_append_finishes():
    out = bytearray(b"before")
    encode.append_finishes(out, bytearray(b"0123456789abcdeffedcba9876543210and more"), 2)
    assert out == b"beforeFIN 0123456789abcdef\nFIN fedcba9876543210\n"


@given(BODIES)
def test_join_batch(bodies):
    data = encode.join_batch(bodies)
    reader = CommandReader()
    reader.feed(len(data).to_bytes(4, "big") + data)
    reader.accept_batch(1000, 1000)
    assert reader.next() == BATCH
    assert reader.count == len(bodies)
    assert reader.take_batch() == b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
