"""The column receiver stores messages of any size in columns and finishes exactly the messages that were taken."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from connected_receiver import NODE, ConnectedReceiver, message
from messages import add_message

from nsqx.spark import columns as module
from nsqx.spark.columns import Columns
from nsqx.spark.rows import Rows, to_file_batches
from nsqx.wire.responses import FrameReader


def test_frames_are_stored_in_columns():
    connected = ConnectedReceiver()
    connected.connection.data_received(message(1, b"one") + message(2, b"") + message(3, b"three", attempts=4)[:10])
    connected.connection.data_received(message(3, b"three", attempts=4)[10:])
    assert connected.arrivals == 2
    assert connected.receiver.pending_count == 3
    taken = connected.receiver.take()
    assert (taken.topic, taken.node, len(taken)) == ("t", NODE, 3)
    assert [taken.message_id(place) for place in range(3)] == [b"%016x" % number for number in (1, 2, 3)]
    assert [taken.time_ns(place) for place in range(3)] == [1, 2, 3]
    assert [taken.attempt(place) for place in range(3)] == [1, 1, 4]
    (batch,) = to_file_batches([Rows(taken)])
    assert batch.column("value").to_pylist() == [b"one", b"", b"three"]
    assert batch.column("attempts").to_pylist() == [1, 1, 4]
    assert connected.receiver.pending_count == 0
    assert connected.subscription.in_flight_count == 3


def test_a_full_intake_holds_the_connection():
    connected = ConnectedReceiver()
    connected.connection.data_received(message(1, b"a"))
    assert connected.transport.is_reading
    connected.is_full = True
    connected.connection.data_received(message(2, b"b"))
    assert not connected.transport.is_reading
    connected.receiver.hold(False)
    assert connected.transport.is_reading


def test_taken_messages_are_finished_together():
    connected = ConnectedReceiver()
    connected.connection.data_received(message(1, b"a") + message(2, b"b"))
    taken = connected.receiver.take()
    connected.connection.data_received(message(3, b"c"))
    connected.receiver.finish(taken)
    assert bytes(connected.transport.written) == b"FIN %016x\nFIN %016x\n" % (1, 2)
    assert (connected.subscription.in_flight_count, connected.subscription.finish_count) == (1, 2)


def test_taken_and_pending_messages_are_touched():
    connected = ConnectedReceiver()
    connected.connection.data_received(message(1, b"a"))
    taken = connected.receiver.take()
    connected.connection.data_received(message(2, b"b"))
    connected.receiver.touch_all([taken])
    assert bytes(connected.transport.written) == b"TOUCH %016x\nTOUCH %016x\n" % (1, 2)


def test_the_connection_closes_with_the_last_fin_after_close_wait():
    connected = ConnectedReceiver()
    connected.connection.data_received(message(1, b"a"))
    taken = connected.receiver.take()
    connected.connection.data_received(struct.pack(">ii", 14, 0) + b"CLOSE_WAIT")
    assert not connected.transport.is_closed
    connected.receiver.finish(taken)
    assert connected.transport.is_closed


def test_nothing_is_sent_on_a_lost_connection():
    connected = ConnectedReceiver()
    connected.connection.data_received(message(1, b"a"))
    taken = connected.receiver.take()
    connected.connection.connection_lost(None)
    assert connected.lost == [connected.subscription]
    assert connected.receiver.is_lost
    connected.receiver.finish(taken)
    connected.receiver.touch_all([taken])
    assert not connected.transport.written


def test_error_frames_are_passed_on():
    connected = ConnectedReceiver()
    text = b"E_FIN_FAILED FIN 0000000000000001 failed ID not in flight"
    connected.connection.data_received(struct.pack(">ii", 4 + len(text), 1) + text)
    assert connected.lost == [text.decode()]


def test_reused_columns_contain_no_earlier_messages():
    connected = ConnectedReceiver()
    connected.connection.data_received(message(1, b"long" * 1000) + message(2, b"b"))
    first = connected.receiver.take()
    connected.receiver.finish(first)
    connected.connection.data_received(message(3, b"c", attempts=2))
    connected.receiver.take()
    connected.connection.data_received(message(4, b"d"))
    again = connected.receiver.take()
    assert again is first
    (batch,) = to_file_batches([Rows(again)])
    assert batch.select(["value", "id", "timestamp_ns", "attempts"]).to_pylist() == [
        {"value": b"d", "id": f"{4:016x}", "timestamp_ns": 4, "attempts": 1}
    ]


def test_new_messages_are_recognised_by_ids_and_attempts():
    columns = Columns("t", NODE)
    assert columns.greatest_if_new(bytes(16)) == b""
    for number in (7, 9, 8):
        add_message(columns, b"%016x" % number, number, 1)
    assert columns.greatest_if_new(bytes(16)) == b"%016x" % 9
    assert columns.greatest_if_new(b"%016x" % 6) == b"%016x" % 9
    assert columns.greatest_if_new(b"%016x" % 7) == b""
    add_message(columns, b"%016x" % 10, 10, 2)
    assert columns.greatest_if_new(bytes(16)) == b""


def test_messages_pending_at_a_new_connection_are_marked_suspect():
    connected = ConnectedReceiver()
    connected.receiver.suspect()
    connected.connection.data_received(message(1, b"a"))
    connected.receiver.suspect()
    connected.connection.data_received(message(2, b"b"))
    assert [(part.count, part.is_suspect) for part in (connected.receiver.take(), connected.receiver.take())] == [
        (1, True),
        (1, False),
    ]


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_columns_hold_any_number_of_messages(count):
    columns = Columns("t", NODE)
    for number in range(count):
        add_message(columns, b"%016x" % number, number * 10**9, number % 7, b"x" * (number % 5))
    assert len(columns) == count
    assert columns.count_until(10**9 * 999) == min(count, 1000)
    batches = to_file_batches([Rows(columns), Rows(columns, known=range(1, count))])
    if count:
        table = pa.Table.from_batches(batches)
        assert table.num_rows == count + 1
        assert table.column("value").to_pylist()[:count] == [b"x" * (number % 5) for number in range(count)]
        assert table.column("timestamp_ns").to_pylist()[:count] == [number * 10**9 for number in range(count)]
    else:
        assert batches == []


@pytest.mark.skipif(module.__file__.endswith(".so"), reason="the limit is built into the compiled module")
def test_more_than_the_byte_limit_is_taken_in_parts(monkeypatch):
    monkeypatch.setattr(module, "_FULL_BYTES", 10)
    connected = ConnectedReceiver()
    connected.connection.data_received(b"".join(message(number, b"123456") for number in range(5)))
    parts = [connected.receiver.take() for _ in range(3)]
    assert [part.count for part in parts] == [2, 2, 1]
    assert connected.receiver.pending_count == 0
    reader = FrameReader()
    reader.feed(message(9, b"again"))
    reader.next()
    connected.receiver.message(reader)
    assert connected.receiver.take().message_id(0) == b"%016x" % 9
