"""Batches: encoding, checks, and the messages that are left of a damaged batch."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.queues.log.batch import (
    ADDRESSED,
    DEFERRED,
    DELTA,
    HEAD_SIZE,
    MESSAGES,
    addressed,
    channel_of,
    deferred,
    due_ns_of,
    find_head,
    new_batch,
    new_record,
    origin_of,
    originating,
    payload_of,
    read_batch,
    read_head,
    releases_of,
    releasing,
    salvage,
    seed_of,
)

SEED = seed_of(7, 100)
BODIES = st.lists(st.binary(max_size=60), min_size=1, max_size=8)


def items(bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def encoded(batch, seed=SEED, synced_below=0):
    return b"".join(batch.buffers(seed, synced_below))


def decoded(data, seed=SEED):
    head = read_head(data, 0, seed)
    return None if head is None else read_batch(head, data[HEAD_SIZE:])


def messages(bodies, first=100):
    return new_batch(MESSAGES, first, len(bodies), 5, items(bodies))


@given(BODIES, st.integers(0, 1 << 61), st.integers(-(1 << 62), 1 << 62))
def test_a_batch_is_read_as_it_was_written(bodies, first, timestamp):
    batch = new_batch(MESSAGES, first, len(bodies), timestamp, items(bodies))
    data = encoded(batch, synced_below=3)
    assert len(data) == batch.size
    read = decoded(data)
    assert list(read.bodies()) == list(enumerate(bodies, first))
    assert (read.timestamp, read.end, read.synced_below) == (timestamp, first + len(bodies), 3)


@pytest.mark.parametrize("seed", [seed_of(8, 100), seed_of(7, 101), seed_of(7), 0])
def test_a_batch_is_valid_in_its_own_file_only(seed):
    assert decoded(encoded(messages([b"a"])), seed) is None


@given(BODIES, st.data())
def test_a_changed_byte_is_noticed_and_at_most_one_message_is_lost(bodies, data):
    content = bytearray(encoded(messages(bodies)))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    head = read_head(content, 0, SEED)
    if head is None:
        assert position < HEAD_SIZE
        return
    assert read_batch(head, bytes(content[HEAD_SIZE:])) is None
    found = dict(pair for part in salvage(head, content[HEAD_SIZE:]) for pair in part.bodies())
    assert len(found) >= len(bodies) - 1
    assert all(bodies[offset - 100] == body for offset, body in found.items())


def test_a_changed_length_loses_only_its_message():
    bodies = [b"one", b"two", b"three", b"four"]
    content = bytearray(encoded(messages(bodies)))
    content[HEAD_SIZE + 7 + 3] = 200  # the length of "two"
    parts = salvage(read_head(content, 0, SEED), content[HEAD_SIZE:])
    assert [list(part.bodies()) for part in parts] == [[(100, b"one")], [(102, b"three"), (103, b"four")]]


def test_a_large_hole_costs_a_short_search():
    bodies = [b"%06d" % number + b"." * 94 for number in range(3000)]
    content = bytearray(encoded(messages(bodies)))
    hole = slice(HEAD_SIZE + 1000 * 104, HEAD_SIZE + 2000 * 104)
    content[hole] = bytes(1000 * 104)
    parts = salvage(read_head(content, 0, SEED), content[HEAD_SIZE:])
    assert [(part.first, part.count) for part in parts] == [(100, 1000), (2100, 1000)]
    assert [body for part in parts for _, body in part.bodies()] == bodies[:1000] + bodies[2000:]


def test_messages_for_a_channel_or_a_time_are_given_up_if_the_extension_is_damaged():
    batch = new_batch(ADDRESSED, 1, 1, 5, items([b"a"]), addressed(3))
    content = bytearray(encoded(batch))
    content[HEAD_SIZE + 5] ^= 1
    assert salvage(read_head(content, 0, SEED), content[HEAD_SIZE:]) == []


def test_salvage_of_a_batch_that_is_cut_short_gives_its_complete_messages():
    content = encoded(messages([b"one", b"two"]))
    (part,) = salvage(read_head(content, 0, SEED), content[HEAD_SIZE:-4])
    assert list(part.bodies()) == [(100, b"one")]


def test_extensions_are_read_as_they_were_written():
    batch = new_batch(ADDRESSED, 1, 1, 5, items([b"a"]), addressed(3, 7, 99))
    assert (channel_of(batch), due_ns_of(batch)) == ((3, 7), 99)
    assert due_ns_of(new_batch(DEFERRED, 1, 1, 5, items([b"a"]), deferred(42))) == 42
    assert releases_of(new_batch(MESSAGES, 1, 1, 5, items([b"a"]), releasing([4, 9]))) == [4, 9]
    assert releases_of(messages([b"a"])) == []


def test_the_origin_of_a_dead_letter_is_kept_if_its_extension_is_not_damaged():
    batch = new_batch(MESSAGES, 5, 1, 7, b"\0\0\0\1x", originating(b'{"offset":3}'))
    data = b"".join(batch.buffers(SEED))
    head = read_head(data, 0, SEED)
    assert origin_of(read_batch(head, data[HEAD_SIZE:])) == b'{"offset":3}'
    damaged = data[:HEAD_SIZE] + bytes([data[HEAD_SIZE] ^ 1]) + data[HEAD_SIZE + 1 :]
    (salvaged,) = salvage(head, damaged[HEAD_SIZE:])
    assert (origin_of(salvaged), salvaged.items) == (b"", batch.items)
    assert origin_of(new_batch(MESSAGES, 5, 1, 7, b"\0\0\0\1x")) == b""


def test_a_record_takes_no_offset():
    record = new_record(DELTA, 12, b"payload")
    read = decoded(encoded(record))
    assert (read.has_offsets, read.end, read.first, payload_of(read)) == (False, 0, 12, b"payload")


def test_find_head_skips_what_only_looks_like_a_batch():
    data = b"NXB1" * 30 + encoded(messages([b"a"]))
    assert find_head(data, 0, SEED) == 120
    assert find_head(data, 121, SEED) == -1
