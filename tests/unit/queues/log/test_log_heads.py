"""The head of a batch: the Python half directly, the compiled half through a batch."""

import struct
import zlib

from hypothesis import given
from hypothesis import strategies as st

from nsqx.queues.log.batch import HEAD_SIZE, LogBatch, read_head
from nsqx.queues.log.heads import encode_head

UINT32 = st.integers(0, (1 << 32) - 1)
OFFSETS = st.integers(0, (1 << 62) - 1)
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)


@given(OFFSETS, TIMES, st.integers(0, 65535), st.binary(max_size=300), st.binary(max_size=40), OFFSETS, UINT32)
def test_both_halves_encode_the_same_head(first, timestamp, kind, items, extension, synced_below, seed):
    sums = bytes(12)
    size = HEAD_SIZE + len(extension) + len(items) + len(sums)
    batch = LogBatch(kind, first, 3, timestamp, items, sums, extension)
    tail_crc = zlib.crc32(sums, zlib.crc32(extension))
    head = encode_head(size, first, timestamp, 3, kind, len(extension), len(items), synced_below, tail_crc, seed)
    assert len(head) == HEAD_SIZE
    assert batch.head(seed, synced_below) == head + extension
    assert read_head(head, 0, seed) == (
        size, first, timestamp, 3, kind, len(extension), len(items), synced_below, tail_crc,
    )  # fmt: skip
    assert head[48:] == struct.pack(">I4x", zlib.crc32(head[:48], seed))
