"""Deflate compression, for both directions of one connection, and the check for snappy's package.

Deflate is raw DEFLATE, flushed after every write so that the peer can decode it. ``net.snappy`` is a module of its own,
because it needs a package that the client does not require.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from nsqx.errors import ConfigError, NSQError

if TYPE_CHECKING:
    from nsqx.net.snappy import Snappy


class BadCompression(NSQError):
    """The received data is not valid in this compression."""


class Deflate:
    """Raw DEFLATE."""

    __slots__ = ("_compressor", "_decompressor", "has_more")

    def __init__(self, level: int = 6) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        self.has_more = False

    def wrap(self, data: bytes) -> bytes:
        """Compress and flush ``data``."""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def unwrap(self, data: bytes, limit: int) -> bytes:
        """Return at most ``limit`` decompressed bytes; raises BadCompression."""
        decompressor = self._decompressor
        if decompressor.eof:
            if data:
                raise BadCompression("deflate: data after the end of the stream")
            return b""
        waiting = decompressor.unconsumed_tail
        try:
            plain = decompressor.decompress(waiting + data if waiting else data, limit)
        except zlib.error as error:
            raise BadCompression(f"deflate: {error}") from None
        # If the output is full, zlib may hold more even though it has consumed all input.
        self.has_more = bool(decompressor.unconsumed_tail) or len(plain) == limit
        if decompressor.eof:
            self.has_more = False
            if decompressor.unused_data:
                raise BadCompression("deflate: data after the end of the stream")
        return plain

    def take_output(self) -> bytes:
        """Return nothing: a compression sends no data of its own."""
        return b""


def make_snappy() -> Snappy:
    """Return a snappy layer; raises ConfigError if its package is not installed."""
    try:
        from nsqx.net.snappy import Snappy
    except ModuleNotFoundError as error:
        raise ConfigError(f"snappy needs the package {error.name}: pip install 'nsqx[snappy]'") from None
    return Snappy()
