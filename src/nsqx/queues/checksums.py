"""Checksums of records: for each its size and its CRC-32, 8 bytes together, as a sidecar keeps them.

Like ``wire.byteops`` this is written twice: uncompiled modules call the functions below, compiled ones the inline C
functions of the same names in ``checksums.pxd``. Both must agree (tests/unit/queues/test_checksums.py); neither checks
bounds: callers do.

      0            4            8
      +------------+------------+
      | size       | CRC-32     |   of the whole record, its int32 length included; big-endian
      +------------+------------+
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

ENTRY_SIZE = 8
_ENTRY = Struct(">II")
_LENGTH = Struct(">i")


def append_sums(out: bytearray, records: bytes | bytearray, count: int) -> None:
    """Append an entry for each of the ``count`` whole records that ``records`` are."""
    view = memoryview(records)
    position = 0
    for _ in range(count):
        end = position + 4 + _LENGTH.unpack_from(view, position)[0]
        out += _ENTRY.pack(end - position, crc32(view[position:end]))
        position = end


def count_good(data: bytes | bytearray, start: int, sums: bytes, first: int, last: int) -> int:
    """How many of the entries ``first`` to ``last``, one after the other, the records from ``start`` on agree with."""
    view = memoryview(data)
    for index in range(first, last):
        size, expected = _ENTRY.unpack_from(sums, index * ENTRY_SIZE)
        if start + size > len(view) or crc32(view[start : start + size]) != expected:
            return index - first
        start += size
    return last - first


def span(sums: bytes, first: int, last: int) -> int:
    """How many bytes the records of the entries ``first`` to ``last`` take."""
    return sum(_ENTRY.unpack_from(sums, index * ENTRY_SIZE)[0] for index in range(first, last))
