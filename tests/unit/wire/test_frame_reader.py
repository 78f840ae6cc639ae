"""The client's frame reader: any split of a byte stream gives the same frames."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.errors import InvalidFrame
from nsqx.wire import frames
from nsqx.wire.responses import ERROR, HEARTBEAT, MESSAGE, NEED_DATA, OK_RUN, RESPONSE, FrameReader

MESSAGE_ID = b"0123456789abcdef"


def message_frame(timestamp, attempts, message_id, body):
    return frames.encode_frame(frames.MESSAGE, struct.pack(">qH16s", timestamp, attempts, message_id) + body)


def read_all(reader):
    """Return the events of the reader until it needs more; a run of OK counts as that many."""
    while (event := reader.next()) != NEED_DATA:
        if event == OK_RUN:
            yield from [("response", b"OK")] * reader.count
        elif event == MESSAGE:
            parts = (reader.message_timestamp(), reader.message_attempts(), reader.message_id(), reader.message_body())
            yield ("message", *parts)
        else:
            yield ({HEARTBEAT: "heartbeat", RESPONSE: "response", ERROR: "error"}[event], reader.data)


FRAMES = st.one_of(
    st.just((("response", b"OK"), frames.OK)),
    st.just((("heartbeat", b"_heartbeat_"), frames.HEARTBEAT)),
    st.binary(max_size=40)
    .filter(lambda data: data != b"_heartbeat_")
    .map(lambda data: (("response", data), frames.encode_frame(frames.RESPONSE, data))),
    st.binary(max_size=40).map(lambda data: (("error", data), frames.encode_frame(frames.ERROR, data))),
    st.tuples(
        st.integers(-(2**63), 2**63 - 1), st.integers(0, 65535), st.binary(min_size=16, max_size=16), st.binary()
    ).map(lambda parts: (("message", *parts), message_frame(*parts))),
)


@given(st.lists(FRAMES, max_size=12), st.data())
def test_any_split_gives_the_same_frames(expected, data):
    stream = b"".join(encoded for _, encoded in expected)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = FrameReader()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        found += read_all(reader)
    assert found == [frame for frame, _ in expected]
    assert reader.take_rest() == b""


def test_byte_by_byte_gives_the_same_frames():
    stream = frames.OK * 3 + message_frame(5, 2, MESSAGE_ID, b"body") + frames.HEARTBEAT + frames.OK
    reader = FrameReader()
    found = []
    for position in range(len(stream)):
        reader.feed(stream[position : position + 1])
        found += read_all(reader)
    ok = ("response", b"OK")
    assert found == [ok, ok, ok, ("message", 5, 2, MESSAGE_ID, b"body"), ("heartbeat", b"_heartbeat_"), ok]


def test_consecutive_ok_answers_are_reported_as_one_run():
    reader = FrameReader()
    reader.feed(frames.OK * 5 + frames.CLOSE_WAIT + frames.OK * 2 + frames.OK[:7])
    assert (reader.next(), reader.count) == (OK_RUN, 5)
    assert (reader.next(), reader.data) == (RESPONSE, b"CLOSE_WAIT")
    assert (reader.next(), reader.count) == (OK_RUN, 2)
    assert reader.next() == NEED_DATA
    reader.feed(frames.OK[7:])
    assert (reader.next(), reader.count) == (OK_RUN, 1)


def test_a_body_in_many_chunks_is_read():
    body = bytes(range(256)) * 1000
    stream = message_frame(1, 1, MESSAGE_ID, body)
    reader = FrameReader()
    for start in range(0, len(stream), 1000):
        assert reader.next() == NEED_DATA
        reader.feed(stream[start : start + 1000])
    assert reader.next() == MESSAGE
    assert reader.message_body() == body


def test_take_rest_returns_the_unread_bytes():
    reader = FrameReader()
    reader.feed(frames.OK + frames.CLOSE_WAIT + b"more")
    reader.next()
    assert reader.take_rest() == frames.CLOSE_WAIT + b"more"
    assert reader.next() == NEED_DATA


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (struct.pack(">ii", 3, 0), "a frame of size 3, at least 4 expected"),
        (struct.pack(">ii", -5, 0), "a frame of size -5, at least 4 expected"),
        (struct.pack(">ii", 101, 0), "a frame of size 101, more than max_msg_size 100"),
        (struct.pack(">ii", 4, 3), "a frame of type 3, 0 to 2 expected"),
        (struct.pack(">ii", 4, -1), "a frame of type -1, 0 to 2 expected"),
        (frames.encode_frame(frames.MESSAGE, bytes(25)), "a message of 25 bytes, at least 26 expected"),
        (b"HTTP/1.1 400 Bad Request", "the answer is HTTP: this seems to be an HTTP port, not nsqd's TCP port"),
    ],
)
def test_invalid_frames_are_refused(stream, text):
    reader = FrameReader(100)
    reader.feed(stream)
    with pytest.raises(InvalidFrame) as caught:
        reader.next()
    assert str(caught.value) == text


def test_without_a_limit_frames_of_any_size_are_accepted():
    reader = FrameReader()
    reader.feed(struct.pack(">ii", 2**31 - 1, 2))
    assert reader.next() == NEED_DATA
