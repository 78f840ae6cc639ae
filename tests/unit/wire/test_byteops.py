"""Byte primitives against ``struct``: the Python half directly, the compiled half through the modules that use it."""

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_bench import BenchLog
from nsqx.queues.diskqueue import DiskQueue
from nsqx.wire import byteops
from nsqx.wire.commands import FINISH, LINE, NEED_DATA, SIZE, CommandReader
from nsqx.wire.message import advance_id, message_at, new_batch, new_message

INT64 = st.integers(-(2**63), 2**63 - 1)
BUFFER_TYPES = pytest.mark.parametrize("buffer_type", [bytes, bytearray])
MESSAGE_ID = b"0123456789abcdef"


@BUFFER_TYPES
def test_copy_into(buffer_type):
    out = bytearray(b"0123456789")
    byteops.copy_into(out, 2, buffer_type(b"abcdef"), 1, 4)
    assert out == b"01bcd56789"


@BUFFER_TYPES
@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_is_greater_id(buffer_type, one, other):
    assert byteops.is_greater_id(buffer_type(b"x" + one), 1, buffer_type(b"yz" + other), 2) == (one > other)


@BUFFER_TYPES
@given(number=INT64, before=st.binary(max_size=9))
def test_int64_at(buffer_type, number, before):
    data = buffer_type(before + struct.pack(">q", number) + b"rest")
    assert byteops.int64_at(data, len(before)) == number


@BUFFER_TYPES
@given(number=st.integers(-(2**31), 2**31 - 1), before=st.binary(max_size=9))
def test_int32_at(buffer_type, number, before):
    data = buffer_type(before + struct.pack(">i", number) + b"rest")
    assert byteops.int32_at(data, len(before)) == number


@BUFFER_TYPES
@given(number=st.integers(0, 0xFFFF), before=st.binary(max_size=9))
def test_uint16_at(buffer_type, number, before):
    data = buffer_type(before + struct.pack(">H", number) + b"rest")
    assert byteops.uint16_at(data, len(before)) == number


@BUFFER_TYPES
@given(data=st.binary(max_size=40), start=st.integers(0, 40), end=st.integers(0, 40))
def test_cut(buffer_type, data, start, end):
    start, end = sorted((min(start, len(data)), min(end, len(data))))
    piece = byteops.cut(buffer_type(data), start, end)
    assert type(piece) is bytes
    assert piece == data[start:end]


@BUFFER_TYPES
@given(data=st.lists(st.sampled_from([b"a", b"\n", b"\r"]), max_size=12).map(b"".join), start=st.integers(0, 12))
def test_newline_at(buffer_type, data, start):
    start = min(start, len(data))
    assert byteops.newline_at(buffer_type(data), start, len(data)) == data.find(b"\n", start)


def test_a_newline_after_the_end_is_ignored():
    assert byteops.newline_at(b"ab\n", 0, 2) == -1


@BUFFER_TYPES
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"FIN 0123456789abcdef\n", True),
        (b"FIN ----------------\n", True),
        (b"FIN 0123456789abcdef\r", False),
        (b"FIN\t0123456789abcdef\n", False),
        (b"fin 0123456789abcdef\n", False),
        (b"REQ 0123456789abcdef\n", False),
    ],
)
def test_is_finish(buffer_type, line, expected):
    assert byteops.is_finish(buffer_type(b"--" + line), 2) is expected


@BUFFER_TYPES
@pytest.mark.parametrize(
    ("digits", "expected"),
    [
        (b"01234567", 0x01234567),
        (b"ffffffff", 0xFFFFFFFF),
        (b"00000000", 0),
        (b"0123456G", -1),
        (b"0123456A", -1),
        (b"01234 67", -1),
        (b"0123456:", -1),
        (b"/1234567", -1),
        (b"0123`567", -1),
        (b"0123456o", -1),
        (b"\xb0234567", -1),
    ],
)
def test_hex32_at(buffer_type, digits, expected):
    assert byteops.hex32_at(buffer_type(b"--" + digits.ljust(8, b"0")), 2) == expected


@given(number=st.integers(0, 2**62), count=st.integers(0, 2**20))
def test_linear_id(number, count):
    assert byteops.linear_id(advance_id(number, count)) == byteops.linear_id(number) + count


@given(number=INT64)
def test_id_text(number):
    assert byteops.id_text(number) == struct.pack(">q", number).hex().encode()


@given(timestamp=INT64, attempts=st.integers(0, 0xFFFF), body=st.binary(max_size=60), before=st.binary(max_size=5))
def test_append_message(timestamp, attempts, body, before):
    out = bytearray(before)
    byteops.append_message(out, timestamp, attempts, MESSAGE_ID, body)
    assert out == before + struct.pack(">iiqH16s", 30 + len(body), 2, timestamp, attempts, MESSAGE_ID) + body


@given(timestamp=INT64, attempts=st.integers(0, 0xFFFF), body=st.binary(max_size=60), before=st.binary(max_size=5))
def test_append_record(timestamp, attempts, body, before):
    out = bytearray(before)
    byteops.append_record(out, timestamp, attempts, MESSAGE_ID, body)
    assert out == before + struct.pack(">iqH16s", 26 + len(body), timestamp, attempts, MESSAGE_ID) + body


@given(timestamp=INT64, number=INT64, data=st.binary(max_size=60), start=st.integers(0, 60), end=st.integers(0, 60))
def test_append_record_from(timestamp, number, data, start, end):
    start, end = sorted((min(start, len(data)), min(end, len(data))))
    out = bytearray(b"before")
    byteops.append_record_from(out, timestamp, number, data, start, end)
    text = struct.pack(">q", number).hex().encode()
    assert out == b"before" + struct.pack(">iqH16s", 26 + end - start, timestamp, 0, text) + data[start:end]


@given(timestamp=INT64, number=INT64, data=st.binary(max_size=60), start=st.integers(0, 60), end=st.integers(0, 60))
def test_append_message_from(timestamp, number, data, start, end):
    start, end = sorted((min(start, len(data)), min(end, len(data))))
    out, expected = bytearray(b"before"), bytearray(b"before")
    byteops.append_message_from(out, timestamp, 3, number, data, start, end)
    byteops.append_message(expected, timestamp, 3, struct.pack(">q", number).hex().encode(), data[start:end])
    assert out == expected


@given(number=st.integers(0, 2**63 - 1))
def test_id_number(number):
    assert byteops.id_number(b"%016x" % number) == number


@pytest.mark.parametrize(
    "text", [b"", b"0" * 15, b"0" * 17, b"8" + b"0" * 15, b"0123456789ABCDEF", b"`" * 16, b"_" * 16]
)
def test_no_id_number(text):
    assert byteops.id_number(text) == -1


@given(data=st.binary(max_size=60), start=st.integers(0, 60), end=st.integers(0, 60))
def test_append_sized(data, start, end):
    start, end = sorted((min(start, len(data)), min(end, len(data))))
    out = bytearray(b"before")
    byteops.append_sized(out, data, start, end)
    assert out == b"before" + struct.pack(">i", end - start) + data[start:end]


# The same primitives through the modules that use them; compiled modules use the C functions.


@BUFFER_TYPES
@given(timestamp=INT64, attempts=st.integers(0, 0xFFFF), body=st.binary(max_size=60), before=st.binary(max_size=5))
def test_message_at(buffer_type, timestamp, attempts, body, before):
    data = buffer_type(before + struct.pack(">qH16s", timestamp, attempts, MESSAGE_ID) + body + b"rest")
    message = message_at(data, len(before), len(data) - 4)
    assert (message.timestamp, message.attempts, message.id) == (timestamp, attempts, MESSAGE_ID)
    assert message.body == body
    assert type(message.id) is type(message.body) is bytes


@given(number=INT64, body=st.binary(max_size=60))
def test_batch_take(number, body):
    message = new_batch(b"--" + struct.pack(">i", len(body)) + body, 2, 1, 7, number).take()
    assert message.id == struct.pack(">q", number).hex().encode()
    assert message.body == body


@given(timestamp=st.integers(0, 2**63 - 1), attempts=st.integers(0, 0xFFFF), body=st.binary(max_size=60))
def test_disk_queue_put_message(timestamp, attempts, body):
    records = written_records(lambda queue: queue.put_message(new_message(MESSAGE_ID, body, timestamp, attempts)))
    assert records == struct.pack(">iqH16s", 26 + len(body), timestamp, attempts, MESSAGE_ID) + body


@given(timestamp=st.integers(0, 2**63 - 1), number=INT64, body=st.binary(max_size=60))
def test_disk_queue_put_batch(timestamp, number, body):
    items = b"--" + struct.pack(">i", len(body)) + body
    records = written_records(lambda queue: queue.put_batch(new_batch(items, 2, 1, timestamp, number)))
    text = struct.pack(">q", number).hex().encode()
    assert records == struct.pack(">iqH16s", 26 + len(body), timestamp, 0, text) + body


def written_records(put):
    """Return the bytes that ``put(queue)`` writes to the data file."""
    with tempfile.TemporaryDirectory() as directory:
        queue = DiskQueue("q", directory, 1 << 20, 1 << 20, BenchLog(), lambda: None)
        put(queue)
        queue.close()
        return Path(directory, "q.diskqueue.000000.dat").read_bytes()


@given(number=st.integers(-(2**31), 2**31 - 1), pieces=st.booleans())
def test_reader_size(number, pieces):
    reader = CommandReader()
    data = b"PUB t\n" + struct.pack(">i", number)
    chunks = [data[i : i + 1] for i in range(len(data))] if pieces else [data]
    events = []
    for chunk in chunks:
        reader.feed(chunk)
        event = reader.next()
        if event == LINE:
            events.append(LINE)
            reader.expect_body()
            event = reader.next()
        if event != NEED_DATA:
            events.append(event)
    assert events == [LINE, SIZE]
    assert reader.size == number


@given(st.text(alphabet="0123456789abcdefgABF:/`@ \r", min_size=16, max_size=16))
def test_reader_finish(text):
    reader = CommandReader()
    reader.feed(b"FIN " + text.encode() + b"\n")
    if all(character in "0123456789abcdef" for character in text):
        assert reader.next() == FINISH
        assert byteops.id_text(reader.id_number) == text.encode()
    else:
        assert reader.next() == LINE
        assert reader.words == [b"FIN", *text.removesuffix("\r").encode().split(b" ")]


@given(st.lists(st.text(alphabet="01abfgA ", min_size=16, max_size=16), max_size=6))
def test_reader_finishes(texts):
    """The reader remembers the first half of an id."""
    reader = CommandReader()
    for text in texts:
        reader.feed(b"FIN " + text.encode() + b"\n")
        is_number = all(character in "0123456789abcdef" for character in text)
        assert reader.next() == (FINISH if is_number else LINE)
        assert not is_number or byteops.id_text(reader.id_number) == text.encode()
