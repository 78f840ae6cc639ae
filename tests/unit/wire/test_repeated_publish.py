"""A remembered PUB line: it is recognised directly or read in stages, with the same result."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.wire import byteops
from nsqx.wire.commands import BODY, LINE, NEED_DATA, PUBLISH, SIZE, CommandReader
from rawclient import fin, nop, pub, sized

LIMIT = 50


def published(pieces, line=b"PUB t\n"):
    """Return the items and other lines, in order, that a reader with the remembered ``line`` reports."""
    reader = CommandReader()
    reader.remember(line, LIMIT)
    seen = []
    for piece in pieces:
        reader.feed(piece)
        while (event := reader.next()) != NEED_DATA:
            if event == PUBLISH:
                seen.append(reader.item)
            elif event == LINE:
                seen.append(reader.words)
                if reader.words[0] == b"PUB":
                    seen.pop()
                    reader.expect_body()
            elif event == SIZE:
                reader.accept_body()
            elif event == BODY:
                seen.append(reader.take_item())
            else:
                seen.append(byteops.id_text(reader.id_number))
    return seen


def test_a_complete_remembered_publish_is_recognised_directly():
    reader = CommandReader()
    reader.remember(b"PUB t\n", LIMIT)
    reader.feed(pub("t", b"one") + pub("t", b"two"))
    assert (reader.next(), reader.item) == (PUBLISH, sized(b"one"))
    assert (reader.next(), reader.item) == (PUBLISH, sized(b"two"))
    assert reader.next() == NEED_DATA


@pytest.mark.parametrize(
    "data",
    [
        b"PUB t\n" + (0).to_bytes(4, "big"),
        b"PUB t\n" + (-1).to_bytes(4, "big", signed=True) + b"x",
        b"PUB t\n" + sized(b"x" * (LIMIT + 1)),
        b"PUB t\n" + sized(b"x" * 9)[:-1],
        b"PUB t\n\x00\x00",
        b"PUB tt\n" + sized(b"x"),
        b"PUB t \n" + sized(b"x"),
        b"PUB t\r\n" + sized(b"x"),
    ],
)
def test_an_unusual_publish_is_read_in_stages(data):
    reader = CommandReader()
    reader.remember(b"PUB t\n", LIMIT)
    reader.feed(data)
    assert reader.next() == LINE


@given(
    commands=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=60).map(lambda body: (pub("t", body), sized(body))),
            st.binary(min_size=1, max_size=9).map(lambda body: (pub("u", body), sized(body))),
            st.just((nop(), [b"NOP"])),
            st.just((fin(b"0123456789abcdef"), b"0123456789abcdef")),
        ),
        max_size=8,
    ),
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
def test_any_split_of_the_stream_gives_the_same_publishes(commands, cuts):
    stream = b"".join(command for command, _ in commands)
    ends = sorted(min(cut, len(stream)) for cut in cuts)
    pieces = [stream[start:end] for start, end in zip([0, *ends], [*ends, len(stream)], strict=True)]
    assert published(pieces) == [outcome for _, outcome in commands]


@pytest.mark.parametrize("buffer_type", [bytes, bytearray])
def test_begins_with(buffer_type):
    data = buffer_type(b"xxPUB t\nrest")
    assert byteops.begins_with(data, b"PUB t\n", 2, len(data))
    assert byteops.begins_with(data, b"PUB t\n", 2, 8)
    assert not byteops.begins_with(data, b"PUB t\n", 2, 7)
    assert not byteops.begins_with(data, b"PUB t\n", 1, len(data))
