"""The head of a batch: the Python half directly, the compiled half through a batch."""

import struct
import zlib

from hypothesis import given
from hypothesis import strategies as st

from nsqx.queues.log.batch import HEAD_SIZE, LogBatch, read_head
from nsqx.queues.log.heads import encode_head

UINT32 = st.integers(0, (1 << 32) - 1)
OFFSETS = st.integers(0, (1 << 62) - 1)
UNSYNCED = st.one_of(st.integers(-1, 1 << 33), st.integers((1 << 32) - 3, (1 << 32) + 1))
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    OFFSETS, TIMES, st.integers(0, 65535), st.binary(max_size=300), st.binary(max_size=40), OFFSETS, UINT32, UNSYNCED
)
def test_both_halves_encode_the_same_head(first, timestamp, kind, items, extension, synced_below, seed, unsynced_size):
    sums = bytes(12)
    size = HEAD_SIZE + len(extension) + len(items) + len(sums)
    batch = LogBatch(kind, first, 3, timestamp, items, sums, extension)
    tail_crc = zlib.crc32(sums, zlib.crc32(extension))
    unsynced = unsynced_size + 1 if unsynced_size < (1 << 32) - 1 else 0
    head = encode_head(
        size, first, timestamp, 3, kind, len(extension), len(items), synced_below, tail_crc, seed, unsynced
    )
    assert len(head) == HEAD_SIZE
    assert batch.head(seed, synced_below, unsynced_size) == head + extension
    assert read_head(head, 0, seed) == (
        size, first, timestamp, 3, kind, len(extension), len(items), synced_below, tail_crc, unsynced,
    )  # fmt: skip
    crc = zlib.crc32(head[:48], seed)
    assert head[48:] == struct.pack(">II", zlib.crc32(head[52:], crc) if unsynced else crc, unsynced)
    for changed in ((unsynced + 1) % (1 << 32), 0):
        if changed != unsynced:
            assert read_head(head[:52] + struct.pack(">I", changed), 0, seed) is None
