"""The command reader: chunks of any size give the same commands."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqx.errors import ProtocolError
from nsqx.wire import byteops
from nsqx.wire.commands import (
    BATCH,
    BODY,
    FINISH,
    LINE,
    MAX_LINE_LENGTH,
    NEED_DATA,
    SIZE,
    CommandReader,
    LineTooLong,
    batch_truncation,
    max_batch_count,
    parse_digits,
    read_batch,
    wrap_int64,
)
from rawclient import auth, cls, dpub, fin, identify, mpub, mpub_body, nop, pub, rdy, req, sized, sub, touch

WITH_BODY = {b"IDENTIFY", b"AUTH", b"PUB", b"DPUB"}
MAX_COUNT = 100
MAX_ITEM_SIZE = 5000


class Driver:
    """Drives a reader as a session does, and records its events."""

    def __init__(self):
        self.reader = CommandReader()
        self.events = []
        self.command = b""

    def feed(self, data):
        self.reader.feed(data)
        while (event := self.reader.next()) != NEED_DATA:
            self.act_on(event)
        return self

    def act_on(self, event):
        reader = self.reader
        if event == FINISH:
            self.events.append(("finish", byteops.id_text(reader.id_number)))
        elif event == LINE:
            self.command = reader.words[0]
            self.events.append(("line", *reader.words))
            if self.command in WITH_BODY or self.command == b"MPUB":
                reader.expect_body()
        elif event == SIZE:
            self.events.append(("size", reader.size))
            if self.command == b"MPUB":
                reader.accept_batch(MAX_COUNT, MAX_ITEM_SIZE)
            else:
                reader.accept_body()
        elif event == BODY:
            take = reader.take_item if self.command == b"PUB" else reader.take_body
            self.events.append(("body", reader.size, take()))
        else:
            assert event == BATCH
            self.events.append(("batch", reader.count, reader.take_batch()))


IDS = st.binary(min_size=8, max_size=8).map(lambda raw: raw.hex().encode())
NAMES = st.text(alphabet="abcXYZ019._-", min_size=1, max_size=10)
BODIES = st.binary(min_size=1, max_size=80)
COMMANDS = st.one_of(
    st.builds(pub, NAMES, BODIES),
    st.builds(dpub, NAMES, st.integers(0, 10**6), BODIES),
    st.builds(mpub, NAMES, st.lists(BODIES, min_size=1, max_size=5)),
    st.builds(identify, client_id=st.text(max_size=5)),
    st.builds(auth, BODIES),
    st.builds(sub, NAMES, NAMES),
    st.builds(rdy, st.integers(0, 2500)),
    st.builds(fin, IDS),
    st.builds(req, IDS, st.integers(0, 10**6)),
    st.builds(touch, IDS),
    st.builds(cls),
    st.builds(nop),
    st.sampled_from([b"\n", b"NOP\r\n", b"FIN short\n", b"FIN 0123456789ABCDEF\n", b"FIN  double space\n"]),
)


@settings(max_examples=150, deadline=None)
@given(commands=st.lists(COMMANDS, max_size=8), data=st.data())
def test_any_split_gives_the_same_events(commands, data):
    stream = b"".join(commands)
    whole = Driver().feed(stream)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    split = Driver()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if end > start:
            split.feed(stream[start:end])
    assert split.events == whole.events
    assert whole.reader.missing() == split.reader.missing() == ""
    assert whole.reader.take_rest() == b""


@settings(max_examples=30, deadline=None)
@given(commands=st.lists(COMMANDS, max_size=4))
def test_byte_by_byte_gives_the_same_events(commands):
    stream = b"".join(commands)
    single = Driver()
    for index in range(len(stream)):
        single.feed(stream[index : index + 1])
    assert single.events == Driver().feed(stream).events


def test_the_events_of_each_command():
    driver = Driver().feed(
        pub("t", b"x") + mpub("t", [b"a", b"bc"]) + fin(b"0123456789abcdef") + b"SUB t c\r\n" + auth(b"secret")
    )
    assert driver.events == [
        ("line", b"PUB", b"t"),
        ("size", 1),
        ("body", 1, sized(b"x")),
        ("line", b"MPUB", b"t"),
        ("size", 15),
        ("batch", 2, sized(b"a") + sized(b"bc")),
        ("finish", b"0123456789abcdef"),
        ("line", b"SUB", b"t", b"c"),
        ("line", b"AUTH"),
        ("size", 6),
        ("body", 6, b"secret"),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\n", [b""]),
        (b"\r\n", [b""]),
        (b"NOP\n", [b"NOP"]),
        (b"NOP\r\n", [b"NOP"]),
        (b"NOP\r\r\n", [b"NOP\r"]),
        (b"NOP \n", [b"NOP", b""]),
        (b" NOP\n", [b"", b"NOP"]),
        (b"RDY  1\n", [b"RDY", b"", b"1"]),
        (b"RDY\t1\n", [b"RDY\t1"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
        (b"FIN 0123456789abcdef \n", [b"FIN", b"0123456789abcdef", b""]),
        (b"FIN 0123456789abcdef\r\n", [b"FIN", b"0123456789abcdef"]),
    ],
)
def test_words(line, words):
    reader = CommandReader()
    reader.feed(line)
    assert reader.next() == LINE
    assert reader.words == words
    assert reader.next() == NEED_DATA


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_line_of_the_maximum_length_is_accepted(in_pieces):
    reader = CommandReader()
    line = b"N" * (MAX_LINE_LENGTH - 1)
    if in_pieces:
        reader.feed(line)
        assert reader.next() == NEED_DATA
        reader.feed(b"\n")
    else:
        reader.feed(line + b"\n")
    assert reader.next() == LINE
    assert reader.words == [line]


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r\n", b"more\n"])
def test_a_longer_line_is_refused_even_before_its_end_arrives(tail):
    reader = CommandReader()
    reader.feed(b"N" * MAX_LINE_LENGTH + tail)
    with pytest.raises(LineTooLong):
        reader.next()


def test_the_line_limit_applies_to_each_line():
    reader = CommandReader()
    line = b"N" * 10_000
    reader.feed((line + b"\n") * 3)
    for _ in range(3):
        assert reader.next() == LINE
        assert reader.words == [line]
    assert reader.next() == NEED_DATA


def start_batch(data, max_count=MAX_COUNT, max_item_size=MAX_ITEM_SIZE, outer_size=None):
    """Return a reader that expects a batch and was fed ``data``, which starts with the batch's count."""
    reader = CommandReader()
    reader.feed(b"MPUB t\n" + struct.pack(">i", len(data) if outer_size is None else outer_size) + data)
    assert reader.next() == LINE
    reader.expect_body()
    assert reader.next() == SIZE
    reader.accept_batch(max_count, max_item_size)
    return reader


@pytest.mark.parametrize("outer_size", [1, 4, 9, 10**6])
def test_the_outer_size_of_a_batch_does_not_decide_where_it_ends(outer_size):
    reader = start_batch(mpub_body([b"one", b"two"]) + b"NOP\n", outer_size=outer_size)
    assert reader.next() == BATCH
    assert reader.take_batch() == sized(b"one") + sized(b"two")
    assert reader.next() == LINE
    assert reader.words == [b"NOP"]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (struct.pack(">i", 0), "E_BAD_BODY MPUB invalid message count 0"),
        (struct.pack(">i", -1), "E_BAD_BODY MPUB invalid message count -1"),
        (struct.pack(">i", MAX_COUNT + 1), f"E_BAD_BODY MPUB invalid message count {MAX_COUNT + 1}"),
        (struct.pack(">ii", 1, 0), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (struct.pack(">ii", 1, -5), "E_BAD_MESSAGE MPUB invalid message(0) body size -5"),
        (struct.pack(">ii", 1, MAX_ITEM_SIZE + 1), f"E_BAD_MESSAGE MPUB message too big {MAX_ITEM_SIZE + 1} > 5000"),
        (
            struct.pack(">i", 3) + sized(b"a") + struct.pack(">i", 0),
            "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
        ),
        (
            struct.pack(">i", 3) + sized(b"a") + struct.pack(">i", 5001),
            "E_BAD_MESSAGE MPUB message too big 5001 > 5000",
        ),
    ],
)
@pytest.mark.parametrize("in_pieces", [False, True])
def test_an_invalid_number_in_a_batch_is_refused_as_soon_as_it_arrives(data, error, in_pieces):
    if in_pieces:
        reader = start_batch(b"")
        for index in range(len(data) - 1):
            reader.feed(data[index : index + 1])
            assert reader.next() == NEED_DATA
        reader.feed(data[-1:])
    else:
        reader = start_batch(data)
    with pytest.raises(ProtocolError) as caught:
        reader.next()
    assert str(caught.value) == error
    assert caught.value.fatal


@pytest.mark.parametrize(("count", "size"), [(1, 1), (MAX_COUNT, 1), (1, MAX_ITEM_SIZE)])
def test_the_largest_batches_are_accepted(count, size):
    reader = start_batch(mpub_body([b"x" * size] * count))
    assert reader.next() == BATCH
    assert reader.count == count
    assert reader.take_batch() == sized(b"x" * size) * count


MPUB = mpub("t", [b"one", b"twoo"])
#       line    size      count     size       body       size        body
PARTS = [7, 7 + 4, 11 + 4, 15 + 4, 19 + 3, 22 + 4, 26 + 4]
MISSING = ["", "size", "count", "item size", "item body", "item size", "item body"]


def missing_at(length):
    for end, missing in zip(PARTS, MISSING, strict=True):
        if length < end:
            return missing
    return ""


@pytest.mark.parametrize("length", range(len(MPUB) + 1))
@pytest.mark.parametrize("in_pieces", [False, True])
def test_missing_for_every_truncation_of_a_batch(length, in_pieces):
    driver = Driver()
    step = 1 if in_pieces else max(length, 1)
    for start in range(0, length, step):
        driver.feed(MPUB[start : min(start + step, length)])
    assert driver.reader.missing() == missing_at(length)


@pytest.mark.parametrize(
    ("length", "error"),
    [
        (7, "E_BAD_BODY MPUB failed to read body size"),
        (10, "E_BAD_BODY MPUB failed to read body size"),
        (11, "E_BAD_BODY MPUB failed to read message count"),
        (14, "E_BAD_BODY MPUB failed to read message count"),
        (15, "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (18, "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (19, "E_BAD_MESSAGE MPUB failed to read message body"),
        (21, "E_BAD_MESSAGE MPUB failed to read message body"),
        (22, "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (29, "E_BAD_MESSAGE MPUB failed to read message body"),
    ],
)
def test_the_error_for_a_truncated_batch(length, error):
    assert str(batch_truncation(Driver().feed(MPUB[:length]).reader)) == error


@pytest.mark.parametrize(
    ("length", "missing"), [(0, ""), (3, ""), (6, "size"), (9, "size"), (10, "body"), (13, "body"), (14, "")]
)
def test_missing_for_truncations_of_a_body(length, missing):
    assert Driver().feed(pub("t", b"body")[:length]).reader.missing() == missing


@pytest.mark.parametrize(
    ("max_body_size", "count"), [(9, 1), (13, 1), (14, 2), (5 * 1024 * 1024, (5 * 1024 * 1024 - 4) // 5)]
)
def test_max_batch_count(max_body_size, count):
    assert max_batch_count(max_body_size) == count


def test_read_batch():
    bodies = [b"one", b"two"]
    assert read_batch(mpub_body(bodies), 1000, 10) == (b"".join(map(sized, bodies)), 2)
    assert read_batch(mpub_body(bodies) + b"ignored", 1000, 10) == (b"".join(map(sized, bodies)), 2)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "E_BAD_BODY MPUB failed to read message count"),
        (b"\x00\x00\x00", "E_BAD_BODY MPUB failed to read message count"),
        (struct.pack(">i", 0), "E_BAD_BODY MPUB invalid message count 0"),
        (struct.pack(">i", 20), "E_BAD_BODY MPUB invalid message count 20"),
        (struct.pack(">i", 1), "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (mpub_body([b"one", b"two"])[:-1], "E_BAD_MESSAGE MPUB failed to read message body"),
        (mpub_body([b"one", b"x" * 11]), "E_BAD_MESSAGE MPUB message too big 11 > 10"),
    ],
)
def test_read_batch_refuses_invalid_bodies(body, error):
    with pytest.raises(ProtocolError) as caught:
        read_batch(body, 100, 10)
    assert str(caught.value) == error


def test_take_rest_returns_the_unread_bytes():
    reader = CommandReader()
    reader.feed(b"NOP\nleft")
    assert reader.next() == LINE
    assert reader.take_rest() == b"left"
    reader.feed(b"NOP\n")
    assert reader.next() == LINE
    assert reader.words == [b"NOP"]


@pytest.mark.parametrize(
    ("word", "number"),
    [
        (b"", 0),
        (b"0", 0),
        (b"007", 7),
        (b"2500", 2500),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 0),
        (b"18446744073709551617", 1),
        (b"9" * 5000, (pow(10, 5000, 2**64) - 1) % 2**64),
        (b"-1", None),
        (b"+1", None),
        (b" 1", None),
        (b"1 ", None),
        (b"1_000", None),
        (b"1.5", None),
        (b"0x10", None),
        (b"a", None),
        ("\u0661".encode(), None),
        (b"1\x00", None),
    ],
)
def test_parse_digits(word, number):
    assert parse_digits(word) == number


@given(st.integers(0, 10**40))
def test_parse_digits_wraps_at_64_bits(number):
    assert parse_digits(b"%d" % number) == number % 2**64


@pytest.mark.parametrize(
    ("number", "wrapped"),
    [
        (0, 0),
        (2**63 - 1, 2**63 - 1),
        (2**63, -(2**63)),
        (2**64 - 1, -1),
        (2**64, 0),
        (-1, -1),
        (-(2**63), -(2**63)),
        (-(2**63) - 1, 2**63 - 1),
        (10**30, (10**30 + 2**63) % 2**64 - 2**63),
    ],
)
def test_wrap_int64(number, wrapped):
    assert wrap_int64(number) == wrapped
