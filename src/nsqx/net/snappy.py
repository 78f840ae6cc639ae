"""Snappy's framing format, for both directions of one connection. Needs the package cramjam.

      0        1                 4                 8
      +--------+-----------------+-----------------+------ ... ------+
      | type   | length, 3 bytes | masked CRC-32C  | data            |   numbers little endian
      +--------+-----------------+-----------------+------ ... ------+

Types: 0x00 compressed, 0x01 uncompressed, 0xfe padding, 0x80-0xfd skippable, 0xff stream identifier (no checksum, its
data is ``sNaPpY``), any other type is an error. A chunk decodes to at most 65536 bytes.
"""

from __future__ import annotations

import cramjam

from nsqx.net.compression import BadCompression

_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED = 0x00
_PLAIN = 0x01
_FIRST_SKIPPABLE = 0x80
_STREAM_IDENTIFIER = 0xFF
_CHUNK_HEAD = 4
_CHECKSUM = 4
_MAX_CHUNK_DATA = 65536
# Snappy's upper bound for the compressed size of 65536 bytes.
_MAX_CHUNK_LENGTH = _CHECKSUM + 32 + _MAX_CHUNK_DATA + _MAX_CHUNK_DATA // 6


class Snappy:
    """Snappy's framing format."""

    __slots__ = ("_buffer", "_has_begun", "_has_sent", "has_more")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._has_begun = False
        self._has_sent = False
        self.has_more = False

    def wrap(self, data: bytes) -> bytes:
        """Compress ``data`` into chunks, preceded once by the stream identifier."""
        framed = bytes(cramjam.snappy.compress(data))
        if self._has_sent:
            return framed[len(_IDENTIFIER) :]
        self._has_sent = True
        return framed

    def unwrap(self, data: bytes, limit: int) -> bytes:
        """Decompress the complete chunks, about ``limit`` bytes; raises BadCompression."""
        buffer = self._buffer
        buffer += data
        end = self._whole_chunks(max(1, limit // _MAX_CHUNK_DATA))
        if not end:
            self.has_more = False
            return b""
        chunks = bytes(buffer[:end])
        del buffer[:end]
        if not chunks.startswith(_IDENTIFIER):
            chunks = _IDENTIFIER + chunks
        try:
            plain = bytes(cramjam.snappy.decompress(chunks))
        except cramjam.DecompressionError as error:
            raise BadCompression(f"snappy: {error}") from None
        self.has_more = len(buffer) >= _CHUNK_HEAD and bool(self._whole_chunks(1))
        return plain

    def take_output(self) -> bytes:
        """Return nothing: a compression sends no data of its own."""
        return b""

    def _whole_chunks(self, max_count: int) -> int:
        """Return the end of at most ``max_count`` complete chunks; raise BadCompression if one is invalid."""
        buffer = self._buffer
        position = 0
        for _ in range(max_count):
            if len(buffer) - position < _CHUNK_HEAD:
                break
            kind = buffer[position]
            length = int.from_bytes(buffer[position + 1 : position + _CHUNK_HEAD], "little")
            self._check_kind(kind, length)
            end = position + _CHUNK_HEAD + length
            if len(buffer) < end:
                break
            if kind == _COMPRESSED:
                self._check_length(bytes(buffer[position + _CHUNK_HEAD + _CHECKSUM : min(end, position + 16)]))
            self._has_begun = True
            position = end
        return position

    def _check_kind(self, kind: int, length: int) -> None:
        if not self._has_begun and kind != _STREAM_IDENTIFIER:
            raise BadCompression("snappy: the stream does not begin with its identifier")
        if kind in (_COMPRESSED, _PLAIN):
            most = _MAX_CHUNK_LENGTH if kind == _COMPRESSED else _CHECKSUM + _MAX_CHUNK_DATA
            if not _CHECKSUM <= length <= most:
                raise BadCompression(f"snappy: invalid chunk length {length}")
        elif kind == _STREAM_IDENTIFIER:
            if length != len(_IDENTIFIER) - _CHUNK_HEAD:
                raise BadCompression("snappy: invalid stream identifier")
        elif kind < _FIRST_SKIPPABLE:
            raise BadCompression(f"snappy: unknown chunk type 0x{kind:02x}")
        elif length > _MAX_CHUNK_LENGTH:
            # As in Go, a skippable chunk is buffered in full. Limit its size, so that it cannot fill the memory.
            raise BadCompression(f"snappy: skippable chunk of {length} bytes is too long")

    @staticmethod
    def _check_length(start: bytes) -> None:
        """Check the length at the start of a compressed chunk: 7 bits per byte, the size after decompression."""
        value = shift = 0
        for octet in start:
            value |= (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80:
                break
        if value > _MAX_CHUNK_DATA:
            raise BadCompression(f"snappy: chunk decodes to {value} bytes, at most {_MAX_CHUNK_DATA} allowed")
