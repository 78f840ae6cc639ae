"""Slices of large publishes: nothing is lost or reordered, and every slice stays within its limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.wire.batches import SLICE_BYTES, SLICE_COUNT, BatchSlices, LineSlices, has_longer_line
from rawclient import sized

LINES = st.lists(st.sampled_from([b"", b"a", b"\r", b"line", b"x" * 300]), max_size=30).map(b"\n".join)


def slices_of(slices) -> list[tuple[bytes, int]]:
    found = []
    while not slices.is_done:
        items = slices.next()
        found.append((items, slices.count))
    return found


def messages_in(items: bytes) -> list[bytes]:
    found = []
    while items:
        size = int.from_bytes(items[:4], "big")
        found.append(items[4 : 4 + size])
        items = items[4 + size :]
    return found


@given(body=LINES)
def test_lines_that_are_not_empty_become_messages(body):
    expected = [line for line in body.split(b"\n") if line]
    items, counts = zip(*slices_of(LineSlices(body)) or [(b"", 0)], strict=True)
    assert messages_in(b"".join(items)) == expected
    assert sum(counts) == len(expected)


@given(body=LINES, max_size=st.integers(0, 310))
def test_a_line_above_the_limit_is_found(body, max_size):
    assert has_longer_line(body, max_size) == any(len(line) > max_size for line in body.split(b"\n"))


@pytest.mark.parametrize("line", [b"x\n", b"\n", b"xy\n\n"])
def test_very_many_lines_become_several_slices(line):
    count = 3 * SLICE_BYTES // len(line)
    found = slices_of(LineSlices(line * count))
    assert all(each <= SLICE_COUNT for _, each in found)
    assert sum(each for _, each in found) == (count if line.strip() else 0)
    assert len(found) >= 3


def test_a_line_longer_than_a_slice_is_not_split():
    body = b"a\n" + b"x" * (2 * SLICE_BYTES) + b"\nb"
    found = slices_of(LineSlices(body))
    assert [message[:2] for items, _ in found for message in messages_in(items)] == [b"a", b"xx", b"b"]


@given(bodies=st.lists(st.binary(min_size=1, max_size=20), max_size=40))
def test_a_small_batch_is_one_slice(bodies):
    items = b"".join(map(sized, bodies))
    assert slices_of(BatchSlices(items)) == ([(items, len(bodies))] if bodies else [])


def test_a_batch_of_very_many_messages_becomes_several_slices():
    bodies = [b"%d" % number for number in range(2 * SLICE_COUNT + 5)]
    found = slices_of(BatchSlices(b"".join(map(sized, bodies))))
    assert [count for _, count in found] == [SLICE_COUNT, SLICE_COUNT, 5]
    assert [message for items, _ in found for message in messages_in(items)] == bodies


def test_a_batch_of_large_messages_becomes_several_slices():
    bodies = [b"x" * (SLICE_BYTES // 2)] * 5
    found = slices_of(BatchSlices(b"".join(map(sized, bodies))))
    assert [count for _, count in found] == [2, 2, 1]
