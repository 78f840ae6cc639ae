"""Checksums of records: an entry of 8 bytes for each, with its size and its CRC-32, as in a sidecar.

The checksums of the items of a topic log are CRC-32s without sizes, 4 bytes each.

Like ``wire.byteops`` this module has two implementations. Uncompiled modules call the functions below. Compiled modules
call the inline C functions of the same names in ``checksums.pxd``. tests/unit/queues/test_checksums.py compares
the two. Neither checks bounds: callers do.

      0            4            8
      +------------+------------+
      | size       | CRC-32     |   of the whole record, including its int32 length; big-endian
      +------------+------------+
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

ENTRY_SIZE = 8
_ENTRY = Struct(">II")
_LENGTH = Struct(">i")
_SUM = Struct(">I")


def append_sums(out: bytearray, records: bytes | bytearray, count: int) -> None:
    """Append an entry for each of the ``count`` complete records in ``records``."""
    view = memoryview(records)
    position = 0
    for _ in range(count):
        end = position + 4 + _LENGTH.unpack_from(view, position)[0]
        out += _ENTRY.pack(end - position, crc32(view[position:end]))
        position = end


def count_good(data: bytes | bytearray, start: int, sums: bytes, first: int, last: int) -> int:
    """Return how many records from ``start`` on match the entries ``first`` to ``last``, up to the first mismatch."""
    view = memoryview(data)
    for index in range(first, last):
        size, expected = _ENTRY.unpack_from(sums, index * ENTRY_SIZE)
        if start + size > len(view) or crc32(view[start : start + size]) != expected:
            return index - first
        start += size
    return last - first


def span(sums: bytes, first: int, last: int) -> int:
    """Return the total size in bytes of the records of the entries ``first`` to ``last``."""
    return sum(_ENTRY.unpack_from(sums, index * ENTRY_SIZE)[0] for index in range(first, last))


def crc_of(data: bytes, seed: int) -> int:
    """Return the CRC-32 of ``data``, continued from ``seed``."""
    return crc32(data, seed)


def item_sums(items: bytes, count: int) -> bytes:
    """Return the CRC-32 of each of the ``count`` complete records in ``items``, 4 bytes each."""
    view = memoryview(items)
    sums = bytearray()
    position = 0
    for _ in range(count):
        end = position + 4 + _LENGTH.unpack_from(view, position)[0]
        sums += _SUM.pack(crc32(view[position:end]))
        position = end
    return bytes(sums)


def are_items_good(items: bytes, sums: bytes) -> bool:
    """Return True if ``items`` consists of one record for each of the ``sums``, and all of them match."""
    view = memoryview(items)
    position = 0
    for (expected,) in _SUM.iter_unpack(sums):
        if len(view) - position < 4:
            return False
        size = _LENGTH.unpack_from(view, position)[0]
        end = position + 4 + size
        if size < 0 or end > len(view) or crc32(view[position:end]) != expected:
            return False
        position = end
    return position == len(view)
