"""The compression layers of a V2 connection. They share no code with the package, so that tests compare the two.

Snappy is read completely: raw and compressed chunks, with their checksums. It is written as raw chunks.
"""

import zlib
from typing import Protocol

_STREAM_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _RAW, _PADDING, _IDENTIFIER = 0x00, 0x01, 0xFE, 0xFF
_MAX_CHUNK_BYTES = 65536


class Layer(Protocol):
    """Encodes bytes for the wire and decodes bytes from the wire."""

    def encode(self, data: bytes) -> bytes: ...

    def decode(self, data: bytes) -> bytes: ...


class DeflateLayer:
    """Raw DEFLATE, flushed after every write."""

    def __init__(self, level: int = 6) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)

    def encode(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        return self._decompressor.decompress(data)


class SnappyLayer:
    """The snappy framing format.

    Chunk: type (1 byte), length (3, little endian); in data chunks a masked CRC-32C (4, little endian), then the data.
    """

    def __init__(self) -> None:
        self._identified = False
        self._received = bytearray()

    def encode(self, data: bytes) -> bytes:
        out = bytearray() if self._identified else bytearray(_STREAM_IDENTIFIER)
        self._identified = True
        for start in range(0, len(data), _MAX_CHUNK_BYTES):
            part = data[start : start + _MAX_CHUNK_BYTES]
            out += bytes([_RAW]) + (len(part) + 4).to_bytes(3, "little")
            out += masked_crc32c(part).to_bytes(4, "little") + part
        return bytes(out)

    def decode(self, data: bytes) -> bytes:
        self._received += data
        out = bytearray()
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[1:4], "little")
            if len(self._received) < 4 + size:
                break
            kind, payload = self._received[0], bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            out += self._chunk(kind, payload)
        return bytes(out)

    @staticmethod
    def _chunk(kind: int, payload: bytes) -> bytes:
        if kind == _IDENTIFIER:
            assert payload == b"sNaPpY", payload
            return b""
        if kind == _PADDING or 0x80 <= kind < _PADDING:
            return b""
        assert kind in (_COMPRESSED, _RAW), f"reserved chunk type {kind:#x}"
        content = payload[4:] if kind == _RAW else decompress_snappy_block(payload[4:])
        assert masked_crc32c(content) == int.from_bytes(payload[:4], "little"), "checksum of a snappy chunk"
        return content


def decompress_snappy_block(block: bytes) -> bytes:
    """Decompress a snappy block: a varint of its length, then literals and copies."""
    expected, position = _read_varint(block)
    out = bytearray()
    while position < len(block):
        tag = block[position]
        position += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                length = int.from_bytes(block[position : position + extra], "little")
                position += extra
            length += 1
            out += block[position : position + length]
            position += length
            continue
        if tag & 3 == 1:
            length = 4 + (tag >> 2 & 7)
            offset = (tag >> 5) << 8 | block[position]
            position += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length = 1 + (tag >> 2)
            offset = int.from_bytes(block[position : position + width], "little")
            position += width
        assert 0 < offset <= len(out), "copy from before the start"
        for _ in range(length):
            out.append(out[-offset])
    assert len(out) == expected, (len(out), expected)
    return bytes(out)


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of a snappy chunk."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _read_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for position, byte in enumerate(data):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, position + 1
    raise AssertionError("unfinished varint")


def _crc_table() -> list[int]:
    table = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 if crc & 1 else crc >> 1
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()
