"""Chunked request bodies: from the bytes on the wire to the body, and to the place where the next request begins.

llhttp decodes. It cannot be stopped at the end of a message, but a chunked message always ends with an empty line, so
the bytes are handed to it in pieces that end with one. Knows nothing of sockets or heads.
"""

from __future__ import annotations

import httptools

from nsqx.net.body_buffer import BodyBuffer
from nsqx.net.http_head import refusal

_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
_EMPTY_LINE = b"\r\n\r\n"
# Chunk sizes, extensions and trailers may cost this much beside the body before it is abuse: room for a body sent
# byte by byte, and some more.
_WIRE_BYTES_PER_BODY_BYTE = 16
_WIRE_BYTES_FREE = 64 * 1024


class ChunkedBody:
    """Decodes one chunked body of at most ``max_bytes``."""

    __slots__ = ("__weakref__", "_max_bytes", "_parser", "_pieces", "_wire_bytes", "complete", "oversize")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces = BodyBuffer()
        self._wire_bytes = 0
        self.complete = False
        self.oversize = False  # more than max_bytes arrived: the rest is not worth reading
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._parser.feed_data(_HEAD)

    @property
    def size(self) -> int:
        """Body bytes received so far."""
        return self._pieces.size

    def on_body(self, piece: bytes) -> None:
        if self._pieces.size + len(piece) > self._max_bytes:
            self.oversize = True
        elif not self.oversize:
            self._pieces.add(piece)

    def on_message_complete(self) -> None:
        self.complete = True

    def feed(self, data: bytes, start: int) -> int:
        """Takes ``data`` from ``start`` and gives the place up to which it belongs to this body.

        Ends early when the body is complete or oversize; HTTPError 400 if the coding is broken.
        """
        parser = self._parser
        assert parser is not None, "fed after its end"
        size = len(data)
        place = start
        # The empty line may have begun in earlier data: then it ends within the first three bytes of this.
        step_end = min(start + 3, size)
        while place < size and not self.complete and not self.oversize:
            if place < step_end:
                end = place + 1
            else:
                found = data.find(_EMPTY_LINE, place - 3)
                end = size if found < 0 else found + 4
            self._feed_piece(parser, data[place:end])
            place = end
        self._wire_bytes += place - start
        if self._wire_bytes > _WIRE_BYTES_FREE + _WIRE_BYTES_PER_BODY_BYTE * self._pieces.size and not self.complete:
            raise refusal(400, "BAD_REQUEST", "chunked coding is mostly overhead")
        return place

    def take(self) -> bytes:
        """The whole body; this ends the decoder."""
        self._parser = None  # it refers to self
        return self._pieces.join()

    def abandon(self) -> None:
        """Ends the decoder without its body."""
        self._parser = None

    @staticmethod
    def _feed_piece(parser: httptools.HttpRequestParser, piece: bytes) -> None:
        try:
            parser.feed_data(piece)
        except httptools.HttpParserError as error:
            raise refusal(400, "BAD_REQUEST", str(error)) from None
