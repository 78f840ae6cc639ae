"""Checksums of records: the Python half directly, the compiled half through the disk queue that uses it."""

import struct
import tempfile
import zlib
from pathlib import Path

import pytest
from diskqueue_bench import FAST_DIRECTORY, data_name, drain, open_queue, put, record, sums_name
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqx.queues.checksums import append_sums, are_items_good, count_good, crc_of, item_sums, span
from nsqx.queues.log.batch import HEAD_SIZE, MESSAGES, new_batch, read_batch, read_head
from nsqx.queues.sidecar import Sidecar

BODIES = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8)


@pytest.fixture
def fast_path():
    with tempfile.TemporaryDirectory(dir=FAST_DIRECTORY) as directory:
        yield Path(directory)


def entries(records):
    return b"".join(struct.pack(">II", len(one), zlib.crc32(one)) for one in records)


@given(BODIES)
def test_each_record_has_an_entry(bodies):
    records = [record(body) for body in bodies]
    out = bytearray(b"before")
    append_sums(out, bytearray(b"".join(records)), len(records))
    assert out == b"before" + entries(records)
    assert span(bytes(out[6:]), 0, len(records)) == sum(map(len, records))
    assert span(bytes(out[6:]), 1, 1) == 0


@given(BODIES, st.data())
def test_count_good_stops_at_the_first_mismatch(bodies, data):
    records = [record(body) for body in bodies]
    sums, content = entries(records), bytearray(b"".join(records))
    assert count_good(bytes(content), 0, sums, 0, len(records)) == len(records)
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    ends = [sum(map(len, records[: index + 1])) for index in range(len(records))]
    damaged = next(index for index, end in enumerate(ends) if end > position)
    assert count_good(bytes(content), 0, sums, 0, len(records)) == damaged
    if damaged + 1 < len(records):
        assert count_good(bytes(content), ends[damaged], sums, damaged + 1, len(records)) == len(records) - damaged - 1


def test_an_incomplete_record_is_a_mismatch():
    records = [record(b"one"), record(b"two")]
    assert count_good(b"".join(records)[:-1], 0, entries(records), 0, 2) == 1


@settings(max_examples=60, deadline=None)
@given(BODIES, st.binary(max_size=200))
def test_the_disk_queue_writes_the_same_checksums(bodies, tail):
    """The sizes vary because the compiled half processes many bytes at a time."""
    bodies = [*bodies, b"x" * 1000, b"last" + tail]
    with tempfile.TemporaryDirectory(dir=FAST_DIRECTORY) as directory:
        queue = open_queue(directory)
        put(queue, *bodies)
        queue.close()
        sidecar = Sidecar(str(Path(directory, data_name(0))))
        assert sidecar.next_block()
        assert sidecar.sums == entries([record(body) for body in bodies])
        assert (sidecar.start, sidecar.end, sidecar.count) == (0, sum(30 + len(body) for body in bodies), len(bodies))
        assert drain(open_queue(directory)) == bodies


@pytest.mark.parametrize("size", [1, 2, 5, 33, 34, 35, 64, 98, 99, 100, 900])
def test_the_disk_queue_detects_any_changed_bit(fast_path, size):
    queue = open_queue(fast_path)
    put(queue, b"before", b"x" * size, b"after")
    queue.close()
    path = fast_path / data_name(0)
    content = path.read_bytes()
    files = {name: (fast_path / name).read_bytes() for name in (sums_name(0), "q.diskqueue.meta.dat")}
    for position in range(36, 36 + 30 + size):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        queue = open_queue(fast_path)
        assert drain(queue) == [b"before", b"after"]
        queue.close()
        for name, old in files.items():
            (fast_path / name).write_bytes(old)


@given(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF), BODIES)
def test_a_crc_continues_from_a_seed_in_both_halves(data, seed, bodies):
    assert crc_of(data, seed) == zlib.crc32(data, seed)
    batch = new_batch(MESSAGES, 0, len(bodies), 5, b"".join(map(record, bodies)), data)
    head = batch.head(seed, 0)
    assert struct.unpack_from(">I", head, 44)[0] == zlib.crc32(batch.sums, zlib.crc32(data))
    assert struct.unpack_from(">I", head, 48)[0] == zlib.crc32(head[:48], seed)


@given(BODIES)
def test_each_item_has_a_sum_in_both_halves(bodies):
    records = [record(body) for body in bodies]
    expected = b"".join(struct.pack(">I", zlib.crc32(one)) for one in records)
    assert item_sums(b"".join(records), len(records)) == expected
    assert new_batch(MESSAGES, 0, len(records), 5, b"".join(records)).sums == expected


@given(BODIES, st.data())
def test_changed_missing_and_additional_items_are_found_in_both_halves(bodies, data):
    items = b"".join(record(body) for body in bodies)
    batch = new_batch(MESSAGES, 0, len(bodies), 5, items)
    head_bytes = batch.head(0, 0)
    head = read_head(head_bytes, 0, 0)
    position = data.draw(st.integers(0, len(items) - 1))
    changed = bytearray(items)
    changed[position] ^= 1 << data.draw(st.integers(0, 7))
    assert are_items_good(items, batch.sums)
    assert read_batch(head, items + batch.sums) is not None
    assert not are_items_good(bytes(changed), batch.sums)
    assert read_batch(head, bytes(changed) + batch.sums) is None
    assert not are_items_good(items[:position], batch.sums)
    assert not are_items_good(items + b"\0", batch.sums)
    assert len(head_bytes) == HEAD_SIZE
