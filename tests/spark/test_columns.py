"""Messages of a connection as columns: nothing lost, whatever their size, and FINs for exactly what was taken."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from messages import add_message, frame

from nsqx.client.connection import NsqdConnection
from nsqx.client.subscription import Subscription
from nsqx.spark import columns as module
from nsqx.spark.columns import ColumnReceiver, Columns
from nsqx.spark.rows import Rows, to_file_batches
from nsqx.wire.responses import FrameReader

NODE = "127.0.0.1:4150"


class Transport:
    def __init__(self):
        self.written = bytearray()
        self.is_closed = False

    def set_write_buffer_limits(self, high):
        pass

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_closed = True


class Loop:
    """Time stands still, and callbacks are made at once."""

    def time(self):
        return 7.0

    def call_soon(self, callback):
        callback()


class Dispatcher:
    messages = ()


def message(number, body, attempts=1):
    return frame(b"%016x" % number, number, attempts, body)


class Wired:
    """A receiver on a connection whose other end is this test."""

    def __init__(self):
        self.arrivals = 0
        self.connection = NsqdConnection(NODE, Loop(), read_timeout_s=0, write_timeout_s=1)
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        self.subscription = Subscription(self.connection, self, self, Dispatcher(), 2500, lambda _: 0.0, Loop().time)
        self.receiver = ColumnReceiver("t", self.subscription, self.arrived, Loop().time)
        self.connection.start(self.receiver)
        self.lost = []

    def arrived(self):
        self.arrivals += 1

    def on_lost(self, subscription, error):
        self.lost.append(subscription)

    def on_close_wait(self, subscription):
        pass

    def on_answer_failed(self, subscription, text, is_harmless):
        self.lost.append(text)


def test_frames_become_columns():
    wired = Wired()
    wired.connection.data_received(message(1, b"one") + message(2, b"") + message(3, b"three", attempts=4)[:10])
    wired.connection.data_received(message(3, b"three", attempts=4)[10:])
    assert wired.arrivals == 2
    assert wired.receiver.pending_count == 3
    taken = wired.receiver.take()
    assert (taken.topic, taken.node, len(taken)) == ("t", NODE, 3)
    assert [taken.message_id(place) for place in range(3)] == [b"%016x" % number for number in (1, 2, 3)]
    assert [taken.time_ns(place) for place in range(3)] == [1, 2, 3]
    assert [taken.attempt(place) for place in range(3)] == [1, 1, 4]
    (batch,) = to_file_batches([Rows(taken)])
    assert batch.column("value").to_pylist() == [b"one", b"", b"three"]
    assert batch.column("attempts").to_pylist() == [1, 1, 4]
    assert wired.receiver.pending_count == 0
    assert wired.subscription.in_flight_count == 3


def test_what_was_taken_is_finished_in_one_go():
    wired = Wired()
    wired.connection.data_received(message(1, b"a") + message(2, b"b"))
    taken = wired.receiver.take()
    wired.connection.data_received(message(3, b"c"))
    wired.receiver.finish(taken)
    assert bytes(wired.transport.written) == b"FIN %016x\nFIN %016x\n" % (1, 2)
    assert (wired.subscription.in_flight_count, wired.subscription.finish_count) == (1, 2)


def test_touching_covers_what_was_taken_and_what_was_not():
    wired = Wired()
    wired.connection.data_received(message(1, b"a"))
    taken = wired.receiver.take()
    wired.connection.data_received(message(2, b"b"))
    wired.receiver.touch_all([taken])
    assert bytes(wired.transport.written) == b"TOUCH %016x\nTOUCH %016x\n" % (1, 2)


def test_the_last_answer_after_close_wait_closes_the_connection():
    wired = Wired()
    wired.connection.data_received(message(1, b"a"))
    taken = wired.receiver.take()
    wired.connection.data_received(struct.pack(">ii", 14, 0) + b"CLOSE_WAIT")
    assert not wired.transport.is_closed
    wired.receiver.finish(taken)
    assert wired.transport.is_closed


def test_nothing_is_sent_on_a_lost_connection():
    wired = Wired()
    wired.connection.data_received(message(1, b"a"))
    taken = wired.receiver.take()
    wired.connection.connection_lost(None)
    assert wired.lost == [wired.subscription]
    assert wired.receiver.is_lost
    wired.receiver.finish(taken)
    wired.receiver.touch_all([taken])
    assert not wired.transport.written


def test_errors_go_through():
    wired = Wired()
    text = b"E_FIN_FAILED FIN 0000000000000001 failed ID not in flight"
    wired.connection.data_received(struct.pack(">ii", 4 + len(text), 1) + text)
    assert wired.lost == [text.decode()]


def test_columns_are_used_again_and_hold_nothing_of_before():
    wired = Wired()
    wired.connection.data_received(message(1, b"long" * 1000) + message(2, b"b"))
    first = wired.receiver.take()
    wired.receiver.finish(first)
    wired.connection.data_received(message(3, b"c", attempts=2))
    wired.receiver.take()
    wired.connection.data_received(message(4, b"d"))
    again = wired.receiver.take()
    assert again is first
    (batch,) = to_file_batches([Rows(again)])
    assert batch.select(["value", "id", "timestamp_ns", "attempts"]).to_pylist() == [
        {"value": b"d", "id": f"{4:016x}", "timestamp_ns": 4, "attempts": 1}
    ]


def test_new_messages_are_told_by_their_ids_and_attempts():
    columns = Columns("t", NODE)
    assert columns.greatest_if_new(bytes(16)) == b""
    for number in (7, 9, 8):
        add_message(columns, b"%016x" % number, number, 1)
    assert columns.greatest_if_new(bytes(16)) == b"%016x" % 9
    assert columns.greatest_if_new(b"%016x" % 6) == b"%016x" % 9
    assert columns.greatest_if_new(b"%016x" % 7) == b""
    add_message(columns, b"%016x" % 10, 10, 2)
    assert columns.greatest_if_new(bytes(16)) == b""


def test_what_waits_when_another_connection_is_made_is_suspect():
    wired = Wired()
    wired.receiver.suspect()
    wired.connection.data_received(message(1, b"a"))
    wired.receiver.suspect()
    wired.connection.data_received(message(2, b"b"))
    assert [(part.count, part.is_suspect) for part in (wired.receiver.take(), wired.receiver.take())] == [
        (1, True),
        (1, False),
    ]


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_any_number_fits(count):
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
def test_much_is_taken_in_parts(monkeypatch):
    monkeypatch.setattr(module, "_FULL_BYTES", 10)
    wired = Wired()
    wired.connection.data_received(b"".join(message(number, b"123456") for number in range(5)))
    parts = [wired.receiver.take() for _ in range(3)]
    assert [part.count for part in parts] == [2, 2, 1]
    assert wired.receiver.pending_count == 0
    reader = FrameReader()
    reader.feed(message(9, b"again"))
    reader.next()
    wired.receiver.message(reader)
    assert wired.receiver.take().message_id(0) == b"%016x" % 9
