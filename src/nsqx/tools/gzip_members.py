"""Gzip output in members: a member is readable as soon as it is complete, and a file may contain several members.

1f 8b 08 00  00 00 00 00  02|00|04  ff    deflate data    crc32  size
magic, no flags, no time  level     any OS                little endian
"""

from __future__ import annotations

import struct
import zlib

_TRAILER = struct.Struct("<II")
_LEVEL_MARKS = {1: 4, 9: 2}


class GzipMember:
    """One member: bytes in, compressed bytes out."""

    __slots__ = ("_checksum", "_deflate", "_head", "_size")

    def __init__(self, level: int) -> None:
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._head = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, _LEVEL_MARKS.get(level, 0), 0xFF))
        self._checksum = 0
        self._size = 0

    def add(self, data: bytes) -> bytes:
        """Compress ``data`` and return the output so far, which is often empty."""
        self._checksum = zlib.crc32(data, self._checksum)
        self._size += len(data)
        return self._take_head() + self._deflate.compress(data)

    def end(self) -> bytes:
        """Complete the member and return the rest of the output."""
        trailer = _TRAILER.pack(self._checksum, self._size & 0xFFFFFFFF)
        return self._take_head() + self._deflate.flush() + trailer

    def _take_head(self) -> bytes:
        head, self._head = self._head, b""
        return head
