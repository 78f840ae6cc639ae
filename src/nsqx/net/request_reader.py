"""Turns the bytes of a connection into requests.

Owns the received bytes that are not yet a request, and rejects malformed heads and bodies over their limit without
reading them. ``http_head`` and ``chunked`` own the grammar. A head seen before is not parsed again. No transports, no
deadlines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsqx.errors import HTTPError
from nsqx.net.body_buffer import BodyBuffer
from nsqx.net.chunked import ChunkedBody
from nsqx.net.http_head import refusal
from nsqx.net.requests import Request
from nsqx.net.responses import Response, error_response, refusal_response
from nsqx.net.router import BodyLimit

if TYPE_CHECKING:
    from nsqx.net.http_server import HTTPServer
    from nsqx.net.requests import Answerable

# The part of a request that the reader expects next.
IDLE = 0  # the first byte of a request
HEAD = 1  # the rest of a head
BODY = 2  # a body of known length
CHUNKED = 3  # a chunked body
DONE = 4  # nothing: reading has ended

# An unused body is read up to this size, so that the connection can be kept alive, as in Go.
_MAX_UNWANTED_BODY = 256 * 1024

_A = 65
_Z = 90
_EMPTY_LINE = b"\r\n\r\n"
_BARE_LF = re.compile(rb"(?<!\r)\n")


class RequestReader:
    """Reads the requests of one connection: call ``add`` with received bytes, then ``next`` until it returns None."""

    __slots__ = (
        "_body_left",
        "_chunks",
        "_data",
        "_head",
        "_pieces",
        "_position",
        "_request",
        "_server",
        "_too_big",
        "phase",
        "refused",
        "wants_continue",
    )

    phase: int
    # The answer to a rejected request, and the request itself if its head was valid.
    refused: tuple[Request | None, Response] | None
    # The client waits for "100 Continue"; the connection resets this after sending it or deciding not to.
    wants_continue: bool

    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self.phase = IDLE
        self.refused = None
        self.wants_continue = False
        self._data: bytes | None = None  # unprocessed input, from _position on; None if there is none
        self._position = 0
        self._head: bytearray | None = None  # the first part of a head
        self._request: Request | None = None  # the request whose body is being read
        self._body_left = 0
        self._too_big: Response | None = None  # the answer if the body exceeds its limit
        self._pieces: BodyBuffer | None = None
        self._chunks: ChunkedBody | None = None

    @property
    def has_data(self) -> bool:
        """True if there is unprocessed input."""
        return self._data is not None

    def add(self, data: bytes) -> None:
        """Add received bytes."""
        if self.phase == HEAD:
            self._add_to_head(data)
        elif self._data is None:
            self._data = data
            self._position = 0
        else:
            self._data = self._data[self._position :] + data
            self._position = 0

    def next(self, connection: Answerable) -> Request | None:
        """Return the next complete request, for ``connection``.

        Returns None if it needs more bytes, or has set ``refused`` or ``wants_continue``. After the latter, call again.
        """
        data = self._data
        while data is not None:
            phase = self.phase
            if phase == IDLE:
                request = self._read_head(connection, data)
            elif phase == BODY:
                request = self._read_body(data)
            elif phase == CHUNKED:
                request = self._read_chunks(data)
            else:
                return None
            if self._position >= len(data):
                self._data = None
            if request is not None or self.wants_continue:
                return request
            data = self._data
        return None

    def stop(self) -> None:
        """Drop all input and stop reading."""
        self.phase = DONE
        self.wants_continue = False
        self._data = None
        self._head = None
        self._request = None
        self._pieces = None
        if self._chunks is not None:
            self._chunks.abandon()
            self._chunks = None

    def refuse(self, error: HTTPError) -> None:
        """Reject the current input: not a valid request, or too late."""
        self.stop()
        self.refused = (None, refusal_response(error.status, error.code))
        self._server.log.debug(f"HTTP: refused {error.status} {error.code} - {'; '.join(error.__notes__)}")

    def _refuse_request(self, request: Request, response: Response) -> None:
        self.stop()
        self.refused = (request, response)

    def _read_head(self, connection: Answerable, data: bytes) -> Request | None:
        place = self._position
        end = data.find(_EMPTY_LINE, place)
        if end < 0:
            self.phase = HEAD
            self._head = bytearray()
            self._data = None
            self._add_to_head(data[place:])
            return None
        end += 4
        self._position = end
        raw = data[place:end]
        server = self._server
        head = server.heads.get(raw)
        if head is None:
            try:
                head = server.read_head(raw)
            except HTTPError as error:
                self.refuse(error)
                return None
        request = Request(connection, head)
        if server.gate is not None:
            request.answer = server.ask_gate(request)
        if head.content_length or head.chunked:
            return self._begin_body(request, data, end)
        return request

    def _add_to_head(self, data: bytes) -> None:
        """Add to an incomplete head; reject early if it cannot become a request."""
        head = self._head
        assert head is not None
        searched = max(len(head) - 3, 0)
        head += data
        if head.find(_EMPTY_LINE, searched) >= 0:
            self.phase = IDLE
            self._head = None
            self._data = bytes(head)
            self._position = 0
        elif len(head) > self._server.max_header_bytes:
            self.refuse(refusal(431, "HEADER_TOO_BIG", "head is too long"))
        elif not _A <= head[0] <= _Z or _BARE_LF.search(head, searched) is not None:
            self.refuse(refusal(400, "BAD_REQUEST", "not an HTTP request"))

    def _begin_body(self, request: Request, data: bytes, place: int) -> Request | None:
        head = request.head
        known = _fixed_answer(request)
        if known is not None:
            too_big = known
            max_bytes = _MAX_UNWANTED_BODY
        else:
            try:
                max_bytes, code = _limit_of(request)
            except Exception as error:
                self._refuse_request(request, self._server.failed(request, error))
                return None
            too_big = error_response(413, code)
        if head.content_length > max_bytes or (known is not None and head.expects_continue):
            self._refuse_request(request, too_big)
            return None
        end = place + head.content_length
        if end <= len(data) and not head.chunked and not head.expects_continue:
            request.body = data[place:end]
            self._position = end
            return request
        self._request = request
        self._too_big = too_big
        self.wants_continue = head.expects_continue
        if head.chunked:
            self.phase = CHUNKED
            self._chunks = ChunkedBody(max_bytes)
        else:
            self.phase = BODY
            self._pieces = BodyBuffer()
            self._body_left = head.content_length
        return None

    def _read_body(self, data: bytes) -> Request | None:
        pieces = self._pieces
        assert pieces is not None
        place = self._position
        size = len(data)
        end = place + self._body_left
        if end > size:
            pieces.add(data[place:])
            self._position = size
            self._body_left = end - size
            return None
        pieces.add(data[place:end])
        self._position = end
        return self._finish_body(pieces.join())

    def _read_chunks(self, data: bytes) -> Request | None:
        chunks = self._chunks
        assert chunks is not None
        try:
            self._position = chunks.feed(data, self._position)
        except HTTPError as error:
            self.refuse(error)
            return None
        if chunks.oversize:
            assert self._request is not None
            assert self._too_big is not None
            self._refuse_request(self._request, self._too_big)
        elif chunks.complete:
            return self._finish_body(chunks.take())
        return None

    def _finish_body(self, body: bytes) -> Request:
        request = self._request
        assert request is not None
        request.body = body
        self.phase = IDLE
        self.wants_continue = False
        self._request = None
        self._pieces = None
        self._chunks = None
        return request


def _fixed_answer(request: Request) -> Response | None:
    """Return the answer that does not depend on the body, if there is one."""
    if request.answer is not None:
        return request.answer
    route = request.head.route
    assert route is not None
    return route.answer


def _limit_of(request: Request) -> BodyLimit:
    route = request.head.route
    assert route is not None
    limit = route.body_limit
    return limit if isinstance(limit, BodyLimit) else limit(request)
