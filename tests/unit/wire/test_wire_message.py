"""Messages and batches: ids, layouts, and that every way to read a batch gives the same messages."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.wire.message import advance_id, message_at, new_batch, new_message
from rawclient import sized

NODE_BITS = 0x155 << 12
TICK = 123_456_789


def id_number(tick, sequence):
    return tick << 22 | NODE_BITS | sequence


@pytest.mark.parametrize(
    ("start", "count", "end"),
    [
        ((TICK, 0), 0, (TICK, 0)),
        ((TICK, 0), 1, (TICK, 1)),
        ((TICK, 0), 4095, (TICK, 4095)),
        ((TICK, 4095), 1, (TICK + 1, 0)),
        ((TICK, 0), 4096, (TICK + 1, 0)),
        ((TICK, 4000), 97, (TICK + 1, 1)),
        ((TICK, 5), 3 * 4096, (TICK + 3, 5)),
        ((TICK, 4095), 4096 + 1, (TICK + 2, 0)),
    ],
)
def test_advance_carries_the_sequence_into_the_tick(start, count, end):
    assert advance_id(id_number(*start), count) == id_number(*end)


@given(number=st.integers(0, 2**61), counts=st.lists(st.integers(0, 10_000), max_size=6))
def test_advancing_in_steps_equals_advancing_at_once(number, counts):
    stepped = number
    for count in counts:
        stepped = advance_id(stepped, count)
    assert stepped == advance_id(number, sum(counts))
    assert stepped >= number


def fields_of(message):
    return message.id, message.body, message.timestamp, message.attempts, message.defer_ns


def make_batch(bodies, number):
    return new_batch(b"--" + b"".join(map(sized, bodies)) + b"beyond", 2, len(bodies), 77, number)


def expected_messages(bodies, number):
    ids = [b"%016x" % advance_id(number, index) for index in range(len(bodies))]
    return [(message_id, body, 77, 0, 0) for message_id, body in zip(ids, bodies, strict=True)]


def drain(batch):
    messages = []
    while batch.count:
        messages.append(fields_of(batch.take()))
    return messages


BODIES = st.lists(st.binary(max_size=20), max_size=12)
NUMBERS = st.builds(id_number, st.integers(0, 2**40), st.integers(4080, 4095) | st.just(0))


@given(bodies=BODIES, number=NUMBERS)
def test_take_returns_the_messages_in_order_with_consecutive_ids(bodies, number):
    assert drain(make_batch(bodies, number)) == expected_messages(bodies, number)


@given(bodies=BODIES, number=NUMBERS, data=st.data())
def test_split_divides_the_messages(bodies, number, data):
    batch = make_batch(bodies, number)
    at = data.draw(st.integers(0, len(bodies)))
    front = batch.split(at)
    assert (front.count, batch.count) == (at, len(bodies) - at)
    assert drain(front) + drain(batch) == expected_messages(bodies, number)


@given(bodies=BODIES, number=NUMBERS, data=st.data())
def test_skip_advances_as_take_does(bodies, number, data):
    batch = make_batch(bodies, number)
    skipped = data.draw(st.integers(0, len(bodies)))
    for _ in range(skipped):
        batch.skip()
    assert drain(batch) == expected_messages(bodies, number)[skipped:]


@given(bodies=BODIES, number=NUMBERS, data=st.data())
def test_a_copy_of_a_batch_is_independent(bodies, number, data):
    batch = make_batch(bodies, number)
    taken = data.draw(st.integers(0, len(bodies)))
    for _ in range(taken):
        batch.take()
    copied = batch.copy()
    assert drain(batch) == drain(copied) == expected_messages(bodies, number)[taken:]
    assert copied.data is batch.data


def test_a_copy_of_a_message_was_never_delivered():
    message = new_message(b"0123456789abcdef", b"body", 42, 3)
    message.defer_ns = 99
    message.client_id = 5
    message.delivered_ns = message.deadline_ns = 6
    copied = message.copy()
    assert fields_of(copied) == (b"0123456789abcdef", b"body", 42, 0, 99)
    assert (copied.client_id, copied.delivered_ns, copied.deadline_ns) == (0, 0, 0)


def test_message_at_reads_the_layout():
    data = b"xx" + struct.pack(">qH16s", 1_700_000_000_000_000_000, 65535, b"0d8f2a41c1200000") + b"body" + b"yy"
    message = message_at(data, 2, len(data) - 2)
    assert fields_of(message) == (b"0d8f2a41c1200000", b"body", 1_700_000_000_000_000_000, 65535, 0)
