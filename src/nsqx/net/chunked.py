"""Decodes chunked request bodies and finds the start of the next request.

llhttp decodes. It cannot be stopped at the end of a message, but a chunked message always ends with an empty line, so
llhttp gets the bytes in pieces that end with one. No sockets, no heads.
"""

from __future__ import annotations

import httptools

from nsqx.net.body_buffer import BodyBuffer
from nsqx.net.http_head import refusal

_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
_EMPTY_LINE = b"\r\n\r\n"
# Limit of chunk sizes, extensions and trailers, relative to the body: enough for a body sent byte by byte. More is
# treated as abuse.
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
        self.oversize = False  # more than max_bytes arrived: the rest is not read
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._parser.feed_data(_HEAD)

    @property
    def size(self) -> int:
        """The number of body bytes received so far."""
        return self._pieces.size

    def on_body(self, piece: bytes) -> None:
        if self._pieces.size + len(piece) > self._max_bytes:
            self.oversize = True
        elif not self.oversize:
            self._pieces.add(piece)

    def on_message_complete(self) -> None:
        self.complete = True

    def feed(self, data: bytes, start: int) -> int:
        """Decode ``data`` from ``start``; return the position where this body's bytes end.

        Stops early when the body is complete or oversize; raises HTTPError 400 if the coding is malformed.
        """
        parser = self._parser
        assert parser is not None, "feed called after the end"
        size = len(data)
        place = start
        # The empty line may have begun in earlier data; then it ends within the first three bytes.
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
            raise refusal(400, "BAD_REQUEST", "too much overhead in the chunked coding")
        return place

    def take(self) -> bytes:
        """Return the whole body and end the decoder."""
        self._parser = None  # it refers to self: break the cycle
        return self._pieces.join()

    def abandon(self) -> None:
        """End the decoder and drop the body."""
        self._parser = None

    @staticmethod
    def _feed_piece(parser: httptools.HttpRequestParser, piece: bytes) -> None:
        try:
            parser.feed_data(piece)
        except httptools.HttpParserError as error:
            raise refusal(400, "BAD_REQUEST", str(error)) from None
